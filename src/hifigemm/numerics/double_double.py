"""Sums of products as double-doubles with a bound: |A B - (hi + lo)| <= err entrywise.

Idea
    A = a_0 + ... + a_(p-1) is cut by (x + sigma) - sigma on grids of beta bits; the
    last part is the remainder. B is cut alike, with remainders
    r_j = b_j + ... + b_(p-1). Then

        A B = sum_{i+j < p-1} a_i b_j + sum_i a_i r_(p-1-i).

    The products of the first sum are exact and added by TwoSum; those of the second are
    rounded and go into lo [OOOR12]. That is as accurate as a TwoProduct for each term
    [ORO05], and a row of A is cut once for all columns of B.
One product less
    For p = 3 and s = 2**(beta + 1), the exact products a_0 b_0, a_1 b_1 and
    (a_0 + s a_1) (b_0 + s b_1) give a_0 b_1 + a_1 b_0 exactly, as in Karatsuba's
    product of two digits, and a_1 b_1 too. Then two rounded products are enough, with
    slices that are shorter by one bit:

        A B = a_0 b_0 + (a_0 b_1 + a_1 b_0) + a_1 b_1 + (a_0 + a_1) b_2 + a_2 B.
Exact when
    k 4**beta <= 2**53 for the at most K_PART terms of a sum, so that no partial sum of
    integers up to 2**beta is rounded, in any order; k 4**(beta + 1) <= 2**53 with one
    product less, whose differences lie below that too. x + sigma has the unit of the
    grid, as |x| <= sigma / 3, and the remainder is a float64.
Bound
    u = 2**-53, E and F are the powers of two above the entries of a row and of a
    column, and v counts the levels of additions over parts of k.

    Rounded products: part i and remainder i are at most E 2**(-i (beta + 1)), so the p
    rounded products, or two and a_1 b_1, sum to at most k S in magnitude,
    S = p 2**(-(p - 1) (beta + 1)) E F. With the p + 1 + 2 v sums that they enter, they
    err by at most (k + 2 v + 10) u k S.

    Exact products: their sums stay below 5 k E F. Errors of TwoSum, at most u times
    that, are rounded when they are added to lo, by 32 (v + 1)**2 u**2 k E F in all.

    Both constants have room for the rounding of lo + err and of err, and for k products
    that underflow, as E and F lie within 2**-450 and 2**450. For other rows and columns
    err is NaN, so that no comparison holds; zeros are multiplied in their place, as
    processors take a hundred times as long for subnormal numbers.
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

from hifigemm.base.formats import FP32, Format
from hifigemm.numerics.bits import LEAST, Array, ceil_log2, scale_by_power
from hifigemm.numerics.blocking import BLOCK_ENTRIES
from hifigemm.numerics.eft import two_sum

K_PART = 2048
"""Terms of k that are cut together, in parts of the inner dimension.

