"""float32 products by one float64 product, whose roundings a bound proves.

Idea
    Products of float32 numbers are exact in float64, so that a float64 product D = A B
    of the library errs only in its sums. Where all numbers within a bound of D round to
    one float32 number, this number is A B rounded once. The remaining entries, about one
    in a thousand of normal data at k = 1024, are added term by term.
Notation
    u = 2**-53, k at most MAX_TERMS terms, |a| and |b| the Euclidean norms of a row of
    2**shift A and a column of B, l the exponent of the lowest bit of a row, or a column.
Bound
    A product of two numbers of 24 bits is exact, also where an FMA adds it, and none
    underflows: all are multiples of 2**(shift - 298). Sums in any order err by k u (1 +
    k u) sum |a_h b_h| at most, which is k u (1 + k u) |a| |b| by Cauchy and Schwarz [JR13].
    The ends D - margin and D + margin are rounded, by u (|D| + margin), and |D| <= (1 + 2
    k u) |a| |b|. So margin = (k + 3) u |a| |b|, with norms rounded upward, encloses A B:
    the two u that are left are more than k**2 u**2 <= u / 32 and the roundings of the
    margin. An entry is certain where both ends round to the same bits: -0 and +0 differ.
Exact when
    |a| |b| < 2**(53 + l_a + l_b). Every partial sum is a multiple of 2**(l_a + l_b) and
    below 2**53 of them, in any order: D is A B, and the margin is 0. An exact zero is +0.
    So ties of integers and of values of bfloat16 are settled, as no bound settles them.
Cost
    One float64 product, one reading of operands and product, and the remaining entries.
    Of normal data 1e-4 were seen to remain at k = 256, 7e-4 at 1024; nearly all entries
    remain where the columns are orthogonal, which a sample of rows shows.
References
    [JR13] Jeannerod, Rump: Improved error bounds for inner products in floating-point
    arithmetic, doi:10.1137/120894488.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hifigemm.base.formats import FP32
from hifigemm.numerics.bits import Array, lowest_bit
from hifigemm.numerics.rounded_sums import rounded_sums
from hifigemm.numerics.subnormals import matmul

MAX_SHIFT = 300
"""Powers of two by which no product leaves the range of float64: squares of norms lie
within 2**-898 and 2**880.
"""
SAMPLE = 32
"""Rows that are multiplied first: if too many of their entries are open, the other rows
are not multiplied.
"""
_ENTRIES = 2**22
"""Entries of the product that are made at a time: 32 MiB."""
_TERMS = 2**20
"""Terms of remaining entries that are added at a time."""
_UNIT = 2.0**-53
_OPEN = np.float32(np.nan)

Override = Callable[[Callable[..., Any]], Callable[..., Any]]
"""An engine's version of a function of this file."""


class Vectors(NamedTuple):
    """Rows as float64 numbers, and the quantities from which they are bounded."""

    numbers: Array  # (m, k)
    bounds: Array  # (2, m): norms, rounded upward, and norms in units of lowest bits


def in_doubles(x: Array, shift: int) -> Vectors | None:
    """2**shift x, for x of float32, with the bounds of its rows; None where x holds Inf
    or NaN.
    """
    numbers = x.astype(np.float64) * 2.0**shift
    # Squares are exact, and their sums have at most k + 64 roundings.
    upward = 1.0 + (x.shape[1] + 70) * 2.0**-52
    norms = np.sqrt(np.square(numbers).sum(axis=1)) * upward
    if not np.isfinite(norms).all():
        return None
    spreads = np.ldexp(norms, -lowest_bit(x, 1)[:, 0] - shift)
    return Vectors(numbers, np.stack([norms, spreads]))


@np.errstate(over="ignore")
def round_product(
    product: Array, rows: Array, columns: Array, terms: int, values: Array
) -> int:
    """Write the product of so many terms, rounded to float32, and NaN where that is not
    certain; returns the number of entries that are NaN.

    `rows` and `columns` are the bounds of the rows of A and the columns of B.
    """
    margin = ((terms + 3) * _UNIT * rows[0])[:, None] * columns[0]
    margin[rows[1][:, None] * columns[1] < 2.0**53] = 0.0
    product = product + 0.0  # an exact zero is +0
    lower = (product - margin).astype(np.float32)
    upper = (product + margin).astype(np.float32)
    is_open = lower.view(np.int32) != upper.view(np.int32)
    values[...] = np.where(is_open, _OPEN, lower)
    return int(np.count_nonzero(is_open))


def finish_entries(a: Array, b: Array, values: Array, shift: int) -> None:
    """Write 2**shift A B, rounded once, to the entries of `values` that are NaN."""
    rows, cols = np.nonzero(np.isnan(values))
    step = max(_TERMS // max(a.shape[1], 1), 1)
    for start in range(0, len(rows), step):
        i = rows[start : start + step]
        j = cols[start : start + step]
        left = a[i][:, None]
        right = b[:, j].T[:, :, None]
        sums, _ = rounded_sums(left, right, FP32, shift=shift)
        values[i, j] = sums[:, 0, 0]


def nbytes_of_product(m: int, k: int, n: int) -> int:
    """Bytes of B in float64, and of rows of A and of the product."""
    return 8 * (k * n + min(m, _rows_at_a_time(n)) * (k + n))


def _rows_at_a_time(n: int) -> int:
    return max(_ENTRIES // max(n, 1), SAMPLE)


def write_rows(
    a: Array, b: Array, values: Array, shift: int, most_open: float, override: Override
) -> int | None:
    """Write 2**shift A B, rounded once to float32, from the first row on.

    Returns the number of rows that are written: all, or those before a block of rows of
    which more than the share `most_open` of the entries is open. None where A or B holds
    Inf or NaN.

    Parameters
    ----------
    a, b : float32 arrays, shapes (m, k) and (k, n)
        k at most MAX_TERMS.
    values : float32 array, shape (m, n)
    shift : int
        Of at most MAX_SHIFT in magnitude.
    override : function
        The engine's version of `in_doubles`, `round_product` and `finish_entries`.
    """
    right = override(in_doubles)(b.T, 0)
    if right is None:
        return None

    # A few rows first, then as many as their product has room for.
    m, k = a.shape
    num_rows = 0
    num_open = 0
    stop = SAMPLE
    while num_rows < m:
        left = override(in_doubles)(a[num_rows:stop], shift)
        if left is None:
            return None
        product = matmul(left.numbers, right.numbers.T, may_flush=True)
        block = values[num_rows:stop]
        num_left = override(round_product)(product, left.bounds, right.bounds, k, block)
        if num_left > most_open * product.size:
            break
        num_open += num_left
        num_rows = min(stop, m)
        stop += _rows_at_a_time(b.shape[1])

    # The remaining entries are added term by term.
    if num_open:
        target = values[:num_rows]
        override(finish_entries)(a[:num_rows], right.numbers.T, target, shift)
    return num_rows
