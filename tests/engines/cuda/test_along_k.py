"""Exponents along k of a plan, and the memory that plans say they take."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.engines.cuda.lowering import Arguments
from tests.engines.stand_in import planned

INNER = (
    hg.Corrected("fp16", scaling="inner"),
    hg.Corrected("tf32", scale=False, scaling="inner"),
    hg.Multiword("fp32", 2, 3, scaling="inner"),
    hg.Ozaki2(num_moduli=8, scaling="inner"),
)


def stacks(scheme):
    dtype = "float64" if scheme.product in ("fp32", "int8") else "float32"
    return np.zeros((3, 70, 60), dtype), np.zeros((3, 60, 90), dtype)


@pytest.mark.parametrize("scheme", INNER, ids=str)
def test_workspace_of_blocks_holds_the_launches_of_all_of_them(scheme, engine):
    """Whole operands are looked at, whatever the blocks."""
    a, b = stacks(scheme)
    whole = planned(scheme, a, b, engine)
    assert whole.is_whole
    limit = whole.workspace * 3 // 4
    plan = planned(scheme, a, b, engine, workspace=limit)
    assert not plan.is_whole
    lowering = engine.lowering(plan)
    out = np.zeros((3, 70, 90), a.dtype)
    tensors = [torch.from_numpy(x) for x in (a, b, out)]
    written = lowering.recorded(plan, Arguments(*tensors))
    assert 4 * 60 < written.finish().nbytes <= plan.workspace
