from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from experiments.underflow import LOWEST_EXPONENT, counted, formula
from hifigemm.base.formats import FP16
from hifigemm.numerics.rounding_formats import round_to_format
from hifigemm.testing.matrices import random_floats

SAMPLE = 1 << 17
CASES = [(rounding, shift) for rounding in ("nearest", "zero") for shift in (0, 11)]


def sampled(exponent, rounding, shift):
    """Shares of numbers whose residual lies below the normal numbers of FP16, and whose
    low word is zero.
    """
    rng = np.random.default_rng([3, exponent + 100, shift])
    v = random_floats(rng, (SAMPLE,), exponent, np.float32).astype(float)
    rest = (v - round_to_format(v, FP16, rounding)) * 2.0**shift
    return np.mean(abs(rest) < 2.0**-14), np.mean(round_to_format(rest, FP16) == 0)


@pytest.mark.parametrize(("rounding", "shift"), CASES)
@pytest.mark.parametrize("exponent", [-24, -17, -14, -10, -4, -3, -2, 0, 3, 8, 15])
def test_sample_agrees_with_the_count(exponent, rounding, shift):
    for share, probability in zip(
        sampled(exponent, rounding, shift), counted(exponent, rounding, shift)
    ):
        p = float(probability)
        # Bernstein's inequality: exceeded with probability 2 exp(-16) at most, about
        # once in 4 million.
        variance, limit = p * (1 - p) / SAMPLE, 16.0
        bound = math.sqrt(2 * limit * variance) + 2 * limit / (3 * SAMPLE)
        assert abs(share - p) <= (bound if 0 < p < 1 else 0)


@pytest.mark.parametrize(("rounding", "shift"), CASES)
def test_count_is_that_of_all_tails(rounding, shift):
    for exponent in range(-18, 16):
        tails = np.arange(2 ** (max(exponent, -14) - exponent + 13))
        if rounding == "nearest":
            tails = np.minimum(tails, tails.size - tails)
        rest = np.ldexp(tails.astype(float), exponent - 23 + shift)
        below = np.count_nonzero(rest < 2.0**-14)
        zero = np.count_nonzero(round_to_format(rest, FP16) == 0)
        assert counted(exponent, rounding, shift) == (
            Fraction(below, tails.size),
            Fraction(zero, tails.size),
        )


@pytest.mark.parametrize(("rounding", "shift"), CASES)
def test_formula_is_the_count_but_for_the_grid_of_the_residual(rounding, shift):
    for exponent in range(LOWEST_EXPONENT, 16):
        tails = 2 ** (max(exponent, -14) - exponent + 13)
        for real, exact in zip(
            formula(exponent, rounding, shift), counted(exponent, rounding, shift)
        ):
            # The number of grid points in an interval differs from its length by one at
            # most; both ends count.
            assert abs(real - float(exact)) <= 2 / tails


def test_published_probabilities():
    for e in range(-14, 16):
        assert formula(e, "nearest") == (
            min(1, 2.0 ** -(e + 3)),
            min(1, 2.0 ** -(e + 14)),
        )
        assert formula(e, "zero") == (min(1, 2.0 ** -(e + 4)), min(1, 2.0 ** -(e + 15)))
    assert formula(0, "nearest")[0] == 0.125
    assert formula(0, "nearest", shift=11)[0] == 2.0**-14


def test_exponents_without_a_high_word_are_refused():
    with pytest.raises(ValueError, match="hi is zero"):
        counted(-25, "nearest")
