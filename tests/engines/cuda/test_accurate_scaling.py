"""Forced counts of moduli with scaling="accurate" as launches: the bits of NumPy.

Without a GPU the kernels run in Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.engines.rates import H200
from hifigemm.kernels.vectors import block_sums
from hifigemm.model.plan import Blocking
from hifigemm.numerics.estimates import MAGNITUDE_TERMS
from tests.engines.cuda.test_ozaki2 import by_numpy, run, stacks
from tests.engines.stand_in import DEVICE, planned

pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")


def accurate(count):
    return hg.Ozaki2(num_moduli=count, scaling="accurate")


def check(assert_same_bits, engine, a, b, count, blocking=None):
    """The bits of a product by launches are those of NumPy."""
    plan = planned(accurate(count), a, b, engine)
    if blocking is not None:
        plan = replace(plan, blocking=blocking)
    assert engine.lowering(plan) is not None
    assert_same_bits(run(plan, a, b, engine)[2], by_numpy(a, b, accurate(count)))


@pytest.mark.parametrize(
    ("dtype", "count"),
    [
        ("float64", 2),
        ("float64", 15),
        ("float32", 7),
        ("complex64", 9),
        ("complex128", 14),
    ],
)
def test_bits_are_those_of_numpy(make_pair, assert_same_bits, engine, dtype, count):
    check(assert_same_bits, engine, *stacks(make_pair, dtype=dtype), count)


@pytest.mark.parametrize(
    "family", ["full_range", "subnormal", "sparse", "zeros", "empty_rows_and_columns"]
)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_hard_operands(make_pair, assert_same_bits, engine, family, dtype):
    check(assert_same_bits, engine, *stacks(make_pair, family, dtype=dtype), 12)


@pytest.mark.parametrize(
    ("batch", "block"),
    [((3, 3), (3, 5, 6)), ((1, 3), (1, 3, 6)), ((2, 1), (1, 5, 3))],
    ids=str,
)
def test_scales_of_blocks_are_those_of_the_whole_operands(
    make_pair, assert_same_bits, engine, batch, block
):
    a, b = stacks(make_pair, "phi_4", batch=batch)
    check(assert_same_bits, engine, a, b, 12, Blocking(block))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_inf_and_nan_harm_no_other_entries(
    make_pair, assert_same_bits, engine, dtype, bad
):
    a, b = stacks(make_pair, dtype=dtype)
    a[0, 1, 7] = bad
    b[0, 60, 2] = -bad
    b[0, 61, 2] = bad
    plan = planned(accurate(10), a, b, engine)
    values = run(plan, a, b, engine)[2]
    want = by_numpy(a, b, accurate(10))
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isnan(values), np.isnan(want))
    assert_same_bits(values[finite], want[finite])
    assert not np.isfinite(values[~finite]).any()


def test_products_of_halves(make_pair, assert_same_bits, engine, monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setattr(block_sums, "VECTORS", 4)
        monkeypatch.setattr(block_sums, "TERMS", 16)
    a, b = stacks(make_pair, m=9, n=8, k=40)
    blocking = Blocking((1, 9, 8), in_halves=True)
    check(assert_same_bits, engine, a, b, 11, blocking)


def test_a_report_that_states_a_bound_comes_step_by_step(make_pair, engine):
    a, b = stacks(make_pair)
    plan = planned(accurate(14), a, b, engine, states_bound=True)
    assert plan.certifies
    assert engine.lowering(plan) is None


def test_sums_of_more_terms_come_step_by_step(make_pair, engine):
    a, b = stacks(make_pair)
    plan = planned(accurate(14), a, b, engine)
    for k, is_lowered in ((MAGNITUDE_TERMS, True), (MAGNITUDE_TERMS + 1, False)):
        at = replace(plan, problem=replace(plan.problem, k=k))
        assert (engine.lowering(at) is not None) == is_lowered


def test_no_operand_is_prepared_alone(make_pair, engine):
    a, b = stacks(make_pair)
    lowering = engine.lowering(planned(accurate(14), a, b, engine))
    tensor = torch.from_numpy(a).to(DEVICE)
    assert lowering.preparing(tensor, "left") is None


def test_large_products_take_halves_and_little_more_memory_than_fast_scaling(engine):
    engine.costs = H200
    shape = np.broadcast_to(0.0, (1, 16384, 16384))
    plans = [
        planned(scheme, shape, shape, engine, workspace=2**36)
        for scheme in (accurate(14), hg.Ozaki2(num_moduli=14, scaling="fast"))
    ]
    assert all(plan.blocking.in_halves for plan in plans)
    assert plans[0].workspace <= 1.01 * plans[1].workspace
