"""Scales of Ozaki scheme II: the integers' product sums stay within half of the range,
checked in Python integers.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hifigemm.numerics import scaling
from hifigemm.numerics.bits import NO_BIT, largest_exponent, lowest_bit, real_vectors
from hifigemm.numerics.estimates import MAGNITUDE_BITS_UP, magnitudes_up
from hifigemm.numerics.residues import MAX_MODULI, moduli_set
from hifigemm.numerics.scaling import (
    NORM_BITS,
    NORM_BLOCK,
    Scale,
    exponents,
    gained_bits,
    largest_bits,
    largest_scale,
    largest_square,
    lowest_bits,
    norm_bits,
    norm_scale,
    normwise_error,
    required_bits,
    required_bits_of_vectors,
    round_to_integers,
    scale_exponent,
    scale_of_norms,
    square_norms,
    vector_sizes,
    widest,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)
FEW = st.sampled_from(
    [
        0.0,
        1.0,
        -1.0,
        1 - 2.0**-53,
        1.5,
        2.0**-30,
        5e-324,
        2.0**1000,
        np.finfo(float).max,
    ]
)


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


PAIRS = (
    matrices(FINITE)
    | matrices(FEW)
    | matrices(st.floats(-1, 1))
    | matrices(st.integers(-9, 9).map(float))
)


def fast(a, b, chosen):
    norms = square_norms(a, 2), square_norms(b, 1)
    return [
        scale_exponent(squares, e, NORM_BITS, chosen) for squares, e in norms
    ], NORM_BITS


def accurate(a, b, chosen):
    left, right = largest_exponent(a, 2), largest_exponent(b, 1)
    sums = magnitudes_up(a, left).astype(np.int64) @ magnitudes_up(b, right).astype(
        np.int64
    )
    rows, cols = sums.max(axis=2, keepdims=True), sums.max(axis=1, keepdims=True)
    scales = [
        scale_exponent(x, e, MAGNITUDE_BITS_UP, chosen)
        for x, e in ((rows, left), (cols, right))
    ]
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
@given(
    pair=PAIRS,
    count=st.integers(2, MAX_MODULI),
    is_complex=st.booleans(),
    balance=st.integers(-40, 40),
)
def test_sums_of_magnitudes_stay_within_half_range(
    rule, pair, count, is_complex, balance
):
    chosen = moduli_set(count, is_complex)
    x, y, _, _ = scaled(*pair, rule, chosen, balance)
    assert (x == np.rint(x)).all()
    assert (y == np.rint(y)).all()
    left, right = ([[abs(int(v)) for v in row] for row in z[0]] for z in (x, y))
    for row in left:
        for column in zip(*right, strict=True):
            assert (
                sum(p * q for p, q in zip(row, column, strict=True))
                <= chosen.half_range
            )


@settings(max_examples=150)
@given(
    pair=PAIRS, count=st.integers(2, MAX_MODULI), more=st.sampled_from([0, 1, 2**40])
)
def test_largest_scales_keep_sums_within_half_range_and_errors_within_norms(
    pair, count, more
):
    # More terms than there are entries leave smaller integers.
    chosen = moduli_set(count, False)
    a, b = pair
    terms = a.shape[2] + more
    bits = largest_bits(terms, chosen)
    left = largest_scale(largest_exponent(a, 2), 2, terms, chosen)
    right = largest_scale(largest_exponent(b, 1), 1, terms, chosen)
    x = round_to_integers(a, left.exponent, left.nearest)
    y = round_to_integers(b, right.exponent, right.nearest)
    assert max(np.abs(x).max(), np.abs(y).max()) < 2.0**left.bits
    r = normwise_error(terms, bits)
    for i, s in enumerate(left.exponent[0, :, 0]):
        for j, t in enumerate(right.exponent[0, 0]):
            row = [Fraction(float(v)) for v in a[0, i]]
            column = [Fraction(float(v)) for v in b[0, :, j]]
            integers = [
                int(p) * int(q) for p, q in zip(x[0, i], y[0, :, j], strict=True)
            ]
            assert sum(map(abs, integers)) <= chosen.half_range
            exact = sum(p * q for p, q in zip(row, column, strict=True))
            error = abs(exact - sum(integers) * Fraction(2) ** -int(s + t))
            squares = sum(p * p for p in row) * sum(q * q for q in column)
            if math.isfinite(r):
                assert error**2 <= Fraction(r) ** 2 * squares


@pytest.mark.parametrize("count", range(2, MAX_MODULI + 1, 5))
def test_largest_bits_are_the_most_that_fit(count):
    half = moduli_set(count, False).half_range
    for terms in (1, 2, 3, 5, 600, 4096, 2**31 - 1, half, half + 1, 4 * half):
        bits = largest_bits(terms, moduli_set(count, False))
        assert terms * 4**bits <= half if bits >= 0 else terms > half
        assert terms * 4 ** (bits + 1) > half
        if bits < 0:
            continue
        # The scale of norms of that size, and of the largest norm there is, if it is
        # an exact float64.
        e = np.array([[[3]]])
        scale = largest_scale(e, 2, terms, moduli_set(count, False))
        for square in (largest_square(terms, moduli_set(count, False)), terms << 30):
            if square < 2**53:
                squares = np.array([[[float(square)]]])
                by_norm = scale_of_norms(squares, e, 2, moduli_set(count, False), 0)
                assert by_norm.exponent == scale.exponent
                assert by_norm.nearest == scale.nearest


def test_errors_by_norms_are_rounded_up():
    for terms in (1, 2, 3, 4096, 10**9 + 7):
        for bits in (0, 1, 20, 60, 150):
            r = Fraction(normwise_error(terms, bits))
            # 2 y + y**2 >= r' iff (r' - y**2)**2 <= 4 y**2 below the vertex.
            # Rounded toward zero, integers err by twice as much.
            doubled = 1 if bits >= NORM_BITS else 4
            squared = Fraction(doubled * terms, 4**bits)
            rest = r - squared
            assert rest > 0
            assert rest**2 >= 4 * squared
            slack = r * (1 - Fraction(1, 2**28)) - squared
            assert slack < 0 or slack**2 < 4 * squared
    assert normwise_error(5, -1) == math.inf


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
@pytest.mark.parametrize("count", range(2, MAX_MODULI + 1))
def test_scales_are_the_largest_that_fit(count, is_complex):
    """4**(s + e - bits) squares <= half_range, up to the last integer that does and the
    first that does not.
    """
    chosen = moduli_set(count, is_complex)
    half, rng = chosen.half_range, np.random.default_rng(count)
    limits = [half >> j for j in range(half.bit_length()) if half >> j < 2**53]
    squares = sorted(
        {
            1,
            2,
            3,
            2**53 - 1,
            *limits,
            *(x + 1 for x in limits),
            *rng.integers(1, 2**53, 20).tolist(),
        }
    )
    for exponent, bits in ((0, 6), (-7, 15), (1024, 15)):
        found = scale_exponent(
            np.array(squares, np.float64), np.full(len(squares), exponent), bits, chosen
        )
        for square, s in zip(squares, found.tolist(), strict=True):
            power = Fraction(4) ** (s + exponent - bits)
            assert power * square <= half < 4 * power * square
    assert scale_exponent(np.array([0.0]), np.array([-9]), 15, chosen).tolist() == [9]


@given(matrices(FINITE))
def test_square_norms_are_integers_that_bound_the_norms(pair):
    a, _ = pair
    squares, e = square_norms(a, 2)
    np.testing.assert_array_equal(e, largest_exponent(a, 2))
    for row, square, exponent in zip(a[0], squares.ravel(), e.ravel(), strict=True):
        exact = sum(Fraction(float(x)) ** 2 for x in row) * Fraction(4) ** (
            NORM_BITS - int(exponent)
        )
        assert square == int(square)
        assert exact <= int(square)


@pytest.mark.parametrize("exponent", [-1074, -40, 0, 900])
def test_a_component_of_zeros_does_not_widen_the_scale(exponent):
    x = np.ldexp(np.arange(1.0, 7.0), exponent).reshape(1, 2, 3)
    for axis in (1, 2):
        alone, zeros = largest_exponent(x, axis), np.zeros_like(x)
        for parts in ([x, zeros], [zeros, -x]):
            together = real_vectors(
                np.stack(parts, axis=3).view(np.complex128)[..., 0], axis
            )
            np.testing.assert_array_equal(largest_exponent(together, axis), alone)
        np.testing.assert_array_equal(largest_exponent(zeros, axis), 0)


def test_norms_do_not_depend_on_the_order_of_the_sum():
    rng = np.random.default_rng(9)
    x = rng.standard_normal((1, 2, 200, NORM_BLOCK)) * 2.0 ** rng.integers(
        -300, 300, (1, 1, 200, 1)
    )
    y = rng.permuted(x[:, :, rng.permutation(200)], axis=3)
    x, y = (z.reshape(1, 2, -1) for z in (x, y))
    np.testing.assert_array_equal(square_norms(x, 2)[0], square_norms(y, 2)[0])


@pytest.mark.parametrize("k", [1, 255, 256, 257, 775])
@pytest.mark.parametrize("components", [1, 2])
def test_sizes_of_blocks_follow_their_definition(k, components):
    """15 bits of magnitudes in blocks of 256, each on the grid of its largest entry:
    squares below 2**38 a block.
    """
    rng = np.random.default_rng([k, components])
    parts = rng.standard_normal((components, k)) * 2.0 ** rng.integers(
        -40, 40, (components, k)
    )
    e = int(largest_exponent(np.abs(parts).max(axis=0), 0)[0])
    total, sizes = 0, 0
    for q in range(0, k, 256):
        block = [abs(Fraction(float(v))) for part in parts for v in part[q : q + 256]]
        own = int(largest_exponent(np.abs(parts[:, q : q + 256]).max(axis=0), 0)[0])
        up = [math.ceil(v * Fraction(2) ** (15 - own)) for v in block]
        total += math.ceil(sum(x**2 for x in up) * Fraction(4) ** (own - e))
        sizes += math.ceil(sum(up) * Fraction(2) ** (own - e))
    for axis, shape in ((2, (1, 1, k)), (1, (1, k, 1))):
        x = parts[0] if components == 1 else parts.T.copy().view(np.complex128)
        found = vector_sizes(x.reshape(shape), axis)
        assert [int(y[0, 0, 0]) for y in found] == [total, sizes, e]
        assert [int(y[0, 0, 0]) for y in square_norms(x.reshape(shape), axis)] == [
            total,
            e,
        ]
    # kernels have these numbers of their own
    assert (NORM_BITS, NORM_BLOCK) == (15, 256)


@pytest.mark.parametrize("is_complex", [False, True])
def test_more_moduli_gain_at_least_so_many_bits_for_any_vector(is_complex):
    """floor(log4(half_range / N)) grows by this for every N; one more would not hold
    for all.
    """
    pair = moduli_set(2, is_complex).half_range
    for count in range(2, MAX_MODULI + 1):
        half = moduli_set(count, is_complex).half_range
        gained = gained_bits(count, is_complex)
        edges = [
            x
            for j in range(half.bit_length())
            for x in (half >> j, (half >> j) + 1, pair >> j, (pair >> j) + 1)
            if 0 < x < 2**53
        ]
        found = [
            scale_exponent(
                np.array(edges, float),
                np.zeros(len(edges)),
                15,
                moduli_set(n, is_complex),
            )
            for n in (2, count)
        ]
        least = int((found[1] - found[0]).min())
        assert gained == least


@pytest.mark.parametrize("count", [2, 3, 16])
def test_integers_of_a_scale_stay_below_its_bits(count):
    chosen = moduli_set(count, False)
    for balance in (-3, 0, 1, 7):
        bits = norm_bits(chosen, balance)
        assert 4 ** (bits - 1) <= chosen.half_range * 4 ** max(balance, 0) < 4**bits
        for value in (1.0, 1 - 2.0**-53, 0.75, 2.0**-0.5):
            x = np.array([[[value]], [[value * 3]], [[0.0]]])
            scale = norm_scale(x, 2, chosen, balance, 16384)
            assert (scale.axis, scale.bits) == (2, norm_bits(chosen, balance))
            assert (
                np.abs(round_to_integers(x, scale.exponent, scale.nearest)).max()
                < 2.0**scale.bits
            )
            np.testing.assert_array_equal(
                scale.nearest, scale.exponent + largest_exponent(x, 2) >= 15
            )


@pytest.mark.parametrize("balance", [-60, -3, 0, 2, 60])
def test_balance_moves_the_scale_and_rounds_to_nearest_from_15_bits_on(balance):
    chosen = moduli_set(3, False)
    x = np.random.default_rng(3).standard_normal((2, 5, 9)) * 2.0 ** np.arange(
        -40, 40, 16
    ).reshape(1, 5, 1)
    for axis in (1, 2):
        plain, moved = (norm_scale(x, axis, chosen, b, 16384) for b in (0, balance))
        np.testing.assert_array_equal(
            plain.exponent, scale_exponent(*square_norms(x, axis), 15, chosen)
        )
        np.testing.assert_array_equal(moved.exponent, plain.exponent + balance)
        np.testing.assert_array_equal(
            moved.nearest, moved.exponent + largest_exponent(x, axis) >= 15
        )


def test_part_of_a_scale():
    exponent = np.arange(12).reshape(2, 6, 1)
    scale = Scale(exponent, exponent % 2 == 0, 2, 7)
    for taken, where in (
        (scale.take(slice(1, 2), slice(2, 4)), (slice(1, 2), slice(2, 4))),
        (
            Scale(exponent[:1], exponent[:1] % 2 == 0, 2, 7).take(
                slice(1, 2), slice(2, 4)
            ),
            (slice(0, 1), slice(2, 4)),
        ),
    ):
        np.testing.assert_array_equal(taken.exponent, exponent[where])
        np.testing.assert_array_equal(taken.nearest, exponent[where] % 2 == 0)
        assert (taken.axis, taken.bits) == (2, 7)
    columns = Scale(
        exponent.swapaxes(1, 2), exponent.swapaxes(1, 2) % 2 == 0, 1, 7
    ).take(slice(1, 2), slice(2, 4))
    assert columns.exponent.tolist() == [[[8, 9]]]


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_what_scales_lack_is_told_for_each_vector(dtype):
    """Inf and NaN count as zeros; of a complex entry the component with the lowest bit
    decides.
    """
    x = np.array([[[1.0, 3 * 2.0**-40], [np.inf, 2.0**30], [0.0, np.nan]]], dtype)
    if dtype == np.complex128:
        x.imag[0, :2] = [[0.0, 2.0**-44], [2.0**-9, 0.0]]
    more = np.random.default_rng(4).integers(2**20, 2**21, (1, 40, 2)) | 1
    chosen = moduli_set(2, dtype == np.complex128)
    scales = norm_scale(more.astype(dtype), 2, chosen, 0, 16384).exponent
    np.testing.assert_array_equal(
        required_bits_of_vectors(more.astype(dtype), more.astype(dtype)[:, :2], 64)[0],
        -scales[..., 0],
    )
    cleaned = np.where(np.isfinite(x), x, 0)
    scale = norm_scale(cleaned, 2, chosen, 0, 16384).exponent.ravel()
    lowest = [40, -30] if dtype == np.float64 else [44, -30]
    want = [low - int(s) for low, s in zip(lowest, scale, strict=False)] + [-NO_BIT]
    left, right = required_bits_of_vectors(x, x.swapaxes(1, 2), 16384)
    assert left.tolist() == right.tolist() == [want]
    assert widest((left, right), 2 * max(want)) == (max(want), max(want))
    assert widest((left, right), 2 * max(want) - 1) is None
    assert widest((left[:, :0], right), 10**9) == (-NO_BIT, max(want))


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


def test_vectors_are_rounded_each_in_its_way():
    x = np.array([[[2.75, -2.75, 3.5], [2.75, -2.75, 3.5]]])
    s, nearest = np.array([[[0], [1]]]), np.array([[[False], [True]]])
    assert round_to_integers(x, s, nearest).tolist() == [[[2, -2, 3], [6, -6, 7]]]
    assert round_to_integers(x, s, ~nearest).tolist() == [[[3, -3, 4], [5, -5, 7]]]


@given(matrices(st.one_of(FINITE, FEW)))
def test_scales_that_get_what_they_lack_hold_all_bits_and_no_smaller_ones_do(pair):
    found = required_bits(*pair, 10**9, 16384)
    for x, axis, required in zip(pair, (2, 1), found, strict=True):
        vectors = x[0] if axis == 2 else x[0].T
        exponents = norm_scale(x, axis, moduli_set(2, False), 0, 16384).exponent.ravel()
        # An integer multiple of 2**-s for every entry is what the scale 2**s needs.
        denominators = [
            max(
                (
                    Fraction(v)
                    * Fraction(2) ** (int(s) + (0 if required == -NO_BIT else required))
                ).denominator
                for v in row
            )
            for row, s in zip(vectors.tolist(), exponents, strict=True)
        ]
        assert set(denominators) == {1}
        if required == -NO_BIT:
            assert not x.any()
            continue
        fewer = [
            (Fraction(v) * Fraction(2) ** (int(s) + required - 1)).denominator
            for row, s in zip(vectors.tolist(), exponents, strict=True)
            for v in row
        ]
        assert 2 in fewer


def test_a_limit_ends_the_search_for_what_scales_lack():
    a, b = np.full((1, 2, 3), 2.0**20 + 1), np.full((1, 3, 2), 2.0**-9)
    exact = required_bits(a, b, 10**9, 16384)
    assert required_bits(a, b, sum(exact), 16384) == exact
    assert required_bits(a, b, sum(exact) - 1, 16384) is None
    assert required_bits(0.0 * a, b, -NO_BIT + 100, 16384)[0] == -NO_BIT


@pytest.mark.parametrize("block_entries", [1, 7, 10**6])
def test_exponents_and_lowest_bits_are_those_of_the_components(block_entries):
    rng = np.random.default_rng(3)
    parts = rng.integers(-99, 99, (2, 2, 5, 6)) * 2.0 ** rng.integers(
        -60, 60, (2, 2, 5, 6)
    )
    x = parts[0] + 1j * parts[1]
    for axis in (1, 2):
        for y, each in ((x, parts), (parts[0], parts[:1])):
            for limit in (1.0, 0.75):
                expected = largest_exponent(np.abs(each).max(axis=0), axis, limit)
                np.testing.assert_array_equal(
                    exponents(y, axis, block_entries, limit), expected
                )
            expected = np.min([lowest_bit(part, axis) for part in each], axis=0)
            np.testing.assert_array_equal(lowest_bits(y, axis, block_entries), expected)


@pytest.mark.parametrize("cuts", [(256,), (512,), (256, 512)])
def test_norms_of_pieces_join_to_those_of_the_whole(make_pair, cuts):
    for family in ("full_range", "uniform", "zeros"):
        a, _ = make_pair(family, 9, 700, 1)
        whole, exponent = scaling.square_norms(a[None], 2)
        pieces = [
            scaling.block_norms(x, 2, 64) for x in np.split(a[None], cuts, axis=2)
        ]
        top = np.max([e.max(axis=2, keepdims=True) for _, e in pieces], axis=0)
        top = np.where(top == scaling.NO_EXPONENT, 0, top)
        np.testing.assert_array_equal(top, exponent)
        joined = sum(scaling.squares_of_blocks(*piece, top, 2) for piece in pieces)
        np.testing.assert_array_equal(joined, whole)
