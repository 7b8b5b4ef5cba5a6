"""alpha T + beta C after the product, against exact rationals."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.numerics.epilogue import combine, power_of_two_exponent

MODERATE = st.floats(-(2.0**200), 2.0**200).filter(lambda x: x == 0 or abs(x) > 2.0**-200)


@pytest.mark.parametrize("e", [-1074, -1023, -1022, -1, 0, 1, 52, 1023])
def test_powers_of_two_are_recognised_with_either_sign(e):
    assert power_of_two_exponent(math.ldexp(1.0, e)) == e
    assert power_of_two_exponent(-math.ldexp(1.0, e)) == e


@pytest.mark.parametrize("alpha", [0.0, 3.0, 0.1, 1 + 1j, math.inf, -math.inf, math.nan, np.nextafter(1.0, 2)])
def test_other_numbers_are_not(alpha):
    assert power_of_two_exponent(alpha) is None


@given(MODERATE, MODERATE, MODERATE, MODERATE)
def test_the_result_is_rounded_once_but_for_second_order_terms(t, alpha, c, beta):
    found = float(combine(np.array([t]), alpha, np.array([c]), beta)[0])
    first, second = Fraction(t) * Fraction(alpha), Fraction(c) * Fraction(beta)
    exact = first + second
    u = Fraction(1, 2**53)
    assert abs(Fraction(found) - exact) <= u * (1 + 2 * u) * abs(exact) + 8 * u * u * (abs(first) + abs(second))


@given(MODERATE, MODERATE)
def test_without_c_the_product_is_rounded_once(t, alpha):
    assert float(combine(np.array([t]), alpha, None, 0.0)[0]) == t * alpha


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 3), (3, 0)])
def test_shape_and_dtype_are_those_of_t(dtype, shape):
    t = np.ones(shape, dtype)
    for alpha in (3.0, *([1 + 1j] if t.dtype.kind == "c" else [])):
        for c in (None, np.ones(shape, dtype), np.ones((), dtype)):
            found = combine(t, alpha, c, 2.0)
            assert (found.shape, found.dtype) == (t.shape, t.dtype)
            np.testing.assert_array_equal(found, np.full(shape, alpha + (0 if c is None else 2.0)))


def test_overflow_on_the_way_leaves_the_plain_result():
    largest = np.finfo(float).max
    assert combine(np.array([largest]), 2.0, np.array([1.0]), 1.0)[0] == np.inf
    assert combine(np.array([2.0**1000]), 1.0, np.array([3.0]), 1.0)[0] == 2.0**1000
    assert combine(np.array([largest]), 1.0, np.array([-largest]), 1.0)[0] == 0.0
    assert combine(np.array([np.inf]), 3.0, np.array([1.0]), 1.0)[0] == np.inf
    assert np.isnan(combine(np.array([np.inf]), 3.0, np.array([-np.inf]), 1.0)[0])
