"""The native product: that of NumPy, judged by the same promise, escalated where it
over- or underflows.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base.formats import FP32, FP64
from hifigemm.model.accuracy import Target
from hifigemm.model.plan import Problem
from hifigemm.testing.reference import exact_product, meets_promise


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_it_is_numpys_product_bit_for_bit(make_pair, assert_same_bits, dtype):
    a, b = make_pair("phi_1", 30, 40, 20, dtype)
    c, report = hg.matmul(a, b, scheme="native", return_report=True)
    assert_same_bits(c, a @ b)
    assert report.native
    assert report.num_products == 1
    assert not report.correct


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_product_fp64_rounds_a_float64_product_once(make_pair, assert_same_bits, dtype):
    a, b = make_pair("phi_1", 30, 40, 20, dtype)
    c, report = hg.matmul(a, b, scheme=hg.Native(product="fp64"), return_report=True)
    wide = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    assert_same_bits(c, (a.astype(wide) @ b.astype(wide)).astype(dtype))
    assert report.bound < 1e-13
    assert "float64" in report.reason


@pytest.mark.parametrize("scheme", [hg.Native(), hg.Native(product="fp64")], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(
    "name",
    [
        "underflowing",
        "overflowing",
        "subnormal",
        "subnormal_rows",
        "full_range",
        "largest_times_smallest",
        "zeros",
    ],
)
def test_its_bound_holds_where_products_over_and_underflow(
    make_pair, scheme, dtype, name
):
    for shape in ((1, 1, 1), (6, 19, 5)):
        a, b = make_pair(name, *shape, dtype)
        for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b))):
            c, report = hg.matmul(x, y, scheme=scheme, return_report=True)
            assert meets_promise(c, a, b, report.bound).all()


def test_what_was_escalated_is_said(make_pair):
    a, b = make_pair("overflowing", 6, 19, 5)
    c, report = hg.matmul(a, b, scheme="native", return_report=True)
    assert re.search(r"escalated by (DoubleDouble|Ozaki1)\(", report.reason)
    assert meets_promise(c, a, b, report.bound).all()
    assert not np.isnan(c).any()


def test_the_reason_states_the_worst_case(make_pair):
    a, b = make_pair("phi_1", 3, 40, 2)
    report = hg.matmul(a, b, return_report=True)[1]
    assert "40 u" in report.reason
    assert "80 u" in hg.matmul(a + 0j, b, return_report=True)[1].reason


@pytest.mark.parametrize("alpha", [2.0**-130, 2.0**-1060, 2.0**120, 2.0**1000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scales_of_gemm_do_not_break_the_bound(make_pair, alpha, dtype):
    a, b = make_pair("phi_1", 5, 9, 4, dtype)
    c, report = hg.gemm(a, b, alpha=alpha, scheme="native", return_report=True)
    exact = exact_product(a, b)
    scaled = type(exact)(
        exact.real, None, exact.row_exponent + int(np.log2(alpha)), exact.col_exponent
    ).round(dtype)
    finite = np.isfinite(scaled)
    assert np.array_equal(np.isfinite(c), finite)
    sizes = exact_product(abs(a), abs(b))
    u, least = (
        Fraction(float(x))
        for x in (np.finfo(dtype).eps / 2, np.finfo(dtype).smallest_subnormal)
    )
    for i, j in np.argwhere(finite):
        value = exact.fraction(i, j)[0] * Fraction(alpha)
        allowed = (
            Fraction(report.bound) * sizes.fraction(i, j)[0] * Fraction(alpha)
            + u * abs(value)
            + least / 2
        )
        assert abs(Fraction(float(c[i, j])) - value) <= allowed


def looked_at(a, b):
    """Whether entries are escalated."""
    return "escalated" in hg.matmul(a, b, scheme="native", return_report=True)[1].reason


@pytest.mark.parametrize(("dtype", "emin"), [(np.float32, -126), (np.float64, -1022)])
def test_products_of_operands_underflow_below_the_smallest_normal_number_and_not_there(
    dtype, emin
):
    x, y = dtype(2.0 ** (emin // 2)), dtype(2.0 ** (emin - emin // 2))
    less = np.nextafter(y, dtype(0))
    # The sum is zero, which says nothing of its terms.
    assert not looked_at(np.array([[x, -x]]), np.array([[y], [y]]))
    assert looked_at(np.array([[x, -x]]), np.array([[y], [less]]))
    assert looked_at(np.array([[y, -less]]), np.array([[x], [x]]))
    assert not looked_at(np.array([[x, -x, 0]]), np.array([[y], [y], [0]]))
    assert not looked_at(
        np.array([[x, -x]]) * (1 + 1j), np.array([[y], [y]]) * (1 + 1j)
    )
    assert looked_at(np.array([[x, -x]]) * (1 + 1j), np.array([[y], [y - 1j * less]]))


@pytest.mark.parametrize(("dtype", "emin"), [(np.float32, -126), (np.float64, -1022)])
@pytest.mark.parametrize("k", [2, 7])
def test_results_of_k_smallest_normal_numbers_are_not_looked_at(dtype, emin, k):
    a, b = np.zeros((1, k), dtype), np.zeros((k, 1), dtype)
    # the second product vanishes
    a[0, :2], b[:2, 0] = (1, 2.0**emin), (k * 2.0**emin, 2.0**-60)
    assert not looked_at(a, b)
    b[0, 0] = np.nextafter(b[0, 0], dtype(0))
    assert looked_at(a, b)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_a_target_is_kept_down_to_the_worst_case(dtype):
    problem = Problem(1, 2, 3, 50, np.dtype(dtype))
    terms, u = 50 * (2 if dtype == "complex64" else 1), 2.0**-24
    native, wide = hg.Native(), hg.Native(product="fp64")
    assert native.bound(problem) == terms * u / (1 - terms * u)
    assert wide.bound(problem) == terms * 2.0**-53 / (1 - terms * 2.0**-53)
    for scheme in (native, wide):
        assert scheme.keeps(problem, Target(scheme.bound(problem)))
        assert not scheme.keeps(problem, Target(np.nextafter(scheme.bound(problem), 0)))
        assert not scheme.keeps(problem, Target(0.0, correct=True))
        assert scheme.keeps(replace(problem, k=0), Target(0.0, correct=True))
    assert native.keeps(problem, Target(1e-30, level=FP32))
    assert not native.keeps(problem, Target(1e-30, level=FP64))
    assert wide.keeps(problem, Target(1e-30, level=FP64))
    assert not wide.keeps(problem, Target(1e-30, level=FP32))


def test_overflow_beyond_float32_is_escalated_where_the_sum_is_formed_in_float64():
    a = np.array([[2.0**100, 1.0]], np.float32)
    b = np.array([[2.0**100], [1.0]], np.float32)
    c, report = hg.matmul(a, b, scheme=hg.Native(product="fp64"), return_report=True)
    assert c == np.inf
    assert "escalated" in report.reason


def test_arithmetic_is_that_of_the_operands_or_float64():
    with pytest.raises(hg.PlanError, match="product='fp32'"):
        hg.Native(product="fp32")
