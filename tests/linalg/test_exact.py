"""Determinants, definiteness and solutions by primes, and fractions rounded once."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hifigemm.linalg.exact import IntegerMatrix, nearest
from hifigemm.numerics.prime_fields import primes_from
from tests.linalg.worst_arithmetic import exact_matmul, fractions


def exact_solution(a, b):
    return IntegerMatrix.of(np.concatenate([a, b], axis=1)).solution()


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_solutions_solve_their_systems_exactly(n):
    rng = np.random.default_rng(n)
    for _ in range(10):
        a = np.ldexp(rng.standard_normal((n, n)), rng.integers(-40, 40, (n, n)))
        a[rng.random((n, n)) < 0.3] = 0.0
        a += np.diag(rng.standard_normal(n))
        b = rng.standard_normal((n, 2))
        x = exact_solution(a, b)
        assert exact_matmul(fractions(a), x) == fractions(b)


def test_pivots_of_zero_are_passed_over():
    a = np.array([[0.0, 2.0], [3.0, 1.0]])
    assert exact_solution(a, np.array([[4.0], [5.0]])) == [[Fraction(1)], [Fraction(2)]]


@pytest.mark.parametrize("a", [[[0.0]], [[1.0, 2.0], [0.5, 1.0]], [[0.0, 1.0]] * 2])
def test_singular_matrices_have_no_solution(a):
    assert exact_solution(np.array(a), np.ones((len(a), 1))) is None


def eliminated(a):
    """The leading minors and the determinant in fractions; None for minors after a
    vanishing one.
    """
    rows = fractions(a)
    n = len(rows)
    determinant = Fraction(1)
    minors = []
    has_minors = True
    for k in range(n):
        pivots = [i for i in range(k, n) if rows[i][k] != 0]
        if not pivots:
            minors.append(Fraction(0) if has_minors else None)
            return minors + [None] * (n - k - 1), Fraction(0)
        if pivots[0] != k:
            minors.append(Fraction(0) if has_minors else None)
            has_minors = False
            rows[k], rows[pivots[0]] = rows[pivots[0]], rows[k]
            determinant = -determinant
            determinant *= rows[k][k]
        else:
            determinant *= rows[k][k]
            minors.append(determinant if has_minors else None)
        for row in rows[k + 1 :]:
            factor = row[k] / rows[k][k]
            row[:] = [x - factor * y for x, y in zip(row, rows[k])]
    return minors, determinant


def hostile(rng):
    """A real matrix of one of many kinds, up to 10 x 10."""
    n = int(rng.integers(1, 11))
    kinds = [
        rng.standard_normal((n, n)),
        rng.integers(-1, 2, (n, n)).astype(float),
        np.eye(n)[rng.permutation(n)] * rng.choice([1.0, -3.0], n),
        np.ldexp(rng.standard_normal((n, n)), rng.integers(-90, 90, (n, n))),
        rng.integers(-30, 31, (n, max(n - 1, 1))).astype(float),
        rng.integers(-9, 10, (n, n)) * 5e-324,
        rng.integers(-9, 10, (n, n)) * 2.0**1000,
    ]
    a = kinds[int(rng.integers(len(kinds)))]
    if a.shape[0] != a.shape[1]:
        a = a @ a.T
    if rng.random() < 0.3:
        a[-1] = a[0]
    if rng.random() < 0.1:
        a[:, int(rng.integers(n))] = 0.0
    return a


@pytest.mark.parametrize("seed", range(20))
def test_determinants_are_those_of_fractions(seed):
    rng = np.random.default_rng([5, seed])
    for _ in range(20):
        a = hostile(rng)
        minors, determinant = eliminated(a)
        matrix = IntegerMatrix.of(a)
        assert matrix.determinant() == (determinant, 0)

        # Hadamard's bound, of all leading minors
        scale = Fraction(2) ** int(matrix.rows.sum() + matrix.columns.sum())
        assert abs(determinant * scale) < 2**matrix.bits
        a = a + a.T
        minors, _ = eliminated(a)
        is_definite = all(minor is not None and minor > 0 for minor in minors)
        assert IntegerMatrix.of(a).is_positive_definite() == is_definite


@pytest.mark.parametrize("axis", [0, 1])
def test_hadamards_bound_counts_no_vector_of_zeros(axis):
    # The leading minor of 9 x 9 entries would not fit a bound that is zero
    a = np.diag(np.full(10, 3.0))
    a[-1, -1] = 0.0
    if axis:
        a[-1, 0] = 1.0
    assert IntegerMatrix.of(a).bits >= 9
    assert IntegerMatrix.of(a).is_positive_definite() is False


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16])
def test_hadamards_bound_is_reached(n):
    a = np.ones((1, 1))
    while len(a) < n:
        a = np.block([[a, a], [a, -a]])
    determinant, _ = IntegerMatrix.of(a).determinant()
    assert abs(determinant) == Fraction(n) ** (n // 2) if n > 1 else 1
    assert abs(determinant) < 2 ** IntegerMatrix.of(a).bits <= 4 * abs(determinant)


@pytest.mark.parametrize("count", [1, 3, 8, 16])
def test_primes_that_divide_a_minor_are_set_aside(count):
    # The first pivot vanishes modulo some of the first primes: these know no other minor
    primes = primes_from(0, 16).tolist()
    first = float(primes[0] * primes[1]) if count > 1 else float(primes[0])
    a = np.diag([first, 2.0, 5.0]) + np.ones((3, 3)) - np.diag([1.0, 0.0, 0.0])
    a[1:, 1:] *= 2.0 ** (10 * count)
    assert IntegerMatrix.of(a).is_positive_definite() is True
    a[2, 2] = a[1, 1]
    a[1, 2] = a[2, 1] = a[1, 1]
    assert IntegerMatrix.of(a).is_positive_definite() is False
    a[0, 0] = -first
    assert IntegerMatrix.of(a).is_positive_definite() is False


def test_primes_that_divide_the_determinant_are_set_aside_for_solutions():
    primes = primes_from(0, 2).tolist()
    a = np.array([[primes[0], 1.0], [0.0, primes[1]]])
    b = np.array([[1.0], [3.0]])
    x = exact_solution(a, b)
    assert exact_matmul(fractions(a), x) == fractions(b)


def test_all_primes_dividing_is_proven_zero_and_some_is_not():
    primes = [float(p) for p in primes_from(0, 8)]
    a = np.diag(primes)
    product = 1
    for p in primes:
        product *= int(p)
    assert IntegerMatrix.of(a).determinant() == (product, 0)


def test_fractions_are_rounded_as_python_divides_integers():
    rng = np.random.default_rng(0)
    for _ in range(2000):
        above = int(rng.integers(1, 2**62)) << int(rng.integers(0, 100))
        below = int(rng.integers(1, 2**62)) << int(rng.integers(0, 1100))
        assert nearest(Fraction(above, below), np.dtype(float)) == above / below
        assert nearest(Fraction(-above, below), np.dtype(float)) == -above / below


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ties_go_to_even_and_their_neighbours_to_their_own_side(dtype):
    info = np.finfo(dtype)
    least = Fraction(2) ** (int(info.minexp) - int(info.nmant))
    for number in (dtype(1), np.nextafter(dtype(1), dtype(2)), dtype(0.1), dtype(0)):
        above = np.nextafter(number, dtype(np.inf))
        tie = (Fraction(float(number)) + Fraction(float(above))) / 2
        is_even = not int(number.view(f"i{number.itemsize}")) & 1
        assert nearest(tie, np.dtype(dtype)) == float(number if is_even else above)
        assert nearest(tie - least / 10**9, np.dtype(dtype)) == float(number)
        assert nearest(tie + least / 10**9, np.dtype(dtype)) == float(above)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_overflow_begins_where_ieee_arithmetic_has_it(dtype):
    info = np.finfo(dtype)
    largest = Fraction(float(info.max))
    half_ulp = Fraction(2) ** (int(info.maxexp) - int(info.nmant) - 2)
    assert nearest(largest, np.dtype(dtype)) == float(info.max)
    below = largest + half_ulp - Fraction(1, 10**9)
    assert nearest(below, np.dtype(dtype)) == float(info.max)
    assert nearest(largest + half_ulp, np.dtype(dtype)) == np.inf
    assert nearest(-largest - half_ulp, np.dtype(dtype)) == -np.inf
    assert nearest(largest**9, np.dtype(dtype)) == np.inf
