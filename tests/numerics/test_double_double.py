"""Sums of products with a bound: within it, exact where it is zero, and rounded only
where it cannot matter.
"""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from math import isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.base.formats import FP32, FP64
from hifigemm.numerics import double_double
from hifigemm.numerics.double_double import (
    K_PART,
    added,
    cut,
    error_beyond_rounding,
    error_bound,
    is_exact,
    k_chunks,
    least_magnitude,
    least_magnitudes,
    round_once,
    shifted,
    sums_of,
)
from hifigemm.numerics.eft import two_sum
from tests.hard_matrices import cancelling, phi_matrix


def sums_and_bound(a, b, count, size=16384, *, fewer=False):
    """hi + lo as fractions and err of the entries of a @ b."""
    found, chunks = [], k_chunks(a.shape[1], size)
    for z in chunks:
        rows, columns = (np.empty((2 * count - 2) * x.size) for x in (a[:, z], b[z]))
        x = cut(a[None, :, z], 2, count, rows, fewer=fewer)
        y = cut(b[None, z], 1, count, columns, fewer=fewer)
        found.append((sums_of(x, y, np.matmul), (x.top, y.top)))
    hi, lo = reduce(added, (sums for sums, _ in found))
    err = error_bound([tops for _, tops in found], chunks, count, fewer=fewer)
    parts = (x.ravel().tolist() for x in (hi, lo, err))
    return [
        (Fraction(hi) + Fraction(lo), err) for hi, lo, err in zip(*parts, strict=True)
    ]


def exact(a, b):
    columns = [[Fraction(y) for y in column] for column in b.T.tolist()]
    return [
        sum(Fraction(x) * y for x, y in zip(row, column, strict=True))
        for row in a.tolist()
        for column in columns
    ]


@pytest.mark.parametrize(("count", "fewer"), [(2, False), (3, False), (3, True)])
@pytest.mark.parametrize("k", [1, 2, 7, 64, 257])
def test_the_bound_holds(k, count, fewer):
    rng = np.random.default_rng(20)
    pairs = [
        tuple(phi_matrix(rng, shape, phi) for shape in ((3, k), (k, 2)))
        for phi in (0.5, 4.0, 20.0)
    ]
    pairs += [cancelling(rng, 3, k, 2, perturb=True)]
    for a, b in pairs:
        with np.errstate(invalid="ignore"):
            found = sums_and_bound(a, b, count, fewer=fewer)
        for (value, err), want in zip(found, exact(a, b), strict=True):
            assert isnan(err) or abs(value - want) <= Fraction(err)


