"""Every generator of hard matrices has the property that its name promises."""

from fractions import Fraction

import numpy as np
import pytest

from hifigemm.testing.reference import correctly_rounded, exact_product
from tests import hard_matrices as gen

every_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])
M, K, N = 24, 17, 26


def exponents(x):
    """Exponent e of each entry, 2**e <= |x| < 2**(e + 1)."""
    return np.frexp(x)[1] - 1


def bounds_of_exact_product(a, b, dtype):
    """For each entry the exact value and its neighbours among the floats of dtype, as
    Fractions (exact <= upper).
    """
    exact = exact_product(a, b)
    rounded = correctly_rounded(a, b, dtype)
    for i, j in np.ndindex(rounded.shape):
        value, near = exact.fraction(i, j)[0], rounded[i, j]
        other = np.nextafter(
            near, dtype(np.inf if value > Fraction(float(near)) else -np.inf)
        )
        yield value, Fraction(float(near)), Fraction(float(other))


@every_dtype
@pytest.mark.parametrize(("m", "k", "n"), [(M, K, N), (5, 1, 4), (5, 2, 4), (6, 8, 3)])
def test_ties_are_midpoints_in_every_entry(dtype, m, k, n):
    a, b = gen.ties(np.random.default_rng(1), m, k, n, dtype)
    assert a.dtype == b.dtype == dtype
    for value, near, other in bounds_of_exact_product(a, b, dtype):
        assert value == (near + other) / 2 != near


@every_dtype
@pytest.mark.parametrize("nudge_bits", [60, 100, 200])
def test_nudged_ties_lie_next_to_midpoints_on_both_sides(dtype, nudge_bits):
    a, b = gen.ties(np.random.default_rng(2), M, K, N, dtype, nudge_bits=nudge_bits)
    towards = []
    for value, near, other in bounds_of_exact_product(a, b, dtype):
        middle = (near + other) / 2
        assert 0 < abs(value - middle) <= abs(value) * Fraction(2) ** -nudge_bits
        towards.append(value > middle)
    assert 0.2 < np.mean(towards) < 0.8


def test_ties_refuse_what_they_cannot_make():
    rng = np.random.default_rng(3)
    for k, nudge_bits in ((0, 0), (1, 60), (9, 54)):
        with pytest.raises(ValueError, match="ties"):
            gen.ties(rng, M, k, N, nudge_bits=nudge_bits)


def test_ties_round_up_and_down():
    a, b = gen.ties(np.random.default_rng(3), M, K, N, np.float64)
    exact = exact_product(a, b)
    rounded = correctly_rounded(a, b)
    grew = [
        abs(rounded[i, j]) > abs(exact.fraction(i, j)[0]) for i, j in np.ndindex(M, N)
    ]
    assert 0.3 < np.mean(grew) < 0.7


@every_dtype
@pytest.mark.parametrize("k", [1, 2, 17, 30])
def test_cancelling_cancels_everywhere(dtype, k):
    a, b = gen.cancelling(np.random.default_rng(4), M, k, N, dtype)
    assert not exact_product(a, b).real.any()
    assert k == 1 or a.any()


@every_dtype
def test_perturbed_cancellation_leaves_about_u_times_the_terms(dtype):
    a, b = gen.cancelling(np.random.default_rng(5), M, K, N, dtype, perturb=True)
    left = abs(correctly_rounded(a, b))
    assert left.any()
    assert (left <= np.finfo(dtype).eps * (abs(a) @ abs(b))).all()


@every_dtype
def test_full_range_covers_all_exponents(dtype):
    info = np.finfo(dtype)
    x = gen.full_range(np.random.default_rng(6), (300, 200), dtype)
    assert x.dtype == dtype
    assert np.isfinite(x).all()
    assert set(range(info.minexp - info.nmant, info.maxexp)) == set(
        exponents(x).ravel().tolist()
    )
    assert (x < 0).any()
    assert (x > 0).any()


@every_dtype
@pytest.mark.parametrize("span_bits", [0, 1, 60, 253])
def test_every_row_spans_what_is_asked(dtype, span_bits):
    x = gen.row_span(np.random.default_rng(8), (M, K), span_bits, dtype)
    assert (np.ptp(exponents(x), axis=1) == span_bits).all()
    assert (abs(x) >= np.finfo(dtype).smallest_normal).all()


def test_row_span_over_all_normal_numbers_and_not_beyond():
    x = gen.row_span(np.random.default_rng(9), (3, 4), 2045)
    assert np.isfinite(x).all()
    assert (np.ptp(exponents(x), axis=1) == 2045).all()
    with pytest.raises(ValueError, match="2046"):
        gen.row_span(np.random.default_rng(9), (3, 4), 2046)


