"""Exactness conditions, against enumeration and exact worst cases."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hifigemm.numerics.bounds import (
    MAX_EXPONENT_SPAN,
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


@pytest.mark.parametrize("limit", [2**24, 2**31 - 1, 2**53])
@pytest.mark.parametrize("max_a", [1, 7, 64, 127, 128])
@pytest.mark.parametrize("max_b", [1, 64, 128])
def test_the_limit_of_k_is_sharp(limit, max_a, max_b):
    k = exact_k_limit(limit, max_a, max_b)
    assert k * max_a * max_b <= limit < (k + 1) * max_a * max_b


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("k", [1, 2, 3, 255, 256, 257, 1024, 1025, 4096, 100003, 2**20, 2**31])
def test_slices_are_the_widest_whose_sums_stay_exact(unit, k):
    accumulator, largest, block = UNITS[unit]

    def allowed(beta):
        h = 2 ** (beta - 1)
        pairs = MAX_EXPONENT_SPAN // beta + 2
        return h <= largest and min(k, block) * h * h <= accumulator and k * pairs * h * h <= 2**62

    beta = slice_bits_for(k, block, accumulator, largest)
    assert beta >= 1
    assert allowed(beta)
    assert not any(allowed(wider) for wider in range(beta + 1, 60))
    assert exact_k_limit(accumulator, 2 ** (beta - 1), 2 ** (beta - 1)) >= min(k, block)


def test_no_slice_size_is_zero():
    assert slice_bits_for(2**62, 2**62, 2**24, 2**11) == 0


@pytest.mark.parametrize("k", [1, 2, 5, 64, 1000])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("beta", [1, 4, 7, 24])
def test_what_is_left_out_is_below_the_error_exponent(k, count, beta):
    # Every slice at h, every remainder at half a unit, nothing cancels: the sum over what is dropped, exactly.
    h = Fraction(2) ** (beta - 1)
    last = Fraction(2) ** (-beta * (count - 1))
    dropped = k * (count * h / 2 + h / 2) * last
    assert dropped <= Fraction(2) ** ozaki1_error_exponent(k, count, beta) * last
    if beta > 1:
        dropped *= 2 * h / (2 * h - 1)
        assert dropped <= Fraction(2) ** ozaki1_error_exponent(k, count, beta, twos_complement=True) * last


@pytest.mark.parametrize("beta", [1, 4, 7, 11, 24, 27])
@pytest.mark.parametrize("wanted", [0, 10, 53, 60, 200])
def test_the_first_count_is_the_smallest_that_leaves_out_little_enough(beta, wanted):
    def left_out(count):
        return Fraction(count + 1, 2) / 2 ** (beta - 1) / 2 ** (beta * (count - 1))

    count = first_slice_count(beta, wanted)
    assert count >= 2
    assert left_out(count) <= Fraction(1, 2**wanted)
    # Exponents are compared in powers of two: at most one slice more than needed.
    assert count <= 3 or left_out(count - 2) > Fraction(1, 2**wanted) or beta <= 2


def test_the_native_bound_is_gamma():
    assert native_bound(1, 2.0**-53) == 2.0**-53 / (1 - 2.0**-53)
    assert native_bound(2**53, 2.0**-53) == np.inf
    assert native_bound(1000, 2.0**-24) > 1000 * 2.0**-24


def test_underflow_is_covered_from_the_number_of_terms_on():
    assert underflow_free(10 * 2.0**-1022, 10, 2.0**-1022)
    assert not underflow_free(9.99 * 2.0**-1022, 10, 2.0**-1022)
