import math
from fractions import Fraction

import numpy as np
import pytest

from hifigemm.testing.exact import integer_product, integer_rows, round_integers
from hifigemm.testing.reference import (
    componentwise_error,
    correctly_rounded,
    meets_promise,
)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_round_integers_at_every_boundary(dtype):
    info = np.finfo(dtype)
    t, eta = info.nmant + 1, info.minexp - info.nmant
    largest = 2**t - 1
    values = [
        (1, eta),
        (1, eta - 1),
        (3, eta - 1),
        (5, eta - 1),
        (2**70 + 1, eta - 71),
        (1, eta - 500),
    ]
    values += [
        (largest, info.maxexp - t),
        (2 * largest + 1, info.maxexp - t - 1),
        (1, 3000),
    ]
    values += [
        (2**80 * (2 * largest + 1) - 1, info.maxexp - t - 81),
        (2 ** (t + 1) + 1, 0),
        (2 ** (t + 1) + 3, 0),
    ]
    values += [(2 ** (t + 70) + 2**69 + d, -3) for d in (-1, 0, 1)] + [
        (2**62 - 1, -62),
        (2**63 - 1, 0),
        (0, 7),
    ]
    values += [(-n, e) for n, e in values]
    integers, exponents = (
        np.array(column, dt)
        for column, dt in zip(zip(*values, strict=True), (object, np.int64))
    )
    expected = [
        0.0 if n == 0 else nearest_any(Fraction(n) * Fraction(2) ** e, dtype)
        for n, e in values
    ]
    rounded = round_integers(integers, exponents, dtype)
    assert rounded.dtype == dtype
    np.testing.assert_array_equal(rounded, np.array(expected, dtype))
    np.testing.assert_array_equal(
        np.signbit(rounded), [math.copysign(1, x) < 0 for x in expected]
    )


def nearest_any(x, dtype):
    """Round by plain division with remainder."""
    info = np.finfo(dtype)
    magnitude, unit = abs(x), info.minexp - info.nmant
    while magnitude >= Fraction(2) ** (unit + info.nmant + 1):
        unit += 1
    rounded = Fraction(round(magnitude / Fraction(2) ** unit)) * Fraction(2) ** unit
    rounded = math.inf if rounded >= Fraction(2) ** info.maxexp else float(rounded)
    return -rounded if x < 0 else rounded


def test_integer_product_of_huge_entries_and_empty_dimensions():
    huge = np.array([[2**3000 + 1, -5], [0, 7]], object)
    empty = np.empty((2, 0), np.int64), np.empty((0, 3), np.int64)
    for backend in ("python", None):
        np.testing.assert_array_equal(integer_product(huge, huge, backend), huge @ huge)
        np.testing.assert_array_equal(
            integer_product(*empty, backend), np.zeros((2, 3))
        )


def test_integer_rows_are_as_small_as_they_can_be():
    x = np.array(
        [
            [6.0, 0.0, 2.0**-10],
            [0.0, 0.0, 0.0],
            [5e-324, 2.0**1000, -3.0],
            [12.0, -4.0, 20.0],
        ]
    )
    integers, exponent = integer_rows(x)
    assert exponent.tolist() == [-10, 0, -1074, 2]
    assert integers.tolist() == [
        [6144, 0, 1],
        [0, 0, 0],
        [1, 2**2074, -3 * 2**1074],
        [3, -1, 5],
    ]
    assert integer_rows(x[[0, 1, 3]])[0].dtype == np.int64


def test_infinities_and_nan_are_judged():
    a, b = np.array([[2.0**1023, 2.0**1023]]), np.array([[1.0], [1.0]])
    assert meets_promise(np.array([[np.inf]]), a, b, 0.0).all()
    assert componentwise_error(np.array([[np.inf]]), a, b) == 0.0
    for wrong in (-np.inf, np.nan, 1.0):
        assert not meets_promise(np.array([[wrong]]), a, b, 1e-3).any()
    b[1] = 0.99
    assert not meets_promise(np.array([[np.inf]]), a, b, 1e-3).any()
    assert meets_promise(np.array([[np.inf]]), a, b, 1e-2).all()
    assert componentwise_error(np.array([[np.nan]]), a, b) == np.inf


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_infinity_is_right_from_the_midpoint_above_the_largest_number_on(dtype):
    info = np.finfo(dtype)
    b = np.ones((2, 1), dtype)
    for quarters, rounds_to in ((1, info.max), (2, np.inf), (3, np.inf)):
        a = np.array(
            [[info.max, quarters * 2.0 ** (info.maxexp - info.nmant - 3)]], dtype
        )
        assert correctly_rounded(a, b)[0, 0] == rounds_to
        assert meets_promise(np.array([[np.inf]], dtype), a, b, 0.0)[0, 0] == (
            rounds_to == np.inf
        )
        assert (componentwise_error(np.array([[np.inf]], dtype), a, b) == 0) == (
            rounds_to == np.inf
        )


def test_last_rounding_is_half_a_subnormal_below_the_normal_range_and_u_above():
    eta, tiny = 2.0**-1074, 2.0**-1022
    # Exact zero of terms 2**-1000: the size is 2**-999, and eta / 2 of the error eta is
    # forgiven.
    a, b = np.array([[2.0**-500, 2.0**-500]]), np.array([[2.0**-500], [-(2.0**-500)]])
    assert componentwise_error(np.array([[eta]]), a, b, rounding=True) == 2.0**-76
    # Exact 3/2 tiny: u times it is 3/4 eta.
    assert (
        componentwise_error(
            np.array([[1.5 * tiny + eta]]),
            np.array([[1.5]]),
            np.array([[tiny]]),
            rounding=True,
        )
        == 2.0**-54 / 3 * 2
    )
    # Just below tiny: eta / 2 is more than u times the exact value.
    below = np.array([[tiny - eta]])
    assert componentwise_error(
        below + 2 * eta, below, np.ones((1, 1)), rounding=True
    ) == pytest.approx(1.5 * 2.0**-52, rel=1e-15)


def test_error_where_the_size_is_zero():
    a, b = np.zeros((1, 3)), np.ones((3, 1))
    assert componentwise_error(np.array([[0.0]]), a, b) == 0.0
    assert componentwise_error(np.array([[5e-324]]), a, b) == np.inf
    assert componentwise_error(np.array([[5e-324]]), a, b, rounding=True) == np.inf
