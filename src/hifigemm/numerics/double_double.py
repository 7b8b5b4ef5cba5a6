"""Sums of products as a double-double with a bound: hi + lo and err with |A B - (hi + lo)| <= err in every entry.

Idea
    A = a_0 + ... + a_(p-1), cut by (x + sigma) - sigma on grids of beta bits, the last part being what is left; B
    alike, with rests r_j = b_j + ... + b_(p-1). Then A B = sum_{i+j < p-1} a_i b_j + sum_i a_i r_(p-1-i): the first
    products are exact and added by TwoSum, the others are rounded and go into lo [OOOR12]. That is as accurate as a
    TwoProduct for each term [ORO05], and a row of A is cut once for all columns of B.
Exact when
    k 4**beta <= 2**53 for the at most K_PART terms of a sum, so that no partial sum of integers up to 2**beta is
    rounded, in any order. x + sigma has the unit of the grid, as |x| <= sigma / 3, and what is left is a float64.
Bound
    u = 2**-53, L_i and R_i the largest entries of a_i in a row and of r_(p-1-i) in a column, S = sum_i L_i R_i. The
    rounded products, and the p + 1 + 2 v sums that they enter with v levels of additions over parts of k, err by (k +
    2 v + 10) u k S at most. With M = k L_0 R_(p-1), exact sums stay below 5 M; errors of TwoSum, at most u times that,
    are rounded when they are added to lo, by 32 (v + 1)**2 u**2 M in all. Where S = 0 and v = 0 only one of them is not
    zero, and nothing is rounded. Both constants have room for the rounding of lo + err and err, and for k products that
    underflow: L_0 and R_(p-1) lie within 2**-450 and 2**450, other sizes are zero or above 2**-510. For other rows and
    columns err is NaN, so that no comparison holds.
References
    [OOOR12] doi:10.1007/s11075-011-9478-1. [ORO05] Ogita, Rump, Oishi: Accurate sum and dot product,
    doi:10.1137/030601818.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import numpy as np

from hifigemm.formats import FP32, Format
from hifigemm.numerics.bits import Array, ceil_log2, scale_by_power
from hifigemm.numerics.eft import two_sum

K_PART = 2048
"""Terms that are cut together: slices of 21 bits, and a bound that grows with the square of k within parts alone."""
_LEAST, _LEAST_REST, _LARGEST = 2.0**-450, 2.0**-510, 2.0**450


class Cut(NamedTuple):
    """Rows (batch, parts, m, k') or columns (batch, parts, k', n) as a sum of parts."""

    parts: list[Array]  # a_0, ..., a_(p-1)
    rests: list[Array]  # r_0, ..., r_(p-1)
    sizes: Array  # upper bounds of L_0, ..., L_(p-1) for rows, of R_0, ..., R_(p-1) for columns, along their terms


class Sums(NamedTuple):
    """hi, lo, and what bounds their error: sums of S and of M / k over parts of k; all (batch, parts, m, n)."""

    hi: Array
    lo: Array
    rounded: Array
    top: Array


def k_chunks(k: int, size: int) -> list[slice]:
    """Terms that are worked on at a time: 2**v whole parts, about `size` terms, and those that make no whole part."""
    found, start = [], 0
    while start < k:
        parts = max(min(size, k - start) // K_PART, 1)
        stop = min(start + (1 << parts.bit_length() - 1) * K_PART, k)
        found.append(slice(start, stop))
        start = stop
    return found


def cut(x: Array, axis: int, count: int, space: Array, look: bool = False) -> Cut:
    """Rows (axis 2, the inner dimension) or columns (axis 1) of a chunk (batch, m, k) or (batch, k, n) in count parts.

    The parts lie in `space`, one-dimensional, (2 count - 2) entries for each of x; the same space for all chunks saves
    page faults. `look`: sizes are those of the parts, not only bounds from their grids.
    """
    batch, k = len(x), x.shape[axis]
    length = min(k, K_PART)
    x = x.astype(np.float64, copy=False)
    if axis == 2:
        x = x.reshape(batch, -1, k // length, length).swapaxes(1, 2)
    else:
        x = x.reshape(batch, k // length, length, -1)
    beta, along = (53 - ceil_log2(length)) // 2, axis + 1
    space = space[: (2 * count - 2) * x.size].reshape(-1, *x.shape)
    size = _size(np.abs(x, out=space[0]), along, _LEAST)
    sigma = np.ldexp(1.5, np.frexp(size)[1] + (52 - beta))
    parts, rests, sizes = [], [x], [2.0 * size]  # the first slice may be larger than all entries
    for part, rest in zip(space[0::2], space[1::2], strict=True):
        np.add(rests[-1], sigma, out=part)
        part -= sigma
        parts.append(part)
        rests.append(np.subtract(rests[-1], part, out=rest))
        sizes.append(sigma * 2.0**-53)
        sigma = sigma * 2.0 ** -(beta + 1)
    parts.append(rests[-1])
    if look:
        sizes[1:] = (_size(np.abs(y), along) for y in (parts if axis == 2 else rests)[1:])
    return Cut(parts, rests, np.concatenate(sizes if axis == 2 else sizes[::-1], along))


def _size(magnitudes: Array, axis: int, least: float = _LEAST_REST) -> Array:
    """The largest magnitude along an axis, which is kept; NaN where the bound does not hold."""
    size = magnitudes.max(axis=axis, keepdims=True)
    usual = (size >= least) & (size <= _LARGEST)
    return size if usual.all() else np.where(usual | (size == 0), size, np.nan)


def sums_of(rows: Cut, columns: Cut, multiply: Callable[[Array, Array], Array]) -> Sums:
    """Sums over the terms of a chunk, in one part; its 2**v parts are added in a tree."""
    last = len(rows.parts) - 1
    pairs = ((i, j) for i in range(last) for j in range(last - i))
    hi, *others = (multiply(rows.parts[i], columns.parts[j]) for i, j in pairs)
    rounded = [multiply(a, columns.rests[last - i]) for i, a in enumerate(rows.parts)]
    for x in others:
        hi, error = two_sum(hi, x)
        rounded.append(error)
    lo = reduce(np.add, rounded)
    sums = Sums(hi, lo, np.matmul(rows.sizes, columns.sizes), rows.sizes[..., :1] * columns.sizes[..., -1:, :])
    while sums.hi.shape[1] > 1:
        sums = added(*(Sums(*(x[:, i::2] for x in sums)) for i in (0, 1)))
    return sums


def added(x: Sums, y: Sums) -> Sums:
    """The sum of two."""
    hi, error = two_sum(x.hi, y.hi)
    return Sums(hi, (x.lo + y.lo) + error, x.rounded + y.rounded, x.top + y.top)


def error_bound(sums: Sums, chunks: list[slice]) -> Array:
    """err (batch, m, n) of the sums of all chunks, which were added one after the other."""
    k, parts = min(chunks[0].stop, K_PART), -(-chunks[0].stop // K_PART)
    levels = ceil_log2(parts) + len(chunks) - 1
    sums = Sums(*(x[:, 0] for x in sums))
    top = sums.top if levels else sums.top * (sums.rounded > 0)
    return sums.rounded * ((k + 2 * levels + 10) * k * 2.0**-53) + top * (32 * (levels + 1) ** 2 * k * 2.0**-106)


def round_once(sums: Sums, err: Array, fmt: Format, shift: int) -> tuple[Array, Array]:
    """2**shift (hi + lo) rounded to `fmt`, and whether all numbers within err of it round alike (Ziv's test).

    Rounding to float32 is the second one, so err takes the first one in. A zero is exact, or its sign is not known.
    """
    hi, lo = two_sum(sums.hi[:, 0], sums.lo[:, 0])
    if shift:
        hi, lo, err = (scale_by_power(x, np.array(shift)) for x in (hi, lo, err))
        usual = (np.abs(hi) >= 2.0**-900) & (np.abs(hi) < np.inf)
        err = np.where(usual | ((hi == 0) & (err == 0)), err, np.nan)
    if fmt is not FP32:
        return hi + 0.0, hi + (lo - err) == hi + (lo + err)
    outer = err + np.abs(hi) * (2.0**-52 * ((lo != 0) | (err > 0)))
    least, values, most = (x.astype(np.float32) for x in (hi + (lo - outer), hi + 0.0, hi + (lo + outer)))
    return values, (least == most) & ((values != 0) | (err == 0))
