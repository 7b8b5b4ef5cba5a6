"""Launches: plain JIT calls in the interpreter; elsewhere the direct entry does what
the JIT does.
"""

from __future__ import annotations

import re
import threading
from typing import NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from hifigemm.kernels.runtime import launch as launches
from hifigemm.kernels.runtime.cuda_driver import MapForm
from hifigemm.kernels.runtime.launch import (
    Address,
    Launch,
    TensorMap,
    map_at,
    operand_arguments,
    tensor_map,
)
from hifigemm.kernels.runtime.launch_list import LaunchList
from hifigemm.kernels.runtime.recording import run_recorded

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"


def _scale(
    source, target, count, stride, factor, BLOCK: tl.constexpr, ADD: tl.constexpr
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(source + at.to(tl.int64) * stride, mask=at < count, other=0)
    tl.store(target + at, x * factor + ADD, mask=at < count)


_scale_kernel = triton.jit(do_not_specialize=["count"])(_scale)


def _scale_tuple(ends, sizes, factor, BLOCK: tl.constexpr, ADD: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    count, stride = sizes
    x = tl.load(ends.source + at.to(tl.int64) * stride, mask=at < count, other=0)
    tl.store(ends.target + at, x * factor + ADD, mask=at < count)


class Ends(NamedTuple):
    source: torch.Tensor
    target: torch.Tensor


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
                    run_recorded(
                        launch,
                        (-(-count // 32),),
                        source,
                        target,
                        count,
                        stride,
                        factor,
                        BLOCK=32,
                        ADD=add,
                    )
                    assert torch.equal(
                        target, expected(source, count, stride, factor, add)
                    )


def test_tuples_are_arguments():
    launch, source = Launch(triton.jit(_scale_tuple)), torch.arange(300, device=DEVICE)
    for count, stride in ((100, 3), (64, 1), (100, 2), (17, 16)):
        for _ in range(2):
            target = torch.zeros(100, dtype=torch.int64, device=DEVICE)
            ends = Ends(source, target)
            run_recorded(launch, (4,), ends, (count, stride), 5, BLOCK=32, ADD=1)
            assert torch.equal(target[:count], expected(source, count, stride, 5, 1))


@pytest.mark.skipif(HAS_GPU, reason="compiled kernels have entries")
def test_the_interpreter_has_no_entries():
    x = torch.zeros(4, dtype=torch.int64)
    assert Launch(_scale_kernel).entry((x, x, 4, 1, 1), {"BLOCK": 32, "ADD": 0}) is None


def test_a_launch_without_a_buffer_is_refused():
    x = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    with pytest.raises(TypeError, match=r"_scale: no buffer.*run_recorded"):
        Launch(_scale_kernel)((1,), x, x, 4, 1, 1, BLOCK=32, ADD=0)


def test_a_launch_of_a_buffer_is_a_step_of_its_program():
    source = torch.arange(50, device=DEVICE)
    target = torch.zeros(50, dtype=torch.int64, device=DEVICE)
    launches, launch = LaunchList(source.device), Launch(_scale_kernel)
    x, y = launches.operand(source), launches.operand(target)
    launch((2,), x, y, 50, 1, 3, BLOCK=32, ADD=1)
    assert not target.any()
    launches.finish().compile()(source, target)
    assert torch.equal(target, source * 3 + 1)


class Entry:
    """A loaded kernel that notes its launches."""

    def __init__(self):
        self.calls = []

    def prepared(self, grid, stream, values):
        return lambda: self.calls.append((grid, stream, *values))


@pytest.fixture
def direct(monkeypatch):
    """A launch of the kernel that goes past the JIT, its entries, and what the JIT was
    asked to call.
    """
    monkeypatch.setattr(launches, "enters_directly", lambda: True)
    monkeypatch.setattr(launches, "_MAP_FORMS", {})
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(
        torch._C,
        "_cuda_getCurrentRawStream",
        lambda device: 100 + device,
        raising=False,
    )
    launch = Launch(JITFunction(_scale, do_not_specialize=["count"]))
    launch.made, launch.called, launch.forms = [], [], []

    def load(compiled, device):
        launch.made.append(Entry())
        return launch.made[-1]

    monkeypatch.setattr(launches, "entry_of", load)
    monkeypatch.setattr(launches, "map_forms_of", lambda compiled: launch.forms)
    monkeypatch.setattr(launch, "compile", lambda arguments, constants: "compiled")
    monkeypatch.setattr(launch, "call_jit", lambda *call: launch.called.append(call))
    return launch


def test_every_call_of_a_variant_enters_the_kernel_that_was_compiled_for_it(direct):
    x, y = torch.zeros(8), torch.zeros(8)
    constants = {"BLOCK": 32, "ADD": 1}
    first = direct.entry((x, y, 8, 1, 5), constants)
    assert direct.entry((y, x, 9, 1, 7), constants) is first
    assert direct.made == [first]
    assert direct.called == []


def test_variants_differ_by_what_triton_specialises(direct):
    x, y = (torch.zeros(64, dtype=torch.float64) for _ in range(2))
    y = y[2 - (y.data_ptr() & 15) // 8 :]
    constants = {"BLOCK": 32, "ADD": 0}

    def variants(*cases, **changed):
        before = len(direct.made)
        for case in cases:
            direct.entry(case, constants | changed)
        return len(direct.made) - before

    assert (
        variants((x, y, 8, 2, 5), (x, y, 9, 2, 5), (x, y, 16, 3, 7), (x, y, 1, -1, 5))
        == 1
    )
    assert variants((x, y, 8, 1, 5)) == 1
    assert variants((x, y, 8, 16, 5), (x, y, 8, 48, 5), (x, y, 8, 0, 5)) == 1
    assert variants((x, y, 8, 2**33, 5), (x, y, 8, 2**40, 5)) == 1
    assert variants((x, y, 2**31, 2, 5), (x, y, -(2**31) - 1, 2, 5)) == 1
    assert variants((x, y, -(2**31), 2, 5), (x, y, 2**31 - 1, 2, 5)) == 0
    assert variants((x, y[1:], 8, 2, 5)) == 1
    assert variants((x, y[2:], 8, 2, 5)) == 0
    assert variants((x.float(), y, 8, 2, 5)) == 1
    assert variants((None, y, 8, 2, 5)) == 1
    assert variants((x, y, 8, 2, 5.0), (x, y, 8, 2, 6.5)) == 1
    assert variants((x, y, 8, 2, 5), ADD=1) == 1
    assert variants((x, y, 8, 2, 5), num_warps=8) == 1


def test_a_variant_is_new_until_it_has_an_entry(direct):
    x, constants = torch.zeros(8), {"BLOCK": 32, "ADD": 0}
    first = direct.new_variant((x, x, 8, 1, 5), constants)
    assert first is not None
    assert first != direct.new_variant((x, x, 8, 3, 5), constants)
    direct.entry((x, x, 8, 1, 5), constants)
    assert direct.new_variant((x, x, 9, 1, 6), constants) is None
    if not HAS_GPU:
        # Without direct entries none is new
        assert Launch(_scale_kernel).new_variant((x, x, 4, 1, 1), constants) is None


def test_arguments_in_tuples_are_specialised(direct):
    x, y, constants = torch.zeros(64), torch.zeros(64), {"BLOCK": 32, "ADD": 0}
    specialised = Launch(JITFunction(_scale_tuple))
    free = Launch(JITFunction(_scale_tuple, do_not_specialize=["sizes"]))
    specialised.compile = free.compile = direct.compile

    def variants(launch, *cases):
        before = len(direct.made)
        for ends, sizes in cases:
            launch.entry((ends, sizes, 5), constants)
        return len(direct.made) - before

    ends = Ends(x, y)
    for launch in (specialised, free):
        assert variants(launch, (ends, (8, 2)), (Ends(y, x), (9, 3))) == 1
    assert variants(specialised, (ends, (8, 1)), (ends, (16, 3)), (ends, (16, 16))) == 3
    assert variants(free, (ends, (8, 1)), (ends, (16, 3)), (ends, (16, 16))) == 0
    for launch in (specialised, free):
        assert variants(launch, (ends, (16, 2**33))) == 1
        other_ends = Ends(x, y[1:]), Ends(x.double(), y), Ends(None, y)
        assert variants(launch, *((other, (8, 2)) for other in other_ends)) == 3
        assert variants(launch, (Ends(x, y), (8, 2)), (Ends(x, y[4:]), (7, 5))) == 0


def test_triton_sees_no_numbers_of_tuples_that_are_not_specialised(monkeypatch):
    """Neither 1 nor multiples of 16, and the types that the numbers have."""
    kernel = JITFunction(_scale_tuple, do_not_specialize=["sizes"])
    seen = []
    monkeypatch.setattr(kernel, "warmup", lambda *x, **options: seen.append(x))
    ends = Ends(torch.zeros(8), torch.zeros(8))
    launch = Launch(kernel)
    for sizes in ((16, 1), (0, -(2**31)), (2**31, 2**40)):
        launch.compile((ends, sizes, 16), {})
    assert [x[0] for x in seen] == [ends] * 3
    assert [x[2] for x in seen] == [16] * 3
    for (_, sizes, _), is_small in zip(seen, (True, True, False), strict=True):
        assert all(x % 16 and x > 1 for x in sizes)
        assert all((x < 2**31) == is_small for x in sizes)


def test_buffers_and_addresses_have_the_variants_of_tensors(direct):
    x, y = torch.zeros(64, dtype=torch.float64), torch.zeros(64, dtype=torch.float64)
    launches = LaunchList(torch.device("cpu"))
    a = launches.operand(x)
    b = launches.empty((64,), torch.float64)
    constants = {"BLOCK": 32, "ADD": 0}
    first = direct.entry((x, y, 8, 2, 5), constants)
    assert first is direct.entry((a, b, 8, 2, 5), constants)
    assert first is direct.entry(
        (Address(4096, torch.float64), b[2:], 8, 2, 5), constants
    )
    assert first is not direct.entry((a, b[1:], 8, 2, 5), constants)
    assert first is not direct.entry(
        (Address(4104, torch.float64), b, 8, 2, 5), constants
    )
    assert first is not direct.entry((a, b.view(torch.int64), 8, 2, 5), constants)
    assert len(direct.made) == 4
    assert direct.made[0].calls == []


def test_other_arguments_are_left_to_the_jit(direct):
    x, constants = torch.zeros(8), {"BLOCK": 32, "ADD": 0}
    assert direct.entry((x, torch.nn.Parameter(x), 8, 1, 5), constants) is None


def test_kernels_that_are_not_as_expected_are_left_to_the_jit_with_one_warning(
    direct, monkeypatch
):
    x, constants = torch.zeros(8), {"BLOCK": 32, "ADD": 0}
    monkeypatch.setattr(launches, "entry_of", lambda compiled, device: None)
    launches.warn_of_slow_launches.cache_clear()
    with pytest.warns(
        RuntimeWarning, match=rf"Triton {re.escape(triton.__version__)} .* 24 to 45 us"
    ):
        assert direct.entry((x, x, 8, 1, 5), constants) is None
    for stride in (3, 3):  # a second warning would be an error
        assert direct.entry((x, x, 8, stride, 5), constants) is None


def test_options_that_triton_changes_are_stated(monkeypatch):
    """Triton 3.10 turns the fusion of products and sums off where nothing is said."""
    calls = []
    kernel = JITFunction(_scale)
    monkeypatch.setattr(kernel, "warmup", lambda *x, **options: calls.append(options))
    launch = Launch(kernel)
    arguments = (1, 1, 1, 1, 1)
    launch.compile(arguments, {"num_warps": 4})
    launch.compile(arguments, {"enable_fp_fusion": False})
    assert [options["enable_fp_fusion"] for options in calls] == [True, False]


def test_constants_must_come_last(direct):
    def wrong(BLOCK: tl.constexpr, source):
        tl.store(source + tl.arange(0, BLOCK), 0)

    with pytest.raises(ValueError, match="must come last"):
        Launch(JITFunction(wrong))


SHAPE = torch.int8, 24, 256, 256, (64, 64)


def test_tensor_maps_know_where_their_matrix_begins():
    x = torch.zeros((2, 24, 256), dtype=torch.float32)
    buffer = LaunchList(torch.device("cpu")).operand(x)
    made = tensor_map(buffer[1], 24, 256, 256, (8, 32), start=512)
    assert (made.place.memory, made.place.offset) == (0, 4 * (24 * 256 + 512))
    assert made.shape == (torch.float32, 24, 256, 256, (8, 32))
    assert made.key == (torch.float32, (8, 32))
    there = map_at(x.data_ptr(), made.shape)
    assert (there.place, there.shape, there.key) == (x.data_ptr(), made.shape, made.key)
    assert there is map_at(x.data_ptr(), made.shape)


def test_the_descriptor_of_a_map_is_that_of_the_matrix():
    shape = torch.float32, 23, 192, 256, (8, 32)
    host = map_at(4096, shape).host
    assert (host.base.data_ptr(), host.base.dtype) == (4096, torch.float32)
    assert (list(host.shape), list(host.strides), list(host.block_shape)) == (
        [23, 192],
        [256, 1],
        [8, 32],
    )


def test_maps_are_packed_as_the_first_kernel_wants_them(direct, monkeypatch):
    x = torch.zeros((24, 256), dtype=torch.int8)
    first, second = (TensorMap(place, SHAPE) for place in (4096, 8192))
    form, other_form = MapForm((64, 64), 2), MapForm((64, 64), 3)
    monkeypatch.setattr(launches, "tensor_map_bytes", lambda *arguments: arguments)
    assert first.packed() is None
    direct.forms = [form]
    constants = {"BLOCK": 32, "ADD": 0}
    assert direct.entry((first, x, 8, 1, 5), constants) is not None
    for tensor_map_, address in ((first, 4096), (second, 8192)):
        packed = address, torch.int8, (24, 256), 256, form, 0
        assert tensor_map_.packed() == packed
    assert direct.entry((second, x, 8, 1, 5), constants) is direct.made[0]
    direct.forms = [other_form]
    assert direct.entry((first, x, 8, 3, 5), constants) is None


def test_arguments_of_operands_have_no_stride_along_a_stack_of_one():
    x, y = torch.zeros((1, 4, 5)), torch.zeros((3, 5, 6)).transpose(1, 2)
    found = operand_arguments((x, y))
    assert found[0] is x
    assert found[4] is y
    assert found[1:4] + found[5:] == [0, 5, 1, 30, 1, 6]


class TestOnGpu:
    pytestmark = pytest.mark.gpu

    def test_launches_go_past_the_jit(self, monkeypatch):
        launch = Launch(_scale_kernel)
        source = torch.arange(64, device=DEVICE)
        target = torch.zeros(64, dtype=torch.int64, device=DEVICE)
        monkeypatch.setattr(launch, "call_jit", None)
        run_recorded(launch, (2,), source, target, 64, 1, 3, BLOCK=32, ADD=0)
        target.zero_()
        run_recorded(launch, (2,), source, target, 60, 1, 3, BLOCK=32, ADD=0)
        assert torch.equal(target[:60], source[:60] * 3)
        assert not target[60:].any()

    def test_a_variant_that_was_compiled_without_a_launch_is_entered(self, monkeypatch):
        launch = Launch(_scale_kernel)
        source = torch.arange(64, device=DEVICE)
        target = torch.zeros(64, dtype=torch.int64, device=DEVICE)
        assert (
            launch.entry((source, target, 64, 1, 3), {"BLOCK": 32, "ADD": 0})
            is not None
        )
        assert not target.any()
        monkeypatch.setattr(launch, "call_jit", None)
        run_recorded(launch, (2,), source, target, 60, 1, 3, BLOCK=32, ADD=0)
        assert torch.equal(target[:60], source[:60] * 3)

    def test_addresses_stand_for_tensors(self):
        launch = Launch(_scale_kernel)
        source = torch.arange(64, device=DEVICE)
        target = torch.zeros(64, dtype=torch.int64, device=DEVICE)
        for _ in range(3):
            target.zero_()
            part = Address(source.data_ptr() + 8 * 4, source.dtype)
            run_recorded(launch, (2,), part, target, 60, 1, 1, BLOCK=32, ADD=0)
            assert torch.equal(target[:60], source[4:])

    def test_misaligned_tensors_and_large_integers_take_their_own_variant(self):
        launch = Launch(_scale_kernel)
        source = torch.arange(64, device=DEVICE)
        target = torch.zeros(64, dtype=torch.int64, device=DEVICE)
        for first in (0, 1, 2, 3, 0):
            run_recorded(
                launch, (2,), source[first:], target, 60, 1, 1 << 33, BLOCK=32, ADD=0
            )
            assert torch.equal(target[:60], source[first : first + 60] << 33)
            run_recorded(
                launch, (2,), source[first:], target, 60, 1, 2, BLOCK=32, ADD=0
            )
            assert torch.equal(target[:60], source[first : first + 60] * 2)

    def test_streams_captures_and_threads(self):
        launch = Launch(_scale_kernel)
        source = torch.arange(64, device=DEVICE)
        target = torch.zeros(64, dtype=torch.int64, device=DEVICE)

        def work():
            run_recorded(launch, (2,), source, target, 64, 1, 3, BLOCK=32, ADD=0)

        work()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            target.zero_()
            work()
        stream.synchronize()
        assert torch.equal(target, source * 3)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        target.zero_()
        graph.replay()
        assert torch.equal(target, source * 3)
        results = [torch.zeros(64, dtype=torch.int64, device=DEVICE) for _ in range(8)]

        def repeat(i):
            for _ in range(50):
                run_recorded(
                    launch, (2,), source, results[i], 64, 1, i + 20, BLOCK=32, ADD=i % 3
                )

        threads = [threading.Thread(target=repeat, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
        for i, result in enumerate(results):
            assert torch.equal(result, source * (i + 20) + i % 3)
