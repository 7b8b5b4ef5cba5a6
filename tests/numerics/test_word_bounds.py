"""Bounds of word products against exact arithmetic and against their first-order
form.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.base.formats import BF16, FP16, FP32, TF32
from hifigemm.engines import engine_for
from hifigemm.numerics.accumulation import Accumulation
from hifigemm.numerics.word_bounds import (
    growth,
    relative_error,
    relative_error_at,
    safe_exponent,
    steps_in_blocks,
    word_error,
)
from hifigemm.numerics.words import Splitting, WordFacts


@given(
    st.integers(1, 300), st.sampled_from([2.0**-53, 2.0**-24, 10 * 2.0**-24, 2.0**-11])
)
def test_growth_is_an_upper_bound_and_close(steps, error):
    exact = (1 + Fraction(error)) ** steps - 1
    assert exact <= Fraction(growth((error, steps))) <= exact * Fraction(1 + 2.0**-25)


def test_growth_of_several_kinds_of_steps_and_overflow():
    exact = (1 + Fraction(2.0**-24)) ** 5 * (1 + Fraction(2.0**-20)) ** 7 - 1
    assert (
        exact
        <= Fraction(growth((2.0**-24, 5), (2.0**-20, 7)))
        <= exact * Fraction(1 + 2.0**-25)
    )
    assert growth((1.0, 10**6)) == growth((1.0, 1200)) == math.inf
    assert 2.0**600 <= growth((1.0, 600)) <= 2.0**600 * (1 + 2.0**-25)
    assert growth() == growth((0.5, 0)) == 0.0


def is_little_more(found, exact):
    """Larger by the 2**-30 that covers the rounding of bounds."""
    return (
        exact * (1 + Fraction(3, 4) / 2**30)
        <= Fraction(found)
        <= exact * (1 + Fraction(3, 2) / 2**30)
    )


def exact_bounds(splitting):
    """Words and remainder against |A| by the docstring of numerics.words."""
    u = Fraction(splitting.unit)
    grow = 1 if splitting.rounding == "zero" else 1 + u
    return [u**p * grow for p in range(splitting.num_words)] + [u**splitting.num_words]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("rounding", ["nearest", "zero"])
@pytest.mark.parametrize(
    "remainders", [(True, True), (True, False), (False, True), (False, False)]
)
def test_relative_error_is_the_sum_of_what_is_dropped_and_what_the_unit_errs(
    count, rounding, remainders
):
    splitting = Splitting(TF32, count, rounding)
    for keep in range(2 * count):
        kept = {
            (p, q): 2.0 ** (-5 - p - 3 * q)
            for p in range(count)
            for q in range(count)
            if p + q < keep
        }
        *words, rest = exact_bounds(splitting)
        r, s = (rest * has for has in remainders)
        terms = (
            Fraction(kept.get((p, q), 1)) * words[p] * words[q]
            for p in range(count)
            for q in range(count)
        )
        assert is_little_more(
            relative_error(splitting, kept, remainders), sum(terms) + r + s + r * s
        )
    assert relative_error(splitting, kept) == relative_error(
        splitting, kept, (True, True)
    )


UNIT = Accumulation(
    "sum", FP32, step=4, block=16, error=2.0**-20, tiny=2.0**-140, safe_exponent=-120
)


def some_facts(rng, count, vectors, axis, excess, subnormal):
    """Facts of so many rows or columns, arbitrary."""

    def array(n, scale=1.0):
        x = rng.uniform(0.5, 1.0, (1, vectors, n)) * scale
        return x if axis == 2 else x.swapaxes(1, 2).copy()

    return WordFacts(
        excess=array(count + 1, excess),
        subnormal=array(count, subnormal),
        total=array(1, 9.0),
        lowest=np.zeros((1, vectors, 1) if axis == 2 else (1, 1, vectors), np.int64),
        inexact=array(1) > 0.7,
    )


def exact_absolute(left, right, splitting, kept, k, i, j):
    """The absolute parts of all products |X||Y| <= (r |A| + e) (s |B| + f) but for r s
    |A||B|, in rational numbers.
    """
    count, bounds = splitting.num_words, exact_bounds(splitting)
    a_total = Fraction(float(left.total[0, i, 0]))
    b_total = Fraction(float(right.total[0, 0, j]))
    e = [Fraction(x) for x in left.excess[0, i].tolist()]
    f = [Fraction(x) for x in right.excess[0, :, j].tolist()]
    g = [Fraction(x) for x in left.subnormal[0, i].tolist()]
    h = [Fraction(x) for x in right.subnormal[0, :, j].tolist()]

    def part(x, y):
        (r, e), (s, f) = x, y
        return r * a_total * f + e * b_total * s + k * e * f

    a, b = list(zip(bounds, e, strict=True)), list(zip(bounds, f, strict=True))
    total = part(a[count], (1, 0)) + part((1, 0), b[count]) + part(a[count], b[count])
    for p in range(count):
        for q in range(count):
            wide = part((bounds[p], e[p] + g[p]), (bounds[q], f[q] + h[q]))
            total += Fraction(kept[p, q]) * wide if (p, q) in kept else part(a[p], b[q])
    return total


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(
    ("excess", "subnormal"), [(2.0**-20, 2.0**-14), (2.0**-20, 0.0), (0.0, 2.0**-14)]
)
def test_the_absolute_part_is_that_of_all_products_of_majorants(
    count, excess, subnormal
):
    rng = np.random.default_rng(count)
    splitting = Splitting(FP16, count, "nearest", 11)
    k = 7
    kept = {
        (p, q): 2.0 ** (-3 - p - 2 * q)
        for p in range(count)
        for q in range(count)
        if p + q < count
    }
    left, right = (
        some_facts(rng, count, n, axis, excess, subnormal)
        for n, axis in ((3, 2), (2, 1))
    )
    left.inexact[...] = right.inexact[...] = False
    right.inexact[0, 0, 0] = True
    found = word_error(left, right, splitting, kept, UNIT, k)
    assert found.absolute.shape == (1, 3, 2)
    for i in range(3):
        for j in range(2):
            exact = exact_absolute(left, right, splitting, kept, k, i, j)
            assert is_little_more(found.absolute[0, i, j], exact)
    assert found.relative == relative_error(splitting, kept, (False, True))
    left.inexact[0, 1], right.inexact[...] = True, False
    assert word_error(left, right, splitting, kept, UNIT, k).relative == relative_error(
        splitting, kept, (True, False)
    )


def test_products_below_the_floor_of_the_unit_lose_tiny_in_every_step():
    rng, splitting = np.random.default_rng(1), Splitting(FP16, 2, "nearest", 11)
    kept = {(1, 0): 3.0, (0, 1): 2.0, (0, 0): 0.5}
    left, right = (
        some_facts(rng, 2, n, axis, 0.0, 0.0) for n, axis in ((3, 2), (2, 1))
    )
    # safe is -120 + 11
    left.lowest[0, :, 0], right.lowest[0, 0] = (-60, -61, 5), (-49, 3)
    error = word_error(left, right, splitting, kept, UNIT, 7)
    least = (7 + 16) * 2.0**-1074
    for i in range(3):
        for j in range(2):
            # two steps hold seven products
            steps = 3 * 2 + 1 if (i, j) == (1, 0) else 0
            assert error.absolute[0, i, j] == pytest.approx(
                steps * 2.0**-140 * 4.0 + least, rel=2.0**-29, abs=0
            )
    assert (error.absolute[0, 0] == least).all()
    assert word_error(left, right, splitting, kept, UNIT, 7, 9).absolute[
        0, 1, 0
    ] == pytest.approx(28 * 2.0**-140 * 4.0, rel=2.0**-29, abs=0)
    left.lowest[0, 1, 0] = -60
    assert word_error(left, right, splitting, kept, UNIT, 7).absolute is None


def test_an_absolute_part_that_is_no_number_is_infinite():
    splitting, kept = Splitting(FP16, 1), {(0, 0): 1e-6}
    left, right = (
        some_facts(np.random.default_rng(1), 1, 1, axis, 1.0, 0.0) for axis in (2, 1)
    )
    left.excess[...], right.total[...], right.excess[...] = np.inf, 0.0, 0.0
    assert word_error(left, right, splitting, kept, UNIT, 7).absolute.tolist() == [
        [[np.inf]]
    ]


def facts_of(splitting, x, axis):
    words, rest = splitting.split(x)
    return splitting.describe(
        x, words, rest, axis, np.zeros_like(x.sum(axis=axis, keepdims=True), bool)
    )


def test_absolute_part_appears_with_underflow_only():
    splitting = Splitting(FP16, 2, "nearest", 11)
    unit = engine_for("simulated-h100").accumulation(FP16)
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
    assert steps_in_blocks(unit, k, block) == sum(
        unit.steps(min(block, k - h)) for h in range(0, k, block)
    )


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
    """Entries from `safe_exponent` - lost up: remainders and alignment as the bounds of
    rows and columns see them.
    """
    rng = np.random.default_rng([splitting.num_words, lost])
    unit = engine_for("simulated-h100").accumulation(splitting.fmt)
    kept = (
        {(1, 0): 2e-4, (0, 1): 1e-4, (0, 0): 3e-6}
        if splitting.num_words == 2
        else {(0, 0): 3e-6}
    )
    least = safe_exponent(splitting, unit.safe_exponent) - lost
    if splitting.fmt is TF32 and lost > 1:
        assert relative_error_at(splitting, lambda _: kept, unit, lost) == math.inf
        return

    def errors(used):
        return {pair: c * used.error / unit.error for pair, c in kept.items()}

    a = np.ldexp(rng.uniform(1, 2, (1, 1, 2000)).astype(np.float32), least).astype(
        np.float64
    )
    b = np.ldexp(
        rng.uniform(1, 2, (1, 2000, 1)).astype(np.float32), least + lost
    ).astype(np.float64)
    error = word_error(
        facts_of(splitting, a, 2),
        facts_of(splitting, b, 1),
        splitting,
        kept,
        unit,
        2000,
    )
    words = (splitting.split(x)[0] for x in (a, b))
    unit_scale = 2.0**-splitting.low_shift
    left, right = (
        [w.astype(np.float64) * unit_scale**p for p, w in enumerate(ws)] for ws in words
    )
    exact, size = a @ b, a @ b
    kept_sum = sum(left[p] @ right[q] for p, q in kept)
    by_words = sum(c * np.abs(left[p]) @ np.abs(right[q]) for (p, q), c in kept.items())
    assert (
        np.abs(exact - kept_sum) + by_words
        <= relative_error_at(splitting, errors, unit, lost) * size
    ).all()
    assert relative_error_at(splitting, errors, unit, lost) >= error.relative * (
        1 - 2.0**-9
    )


@pytest.mark.parametrize(
    ("splitting", "floor", "expected"),
    [
        (Splitting(FP16, 2, "nearest", 11), -124, -14),
        (Splitting(FP16, 2, "zero", 11), -124, -14),
        (Splitting(FP16, 2, "nearest"), -124, -3),
        (Splitting(FP16, 2, "zero"), -124, -4),
        (Splitting(FP16, 1, "nearest"), -124, -14),
        # 2 emin = floor + low_shift: no such product lies below
        (Splitting(FP16, 2, "nearest", 11), -39, -14),
        (Splitting(FP16, 2, "nearest", 11), -38, -7),
        (Splitting(TF32, 2, "nearest-away"), -124, -50),
        (Splitting(TF32, 2, "nearest"), -125, -51),
        (Splitting(BF16, 3, "nearest"), -124, -50),
        (Splitting(BF16, 3, "nearest"), -252, -110),
    ],
    ids=str,
)
def test_safe_exponents(splitting, floor, expected):
    """No word loses bits to underflow, and products of 24 bits stay above the floor of
    the unit: 2 e - 23 >= floor.
    """
    assert safe_exponent(splitting, floor) == expected
    rng = np.random.default_rng(5)
    x = np.concatenate(
        [
            1 + rng.integers(0, 2**23, 5000) * 2.0**-23,
            1 + rng.integers(0, 2**12, 5000) * 2.0**-23,
        ]
    )[None]
    if 2 * splitting.fmt.emin < floor + splitting.low_shift * (splitting.num_words - 1):
        assert 2 * expected - 23 >= floor > 2 * expected - 25
    else:
        assert (facts_of(splitting, x * 2.0**expected, 1).excess == 0).all()
        below = facts_of(splitting, x * 2.0 ** (expected - 1), 1)
        assert (below.excess > 0).any() or (
            splitting.num_words == 1 and below.subnormal.any()
        )


@pytest.mark.parametrize("splitting", SPLITTINGS, ids=str)
@pytest.mark.parametrize("lost", [0, 1, 2, 5, 30, 64])
def test_the_bound_by_lost_bits_follows_its_definition(splitting, lost):
    unit = Accumulation(
        "sum", FP32, 16, 16, error=2.0**-21, tiny=2.0**-150, safe_exponent=-260
    )
    count = splitting.num_words
    u = Fraction(splitting.unit)
    fmt = splitting.fmt
    shift = splitting.low_shift

    def sizes(bits):
        least = safe_exponent(splitting, unit.safe_exponent) - bits
        words = [1 + u * 2**bits] + [u**p * (1 + u) * 2**bits for p in range(1, count)]
        # A subnormal word is aligned like the smallest normal number.
        return words, [
            max(1, Fraction(2) ** (fmt.emin - shift * p - least) / w)
            for p, w in enumerate(words)
        ]

    for first, second in ((1, 3), (3, 1)):
        pairs = [(p, q) for p in range(count) for q in range(count) if p + q < count]
        kept = {(p, q): 2.0 ** (-5 - first * p - second * q) for p, q in pairs}
        worst = Fraction(0)
        for x, y in ((lost, 0), (0, lost)):
            (a, aligned_a), (b, aligned_b) = sizes(x), sizes(y)
            r, s = 2**x * u**count, 2**y * u**count
            total = r + s + r * s
            for p in range(count):
                for q in range(count):
                    c = (
                        Fraction(kept[p, q]) * aligned_a[p] * aligned_b[q]
                        if (p, q) in kept
                        else 1
                    )
                    total += c * a[p] * b[q]
            worst = max(worst, total)

        def errors(used, kept=kept):
            return {pair: c * used.error / unit.error for pair, c in kept.items()}

        assert is_little_more(relative_error_at(splitting, errors, unit, lost), worst)


def test_more_than_64_lost_bits_and_sums_that_meet_the_floor_have_no_bound():
    unit = Accumulation(
        "sum", FP32, 16, 16, error=2.0**-21, tiny=2.0**-150, safe_exponent=-124
    )
    splitting, tf32 = Splitting(FP16, 2, "nearest", 11), Splitting(TF32, 2, "nearest")
    kept = {(0, 0): 1e-6}
    assert relative_error_at(splitting, lambda _: kept, unit, 64) < math.inf
    assert relative_error_at(splitting, lambda _: kept, unit, 65) == math.inf
    # 2 (-50) - 23 - 1 = -124
    assert relative_error_at(tf32, lambda _: kept, unit, 1) < math.inf
    assert relative_error_at(tf32, lambda _: kept, unit, 2) == math.inf
    assert relative_error_at(tf32, lambda _: kept, unit) == relative_error_at(
        tf32, lambda _: kept, unit, 0
    )
