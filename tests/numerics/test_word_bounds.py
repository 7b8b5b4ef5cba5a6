"""Bounds of word products against exact arithmetic and against their first-order form."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.engines import engine_for
from hifigemm.formats import FP16, TF32
from hifigemm.numerics.word_bounds import (
    growth,
    relative_error,
    relative_error_at,
    safe_exponent,
    steps_in_blocks,
    word_error,
)
from hifigemm.numerics.words import Splitting


@given(st.integers(1, 300), st.sampled_from([2.0**-53, 2.0**-24, 10 * 2.0**-24, 2.0**-11]))
def test_growth_is_an_upper_bound_and_close(steps, error):
    exact = (1 + Fraction(error)) ** steps - 1
    assert exact <= Fraction(growth((error, steps))) <= exact * Fraction(1 + 2.0**-25)


def test_growth_of_several_kinds_of_steps_and_overflow():
    exact = (1 + Fraction(2.0**-24)) ** 5 * (1 + Fraction(2.0**-20)) ** 7 - 1
    assert exact <= Fraction(growth((2.0**-24, 5), (2.0**-20, 7))) <= exact * Fraction(1 + 2.0**-25)
    assert growth((1.0, 10**6)) == math.inf
    assert growth() == growth((0.5, 0)) == 0.0


@pytest.mark.parametrize(("count", "rounding"), [(1, "nearest"), (2, "nearest"), (2, "zero"), (3, "nearest")])
def test_relative_error_is_the_first_order_formula_and_little_more(count, rounding):
    splitting = Splitting(TF32, count, rounding)
    c, u = 1e-5, splitting.unit
    kept = {(p, q): c for p in range(count) for q in range(count) if p + q < count}
    first_order = (count + 1) * u**count + c
    assert first_order <= relative_error(splitting, kept) <= first_order * 1.01 + 3 * c * u
    assert relative_error(splitting, kept, (False, False)) < relative_error(splitting, kept)


def facts_of(splitting, x, axis):
    words, rest = splitting.split(x)
    return splitting.describe(x, words, rest, axis, np.zeros_like(x.sum(axis=axis, keepdims=True), bool))


def test_absolute_part_appears_with_underflow_only():
    splitting, unit = Splitting(FP16, 2, "nearest", 11), engine_for("simulated-h100").accumulation(FP16)
    kept = {(1, 0): 1e-6, (0, 1): 1e-6, (0, 0): 1e-6}
    a = np.random.default_rng(1).integers(1, 2**20, (1, 3, 8)) * 2.0**-8
    b = np.random.default_rng(2).integers(1, 2**20, (1, 8, 2)) * 2.0**-8
    left, right = facts_of(splitting, a, 2), facts_of(splitting, b, 1)
    assert word_error(left, right, splitting, kept, unit, 8).absolute is None
    a[0, 1, 3] = 2.0**-30 / 3
    error = word_error(facts_of(splitting, a, 2), right, splitting, kept, unit, 8)
    assert error.absolute.shape == (1, 3, 2)
    assert (error.absolute[0, 1] > error.absolute[0, 0]).all()


@given(st.integers(0, 300), st.integers(1, 100))
def test_steps_end_with_the_blocks(k, block):
    unit = engine_for("simulated-h100").accumulation(FP16)
    assert steps_in_blocks(unit, k, block) == sum(unit.steps(min(block, k - h)) for h in range(0, k, block))


SPLITTINGS = [
    Splitting(FP16, 2, "nearest", 11),
    Splitting(FP16, 2, "nearest"),
    Splitting(FP16, 2, "zero", 11),
    Splitting(FP16, 1, "nearest"),
    Splitting(TF32, 2, "nearest-away"),
]


@pytest.mark.parametrize("splitting", SPLITTINGS, ids=str)
@pytest.mark.parametrize("lost", [0, 1, 3, 6])
def test_bounds_by_lost_bits_cover_what_the_facts_say(splitting, lost):
    """Entries from `safe_exponent` - lost up: remainders and alignment as the bounds of rows and columns see them."""
    rng = np.random.default_rng([splitting.num_words, lost])
    unit = engine_for("simulated-h100").accumulation(splitting.fmt)
    kept = {(1, 0): 2e-4, (0, 1): 1e-4, (0, 0): 3e-6} if splitting.num_words == 2 else {(0, 0): 3e-6}
    least = safe_exponent(splitting, unit.safe_exponent) - lost
    if splitting.fmt is TF32 and lost > 1:
        assert relative_error_at(splitting, lambda _: kept, unit, lost) == math.inf
        return

    def errors(used):
        return {pair: c * used.error / unit.error for pair, c in kept.items()}

    a = np.ldexp(rng.uniform(1, 2, (1, 1, 2000)).astype(np.float32), least).astype(np.float64)
    b = np.ldexp(rng.uniform(1, 2, (1, 2000, 1)).astype(np.float32), least + lost).astype(np.float64)
    error = word_error(facts_of(splitting, a, 2), facts_of(splitting, b, 1), splitting, kept, unit, 2000)
    words = (splitting.split(x)[0] for x in (a, b))
    unit_scale = 2.0**-splitting.low_shift
    left, right = ([w.astype(np.float64) * unit_scale**p for p, w in enumerate(ws)] for ws in words)
    exact, size = a @ b, a @ b
    kept_sum = sum(left[p] @ right[q] for p, q in kept)
    by_words = sum(c * np.abs(left[p]) @ np.abs(right[q]) for (p, q), c in kept.items())
    assert (np.abs(exact - kept_sum) + by_words <= relative_error_at(splitting, errors, unit, lost) * size).all()
    assert relative_error_at(splitting, errors, unit, lost) >= error.relative * (1 - 2.0**-9)


def test_safe_exponents():
    """No subnormal low words that lose bits for FP16; products above the floor of the unit for TF32."""
    assert safe_exponent(Splitting(FP16, 2, "nearest", 11), -124) == -14
    assert safe_exponent(Splitting(TF32, 2, "nearest-away"), -124) == -50
    assert 2 * -50 - 23 >= -124 > 2 * -51 - 23
