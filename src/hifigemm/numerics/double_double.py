"""Sums of products as a double-double with a bound: hi + lo and err with
|A B - (hi + lo)| <= err in every entry.

Idea
    A = a_0 + ... + a_(p-1), cut by (x + sigma) - sigma on grids of beta bits, the last
    part being what is left; B alike, with rests r_j = b_j + ... + b_(p-1). Then A
    B = sum_{i+j < p-1} a_i b_j + sum_i a_i r_(p-1-i): the first products are exact and
    added by TwoSum, the others are rounded and go into lo [OOOR12]. That is as accurate
    as a TwoProduct for each term [ORO05], and a row of A is cut once for all columns of
    B.
One product less
    For p = 3 and s = 2**(beta + 1), the exact products a_0 b_0, a_1 b_1 and (a_0 + s
    a_1) (b_0 + s b_1) give a_0 b_1 + a_1 b_0 exactly, as in Karatsuba's product of two
    digits, and a_1 b_1 too. So two rounded products do: A B = a_0 b_0 + (a_0 b_1 + a_1
    b_0) + a_1 b_1 + (a_0 + a_1) b_2 + a_2 B. Slices are shorter by one bit.
Exact when
    k 4**beta <= 2**53 for the at most K_PART terms of a sum, so that no partial sum of
    integers up to 2**beta is rounded, in any order; k 4**(beta + 1) <= 2**53 with one
    product less, whose differences lie below that too. x + sigma has the unit of the
    grid, as |x| <= sigma / 3, and what is left is a float64.
Bound
    u = 2**-53, E and F the powers of two above the entries of a row and of a column.
    Part i and rest i are at most E 2**(-i (beta + 1)), so the p rounded products, or
    two and a_1 b_1, sum to at most k S in magnitude, S = p 2**(-(p - 1) (beta + 1)) E
    F, and err with the p + 1 + 2 v sums that they enter by (k + 2 v + 10) u k S at
    most, v being the levels of additions over parts of k. Exact sums stay below 5 k E
    F; errors of TwoSum, at most u times that, are rounded when they are added to lo, by
    32 (v + 1)**2 u**2 k E F in all. Both constants have room for the rounding of
    lo + err and of err, and for k products that underflow, as E and F lie within
    2**-450 and 2**450. For other rows and columns err is NaN, so that no comparison
    holds; zeros are multiplied in their place, as processors take a hundred times as
    long for subnormal numbers.
Threads that flush
    Threads of a BLAS may flush subnormal numbers to zero where they multiply. Parts on
    grids and their products are multiples of 4 E F 2**(-4 (beta + 1)), which is at
    least 2**-1006: exact products stay exact. In a rounded product an operand that is
    flushed moves a term by 2**-1022 E or F, a term or a sum that is flushed by
    2**-1022. All p of them move by p k (E + F + 2) 2**-1022 at most, below 2**-13 k u
    S, for which both constants have room too.
References
    [OOOR12] doi:10.1007/s11075-011-9478-1. [ORO05] Ogita, Rump, Oishi: Accurate sum and
    dot product, doi:10.1137/030601818.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from hifigemm.formats import FP32, Format
from hifigemm.numerics.bits import LEAST, Array, ceil_log2, scale_by_power
from hifigemm.numerics.blocking import BLOCK_ENTRIES
from hifigemm.numerics.eft import two_sum

K_PART = 2048
"""Terms that are cut together: slices of 21 bits, and a bound that grows with the
square of k within parts alone.
"""
_RANGE = 450


class Cut(NamedTuple):
    """Rows (batch, parts, m, k') or columns (batch, parts, k', n) as a sum of parts."""

    parts: list[Array]  # a_0, ..., a_(p-1)
    rests: list[Array]  # r_0, ..., r_(p-1)
    top: Array  # E or F, with an inner dimension of 1
    step: float  # 2**-(beta + 1)
    both: Array | None  # a_0 + 2**(beta + 1) a_1 for one product less


def k_chunks(k: int, size: int) -> list[slice]:
    """Terms that are worked on at a time: 2**v whole parts, about `size` terms, and
    those that make no whole part.
    """
    found, start = [], 0
    while start < k:
        parts = max(min(size, k - start) // K_PART, 1)
        stop = min(start + (1 << parts.bit_length() - 1) * K_PART, k)
        found.append(slice(start, stop))
        start = stop
    return found


def cut(x: Array, axis: int, count: int, space: Array, *, fewer: bool = False) -> Cut:
    """Rows (axis 2, the inner dimension) or columns (axis 1) of a chunk (batch, m, k)
    or (batch, k, n) in count parts.

    The parts lie in `space`, one-dimensional, (2 count - 2) entries for each of x; the
    same space for all chunks saves page faults. With `fewer`, three parts are cut for
    one product less; a_1 is in the place of r_1, which is not kept.
    """
    batch, k = len(x), x.shape[axis]
    length = min(k, K_PART)
    x = x.astype(np.float64, copy=False)
    if axis == 2:
        x = x.reshape(batch, -1, k // length, length).swapaxes(1, 2)
    else:
        x = x.reshape(batch, k // length, length, -1)
    space = space[: (2 * count - 2) * x.size].reshape(-1, *x.shape)
    # one grid for all parts: NumPy adds one number to a long vector faster
    magnitude, inner = space[0], (1, axis + 1)
    exponent = np.frexp(np.abs(x, out=magnitude).max(axis=inner, keepdims=True))[1]
    outside = np.abs(exponent) > _RANGE
    if outside.any():
        x, exponent = np.where(outside, 0.0, x), np.where(outside, 0, exponent)
    top, step = np.ldexp(1.0, exponent), _slice_step(length, fewer)
    largest = top * (1.5 * 2.0**53 * step)
    for some in _blocks(x):
        rest, sigma, views = (
            x[some],
            largest[some] if axis == 2 else largest,
            [y[some] for y in space],
        )
        for part, left in zip(views[0::2], views[1::2], strict=True):
            np.add(rest, sigma, out=part)
            part -= sigma
            rest, sigma = np.subtract(rest, part, out=left), sigma * step
        if fewer:
            np.multiply(views[2], 1 / step, out=views[1])
            views[1] += views[0]
    top = np.where(outside, np.nan, top)
    if x.shape[1] > 1:
        top = np.repeat(top, x.shape[1], axis=1)
    rests = [x, *(space[2:] if fewer else space[1::2])]
    return Cut([*space[0::2], space[-1]], rests, top, step, space[1] if fewer else None)


def _slice_step(k: int, fewer: bool) -> float:
    """2**-(beta + 1)."""
    return 2.0 ** -((53 - ceil_log2(k)) // 2 + (not fewer))


def _blocks(x: Array) -> list[Any]:
    """Some rows at a time of all matrices (batch, parts, rows, columns), so that passes
    over them stay in the cache.

    Columns of their own are short, and some rows of them would be pieces that lie
    apart.
    """
    if x.size <= BLOCK_ENTRIES or x.shape[3] == 1:
        return [...]
    many = max(BLOCK_ENTRIES * x.shape[2] // x.size, 1)
    return [
        (slice(None), slice(None), slice(i, i + many))
        for i in range(0, x.shape[2], many)
    ]


def sums_of(
    rows: Cut, columns: Cut, multiply: Callable[[Array, Array], Array]
) -> tuple[Array, Array]:
    """hi and lo (batch, 1, m, n) of a chunk, whose 2**v parts are added in a tree.
    Spoils `both` of the rows.
    """
    last = len(rows.parts) - 1
    if rows.both is not None and columns.both is not None:
        exact, rounded = _fewer_products(
            rows, columns, rows.both, columns.both, multiply
        )
    else:
        pairs = ((i, j) for i in range(last) for j in range(last - i))
        exact = [multiply(rows.parts[i], columns.parts[j]) for i, j in pairs]
        rounded = [
            multiply(a, columns.rests[last - i]) for i, a in enumerate(rows.parts)
        ]
    (hi, *exact), (lo, *rounded) = exact, rounded
    for some in _blocks(hi):
        total, low = hi[some], lo[some]
        for x in exact:
            total, error = two_sum(total, x[some])
            low += error
        for x in rounded:
            low += x[some]
        hi[some] = total
    while hi.shape[1] > 1:
        hi, lo = added((hi[:, 0::2], lo[:, 0::2]), (hi[:, 1::2], lo[:, 1::2]))
    return hi, lo


def _fewer_products(
    rows: Cut,
    columns: Cut,
    row_sums: Array,
    column_sums: Array,
    multiply: Callable[[Array, Array], Array],
) -> tuple[list[Array], list[Array]]:
    """a_0 b_0 and a_0 b_1 + a_1 b_0, which are exact; a_1 b_1, (a_0 + a_1) b_2 and a_2
    B.
    """
    high, small = (multiply(rows.parts[i], columns.parts[i]) for i in (0, 1))
    middle = multiply(row_sums, column_sums)
    for some in _blocks(middle):
        x = middle[some]
        x -= high[some]
        x -= small[some] * rows.step**-2
        x *= rows.step
    upper = np.subtract(rows.rests[0], rows.parts[2], out=row_sums)
    return [high, middle], [
        small,
        multiply(upper, columns.rests[2]),
        multiply(rows.parts[2], columns.rests[0]),
    ]


def added(x: tuple[Array, Array], y: tuple[Array, Array]) -> tuple[Array, Array]:
    """hi and lo of the sum of two."""
    hi, error = two_sum(x[0], y[0])
    return hi, (x[1] + y[1]) + error


def error_bound(
    tops: list[tuple[Array, Array]],
    chunks: list[slice],
    count: int,
    *,
    fewer: bool = False,
) -> Array:
    """err (batch, m, n) of the sums of all chunks, from the tops of their rows and
    columns cut in count parts.
    """
    k, parts = min(chunks[0].stop, K_PART), -(-chunks[0].stop // K_PART)
    levels = ceil_log2(parts) + len(chunks) - 1
    rounded = (k + 2 * levels + 10) * count * _slice_step(k, fewer) ** (count - 1)
    each = k * 2.0**-53 * (rounded + 32 * (levels + 1) ** 2 * 2.0**-53)
    return each * reduce(
        np.add, (np.matmul(x[..., 0].swapaxes(1, 2), y[:, :, 0]) for x, y in tops)
    )


def is_exact(rows: Cut, columns: Cut) -> Array:
    """Which sums (batch, parts, m, n) have a bound and no product but exact ones: parts
    of short entries are zeros.
    """
    left = np.concatenate([x.any(axis=3, keepdims=True) for x in rows.parts], 3)
    right = np.concatenate(
        [x.any(axis=2, keepdims=True) for x in columns.rests[::-1]], 2
    )
    return np.matmul(left + 0.0 * rows.top, right + 0.0 * columns.top) == 0


def shifted(hi: Array, lo: Array, err: Array, shift: int) -> tuple[Array, Array, Array]:
    """hi, lo and err times 2**shift; err is NaN where hi leaves the range in which
    nothing is rounded by that.
    """
    if not shift:
        return hi, lo, err
    zero = (hi == 0) & (err == 0)
    hi, lo, err = (scale_by_power(x, np.array(shift)) for x in (hi, lo, err))
    usual = (np.abs(hi) >= 2.0**-900) & (np.abs(hi) < np.inf)
    return hi, lo, np.where(usual | zero, err, np.nan)


def round_once(hi: Array, lo: Array, err: Array, fmt: Format) -> tuple[Array, Array]:
    """hi + lo, hi its float64, rounded to `fmt`, and whether all numbers within err of
    it round alike.

    Rounding to float32 is the second one, so err takes the first one in. A zero is
    exact, or its sign is not known.
    """
    if fmt is not FP32:
        return hi + 0.0, hi + (lo - err) == hi + (lo + err)
    outer = _outer_error(hi, lo, err)
    least, values, most = (
        x.astype(np.float32) for x in (hi + (lo - outer), hi + 0.0, hi + (lo + outer))
    )
    return values, (least == most) & ((values != 0) | (err == 0))


def _outer_error(hi: Array, lo: Array, err: Array) -> Array:
    """At least |hi - A B|, by which the second rounding to float32 may be off."""
    outer: Array = err + np.abs(hi) * (2.0**-52 * ((lo != 0) | (err > 0)))
    return outer


def error_beyond_rounding(hi: Array, lo: Array, err: Array, fmt: Format) -> Array:
    """E with |C - A B| <= E + u |A B| for C of `round_once`, u that of `fmt`; NaN where
    there is no bound.

    C is the nearest number to hi + lo, so |C - (hi + lo)| <= u |hi + lo| <= u |A B| + u
    err, and E = (1 + u) err. For float32 hi is rounded, which lies within the outer
    error of A B. An error of half the smallest subnormal number in the place of u |A B|
    is for every rounding.
    """
    error: Array = (err if fmt is not FP32 else _outer_error(hi, lo, err)) * (
        1.0 + 2.0**-20
    )
    return error


def least_magnitude(hi: Array, err: Array) -> Array:
    """At most |A B|, from the nearest float64 of hi + lo:
    |A B| >= |hi + lo| - err >= (1 - u) |hi| - err.
    """
    least: Array = np.abs(hi) * (1.0 - 2.0**-50) - 2.0 * err
    return least


def least_magnitudes(sums: Array, k: int) -> Array:
    """At most |A||B|, from a float64 product of the magnitudes of A and B with k terms,
    added in any order.

    k + 2 roundings: (1 + u)**(k + 2) (1 - (k + 2) u) <= 1; a product that underflows is
    too large by at most 2**-1074.
    """
    least: Array = sums * (1.0 - (k + 2) * 2.0**-53) - k * LEAST
    return least
