"""Solutions in integers, and fractions rounded once."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hifigemm.linalg.exact import exact_solution, nearest
from tests.linalg.worst_arithmetic import exact_matmul, fractions


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
