"""Sums in words as a program: every entry is rounded once, whatever the operands are,
and nothing waits.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.model.plan import Verification
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.running.executor import execute
from hifigemm.testing.reference import correctly_rounded
from tests.engines.stand_in import DEVICE, arrays, on_host, planned

SUMS = hg.DoubleDouble()
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")


def run(plan, a, b, engine, shift=0, epilogue=PLAIN):
    same, outcome = execute(plan, *arrays(a, b), engine, 2**28, shift, epilogue)
    assert same is plan
    assert outcome.decision is None
    return on_host(outcome.values)


def tensors(*given):
    return [torch.from_numpy(np.ascontiguousarray(x)).to(DEVICE) for x in given]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("family", ["phi_1", "full_range", "nearly_cancelling"])
def test_every_entry_is_rounded_correctly(
    make_pair, assert_same_bits, engine, family, dtype
):
    a, b = make_pair(family, 5, 9, 7, dtype)
    plan = planned(SUMS, a[None], b[None], engine, "correct")
    assert (plan.verification, plan.bound) == (Verification.A_PRIORI, 0.0)
    assert_same_bits(run(plan, a[None], b[None], engine)[0], correctly_rounded(a, b))


def test_the_rest_of_alpha_beta_and_c_come_after_the_rounding(make_pair, engine):
    a, b = (x[None] for x in make_pair("phi_1", 5, 9, 7))
    plan = planned(SUMS, a, b, engine, "correct")
    c = np.ones((1, 5, 7))
    product = run(plan, a, b, engine, 3)
    assert (product == 8 * run(plan, a, b, engine)).all()
    sums = run(plan, a, b, engine, 3, Epilogue(1.0, 2.0, *arrays(c)))
    assert (sums == product + 2.0).all()


@pytest.mark.thinned(5)
@pytest.mark.parametrize("result", ["pair", "enclosure"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_both_parts_have_the_bits_of_a_cpu(
    make_pair, assert_same_bits, as_on_gpu, result, dtype
):
    for family in ("phi_1", "underflowing", "overflowing"):
        a, b = make_pair(family, 4, 6, 5, dtype)
        parts, report = hg.matmul(*tensors(a, b), result=result, return_report=True)
        assert report.scheme == SUMS
        for x, y in zip(parts, hg.matmul(a, b, result=result), strict=True):
            assert_same_bits(on_host(x), y)


@pytest.mark.parametrize(("alpha", "beta"), [(-1.0, 1.0), (0.5, -4.0), (2.0, 1.0)])
def test_correct_sums_have_the_bits_of_a_cpu(
    make_pair, assert_same_bits, as_on_gpu, alpha, beta
):
    a, b = make_pair("phi_2", 5, 8, 6)
    c = correctly_rounded(a, b)
    c[0, :3] = np.inf, np.nan, 1e300
    scalars = {"alpha": alpha, "beta": beta, "accuracy": "correct"}
    x, report = hg.gemm(*tensors(a, b, c), **scalars, return_report=True)
    assert report.scheme == SUMS
    assert report.correct
    np.testing.assert_array_equal(on_host(x), hg.gemm(a, b, c, **scalars))


def test_stacks_that_repeat_one_matrix_and_views(
    make_pair, assert_same_bits, as_on_gpu
):
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((3, 4, 6)), rng.standard_normal((5, 6)).T
    x, y = tensors(a, b.T)
    result = hg.matmul(x, y.T, accuracy="correct")
    assert_same_bits(on_host(result), hg.matmul(a, b, accuracy="correct"))


def test_complex_operands_are_refused(engine):
    a = np.ones((1, 2, 2), complex)
    with pytest.raises(hg.PlanError, match="for real operands"):
        planned(SUMS, a, a, engine, "correct")
