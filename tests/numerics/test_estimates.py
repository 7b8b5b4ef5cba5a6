"""Magnitudes bound |A||B| from both sides; the published estimate does not depend on
orders of summation.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.numerics.bits import largest_exponent
from hifigemm.numerics.estimates import (
    MAGNITUDE_TERMS,
    component_sums,
    magnitudes_down,
    magnitudes_up,
    nonzeros,
    published_num_slices,
    short_weights,
    vector_weights,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(FINITE, min_size=1, max_size=6))
def test_magnitudes_bound_each_entry_from_both_sides(xs):
    x = np.array([xs])
    e = largest_exponent(x, 1)
    up, down = magnitudes_up(x, e)[0], magnitudes_down(x, e)[0]
    assert up.dtype == down.dtype == np.int8
    for value, high, low in zip(xs, up.tolist(), down.tolist(), strict=True):
        scaled = Fraction(abs(value)) / Fraction(2) ** int(e[0, 0])
        assert 0 <= low <= scaled * 2**7 < low + 1
        assert high - 1 < scaled * 2**6 <= high <= 64


@given(st.lists(FINITE, min_size=1, max_size=6))
def test_nonzeros_counts_subnormals_and_no_zeros(xs):
    assert nonzeros(np.array(xs)).tolist() == [int(x != 0) for x in xs]


def test_int32_holds_sums_of_as_many_magnitudes():
    assert MAGNITUDE_TERMS * 127**2 < 2**31 <= 2 * MAGNITUDE_TERMS * 127**2


def digits_of(x, beta):
    """Slices of exact numbers in units of the first grid, rounded to nearest, until
    nothing is left.
    """
    e = max(math.frexp(max(map(abs, x)))[1], -1073) if any(x) else 0
    rest, digits = [Fraction(v) / Fraction(2) ** (e - beta + 1) for v in x], []
    while any(rest) or not digits:
        digits.append([round(r) for r in rest])
        rest = [(r - w) * 2**beta for r, w in zip(rest, digits[-1], strict=True)]
    return digits


def published(rows, weights, beta, u):
    """Largest d of the rows, and the most slices that one of them has: the definition,
    without rounding.
    """
    count, longest = 2, 1
    for x in rows:
        digits = digits_of(x, beta)
        longest = max(longest, len(digits))
        sizes = [
            sum(abs(w) * z for w, z in zip(ws, weights, strict=True)) for ws in digits
        ]
        threshold, d = 2 * Fraction(math.sqrt(len(x))) * Fraction(u) * sizes[0], 2
        while (
            d <= len(sizes)
            and sizes[0]
            and (d + 1) * sizes[d - 1] * Fraction(1, 2 ** (beta * (d - 1))) >= threshold
        ):
            d += 1
        count = max(count, d)
    return count, longest


def rounded_up(sums, bits):
    """Integers of at most so many bits, or 2**bits, in proportion."""
    e = max(math.frexp(float(max(sums)))[1], -1073)
    return [math.ceil(s * Fraction(2) ** (bits - e)) for s in sums]


@pytest.mark.parametrize("beta", [1, 7, 11, 27])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("shape", [(3, 5, 2), (2, 13, 1)])
@pytest.mark.parametrize("name", ["phi_0.1", "phi_4", "integers", "sparse"])
def test_the_published_count_follows_its_definition(
    make_pair, beta, dtype, shape, name
):
    def real(vectors):
        return [
            [
                p
                for x in v
                for p in ((x.real, x.imag) if dtype == np.complex128 else (x,))
            ]
            for v in vectors
        ]

    a, b = make_pair(name, *shape, dtype)
    for u in (2.0**-9, 2.0**-53):
        found = []
        for rows, other in (
            (real(a.tolist()), real(b.tolist())),
            (real(b.T.tolist()), real(a.T.tolist())),
        ):
            sums = [sum(abs(Fraction(x)) for x in v) for v in other]
            found.append(
                published(
                    rows,
                    np.repeat(rounded_up(sums, 20), len(rows[0]) // len(sums)).tolist(),
                    beta,
                    u,
                )
            )
        (d, most), (e, longest) = found
        ended = most < d and longest < e
        expected = (max(most + longest - 1, 1), True) if ended else (max(d, e), False)
        for part in (16384, 8):
            assert published_num_slices(a[None], b[None], beta, u, part) == expected


def test_sums_of_the_published_estimate_stay_below_53_bits(make_pair):
    """Slices of 27 bits leave weights of 18 bits for 300 terms."""
    a, b = make_pair("phi_4", 2, 300, 3)
    for u in (2.0**-20, 2.0**-24, 2.0**-53):
        (d, _), (e, _) = (
            published(
                rows.tolist(),
                rounded_up([sum(map(abs, map(Fraction, v))) for v in y.tolist()], 18),
                27,
                u,
            )
            for rows, y in ((a, b), (b.T, a.T))
        )
        assert published_num_slices(a[None], b[None], 27, u) == (max(d, e), False)


def test_the_published_count_of_a_stack_is_the_largest_of_its_matrices(make_pair):
    """Matched ones only: of all pairs of these matrices some would take more."""
    pairs = [make_pair(name, 4, 9, 3) for name in ("phi_0.1", "phi_4", "phi_8")]
    a, b = (np.stack(x) for x in zip(*pairs, strict=True))
    for left, right in (
        (a, b),
        (a, b[::-1]),
        (a[:2], b[:0:-1]),
        (a[1:], b[1::-1]),
        (a[:1], b),
        (a, b[:1]),
        (a[1:2], b),
        (a, b[2:]),
    ):
        z = max(len(left), len(right))
        each = [
            published_num_slices(
                left[min(i, len(left) - 1)][None],
                right[min(i, len(right) - 1)][None],
                7,
                2.0**-53,
            )
            for i in range(z)
        ]
        assert published_num_slices(left, right, 7, 2.0**-53, 8) == max(each)
        assert published_num_slices(left, right, 7, 2.0**-53) == max(each)


@pytest.mark.parametrize("beta", [1, 2, 8, 27, 33, 34, 53])
@pytest.mark.parametrize("k", [0, 1, 2, 3, 2**9, 2**9 + 1, 2**15])
def test_weights_are_the_longest_whose_sums_are_exact(beta, k):
    fitting = [
        bits for bits in range(1, 21) if max(k, 1) * 2 ** (beta - 1) * 2**bits <= 2**53
    ]
    weights = np.resize(
        np.array([2.0**20, 2.0**20 - 1, 1.0, 3 * 2.0**17 + 1, 0.0]), (1, k)
    )
    expected = [
        math.ceil(Fraction(x) / 2 ** (20 - max(fitting, default=1)))
        for x in weights[0].tolist()
    ]
    assert short_weights(weights, beta).tolist() == [expected]


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("shift", [-1060, 0, 990])
def test_weights_of_vectors_are_their_sums_rounded_up(make_pair, axis, dtype, shift):
    """Entries to 20 bits of the largest in their vector, sums to 20 bits of the largest
    of all.
    """
    b = np.stack([make_pair(name, 7, 9, 1, dtype)[0] for name in ("phi_4", "span_60")])
    b = np.ldexp(b.view(np.float64), shift).view(dtype)
    b[0, 2 : 4 if axis == 2 else 3] *= 0.0
    for part in (16384, 8):
        found = vector_weights(b, axis, part)
        for matrix, weights in zip(b, found, strict=True):
            vectors = (matrix if axis == 2 else matrix.T).tolist()
            sums = []
            for v in vectors:
                sizes = [
                    abs(Fraction(p))
                    for x in v
                    for p in ((x.real, x.imag) if dtype == np.complex128 else (x,))
                ]
                e = math.frexp(float(max(sizes)))[1] if any(sizes) else 0
                sums.append(
                    sum(math.ceil(x * Fraction(2) ** (20 - e)) for x in sizes)
                    * Fraction(2) ** e
                )
            top = next(e for e in range(-1100, 1100) if max(sums) < Fraction(2) ** e)
            expected = [math.ceil(x * Fraction(2) ** (20 - top)) for x in sums]
            assert (
                weights.tolist()
                == np.repeat(expected, 2 if dtype == np.complex128 else 1).tolist()
            )


def test_vectors_end_each_by_its_own_lowest_bit():
    a, b = np.array([[[2.0**40] * 3, [2.0**-40] * 3]]), np.full((1, 3, 2), 3.0)
    assert published_num_slices(a, b, 7, 2.0**-53) == (1, True)


def test_the_published_count_goes_on_where_the_estimate_is_only_reached():
    """48 + 8 2**-7: 2 u 48 = 3 8 2**-7 for u = 2**-9."""
    a, b = np.array([[[48 + 8 / 128]]]), np.array([[[1 + 2.0**-40]]])
    assert published_num_slices(a, b, 7, 2.0**-9) == (3, False)
    assert published_num_slices(a, b, 7, float(np.nextafter(2.0**-9, 1))) == (2, False)


def test_a_row_of_one_unit_counts():
    """Slices of one bit and a weight of 1: the digits of 4/3 go on."""
    a, b = np.array([[[4 / 3, 0.0]]]), np.array([[[2.0**-30], [1.0]]])
    assert published_num_slices(a, b, 1, 2.0**-20)[0] > 15


def test_operands_without_entries_end_with_one_slice():
    for shape in ((0, 3, 4), (2, 0, 3), (2, 3, 4)):
        a, b = np.zeros((1, *shape[:2])), np.zeros((1, *shape[1:]))
        assert published_num_slices(a, b, 7, 2.0**-53) == (1, True)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_infinities_and_nans_count_as_zeros(make_pair, bad):
    a, b = (x[None] * 2.0**-30 for x in make_pair("phi_1", 1, 9, 1))
    for x in (a, b):
        kept = x.copy()
        x.reshape(-1)[2] = 0.0
        count = published_num_slices(a, b, 7, 2.0**-53)
        x.reshape(-1)[2] = bad
        assert published_num_slices(a, b, 7, 2.0**-53) == count
        x[...] = kept


@pytest.mark.parametrize("beta", [1, 7, 11])
@pytest.mark.parametrize("u", [2.0**-24, 2.0**-53])
def test_the_published_count_grows_with_the_range(make_pair, beta, u):
    pairs = [make_pair(name, 12, 30, 10) for name in ("phi_0.1", "phi_2", "phi_8")]
    counts = [published_num_slices(a[None], b[None], beta, u) for a, b in pairs]
    assert [count for count, _ in counts] == sorted(count for count, _ in counts)
    assert not any(ended for _, ended in counts)


@pytest.mark.parametrize("beta", [1, 7, 27])
def test_the_published_count_says_where_short_operands_end(make_pair, beta):
    a, b = make_pair("integers", 5, 4, 3)
    count, ended = published_num_slices(a[None], b[None], beta, 2.0**-53)
    assert ended
    assert count >= 1 + 2 * (2 // beta)  # integers up to 3 have two bits


def test_the_published_count_does_not_depend_on_the_order_of_rows_and_terms(make_pair):
    rng = np.random.default_rng(10)
    a, b = make_pair("phi_2", 300, 40, 20)
    count = published_num_slices(a[None], b[None], 7, 2.0**-53)
    rows, inner, cols = rng.permutation(300), rng.permutation(40), rng.permutation(20)
    assert (
        published_num_slices(
            a[rows][:, inner][None], b[inner][:, cols][None], 7, 2.0**-53
        )
        == count
    )
    assert (
        published_num_slices(np.asfortranarray(a)[None], b[None], 7, 2.0**-53) == count
    )


@pytest.mark.parametrize("shift", [-1040, -500, 500, 900])
def test_the_published_count_does_not_depend_on_common_scales(make_pair, shift):
    a, b = make_pair("phi_1", 12, 30, 10)
    count = published_num_slices(a[None], b[None], 7, 2.0**-53)
    assert published_num_slices(np.ldexp(a, shift)[None], b[None], 7, 2.0**-53) == count
    assert published_num_slices(a[None], np.ldexp(b, shift)[None], 7, 2.0**-53) == count


def test_the_published_count_leaves_its_operands_alone(make_pair):
    a, b = make_pair("phi_1", 12, 30, 10)
    before = a.copy(), b.copy()
    published_num_slices(a[None], b[None], 7, 2.0**-53)
    np.testing.assert_array_equal(a, before[0])
    np.testing.assert_array_equal(b, before[1])


@pytest.mark.parametrize("parts", [1, 2])
def test_component_sums_go_beyond_int32(parts):
    k = MAGNITUDE_TERMS
    left, right = (
        [np.full(shape, 127 - i, np.int8) for i in range(parts)]
        for shape in ((1, 1, k), (1, k, 1))
    )
    found = list(
        component_sums(
            lambda a, b, x, y: np.matmul(a, b, dtype=np.int32), left, right, 127
        )
    )
    sums = [127**2 + 126**2, 2 * 126 * 127] if parts == 2 else [127**2]
    assert [x.item() for x in found] == [k * s for s in sums]
