"""Sums of products in three words: bounds and roundings against fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hifigemm.base.formats import FP32, FP64
from hifigemm.numerics import three_words
from hifigemm.numerics.three_words import remainders, rounded, signs, sums
from hifigemm.testing.exact import round_integers


@pytest.fixture
def rng():
    return np.random.default_rng(8)


def exact_sums(a, b, c, shift):
    """2**shift (A B + C) as fractions, in one list."""
    rows = [[Fraction(x) for x in row] for row in a.tolist()]
    columns = [[Fraction(x) for x in column] for column in b.T.tolist()]
    products = [
        sum((x * y for x, y in zip(row, column, strict=True)), Fraction(0))
        for row in rows
        for column in columns
    ]
    addends = [Fraction(x) for x in c.ravel().tolist()]
    scale = Fraction(2) ** shift
    return [scale * (x + y) for x, y in zip(products, addends, strict=True)]


def nearest(x, fmt):
    """A fraction rounded once, to nearest even; its denominator is a power of two."""
    exponent = np.array([-(x.denominator.bit_length() - 1)])
    dtype = np.float32 if fmt is FP32 else np.float64
    return round_integers(np.array([x.numerator], object), exponent, dtype)[0]


def check(a, b, c=None, *, fmt=FP64, shift=0):
    """The share of entries whose pair is certified, after all claims were judged."""
    addend = np.zeros((len(a), b.shape[1])) if c is None else c
    with np.errstate(all="ignore"):
        words = sums(a[None], b[None], None if c is None else c[None], shift)
        high, is_high_certain = rounded(words, fmt)
        rest = remainders(words, high)
        low, is_low_certain = rounded(rest, fmt)
        side, is_side_certain = signs(rest)
    num_certain = 0
    exact = exact_sums(a, b, addend, shift)
    for index, value in enumerate(exact):
        hi, mid, lo, err = (float(x.ravel()[index]) for x in words)
        if err == err:
            distance = abs(Fraction(hi) + Fraction(mid) + Fraction(lo) - value)
            assert distance <= Fraction(err)
        if not is_high_certain.ravel()[index]:
            continue
        first = high.ravel()[index]
        assert first == nearest(value, fmt)
        assert not np.signbit(first) or first < 0 or value < 0
        if not np.isfinite(first):
            continue
        difference = value - Fraction(float(first))
        if is_low_certain.ravel()[index]:
            assert low.ravel()[index] == nearest(difference, fmt)
            num_certain += 1
        if is_side_certain.ravel()[index]:
            assert side.ravel()[index] == (difference > 0) - (difference < 0)
    return num_certain / len(exact)


def operands(rng, m, k, n, phi):
    a = (rng.random((m, k)) - 0.5) * np.exp(phi * rng.standard_normal((m, k)))
    b = (rng.random((k, n)) - 0.5) * np.exp(phi * rng.standard_normal((k, n)))
    return a, b


@pytest.mark.parametrize("fmt", [FP64, FP32], ids=["float64", "float32"])
@pytest.mark.parametrize("k", [1, 2, 5, 40, 600])
@pytest.mark.parametrize("phi", [0.0, 0.5, 2.0, 8.0])
def test_claims_hold_and_narrow_exponents_are_settled(rng, fmt, k, phi):
    for shift in (0, 7, -60):
        a, b = operands(rng, 4, k, 3, phi)
        if fmt is FP32:
            a = a.astype(np.float32).astype(float)
            b = b.astype(np.float32).astype(float)
        share = check(a, b, fmt=fmt, shift=shift)
        if phi <= 0.5:
            assert share == 1.0


@pytest.mark.parametrize("k", [1, 5, 40, 600])
@pytest.mark.parametrize("phi", [0.0, 0.5, 2.0, 8.0])
def test_residuals_are_rounded_once(rng, k, phi):
    a, b = operands(rng, 4, k, 3, phi)
    product = a @ b
    for c in (-product, -product * (1 + 2.0**-40), 1e-30 * product, 1e30 * product):
        check(a, b, c)
    with np.errstate(all="ignore"):
        words = sums(a[None], b[None], -product[None])
    if phi <= 0.5:
        assert rounded(words, FP64).certified.all()


@pytest.mark.parametrize("scale", [-1060, -560, -470, -300, 300, 440, 500])
def test_claims_hold_at_the_ends_of_the_range(rng, scale):
    a, b = operands(rng, 3, 6, 4, 0.5)
    large = np.ldexp(a, scale)
    check(large, b)
    check(b.T, large.T)
    check(large, np.ldexp(b, min(-scale, 1000)))
    c = np.ldexp(a[:, :4], 1020)
    check(a, b, c)
    check(a, b, np.ldexp(a[:, :4], -1070))
    check(a, b, shift=2 * scale)
    check(a, b, shift=-2 * scale)


def test_ties_and_zeros_are_exact():
    # 1 + 2**-53 is a tie, and so is the rest below it: both go to even.
    a = np.array([[1.0, 2.0**-53, 2.0**-106, -1.0]])
    b = np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    assert check(a, b) == 1.0
    words = sums(a[None], b[None], None)
    assert (words.err == 0).all()
    assert rounded(words, FP64).values.tolist() == [[[1.0, 2.0**-53]]]
    # A B - C is zero: it is certain, and +0.
    zero = sums(a[None], b[None, :, :1], -np.array([[[1.0 + 2.0**-52]]]))
    exact = sums(a[None, :, :1], b[None, :1, :1], -np.ones((1, 1, 1)))
    assert rounded(zero, FP64).certified.all()
    assert rounded(exact, FP64).values.tolist() == [[[0.0]]]
    assert not np.signbit(rounded(exact, FP64).values).any()
    assert signs(exact).values.tolist() == [[[0.0]]]


@pytest.mark.parametrize("low", [2.0**-120, -(2.0**-120)])
def test_the_third_word_decides_ties(low):
    for half in (2.0**-53, 3 * 2.0**-53, 2.0**-24, 3 * 2.0**-24):
        a = np.array([[1.0, half, low]])
        assert check(a, np.ones((3, 1))) == 1.0
        assert check(-a, np.ones((3, 1)), fmt=FP32) == 1.0


def test_diagonals_of_the_largest_slices_are_exact(rng):
    # Slices near 2**beta in the first two places, as many as are added together.
    beta = three_words._BETA
    digits = 1 - rng.integers(1, 100, (2, 2, 3, three_words.K_CHUNK)) * 2.0**-beta
    a, b = digits[0] + 2.0 ** -(beta + 1) * digits[1]
    assert check(a, b.T) == 1.0


def test_sums_that_rounded_products_enter_have_a_bound(rng):
    # Bits from 1 down to 2**-150 in each factor: more than five parts hold.
    exponents = -np.arange(40) * 4.0
    a = rng.random((3, 40)) * 2.0**exponents
    b = rng.random((40, 3)) * 2.0 ** exponents[::-1, None]
    words = sums(a[None], b[None], None)
    assert (words.err > 0).all()
    check(a, b)
    check(a, b, -(a @ b))


def test_stacks_and_blocks_have_the_bits_of_their_parts(rng, monkeypatch):
    monkeypatch.setattr(three_words, "SIDE", 5)
    monkeypatch.setattr(three_words, "K_CHUNK", 7)
    a = rng.standard_normal((2, 8, 30))
    b = rng.standard_normal((1, 30, 11))
    c = rng.standard_normal((2, 8, 11))
    words = sums(a, b, c)
    for z in range(2):
        check(a[z], b[0], c[z])
        for word, part in zip(words, sums(a[z : z + 1], b, c[z : z + 1]), strict=True):
            np.testing.assert_array_equal(word[z : z + 1], part)


def test_exponents_out_of_range_are_never_certified(rng):
    a, b = operands(rng, 3, 4, 5, 0.0)
    a[1] *= 2.0**500
    words = sums(a[None], b[None], None)
    assert np.isnan(words.err[0, 1]).all()
    assert not rounded(words, FP64).certified[0, 1].any()
    assert rounded(words, FP64).certified[0, [0, 2]].all()
