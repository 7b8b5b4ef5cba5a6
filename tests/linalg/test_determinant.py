"""Signs and bounds of determinants against exact integers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from experiments.systems import FAMILIES, SPARSE, of_condition
from hifigemm import linalg
from hifigemm.engines import core
from hifigemm.linalg import determinant, exact
from hifigemm.linalg.certificate import Certificate, prove
from hifigemm.linalg.determinant import _bounds, _exponential, _log_of_quotient, sign_of
from hifigemm.linalg.exact import IntegerMatrix
from tests.linalg.worst_arithmetic import fractions

pytest.importorskip("flint")

from tests.linalg.exact_least_squares import exact_determinant

mpmath = pytest.importorskip("mpmath")


def assert_encloses(d, exact):
    factor = Fraction(2) ** d.exponent
    assert Fraction(d.lower) * factor <= exact <= Fraction(d.upper) * factor
    assert d.sign == (exact > 0) - (exact < 0)
    if exact == 0:
        assert (d.lower, d.upper, d.exponent) == (0.0, 0.0, 0)
    assert (d.lower > 0.0) == (d.upper > 0.0) == (d.sign > 0)


def exact_quotient(a, gaps, order):
    """det(A - P^T F) / det A = det(I - A^-1 P^T F)."""
    unordered = gaps[np.argsort(order)]
    difference = [
        [x - y for x, y in zip(*rows)]
        for rows in zip(fractions(a), fractions(unordered))
    ]
    return exact_determinant(difference) / exact_determinant(fractions(a))


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.2])
@pytest.mark.parametrize("size", [0.2, 1e-3, 1e-9])
def test_the_logarithm_holds_for_poor_inverses_and_large_gaps(noise, size):
    rng = np.random.default_rng(0)
    for _ in range(20):
        n = int(rng.integers(1, 6))
        a = np.eye(n) + 0.1 * rng.standard_normal((n, n)) / n
        gaps = size * rng.uniform(-1.0, 1.0, (n, n)) / n
        errors = 0.5 * np.abs(gaps) * rng.uniform(0.0, 1.0, (n, n))
        order = rng.permutation(n)
        inverse = np.linalg.inv(a) * (1.0 - noise * rng.uniform(0.0, 1.0, (n, n)))
        proof = prove(a, inverse)
        trace, error = _log_of_quotient(proof, gaps, errors, order)
        corners = rng.choice([-1.0, 1.0], (2, n, n))
        for changed in (gaps, *(gaps + corners * errors)):
            exact = exact_quotient(a, changed, order)
            smaller = np.nextafter(np.exp(-trace.real - error), 0.0)
            larger = np.nextafter(np.exp(-trace.real + error), np.inf)
            assert Fraction(float(smaller)) <= exact <= Fraction(float(larger))


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_logarithm_counts_the_gap_of_the_inverse_and_the_series(sign):
    # K = R B / (1 - g) with G = g I and B = b I, where all bounds add up
    n, g, b = 3, 2.0**-4, 2.0**-6
    proof = prove(np.eye(n), (1.0 - g) * np.eye(n))
    no_errors = np.zeros((n, n))
    trace, error = _log_of_quotient(
        proof, sign * b * np.eye(n), no_errors, np.arange(n)
    )
    assert trace.real == sign * n * (1.0 - g) * b
    assert abs(n * np.log1p(-sign * b) + trace.real) <= error <= 5 * g * n * b


def test_the_logarithm_counts_the_errors_of_the_gaps():
    proof = prove(np.eye(2), np.eye(2))
    errors = np.full((2, 2), 2.0**-30)
    _, error = _log_of_quotient(proof, np.zeros((2, 2)), errors, np.arange(2))
    assert 2.0**-29 <= error <= 2.0**-28


def test_the_logarithm_counts_two_units_of_the_gaps(monkeypatch):
    proof = prove(np.eye(2), np.eye(2))
    gaps = 2.0**-200 * np.eye(2)
    monkeypatch.setattr(determinant, "gamma", lambda terms: 0.0)
    _, error = _log_of_quotient(proof, gaps, 0.0 * gaps, np.arange(2))
    assert error >= 2.0**-52 * 2.0**-199


def test_rows_of_gaps_belong_to_those_of_the_matrix():
    # K has one entry of 1/2, and log(1 - 1/2) + 1/2 is 0.19
    a = np.diag([2.0**20, 1.0])
    gaps = np.array([[0.0, 0.5], [0.0, 0.0]])
    operands = gaps, 0.0 * gaps, np.array([1, 0])
    trace, error = _log_of_quotient(prove(a, np.diag([2.0**-20, 1.0])), *operands)
    assert abs(np.log(0.5) + trace.real) <= error


@pytest.mark.parametrize("condition", [1e9, 1e11])
def test_a_sharper_product_makes_bounds_narrow(monkeypatch, condition):
    monkeypatch.setattr(core, "neighbours_of_determinants", lambda _: None)
    rng = np.random.default_rng(3)
    n = 40
    left, right = np.linalg.qr(rng.standard_normal((2, n, n))).Q
    a = (left * np.geomspace(1.0, 1.0 / condition, n)) @ right
    narrow = linalg.det(a)
    monkeypatch.setattr(determinant, "_WIDE", np.inf)
    wide = linalg.det(a)
    assert_encloses(narrow, exact_determinant(a.tolist()))
    assert_encloses(wide, exact_determinant(a.tolist()))
    assert narrow.upper - narrow.lower < 0.1 * (wide.upper - wide.lower)


def test_the_logarithm_counts_the_roundings_of_the_trace(monkeypatch):
    n = 50
    proof = prove(np.eye(n), np.eye(n))
    monkeypatch.setattr(Certificate, "contraction", lambda _, v: 0.0 * v)
    gaps = 2.0**-60 * np.eye(n)
    trace, error = _log_of_quotient(proof, gaps, 0.0 * gaps, np.arange(n))
    assert error >= (n - 1) * 2.0**-53 * trace.real


@pytest.mark.parametrize("size", [1.0, 1.5, np.nan])
def test_no_sign_without_a_proof(size):
    # I - K may be singular, and so may what the factors are those of
    proof = prove(np.eye(1), np.eye(1))
    for gap, error in ((size, 0.0), (0.0, size)):
        operands = np.full((1, 1), gap), np.full((1, 1), error), np.arange(1)
        with pytest.raises(linalg.VerificationError, match="distance to singularity"):
            _log_of_quotient(proof, *operands)


@pytest.mark.parametrize("x", [-1.0, -0.3, -(2.0**-40), 0.0, 2.0**-60, 0.7, 1.0])
def test_exponentials_are_those_of_many_digits(x):
    with mpmath.workprec(200):
        exact = mpmath.exp(x)
        value = _exponential(Fraction(x))
        ratio = mpmath.mpf(value.numerator) / value.denominator / exact
        assert abs(ratio - 1) <= mpmath.mpf(2) ** -104


@pytest.mark.parametrize("sign", [-1, 1])
def test_bounds_are_rounded_outward(sign):
    # Neighbours of a third; no error, and no more than that of the exponential
    third = Fraction(sign, 3)
    d = _bounds(third, 0.0, 0.0)
    assert_encloses(d, third)
    assert d.upper == np.nextafter(d.lower, np.inf)
    d = _bounds(Fraction(sign), 0.0, 2.0**-40)
    assert d.lower <= sign - 2.0**-40 < sign + 2.0**-40 <= d.upper


REAL = [name for name in FAMILIES if "complex" not in name and name != "stacks"]


@pytest.mark.parametrize("family", REAL)
@pytest.mark.parametrize("by_core", [True, False])
@pytest.mark.parametrize("by_integers", [True, False])
def test_bounds_hold_or_nothing_is_said(monkeypatch, family, by_core, by_integers):
    if not by_core:
        monkeypatch.setattr(core, "neighbours_of_determinants", lambda a: None)
    if not by_integers:
        monkeypatch.setattr(IntegerMatrix, "of", lambda a: None)
    answers = 0
    for seed in range(6):
        a, _ = FAMILIES[family](np.random.default_rng([11, seed]))
        exact = exact_determinant(a.tolist())
        try:
            d = linalg.det(a)
        except linalg.VerificationError:
            continue
        answers += 1
        assert_encloses(d, exact)
    hard = ("singular", "spikes", "1e13", "1e14", "1e15", "1e16")
    is_hard = not by_integers and any(word in family for word in hard)
    assert answers == 6 or is_hard


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("family", SPARSE)
def test_sparse_matrices_in_any_units_have_sharp_bounds(family, seed):
    a, _ = SPARSE[family](np.random.default_rng([12, seed]))
    d = linalg.det(a)
    assert_encloses(d, exact_determinant(a.tolist()))
    assert d.upper - d.lower <= 2.0**-46 * min(abs(d.lower), abs(d.upper))


@pytest.mark.parametrize("condition", [1e2, 1e5, 1e8])
def test_width_is_at_most_1e_8_up_to_condition_1e8(condition):
    rng = np.random.default_rng(0)
    for _ in range(10):
        a, _ = of_condition(condition)(rng)
        d = linalg.det(a)
        assert_encloses(d, exact_determinant(a.tolist()))
        assert d.upper - d.lower <= 1e-8 * min(abs(d.lower), abs(d.upper))


@pytest.mark.parametrize("n", [37, 60, 150])
def test_middle_matrices_are_proven_to_two_units(monkeypatch, n):
    a = np.random.default_rng(n).standard_normal((n, n))
    monkeypatch.setattr(IntegerMatrix, "of", lambda a: None)
    d = linalg.det(a)
    assert_encloses(d, exact_determinant(a.tolist()))
    assert d.upper - d.lower <= 2.0 * np.spacing(max(abs(d.lower), abs(d.upper)))


@pytest.mark.parametrize("power", [-900, -300, 300, 900])
def test_determinants_beyond_float64_have_an_exponent(power):
    a = np.ldexp(np.random.default_rng(0).standard_normal((8, 8)), power)
    d = linalg.det(a)
    assert d.exponent != 0
    assert_encloses(d, exact_determinant(a.tolist()))


def test_determinants_that_float64_holds_have_no_exponent():
    assert linalg.det(np.diag([1e200, 1e-200, 3.0])).exponent == 0


@pytest.mark.parametrize(
    "a", [np.ones((2, 2)), np.zeros((3, 3)), [[0.1, 0.3]] * 2, np.ones((64, 64))]
)
def test_singular_matrices_have_a_determinant_of_zero(a):
    d = linalg.det(a)
    assert (d.sign, d.lower, d.upper, d.exponent) == (0, 0.0, 0.0, 0)


@pytest.mark.parametrize("n", [2, 5, 11, 20])
def test_gram_matrices_of_few_vectors_are_singular(n):
    rng = np.random.default_rng(n)
    v = rng.integers(-(2**20), 2**20, (n, n - 1)).astype(float)
    assert linalg.det(v @ v.T).sign == 0
    # Floats with 53 bits: one row is the sum of two others, without a rounding
    a = rng.standard_normal((n, n))
    a[-1] = 2.0 * a[0]
    assert linalg.det(a).sign == 0


@pytest.mark.parametrize("n", [1, 3, 6, 9])
def test_integers_have_integers_as_determinants(n):
    rng = np.random.default_rng(n)
    for _ in range(20):
        a = rng.integers(-9, 10, (n, n))
        d = linalg.det(a)
        exact = exact_determinant(a.astype(float).tolist())
        assert d.lower == d.upper == exact


def test_matrices_that_are_too_large_for_integers_raise(monkeypatch):
    with pytest.raises(linalg.VerificationError):
        linalg.det(np.ones((513, 513)))
    rng = np.random.default_rng(0)
    spread = np.ldexp(1.0, rng.integers(-1000, 1000, (150, 150)))
    spread[1] = spread[0]
    message = r"singular or nearly so.*below 2\^\d+.*primes.*seconds"
    with pytest.raises(linalg.VerificationError, match=message):
        linalg.det(spread)
    monkeypatch.setattr(exact, "MOST_SECONDS", 0.0)
    with pytest.raises(
        linalg.VerificationError, match=r"2\^765 .*32 primes of 24 bits"
    ):
        linalg.det(np.ones((200, 200)) + np.eye(200)[5])


@pytest.mark.parametrize("n", [65, 100, 150])
def test_large_singular_matrices_of_integers_have_a_determinant_of_zero(n):
    a = np.random.default_rng(n).integers(-9, 10, (n, n)).astype(float)
    a[-1] = a[: n // 2].sum(axis=0)
    assert linalg.det(a).sign == 0


def test_the_determinant_of_nothing_is_one():
    d = linalg.det(np.ones((0, 0)))
    assert d.lower <= 1.0 <= d.upper


def exact_complex_determinant(a):
    """det A, re and im as fractions, by elimination."""
    rows = [[(Fraction(v.real), Fraction(v.imag)) for v in row] for row in a.tolist()]
    real, imag = Fraction(1), Fraction(0)
    for k in range(len(rows)):
        pivots = [i for i in range(k, len(rows)) if rows[i][k] != (0, 0)]
        if not pivots:
            return Fraction(0), Fraction(0)
        i = pivots[0]
        if i != k:
            rows[k], rows[i] = rows[i], rows[k]
            real, imag = -real, -imag
        x, y = rows[k][k]
        real, imag = real * x - imag * y, real * y + imag * x
        size = x * x + y * y
        for row in rows[k + 1 :]:
            u, v = row[k]
            p, q = (u * x + v * y) / size, (v * x - u * y) / size
            for j, (s, t) in enumerate(rows[k]):
                re, im = row[j]
                row[j] = re - (p * s - q * t), im - (p * t + q * s)
    return real, imag


COMPLEX = [name for name in FAMILIES if "complex" in name]


@pytest.mark.parametrize("family", COMPLEX)
def test_disks_hold_the_determinants_of_complex_matrices(family):
    for seed in range(6):
        a, _ = FAMILIES[family](np.random.default_rng([12, seed]))
        a = a[:7, :7]
        d = linalg.det(a)
        real, imag = exact_complex_determinant(a)
        factor = Fraction(2) ** d.exponent
        gap = (Fraction(d.center.real) * factor - real) ** 2
        gap += (Fraction(d.center.imag) * factor - imag) ** 2
        assert gap <= (Fraction(d.radius) * factor) ** 2
        assert d.radius <= 1e-8 * abs(d.center)


@pytest.mark.parametrize("power", [-1000, 0, 1000])
def test_complex_determinants_have_an_exponent_beyond_the_range(power):
    a = np.array([[1.0 + 2.0j, 3.0], [0.5j, 4.0 - 1.0j]])
    d = linalg.det(a * 2.0**power)
    real, imag = exact_complex_determinant(a)
    factor = Fraction(2) ** (d.exponent - 2 * power)
    assert abs(Fraction(d.center.real) * factor - real) <= d.radius * float(factor)
    assert abs(Fraction(d.center.imag) * factor - imag) <= d.radius * float(factor)
    assert (d.exponent == 0) == (power == 0)


@pytest.mark.parametrize("n", [2, 7, 20, 40])
def test_singular_complex_matrices_have_a_determinant_of_zero(n):
    rng = np.random.default_rng(n)
    a = rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))
    a[-1] = 2j * a[0]
    d = linalg.det(a)
    assert (d.center, d.radius, d.exponent) == (0.0, 0.0, 0)
    a.real[-1, 0] = np.nextafter(a.real[-1, 0], 9.0)
    d = linalg.det(a)
    assert 0.0 < d.radius < abs(d.center) or d.radius == 0.0 < abs(d.center)


def test_determinants_of_complex_integers_have_no_radius():
    rng = np.random.default_rng(2)
    for n in range(1, 8):
        a = rng.integers(-5, 6, (2, n, n))
        d = linalg.det(a[0] + 1j * a[1])
        real, imag = exact_complex_determinant((a[0] + 1j * a[1]).astype(complex))
        assert (d.center, d.radius) == (complex(real, imag), 0.0)


@pytest.mark.parametrize("power", [-700, 0, 700])
def test_disks_by_integers_hold_the_determinant(power):
    rng = np.random.default_rng(1)
    for _ in range(30):
        a = (
            rng.standard_normal((3, 3)) + 1j * rng.standard_normal((3, 3))
        ) * 2.0**power
        d = linalg.det(a)
        real, imag = exact_complex_determinant(a)
        factor = Fraction(2) ** d.exponent
        gap = (Fraction(d.center.real) * factor - real) ** 2
        gap += (Fraction(d.center.imag) * factor - imag) ** 2
        assert 0 < gap <= (Fraction(d.radius) * factor) ** 2
        assert d.radius <= 2.0**-52 * abs(d.center)


def test_stacks_have_arrays_of_bounds():
    rng = np.random.default_rng(4)
    a = rng.standard_normal((2, 3, 4, 4))
    d = linalg.det(a)
    assert d.sign.shape == d.lower.shape == d.upper.shape == d.exponent.shape == (2, 3)
    for index in np.ndindex(2, 3):
        one = linalg.det(a[index])
        assert (d.sign[index], d.lower[index]) == (one.sign, one.lower)
        assert (d.upper[index], d.exponent[index]) == (one.upper, one.exponent)
    disks = linalg.det(a + 1j)
    assert disks.center[1, 2] == linalg.det(a[1, 2] + 1j).center
    a[0, 1] = 0.0
    assert linalg.det(a).sign[0, 1] == 0
    assert linalg.det(a * 1j).center[0, 1] == 0.0
    a[0, 1] = np.nan
    with pytest.raises(linalg.VerificationError, match=r"1 of 6.*\(0, 1\)") as error:
        linalg.det(a * 1j)
    assert np.isnan(error.value.solution.center[0, 1])
    assert error.value.solution.center[0, 2] == linalg.det(a[0, 2] * 1j).center


def test_signs_of_permutations_are_those_of_their_matrices():
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 7):
        for _ in range(10):
            order = rng.permutation(n)
            assert sign_of(order) == round(np.linalg.det(np.eye(n)[order]))
