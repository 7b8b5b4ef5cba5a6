"""Inf, NaN and the signs of zeros, against what IEEE arithmetic gives in any order of summation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.study.reference import correctly_rounded

SCHEMES = (
    "auto",
    "native",
    hg.Ozaki1(),
    hg.Ozaki1(product="fp64"),
    hg.Ozaki1(product="bf16", num_slices=2),
    hg.Ozaki1(mode="dp"),
    hg.Ozaki1(product="fp64", mode="sp"),
    hg.Ozaki2(),
    hg.Ozaki2(scaling="fast"),
    hg.Ozaki2(num_moduli=3),
)
VALUES = (math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, -1.0, 0.75, -3.0)


def term_kind(x, y):
    """A product as "nan", an infinity, or 0.0 for every finite one."""
    if math.isnan(x) or math.isnan(y) or (math.isinf(x) and y == 0) or (x == 0 and math.isinf(y)):
        return math.nan
    if math.isinf(x) or math.isinf(y):
        return math.copysign(math.inf, x) * math.copysign(1.0, y)
    return 0.0


def sum_kind(terms):
    """Inf or NaN that a sum of such terms gives in any order; None where it is finite. Finite terms do not overflow."""
    kinds = {t if t == t else "nan" for t in terms}
    if "nan" in kinds or {math.inf, -math.inf} <= kinds:
        return math.nan
    return next((t for t in kinds if math.isinf(t)), None)


def pattern(a, b):
    """Inf, NaN or (as 0) something finite for each entry of a real product."""
    out = np.zeros((a.shape[0], b.shape[1]))
    for i, j in itertools.product(range(out.shape[0]), range(out.shape[1])):
        kind = sum_kind([term_kind(float(x), float(y)) for x, y in zip(a[i], b[:, j], strict=True)])
        out[i, j] = 0.0 if kind is None else kind
    return out


def complex_pattern(a, b):
    real = pattern(np.hstack([a.real, -a.imag]), np.vstack([b.real, b.imag]))
    imag = pattern(np.hstack([a.real, a.imag]), np.vstack([b.imag, b.real]))
    out = np.empty(real.shape, np.complex128)
    out.real, out.imag = real, imag
    return out


def as_pattern(c):
    if c.dtype.kind == "c":
        out = np.empty(c.shape, np.complex128)
        out.real, out.imag = as_pattern(c.real), as_pattern(c.imag)
        return out
    return np.where(np.isfinite(c), 0.0, c.astype(np.float64))


def assert_same_pattern(found, expected):
    np.testing.assert_array_equal(as_pattern(found).view(np.float64), expected.view(np.float64))


def random_operands(rng, shape, dtype, finite_share):
    weights = np.array([(1 - finite_share) / 3] * 3 + [finite_share / 6] * 6)
    draw = lambda: rng.choice(VALUES, size=shape, p=weights)  # noqa: E731
    if np.dtype(dtype).kind != "c":
        return draw().astype(dtype)
    x = np.empty(shape, dtype)
    x.real, x.imag = draw(), draw()
    return x


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_real_patterns_are_those_of_any_order(scheme, dtype):
    rng = np.random.default_rng(3)
    for _ in range(60):
        m, k, n = rng.integers(1, 6, 3)
        share = rng.choice([0.3, 0.7, 0.95])
        a, b = random_operands(rng, (m, k), dtype, share), random_operands(rng, (k, n), dtype, share)
        c = hg.matmul(a, b, scheme=scheme)
        assert_same_pattern(c, pattern(a, b))


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_patterns_are_those_of_the_real_embedding(scheme, dtype):
    rng = np.random.default_rng(4)
    for _ in range(30):
        m, k, n = rng.integers(1, 4, 3)
        a, b = random_operands(rng, (m, k), dtype, 0.9), random_operands(rng, (k, n), dtype, 0.9)
        assert_same_pattern(hg.matmul(a, b, scheme=scheme), complex_pattern(a, b))


@pytest.mark.parametrize("accuracy", ["correct", 1e-18, "fp64"])
def test_thousands_of_patterns_in_one_stack(accuracy):
    rng = np.random.default_rng(5)
    a, b = random_operands(rng, (1500, 2, 3), "float64", 0.8), random_operands(rng, (1500, 3, 2), "float64", 0.8)
    c = hg.matmul(a, b, accuracy=accuracy)
    for result, left, right in zip(c, a, b, strict=True):
        assert_same_pattern(result, pattern(left, right))


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_finite_entries_beside_non_finite_ones_keep_their_bits(make_pair, assert_same_bits, scheme):
    if scheme in ("auto", "native") or (isinstance(scheme, hg.Ozaki2) and scheme.scaling == "accurate"):
        scheme = hg.Ozaki1(product="fp64", num_slices=2)
    a, b = make_pair("phi_2", 5, 11, 4)
    plan = hg.make_plan(a, b, scheme=scheme)
    clean = hg.matmul(a, b, plan=plan)
    a[2, 3], b[1, 1] = np.nan, -np.inf
    spoiled = hg.matmul(a, b, plan=plan)
    keep = np.ix_([0, 1, 3, 4], [0, 2, 3])
    assert_same_bits(spoiled[keep], clean[keep])
    assert not np.isfinite(spoiled[2]).any()
    assert not np.isfinite(spoiled[:, 1]).any()


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s not in ("native", "auto")], ids=str)
def test_plans_from_non_finite_operands_work_for_finite_ones(make_pair, scheme):
    a, b = make_pair("phi_2", 5, 11, 4)
    spoiled = a.copy()
    spoiled[0], spoiled[1, 2] = np.inf, np.nan
    plan = hg.make_plan(spoiled, b, scheme=scheme)
    assert np.isfinite(hg.matmul(a, b, plan=plan)).all()


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_finite_operands_never_give_nan(make_pair, scheme, dtype):
    for name in ("largest", "overflowing", "full_range", "largest_times_smallest", "cancelling"):
        a, b = make_pair(name, 6, 8, 5, dtype)
        try:
            c = hg.matmul(a, b, scheme=scheme)
        except hg.AccuracyError:
            assert isinstance(scheme, hg.Ozaki2), name
            continue
        assert not np.isnan(c).any(), name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_sums_that_overflow_on_the_way_are_finite_where_the_result_is(scheme, dtype):
    largest = np.finfo(dtype).max
    a = np.array([[largest, largest, -largest, -largest], [largest, 0, 0, 1]], dtype)
    b = np.array([[2, 1], [1, 0], [2, 1], [1, 0.5]], dtype)
    c = hg.matmul(a, b, scheme=scheme)
    assert c[0, 0] == 0.0
    assert c[1, 0] == np.inf
    assert abs(float(c[0, 1]) / float(largest) + 0.5) < 0.51


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_largest_number_times_one_is_itself(dtype):
    largest = np.finfo(dtype).max
    below = np.nextafter(largest, np.zeros((), dtype))
    for scheme in ("auto", "ozaki1", "ozaki2", hg.Ozaki1(product="fp16"), hg.Ozaki1(product="fp64")):
        a = np.array([[largest], [below], [-largest]], dtype)
        c = hg.matmul(a, np.ones((1, 1), dtype), accuracy="correct", scheme=scheme)
        np.testing.assert_array_equal(c, a)
        c = hg.matmul(np.ones((1, 1), dtype), a.T, accuracy="correct", scheme=scheme)
        np.testing.assert_array_equal(c, a.T)


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s not in ("auto", "native")], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_a_sum_of_zeros_is_a_positive_zero(make_pair, assert_same_bits, scheme, dtype):
    for sign in (1, -1):
        a, b = make_pair("zeros", 4, 6, 5, dtype)
        assert_same_bits(hg.matmul(sign * a, b, scheme=scheme), np.zeros((4, 5), dtype))


@pytest.mark.parametrize("scheme", ["auto", "ozaki1", "ozaki2"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_full_cancellation_is_a_positive_zero(make_pair, assert_same_bits, scheme, dtype):
    x, y = make_pair("span_60", 4, 6, 5, dtype)
    for accuracy in ("correct", 1e-16):
        c = hg.matmul(np.hstack([x, x]), np.vstack([y, -y]), scheme=scheme, accuracy=accuracy)
        if scheme != "auto" or accuracy == "correct":
            assert_same_bits(c, np.zeros((4, 5), dtype))


@pytest.mark.parametrize("scheme", ["auto", "ozaki1", "ozaki2"])
def test_negative_results_that_underflow_are_negative_zeros(scheme):
    tiny = np.array([[np.finfo(np.float64).smallest_subnormal]])
    for a, b in ((tiny, -0.25 * np.ones((1, 1))), (-tiny, tiny)):
        c = hg.matmul(a, b, accuracy="correct", scheme=scheme)
        assert c == 0
        assert np.signbit(c)
        assert np.signbit(correctly_rounded(a, b))


@pytest.mark.parametrize("setting", ["raise", "warn", "ignore"])
@pytest.mark.parametrize("accuracy", [None, 1e-17, "correct"])
def test_floating_point_error_settings_of_the_caller_do_not_matter(make_pair, assert_same_bits, setting, accuracy):
    for name in ("full_range", "largest", "subnormal", "overflowing"):
        a, b = make_pair(name, 5, 6, 4)
        expected = hg.matmul(a, b, accuracy=accuracy)
        with np.errstate(all=setting):
            assert_same_bits(hg.matmul(a, b, accuracy=accuracy), expected)


@pytest.mark.parametrize("alpha", [2.0, -0.5, 3.0])
def test_gemm_carries_non_finite_entries_through(alpha):
    a, b = np.array([[np.inf, 1.0], [2.0, np.nan], [1.0, 1.0]]), np.array([[1.0, 0.0], [1.0, 2.0]])
    with np.errstate(invalid="ignore"):
        expected = alpha * (a @ b) + 3.0 * np.ones((3, 2))
    for scheme in ("auto", "ozaki1", "ozaki2"):
        found = hg.gemm(a, b, np.ones((3, 2)), alpha=alpha, beta=3.0, scheme=scheme, accuracy="fp64")
        np.testing.assert_array_equal(found, expected)
