"""Powers of two between A and B: A B = (A D)(D**-1 B) with D = diag(2**d_h).

Any integers d_h give the same product, and none of them rounds anything. Ozaki scheme
II rounds rows of A and columns of B on grids that their largest entries set, so that
it loses what lies far below these. Where the columns of A are graded one way and the
rows of B the other way, as in a change of units, small entries of A meet large ones of
B, and their products are as large as others. Then D makes rows and columns flat.

Everything here is a function of exponents, which are integers: e with
2**(e - 1) <= |x| < 2**e, for complex entries that of the larger component. Entries that
are zero, Inf or NaN have none. Every engine finds the same d.

- R_i, Q_j: the largest exponents of the rows of A and of the columns of B.
- S_h = max_i (e_ih - R_i), T_h = max_j (f_hj - Q_j), at most 0: how large a column of A
  or a row of B is beside the vectors that it lies in.
- The slack of A is the largest mean of R_i - e_ih + S_h over the entries of a row: how
  far A stays from R_i + S_h, the pattern that S describes. That of B likewise.

Where the slacks are about the same, d_h = (T_h - S_h) / 2 makes the rows of A and the
columns of B parallel, where Cauchy and Schwarz have an equality. Else the operand with
less slack is made flat, d = c - S or d = T - c: one flat operand suffices for any other
one. As S and T are those of normalised vectors, this loses no more than
1.5 log2(k) + 2 bits of the error bound where it does not help. With
c = max_h (S_h + T_h) / 2 the largest entries of both operands become smaller by as
much, so that d may span as many bits as exponents do. No vector becomes larger than it
is: S_h + d_h <= 0 and T_h - d_h <= 0.

A column of A that meets zeros alone is made as large as a flat one, c - S_h, and a row
of B likewise: all its products are zeros, but it counts in the vectors that it lies in.

A choice of d is a guess: every bound holds for A D and D**-1 B, whatever d is. It is
taken where a sample of rows and columns gains by it: their `sampled_gap` is the error
ratio but for a factor of k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hifigemm.numerics.bits import Array, power_of_two
from hifigemm.numerics.blocking import vector_blocks
from hifigemm.numerics.scaling import required_bits

NO_EXPONENT = -(2**20)
"""Exponent of a zero, below those of all others by more than they differ."""

_NEARBY_SLACKS = 8
"""Slacks that differ by no more are about the same; tried on twelve families."""

_MOST = 1022
"""Largest |d_h|: 2**d and 2**-d are normal numbers."""

_LEAST_NORMAL = -1021
"""Exponent of 2**-1022, the smallest normal number."""

SAMPLES = 128
"""Pairs of a row and a column whose gap is looked at."""

WIDE_GAP = 10
"""Gap from which d is tried: 128 pairs of data of one size stay below 6, so that d has
to gain 5 bits and more.
"""


class Maxima(NamedTuple):
    """Exponents of one operand along k."""

    largest: Array  # int64 (k,): S_h, or NO_EXPONENT where all entries are zeros
    # int64 (k,): the exponent of the smallest component other than zero, where there is
    # one
    smallest: Array
    spread: int  # the largest mean of R_i - e_ih over a row, rounded down


def inner_exponents(a: Array, b: Array, block_entries: int) -> Array:
    """d, int64 (k,), for stacks a (batch or 1, m, k) and b (batch or 1, k, n).

    One d serves all matrices of a stack. It is 0 everywhere if one entry of A D or of
    D**-1 B would be no normal number.
    """
    left = _maxima(a, 2, block_entries)
    right = _maxima(b, 1, block_entries)
    return chosen_exponents(left, right)


def gaining_exponents(
    a: Array,
    b: Array,
    block_entries: int,
    gap_of: Callable[..., int],
    exponents_of: Callable[[Array, Array, int], Array],
) -> Array | None:
    """`inner_exponents`; None where a sample of the operands gains too little.

    `gap_of` and `exponents_of` are `sampled_gap` and `inner_exponents`, or those of an
    engine.
    """
    gap = gap_of(a, b)
    if gap < WIDE_GAP:
        return None
    d = exponents_of(a, b, block_entries)
    return d if closes(gap, gap_of(a, b, d)) else None


def inner_required_bits(
    a: Array, b: Array, limit: int, block_entries: int
) -> tuple[int, int] | None:
    """`scaling.required_bits` of A D and D**-1 B; None too where they gain too little."""
    d = gaining_exponents(a, b, block_entries, sampled_gap, inner_exponents)
    if d is None:
        return None
    x = scaled_along_k(a, d, 2)
    y = scaled_along_k(b, d, 1)
    return required_bits(x, y, limit, block_entries)


def chosen_exponents(left: Maxima, right: Maxima) -> Array:
    """`inner_exponents` of operands with these maxima."""
    has_left = left.largest > NO_EXPONENT
    has_right = right.largest > NO_EXPONENT

    # The mean of -S_h over the columns that have entries, rounded down.
    slack_left = left.spread - _mean(-left.largest[has_left])
    slack_right = right.spread - _mean(-right.largest[has_right])

    # Flat vectors have half of the largest S_h + T_h along k, of A and of B alike.
    meet = has_left & has_right
    common = (left.largest + right.largest)[meet]
    flat = int(common.max()) >> 1 if common.size else 0
    flat_left = flat - left.largest
    flat_right = right.largest - flat
    if abs(slack_left - slack_right) <= _NEARBY_SLACKS:
        d = (right.largest - left.largest) >> 1
    elif slack_left < slack_right:
        d = flat_left
    else:
        d = flat_right
    # Terms that meet zeros alone, and those without entries.
    unmet = np.where(has_left, flat_left, np.where(has_right, flat_right, 0))
    d = np.where(meet, d, unmet)
    d = np.clip(d, -_MOST, _MOST)

    # Where an entry would be subnormal, bits of it might be lost.
    smallest_left = (left.smallest + d)[has_left].min(initial=0)
    smallest_right = (right.smallest - d)[has_right].min(initial=0)
    if min(smallest_left, smallest_right) < _LEAST_NORMAL:
        return np.zeros_like(d)
    return d


def closes(before: int, after: int) -> bool:
    """True if the `sampled_gap` with d is small enough beside the one without."""
    return 2 * after <= before


def sampled_gap(a: Array, b: Array, d: Array | None = None) -> int:
    """Bits between the largest entries of a row and a column, and their products.

    This is the largest max_h (e_ih + d_h) + max_h (f_hj - d_h) - max_h (e_ih + f_hj) of
    `SAMPLES` pairs of a row and a column of the first matrices; 0 where no product of a
    pair is other than zero. The error ratio is about that power of two.
    """
    pairs = np.arange(SAMPLES)
    rows = entry_exponents(a[0, pairs % a.shape[1]])
    columns = entry_exponents(b[0][:, pairs % b.shape[2]].T)
    meeting = (rows + columns).max(axis=1, initial=2 * NO_EXPONENT)
    if d is not None:
        rows = rows + d
        columns = columns - d
    largest = rows.max(axis=1, initial=NO_EXPONENT)
    largest = largest + columns.max(axis=1, initial=NO_EXPONENT)
    gaps = np.where(meeting > NO_EXPONENT // 2, largest - meeting, 0)
    return int(gaps.max(initial=0))


def scaled_along_k(x: Array, d: Array, axis: int) -> Array:
    """A D (axis 2) or D**-1 B (axis 1), float64 or complex128, exactly."""
    factors = power_of_two(d) if axis == 2 else power_of_two(-d)[:, None]
    return x * factors


def entry_exponents(x: Array) -> Array:
    """Exponents of entries, int64; NO_EXPONENT for zeros, Inf and NaN."""
    if x.dtype.kind == "c":
        exponents = np.maximum(_exponents(x.real), _exponents(x.imag))
        return np.where(np.isfinite(x), exponents, NO_EXPONENT)
    return _exponents(x)


def _exponents(x: Array) -> Array:
    """Exponents of real numbers, int64; NO_EXPONENT for zeros, Inf and NaN."""
    has_exponent = np.isfinite(x) & (x != 0)
    exponents = np.frexp(x.astype(np.float64, copy=False))[1].astype(np.int64)
    return np.where(has_exponent, exponents, NO_EXPONENT)


def _maxima(x: Array, axis: int, block_entries: int) -> Maxima:
    """Exponents of the rows (axis 2) or columns (axis 1) of a stack."""
    k = x.shape[axis]
    across = (0, 3 - axis)
    largest = np.full(k, NO_EXPONENT, np.int64)
    smallest = np.full(k, -NO_EXPONENT, np.int64)
    spread = 0
    for block in vector_blocks(x, axis, block_entries):
        entries = x[block]
        exponents = entry_exponents(entries)
        has_entry = exponents > NO_EXPONENT
        vector = exponents.max(axis=axis, keepdims=True, initial=NO_EXPONENT)

        # How large the entries are beside the largest of their vector.
        distance = np.where(has_entry, vector - exponents, 0)
        relative = np.where(has_entry, -distance, NO_EXPONENT)
        largest = np.maximum(largest, relative.max(axis=across, initial=NO_EXPONENT))
        counts = np.maximum(has_entry.sum(axis=axis), 1)
        means = distance.sum(axis=axis) // counts
        spread = max(spread, int(means.max(initial=0)))

        # The smallest component of entries that count.
        is_complex = entries.dtype.kind == "c"
        for part in (entries.real, entries.imag) if is_complex else (entries,):
            part_exponents = _exponents(part)
            has_exponent = has_entry & (part_exponents > NO_EXPONENT)
            part_exponents = np.where(has_exponent, part_exponents, -NO_EXPONENT)
            lowest = part_exponents.min(axis=across, initial=-NO_EXPONENT)
            smallest = np.minimum(smallest, lowest)
    return Maxima(largest, smallest, spread)


def _mean(numbers: Array) -> int:
    """The mean of integers >= 0, rounded down; 0 of none."""
    return int(numbers.sum()) // max(numbers.size, 1)
