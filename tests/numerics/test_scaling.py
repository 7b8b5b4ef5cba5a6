"""Scales of Ozaki scheme II: the integers' product sums stay within half of the range, checked in Python integers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hifigemm.numerics.bits import NO_BIT, largest_exponent
from hifigemm.numerics.estimates import MAGNITUDE_BITS_UP, magnitudes_up
from hifigemm.numerics.residues import MAX_MODULI, moduli_set
from hifigemm.numerics.scaling import (
    NORM_BITS,
    NORM_BLOCK,
    joint_exponent,
    lacking_bits,
    norm_scale,
    round_to_integers,
    scale_exponent,
    square_norms,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)
FEW = st.sampled_from([0.0, 1.0, -1.0, 1 - 2.0**-53, 1.5, 2.0**-30, 5e-324, 2.0**1000, np.finfo(float).max])


def matrices(entries):
    shape = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 3))
    return shape.flatmap(
        lambda s: st.tuples(
            st.lists(entries, min_size=s[0] * s[1], max_size=s[0] * s[1]).map(
                lambda x: np.array(x).reshape(1, s[0], s[1])
            ),
            st.lists(entries, min_size=s[1] * s[2], max_size=s[1] * s[2]).map(
                lambda x: np.array(x).reshape(1, s[1], s[2])
            ),
        )
    )


PAIRS = matrices(FINITE) | matrices(FEW) | matrices(st.floats(-1, 1)) | matrices(st.integers(-9, 9).map(float))


def fast(a, b, chosen):
    norms = square_norms([a], 2), square_norms([b], 1)
    return [scale_exponent(squares, e, NORM_BITS, chosen) for squares, e in norms], NORM_BITS


def accurate(a, b, chosen):
    left, right = largest_exponent(a, 2), largest_exponent(b, 1)
    sums = magnitudes_up(a, left).astype(np.int64) @ magnitudes_up(b, right).astype(np.int64)
    rows, cols = sums.max(axis=2, keepdims=True), sums.max(axis=1, keepdims=True)
    scales = [scale_exponent(x, e, MAGNITUDE_BITS_UP, chosen) for x, e in ((rows, left), (cols, right))]
    return scales, MAGNITUDE_BITS_UP


def scaled(a, b, rule, chosen, balance=0):
    (s, t), bits = rule(a, b, chosen)
    s, t = s + balance, t - balance
    return (
        round_to_integers(a, s, s + largest_exponent(a, 2) >= bits),
        round_to_integers(b, t, t + largest_exponent(b, 1) >= bits),
        s,
        t,
    )


@pytest.mark.parametrize("rule", [fast, accurate])
@settings(max_examples=150)
@given(pair=PAIRS, count=st.integers(2, MAX_MODULI), is_complex=st.booleans(), balance=st.integers(-40, 40))
def test_sums_of_magnitudes_stay_within_half_range(rule, pair, count, is_complex, balance):
    chosen = moduli_set(count, is_complex)
    x, y, _, _ = scaled(*pair, rule, chosen, balance)
    assert (x == np.rint(x)).all()
    assert (y == np.rint(y)).all()
    left, right = ([[abs(int(v)) for v in row] for row in z[0]] for z in (x, y))
    for row in left:
        for column in zip(*right, strict=True):
            assert sum(p * q for p, q in zip(row, column, strict=True)) <= chosen.half_range


@pytest.mark.parametrize("rule", [fast, accurate])
@pytest.mark.parametrize("count", [2, 3, 8, 16, 49])
def test_the_bound_holds_for_many_terms_of_equal_size(rule, count):
    chosen = moduli_set(count, False)
    for k in (1, 2, 3, 100, 1000):
        for value in (1.0, 1 - 2.0**-53, 2.0**-0.5, 0.75, 1.0 / 3.0):
            a, b = np.full((1, 1, k), value), np.full((1, k, 1), value)
            x, y, _, _ = scaled(a, b, rule, chosen)
            assert k * int(x[0, 0, 0]) * int(y[0, 0, 0]) <= chosen.half_range


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("count", [2, 3, 8, 9, 16, 30, MAX_MODULI])
def test_scales_are_the_largest_that_fit(count, is_complex):
    """4**(s + e - bits) squares <= half_range, up to the last integer that does and the first that does not."""
    chosen = moduli_set(count, is_complex)
    half, rng = chosen.half_range, np.random.default_rng(count)
    limits = [half >> 2 * j for j in range(half.bit_length() // 2) if half >> 2 * j < 2**52]
    squares = sorted({1, 2, 3, 2**53 - 1, *limits, *(x + 1 for x in limits), *rng.integers(1, 2**53, 200).tolist()})
    for exponent in (0, -7, 1024):
        for bits in (6, 15):
            found = scale_exponent(np.array(squares, np.float64), np.full(len(squares), exponent), bits, chosen)
            for square, s in zip(squares, found.tolist(), strict=True):
                power = Fraction(4) ** (s + exponent - bits)
                assert power * square <= half < 4 * power * square
    assert scale_exponent(np.array([0.0]), np.array([-9]), 15, chosen).tolist() == [9]


@given(matrices(FINITE))
def test_square_norms_are_integers_that_bound_the_norms(pair):
    a, _ = pair
    squares, e = square_norms([a], 2)
    np.testing.assert_array_equal(e, largest_exponent(a, 2))
    for row, square, exponent in zip(a[0], squares.ravel(), e.ravel(), strict=True):
        exact = sum(Fraction(float(x)) ** 2 for x in row) * Fraction(4) ** (NORM_BITS - int(exponent))
        assert square == int(square)
        assert exact <= int(square)


@pytest.mark.parametrize("exponent", [-1074, -40, 0, 900])
def test_a_component_of_zeros_does_not_widen_the_scale(exponent):
    x = np.ldexp(np.arange(1.0, 7.0), exponent).reshape(1, 2, 3)
    for axis in (1, 2):
        alone, zeros = joint_exponent([x], axis), joint_exponent([np.zeros_like(x)], axis)
        for parts in ([x, np.zeros_like(x)], [np.zeros_like(x), -x]):
            np.testing.assert_array_equal(joint_exponent(parts, axis), alone)
        np.testing.assert_array_equal(zeros, 0)


def test_norms_do_not_depend_on_the_order_of_the_sum():
    rng = np.random.default_rng(9)
    x = rng.standard_normal((1, 2, 200, NORM_BLOCK)) * 2.0 ** rng.integers(-300, 300, (1, 1, 200, 1))
    y = rng.permuted(x[:, :, rng.permutation(200)], axis=3)
    x, y = (z.reshape(1, 2, -1) for z in (x, y))
    np.testing.assert_array_equal(square_norms([x], 2)[0], square_norms([y], 2)[0])


@pytest.mark.parametrize("k", [1, NORM_BLOCK - 1, NORM_BLOCK, NORM_BLOCK + 1, 3 * NORM_BLOCK + 7])
def test_norms_of_blocks_follow_their_definition(k):
    rng = np.random.default_rng(k)
    x = rng.standard_normal(k) * 2.0 ** rng.integers(-40, 40, k)
    e = int(largest_exponent(x, 0)[0])
    total = 0
    for q in range(0, k, NORM_BLOCK):
        block = [Fraction(float(v)) for v in x[q : q + NORM_BLOCK]]
        own = int(largest_exponent(x[q : q + NORM_BLOCK], 0)[0])
        squares = sum(math.ceil(abs(v) * Fraction(2) ** (NORM_BITS - own)) ** 2 for v in block)
        total += math.ceil(squares * Fraction(4) ** (own - e))
    for axis, shape in ((2, (1, 1, k)), (1, (1, k, 1))):
        squares, exponent = square_norms([x.reshape(shape)], axis)
        assert (int(squares[0, 0, 0]), int(exponent[0, 0, 0])) == (total, e)


@pytest.mark.parametrize("bits", [6, 15])
@given(st.lists(FINITE, min_size=1, max_size=4), st.integers(-1100, 1100))
def test_rounding_errs_by_half_a_unit_or_truncates(bits, xs, scale):
    x = np.array([[xs]])
    e = largest_exponent(x, 2)
    if scale + int(e[0, 0, 0]) > 300:
        return
    s = np.full((1, 1, 1), scale)
    found = round_to_integers(x, s, s + e >= bits)
    nearest = scale + int(e[0, 0, 0]) >= bits
    for value, integer in zip(xs, found[0, 0], strict=True):
        exact = Fraction(value) * Fraction(2) ** scale
        assert integer == int(integer)
        assert abs(exact - int(integer)) <= (Fraction(1, 2) if nearest else 1)
        assert nearest or abs(int(integer)) <= abs(exact)


@given(matrices(st.one_of(FINITE, FEW)))
def test_scales_that_get_what_they_lack_hold_all_bits_and_no_smaller_ones_do(pair):
    found = lacking_bits(*pair, 10**9, 16384)
    for x, axis, lacking in zip(pair, (2, 1), found, strict=True):
        vectors = x[0] if axis == 2 else x[0].T
        exponents = norm_scale(x, axis, moduli_set(2, False), 0, 16384).exponent.ravel()
        # An integer multiple of 2**-s for every entry is what the scale 2**s needs.
        denominators = [
            max(
                (Fraction(v) * Fraction(2) ** (int(s) + (0 if lacking == -NO_BIT else lacking))).denominator
                for v in row
            )
            for row, s in zip(vectors.tolist(), exponents, strict=True)
        ]
        assert set(denominators) == {1}
        if lacking == -NO_BIT:
            assert not x.any()
            continue
        fewer = [
            (Fraction(v) * Fraction(2) ** (int(s) + lacking - 1)).denominator
            for row, s in zip(vectors.tolist(), exponents, strict=True)
            for v in row
        ]
        assert 2 in fewer


def test_a_limit_ends_the_search_for_what_scales_lack():
    a, b = np.full((1, 2, 3), 2.0**20 + 1), np.full((1, 3, 2), 2.0**-9)
    exact = lacking_bits(a, b, 10**9, 16384)
    assert lacking_bits(a, b, sum(exact), 16384) == exact
    assert lacking_bits(a, b, sum(exact) - 1, 16384) is None
    assert lacking_bits(0.0 * a, b, -NO_BIT + 100, 16384)[0] == -NO_BIT
