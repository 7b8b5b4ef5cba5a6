"""Launch functions for tensors: results and views of them, what a list is kept by, and
what a run leaves alone.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import NamedTuple

import pytest
import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime import launch_list
from hifigemm.kernels.runtime.launch import Launch, real_view, scalar
from hifigemm.kernels.runtime.recording import recorded, run_recorded

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


@triton.jit(do_not_specialize=["count", "stride"])
def _scale_kernel(x, stride, out, count, factor, SIZE: tl.constexpr):
    """out = factor x."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    values = tl.load(x + at * stride, mask=at < count)
    tl.store(out + at, factor * values, mask=at < count)


_scale = Launch(_scale_kernel)


def scaled(x, factor=2):
    """factor x, a new buffer."""
    count = x.numel()
    out = x.launches.empty((count,), x.dtype)
    _scale((-(-count // 32),), x, x.stride(0), out, count, factor, SIZE=32)
    return out


def numbers(count, step=1, dtype=torch.int64):
    return torch.arange(count * step, dtype=dtype, device=DEVICE)[::step]


def test_results_are_new_tensors_in_each_run():
    x = numbers(70)
    first = run_recorded(scaled, x)
    second = run_recorded(scaled, x + 1)
    assert first.tolist() == [2 * i for i in range(70)]
    assert second.tolist() == [2 * i + 2 for i in range(70)]
    assert first.untyped_storage().nbytes() == 8 * 70


class Pair(NamedTuple):
    whole: object
    parts: list


def test_results_have_the_structure_that_the_function_returns():
    def halves(x):
        double = scaled(x)
        view = double.view(2, 5)[1, 1:].view(torch.int32)
        return Pair(double, [view, None]), 3, (x, x[2:4])

    x = numbers(10)
    pair, three, (same, part) = run_recorded(halves, x)
    assert type(pair) is Pair
    assert pair.whole.tolist() == [2 * i for i in range(10)]
    view, nothing = pair.parts
    assert (nothing, three) == (None, 3)
    assert view.dtype is torch.int32
    assert view[::2].tolist() == [12, 14, 16, 18]
    assert view.data_ptr() == pair.whole.data_ptr() + 8 * 6
    # Buffers of an operand are the tensor that came, and views of it.
    assert same is x
    assert part.data_ptr() == x.data_ptr() + 16
    assert part.tolist() == [2, 3]


def test_scratch_is_not_returned(recordings):
    def chain(x):
        return scaled(scaled(scaled(x, 3), 5), 7)

    x = numbers(40)
    result = run_recorded(chain, x)
    assert torch.equal(result, 105 * x)
    (launches,) = recordings
    assert launches.nbytes == 2 * 512 - 192
    assert result.untyped_storage().nbytes() == 8 * 40


def test_tensors_are_found_in_tuples_lists_and_options():
    def sums(pairs, *, others):
        ((x, factor), (y, _)) = pairs
        return scaled(x, factor), [scaled(z, 10) for z in (y, *others.parts)]

    x, y, z = numbers(3), numbers(4, 2), numbers(5, 3)
    first, (second, third) = run_recorded(
        sums, [(x, 3), (y, 0)], others=Pair(None, [z])
    )
    assert torch.equal(first, 3 * x)
    assert torch.equal(second, 10 * y)
    assert torch.equal(third, 10 * z)


def test_a_list_is_recorded_and_compiled_once_for_a_layout(recordings):
    for i in range(3):
        assert run_recorded(scaled, numbers(8) + i).tolist() == [
            2 * (j + i) for j in range(8)
        ]
    assert [x.compilations for x in recordings] == [1]


@pytest.mark.parametrize(
    ("x", "options"),
    [
        (numbers(9), {}),
        (numbers(8, 2), {}),
        (numbers(8, dtype=torch.int32), {}),
        (numbers(9)[1:], {}),
        (numbers(8), {"factor": 3}),
        (numbers(8), {"factor": 2}),
    ],
    ids=["shape", "strides", "dtype", "alignment", "option", "named option"],
)
def test_layouts_and_options_have_lists_of_their_own(recordings, x, options):
    for _ in range(2):
        run_recorded(scaled, numbers(8))
        result = run_recorded(scaled, x, **options)
        assert torch.equal(result, options.get("factor", 2) * x)
    assert len(recordings) == 2


def test_equal_options_of_other_types_have_lists_of_their_own(recordings):
    def given(x, option):
        return option

    x = numbers(3)
    for option in (1, 1.0, True, 0.0, -0.0, (0.0,), [0.0]):
        found = run_recorded(given, x, option)
        assert (type(found), str(found)) == (type(option), str(option))
    assert len(recordings) == 7


def test_scalars_share_a_list(recordings):
    seen = []

    def combined(x, alpha, beta):
        x.launches.call(lambda *found: seen.append(found[1:]), x, alpha, beta)

    x = numbers(3)
    for alpha, beta in ((1.0, 2.0), (-0.0, 0.5)):
        scalars = alpha, beta
        run_recorded(combined, x, scalar(0), scalar(1), scalars=scalars)
    run_recorded(combined, x, scalar(1), scalar(0), scalars=(1.0, 2.0))
    bits = [launch_list.float64_bits(x) for x in (1.0, 2.0, -0.0, 0.5)]
    assert seen == [(bits[0], bits[1]), (bits[2], bits[3]), (bits[1], bits[0])]
    assert len(recordings) == 2


def test_a_tensor_twice_is_two_operands(recordings):
    """So that the list serves two tensors too."""

    def difference(x, y):
        out = x.launches.empty(x.shape, x.dtype)
        x.launches.call(lambda x, y, out: torch.sub(x, y, out=out), x, y, out)
        return out

    x = numbers(6)
    launches = recorded(difference, x, x)
    assert not launches(x, x).any()
    assert launches(3 * x, x).tolist() == (2 * x).tolist()
    assert recordings == [launches]


def test_options_without_a_hash_are_refused():
    x = numbers(3)
    with pytest.raises(TypeError, match=r"kept by the arguments.* unhashable.*dict"):
        run_recorded(scaled, x, {})
    with pytest.raises(TypeError, match="no tensor among the arguments"):
        run_recorded(scaled, 3)


def test_conjugates_that_are_still_to_be_applied_are_seen(recordings):
    def copied(x):
        out = x.launches.empty((4,), torch.float64)
        x.launches.call(lambda x, y: y.copy_(x), real_view(x).view(4), out)
        return out

    x = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex128, device=DEVICE)
    assert run_recorded(copied, x).tolist() == [1, 2, 3, -4]
    assert run_recorded(copied, x.conj()).tolist() == [1, -2, 3, 4]


def test_operands_are_written_in_place():
    def fill(x, value):
        x.launches.call(torch.Tensor.fill_, x[1:3], value)

    x = numbers(5)
    assert run_recorded(fill, x, 9) is None
    assert x.tolist() == [0, 9, 9, 3, 4]


def test_threads_run_one_list_at_the_same_time(recordings):
    """Triton's interpreter has no threads, so that the steps are torch's."""

    def chain(x):
        for _ in range(20):
            y = x.launches.empty(x.shape, x.dtype)
            x.launches.call(lambda x, y: torch.add(x, 1, out=y), x, y)
            x = y
        return x

    run_recorded(chain, numbers(40))
    wrong = []

    def repeat(i):
        x = numbers(40) + i
        for _ in range(20):
            if not torch.equal(run_recorded(chain, x), x + 20):
                wrong.append(i)

    threads = [threading.Thread(target=partial(repeat, i)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(recordings) == 1


class TestOnGpu:
    pytestmark = pytest.mark.gpu

    def test_results_are_those_of_the_capture(self):
        x = numbers(50)
        run_recorded(scaled, x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = run_recorded(scaled, x)
        x += 7
        graph.replay()
        assert torch.equal(result, 2 * x)
