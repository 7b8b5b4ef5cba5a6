"""The judge of solutions sees what it is there to see."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from experiments.linalg_enclosures import Counts, is_beyond_range, is_nearest, wrong
from experiments.systems import FAMILIES, exact_parts, exact_solution, misses

pytest.importorskip("flint")


def test_solutions_are_exact():
    a = np.array([[3.0, 1.0], [0.0, 7.0]])
    assert exact_solution(a, np.array([[1.0], [1.0]])) == [
        [Fraction(2, 7)],
        [Fraction(1, 7)],
    ]
    assert exact_solution(np.ones((2, 2)), np.ones((2, 1))) is None


def test_complex_solutions_have_two_parts():
    parts = exact_parts(np.array([[1.0 + 1.0j]]), np.array([[2.0 + 0.0j]]))
    assert parts == [[[Fraction(1)]], [[Fraction(-1)]]]


def test_radii_that_are_too_small_are_misses():
    parts = [[[Fraction(1, 3)], [Fraction(1, 4)]]]
    x = np.array([[1 / 3], [0.25]])
    error = np.nextafter(float(abs(Fraction(1 / 3) - Fraction(1, 3))), 1.0)
    assert misses(x, np.array([[error], [0.0]]), parts) == []
    assert misses(x, np.array([[0.9 * error], [0.0]]), parts) == [(0, 0)]
    assert misses(x + 1e-9, np.array([[1e-10], [1e-8]]), parts) == [(0, 0)]
    turned = x + 1j * x
    both = [parts[0], parts[0]]
    assert misses(turned, np.array([[1.5 * error], [0.0]]), both) == []
    assert misses(turned, np.array([[1.4 * error], [0.0]]), both) == [(0, 0)]


def test_nearest_numbers_and_ties():
    tie = 1 + Fraction(1, 2**53)
    above = np.nextafter(1.0, 2.0)
    assert is_nearest(1.0, tie, np.float64)
    assert not is_nearest(above, tie, np.float64)
    assert is_nearest(above, tie + Fraction(1, 2**200), np.float64)
    assert wrong(np.array([[above]]), [[[tie]]]) == 1


def test_solutions_beyond_the_range_are_known_as_such():
    assert is_beyond_range([[[Fraction(2) ** 1024]]], np.dtype(float))
    assert not is_beyond_range([[[Fraction(2) ** 1023]]], np.dtype(float))


@pytest.mark.parametrize("family", FAMILIES)
def test_families_draw_finite_systems(family):
    for seed in range(5):
        a, b = FAMILIES[family](np.random.default_rng(seed))
        assert np.isfinite(a).all()
        assert np.isfinite(b).all()
        assert a.shape[-1] == a.shape[-2] == b.shape[-2]


def test_singular_systems_are_counted():
    counts = Counts("exactly singular")
    counts.add(np.ones((2, 2)), np.ones((2, 1)))
    counts.add(np.eye(2), np.ones((2, 1)))
    row = counts.row()
    assert (row["systems"], row["singular"], row["refused"]) == (2, 1, 1)
    assert (row["missed"], row["proven singular"]) == (0, 0)