Slices have 21 bits then, and the bound grows with the square of k only within a part.
"""

_MAX_EXPONENT = 450
"""E and F lie within 2**-450 and 2**450, or else there is no bound: see Bound."""


class Cut(NamedTuple):
    """Rows (batch, parts, m, k') or columns (batch, parts, k', n) as sums of slices."""

    parts: list[Array]  # a_0, ..., a_(p-1)
    remainders: list[Array]  # r_0, ..., r_(p-1); a_1 replaces r_1 if `fewer`
    top: Array  # E or F, with an inner dimension of 1
    step: float  # 2**-(beta + 1)
    digit_sum: Array | None  # a_0 + 2**(beta + 1) a_1 for one product less


def k_chunks(k: int, size: int) -> list[slice]:
    """Chunks of k that are worked on at a time, of about `size` terms each.

    A chunk has 2**v whole parts of K_PART terms; the last one may be a shorter part.
    """
    chunks = []
    start = 0
    while start < k:
        parts = max(min(size, k - start) // K_PART, 1)
        stop = min(start + (1 << parts.bit_length() - 1) * K_PART, k)
        chunks.append(slice(start, stop))
        start = stop
    return chunks


def cut(x: Array, axis: int, count: int, space: Array, *, fewer: bool = False) -> Cut:
    """Rows or columns of a chunk of k as a sum of `count` slices.

    x is (batch, m, k) with axis 2, the inner dimension, or (batch, k, n) with axis 1.
    The slices lie in `space`, one-dimensional, (2 count - 2) entries for each of x; the
    same space for all chunks saves page faults. With `fewer`, three slices are cut for
    one product less.
    """
    # The inner dimension in parts, on an axis of their own: (batch, parts, ., .).
    batch = len(x)
    k = x.shape[axis]
    length = min(k, K_PART)
    x = x.astype(np.float64, copy=False)
    if axis == 2:
        x = x.reshape(batch, -1, k // length, length).swapaxes(1, 2)
    else:
        x = x.reshape(batch, k // length, length, -1)
    space = space[: (2 * count - 2) * x.size].reshape(-1, *x.shape)

    # The grid of each vector, one for all of its parts: NumPy adds one number to a long
    # vector faster. Vectors out of range become zeros.
    magnitude = space[0]
    np.abs(x, out=magnitude)
    largest = magnitude.max(axis=(1, axis + 1), keepdims=True)
    exponent = np.frexp(largest)[1]
    outside = np.abs(exponent) > _MAX_EXPONENT
    if outside.any():
        x = np.where(outside, 0.0, x)
        exponent = np.where(outside, 0, exponent)
    top = np.ldexp(1.0, exponent)
    step = _slice_step(length, fewer)
    first_sigma = top * (1.5 * 2.0**53 * step)

    # `space` holds a_0, r_1, a_1, r_2 and so on: each slice and what it leaves.
    for block in _row_blocks(x):
        remainder = x[block]
        sigma = first_sigma[block] if axis == 2 else first_sigma
        slices = [y[block] for y in space[0::2]]
        next_remainders = [y[block] for y in space[1::2]]
        for part, next_remainder in zip(slices, next_remainders, strict=True):
            np.add(remainder, sigma, out=part)
            part -= sigma
            remainder = np.subtract(remainder, part, out=next_remainder)
            sigma = sigma * step
        if fewer:
            # a_0 + s a_1 replaces r_1, which no product takes.
            digit_sum = next_remainders[0]
            np.multiply(slices[1], 1 / step, out=digit_sum)
            digit_sum += slices[0]

    # No bound for vectors out of range.
    top = np.where(outside, np.nan, top)
    if x.shape[1] > 1:
        top = np.repeat(top, x.shape[1], axis=1)
    return Cut(
        parts=[*space[0::2], space[-1]],
        remainders=[x, *(space[2:] if fewer else space[1::2])],
        top=top,
        step=step,
        digit_sum=space[1] if fewer else None,
    )


def _slice_step(k: int, fewer: bool) -> float:
    """2**-(beta + 1) for the largest beta that is exact for k terms."""
    return 2.0 ** -((53 - ceil_log2(k)) // 2 + (not fewer))


def _row_blocks(x: Array) -> list[Any]:
    """Indices of x (batch, parts, rows, columns): some rows of all matrices at a time.

    So passes over these rows stay in the cache. Matrices of one column are taken whole,
    as some rows of each would be short pieces that lie apart.
    """
    if x.size <= BLOCK_ENTRIES or x.shape[3] == 1:
        return [...]
    rows = max(BLOCK_ENTRIES * x.shape[2] // x.size, 1)
    return [
        (slice(None), slice(None), slice(i, i + rows))
        for i in range(0, x.shape[2], rows)
    ]


def sums_of(
    rows: Cut, columns: Cut, multiply: Callable[[Array, Array], Array]
) -> tuple[Array, Array]:
    """hi and lo (batch, 1, m, n) of a chunk of k.

    Overwrites `digit_sum` of the rows. `multiply` is a float64 product of stacks of
    matrices with sums in any order.
    """
    # The exact products, a_0 b_0 first, and the rounded ones.
    if rows.digit_sum is not None and columns.digit_sum is not None:
        exact, rounded = _fewer_products(
            rows, columns, rows.digit_sum, columns.digit_sum, multiply
        )
    else:
        exact = []
        rounded = []
        last = len(rows.parts) - 1
        for i, row_part in enumerate(rows.parts):
            exact += [multiply(row_part, y) for y in columns.parts[: last - i]]
            rounded.append(multiply(row_part, columns.remainders[last - i]))

    # Their sum in each of the 2**v parts, in the memory of the first of either kind.
    hi = exact[0]
    lo = rounded[0]
    for block in _row_blocks(hi):
        total = hi[block]
        low = lo[block]
        for product in exact[1:]:
            total, error = two_sum(total, product[block])
            low += error
        for product in rounded[1:]:
            low += product[block]
        hi[block] = total

    # The sum over the parts, in a tree.
    while hi.shape[1] > 1:
        even_parts = hi[:, 0::2], lo[:, 0::2]
        odd_parts = hi[:, 1::2], lo[:, 1::2]
        hi, lo = added(even_parts, odd_parts)
    return hi, lo


def _fewer_products(
    rows: Cut,
    columns: Cut,
    row_sums: Array,
    column_sums: Array,
    multiply: Callable[[Array, Array], Array],
) -> tuple[list[Array], list[Array]]:
    """[a_0 b_0, a_0 b_1 + a_1 b_0], both exact, and [a_1 b_1, (a_0 + a_1) b_2, a_2 B].

    `row_sums` and `column_sums` are a_0 + s a_1 and b_0 + s b_1; `row_sums` is
    overwritten.
    """
    # The middle digit of (a_0 + s a_1) (b_0 + s b_1), s = 1 / rows.step.
    high = multiply(rows.parts[0], columns.parts[0])
    small = multiply(rows.parts[1], columns.parts[1])
    middle = multiply(row_sums, column_sums)
    for block in _row_blocks(middle):
        x = middle[block]
        x -= high[block]
        x -= small[block] * rows.step**-2
        x *= rows.step

    # a_0 + a_1 is A - a_2, exactly.
    leading = np.subtract(rows.remainders[0], rows.parts[2], out=row_sums)
    rounded = [
        small,
        multiply(leading, columns.remainders[2]),
        multiply(rows.parts[2], columns.remainders[0]),
    ]
    return [high, middle], rounded


def added(x: tuple[Array, Array], y: tuple[Array, Array]) -> tuple[Array, Array]:
    """hi and lo of the sum of two double-doubles x and y."""
    hi, error = two_sum(x[0], y[0])
    return hi, (x[1] + y[1]) + error


def error_bound(
    tops: list[tuple[Array, Array]],
    chunks: list[slice],
    count: int,
    *,
    fewer: bool = False,
) -> Array:
    """err (batch, m, n) of the sums over all chunks: the bound of the module docstring.

    `tops` are the E and F of each chunk, and `count` is the number of slices.
    """
    k = min(chunks[0].stop, K_PART)
    parts = -(-chunks[0].stop // K_PART)
    levels = ceil_log2(parts) + len(chunks) - 1
    rounded = (k + 2 * levels + 10) * count * _slice_step(k, fewer) ** (count - 1)
    exact = 32 * (levels + 1) ** 2 * 2.0**-53
    factor = k * 2.0**-53 * (rounded + exact)
    # The sum of E F over all parts of k.
    top_products = []
    for row_tops, column_tops in tops:
        rows = row_tops[..., 0].swapaxes(1, 2)
        top_products.append(np.matmul(rows, column_tops[:, :, 0]))
    return factor * reduce(np.add, top_products)


def is_exact(rows: Cut, columns: Cut) -> Array:
    """True for the sums (batch, parts, m, n) in which no rounded product is nonzero.

    Slices of short entries are zeros after the first ones. False where err is NaN.
    """
    has_part = [x.any(axis=3, keepdims=True) for x in rows.parts]
    has_remainder = [x.any(axis=2, keepdims=True) for x in columns.remainders[::-1]]
    left = np.concatenate(has_part, 3)
    right = np.concatenate(has_remainder, 2)
    return np.matmul(left + 0.0 * rows.top, right + 0.0 * columns.top) == 0


def shifted(hi: Array, lo: Array, err: Array, shift: int) -> tuple[Array, Array, Array]:
    """hi, lo and err times 2**shift.

    err is NaN where 2**shift hi leaves the range in which this rounds nothing.
    """
    if not shift:
        return hi, lo, err
    is_zero = (hi == 0) & (err == 0)
    power = np.array(shift)
    hi = scale_by_power(hi, power)
    lo = scale_by_power(lo, power)
    err = scale_by_power(err, power)
    # 2**-900 is far above the subnormal numbers, to which lo and err would be rounded.
    in_range = (np.abs(hi) >= 2.0**-900) & (np.abs(hi) < np.inf)
    return hi, lo, np.where(in_range | is_zero, err, np.nan)


def round_once(hi: Array, lo: Array, err: Array, fmt: Format) -> tuple[Array, Array]:
    """hi + lo rounded to `fmt`, and whether all numbers within err of it round alike.

    hi is the float64 that is nearest to hi + lo. For float32 it is rounded a second
    time, so that the error of the first rounding is added to err. The sign of a zero is
    certain only where it is exact.
    """
    if fmt is not FP32:
        return hi + 0.0, hi + (lo - err) == hi + (lo + err)
    outer = _outer_error(hi, lo, err)
    values = (hi + 0.0).astype(np.float32)
    lower = (hi + (lo - outer)).astype(np.float32)
    upper = (hi + (lo + outer)).astype(np.float32)
    return values, (lower == upper) & ((values != 0) | (err == 0))


def _outer_error(hi: Array, lo: Array, err: Array) -> Array:
    """Upper bound of |hi - A B|: err and the rounding of hi + lo to hi."""
    is_inexact = (lo != 0) | (err > 0)
    outer: Array = err + np.abs(hi) * (2.0**-52 * is_inexact)
    return outer


def error_beyond_rounding(hi: Array, lo: Array, err: Array, fmt: Format) -> Array:
    """E with |C - A B| <= E + u |A B| for C of `round_once`; NaN where err is NaN.

    u is that of `fmt`. C is the nearest number to hi + lo, so that
    |C - (hi + lo)| <= u |hi + lo| <= u |A B| + u err, and E = (1 + u) err. For float32
    it is hi that is rounded, which lies within the outer error of A B. As for every
    rounding, half the smallest subnormal number may replace u |A B|.
    """
    error = err if fmt is not FP32 else _outer_error(hi, lo, err)
    bound: Array = error * (1.0 + 2.0**-20)
    return bound


def least_magnitude(hi: Array, err: Array) -> Array:
    """Lower bound of |A B|, from hi, the nearest float64 of hi + lo.

    |A B| >= |hi + lo| - err >= (1 - u) |hi| - err.
    """
    bound: Array = np.abs(hi) * (1.0 - 2.0**-50) - 2.0 * err
    return bound


def least_magnitudes(sums: Array, k: int) -> Array:
    """Lower bound of |A||B|, from a float64 product of the magnitudes of A and B.

    Its sums over k terms may be added in any order, with k + 2 roundings:
    (1 + u)**(k + 2) (1 - (k + 2) u) <= 1. A product that underflows is too large by at
    most 2**-1074.
    """
    bound: Array = sums * (1.0 - (k + 2) * 2.0**-53) - k * LEAST
    return bound
