"""Native products on tensors that are repeated without a plan."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hifigemm.engines.device_array import wrap  # noqa: E402
from hifigemm.plan import Problem  # noqa: E402
from hifigemm.planning import plan_for  # noqa: E402

CASES = {
    "matrices": ((5, 7), (7, 4)),
    "stacks": ((3, 5, 7), (3, 7, 4)),
    "stacks of one": ((1, 5, 7), (1, 7, 4)),
    "one matrix for a stack": ((1, 5, 7), (3, 7, 4)),
    "a matrix for a stack": ((5, 7), (3, 7, 4)),
    "a stack of stacks": ((2, 3, 5, 7), (2, 3, 7, 4)),
}


@pytest.mark.parametrize("case", CASES)
def test_native_products_of_matrices_and_stacks_are_repeated(engine, case):
    rng = np.random.default_rng(1)
    (first, second), device = CASES[case], engine.place
    tensors = [torch.from_numpy(rng.standard_normal(shape)).to(device) for shape in (first, second)]
    stacks = [x.reshape(-1, *x.shape[-2:]) for x in tensors]
    batch = max(map(len, stacks))
    problem = Problem(batch, 5, 4, 7, np.dtype(np.float64))
    arrays, given = [wrap(x) for x in stacks], [wrap(x) for x in tensors]
    plan = plan_for(problem, *arrays, None, "native", False, engine, 2**28)
    shape = (*np.broadcast_shapes(first[:-2], second[:-2]), 5, 4)
    again = engine.repeated_product(plan, tuple(given), tuple(arrays), shape, None)
    if case in ("a matrix for a stack", "a stack of stacks"):
        assert again is None
        return
    want = torch.matmul(*tensors)
    assert torch.equal(again(*tensors, None), want)
    out = torch.full(shape, np.nan, dtype=torch.float64, device=device)
    assert again(*tensors, out) is out
    assert torch.equal(out, want)
