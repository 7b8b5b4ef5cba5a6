"""Ties, zeros and subnormal solutions are settled exactly or named."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hifigemm import linalg
from hifigemm.linalg import exact
from hifigemm.linalg.correct import MOST_ROWS, _rounded
from hifigemm.linalg.refinement import Enclosure
from hifigemm.linalg.scaling import ScaledSystem


def with_a_tie(n, numerator=1):
    """x = ((s + t) / 2, (s - t) / 2, 1/3, ...), s = 1 + ..., a tie in its first
    entries.
    """
    a = np.diag(np.where(np.arange(n) > 1, 3.0, 1.0))
    a[:2, :2] = [[1.0, 1.0], [1.0, -1.0]]
    b = np.ones(n)
    b[:2] = [2.0, numerator * 2.0**-52]
    return a, b


@pytest.mark.parametrize("numerator", [1, 3, 5, 7])
def test_ties_go_to_even(numerator):
    a, b = with_a_tie(5, numerator)
    x = linalg.solve(a, b, accuracy="correct").x
    exact = 1 + Fraction(numerator, 2**53)
    assert x[0] == int(exact * 2**53) / 2**53  # Python divides with one rounding
    assert x[2] == 1 / 3


def test_ties_of_large_systems_are_named():
    a, b = with_a_tie(MOST_ROWS + 1)
    with pytest.raises(linalg.VerificationError, match=r"1 of 513 entries.*\(0, 0\)"):
        linalg.solve(a, b, accuracy="correct")
    assert linalg.solve(a, b).radius[0] > 0.0


def test_ties_of_integers_that_take_too_long_are_named_with_their_cost(monkeypatch):
    monkeypatch.setattr(exact, "MOST_SECONDS", 0.0)
    a, b = with_a_tie(20)
    with pytest.raises(linalg.VerificationError, match=r"\d+ primes of 24 bits"):
        linalg.solve(a, b, accuracy="correct")


@pytest.mark.parametrize("n", [65, 150])
def test_ties_of_more_rows_are_settled_in_integers(n):
    a, b = with_a_tie(n)
    assert linalg.solve(a, b, accuracy="correct").x[0] == 1.0


def test_a_residual_of_zero_settles_ties_of_large_systems():
    n = MOST_ROWS + 10
    a, b = with_a_tie(n)
    a[np.arange(2, n), np.arange(2, n)] = 4.0
    x = linalg.solve(a, b, accuracy="correct").x
    assert x[0] == 1.0
    assert (x[2:] == 0.25).all()


def test_zeros_beside_other_entries_are_found():
    # x = (0, 1/3): no interval decides that the first entry is zero
    a = np.array([[0.1, 3.0], [0.7, 6.0]])
    b = np.array([1.0, 2.0])
    x = linalg.solve(a, b, accuracy="correct").x
    assert x[0] == 0.0
    assert x[1] == 1 / 3


@pytest.mark.parametrize("scale", [1.0, 2.0**-10, 2.0**10])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zeros_of_the_inverse_of_a_large_triangle_are_known(monkeypatch, scale, dtype):
    monkeypatch.setattr(exact, "MOST_SECONDS", 0.0)  # nothing is left for integers
    rng = np.random.default_rng(1)
    a = np.triu(rng.standard_normal((90, 90)), 1) + 9.0 * np.eye(90)
    a = (scale * a).astype(dtype)
    found = linalg.solve(a, np.eye(90, dtype=dtype), accuracy="correct")
    assert not found.x[a == 0.0].any()
    assert (found.x[a != 0.0] != 0.0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_float32_is_never_rounded_twice(dtype):
    # x = 1 + 2^-24 + 2^-60, which float64 rounds to a tie of float32 numbers
    a = np.array([[1.0, 0.0, -(2.0**-4)], [0.0, 1.0, -(2.0**-40)], [0.0, 0.0, 1.0]])
    a[0, 1] = -1.0
    b = np.array([1.0, 0.0, 2.0**-20])
    exact = 1 + Fraction(1, 2**24) + Fraction(1, 2**60)
    x = linalg.solve(a.astype(dtype), b.astype(dtype), accuracy="correct").x
    assert float(np.float32(float(exact))) == 1.0
    assert x[0] == np.float32(1.0) + np.float32(2.0**-23)


@pytest.mark.parametrize("power", [-1074, -1073, -1070, -1023, -1022])
def test_subnormal_solutions_are_rounded_once(power):
    a = np.array([[3.0, 0.0], [0.0, 7.0]])
    b = np.ldexp(np.array([5.0, 11.0]), power)
    x = linalg.solve(a, b, accuracy="correct").x
    for value, side, divisor in zip(x, b, (3, 7)):
        exact = Fraction(side) / divisor
        assert value == exact.numerator / exact.denominator


def test_components_of_complex_solutions_are_settled_one_by_one():
    # (1 + 2^-53) + i / 3: a tie in one component
    a, b = with_a_tie(3)
    x = linalg.solve(a * (1.0 + 0.0j), b * (1.0 + 1.0j), accuracy="correct").x
    assert x[0] == 1.0 + 1.0j
    assert x[2] == 1 / 3 + 1j / 3


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_an_interval_with_a_tie_inside_is_open_on_either_side(side):
    # 1 + 2^-53 is a tie; the middle of the interval lies on one side of it
    low = np.array([[2.0**-53 + side * 2.0**-100]])
    system = ScaledSystem(np.eye(1), np.ones((1, 1)), np.zeros((1, 1), int))
    for radius, is_open in ((2.0**-95, True), (2.0**-110, False)):
        enclosed = Enclosure(
            np.ones((1, 1)), low, np.full((1, 1), radius), np.zeros((1, 1), bool), 0
        )
        value, decided = _rounded(enclosed, system, np.dtype(float))
        assert decided[0, 0] == is_open
        if not is_open:
            assert value[0, 0] == (1.0 if side < 0 else np.nextafter(1.0, 2.0))
