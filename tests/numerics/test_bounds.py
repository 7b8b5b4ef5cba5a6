"""Exactness conditions, against enumeration and exact worst cases."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hifigemm.numerics.bounds import (
    are_ordinary,
    exact_k_limit,
    first_slice_count,
    native_bound,
    ozaki1_error_exponent,
    slice_bits_for,
    underflow_free,
)

UNITS = {
    "int8": (2**31 - 1, 127, 2**17 - 1),
    "fp16": (2**24, 2**11, 1024),
    "bf16": (2**24, 2**8, 256),
    "fp32": (2**24, 2**24, 256),
    "fp64": (2**53, 2**53, 2048),
}


def test_limits_of_k_are_those_known_for_int8():
    assert exact_k_limit(2**31 - 1, 127, 127) == 133144
    assert exact_k_limit(2**31 - 1, 128, 128) == 131071
    assert exact_k_limit(2**31 - 1, 255, 255) == 33025
    assert exact_k_limit(2**31 - 1, 0, 255) == 2**31 - 1


@pytest.mark.parametrize("limit", [2**24, 2**31 - 1, 2**53])
@pytest.mark.parametrize("max_a", [1, 7, 64, 127, 128])
@pytest.mark.parametrize("max_b", [1, 64, 128])
def test_the_limit_of_k_is_sharp(limit, max_a, max_b):
    k = exact_k_limit(limit, max_a, max_b)
    assert k * max_a * max_b <= limit < (k + 1) * max_a * max_b


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "k", [1, 2, 3, 255, 256, 257, 1024, 1025, 4096, 100003, 2**20, 2**31]
)
def test_slices_are_the_widest_whose_sums_stay_exact(unit, k):
    accumulator, largest, block = UNITS[unit]

    def allowed(beta):
        h = 2 ** (beta - 1)
        pairs = 2100 // beta + 2  # of slices that both reach over all exponents
        return (
            h <= largest
            and min(k, block) * h * h <= accumulator
            and k * pairs * h * h <= 2**62
        )

    beta = slice_bits_for(k, block, accumulator, largest)
    assert beta >= 1
    assert allowed(beta)
    assert not any(allowed(wider) for wider in range(beta + 1, 60))
    assert exact_k_limit(accumulator, 2 ** (beta - 1), 2 ** (beta - 1)) >= min(k, block)


def test_no_slice_size_is_zero():
    assert slice_bits_for(2**62, 2**62, 2**24, 2**11) == 0
    assert slice_bits_for(2**24 + 1, 2**24 + 1, 2**24, 1) == 0
    assert slice_bits_for(2**24, 2**24, 2**24, 1) == 1


@pytest.mark.parametrize("beta", [1, 2, 7, 8, 24])
def test_slices_end_with_the_last_k_whose_sums_stay_below_62_bits(beta):
    """With an accumulator that holds everything, sums of 2100 / beta + 2 pairs in int64
    decide.
    """
    last = 2**62 // ((2100 // beta + 2) * 4 ** (beta - 1))
    assert slice_bits_for(last, 1, 2**200, 2 ** (beta - 1)) == beta
    assert slice_bits_for(last + 1, 1, 2**200, 2 ** (beta - 1)) == beta - 1


@pytest.mark.parametrize("k", [1, 2, 5, 64, 1000])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("beta", [1, 4, 7, 24])
def test_what_is_left_out_is_below_the_error_exponent(k, count, beta):
    # Every slice at h, every remainder at half a unit, nothing cancels: the sum over
    # what is dropped, exactly.
    h = Fraction(2) ** (beta - 1)
    last = Fraction(2) ** (-beta * (count - 1))
    dropped = k * (count * h / 2 + h / 2) * last
    x = ozaki1_error_exponent(k, count, beta)
    assert x == ozaki1_error_exponent(k, count, beta, twos_complement=False)
    assert dropped <= Fraction(2) ** x * last < 2 * dropped
    if beta > 1:
        dropped *= 2 * h / (2 * h - 1)
        assert (
            dropped
            <= Fraction(2)
            ** ozaki1_error_exponent(k, count, beta, twos_complement=True)
            * last
            < 2 * dropped
        )


@pytest.mark.parametrize("beta", [1, 4, 7, 11, 24, 27])
@pytest.mark.parametrize("wanted", [0, 6, 7, 10, 53, 54, 59, 60, 61, 200])
def test_the_first_count_is_the_smallest_that_leaves_out_little_enough(beta, wanted):
    """(S + 1) k h / 2 of the last unit against k h**2, S + 1 rounded up to a power of
    two.
    """

    def left_out(count):
        power = next(2**x for x in range(100) if 2**x >= count + 1)
        return Fraction(power, 2) / 2 ** (beta - 1) / 2 ** (beta * (count - 1))

    assert first_slice_count(beta, wanted) == next(
        s for s in range(2, 400) if left_out(s) <= Fraction(1, 2**wanted)
    )


@pytest.mark.parametrize("u", [2.0**-53, 2.0**-24, 2.0**-11])
@pytest.mark.parametrize("terms", [0, 1, 2, 1000, 2047])
def test_the_native_bound_is_gamma(u, terms):
    exact = terms * Fraction(u) / (1 - terms * Fraction(u))
    assert abs(Fraction(native_bound(terms, u)) - exact) <= exact * 4 * Fraction(
        2
    ) ** -53 / (1 - terms * Fraction(u))


def test_the_native_bound_ends_where_roundings_may_take_all():
    assert native_bound(2**53, 2.0**-53) == native_bound(2**54, 2.0**-53) == np.inf
    assert native_bound(2**53 - 1, 2.0**-53) == 2.0**53 - 1


def test_underflow_is_covered_from_the_number_of_terms_on():
    assert underflow_free(10 * 2.0**-1022, 10, 2.0**-1022)
    assert not underflow_free(9.99 * 2.0**-1022, 10, 2.0**-1022)


@pytest.mark.parametrize("where", [0, 1, -1])
def test_ordinary_entries_are_finite_and_free_of_underflow(where):
    x = np.full((3, 80, 300), 3.0)  # several parts
    x[0, 0, 0] = -3.0
    assert are_ordinary(x, 10, 0.3)
    for value, ordinary in (
        (3.0, True),
        (-2.99, False),
        (0.0, False),
        (np.inf, False),
        (np.nan, False),
        (1e308, True),
    ):
        y = x.copy()
        y.reshape(-1)[where] = value
        assert are_ordinary(y, 10, 0.3) == ordinary
    assert not are_ordinary(memoryview(x), 10, 0.3)
