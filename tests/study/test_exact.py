import math
from fractions import Fraction

import numpy as np
import pytest

from hifigemm.study.exact import integer_product, integer_rows, round_integers


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_round_integers_at_every_boundary(dtype):
    info = np.finfo(dtype)
    t, eta = info.nmant + 1, info.minexp - info.nmant
    largest = 2**t - 1
    values = [(1, eta), (1, eta - 1), (3, eta - 1), (5, eta - 1), (2**70 + 1, eta - 71), (1, eta - 500)]
    values += [(largest, info.maxexp - t), (2 * largest + 1, info.maxexp - t - 1), (1, 3000)]
    values += [(2**80 * (2 * largest + 1) - 1, info.maxexp - t - 81), (2 ** (t + 1) + 1, 0), (2 ** (t + 1) + 3, 0)]
    values += [(2 ** (t + 70) + 2**69 + d, -3) for d in (-1, 0, 1)] + [(2**62 - 1, -62), (2**63 - 1, 0), (0, 7)]
    values += [(-n, e) for n, e in values]
    integers, exponents = (np.array(column, dt) for column, dt in zip(zip(*values, strict=True), (object, np.int64)))
    expected = [0.0 if n == 0 else nearest_any(Fraction(n) * Fraction(2) ** e, dtype) for n, e in values]
    rounded = round_integers(integers, exponents, dtype)
    assert rounded.dtype == dtype
    np.testing.assert_array_equal(rounded, np.array(expected, dtype))
    np.testing.assert_array_equal(np.signbit(rounded), [math.copysign(1, x) < 0 for x in expected])


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
        np.testing.assert_array_equal(integer_product(*empty, backend), np.zeros((2, 3)))


def test_integer_rows_are_as_small_as_they_can_be():
    x = np.array([[6.0, 0.0, 2.0**-10], [0.0, 0.0, 0.0], [5e-324, 2.0**1000, -3.0], [12.0, -4.0, 20.0]])
    integers, exponent = integer_rows(x)
    assert exponent.tolist() == [-10, 0, -1074, 2]
    assert integers.tolist() == [[6144, 0, 1], [0, 0, 0], [1, 2**2074, -3 * 2**1074], [3, -1, 5]]
    assert integer_rows(x[[0, 1, 3]])[0].dtype == np.int64