@every_dtype
def test_overflowing_straddles_the_threshold(dtype):
    a, b = gen.overflowing(np.random.default_rng(10), M, K, N, dtype)
    assert np.isfinite(a).all()
    assert np.isfinite(b).all()
    rounded = correctly_rounded(a, b)
    largest = np.finfo(dtype).max
    for group in (
        np.isinf(rounded),
        abs(rounded) == largest,
        (abs(rounded) < largest) & (abs(rounded) > largest / 2),
    ):
        assert group.mean() > 0.03
    threshold = Fraction(float(largest)) + Fraction(2) ** (
        np.finfo(dtype).maxexp - np.finfo(dtype).nmant - 2
    )
    exact = exact_product(a, b)
    at_the_tie = [
        abs(exact.fraction(i, j)[0]) == threshold for i, j in np.ndindex(M, N)
    ]
    assert np.mean(at_the_tie) > 0.03
    with np.errstate(all="ignore"):
        terms = a[:, :, None].astype(np.longdouble) * b.astype(np.longdouble)
    assert (abs(terms) > largest).any(axis=1).mean() > 0.9


@every_dtype
def test_underflowing_gives_zero_subnormal_and_ties_of_subnormals(dtype):
    info = np.finfo(dtype)
    a, b = gen.underflowing(np.random.default_rng(11), M, K, N, dtype)
    rounded = abs(correctly_rounded(a, b))
    assert ((rounded > 0) & (rounded < info.smallest_normal)).mean() > 0.5
    assert (rounded >= info.smallest_normal).any()
    exact = exact_product(a, b)
    unit = Fraction(float(info.smallest_subnormal))
    values = [exact.fraction(i, j)[0] / unit for i, j in np.ndindex(M, N)]
    assert any(0 < abs(v) < Fraction(1, 2) for v in values)
    assert any(v.denominator == 2 for v in values)


@every_dtype
@pytest.mark.parametrize(
    "make", [gen.vanishing, gen.half_the_smallest, gen.signed_zeros]
)
def test_sums_that_vanish_are_exact_zeros_and_both_sides_of_zero(dtype, make):
    values = []
    for seed in range(30):
        a, b = make(np.random.default_rng(seed), 5, 6, 4, dtype)
        assert a.dtype == b.dtype == dtype
        exact = exact_product(a, b)
        is_zero = correctly_rounded(a, b) == 0
        values += [exact.fraction(i, j)[0] for i, j in np.argwhere(is_zero)]
    signs = {(x > 0) - (x < 0) for x in values}
    assert signs == {-1, 0, 1}


@every_dtype
def test_half_the_smallest_has_ties_at_it(dtype):
    a, b = gen.half_the_smallest(np.random.default_rng(1), M, K, N, dtype)
    exact = exact_product(a, b)
    half = Fraction(float(np.finfo(dtype).smallest_subnormal)) / 2
    values = [abs(exact.fraction(i, j)[0]) for i, j in np.ndindex(M, N)]
    assert half in values


@every_dtype
def test_subnormals_are_subnormal_at_every_length(dtype):
    info = np.finfo(dtype)
    x = gen.subnormal(np.random.default_rng(7), (100, 50), dtype)
    assert ((abs(x) > 0) & (abs(x) < info.smallest_normal)).all()
    assert set(exponents(x).ravel().tolist()) == set(
        range(info.minexp - info.nmant, info.minexp)
    )


def test_scaled_matrices_have_the_scales_asked():
    rng = np.random.default_rng(15)
    graded = gen.graded(rng, (9, 5), -40, 40)
    np.testing.assert_array_equal(exponents(graded)[:, 0] + 1, np.arange(9) * -10 + 80)
    assert abs(gen.badly_scaled(rng, (50, 50), -300, 300)).max() > 2.0**400
    mean = gen.mean_of_uniforms(rng, (400, 400))
    assert abs(mean).max() <= 0.5
    assert np.var(mean) == pytest.approx(1 / 24, rel=0.05)
    vandermonde = gen.vandermonde(rng, (7, 4))
    np.testing.assert_array_equal(vandermonde[:, :2].T, [np.ones(7), vandermonde[:, 1]])
    np.testing.assert_allclose(vandermonde[:, 3], vandermonde[:, 1] ** 3, rtol=1e-15)


def test_the_same_seed_gives_the_same_matrix():
    for make in (gen.full_range, gen.mean_of_uniforms, gen.subnormal):
        first, second = (make(np.random.default_rng(18), (4, 5)) for _ in range(2))
        np.testing.assert_array_equal(first, second)
