"""What whole products hold between launches stays within the workspace of their plan."""

from __future__ import annotations

import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.accuracy import NOTHING_STATED, resolve
from hifigemm.engines import residue_pipeline
from hifigemm.engines.device_array import wrap
from hifigemm.engines.kernels import scaled_residues, slice_product, slices, words
from hifigemm.formats import FP64
from hifigemm.numerics.epilogue import PLAIN
from hifigemm.plan import Problem

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU counts by itself in test_cuda_memory.py")
FAST = hg.Ozaki2(scaling="fast")
SMALL = 2**16
"""Bytes of scales and of what programs exchange."""


@pytest.fixture
def memory(monkeypatch):
    """The bytes that pipelines hold now, and the most at a time."""
    found = SimpleNamespace(held=0, most=0)

    def change(nbytes):
        found.held += nbytes
        found.most = max(found.most, found.held)

    def empty(shape, dtype, device):
        made = torch.empty(shape, dtype=dtype, device=device)
        change(made.nbytes)
        weakref.finalize(made, change, -made.nbytes)
        return made

    for module in (residue_pipeline, slice_product, slices, scaled_residues, words):
        monkeypatch.setattr(module, "empty", empty)
    return found


@pytest.mark.parametrize(
    ("scheme", "dtype"),
    [
        (hg.Ozaki2(num_moduli=3, scaling="fast"), np.float64),
        (hg.Ozaki1(num_slices=2), np.float64),
        (hg.Corrected("tf32"), np.float32),
        (hg.Multiword("fp16", 1, 1), np.float32),
    ],
    ids=str,
)
def test_blocks_follow_each_other_in_the_same_memory(engine, memory, scheme, dtype):
    a, b = np.ones((1, 140, 512), dtype), np.ones((1, 512, 140), dtype)
    problem, operands = Problem(1, 140, 140, 512, a.dtype), [wrap(torch.from_numpy(x)) for x in (a, b)]
    whole = scheme.plan(problem, *operands, NOTHING_STATED, engine, 2**30)
    plan = scheme.plan(problem, *operands, NOTHING_STATED, engine, 2 * whole.workspace // 3)
    assert len(list(plan.blocks())) > 1
    engine.whole_product(plan)(*operands, 0, PLAIN, (None, None), None)
    assert whole.workspace / 8 < memory.most <= plan.workspace + SMALL


@pytest.mark.parametrize("gated", [True, False])
def test_magnitudes_are_gone_before_the_products_and_counted(engine, memory, gated):
    """Those of two operands that are much longer than the result take more than its products."""
    problem, target = Problem(1, 20, 20, 2**13, np.dtype(np.float64)), resolve(None, FP64, 2**13)
    operands = [wrap(torch.ones(shape, dtype=torch.float64)) for shape in ((1, 20, 2**13), (1, 2**13, 20))]
    plan = FAST.gated_plan(problem, target, engine, 2**30)
    if not gated:
        plan = plan.scheme.fit(replace(plan, gated=False, hopeful=True, promised=True), problem, 2**30)
    engine.whole_product(plan)(*operands, 0, PLAIN, (None, None), None)
    assert plan.workspace / 2 < memory.most <= plan.workspace + SMALL
