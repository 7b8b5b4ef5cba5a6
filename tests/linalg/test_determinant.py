"""Signs and bounds of determinants against exact integers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from experiments.systems import FAMILIES, of_condition
from hifigemm import linalg
from hifigemm.linalg.arrays import pivoted_factors
from hifigemm.linalg.certificate import prove
from hifigemm.linalg.determinant import _log_of_quotient, sign_of
from tests.linalg.worst_arithmetic import fractions

flint = pytest.importorskip("flint")


def exact_determinant(a):
    """det A as a fraction."""
    ratios = [x.as_integer_ratio() for x in a.astype(float).ravel().tolist()]
    common = max((below for _, below in ratios), default=1)
    entries = [above * (common // below) for above, below in ratios]
    determinant = int(flint.fmpz_mat(len(a), len(a), entries).det())
    return Fraction(determinant, common ** len(a))


def assert_encloses(d, exact):
    factor = Fraction(2) ** d.exponent
    assert Fraction(d.lower) * factor <= exact <= Fraction(d.upper) * factor
    assert d.sign == (1 if exact > 0 else -1)
    assert (d.lower > 0.0) == (d.upper > 0.0) == (d.sign > 0)


def exact_quotient(a, gaps):
    """det(A - F) / det A = det(I - A^-1 F)."""
    n = len(a)
    difference = [
        [x - y for x, y in zip(*rows)] for rows in zip(fractions(a), fractions(gaps))
    ]
    determinants = []
    for matrix in (difference, fractions(a)):
        entries = [
            flint.fmpq(v.numerator, v.denominator) for row in matrix for v in row
        ]
        determinant = flint.fmpq_mat(n, n, entries).det()
        determinants.append(Fraction(int(determinant.p), int(determinant.q)))
    return determinants[0] / determinants[1]


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.2])
@pytest.mark.parametrize("size", [0.2, 1e-3, 1e-9])
def test_the_logarithm_holds_for_poor_inverses_and_large_gaps(noise, size):
    rng = np.random.default_rng(0)
    for _ in range(20):
        n = int(rng.integers(1, 6))
        a = np.eye(n) + 0.1 * rng.standard_normal((n, n)) / n
        gaps = size * rng.uniform(-1.0, 1.0, (n, n)) / n
        inverse = np.linalg.inv(a) * (1.0 - noise * rng.uniform(0.0, 1.0, (n, n)))
        trace, error = _log_of_quotient(prove(a, inverse), gaps)
        exact = exact_quotient(a, gaps)
        smaller = np.nextafter(np.exp(-trace - error), 0.0)
        larger = np.nextafter(np.exp(-trace + error), np.inf)
        assert Fraction(float(smaller)) <= exact <= Fraction(float(larger))


REAL = [name for name in FAMILIES if "complex" not in name and name != "stacks"]


@pytest.mark.parametrize("family", REAL)
def test_bounds_hold_or_nothing_is_said(family):
    answers = 0
    for seed in range(6):
        a, _ = FAMILIES[family](np.random.default_rng([11, seed]))
        exact = exact_determinant(a)
        try:
            d = linalg.det(a)
        except linalg.VerificationError:
            continue
        answers += 1
        assert_encloses(d, exact)
    hard = ("singular", "spikes", "1e13", "1e14", "1e15", "1e16")
    assert answers == 6 or any(word in family for word in hard)


@pytest.mark.parametrize("condition", [1e2, 1e5, 1e8])
def test_width_is_at_most_1e_8_up_to_condition_1e8(condition):
    rng = np.random.default_rng(0)
    for _ in range(10):
        a, _ = of_condition(condition)(rng)
        d = linalg.det(a)
        assert_encloses(d, exact_determinant(a))
        assert d.upper - d.lower <= 1e-8 * min(abs(d.lower), abs(d.upper))


@pytest.mark.parametrize("power", [-900, -300, 300, 900])
def test_determinants_beyond_float64_have_an_exponent(power):
    a = np.ldexp(np.random.default_rng(0).standard_normal((8, 8)), power)
    d = linalg.det(a)
    assert d.exponent != 0
    assert_encloses(d, exact_determinant(a))


def test_determinants_that_float64_holds_have_no_exponent():
    assert linalg.det(np.diag([1e200, 1e-200, 3.0])).exponent == 0


@pytest.mark.parametrize("a", [np.ones((2, 2)), np.zeros((3, 3)), [[0.1, 0.3]] * 2])
def test_singular_matrices_raise(a):
    with pytest.raises(linalg.VerificationError):
        linalg.det(a)


def test_the_determinant_of_nothing_is_one():
    d = linalg.det(np.ones((0, 0)))
    assert d.lower <= 1.0 <= d.upper


def test_complex_matrices_and_stacks_raise():
    with pytest.raises(TypeError, match="real"):
        linalg.det(np.eye(2) * 1j)
    with pytest.raises(np.linalg.LinAlgError, match="one square matrix"):
        linalg.det(np.ones((3, 2, 2)))


def test_factors_are_triangular_and_a_permutation():
    a = np.random.default_rng(0).standard_normal((12, 12))
    a[:, 3] = 0.0
    lower, upper, order = pivoted_factors(a)
    assert sorted(order.tolist()) == list(range(12))
    assert (np.triu(lower, 1) == 0.0).all()
    assert (np.diagonal(lower) == 1.0).all()
    assert (np.tril(upper, -1) == 0.0).all()
    assert (np.abs(lower) <= 1.0).all()
    assert np.abs(a[order] - lower @ upper).max() <= 144 * 2.0**-53 * np.abs(a).max()


def test_signs_of_permutations_are_those_of_their_matrices():
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 7):
        for _ in range(10):
            order = rng.permutation(n)
            assert sign_of(order) == round(np.linalg.det(np.eye(n)[order]))