@pytest.mark.parametrize("k", [K_PART, K_PART - 1, K_PART // 2])
def test_sums_of_the_longest_slices_are_exact_with_one_product_less(k):
    """Slices as long as they get, of one sign and of both: the bound allows no rounding
    of the first three products.
    """
    rng = np.random.default_rng(37)
    step = 2.0 ** -((53 - (k - 1).bit_length()) // 2)
    for high in (1 - 2.0**-53, 1 - step, 1 - 1.5 * step, 1 - 2 * step + step**2):
        a, b = np.full((2, k), high), np.full((k, 2), high)
        a[1] *= rng.choice([-1.0, 1.0], k)
        found = sums_and_bound(a, b, 3, fewer=True)
        for (value, err), want in zip(found, exact(a, b), strict=True):
            assert abs(value - want) <= Fraction(err) <= Fraction(2) ** -70


@pytest.mark.parametrize("fewer", [False, True])
def test_the_bound_holds_over_many_parts(monkeypatch, fewer):
    rng = np.random.default_rng(36)
    monkeypatch.setattr(double_double, "K_PART", 4)
    for k, size in ((4, 4), (5, 4), (37, 16), (64, 64), (83, 8)):
        a, b = phi_matrix(rng, (3, k), 2.0), phi_matrix(rng, (k, 2), 2.0)
        for (value, err), want in zip(
            sums_and_bound(a, b, 3, size, fewer=fewer), exact(a, b), strict=True
        ):
            assert abs(value - want) <= Fraction(err)


def test_chunks_are_whole_parts_but_for_the_last():
    for k in (1, 2, 2047, 2048, 2049, 100_000):
        for size in (1, 2048, 16384):
            chunks = k_chunks(k, size)
            assert [i for z in chunks for i in (z.start, z.stop)][1:-1:2] == [
                z.start for z in chunks[1:]
            ]
            assert (chunks[0].start, chunks[-1].stop) == (0, k)
            lengths = [z.stop - z.start for z in chunks]
            assert lengths == sorted(lengths, reverse=True)
            for length in lengths[:-1] if k % K_PART else lengths:
                assert length % K_PART == 0
                assert length <= max(size, K_PART)
                assert (length // K_PART).bit_count() == 1


@pytest.mark.parametrize("fewer", [False, True])
def test_products_of_short_entries_are_known_to_be_exact(fewer):
    rng = np.random.default_rng(3)
    a, b = (
        rng.integers(-1000, 1000, shape).astype(float) for shape in ((5, 40), (40, 4))
    )
    a[1, 0], b[1, 2] = 1 + 2.0**-40, 2.0**-60
    x = cut(a[None], 2, 3, np.empty(800), fewer=fewer)
    y = cut(b[None], 1, 3, np.empty(640), fewer=fewer)
    kept = is_exact(x, y)[0, 0]
    assert kept.tolist() == [[i != 1 and j != 2 for j in range(4)] for i in range(5)]
    found = [value for value, _ in sums_and_bound(a, b, 3, fewer=fewer)]
    for value, want, is_kept in zip(found, exact(a, b), kept.ravel(), strict=True):
        assert value == want or not is_kept


def test_rows_beyond_the_range_have_no_bound():
    a = np.diag([2.0**450, 2.0**-452, 0.0, 2.0**449])
    errs = [err for _, err in sums_and_bound(a, np.ones((4, 2)), 3)]
    assert [isnan(err) for err in errs] == [True] * 4 + [False] * 4
    x, y = cut(a[None], 2, 3, np.empty(64)), cut(np.ones((1, 4, 2)), 1, 3, np.empty(32))
    assert is_exact(x, y)[0, 0, :, 0].tolist() == [False] * 2 + [True] * 2


@pytest.mark.parametrize("fewer", [False, True])
@pytest.mark.parametrize("axis", [1, 2])
def test_zeros_are_cut_in_the_place_of_what_has_no_bound(axis, fewer):
    vectors = np.array(
        [[1.0, 3.0, 2.0**-60], [2.0**-1074, 2.0**-1022, 0.0], [2.0**1023, -1.0, 1.0]]
    )
    found = cut(
        vectors[None] if axis == 2 else vectors.T[None],
        axis,
        3,
        np.empty(36),
        fewer=fewer,
    )
    for part in [*found.parts, *found.remainders]:
        shown = part[0, 0] if axis == 2 else part[0, 0].T
        assert not shown[1:].any()
    assert found.parts[0].any()
    assert np.isnan(found.top).ravel().tolist() == [False, True, True]


def nearest(x, fmt):
    """The number of a format nearest to a fraction, ties to even."""
    if fmt is FP64:
        return float(x)
    y = np.float32(float(x))
    around = (
        np.nextafter(y, np.float32(-np.inf)),
        y,
        np.nextafter(y, np.float32(np.inf)),
    )
    return min(
        around,
        key=lambda v: (
            abs(Fraction(float(v)) - x),
            int(np.array(v).view(np.int32)) & 1,
        ),
    )


@given(
    st.integers(1, 2**54),
    st.integers(-(2**20), 2**20),
    st.integers(0, 2**10),
    st.integers(-100, 60),
    st.booleans(),
)
def test_what_is_kept_rounds_alike_within_the_bound(n, m, e, exponent, to_float32):
    fmt = FP32 if to_float32 else FP64
    if to_float32:
        # next to numbers of float32 and the midpoints between these
        n = (n >> 29 << 29) + (n & 3)
    hi, lo, err = (
        np.ldexp(float(x), exponent - y).reshape(1, 1, 1)
        for x, y in ((n, 0), (m, 70), (e, 80))
    )
    hi, lo = two_sum(hi, lo)
    values, kept = round_once(hi, lo, err, fmt)
    value, bound = Fraction(hi.item()) + Fraction(lo.item()), Fraction(err.item())
    if kept:
        assert (
            nearest(value - bound, fmt) == nearest(value + bound, fmt) == values.item()
        )
    elif e == 0:
        assert to_float32  # rounding twice is no way to tell
        assert m != 0


def test_a_shift_out_of_the_range_keeps_nothing():
    hi = np.array([1.0, 2.0**-100, 0.0]).reshape(1, 1, 3)
    zero = np.zeros_like(hi)
    for shift, want in (
        (0, [True] * 3),
        (-950, [False, False, True]),
        (-1100, [False, False, True]),
        (1000, [True] * 3),
        (1024, [False, True, True]),
    ):
        with np.errstate(all="ignore"):
            want_values = np.ldexp(hi, shift)
            values, kept = round_once(*shifted(hi, zero, zero, shift), FP64)
        assert kept.ravel().tolist() == want
        assert (values[kept] == want_values[kept]).all()


@given(
    st.integers(1, 2**54), st.integers(-(2**20), 2**20), st.integers(1, 2**40), st.integers(-100, 60),
    st.floats(-60, -3), st.booleans(),
)  # fmt: skip
def test_errors_beyond_the_rounding_and_least_magnitudes_hold_for_all_exact_values(
    n, m, e, exponent, log_r, to_float32
):
    fmt = FP32 if to_float32 else FP64
    hi, lo, err = (
        np.ldexp(float(x), exponent - y).reshape(1, 1, 1)
        for x, y in ((n, 0), (m, 70), (e, 80))
    )
    hi, lo = two_sum(hi, lo)
    values, _ = round_once(hi, lo, err, fmt)
    error, least = error_beyond_rounding(hi, lo, err, fmt), least_magnitude(hi, err)
    value, bound = Fraction(hi.item()) + Fraction(lo.item()), Fraction(err.item())
    u, r = Fraction(fmt.u), Fraction(2.0**log_r)
    for exact in (value - bound, value, value + bound):
        assert Fraction(least.item()) <= abs(exact)
        assert abs(Fraction(values.item()) - exact) <= Fraction(error.item()) + u * abs(
            exact
        )
        if error.item() <= 2.0**log_r * least.item():
            assert abs(Fraction(values.item()) - exact) <= (r + u) * abs(exact)


def test_least_magnitudes_lie_below_the_exact_sums(make_pair):
    for family in ("uniform", "phi_8", "subnormal", "underflowing", "zeros"):
        a, b = make_pair(family, 5, 300, 4)
        least = least_magnitudes(np.abs(a) @ np.abs(b), 300)
        for i, j in np.ndindex(least.shape):
            exact = sum(
                abs(Fraction(x) * Fraction(y))
                for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True)
            )
            assert Fraction(float(least[i, j])) <= exact
