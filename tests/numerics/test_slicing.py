"""Slices: bounded signed integers on falling grids that sum back exactly."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.numerics.bits import largest_exponent, lowest_bit
from hifigemm.numerics.slicing import slice_vectors, slices_needed, unit_exponent

FINITE = st.floats(allow_nan=False, allow_infinity=False)
ROWS = st.lists(FINITE, min_size=1, max_size=4) | st.lists(
    st.sampled_from([0.0, 5e-324, -5e-324, 2.0**-1022, 1.0, 1.5, np.finfo(float).max, -np.finfo(float).max]),
    min_size=1,
    max_size=4,
)


def slices_of(row, beta, count):
    x = np.array([row])
    exponent = largest_exponent(x, 1)
    unit = unit_exponent(exponent, beta)
    needed = int(slices_needed(unit, lowest_bit(x, 1), beta)[0, 0])
    parts = list(itertools.islice(slice_vectors(x.copy(), unit, beta), count if count is not None else needed))
    return parts, int(unit[0, 0]), needed


def value(parts, unit, beta, i):
    return sum((Fraction(float(w[0, i])) * Fraction(2) ** (unit - beta * p) for p, w in enumerate(parts)), Fraction(0))


@given(ROWS, st.integers(1, 27))
def test_slices_sum_back_exactly(row, beta):
    parts, unit, _ = slices_of(row, beta, None)
    for i, x in enumerate(row):
        assert value(parts, unit, beta, i) == Fraction(x)


@given(ROWS, st.integers(1, 27))
def test_digits_are_bounded_integers(row, beta):
    parts, _, _ = slices_of(row, beta, None)
    for w in parts:
        assert (w == np.rint(w)).all()
        assert np.abs(w).max() <= 2.0 ** (beta - 1)


@given(ROWS, st.integers(1, 27), st.integers(1, 6))
def test_remainders_are_at_most_half_a_unit_of_the_last_slice(row, beta, count):
    parts, unit, _ = slices_of(row, beta, count)
    for i, x in enumerate(row):
        rest = abs(Fraction(x) - value(parts, unit, beta, i))
        assert rest <= Fraction(2) ** (unit - beta * (count - 1) - 1)


@given(ROWS, st.integers(1, 27))
def test_one_slice_fewer_than_needed_does_not_reach_the_lowest_bit(row, beta):
    _, unit, needed = slices_of(row, beta, None)
    if not any(row):
        assert needed == 0
        return
    lowest = int(lowest_bit(np.array([row]), 1)[0, 0])
    assert unit - beta * (needed - 1) <= lowest
    assert needed == 1 or unit - beta * (needed - 2) > lowest


@pytest.mark.parametrize("beta", [1, 2, 7, 11, 24, 27])
@pytest.mark.parametrize("x", [np.finfo(float).max, -np.finfo(float).max, 1 - 2.0**-53, 2.0**1023, 5e-324])
def test_values_that_round_up_to_the_next_power_of_two(beta, x):
    parts, unit, _ = slices_of([x, -x / 2], beta, None)
    assert value(parts, unit, beta, 0) == Fraction(x)
    assert all(np.isfinite(w).all() for w in parts)


@pytest.mark.parametrize("beta", [1, 7, 27])
def test_rows_over_the_whole_range_sum_back(make_pair, beta):
    a, _ = make_pair("full_range", 3, 7, 2)
    for row in a:
        parts, unit, _ = slices_of(row, beta, None)
        for i, x in enumerate(row):
            assert value(parts, unit, beta, i) == Fraction(float(x))
