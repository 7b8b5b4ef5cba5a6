"""Tiles of small matrices: arrays with the axes systems, rows and columns.

Matrices are padded with zeros to a power of two of rows. A vector lies along the rows,
(systems, rows, 1), or along the columns, (systems, 1, rows).
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from hifigemm.kernels.vectors.statistics import magnitude_bits
from hifigemm.numerics.equilibration import MODERATE

_MODERATE = tl.constexpr(MODERATE)
_EXPONENT = tl.constexpr(0x7FF << 52)
"""The bits of the exponent of a float64."""


class Tile(NamedTuple):
    """How many systems a program has, its rows and its warps."""

    systems: int
    rows: int
    warps: int


def tile_of(n: int) -> Tile:
    """The tile for matrices of n rows that is quickest on an H200."""
    rows = triton.next_power_of_2(n)
    # Of matrices in a warp, 4 or 8 a thread
    entries = 32 * (4 if n <= 4 else 8)
    return Tile(max(entries // rows**2, 1), rows, max(rows**2 // entries, 1))


@triton.jit
def along_columns(x):
    """A vector along the rows as one along the columns."""
    return tl.permute(x, (0, 2, 1))


@triton.jit
def along_rows(x):
    """A vector along the columns as one along the rows."""
    return tl.permute(x, (0, 2, 1))


@triton.jit
def times(a, x):
    """A x along the rows, x along the columns."""
    return tl.sum(a * x, axis=2, keep_dims=True)


@triton.jit
def row_of(a, is_row):
    """The row for which a condition holds, along the columns."""
    return tl.sum(tl.where(is_row, a, 0.0), axis=1, keep_dims=True)


@triton.jit
def column_of(a, is_column):
    """The column for which a condition holds, along the rows."""
    return tl.sum(tl.where(is_column, a, 0.0), axis=2, keep_dims=True)


@triton.jit
def all_hold(conditions):
    """True for a system where a condition holds for all rows, and all columns if it has
    any.
    """
    are_true = tl.min(conditions.to(tl.int32), axis=2, keep_dims=True)
    return tl.min(are_true, axis=1, keep_dims=True) > 0


@triton.jit
def power_below(x):
    """The largest power of two that is no larger than a normal x > 0; 0 for a zero."""
    bits = magnitude_bits(x) & _EXPONENT
    return bits.to(tl.float64, bitcast=True)


@triton.jit
def power_above(x):
    """The smallest power of two that is larger than a normal x > 0; 1 for a zero.

    Powers are numbers and not exponents: of sums of exponents and constants LLVM makes
    pairs of INT16, in which ptxas 12.8 and 12.9 may lose a constant.
    """
    return tl.where(x == 0.0, 1.0, 2.0 * power_below(x))


@triton.jit
def are_moderate(x):
    """True for zeros and moderate numbers."""
    size = tl.abs(x)
    return ((size <= _MODERATE) & (size >= 1.0 / _MODERATE)) | (size == 0.0)


@triton.jit
def in_scale(a):
    """Twin: numerics.equilibration.stack_in_scale, for matrices alone. (A', D, E) with
    A = D A' E, and the powers of two D along the rows and E along the columns.
    """
    of_rows = power_above(tl.max(tl.abs(a), axis=2, keep_dims=True))
    a = a * (1.0 / of_rows)
    of_columns = power_above(tl.max(tl.abs(a), axis=1, keep_dims=True))
    return a * (1.0 / of_columns), of_rows, of_columns


@triton.jit
def pivot_of(column, rows, p):
    """The row with the largest entry of a column from row p on, along the systems; NaN
    counts for nothing.
    """
    sizes = tl.abs(column)
    may_be_pivot = (rows >= p) & (sizes >= 0.0)
    return tl.argmax(tl.where(may_be_pivot, sizes, -1.0), axis=1, keep_dims=True)


@triton.jit
def with_rows_exchanged(a, is_pivot, is_p):
    """A with two rows exchanged, or the entries of a vector along the rows."""
    pivot_row = row_of(a, is_pivot)
    row = row_of(a, is_p)
    return tl.where(is_p, pivot_row, tl.where(is_pivot, row, a))
