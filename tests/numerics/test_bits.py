"""Exponents and powers of two against math.frexp and exact rationals."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hifigemm.numerics.bits import (
    NO_BIT,
    ceil_log2,
    ceil_magnitude,
    largest_exponent,
    least_exponent,
    lowest_bit,
    power_of_two,
    real_vectors,
    scale_by_power,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)
EDGES = [
    0.0,
    -0.0,
    5e-324,
    -5e-324,
    2.0**-1022,
    np.nextafter(2.0**-1022, 0),
    1.0,
    2.0**1023,
    np.finfo(float).max,
]


@pytest.mark.parametrize(
    "n", [1, 2, 3, 4, 5, 1023, 1024, 1025, 2**53 - 1, 2**53, 2**53 + 1, 2**100 + 1]
)
def test_ceil_log2_is_the_smallest_exponent(n):
    x = ceil_log2(n)
    assert 2**x >= n
    assert x == 0 or 2 ** (x - 1) < n


def test_power_of_two_is_exact_over_the_normal_range():
    e = np.arange(-1022, 1024)
    assert power_of_two(e).tolist() == [math.ldexp(1.0, int(x)) for x in e]


@given(FINITE, st.integers(-2400, 2400))
@example(2.0**1000, -2045)
@example(2.0**1023, -2097)
@example(2.0**-1074, 2045)
@example(2.0**-1074, 2097)
@example(2.0**-1074, 1024)
@example(0.0, 1024)
@example(1.5, -1023)
@example(6 * 2.0**-1074, -1)
def test_scale_by_power_is_ldexp_wherever_the_result_is_exact(x, e):
    try:
        expected = math.ldexp(x, e)
    except OverflowError:
        expected = math.copysign(math.inf, x)
    with np.errstate(over="ignore"):
        found = float(scale_by_power(np.array([x]), np.array([e]))[0])
    exact = Fraction(x) * Fraction(2) ** e
    if math.isinf(expected) or Fraction(expected) == exact:
        assert found == expected
    else:
        assert abs(Fraction(found) - exact) <= Fraction(2) ** -1074


@given(
    st.lists(FINITE, min_size=1, max_size=4),
    st.lists(st.integers(-2200, 2200), min_size=1, max_size=4),
)
def test_scale_by_power_does_not_depend_on_the_company_of_an_entry(xs, es):
    with np.errstate(over="ignore"):
        together = scale_by_power(np.array(xs)[:, None], np.array(es))
        for i, x in enumerate(xs):
            for j, e in enumerate(es):
                alone = (
                    math.ldexp(1.0, 0) * scale_by_power(np.array([x]), np.array([e]))[0]
                )
                if Fraction(x) * Fraction(2) ** e == 0 or _representable(x, e):
                    assert together[i, j] == alone


def test_an_empty_array_is_scaled():
    assert scale_by_power(np.zeros((0, 3)), np.zeros((0, 1), np.int64)).shape == (0, 3)


def _representable(x, e):
    try:
        return Fraction(math.ldexp(x, e)) == Fraction(x) * Fraction(2) ** e
    except OverflowError:
        return True


@given(st.lists(FINITE | st.sampled_from(EDGES), min_size=1, max_size=5))
def test_largest_exponent_bounds_every_entry_and_is_tight(xs):
    e = int(largest_exponent(np.array([xs]), 1)[0, 0])
    top = max(Fraction(abs(x)) for x in xs)
    if top == 0:
        assert e == 0
    else:
        assert Fraction(2) ** (e - 1) <= top < Fraction(2) ** e


@pytest.mark.parametrize("limit", [1.0, 0.75, 254 / 255])
@pytest.mark.parametrize("e", [-1000, 0, 1000])
def test_the_limit_itself_takes_the_next_exponent(limit, e):
    at = math.ldexp(limit, e)
    x = np.array(
        [[at, 0.0], [0.0, -at], [np.nextafter(at, 0), 0.0], [0.0, -np.nextafter(at, 0)]]
    )
    assert largest_exponent(x, 1, limit).ravel().tolist() == [e + 1, e + 1, e, e]


@given(FINITE | st.sampled_from(EDGES), st.integers(-2400, 2400))
@example(5e-324, -2400)
@example(-1.0, -1075)
@example(1.5, 0)
def test_ceil_magnitude_is_the_next_integer_whatever_underflows(x, e):
    exact = math.ceil(abs(Fraction(x)) * Fraction(2) ** e)
    with np.errstate(over="ignore"):
        found = float(ceil_magnitude(np.array([x]), np.array([e]))[0])
    assert found == (math.inf if exact >= 2**1024 else exact)


@given(
    st.lists(
        st.floats(allow_nan=False, allow_infinity=False, width=32),
        min_size=1,
        max_size=5,
    )
)
def test_exponents_of_float32_are_those_of_their_values(xs):
    x = np.array([xs], np.float32)
    assert largest_exponent(x, 1) == largest_exponent(x.astype(np.float64), 1)
    assert lowest_bit(x, 1) == lowest_bit(x.astype(np.float64), 1)


def test_least_exponent_is_that_of_the_smallest_component_that_is_not_zero():
    assert least_exponent(np.array([[0.0, -12.0], [100.0, np.nan]])) == 3
    assert least_exponent(np.array([8 + 0j, 16 - 4j], np.complex64)) == 2
    assert least_exponent(np.array([np.inf, 5e-324])) == -1074
    assert least_exponent(np.array([0.0, np.nan])) == least_exponent(np.zeros(0)) == -1


@given(st.lists(FINITE | st.sampled_from(EDGES), min_size=1, max_size=5))
def test_lowest_bit_divides_every_entry_and_is_the_largest_such_power(xs):
    e = int(lowest_bit(np.array([xs]), 1)[0, 0])
    if not any(xs):
        assert e == NO_BIT
        return
    units = [Fraction(x) / Fraction(2) ** e for x in xs]
    assert all(u.denominator == 1 for u in units)
    assert any(u.numerator % 2 for u in units)


def test_axes_are_kept(make_pair):
    a, _ = make_pair("phi_8", 4, 6, 3)
    assert largest_exponent(a, 0).shape == lowest_bit(a, 0).shape == (1, 6)
    assert (
        largest_exponent(a[None], 2).shape
        == lowest_bit(a.T[None].transpose(0, 2, 1), 2).shape
        == (1, 4, 1)
    )
    np.testing.assert_array_equal(lowest_bit(np.asfortranarray(a), 1), lowest_bit(a, 1))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_real_vectors_hold_both_components_next_to_each_other(dtype):
    x = np.arange(24.0).reshape(2, 3, 4).astype(dtype)
    if x.dtype.kind == "c":
        x = x + 1j * (x + 100)
    for axis in (1, 2):
        found = real_vectors(x[:, ::-1], axis)
        assert found.dtype == np.float64
        parts = [x.real, x.imag] if x.dtype.kind == "c" else [x]
        expected = np.stack([part[:, ::-1] for part in parts], axis=axis + 1)
        np.testing.assert_array_equal(found, expected.reshape(found.shape))
