"""Multiples of matrices as exact sums of words, against fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hifigemm.numerics.scalar_words import (
    powers_in_range,
    sum_by_integers,
    words_of_multiple,
)
from tests.exact_values import as_fraction, rounded_once, times

SCALARS = (3.0, -0.1, 1 / 3, 5e-324, -3 * 2.0**-1074, 1.7e308, 2.0**700, -1.0)


def matrix(rng, exponents, shape=(3, 4)):
    """Entries with 53 bits, of exponents within the given ones."""
    mantissas = 1.0 + rng.random(shape)
    signs = rng.choice([-1.0, 1.0], shape)
    return signs * np.ldexp(mantissas, rng.integers(*exponents, shape))


@pytest.mark.parametrize("s", SCALARS)
@pytest.mark.parametrize(
    "exponents", [(-3, 3), (-1074, -960), (900, 1024), (-1074, 1024)]
)
def test_words_sum_to_the_multiple_exactly(s, exponents):
    rng = np.random.default_rng(1)
    x = matrix(rng, exponents)
    words = words_of_multiple(s, x)
    assert all(np.isfinite(word.x).all() for word in words)
    for at in np.ndindex(x.shape):
        terms = (
            Fraction(float(word.x[at])) * Fraction(2) ** word.exponent for word in words
        )
        assert sum(terms) == Fraction(s) * Fraction(float(x[at]))


@pytest.mark.parametrize("s", [0.1 + 3j, 1j, -2.0 - 0.7j, 1e-300 + 1e300j])
def test_words_of_complex_multiples_sum_exactly(s):
    rng = np.random.default_rng(2)
    x = matrix(rng, (-40, 40)) + 1j * matrix(rng, (-40, 40))
    words = words_of_multiple(s, x)
    for at in np.ndindex(x.shape):
        re, im = Fraction(0), Fraction(0)
        for word in words:
            part = as_fraction(word.x[at])
            re += part[0] * Fraction(2) ** word.exponent
            im += part[1] * Fraction(2) ** word.exponent
        assert (re, im) == times(s, as_fraction(x[at]))


def test_a_power_of_two_and_few_bits_take_one_word():
    x = np.random.default_rng(3).standard_normal((3, 3))
    assert len(words_of_multiple(-4.0, x)) == 1
    assert len(words_of_multiple(3.0, np.float64(np.float32(x)))) == 1
    assert len(words_of_multiple(0.1, x)) == 2
    assert words_of_multiple(0.0, x) == []


@pytest.mark.parametrize("exponents", [(-1074, -1000), (-30, 30), (1000, 1024)])
def test_powers_in_range_are_the_first_and_the_last_without_loss(exponents):
    x = matrix(np.random.default_rng(4), exponents)
    least, largest = powers_in_range(x)
    exact = [Fraction(float(value)) for value in x.ravel()]
    for e, fits in (
        (least, True),
        (least - 1, False),
        (largest, True),
        (largest + 1, False),
    ):
        scaled = [value * Fraction(2) ** e for value in exact]
        held = all(abs(y) < Fraction(2) ** 1024 for y in scaled)
        held = held and all((y * 2**1074).denominator == 1 for y in scaled)
        assert held == fits


@pytest.mark.parametrize("dtype", [float, complex])
def test_a_sum_by_integers_is_rounded_once(dtype):
    rng = np.random.default_rng(5)

    def operand(shape):
        x = matrix(rng, (-1074, 1024), shape).astype(dtype)
        return x + 1j * matrix(rng, (-1074, 1024), shape) if dtype is complex else x

    a, b, c = operand((1, 2, 3)), operand((1, 3, 2)), operand((1, 2, 2))
    for alpha, beta in ((3.0, 0.1), (5e-324, 1.0), (2.0**-1000 / 3, 0.0)):
        found = sum_by_integers(alpha, a, b, beta, None if beta == 0 else c)
        for i, j in np.ndindex(2, 2):
            products = [
                times(as_fraction(a[0, i, h]), as_fraction(b[0, h, j]))
                for h in range(3)
            ]
            total = [sum(part) for part in zip(*products, strict=True)]
            of_c = times(beta, as_fraction(c[0, i, j]))
            want = [x + y for x, y in zip(times(alpha, total), of_c, strict=True)]
            got = found[0, i, j].real, found[0, i, j].imag
            assert [float(x) for x in got] == [rounded_once(x, float) for x in want]


def test_a_sum_by_integers_is_rounded_to_odd():
    rng = np.random.default_rng(6)
    a, b, c = (matrix(rng, (-1074, 1024), (1, 6, 6)) for _ in range(3))
    for alpha, beta in ((3.0, 0.1), (5e-324, 2.0**-40), (2.0**-1000 / 3, 0.0)):
        nearest = sum_by_integers(alpha, a, b, beta, c)
        odd = sum_by_integers(alpha, a, b, beta, c, to_odd=True)
        for i, j in np.ndindex(6, 6):
            products = sum(
                Fraction(float(x)) * Fraction(float(y))
                for x, y in zip(a[0, i], b[0, :, j], strict=True)
            )
            exact = Fraction(alpha) * products
            exact += Fraction(beta) * Fraction(float(c[0, i, j]))
            x = odd[0, i, j]
            if np.isinf(nearest[0, i, j]):
                assert abs(x) >= np.finfo(float).max
                assert (x > 0) == (exact > 0)
                continue
            assert x.view(np.int64) & 1 == 1 or Fraction(float(x)) == exact
            ends = Fraction(np.nextafter(x, -np.inf)), Fraction(np.nextafter(x, np.inf))
            assert ends[0] < exact < ends[1]
