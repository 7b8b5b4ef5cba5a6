"""Slices: bounded signed integers on falling grids that sum back exactly."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.numerics.bits import NO_BIT, largest_exponent, lowest_bit
from hifigemm.numerics.slicing import (
    digit_limit,
    num_pairs,
    slice_vectors,
    slices_needed,
    unit_exponent,
    words_of_diagonals,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)
ROWS = st.lists(FINITE, min_size=1, max_size=4) | st.lists(
    st.sampled_from(
        [
            0.0,
            5e-324,
            -5e-324,
            2.0**-1022,
            1.0,
            1.5,
            np.finfo(float).max,
            -np.finfo(float).max,
        ]
    ),
    min_size=1,
    max_size=4,
)


def slices_of(row, beta, count, twos_complement=False):
    x = np.array([row])
    exponent = largest_exponent(x, 1, digit_limit(beta) if twos_complement else 1.0)
    unit = unit_exponent(exponent, beta)
    needed = int(slices_needed(unit, lowest_bit(x, 1), beta)[0, 0])
    slices = slice_vectors(x.copy(), unit, beta, twos_complement)
    parts = list(itertools.islice(slices, count if count is not None else needed))
    return parts, int(unit[0, 0]), needed


def value(parts, unit, beta, i):
    return sum(
        (
            Fraction(float(w[0, i])) * Fraction(2) ** (unit - beta * p)
            for p, w in enumerate(parts)
        ),
        Fraction(0),
    )


@pytest.mark.parametrize("beta", [1, 2, 8, 27])
def test_slices_end_with_the_first_grid_that_divides_the_lowest_bit(beta):
    assert unit_exponent(np.array([-3, 5]), beta).tolist() == [
        -3 - beta + 1,
        5 - beta + 1,
    ]
    unit = 4
    lowest = np.array([NO_BIT, *range(unit + beta - 1, unit - 5 * beta, -1)])
    expected = [0] + [
        next(n for n in range(1, 99) if unit - beta * (n - 1) <= x)
        for x in lowest[1:].tolist()
    ]
    assert slices_needed(np.full(len(lowest), unit), lowest, beta).tolist() == expected


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
@pytest.mark.parametrize(
    "x", [np.finfo(float).max, -np.finfo(float).max, 1 - 2.0**-53, 2.0**1023, 5e-324]
)
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


LONG_DIGITS = [sum(127 * 2.0 ** (-8 * p) for p in range(n)) for n in range(1, 7)]
"""127 127 127 ...: a remainder just below or at the limit depends on digits far
behind.
"""
TWOS = ROWS | st.lists(
    st.sampled_from(
        [
            *LONG_DIGITS,
            *(x + 2.0**-44 for x in LONG_DIGITS),
            *(x - 2.0**-44 for x in LONG_DIGITS),
        ]
    )
    | st.sampled_from(
        [-128.0, 128.0, 254 / 255, -254 / 255, 127.5, -127.5, 0.5, 127 / 256, 2.0**1023]
    ),
    min_size=1,
    max_size=4,
)


@given(TWOS, st.integers(2, 12))
def test_digits_in_twos_complement_sum_back_and_stay_below_h(row, beta):
    parts, unit, _ = slices_of(row, beta, None, True)
    for i, x in enumerate(row):
        assert value(parts, unit, beta, i) == Fraction(x)
    h = 2 ** (beta - 1)
    for w in parts:
        assert (w == np.rint(w)).all()
        assert (w >= -h).all()
        assert (w < h).all()


@given(TWOS, st.integers(2, 12), st.integers(1, 6))
def test_remainders_of_digits_in_twos_complement(row, beta, count):
    parts, unit, _ = slices_of(row, beta, count, True)
    h, last = 2 ** (beta - 1), Fraction(2) ** (unit - beta * (count - 1))
    for i, x in enumerate(row):
        rest = Fraction(x) - value(parts, unit, beta, i)
        assert (
            Fraction(-h, 2 * h - 1) * last <= rest < Fraction(h - 1, 2 * h - 1) * last
        )


@pytest.mark.parametrize("beta", range(2, 13))
@pytest.mark.parametrize("sign", [1, -1])
def test_a_remainder_at_the_limit_takes_the_next_digit(beta, sign):
    """Half of `digit_limit` is the first float above (h - 1) / (2h - 1), which would
    leave a digit h.
    """
    h, limit = 2.0 ** (beta - 1), digit_limit(beta) / 2
    for x in (limit, float(np.nextafter(limit, 0)), 0.5, h - 2 + limit, -h + limit):
        values = np.array([[sign * x]])
        if np.abs(values).max() >= digit_limit(beta) * h:
            continue
        parts = list(
            itertools.islice(
                slice_vectors(values.copy(), np.zeros((1, 1), int), beta, True), 60
            )
        )
        assert all(-h <= w[0, 0] < h for w in parts)
        assert value(parts, 0, beta, 0) == Fraction(sign * x)


@pytest.mark.parametrize("twos_complement", [False, True])
@pytest.mark.parametrize("beta", [2, 7, 12])
def test_slices_of_a_row_do_not_depend_on_its_company(beta, twos_complement):
    """Rows next to the largest float are halved, the others are not."""
    largest = float(np.finfo(float).max)
    x = np.array(
        [
            [largest, -largest / 3],
            [2.0**1023, 1.0],
            [2.0**1020, 3.0],
            [1.0, 5e-324],
            [7 * 5e-324, 5e-324],
        ]
    )
    exponent = largest_exponent(x, 1, digit_limit(beta) if twos_complement else 1.0)
    unit = unit_exponent(exponent, beta)
    count = int(slices_needed(unit, lowest_bit(x, 1), beta).max())
    together = list(
        itertools.islice(slice_vectors(x.copy(), unit, beta, twos_complement), count)
    )
    for i in range(len(x)):
        row = slice_vectors(x[i : i + 1].copy(), unit[i : i + 1], beta, twos_complement)
        for w, alone in zip(together, row, strict=False):
            np.testing.assert_array_equal(w[i : i + 1], alone)
        parts = [w[i : i + 1] for w in together]
        for j, entry in enumerate(x[i].tolist()):
            assert value(parts, int(unit[i, 0]), beta, j) == Fraction(entry)


@pytest.mark.parametrize("bits", [24, 53])
@pytest.mark.parametrize("beta", range(2, 13))
def test_digit_limit_is_the_next_float(beta, bits):
    limit, exact = Fraction(digit_limit(beta, bits)), Fraction(2**beta - 2, 2**beta - 1)
    assert limit - Fraction(2) ** -bits < exact <= limit
    assert digit_limit(beta) == digit_limit(beta, 53)


@pytest.mark.parametrize("beta", [3, 7, 8])
@pytest.mark.parametrize("k", [1, 1000, 8192, 2**17, 2**50])
def test_words_of_diagonals_are_the_longest_that_hold_their_sums(k, beta):
    """|D_s| <= (s + 1) k h**2 in units of 2**(-beta s): a word stays below 2**62, both
    below 2**105.
    """

    def largest(first, length):
        last = first + length - 1
        return sum(
            (s + 1) * k * 4 ** (beta - 1) * 2 ** (beta * (last - s))
            for s in range(first, last + 1)
        )

    def longest(first, most):
        return max(n for n in range(most + 1) if largest(first, n) < 2**62)

    for count in range(1, 60):
        high = longest(0, count)
        low = longest(high, count - high) if high else 0
        if high + low < count or 62 + beta * low > 105:
            assert words_of_diagonals(k, count, beta) is None
        else:
            assert words_of_diagonals(k, count, beta) == (
                (high, low) if low else (high,)
            )


def test_words_of_diagonals_end_at_62_and_105_bits():
    assert words_of_diagonals(2**62 - 1, 1, 1) == (1,)
    assert words_of_diagonals(2**62, 1, 1) is None
    high = max(n for n in range(1, 62) if words_of_diagonals(2**10, n, 1) == (n,))
    assert words_of_diagonals(2**10, high + 43, 1) == (high, 43)  # 62 + 43 bits
    assert words_of_diagonals(2**10, high + 44, 1) is None
    # a word would hold 44
    assert (
        sum((s + 1) * 2**10 * 2 ** (high + 43 - s) for s in range(high, high + 44))
        < 2**62
    )


def test_digits_are_rounded_to_nearest_unless_twos_complement_is_wanted():
    x, unit = np.array([[0.45]]), np.zeros((1, 1), int)
    assert (
        next(slice_vectors(x, unit, 3)).item()
        == next(slice_vectors(x, unit, 3, False)).item()
        == 0.0
    )
    assert next(slice_vectors(x, unit, 3, True)).item() == 1.0


@pytest.mark.parametrize("twos_complement", [False, True])
@pytest.mark.parametrize("at_once", [2, 3, 300])
def test_slices_made_together_are_those_made_one_by_one(at_once, twos_complement):
    """Entries from 2**1023 to 2**-1074 of one row take 300 slices."""
    rng = np.random.default_rng(at_once)
    x = np.ldexp(rng.uniform(-1, 1, (3, 40)), rng.integers(-1074, 1023, (3, 40)))
    x[0, 0] = np.finfo(float).max
    exponent = largest_exponent(x, 1, digit_limit(7) if twos_complement else 1.0)
    unit = unit_exponent(exponent, 7)
    alone = slice_vectors(x, unit, 7, twos_complement)
    together = slice_vectors(x, unit, 7, twos_complement, at_once)
    for _ in range(301):
        np.testing.assert_array_equal(next(together), next(alone))


def test_pairs_of_slices_are_counted():
    for diagonals in range(1, 6):
        for left in range(6):
            for right in range(6):
                pairs = [
                    (p, q)
                    for p in range(max(left, 1))
                    for q in range(max(right, 1))
                    if p + q < diagonals
                ]
                assert num_pairs(diagonals, left, right) == len(pairs)
