"""Launches: plain JIT calls in the interpreter; on a GPU the direct entry does what the JIT does."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels import launch as launches
from hifigemm.engines.kernels.launch import Address, Launch, Recorder, Replay, TensorMap, empty, recording

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"


@triton.jit(do_not_specialize=["count"])
def _scale_kernel(source, target, count, stride, factor, BLOCK: tl.constexpr, ADD: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(source + at.to(tl.int64) * stride, mask=at < count, other=0)
    tl.store(target + at, x * factor + ADD, mask=at < count)


def expected(source, count, stride, factor, add):
    return source[: count * stride : stride][:count] * factor + add


def test_a_launch_is_the_call_of_the_kernel():
    launch = Launch(_scale_kernel)
    for dtype in (torch.int32, torch.int64):
        for count, stride, factor in ((1, 1, 1), (100, 16, 2), (77, 3, 16), (64, 1, 5)):
            source = torch.arange(count * stride, dtype=dtype, device=DEVICE)
            target = torch.zeros(count, dtype=dtype, device=DEVICE)
            for add in (0, 7):
                for _ in range(2):
                    target.zero_()
                    launch((-(-count // 32),), source, target, count, stride, factor, BLOCK=32, ADD=add)
                    assert torch.equal(target, expected(source, count, stride, factor, add))


def test_a_bound_launch_repeats():
    source, target = torch.arange(50, device=DEVICE), torch.zeros(50, dtype=torch.int64, device=DEVICE)
    bound = Launch(_scale_kernel).bind((2,), source, target, 50, 1, 3, BLOCK=32, ADD=1)
    for _ in range(3):
        target.zero_()
        bound()
        assert torch.equal(target, source * 3 + 1)
        source += 1
    assert bound.repeatable == HAS_GPU


@pytest.mark.skipif(not HAS_GPU, reason="the interpreter knows no parameters")
def test_constants_must_come_last():
    @triton.jit
    def wrong(BLOCK: tl.constexpr, source):
        tl.store(source + tl.arange(0, BLOCK), 0)

    with pytest.raises(ValueError, match="must come last"):
        Launch(wrong)


class Entry:
    """A compiled kernel that notes what its C entry is given."""

    head = ("metadata", None)

    def __init__(self, function="kernel"):
        self.function = function
        self.calls = []

    def launch(self, *arguments):
        self.calls.append(arguments)


@pytest.fixture
def stream(monkeypatch):
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 100 + device, raising=False)


def record(recorder, entry, grid, arguments, values):
    recorder.add(entry, grid, arguments, [*entry.head, *values, "padding"])


def test_empty_is_remembered_while_recording():
    before = empty((2, 3), torch.int8, DEVICE)
    with recording() as recorder:
        made = empty((4,), torch.float64, DEVICE)
    after = empty((2, 3), torch.int8, DEVICE)
    assert (made.shape, made.dtype, before.shape, after.shape) == ((4,), torch.float64, (2, 3), (2, 3))
    assert [x.data_ptr() for x in recorder.temporaries] == [made.data_ptr()]
    assert recorder.complete


def test_recordings_nest_and_end_with_an_error():
    with recording() as outer:
        with contextlib.suppress(RuntimeError), recording() as inner:
            empty((1,), torch.int8, DEVICE)
            raise RuntimeError
        empty((2,), torch.int8, DEVICE)
    assert [len(x.temporaries) for x in (outer, inner)] == [1, 1]
    empty((3,), torch.int8, DEVICE)
    assert [len(x.temporaries) for x in (outer, inner)] == [1, 1]


def test_threads_record_for_themselves():
    def work():
        empty((1,), torch.int8, DEVICE)

    with recording() as recorder:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert recorder.temporaries == []


def test_a_recording_with_a_plain_call_is_incomplete():
    source, target = torch.arange(50, device=DEVICE), torch.zeros(50, dtype=torch.int64, device=DEVICE)
    with recording() as recorder:
        Launch(_scale_kernel)((2,), source, target, 50, 1, 3, BLOCK=32, ADD=1)
    assert torch.equal(target, source * 3 + 1)
    assert not recorder.complete


def test_a_replay_puts_new_addresses_in_the_place_of_recorded_ones(stream):
    a, b, out, table = (torch.zeros(8, dtype=torch.float64) for _ in range(4))
    first, second, recorder = Entry("first"), Entry("second"), Recorder()
    with recording() as made:
        x, y = empty((100,), torch.int8, "cpu"), empty((3, 100), torch.int32, "cpu")
    recorder.temporaries = made.temporaries
    at = [t.data_ptr() for t in (a, b, out, table, x, y)]
    record(recorder, first, (5, 1, 1), (a, 7, x, table, None), [at[0], 7, at[4], at[3], None])
    inside = Address(at[5] + 400, torch.int32)
    record(recorder, second, (2, 3, 1), (b, x, inside, out, 2.5), [at[1], at[4], at[5] + 400, at[2], 2.5])
    replay = Replay(recorder, [a, b, out])
    assert replay.nbytes == 256 + 1280
    for device, bases in ((0, [1000, 2000, 3000, 4000]), (1, [5000, 6000, 7000, 8000])):
        replay(device, bases)
        assert first.calls.pop() == (
            *(5, 1, 1, 100 + device, "first", *Entry.head),
            *(bases[0], 7, bases[3], at[3], None, "padding"),
        )
        assert second.calls.pop() == (
            *(2, 3, 1, 100 + device, "second", *Entry.head),
            *(bases[1], bases[3], bases[3] + 256 + 400, bases[2], 2.5, "padding"),
        )


def test_replays_leave_one_another_and_the_recording_alone(stream):
    a, out = torch.zeros(4), torch.zeros(4)
    entry, recorder = Entry(), Recorder()
    record(recorder, entry, (1, 1, 1), (a, out), [a.data_ptr(), out.data_ptr()])
    replay = Replay(recorder, [a, out])
    threads = [threading.Thread(target=replay, args=(0, [i, 1000 + i, 0])) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = sorted((call[-3], call[-2]) for call in entry.calls)
    assert seen == [(i, 1000 + i) for i in range(20)]
    assert recorder.launches[0][3][-3:] == [a.data_ptr(), out.data_ptr(), "padding"]


def test_known_addresses_are_launched_on_the_stream_of_the_call(stream):
    a, out = torch.zeros(4), torch.zeros(4)
    entry, recorder = Entry(), Recorder()
    record(recorder, entry, (1, 1, 1), (a, out), [a.data_ptr(), out.data_ptr()])
    replay = Replay(recorder, [a, out])
    wanted = [(i % 7, device) for device in (0, 1) for i in range(60)]
    for i, device in wanted:
        replay(device, [i, 1000 + i, 0])
    assert [(call[3], call[-3], call[-2]) for call in entry.calls] == [(100 + d, i, 1000 + i) for i, d in wanted]
    for i in range(100):
        replay(0, [i, 1000 + i, 0])
    assert len(replay._bound) <= launches._BOUND_LIMIT
    assert [(call[-3], call[-2]) for call in entry.calls[-100:]] == [(i, 1000 + i) for i in range(100)]


def test_a_mark_cuts_a_replay_where_its_tensor_is_made(stream):
    a, out = torch.zeros(4), torch.zeros(4)
    first, second, recorder = Entry("first"), Entry("second"), Recorder()
    with recording() as made:
        _, y = empty((100,), torch.int8, "cpu"), empty((70,), torch.int32, "cpu")
    recorder.temporaries = made.temporaries
    record(recorder, first, (1, 1, 1), (a, y), [a.data_ptr(), y.data_ptr()])
    launches._state.recorder = recorder
    try:
        launches.mark(y[2:4])
    finally:
        launches._state.recorder = None
    record(recorder, second, (1, 1, 1), (y, out), [y.data_ptr(), out.data_ptr()])
    replay = Replay(recorder, [a, out])
    assert replay.marked == slice(256 + 8, 256 + 16)
    bases = [1000, 2000, 4000]
    replay.head(0, bases)
    assert (len(first.calls), len(second.calls)) == (1, 0)
    replay.tail(0, bases)
    assert (len(first.calls), len(second.calls)) == (1, 1)
    replay(0, bases)
    assert first.calls == [(1, 1, 1, 100, "first", *Entry.head, 1000, 4256, "padding")] * 2
    assert second.calls == [(1, 1, 1, 100, "second", *Entry.head, 4256, 2000, "padding")] * 2
    launches.mark(a)


def test_integers_that_look_like_addresses_stay(stream):
    a, out = torch.zeros(4), torch.zeros(4)
    entry, recorder = Entry(), Recorder()
    record(recorder, entry, (1, 1, 1), (a.data_ptr(), out), [a.data_ptr(), out.data_ptr()])
    Replay(recorder, [a, out])(0, [1, 2, 0])
    assert entry.calls == [(1, 1, 1, 100, "kernel", *Entry.head, a.data_ptr(), 2, "padding")]


def test_one_tensor_on_both_sides_is_replaced_on_both(stream):
    a, out = torch.zeros(4), torch.zeros(4)
    entry, recorder = Entry(), Recorder()
    record(recorder, entry, (1, 1, 1), (a, a, out), [a.data_ptr(), a.data_ptr(), out.data_ptr()])
    Replay(recorder, [a, a, out])(0, [11, 11, 33, 0])
    assert entry.calls[0][-4:-1] == (11, 11, 33)


def test_tensor_maps_are_made_anew_for_new_addresses(stream, monkeypatch):
    def packed_map(address, *rest):
        made = TensorMap(None, rest, (address, *rest))
        made.packed = [("map", address, *rest), rest[1], rest[2]]
        return made

    monkeypatch.setattr(launches, "tensor_map", packed_map)
    table, out = torch.zeros(4), torch.zeros(4)
    entry, recorder = Entry(), Recorder()
    with recording() as made:
        x = empty((2, 512), torch.int8, "cpu")
    recorder.temporaries = made.temporaries
    shape = torch.int8, 2, 256, 256, (64, 64)
    moving, fixed = packed_map(x.data_ptr() + 512, *shape), packed_map(table.data_ptr(), *shape)
    values = [3, *moving.packed, *fixed.packed, out.data_ptr()]
    record(recorder, entry, (1, 1, 1), (3, moving, fixed, out), values)
    Replay(recorder, [out])(0, [77, 4096])
    assert entry.calls[0][-9:] == (
        *(3, ("map", 4096 + 512, *shape), 2, 256),
        *(("map", table.data_ptr(), *shape), 2, 256, 77, "padding"),
    )


class TestOnGpu:
    pytestmark = pytest.mark.gpu

    def test_the_second_launch_goes_past_the_jit(self, monkeypatch):
        if not triton.__version__.startswith("3.6."):
            pytest.skip("the direct entry is known for Triton 3.6 only")
        launch = Launch(_scale_kernel)
        source, target = torch.arange(64, device=DEVICE), torch.zeros(64, dtype=torch.int64, device=DEVICE)
        launch((2,), source, target, 64, 1, 3, BLOCK=32, ADD=0)
        monkeypatch.setattr(launch, "_compile", None)
        target.zero_()
        launch((2,), source, target, 60, 1, 3, BLOCK=32, ADD=0)
        assert torch.equal(target[:60], source[:60] * 3)
        assert not target[60:].any()

    def test_addresses_stand_for_tensors(self):
        launch = Launch(_scale_kernel)
        source, target = torch.arange(64, device=DEVICE), torch.zeros(64, dtype=torch.int64, device=DEVICE)
        for _ in range(3):
            target.zero_()
            part = Address(source.data_ptr() + 8 * 4, source.dtype)
            launch((2,), part, target, 60, 1, 1, BLOCK=32, ADD=0)
            assert torch.equal(target[:60], source[4:])

    def test_misaligned_tensors_and_large_integers_take_their_own_variant(self):
        launch = Launch(_scale_kernel)
        source, target = torch.arange(64, device=DEVICE), torch.zeros(64, dtype=torch.int64, device=DEVICE)
        for first in (0, 1, 2, 3, 0):
            launch((2,), source[first:], target, 60, 1, 1 << 33, BLOCK=32, ADD=0)
            assert torch.equal(target[:60], source[first : first + 60] << 33)
            launch((2,), source[first:], target, 60, 1, 2, BLOCK=32, ADD=0)
            assert torch.equal(target[:60], source[first : first + 60] * 2)

    def test_streams_captures_and_threads(self):
        launch = Launch(_scale_kernel)
        source, target = torch.arange(64, device=DEVICE), torch.zeros(64, dtype=torch.int64, device=DEVICE)
        bound = launch.bind((2,), source, target, 64, 1, 3, BLOCK=32, ADD=0)
        bound()
        bound()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            target.zero_()
            bound()
        stream.synchronize()
        assert torch.equal(target, source * 3)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            bound()
        target.zero_()
        graph.replay()
        assert torch.equal(target, source * 3)
        results = [torch.zeros(64, dtype=torch.int64, device=DEVICE) for _ in range(8)]

        def work(i):
            for _ in range(50):
                launch((2,), source, results[i], 64, 1, i + 20, BLOCK=32, ADD=i % 3)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
        for i, result in enumerate(results):
            assert torch.equal(result, source * (i + 20) + i % 3)

    def test_a_recording_is_repeated_on_other_tensors(self):
        launch = Launch(_scale_kernel)
        source, target = torch.arange(64, device=DEVICE), torch.zeros(64, dtype=torch.int64, device=DEVICE)

        def work(x, y):
            between = empty((64,), torch.int64, DEVICE)
            launch((2,), x, between, 64, 1, 3, BLOCK=32, ADD=1)
            launch((2,), between, y, 64, 1, 2, BLOCK=32, ADD=0)

        work(source, target)
        with recording() as recorder:
            work(source, target)
        if not recorder.complete:
            pytest.skip("every launch is a plain call here")
        replay = Replay(recorder, [source, target])
        other, found = source + 5, torch.zeros_like(target)
        workspace = torch.empty(replay.nbytes, dtype=torch.int8, device=DEVICE)
        replay(torch.cuda.current_device(), [x.data_ptr() for x in (other, found, workspace)])
        assert torch.equal(found, 2 * (3 * other + 1))
