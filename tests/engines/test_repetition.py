"""Whole products as recordings: the launches of the plan, on the addresses of other tensors."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.accuracy import resolve
from hifigemm.exceptions import HopeError

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hifigemm.engines import repetition  # noqa: E402
from hifigemm.engines.device_array import unwrap, wrap  # noqa: E402
from hifigemm.engines.kernels import launch  # noqa: E402
from hifigemm.engines.kernels.error_ratio import RATIO_UNIT  # noqa: E402
from hifigemm.numerics.bits import NO_BIT  # noqa: E402


class Entry:
    """A compiled kernel that notes what its C entry is given."""

    head, function = ("metadata",), "kernel"

    def __init__(self):
        self.calls = []

    def launch(self, *arguments):
        self.calls.append(arguments)


class Whole:
    """A whole product of one launch, which reads both operands and a temporary and writes the result.

    Before it, where there is a look, that is a launch which writes what the host wants.
    """

    def __init__(self, entry, complete=True, look=None, fits=True):
        self.entry, self.complete, self.look, self.fits = entry, complete, look, fits

    def __call__(self, a, b, shift, epilogue, splits, out):
        if not self.fits:
            raise torch.OutOfMemoryError
        left, right = unwrap(a), unwrap(b)
        target = torch.empty((1, left.shape[1], right.shape[2]), dtype=left.dtype) if out is None else unwrap(out)
        recorder = launch._state.recorder
        if self.look is not None:
            found = launch.empty((1,), torch.int64, "cpu")
            recorder.add(self.look, (1, 1, 1), (found,), [*self.look.head, found.data_ptr()])
            launch.mark(found)
        arguments = (left, right, launch.empty((100,), torch.int8, "cpu"), target)
        recorder.add(self.entry, (1, 1, 1), arguments, [*self.entry.head, *(x.data_ptr() for x in arguments)])
        recorder.complete = self.complete
        return wrap(target)


@pytest.fixture
def direct(monkeypatch):
    monkeypatch.setattr(repetition, "enters_directly", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


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


class Sent:
    """A copy to the host of what is known already."""

    def __init__(self, *values, order=None):
        self.values, self.order = values, [] if order is None else order

    def start(self, source):
        self.order.append("send")

    def beside(self, device):
        self.order.append("beside")
        return nullcontext()

    def wait(self, dtype):
        self.order.append("wait")
        return list(self.values)


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("is_large", [False, True])
def test_a_hopeful_plan_is_checked_on_the_way(monkeypatch, is_large):
    plan, pair = case()
    problem = plan.problem
    target = resolve("fp64", problem.fmt, problem.k)
    scheme = hg.Ozaki2(num_moduli=15, scaling="fast")
    plan = replace(plan, scheme=scheme, target=target, promised=True, hopeful=True)
    ratios, order = [], []

    monkeypatch.setattr(repetition, "begin", lambda device: Sent(ratios.pop(0) / RATIO_UNIT, order=order))
    if is_large:
        monkeypatch.setattr(repetition, "_BESIDE_FROM", 1)
    look, entry = Entry(), Entry()
    look.launch = lambda *arguments: order.append("look")
    entry.launch = lambda *arguments: order.append("product")
    again = repetition.repeated(Whole(entry, look=look), plan, pair, pair, (4, 4), None)
    x, y = (torch.rand(4, 4, dtype=torch.float64) for _ in range(2))
    largest = scheme.largest_ratio(plan)
    for ratio in (8.0, 1e30, np.inf, 8.0, largest, np.nextafter(largest, np.inf)):
        ratios.append(ratio)
        if ratio <= largest:
            assert again(x, y, None).shape == (4, 4)
        else:
            with pytest.raises(HopeError) as failed:
                again(x, y, None)
            assert failed.value.ratio == ratio
        assert order == ["look", *["beside"] * is_large, "send", "product", "wait"]
        order.clear()


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("is_large", [False, True])
def test_a_look_waits_only_when_it_is_asked_what_it_found(monkeypatch, is_large):
    _, pair = case()
    order, entry = [], Entry()
    entry.launch = lambda *arguments: order.append("look")

    def look(left, right, most):
        found = launch.empty((2,), torch.int32, "cpu")
        arguments = left, right, found
        launch._state.recorder.add(entry, (1, 1, 1), arguments, [*entry.head, *(x.data_ptr() for x in arguments)])
        launch.mark(found)
        return found

    monkeypatch.setattr(repetition.required_bits, "launch", look)
    found = Sent(NO_BIT + 3, NO_BIT + 4, order=order)
    monkeypatch.setattr(repetition, "send", lambda source: found)
    monkeypatch.setattr(repetition, "begin", lambda device: found)
    if is_large:
        monkeypatch.setattr(repetition, "_BESIDE_FROM", 1)
    again = repetition.repeated_look(pair, pair, 7)
    less = repetition.repeated_look(pair, pair, 6)
    order.clear()
    x, y = (torch.rand(4, 4, dtype=torch.float64) for _ in range(2))
    answer = again(x, y)
    assert order == [*["beside"] * is_large, "look", "send"]
    assert answer() == (3, 4)
    assert order[-2:] == ["send", "wait"]
    assert less(x, y)() is None
    order.clear()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(hg.PlanError, match="give num_moduli"):
        again(x, y)
    assert order == []


@pytest.mark.usefixtures("direct")
def test_a_result_that_is_written_counts_as_changed():
    plan, pair = case()
    out = torch.empty(4, 4, dtype=torch.float64)
    again = repetition.repeated(Whole(Entry()), plan, pair, pair, (4, 4), wrap(out[None]))
    before = out._version
    again(torch.rand(4, 4), torch.rand(4, 4), out)
    assert out._version == before + 1
    with torch.inference_mode():
        again(torch.rand(4, 4), torch.rand(4, 4), torch.empty(4, 4, dtype=torch.float64))


@pytest.mark.usefixtures("direct")
def test_nothing_that_waits_is_captured(monkeypatch):
    plan, pair = case()
    plan = replace(plan, promised=True, hopeful=True)
    again = repetition.repeated(Whole(Entry(), look=Entry()), plan, pair, pair, (4, 4), None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(hg.PlanError, match="give num_moduli"):
        again(torch.rand(4, 4), torch.rand(4, 4), None)


@pytest.mark.usefixtures("direct")
def test_what_cannot_be_repeated_is_not():
    plan, (a, b) = case()
    assert repetition.repeated(Whole(Entry()), plan, (a.copy(), b), (a, b), (4, 4), None) is None
    assert repetition.repeated(Whole(Entry(), complete=False), plan, (a, b), (a, b), (4, 4), None) is None
    assert repetition.repeated(Whole(Entry(), fits=False), plan, (a, b), (a, b), (4, 4), None) is None
    stack = hg.make_plan(np.ones((4, 4)), np.ones((4, 4)), scheme=hg.Ozaki1(num_slices=2), workspace=200_000)
    smallest = stack.scheme.fit(stack, stack.problem, stack.workspace // 2)
    assert smallest.block_shape != (1, 4, 4)
    assert repetition.repeated(Whole(Entry()), smallest, (a, b), (a, b), (4, 4), None) is None
