"""Words sum back, stay in their format, and keep their bounds or say by how much they
do not.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hifigemm.base.formats import BF16, FP16, FP32, TF32
from hifigemm.numerics.rounding_formats import is_representable, largest_finite
from hifigemm.numerics.words import Splitting

LEAST = Fraction(2) ** -1074
"""The smallest subnormal number, to which a fact is rounded up."""
SPLITTINGS = [
    Splitting(fmt, count, rounding, shift)
    for fmt, count in ((FP16, 1), (FP16, 2), (BF16, 2), (BF16, 3), (TF32, 2), (FP32, 2))
    for rounding in ("nearest", "zero", "nearest-away")
    for shift in ((0, 11) if fmt is FP16 else (0,))
]
splittings = st.sampled_from(SPLITTINGS)


def exact_words(splitting, words):
    """Values of the words as fractions, one list a word."""
    return [
        [Fraction(float(x)) / 2 ** (splitting.low_shift * p) for x in w.ravel()]
        for p, w in enumerate(words)
    ]


def describe(splitting, x, words, rest, axis):
    lost = (np.abs(x) < 2.0**-900).any(axis=axis, keepdims=True)
    return splitting.describe(x, words, rest, axis, lost)


@settings(max_examples=300, deadline=None)
@given(splittings, st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=6))
def test_words_and_remainder_sum_back(splitting, values):
    x = np.array(values)
    words, rest = splitting.split(x)
    assert len(words) == splitting.num_words
    assert all(is_representable(w, splitting.fmt) for w in words)
    assert all(w.dtype == np.float32 for w in words)
    parts = exact_words(splitting, words)
    for i, value in enumerate(values):
        total = sum(p[i] for p in parts) + Fraction(float(rest[i]))
        if abs(value) <= largest_finite(splitting.fmt):
            assert total == Fraction(value)
        else:
            assert abs(total - Fraction(value)) <= Fraction(abs(value)) * 2**-52


@settings(max_examples=300, deadline=None)
@given(
    splittings,
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=6),
    st.booleans(),
)
def test_facts_majorise_words_and_remainder(splitting, values, by_column):
    x = np.array([values]) if not by_column else np.array([[v] for v in values])
    axis = 0 if by_column else 1
    words, rest = splitting.split(x)
    facts = describe(splitting, x, words, rest, axis)
    exact = exact_words(splitting, words)
    total = sum(abs(Fraction(v)) for v in values)
    assert float(facts.total.item()) >= total
    excess = facts.excess.ravel()
    parts = [*exact, [Fraction(float(r)) for r in rest.ravel()]]
    for part, bound, over in zip(
        parts, splitting.relative_bounds(), excess, strict=True
    ):
        for p, v in zip(part, values, strict=True):
            assert abs(p) <= Fraction(bound) * abs(Fraction(v)) + Fraction(float(over))
    assert facts.inexact.item() or all(r == 0 for r in rest.ravel())
    for w, smallest in zip(words, facts.subnormal.ravel(), strict=True):
        assert (
            smallest > 0
            or not ((np.abs(w) > 0) & (np.abs(w) < 2.0**splitting.fmt.emin)).any()
        )
    nonzero = [abs(float(v)) for w in words for v in w.ravel() if v]
    least = min((math.frexp(v)[1] - 1 for v in nonzero), default=splitting.fmt.emax)
    assert facts.lowest.item() <= max(least, splitting.fmt.emin)


@pytest.mark.parametrize("splitting", SPLITTINGS, ids=str)
def test_nothing_exceeds_its_bound_without_over_and_underflow(splitting):
    rng = np.random.default_rng(1)
    x = (
        rng.choice([-1, 1], (4, 500))
        * rng.uniform(1, 2, (4, 500))
        * 2.0 ** rng.integers(9, 14, (4, 500))
    )
    # ties and near ties
    x[:, :40] = np.ldexp(1 + 2.0 ** -rng.integers(1, 53, (4, 40)), 9)
    words, rest = splitting.split(x)
    facts = describe(splitting, x, words, rest, 1)
    low = (
        splitting.fmt is FP16 and splitting.num_words == 2 and splitting.low_shift == 0
    )
    assert (facts.excess[:, : splitting.num_words] == 0).all()
    # tails of 2**9 u**2 lie below the subnormal numbers of FP16
    assert low or (facts.excess == 0).all()
    assert facts.lowest.min() >= splitting.fmt.emin


@pytest.mark.parametrize(("fmt", "count"), [(BF16, 3), (FP32, 1)])
def test_enough_words_hold_float32_without_remainder(fmt, count):
    x = (
        np.random.default_rng(2)
        .standard_normal(2000)
        .astype(np.float32)
        .astype(np.float64)
    )
    assert not Splitting(fmt, count).split(x)[1].any()


def test_rounding_to_nearest_gains_a_bit_over_rounding_to_zero():
    x = (
        np.random.default_rng(3)
        .uniform(1, 2, 20000)
        .astype(np.float32)
        .astype(np.float64)
    )
    unit = 2.0**-23
    rms = [
        float(np.sqrt(np.mean((Splitting(TF32, 2, r).split(x)[1] / unit) ** 2)))
        for r in ("nearest", "zero")
    ]
    np.testing.assert_allclose(rms, [0.5, 1.369], rtol=0.03)


@pytest.mark.parametrize(("shift", "expected"), [(0, 0.125), (11, 0.0)])
def test_shift_keeps_low_words_of_fp16_normal(shift, expected):
    """P(low word zero or subnormal) = min(1, 2**-(e + 3)) for the exponent e = 0 of the
    number [OY22].
    """
    x = (
        np.random.default_rng(4)
        .uniform(1, 2, 40000)
        .astype(np.float32)
        .astype(np.float64)
    )
    low = np.abs(Splitting(FP16, 2, "nearest", shift).split(x)[0][1])
    inexact = np.mean(low < 2.0**-14)
    # numbers of eleven bits have no low word at all
    exact_zero = 2.0**-12 if shift else 0.0
    assert abs(inexact - expected) <= 0.01 + exact_zero


@pytest.mark.parametrize("splitting", SPLITTINGS, ids=str)
def test_words_that_saturate_below_the_next_power_of_two_keep_their_bounds(splitting):
    fmt = splitting.fmt
    tails = 2.0 ** -np.arange(fmt.t - 1, 53)
    x = np.concatenate([2.0 - tails, 2.0 - 3.0 * tails]) * 2.0**fmt.emax
    words, rest = splitting.split(x)
    assert (words[0] == largest_finite(fmt)).any()
    *bounds, last = splitting.relative_bounds()
    for p, (word, bound) in enumerate(zip(words, bounds, strict=True)):
        assert (np.abs(word) * 2.0 ** (-splitting.low_shift * p) <= bound * x).all()
    assert (np.abs(rest) <= last * x).all()


def test_words_saturate():
    words, rest = Splitting(FP16, 2).split(np.array([1e6, -1e9]))
    assert np.isfinite(words).all()
    assert words[0].tolist() == [65504.0, -65504.0]
    assert (words[0] + words[1] + rest == [1e6, -1e9]).all()


@settings(max_examples=200, deadline=None)
@given(
    splittings,
    st.lists(
        st.floats(-1.0, 1.0) | st.floats(2.0**-30, 2.0**-8) | st.floats(1e4, 1e6),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
def test_facts_are_little_more_than_what_they_bound(splitting, values, by_column):
    x = np.array([[v] for v in values]) if by_column else np.array([values])
    axis = 0 if by_column else 1
    words, rest = splitting.split(x)
    facts = splitting.describe(x, words, rest, axis, np.zeros((1, 1), bool))
    u, fmt, shift = Fraction(splitting.unit), splitting.fmt, splitting.low_shift
    grow = 1 if splitting.rounding == "zero" else 1 + u
    bounds = [u**p * grow for p in range(splitting.num_words)] + [
        u**splitting.num_words
    ]
    parts = [
        *exact_words(splitting, words),
        [Fraction(float(r)) for r in rest.ravel()],
    ]
    for part, bound, over in zip(
        parts, bounds, facts.excess.ravel().tolist(), strict=True
    ):
        beyond = max(
            max(
                abs(p) - bound * abs(Fraction(v))
                for p, v in zip(part, values, strict=True)
            ),
            Fraction(0),
        )
        size = max(abs(p) for p in part)
        assert (
            beyond - size * Fraction(2) ** -44
            <= over
            <= beyond * (1 + Fraction(2) ** -49) + size * Fraction(2) ** -45 + LEAST
        )
        if all(
            abs(p) <= bound * abs(Fraction(v))
            for p, v in zip(part, values, strict=True)
        ):
            assert over == 0
    total = sum(abs(Fraction(v)) for v in values)
    assert (
        total
        <= Fraction(facts.total.item())
        <= total * (1 + (len(values) + 3) * Fraction(2) ** -52)
    )
    for p, (word, smallest) in enumerate(
        zip(words, facts.subnormal.ravel().tolist(), strict=True)
    ):
        is_subnormal = ((word != 0) & (np.abs(word) < 2.0**fmt.emin)).any()
        assert smallest == (2.0 ** (fmt.emin - shift * p) if is_subnormal else 0.0)
    nonzero = [abs(float(v)) for w in words for v in w.ravel() if v]
    assert facts.lowest.item() == max(
        min((math.frexp(v)[1] - 1 for v in nonzero), default=fmt.emax), fmt.emin
    )
    assert facts.inexact.item() == any(r != 0 for r in rest.ravel())


def test_what_was_lost_on_the_way_makes_a_remainder():
    x = np.array([[1.0], [0.0]])
    splitting = Splitting(FP16, 2)
    facts = splitting.describe(x, *splitting.split(x), 1, np.array([[False], [True]]))
    assert facts.inexact.tolist() == [[False], [True]]
    assert (facts.excess == [[0.0] * 3, [2.0**-1072] * 3]).all()


@pytest.mark.parametrize("splitting", SPLITTINGS, ids=str)
def test_a_priori_bounds_are_those_of_the_format_and_little_more(splitting):
    u = Fraction(splitting.fmt.u) * (2 if splitting.rounding == "zero" else 1)
    assert Fraction(splitting.unit) == u
    exact = [
        u**p * (1 if splitting.rounding == "zero" else 1 + u)
        for p in range(splitting.num_words)
    ]
    for bound, found in zip(
        [*exact, u**splitting.num_words], splitting.relative_bounds(), strict=True
    ):
        assert (
            bound * (1 + Fraction(3, 4) / 2**45)
            <= found
            <= bound * (1 + Fraction(3, 2) / 2**45)
        )


def test_sums_of_magnitudes_that_overflow_are_infinite():
    splitting, x = Splitting(FP32, 1), np.full((1, 3), 1.5e308)
    assert splitting.describe(
        x, *splitting.split(x), 1, np.zeros((1, 1), bool)
    ).total.tolist() == [[np.inf]]


def test_large_entries_are_cut_before_they_are_shifted():
    """The second word of the largest float saturates as the first one does."""
    largest = float(np.finfo(float).max)
    words, rest = Splitting(FP16, 2, "nearest", 11).split(np.array([largest, -largest]))
    assert words[1].tolist() == [65504.0, -65504.0]
    np.testing.assert_array_equal(rest, [largest, -largest])


@pytest.mark.parametrize(
    "splitting", [Splitting(FP16, 2, "nearest", 11), Splitting(BF16, 3)], ids=str
)
def test_the_smallest_normal_number_is_not_subnormal(splitting):
    for p in range(splitting.num_words):
        least = 2.0 ** (splitting.fmt.emin - splitting.low_shift * p)
        for low, expected in ((least, 0.0), (least / 2, least)):
            x = np.array([[low]]) if p == 0 else np.array([[1.0]])
            words = [
                np.array(
                    [[low * 2.0 ** (splitting.low_shift * p)]] if q == p else [[0.0]]
                )
                for q in range(splitting.num_words)
            ]
            facts = splitting.describe(
                x, words, np.zeros((1, 1)), 1, np.zeros((1, 1), bool)
            )
            assert facts.subnormal[0, p] == expected
            assert facts.lowest.item() == splitting.fmt.emin


@pytest.mark.parametrize("terms", [1, 2, 7, 8, 1000])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_sum_of_magnitudes_covers_a_rounding_a_term(terms, axis):
    """Terms of half a unit in the last place vanish one after the other; sums of ones
    are exact.
    """
    splitting = Splitting(FP16, 1)
    for x, most in (
        (np.r_[1.0, np.full(terms - 1, 2.0**-53)], 2 * terms + 4),
        (np.ones(terms), terms + 4),
    ):
        y = x.reshape((-1, 1) if axis == 0 else (1, -1))
        total = Fraction(
            splitting.describe(
                y, *splitting.split(y), axis, np.zeros((1, 1), bool)
            ).total.item()
        )
        exact = sum(map(Fraction, x.tolist()))
        assert exact <= total <= exact * (1 + most * Fraction(2) ** -53)


def test_each_further_word_is_shifted_again():
    splitting = Splitting(FP16, 3, "nearest", 11)
    x = np.array([1 + 2.0**-12 + 3 * 2.0**-26, -3.0])
    words, rest = splitting.split(x)
    assert [w.tolist() for w in words] == [[1.0, -3.0], [0.5, 0.0], [3 * 2.0**-4, 0.0]]
    assert rest.tolist() == [0.0, 0.0]
