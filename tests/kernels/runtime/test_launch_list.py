"""Programs: memory that is shared in turns, zeros, operands in other places, and
launches without the JIT.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hifigemm.kernels.runtime import launch as launch_module
from hifigemm.kernels.runtime import launch_list as module
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.launch import (
    Address,
    Launch,
    TensorMap,
    clear,
    map_at,
    real_view,
    tensor_map,
)
from hifigemm.kernels.runtime.launch_list import LaunchList
from hifigemm.kernels.runtime.recording import run_recorded

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
ALIGNMENT = 256


@triton.jit(do_not_specialize=["count"])
def _combine_kernel(x, y, out, count, factor, SIZE: tl.constexpr):
    """out = factor x + y."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    sum_ = factor * tl.load(x + at, mask=at < count) + tl.load(y + at, mask=at < count)
    tl.store(out + at, sum_, mask=at < count)


_combine = Launch(_combine_kernel)


def combined(x, y, out, factor):
    """factor x + y in out, for contiguous tensors or buffers of 64 entries at most."""
    _combine((2,), x, y, out, x.numel(), factor, SIZE=32)


@pytest.fixture(autouse=True)
def garbage(monkeypatch):
    """Memory that is not set holds what is no zero and no number."""
    own = torch.empty

    def empty(*args, **options):
        made = own(*args, **options)
        return (
            made.fill_(-1)
            if made.dtype is torch.int8 and made.device.type != "meta"
            else made
        )

    monkeypatch.setattr(torch, "empty", empty)


def places(launches):
    """Start and end of every scratch memory, and its first and last step."""
    own = [
        m for m in launches._memories[launches._operands :] if m.first >= 0 and m.nbytes
    ]
    return [(m.start, m.start + m.nbytes, m.first, m.last) for m in own]


@st.composite
def lives(draw):
    """Numbers of entries, whether they start as zeros, and first and last step of some
    memories.
    """
    steps = draw(st.integers(1, 6))
    memory = st.tuples(
        st.integers(0, 400),
        st.booleans(),
        st.integers(0, steps - 1),
        st.integers(0, steps - 1),
    )
    return steps, [
        (n, z, min(i, j), max(i, j))
        for n, z, i, j in draw(st.lists(memory, max_size=8))
    ]


