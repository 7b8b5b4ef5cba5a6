"""Counts that operands decide, from the look to the result: the kernels give the plans and the bits of NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.driver import multiply
from hifigemm.engines import readback
from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.engines.torch_engine import CudaEngine
from hifigemm.exceptions import HopeError
from hifigemm.numerics.tensor_core import H100
from hifigemm.plan import Problem
from hifigemm.planning import plan_for, second_plan

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has tests of its own in test_cuda_counts.py")

FAST = hg.Ozaki2(scaling="fast")
WORKSPACE = 2**28


class Arrived(readback.Readback):
    """A copy from the host to the host."""

    __slots__ = ()

    def __init__(self, free):
        self._free = free

    def start(self, source):
        self._bytes = source.clone().numpy()

    def wait(self, dtype):
        self._free.append(self)
        return self._bytes.view(dtype).tolist()


@pytest.fixture
def engine(monkeypatch):
    """A GPU's engine on tensors of the CPU."""
    monkeypatch.setattr(readback, "Readback", Arrived)
    monkeypatch.setattr(readback, "_free", {-1: []})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    made = CudaEngine(torch.device("cpu"))
    made.least_workspace = 2**28
    made.__dict__ |= {"costs": None, "device": "cpu", "model": H100}
    return made


def carried_out(engine, a, b, accuracy):
    """The plan that was carried out in the end, what came before it, and the values."""
    problem, hopes = Problem(1, a.shape[1], b.shape[2], a.shape[2], np.dtype(a.dtype)), []
    plan = plan_for(problem, a, b, accuracy, FAST, True, engine, WORKSPACE)
    try:
        return plan, hopes, multiply(plan, a, b, engine, WORKSPACE)
    except HopeError as failed:
        hopes.append(plan)
        plan = second_plan(plan, failed.ratio, a, b, engine, WORKSPACE)
        return plan, hopes, multiply(plan, a, b, engine, WORKSPACE)


@pytest.mark.parametrize(
    ("dtype", "family"),
    [
        *(("float64", name) for name in ("phi_0.1", "phi_2", "integers", "uniform", "zeros", "cancelling")),
        *(("complex128", name) for name in ("phi_0.1", "integers")),
    ],
)
@pytest.mark.parametrize("accuracy", [None, "correct"])
def test_plans_and_bits_are_those_of_numpy(make_pair, assert_same_bits, engine, family, accuracy, dtype):
    a, b = (x[None] for x in make_pair(family, 9, 70, 8, dtype))
    want, _, expected = carried_out(NumpyEngine(), a, b, accuracy)
    with np.errstate(all="ignore"):
        plan, hopes, found = carried_out(engine, *(wrap(torch.from_numpy(x)) for x in (a, b)), accuracy)
    assert_same_bits(unwrap(found.values).numpy(), expected.values)
    assert (plan.scheme, plan.reason, found.bound) == (want.scheme, want.reason, expected.bound)
    assert all(hope.hopeful for hope in hopes)
    assert (plan.hopeful or bool(hopes)) == (not want.exact)


def test_what_a_look_leaves_is_read_back_once(make_pair, engine):
    a, b = (wrap(torch.from_numpy(x[None])) for x in make_pair("phi_0.1", 5, 20, 6))
    for _ in range(3):
        plan, hopes, _ = carried_out(engine, a, b, None)
        assert (plan.hopeful, hopes) == (True, [])
    assert len(readback._free[-1]) == 1


@pytest.mark.parametrize(
    ("accuracy", "scheme", "looks"),
    [
        (None, FAST, ["look at bits", "scaling, residues, magnitudes", "look at magnitudes"]),
        ("correct", FAST, ["look at bits", "scaling and residues"]),
        (None, hg.Ozaki2(num_moduli=5, scaling="fast"), ["scaling and residues"]),
    ],
)
def test_stages_are_the_launches_of_the_plan(make_pair, engine, accuracy, scheme, looks):
    a, b = (wrap(torch.from_numpy(x[None])) for x in make_pair("phi_1", 5, 20, 6, "complex128"))
    problem = Problem(1, 5, 6, 20, np.dtype("complex128"))
    found = engine.stages(plan_for(problem, a, b, accuracy, scheme, False, engine, WORKSPACE), a, b)
    assert [name for name, *_ in found] == [*looks, "INT8 products", "reconstruction"]
    for _, run, nbytes, work in found:
        run()
        assert nbytes > 0
        assert work >= 0
