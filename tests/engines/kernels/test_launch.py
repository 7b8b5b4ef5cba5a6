"""Launches: plain JIT calls in the interpreter; on a GPU the direct entry does what the JIT does."""

from __future__ import annotations

import threading

import pytest
import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels.launch import Address, Launch

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
gpu = [pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")]


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


class TestOnGpu:
    pytestmark = gpu

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