@given(lives())
@example((1, [(0, False, 0, 0)]))
@settings(max_examples=60)
def test_memories_that_live_at_the_same_time_lie_apart(case):
    """Each holds what its first step has written until its last one has read it, zeros
    before that.
    """
    steps, memories = case
    launches, wrong, runs = LaunchList(DEVICE), [], []
    buffers = [
        (launches.zeros if zero else launches.empty)((n,), torch.int32)
        for n, zero, _, _ in memories
    ]

    def step(now, *tensors):
        runs.append(now)
        living = [
            i for i, (_, _, first, last) in enumerate(memories) if first <= now <= last
        ]
        for i, x in zip(living, tensors, strict=True):
            _, zero, first, _ = memories[i]
            if now > first or zero:
                wrong.extend(
                    [(now, i)] if (x != (i + 1 if now > first else 0)).any() else []
                )
            x.fill_(i + 1)

    for now in range(steps):
        living = [
            b
            for b, (_, _, first, last) in zip(buffers, memories, strict=True)
            if first <= now <= last
        ]
        launches.call(lambda now, *tensors: step(now, *tensors), now, *living)
    launches.finish().compile()
    for _ in range(2):
        launches()
    assert runs == 2 * list(range(steps))
    assert wrong == []
    ends = [end for _, end, _, _ in places(launches)]
    assert all(start % ALIGNMENT == 0 for start, *_ in places(launches))
    assert launches.nbytes >= max(ends, default=0)
    rounded = [-(-4 * n // ALIGNMENT) * ALIGNMENT for n, *_ in memories]
    assert launches.nbytes <= sum(rounded)


def test_memories_share_what_others_have_left():
    """A chain, in which each step reads what the one before it wrote, takes room for
    two.
    """
    launches = LaunchList(DEVICE)
    chain = [launches.empty((1000,), torch.int8) for _ in range(7)]
    for x, y in pairwise(chain):
        launches.call(lambda x, y: y.copy_(x), x, y)
    assert launches.finish().nbytes == 2 * 1024 - 24
    unused = LaunchList(DEVICE)
    unused.empty((1000,), torch.int8)
    unused.zeros((1000,), torch.int8)
    assert unused.finish().nbytes == 0


def test_a_small_memory_lies_in_a_gap():
    """Large ones are placed first; between the first and the last of these there is
    room for the small one.
    """
    launches = LaunchList(DEVICE)
    first, second, third, small = (
        launches.empty((n,), torch.int8) for n in (4096, 2048, 4095, 512)
    )
    launches.call(lambda *_: None, first, second)
    launches.call(lambda *_: None, second, third, small)
    assert launches.finish().nbytes == 4096 + 2048 + 512
    found = {end - start: (start, end) for start, end, *_ in places(launches)}
    assert found[512] == (6144, 6656)
    launches = LaunchList(DEVICE)
    first, second, small = (launches.empty((n,), torch.int8) for n in (4096, 2048, 512))
    launches.call(lambda *_: None, first, second)
    launches.call(lambda *_: None, second, small)
    assert launches.finish().nbytes == 4096 + 2048


def test_zeros_are_zeros_in_every_run(monkeypatch):
    """Although the workspace holds what is left there, and other memories lie where
    zeros have been used.
    """
    launches = LaunchList(DEVICE)
    out = launches.operand(torch.zeros(20, dtype=torch.int64))
    counts = launches.zeros((20,), torch.int64)
    between = launches.empty((20,), torch.int64)
    launches.call(lambda x, y: y.copy_(x + 1), counts, between)
    launches.call(lambda x, y: x.add_(y), counts, between)
    launches.call(lambda x, y: y.copy_(x), counts, out)
    launches.finish().compile()
    workspace = torch.full((launches.nbytes,), 77, dtype=torch.int8, device=DEVICE)
    own = torch.empty
    monkeypatch.setattr(
        torch,
        "empty",
        lambda *a, **o: workspace if a == (launches.nbytes,) else own(*a, **o),
    )
    for _ in range(3):
        found = torch.full((20,), 9, dtype=torch.int64, device=DEVICE)
        launches(found)
        assert (found == 1).all()


def test_zeros_of_a_turn_lie_where_those_of_the_one_before_did():
    """Each turn finds zeros; the record is cleared once."""
    launches = LaunchList(DEVICE)
    out = launches.operand(torch.zeros(6, dtype=torch.int32))
    record = launches.operand(torch.zeros(1, dtype=torch.int64), is_zero=True)
    for i, count in enumerate((300, 0, 500, 40, 0, 0)):
        if i:
            launches.reuse_zeros()
        counts = launches.zeros((count,), torch.int32)
        launches.call(
            lambda x, y, r: (y.copy_(x.sum()), x.add_(7), r.add_(1)),
            counts,
            out[i],
            record,
        )
    launches.finish().compile()
    assert launches.nbytes == 2048
    for _ in range(2):
        found = torch.full((6,), 9, dtype=torch.int32, device=DEVICE)
        noted = record_of(3)
        launches(found, noted)
        assert (found.tolist(), noted.tolist()) == ([0] * 6, [6])


def record_of(*numbers):
    return torch.tensor(numbers, dtype=torch.int64, device=DEVICE)


def test_zeros_do_not_outlive_their_turn():
    launches = LaunchList(DEVICE)
    counts = launches.zeros((3,), torch.int32)
    launches.call(lambda x: None, counts)
    launches.reuse_zeros()
    launches.call(lambda x: None, counts)
    with pytest.raises(ValueError, match="zeros are used after"):
        launches.finish()


def test_a_record_is_cleared_with_the_zeros():
    for with_zeros in (True, False):
        launches = LaunchList(DEVICE)
        out = launches.operand(torch.zeros(3, dtype=torch.int64))
        record = launches.operand(torch.zeros(2, dtype=torch.int64), is_zero=True)
        zero = (
            launches.zeros((3,), torch.int64)
            if with_zeros
            else launches.empty((3,), torch.int64)
        )
        if not with_zeros:
            launches.call(lambda x: x.zero_(), zero)
        launches.call(lambda r, x, y: y.copy_(x + r.sum()), record, zero, out)
        launches.call(lambda r: r.add_(5), record)
        launches.finish().compile()
        for _ in range(2):
            found = torch.full((3,), 9, dtype=torch.int64, device=DEVICE)
            noted = record_of(3, 3)
            launches(found, noted)
            assert found.tolist() == [0, 0, 0]
            assert noted.tolist() == [5, 5]


@pytest.mark.parametrize(
    ("count", "other"), [(0, 0), (1, 0), (0, 3), (1030, 5), (7, 2100)]
)
def test_two_places_are_cleared_at_once(count, other):
    x, y = (
        torch.full((n + 2,), 7, dtype=torch.int32, device=DEVICE)
        for n in (count, other)
    )
    run_recorded(clear, x[1 : count + 1], y[1 : other + 1])
    for each in (x, y):
        assert each.tolist() == [7, *[0] * (len(each) - 2), 7]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_zeros_that_are_returned_are_zeros(dtype):
    def zeros(like, *counts):
        return [like.launches.zeros((count,), dtype) for count in counts]

    like = torch.zeros(1, device=DEVICE)
    for counts in ((0,), (1500,), (3, 1500, 20)):
        returned = run_recorded(zeros, like, *counts)
        assert [len(x) for x in returned] == [*counts]
        assert all(x.dtype is dtype and not x.any() for x in returned)


def test_operands_come_before_scratch_memory():
    launches = LaunchList(DEVICE)
    launches.empty((3,), torch.int8)
    with pytest.raises(ValueError, match="operands come before"):
        launches.operand(torch.zeros(3))


def work(x, y, out):
    """out = 2 (3 x + y) + x."""
    between = x.launches.empty((40,), torch.float64)
    again = x.launches.zeros((40,), torch.float64)
    combined(x, y, between, 3.0)
    combined(between, again, again, 2.0)
    combined(x, again, out, 1.0)


def written():
    """The launches of `work`."""
    launches = LaunchList(DEVICE)
    work(*(launches.operand(torch.zeros(40, dtype=torch.float64)) for _ in range(3)))
    return launches.finish().compile()


def result_of_work(x, y):
    """The same by torch, for integers, which nothing rounds."""
    return 2.0 * (3.0 * x + y) + x


def test_a_program_serves_any_operands_of_its_layout():
    launches = written()
    assert (
        launches.nbytes == 2 * ALIGNMENT + 2 * 64 + 2 * 64
        or launches.nbytes == 3 * ALIGNMENT + 64
    )
    for seed in range(3):
        torch.manual_seed(seed)
        x, y = (
            torch.randint(99, (47,)).double().to(DEVICE)[2 * seed :][:40]
            for _ in range(2)
        )
        found = torch.zeros(40, dtype=torch.float64, device=DEVICE)
        launches(x, y, found)
        assert torch.equal(found, result_of_work(x, y))
        launches(x, x, found)
        assert torch.equal(found, result_of_work(x, x))


def test_threads_run_programs_at_the_same_time():
    """Each run has a workspace of its own. Triton's interpreter has no threads, so that
    the steps are torch's.
    """
    launches, found = LaunchList(DEVICE), {}
    a, out = (launches.operand(torch.zeros(40)) for _ in range(2))
    chain = [a, *(launches.empty((40,), torch.float32) for _ in range(20)), out]
    for x, y in pairwise(chain):
        launches.call(lambda x, y: torch.add(x, 1.0, out=y), x, y)
    launches.finish().compile()

    def repeat(i):
        x = torch.full((40,), float(i), device=DEVICE)
        y = torch.zeros(40, device=DEVICE)
        found[i] = []
        for _ in range(20):
            launches(x, y.zero_())
            found[i].append(bool((y == i + 21).all()))

    threads = [threading.Thread(target=repeat, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: [True] * 20 for i in range(6)}


def test_views_of_operands_lie_where_those_of_tensors_do():
    launches = LaunchList(DEVICE)
    like = torch.zeros((3, 5, 4), dtype=torch.complex64).transpose(1, 2)[1:]
    a = launches.operand(like)
    out = launches.operand(torch.zeros((2, 2, 2), dtype=torch.float32))
    counts = launches.operand(torch.zeros(3, dtype=torch.int64))
    words = launches.operand(torch.zeros((2, 4), dtype=torch.int32))
    launches.call(lambda x, y: y.copy_(x), real_view(a)[:, 1:3, ::3, 1], out)
    launches.call(
        lambda x, y: y.copy_(x),
        counts.view(torch.int32)[1:5].view(2, 2),
        words[:, 1::2],
    )
    launches.finish().compile()
    whole = torch.randn((3, 5, 4), dtype=torch.complex64).to(DEVICE)
    x = whole.transpose(1, 2)[1:]
    found = torch.zeros((4, 2, 2), device=DEVICE)[1:3]
    numbers = (torch.arange(9, device=DEVICE) << 32)[2:5] + 7
    pairs = torch.zeros((2, 4), dtype=torch.int32, device=DEVICE)
    launches(x, found, numbers, pairs)
    assert torch.equal(found, x.imag[:, 1:3, ::3])
    assert pairs.tolist() == [[0, 2, 0, 7], [0, 3, 0, 7]]


def test_scratch_memory_is_seen_in_other_shapes_and_dtypes():
    launches = LaunchList(DEVICE)
    out = launches.operand(torch.zeros((3, 2), dtype=torch.int32))
    scratch = launches.empty((2, 4), torch.int64)
    launches.call(lambda x: x.copy_(torch.arange(8).view(2, 4)), scratch)
    launches.call(
        lambda x, y: y.copy_(x), scratch.view(torch.int32)[1, 2:].view(3, 2), out
    )
    launches.call(lambda x: x.fill_(1), scratch[:, :0])
    launches.finish().compile()
    found = torch.zeros((3, 2), dtype=torch.int32, device=DEVICE)
    launches(found)
    assert found.tolist() == [[5, 0], [6, 0], [7, 0]]


class Entry:
    """A loaded kernel that notes its launches: grid, stream and the values of its
    arguments, one by one.
    """

    def __init__(self):
        self.calls = []

    def prepared(self, grid, stream, values):
        return partial(self.launch, (grid, stream, *values))

    def launch(self, call):
        self.calls.append(call)


class Point(NamedTuple):
    x: object
    y: object


class Kernel:
    """A kernel with one variant; calls of the JIT are noted too."""

    is_gluon = False

    def __init__(self, entry):
        self.own, self.plain = entry, []

    def __call__(self, grid, *arguments, **constants):
        places = [
            x.place if isinstance(x, TensorMap) else x
            for x in launch_module.flat(arguments)
        ]
        next(x for x in places if isinstance(x, Buffer)).launches.add(
            self, grid, arguments, constants
        )

    def new_variant(self, arguments, constants):
        return None

    def entry(self, arguments, constants):
        return self.own

    def call_jit(self, grid, arguments, constants):
        self.plain.append((grid, arguments, constants))


@pytest.fixture
def direct(monkeypatch):
    """A function that finishes and compiles a launch list as on a GPU whose entries are
    known, and lets it run here.
    """
    monkeypatch.setattr(module, "enters_directly", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(
        torch._C,
        "_cuda_getCurrentRawStream",
        lambda index: streams[0] + index,
        raising=False,
    )
    streams = [100]

    def finish(launches, device=0):
        launches.device = torch.device("cuda", device)
        launches.finish().compile()
        launches.device = torch.device("cpu", device)
        return launches

    finish.streams = streams
    return finish


def here(*shapes):
    return [torch.zeros(shape, dtype=torch.float64) for shape in shapes]


@pytest.fixture
def workspace(monkeypatch):
    """The tensors that launch lists take as workspace, the last one last."""
    made, own = [], torch.empty

    def empty(*args, **options):
        made.append(own(*args, **options))
        return made[-1]

    monkeypatch.setattr(torch, "empty", empty)
    return made


def test_addresses_are_filled_in(direct, workspace):
    first, second, table = Entry(), Entry(), torch.zeros(8)
    launches = LaunchList(DEVICE)
    a, b, out = (launches.operand(x) for x in here(8, (2, 8), 8))
    x, y = launches.empty((100,), torch.int8), launches.empty((3, 100), torch.int32)
    Kernel(first)((5,), a, 7, x, table, None, BLOCK=32)
    Kernel(second)(
        (2, 3), b[1, 2:], x, y[1].behind(4), Address(4096, torch.int8), out, y, 2.5
    )
    direct(launches)
    assert launches.nbytes == 1280 + 100
    for _ in range(2):
        tensors = here(8, (2, 8), 8)
        launches(*tensors)
        at = [*(t.data_ptr() for t in tensors), workspace[-1].data_ptr()]
        assert first.calls.pop() == (
            (5, 1, 1),
            100,
            at[0],
            7,
            at[3] + 1280,
            table.data_ptr(),
            None,
        )
        values = at[1] + 80, at[3] + 1280, at[3] + 416, 4096, at[2], at[3], 2.5
        assert second.calls.pop() == ((2, 3, 1), 100, *values)


def test_new_variants_are_compiled_side_by_side_and_each_once(direct, monkeypatch):
    class Slow(Kernel):
        """A kernel whose variants but the first are not compiled before two others are
        being compiled as well.
        """

        def new_variant(self, arguments, constants):
            return None if (key := (self, arguments[1])) in compiled else key

        def entry(self, arguments, constants):
            if (self, arguments[1]) not in compiled:
                if compiled:
                    together.wait(20)
                compiled.append((self, arguments[1]))
            return self.own

    monkeypatch.setattr(module, "num_kernels", lambda: 0)
    together, compiled, launches = threading.Barrier(3), [], LaunchList(DEVICE)
    a, b = Slow(Entry()), Slow(Entry())
    x = launches.operand(torch.zeros(4))
    for kernel, argument in ((a, 1), (b, 1), (a, 1), (a, 2), (b, 1), (b, 2)):
        kernel((1,), x, argument)
    direct(launches)
    assert len(compiled) == 4
    assert compiled[0] == (a, 1)
    launches(torch.zeros(4))
    assert [len(kernel.own.calls) for kernel in (a, b)] == [3, 3]


def test_no_kernel_goes_ahead_once_the_process_has_compiled_one(direct, monkeypatch):
    class Slow(Kernel):
        """A kernel that is not compiled before another one is being compiled."""

        def new_variant(self, arguments, constants):
            return self

        def entry(self, arguments, constants):
            if self not in compiled:
                together.wait(20)
                compiled.append(self)
            return self.own

    monkeypatch.setattr(module, "num_kernels", lambda: 1)
    together, compiled, launches = threading.Barrier(2), [], LaunchList(DEVICE)
    kernels = [Slow(Entry()), Slow(Entry())]
    x = launches.operand(torch.zeros(4))
    for kernel in kernels:
        kernel((1,), x)
    direct(launches)
    assert set(compiled) == set(kernels)


def test_kernels_in_gluon_come_before_others_but_for_the_first(direct, monkeypatch):
    monkeypatch.setattr(module, "_COMPILERS", 1)
    monkeypatch.setattr(module, "num_kernels", lambda: 0)

    class Noted(Kernel):
        def __init__(self, is_gluon):
            super().__init__(Entry())
            self.is_gluon = is_gluon

        def new_variant(self, arguments, constants):
            return self

        def entry(self, arguments, constants):
            if self not in order:
                order.append(self)
            return self.own

    order, launches = [], LaunchList(DEVICE)
    kernels = [Noted(is_gluon) for is_gluon in (False, False, True)]
    x = launches.operand(torch.zeros(4))
    for kernel in kernels:
        kernel((1,), x, 0)
    direct(launches)
    assert order == [kernels[0], kernels[2], kernels[1]]


def test_addresses_in_tuples_are_filled_in(direct, workspace):
    entry, launches, table = Entry(), LaunchList(DEVICE), torch.zeros(8)
    a, out = (launches.operand(x) for x in here(8, 8))
    x = launches.empty((100,), torch.int8)
    Kernel(entry)((5,), 7, (a, 3), x, (table, None, x, out), BLOCK=32)
    direct(launches)
    for _ in range(2):
        tensors = here(8, 8)
        launches(*tensors)
        first, last = (t.data_ptr() for t in tensors)
        at = workspace[-1].data_ptr()
        assert entry.calls.pop()[2:] == (
            7,
            first,
            3,
            at,
            table.data_ptr(),
            None,
            at,
            last,
        )


def test_buffers_in_tuples_are_steps_and_become_tensors():
    launches, seen = LaunchList(DEVICE), []
    a, b = (launches.operand(x) for x in here(4, 4))
    launches.call(lambda *found: seen.append(found), (a, 3), Point(b[1:], None))
    launches.finish().compile()
    x, y = here(4, 4)
    launches(x, y)
    ((left, right),) = seen
    assert (left[0].data_ptr(), left[1]) == (x.data_ptr(), 3)
    assert isinstance(right, Point)
    assert (right.x.data_ptr(), right.y) == (y[1:].data_ptr(), None)


def test_integers_that_look_like_addresses_stay(direct):
    entry, launches = Entry(), LaunchList(DEVICE)
    x = torch.zeros(4)
    Kernel(entry)((1,), launches.operand(x), x.data_ptr(), 0)
    direct(launches)
    other = torch.zeros(4)
    launches(other)
    assert entry.calls[0][2:] == (other.data_ptr(), x.data_ptr(), 0)


def test_one_tensor_may_stand_for_several_operands(direct):
    entry, launches = Entry(), LaunchList(DEVICE)
    Kernel(entry)((1,), *(launches.operand(x) for x in here(4, 4, 4)))
    direct(launches)
    x, out = here(4, 4)
    launches(x, x, out)
    assert entry.calls[0][2:] == (x.data_ptr(), x.data_ptr(), out.data_ptr())


def test_known_addresses_are_launched_on_the_stream_of_the_call(direct):
    """Arguments are kept for some sets of addresses, and made anew for others."""
    entry, launches = Entry(), LaunchList(DEVICE)
    Kernel(entry)((1,), *(launches.operand(x) for x in here(4, 4)))
    direct(launches, device=1)
    tensors = here(*[4] * 40)
    wanted = []
    for i in [0, 1, 0, 0, 1, *range(40), 0]:
        direct.streams[0] = 200 if i % 3 else 100
        launches(tensors[i], tensors[-1])
        wanted.append(
            (direct.streams[0] + 1, tensors[i].data_ptr(), tensors[-1].data_ptr())
        )
    assert [call[1:] for call in entry.calls] == wanted
    assert 0 < len(launches._bound) <= module._BOUND


def test_kept_arguments_are_used_again(direct, monkeypatch):
    entry, launches = Entry(), LaunchList(DEVICE)
    Kernel(entry)((1,), *(launches.operand(x) for x in here(4, 4)))
    direct(launches)
    x, y = here(4, 4)
    launches(x, y)
    monkeypatch.setattr(launches, "_filled_in", None)
    launches(x, y)
    assert entry.calls[0] == entry.calls[1]


def test_functions_are_called_between_launches_with_tensors(direct):
    order, first, second = [], Entry(), Entry()
    first.launch = lambda call: order.append(call[-1])
    second.launch = lambda call: order.append(call[-1])
    launches = LaunchList(DEVICE)
    a, out = (launches.operand(x) for x in here((2, 3), (2, 3)))
    scratch = launches.empty((3,), torch.float64)
    Kernel(first)((1,), a)
    launches.call(
        lambda x, s, y, n: (order.append("called"), s.copy_(n * x), y.copy_(s)),
        a[1],
        scratch,
        out[0],
        2,
    )
    Kernel(second)((1,), out)
    direct(launches)
    for i in range(2):
        x, y = here((2, 3), (2, 3))
        x += i + 1
        launches(x, y)
        assert order == [x.data_ptr(), "called", y.data_ptr()]
        assert y.tolist() == [[2 * i + 2] * 3, [0] * 3]
        order.clear()
    assert launches._bound == {}


def test_tensor_maps_are_made_for_the_addresses_of_a_run(
    direct, workspace, monkeypatch
):
    monkeypatch.setattr(
        TensorMap,
        "packed",
        lambda self: (
            "map",
            self.place if isinstance(self.place, int) else "buffer",
            self.shape,
        ),
    )
    entry = Entry()
    launches = LaunchList(DEVICE)
    table = torch.zeros(1024, dtype=torch.int8)
    a = launches.operand(torch.zeros((4, 512), dtype=torch.int8))
    scratch = launches.empty((2, 512), torch.int8)
    other = launches.empty((256,), torch.int8)
    layout = 2, 256, 256, (64, 64)
    maps = [
        tensor_map(a[1], *layout, start=16),
        tensor_map(scratch, *layout, start=512),
        map_at(table.data_ptr(), (torch.int8, *layout)),
    ]
    Kernel(entry)((1,), 3, *maps, other, a)
    direct(launches)
    for _ in range(2):
        x = torch.zeros((4, 512), dtype=torch.int8)
        launches(x)
        base, shape = workspace[-1].data_ptr(), (torch.int8, *layout)
        places_ = [x.data_ptr() + 528, base + 512, table.data_ptr()]
        packed = [("map", place, shape) for place in places_]
        assert entry.calls.pop()[2:] == (3, *packed, base + 1024, x.data_ptr())


def test_a_kernel_without_an_entry_leaves_all_to_the_jit(direct):
    known, unknown = Kernel(Entry()), Kernel(None)
    launches = LaunchList(DEVICE)
    a = launches.operand(torch.zeros((2, 3)))
    known((4,), a[1], 5, BLOCK=1)
    unknown((1, 2), a)
    direct(launches)
    x = torch.rand((2, 3))
    launches(x)
    assert known.own.calls == []
    ((grid, (row, five), constants),) = known.plain
    assert (grid, five, constants) == ((4, 1, 1), 5, {"BLOCK": 1})
    assert row.data_ptr() == x[1].data_ptr()
    assert torch.equal(row, x[1])
    assert unknown.plain[0][0] == (1, 2, 1)


def test_a_profiler_sees_calls_of_the_jit(direct, monkeypatch):
    kernel, launches = Kernel(Entry()), LaunchList(DEVICE)
    kernel((1,), launches.operand(torch.zeros(3)))
    direct(launches)
    monkeypatch.setattr(module, "is_hooked", lambda: True)
    launches(torch.zeros(3))
    assert (len(kernel.plain), kernel.own.calls) == (1, [])


def test_threads_enter_kernels_with_their_own_addresses(direct):
    entry, launches = Entry(), LaunchList(DEVICE)
    Kernel(entry)((1,), *(launches.operand(x) for x in here(4, 4)))
    direct(launches)
    pairs = [here(4, 4) for _ in range(20)]
    threads = [
        threading.Thread(target=lambda p=p: [launches(*p) for _ in range(5)])
        for p in pairs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = sorted(call[2:] for call in entry.calls)
    assert seen == sorted(5 * [(x.data_ptr(), y.data_ptr()) for x, y in pairs])


def test_zeros_are_cleared_by_the_first_launch(direct, workspace, monkeypatch):
    first, second = Entry(), Entry()
    monkeypatch.setattr(launch_module, "_clear", Kernel(first))
    launches = LaunchList(DEVICE)
    record = launches.operand(torch.zeros(2, dtype=torch.int64), is_zero=True)
    x, y = launches.zeros((10,), torch.int64), launches.zeros((3,), torch.int32)
    scratch = launches.empty((5,), torch.int8)
    Kernel(second)((1,), x, scratch, y, record)
    order = []
    for entry in (first, second):
        entry.launch = lambda call, entry=entry: order.append((entry, call[2:]))
    direct(launches)
    noted = torch.zeros(2, dtype=torch.int64)
    launches(noted)
    base = workspace[-1].data_ptr()
    assert order == [
        (first, (base, 128, noted.data_ptr(), 4)),
        (second, (base, base + 512, base + 256, noted.data_ptr())),
    ]


def test_what_has_no_entries_needs_no_workspace(direct, workspace, monkeypatch):
    clearing, other = Entry(), Entry()
    monkeypatch.setattr(launch_module, "_clear", Kernel(clearing))
    launches = LaunchList(DEVICE)
    record = launches.operand(torch.zeros(2, dtype=torch.int64), is_zero=True)
    empty = launches.empty((0, 3), torch.int8)
    Kernel(other)((1,), record, empty)
    direct(launches)
    assert launches.nbytes == 0
    noted = torch.zeros(2, dtype=torch.int64)
    launches(noted)
    assert workspace == []
    place = noted.data_ptr()
    assert [call[2:] for call in clearing.calls] == [(0, 0, place, 4)]
    assert [call[2:] for call in other.calls] == [(place, 0)]


class TestOnGpu:
    pytestmark = pytest.mark.gpu

    def test_programs_enter_kernels_past_the_jit_in_captures_and_on_streams(
        self, monkeypatch
    ):
        launches = written()
        x, y = (torch.randint(99, (40,), device=DEVICE).double() for _ in range(2))
        found = torch.zeros_like(x)
        want = result_of_work(x, y)
        if launch_module.enters_directly():
            assert launches._templates is not None
            monkeypatch.setattr(_combine, "call_jit", None)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            launches(x, y, found)
        stream.synchronize()
        assert torch.equal(found, want)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launches(x, y, found)
        x += 1.0
        want = result_of_work(x, y)
        found.zero_()
        graph.replay()
        assert torch.equal(found, want)
