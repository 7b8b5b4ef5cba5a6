"""Ozaki scheme II: exact integers behind every result, refusals, and the counts it chooses."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hifigemm as hg
from hifigemm.accuracy import Target
from hifigemm.numerics.scaling import gained_bits
from hifigemm.plan import Problem
from hifigemm.schemes.ozaki2 import _enough, _exact_choice, _expected_count
from hifigemm.study.reference import correctly_rounded, meets_promise

SCALINGS = ("accurate", "fast")
DTYPES = ("float32", "float64", "complex64", "complex128")


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", range(2, 50))
def test_every_number_of_moduli_keeps_its_bound(make_pair, scaling, dtype, count):
    a, b = make_pair("phi_1", 4, 11, 3, dtype)
    c, report = hg.matmul(a, b, scheme=hg.Ozaki2(num_moduli=count, scaling=scaling), return_report=True)
    assert meets_promise(c, a, b, report.bound).all()
    assert report.scheme.num_moduli == count
    assert math.isfinite(report.bound)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_small_integers_are_exact_with_few_moduli(make_pair, assert_same_bits, scaling, dtype):
    for k in (1, 2, 30, 1000):
        a, b = make_pair("integers", 5, k, 4, dtype)
        c, report = hg.matmul(a, b, scheme=hg.Ozaki2(scaling=scaling), accuracy="correct", return_report=True)
        assert_same_bits(c, correctly_rounded(a, b))
        assert report.scheme.num_moduli <= 4


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 2, 3, 7, 64, 1000])
def test_integers_at_the_edge_of_the_range_do_not_wrap(scaling, dtype, k):
    # All terms of equal sign and size: the sum reaches what the scale allows. Residues beyond the range would wrap.
    for bits in (1, 2, 7, 20, 24, 53):
        value = float(2**bits - 1)
        a, b = np.full((1, k), value, dtype), np.full((k, 1), value, dtype)
        if np.dtype(dtype).kind == "c":
            a, b = a * (1 + 1j), b * (1 - 1j)
        for count in (2, 3, 8, 15, 20):
            c, report = hg.matmul(a, b, scheme=hg.Ozaki2(num_moduli=count, scaling=scaling), return_report=True)
            assert meets_promise(c, a, b, report.bound).all()


@pytest.mark.parametrize("scaling", SCALINGS)
def test_fewest_moduli_for_fp64_are_about_those_published(make_pair, scaling):
    a, b = make_pair("phi_0.1", 20, 256, 20)
    report = hg.matmul(a, b, scheme=hg.Ozaki2(scaling=scaling), return_report=True)[1]
    assert 13 <= report.scheme.num_moduli <= 18
    assert report.bound <= 4 * 2.0**-53


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_exact_products_beyond_49_moduli_are_refused_with_numbers(make_pair, scaling, dtype):
    a, b = make_pair("full_range", 4, 6, 3, dtype)
    with pytest.raises(hg.AccuracyError, match=r"49.*\(4 x 6\) @ \(6 x 3\)"):
        hg.matmul(a, b, scheme=hg.Ozaki2(scaling=scaling), accuracy="correct")


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_unequal_spans_of_the_operands_are_balanced(make_pair, assert_same_bits, scaling, dtype):
    # One operand wide, the other short: together they fit, each on its own half of the range would not.
    rng = np.random.default_rng(17)
    a, b = make_pair("span_60", 5, 9, 4, dtype)
    a = a * np.ldexp(1.0, rng.integers(-50, 50, a.shape)).astype(a.real.dtype)
    short = rng.integers(-3, 4, b.shape).astype(dtype)
    for x, y in ((a, short), (short.T, a.T)):
        c, report = hg.matmul(x, y, scheme=hg.Ozaki2(scaling=scaling), accuracy="correct", return_report=True)
        assert_same_bits(c, correctly_rounded(x, y))
        assert report.correct


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_rows_and_columns_cost_nothing(make_pair, assert_same_bits, scaling, dtype):
    a, b = make_pair("empty_rows_and_columns", 6, 8, 5, dtype)
    c = hg.matmul(a, b, scheme=hg.Ozaki2(num_moduli=12, scaling=scaling))
    assert not c[::2].any()
    assert not c[:, 1::2].any()
    zeros = np.zeros_like(a)
    c, report = hg.matmul(zeros, b, scheme=hg.Ozaki2(scaling=scaling), accuracy="correct", return_report=True)
    assert not c.any()
    assert report.scheme.num_moduli == 2


@pytest.mark.parametrize("scaling", SCALINGS)
def test_entries_that_underflow_in_the_scale_are_not_forgotten(scaling):
    # The small entries meet each other and make the whole of the product; beside 2**1000 they are below any scale.
    a, b = np.array([[2.0**1000, 2.0**-60]]), np.array([[0.0], [2.0**-1000]])
    for options in ({"accuracy": 1e-12}, {"accuracy": "correct"}, {}):
        try:
            c = hg.matmul(a, b, scheme=hg.Ozaki2(scaling=scaling), **options)
        except hg.AccuracyError:
            continue
        assert c == 2.0**-1060
    c, report = hg.matmul(a, b, scheme=hg.Ozaki2(num_moduli=5, scaling=scaling), return_report=True)
    assert report.bound == math.inf or meets_promise(c, a, b, report.bound).all()


@pytest.mark.parametrize("scaling", SCALINGS)
def test_more_moduli_err_less(make_pair, scaling):
    a, b = make_pair("phi_1", 6, 20, 5)
    reports = [
        hg.matmul(a, b, scheme=hg.Ozaki2(num_moduli=c, scaling=scaling), return_report=True)[1] for c in range(2, 40)
    ]
    bounds = [report.bound for report in reports]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] == 0.0


def test_only_fast_scaling_splits_operands_apart():
    assert hg.Ozaki2(scaling="fast").independent_splits
    assert not hg.Ozaki2().independent_splits


@pytest.mark.parametrize("k", [1, 60, 5000])
@pytest.mark.parametrize("r", [2.0**-51, 1e-10, 1e-30])
def test_the_largest_ratio_parts_counts_that_suffice_from_those_that_do_not(k, r):
    problem, target = Problem(1, 4, 5, k, np.dtype("float64")), Target(r)
    for count in range(_expected_count(problem, target), 50, 5):
        scheme = hg.Ozaki2(num_moduli=count, scaling="fast")
        plan = replace(hg.make_plan(np.ones((4, k)), np.ones((k, 5)), scheme=scheme), target=target)
        largest = scheme.largest_ratio(plan)
        assert _enough(problem, target, largest) <= count
        assert (_enough(problem, target, np.nextafter(largest, np.inf)) or 50) > count
        for ratio in (0.0, largest / 3, largest):
            assert scheme.suffices(plan, ratio)
        for ratio in (np.nextafter(largest, np.inf), 2 * largest, np.inf):
            assert not scheme.suffices(plan, ratio)


def test_too_few_moduli_suffice_for_no_ratio():
    plan = hg.make_plan(np.ones((4, 60)), np.ones((60, 5)), scheme=hg.Ozaki2(num_moduli=2, scaling="fast"))
    assert not plan.scheme.suffices(replace(plan, target=Target(1e-10)), 0.0)


@given(st.integers(-60, 2000), st.integers(-60, 2000))
def test_exact_counts_are_the_fewest_and_shift_no_more_than_they_must(left, right):
    if left + right > 2 * gained_bits(49, False):
        return
    choice = _exact_choice(False, left, right, True)
    gained = gained_bits(choice.count, False)
    assert left <= gained + choice.balance
    assert right <= gained - choice.balance
    assert choice.balance in (0, left - gained, gained - right)
    assert choice.count == 2 or left + right > 2 * gained_bits(choice.count - 1, False)
