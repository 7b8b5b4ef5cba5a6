"""Roundings of three factors: Ziv's test, and integers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.numerics.three_factors import (
    ExactProducts,
    Grid,
    leading_bits,
    nearest,
    rounded_within,
)
from tests.exact_values import exact_entries, rounded_once

integers = st.integers(-(2**200), 2**200)
exponents = st.integers(-1400, 1000)
dtypes = st.sampled_from([np.float32, np.float64])
floats = st.floats(-1e30, 1e30, allow_subnormal=False)


@given(integer=integers, exponent=exponents, dtype=dtypes)
def test_integers_are_rounded_once(integer, exponent, dtype):
    expected = rounded_once(Fraction(integer) * Fraction(2) ** exponent, dtype)
    value = nearest(integer, exponent, dtype)
    assert value == expected
    assert math.copysign(1.0, value) == math.copysign(1.0, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ties_go_to_even_at_all_exponents(dtype):
    bits = np.finfo(dtype).nmant + 1
    for odd in (2**bits + 1, 2**bits + 3, 2 ** (bits + 1) - 1):
        for exponent in (-1300, -1126, -1075, -200, 0, 100, 900):
            exact = Fraction(odd) * Fraction(2) ** exponent
            assert nearest(odd, exponent, dtype) == rounded_once(exact, dtype)


@given(
    high=floats,
    low=st.floats(-1.0, 1.0),
    bound=st.floats(0.0, 2.0**-20),
    exponent=st.sampled_from([0, 0, -300, -1060, -1100]),
    dtype=dtypes,
    share=st.fractions(-1, 1),
)
def test_all_numbers_within_the_bound_round_to_what_is_certain(
    high, low, bound, exponent, dtype, share
):
    low = low * math.ulp(high) if high else 0.0
    bound = bound * abs(low) + 4 * 2.0**-53 * abs(low)
    arrays = [np.array([x]) for x in (high, low, bound)]
    with np.errstate(all="ignore"):
        values, certain = rounded_within(*arrays, Grid(exponent, np.dtype(dtype)))
    if certain[0]:
        number = Fraction(high) + Fraction(low) + share * Fraction(bound) / 2
        exact = number * Fraction(2) ** exponent
        assert values[0] == rounded_once(exact, dtype)


def test_exact_numbers_are_always_certain():
    x = np.array([0.0, 1.0, 1.0 + 2.0**-24, 3.0 * 2.0**-1074, -(2.0**1000)])
    zero = np.zeros_like(x)
    for exponent in (0, -900):
        for dtype in (np.float32, np.float64):
            grid = Grid(exponent, np.dtype(dtype))
            with np.errstate(all="ignore"):
                values, certain = rounded_within(x, zero, zero, grid)
            assert certain.all()
            for value, number in zip(values, x.tolist(), strict=True):
                exact = Fraction(number) * Fraction(2) ** exponent
                assert value == rounded_once(exact, dtype)


@given(x=st.floats(allow_nan=True, allow_infinity=True))
def test_leading_bits_leave_little(x):
    cut = float(leading_bits(np.array([x]))[0])
    if not math.isfinite(x):
        assert cut == 0.0
    else:
        mantissa, _ = math.frexp(cut)
        assert (mantissa * 2**14).is_integer() or abs(x) < 2.0**-1022
        assert abs(x - cut) <= 2.0**-13 * abs(x) + 2.0**-1035


@pytest.mark.parametrize("is_complex", [False, True])
def test_exact_products_are_those_of_fractions(is_complex):
    rng = np.random.default_rng(0)

    def numbers(*shape):
        x = np.ldexp(rng.standard_normal(shape), rng.integers(-500, 500, shape))
        x[rng.random(shape) < 0.2] = 0.0
        if is_complex:
            return x + 1j * rng.standard_normal(shape)
        return x

    a, b, c = numbers(2, 3, 4), numbers(2, 4, 5), numbers(2, 3, 2)
    # The second factor of the second product is multiplied by columns of A B.
    places = np.arange(2 * 3 * 5).reshape(2, 3, 5).transpose(0, 2, 1)
    exact = ExactProducts(a, b, c, places)
    width = 2 if is_complex else 1
    for z in range(2):
        first = np.array(exact_entries(a[z], b[z]), object).reshape(3, 5, width)
        for row in range(5):
            for col in range(2):
                re, im = Fraction(0), Fraction(0)
                for i in range(3):
                    x = first[i, row]
                    y = complex(c[z, i, col])
                    y = Fraction(y.real), Fraction(y.imag)
                    re += x[0] * y[0] - (x[1] * y[1] if is_complex else 0)
                    im += x[0] * y[1] + (x[1] * y[0] if is_complex else 0)
                found = [
                    Fraction(value) * Fraction(2) ** exponent
                    for value, exponent in exact.components(z, row, col)
                ]
                assert found == [re, im][:width]
