"""Products of halves on a GPU have the bits of whole ones: seven for eight, see
numerics/strassen.py.

Without a GPU the kernels run in Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hifigemm.engines.cuda import ozaki2
from hifigemm.engines.rates import H200
from hifigemm.kernels.runtime.launch_list import LaunchList
from hifigemm.kernels.vectors import block_sums
from hifigemm.model.plan import Blocking
from hifigemm.model.problem import Problem
from hifigemm.numerics.epilogue import Epilogue
from hifigemm.running.executor import split_of
from tests.engines.cuda.test_ozaki2 import (
    FAST,
    by_numpy,
    expected_costs,
    fixed,
    run,
    stacks,
)
from tests.engines.stand_in import DEVICE, arrays, planned
from tests.planning import make

pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")
SHAPE = (5, 40, 6) if DEVICE == "cpu" else (1100, 700, 900)
SHAPES = (
    [SHAPE]
    if DEVICE == "cpu"
    else [SHAPE, (256, 512, 512), (129, 5000, 257), (2049, 130, 1025)]
)
BLOCKS = [(1, 3, 6), (1, 5, 4)] if DEVICE == "cpu" else [(1, 550, 900), (1, 1100, 300)]


@pytest.fixture(autouse=True)
def costs(engine):
    """Costs by which all counts of a ladder are sooner than a native product."""
    engine.costs = expected_costs(1.0)


@pytest.fixture(autouse=DEVICE == "cpu")
def small_halves(monkeypatch):
    """Halves of few vectors and terms, for the interpreter."""
    monkeypatch.setattr(block_sums, "VECTORS", 4)
    monkeypatch.setattr(block_sums, "TERMS", 16)


def in_halves(plan, shape=None):
    return replace(plan, blocking=Blocking(shape or plan.block_shape, in_halves=True))


def in_both_ways(plan, a, b, engine, shape=None, **options):
    """The values by products of halves and by whole ones, where only the former are
    made of halves.
    """
    made = []
    for own in (
        in_halves(plan, shape),
        replace(plan, blocking=Blocking(shape or plan.block_shape)),
    ):
        made.append(run(own, a, b, engine, **options)[1:])
    (outcome, found), (other, want) = made
    if outcome.decision is not None:
        assert outcome.decision() == other.decision()
    return found, want


@pytest.mark.parametrize(
    "dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow), "complex128"]
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_halves_give_the_bits_of_numpy(
    make_pair, assert_same_bits, engine, shape, dtype
):
    m, k, n = shape
    a, b = stacks(make_pair, "phi_2", m, k, n, dtype)
    plan = planned(fixed(9), a, b, engine)
    assert_same_bits(run(in_halves(plan), a, b, engine)[2], by_numpy(a, b, fixed(9)))


@pytest.mark.slow
@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    "family", ["opposed_spans", "cancelling", "zeros", "sparse", "phi_8"]
)
def test_hostile_data(make_pair, assert_same_bits, engine, family):
    m, k, n = SHAPE
    a, b = stacks(make_pair, family, m, k, n)
    a[0, m - 1, 5], b[0, 7, n - 1] = np.inf, np.nan
    for accuracy in (None, "correct"):
        found, want = in_both_ways(
            planned(FAST, *arrays(a, b), engine, accuracy), a, b, engine
        )
        assert_same_bits(found, want)


@pytest.mark.parametrize(
    "dtype", ["float64", pytest.param("complex128", marks=pytest.mark.slow)]
)
def test_the_device_decides_alike(make_pair, assert_same_bits, engine, dtype):
    """On the first rung, on a later one, and on a native product."""
    m, k, n = SHAPE
    for scale in (0.1, 2.5, 30.0):
        a, b = stacks(
            make_pair, f"phi_{scale:g}" if scale < 1 else "phi_4", m, k, n, dtype
        )
        a *= np.exp2(np.random.default_rng(3).normal(0, scale, a.shape))
        found, want = in_both_ways(planned(FAST, a, b, engine), a, b, engine)
        assert_same_bits(found, want)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "shape",
    [(1, 3, 6), (1, 5, 4)] if DEVICE == "cpu" else [(1, 550, 900), (1, 1100, 300)],
    ids=str,
)
def test_blocks_epilogues_and_prepared_operands(
    make_pair, assert_same_bits, engine, shape
):
    m, k, n = SHAPE
    a, b = stacks(make_pair, "phi_1", m, k, n)
    plan = planned(fixed(7), a, b, engine)
    c = np.random.default_rng(5).standard_normal((1, m, n))
    y, z = arrays(b, c)
    right = split_of(plan, y, "right", engine)
    for options in (
        {"epilogue": Epilogue(-1.5, 0.5, z)},
        {"splits": (None, right)},
        {"shift": -7},
    ):
        found, want = in_both_ways(plan, a, b, engine, shape, **options)
        assert_same_bits(found, want)


def test_halves_are_planned_from_shape_and_rates(engine):
    engine.costs = H200
    problem = Problem(1, 16384, 16384, 16384, np.dtype(np.float64))
    for changed in ({}, {"m": 64}, {"k": 512}, {"mirror": "T"}, {"batch": 2}):
        p = replace(problem, **changed)
        program = engine.lowering(planned_for(p, engine))
        assert program.in_halves(p.batch, p.m, p.n) == (not changed)


def planned_for(problem, engine):
    return make(problem, None, fixed(14), engine, 2**60, None, False)


def test_a_plan_says_so(engine):
    engine.costs = H200
    plan = planned_for(Problem(1, 16384, 16384, 16384, np.dtype(np.float64)), engine)
    assert plan.blocking.in_halves
    assert "seven halves for eight" in str(plan)
    assert plan.num_products == 14


@pytest.mark.slow
def test_only_some_steps_change(make_pair, engine, monkeypatch):
    """Seven products for as many planes as have their sums in memory, of blocks and of
    sums of blocks.
    """
    calls = []
    monkeypatch.setattr(ozaki2, "_PLANES_OF_SUMS", 2)
    monkeypatch.setattr(
        ozaki2.residue_gemm,
        "residue_gemm",
        lambda left, right, *rest, **options: calls.append(
            (tuple(left.shape), tuple(right.shape))
        ),
    )
    monkeypatch.setattr(block_sums, "VECTORS", 64)
    monkeypatch.setattr(block_sums, "TERMS", 128)
    launches = LaunchList(torch.device(DEVICE))
    sides = [launches.empty((1, 3, vectors, 160), torch.int8) for vectors in (130, 70)]
    products, halves = ozaki2.products_of_halves(*sides, ozaki2.moduli_set(3, False))
    assert halves == (128, 64)
    operands = [
        *(
            ((128, 128), (64, 128)),
            ((128, 32), (64, 32)),
            ((128, 32), (6, 32)),
            ((2, 32), (64, 32)),
        ),
        *[((128, 128), (64, 128))] * 3,
    ]
    assert calls == [
        ((1, planes, *left), (1, planes, *right))
        for planes in (1, 2)
        for left, right in operands
    ]
    assert products.shape == (1, 21, 128, 256)
