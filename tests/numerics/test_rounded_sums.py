"""Sums in words that are rounded once, against exact rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hifigemm.base.formats import FP32, FP64
from hifigemm.numerics.rounded_sums import (
    Addend,
    by_all_bits,
    form_for,
    quick_sums,
    rounded_sums,
    sums_in_three_words,
)
from hifigemm.testing.reference import correctly_rounded
from tests.conftest import PAIRS, SINGLES
from tests.exact_values import exact_entries

FORMATS = {"float64": FP64, "float32": FP32}


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", [*PAIRS, *SINGLES])
def test_certain_values_are_correct(make_pair, assert_same_bits, name, dtype):
    a, b = make_pair(name, 5, 12, 7, dtype)
    expected = correctly_rounded(a, b)
    fmt = FORMATS[dtype]
    forms = ["two words", "one word" if fmt is FP32 else "biased"]
    with np.errstate(all="ignore"):
        for form in forms:
            values, certain = quick_sums(a[None], b[None], fmt, 0, None, form)
            x = values[0].astype(dtype)
            assert_same_bits(x[certain[0]], expected[certain[0]])
        values, _, certain = sums_in_three_words(
            a[None], b[None], fmt, 0, None, "array"
        )
    x = values[0].astype(dtype)
    assert_same_bits(x[certain[0]], expected[certain[0]])
    assert_same_bits(rounded_sums(a[None], b[None], fmt)[0][0], expected)


@pytest.mark.parametrize("name", ["phi_0.1", "phi_1", "phi_20", "integers", "sparse"])
def test_three_words_leave_nothing_open_of_common_data(make_pair, name):
    a, b = make_pair(name, 8, 40, 9)
    for result in ("array", "pair", "enclosure"):
        _, _, certain = sums_in_three_words(a[None], b[None], FP64, 0, None, result)
        assert certain.all()


def _blocks(rng):
    """Two blocks on the diagonal, entries of which are so small that products of two of
    them underflow.
    """
    x = rng.standard_normal((12, 12))
    x[:6, 6:] = x[6:, :6] = 0.0
    np.fill_diagonal(x, 1e-160)
    return x


def _gaussians(rng):
    """Gaussians on a line: entries down to the smallest float64, and zeros behind them."""
    distance = np.subtract.outer(np.arange(40.0), np.arange(40.0)) * 2.0
    return np.exp(-0.4 * distance**2) * rng.choice([-1.0, 1.0], (40, 40))


@pytest.mark.parametrize(("make", "most_open"), [(_blocks, 0), (_gaussians, 0.03)])
def test_three_words_settle_sums_whose_terms_underflow(make, most_open):
    x = make(np.random.default_rng(0))[None]
    with np.errstate(all="ignore"):
        _, _, certain = sums_in_three_words(x, x, FP64, 0, None, "array")
    assert np.count_nonzero(~certain) <= most_open * certain.size
    values, _ = rounded_sums(x, x, FP64)
    np.testing.assert_array_equal(values[0], correctly_rounded(x[0], x[0]))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("result", ["array", "pair", "enclosure"])
def test_certain_sums_of_all_exponents_are_right(seed, result):
    """Powers of two make some entries of these subnormal."""
    rng = np.random.default_rng(seed)
    a = np.ldexp(rng.standard_normal((1, 9, 4)), rng.integers(-1074, 1000, (1, 9, 4)))
    b = np.ldexp(rng.standard_normal((1, 4, 9)), rng.integers(-1074, 1000, (1, 4, 9)))
    a[..., 2:], b[:, 2:] = a[..., :2], -b[:, :2] * (1 + 2.0**-30)
    with np.errstate(all="ignore"):
        *found, certain = sums_in_three_words(a, b, FP64, 0, None, result)
    assert certain.mean() > 0.5
    for entry in zip(*np.nonzero(certain), strict=True):
        with np.errstate(all="ignore"):
            exact = by_all_bits(a, b, FP64, 0, None, result, entry)
        assert found[0][entry] == exact[0]
        is_single = result == "array" or (result == "pair" and np.isinf(exact[0]))
        assert is_single or found[1][entry] == exact[1]


@pytest.mark.parametrize("name", ["phi_1", "nearly_cancelling", "underflowing"])
def test_pairs_and_enclosures_hold_the_exact_sum(make_pair, name):
    a, b = make_pair(name, 4, 9, 5)
    high, low = rounded_sums(a[None], b[None], FP64, result="pair")
    lower, upper = rounded_sums(a[None], b[None], FP64, result="enclosure")
    entries = zip(
        exact_entries(a, b),
        *(x.ravel().tolist() for x in (high, low, lower, upper)),
        strict=True,
    )
    for exact, value, rest, least, most in entries:
        error = abs(exact - Fraction(value))
        assert Fraction(least) <= exact <= Fraction(most)
        assert (least == most) == (exact == Fraction(least))
        assert most in (least, np.nextafter(least, np.inf))
        for beside in (np.nextafter(rest, -np.inf), np.nextafter(rest, np.inf)):
            left = abs(exact - Fraction(value) - Fraction(rest))
            assert left <= abs(exact - Fraction(value) - Fraction(float(beside)))
        assert error <= abs(exact - Fraction(float(np.nextafter(value, np.inf))))


def test_the_addend_is_a_term(make_pair):
    a, b = make_pair("phi_1", 4, 9, 5)
    high, low = rounded_sums(a[None], b[None], FP64, result="pair")
    rest, _ = rounded_sums(a[None], b[None], FP64, addend=Addend(high, 0, -1))
    np.testing.assert_array_equal(rest, low)


def test_forms_follow_from_the_number_of_terms():
    assert form_for(64, FP64) == "biased"
    assert form_for(4096, FP64) == "two words"
    assert form_for(64, FP32) == "one word"
    assert form_for(256, FP32) == "biased"
    assert form_for(4096, FP32) == "two words"


@pytest.mark.parametrize("seed", range(3))
def test_results_around_the_smallest_normal_number_are_rounded_once(seed):
    rng = np.random.default_rng(seed)
    k = 4
    exponents = rng.integers(-530, -490, (1, 6, k))
    a = np.ldexp(rng.standard_normal((1, 6, k)), exponents)
    b = np.ldexp(rng.standard_normal((1, k, 7)), -1022 + 510)
    b = np.ldexp(b, rng.integers(-40, 30, (1, 1, 7)))
    # Sums a little below and above the smallest normal number, and halfway between.
    a[0, :3] = 0.0
    a[0, :3, 0] = 2.0**-511 * (1 + np.arange(-1, 2) * 2.0**-52)
    a[0, :3, 1] = [2.0**-540, -(2.0**-540), 0.0]
    b[0, 0] = 2.0**-511 * (1 + rng.integers(-2, 3, 7) * 2.0**-52)
    b[0, 1] = rng.choice([-1.0, 0.0, 1.0], 7) * 2.0**-535
    for result in ("array", "pair", "enclosure"):
        first, second = rounded_sums(a, b, FP64, result=result, form="two words")
        for entry in np.ndindex(first.shape):
            exact = by_all_bits(a, b, FP64, 0, None, result, entry)
            assert first[entry] == exact[0]
            assert result == "array" or second[entry] == exact[1]
