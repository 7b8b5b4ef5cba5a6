"""Whole products as recordings: the launches of the plan, on the addresses of other tensors."""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hifigemm.engines import repetition  # noqa: E402
from hifigemm.engines.device_array import unwrap, wrap  # noqa: E402
from hifigemm.engines.kernels import launch  # noqa: E402


class Entry:
    """A compiled kernel that notes what its C entry is given."""

    head, function = ("metadata",), "kernel"

    def __init__(self):
        self.calls = []

    def launch(self, *arguments):
        self.calls.append(arguments)


class Whole:
    """A whole product of one launch, which reads both operands and a temporary and writes the result."""

    def __init__(self, entry, complete=True):
        self.entry, self.complete = entry, complete

    def __call__(self, a, b, shift, epilogue, splits, out):
        left, right = unwrap(a), unwrap(b)
        target = torch.empty((1, left.shape[1], right.shape[2]), dtype=left.dtype) if out is None else unwrap(out)
        arguments = (left, right, launch.empty((100,), torch.int8, "cpu"), target)
        recorder = launch._state.recorder
        recorder.add(self.entry, (1, 1, 1), arguments, [*self.entry.head, *(x.data_ptr() for x in arguments)])
        recorder.complete = self.complete
        return wrap(target)


@pytest.fixture
def direct(monkeypatch):
    monkeypatch.setattr(repetition, "enters_directly", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)


def case():
    a, b = (torch.rand(1, 4, 4, dtype=torch.float64) for _ in range(2))
    plan = hg.make_plan(np.ones((4, 4)), np.ones((4, 4)), scheme="native")
    return plan, (wrap(a), wrap(b))


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("given", [False, True])
def test_launches_move_to_other_tensors(given):
    plan, pair = case()
    entry = Entry()
    target = wrap(torch.empty(1, 4, 4, dtype=torch.float64)) if given else None
    again = repetition.repeated(Whole(entry), plan, pair, pair, (4, 4), target)
    x, y, out = (torch.rand(4, 4, dtype=torch.float64) for _ in range(3))
    made = again(x, y, out if given else None)
    assert made is out or not given
    assert made.shape == (4, 4)
    at = entry.calls[0][-4:]
    assert (at[0], at[1], at[3]) == (x.data_ptr(), y.data_ptr(), made.data_ptr())


@pytest.mark.usefixtures("direct")
def test_what_cannot_be_repeated_is_not():
    plan, (a, b) = case()
    assert repetition.repeated(Whole(Entry()), plan, (a.copy(), b), (a, b), (4, 4), None) is None
    assert repetition.repeated(Whole(Entry(), complete=False), plan, (a, b), (a, b), (4, 4), None) is None
    stack = hg.make_plan(np.ones((4, 4)), np.ones((4, 4)), scheme=hg.Ozaki1(num_slices=2), workspace=200_000)
    smallest = stack.scheme.fit(stack, stack.problem, stack.workspace // 2)
    assert smallest.block_shape != (1, 4, 4)
    assert repetition.repeated(Whole(Entry()), smallest, (a, b), (a, b), (4, 4), None) is None
