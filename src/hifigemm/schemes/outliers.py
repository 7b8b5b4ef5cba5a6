"""Few rows and columns with wide exponents, set apart to save moduli for the others.

Where no number of moduli holds the product because of a few vectors, their entries are
sums in words (numerics/rounded_sums.py), and moduli hold what is left: one entry 2**300
costs one row. The rest of this text is about vectors that moduli hold.

Idea
    How many moduli hold the exact product A B is decided by the row and the column
    whose lowest bits lie furthest below their norms. Of random data few vectors come
    near: those with a small entry among many. Let P0 < P1 < P2 be the products of
    `num_moduli`, of `shared` and of all moduli, let scales S belong to sqrt(P1), and
    let P1 <= P0 4**d. Vectors whose bits fit in S - d are multiplied modulo P0.
    Outliers are multiplied by them at the scales S + d modulo P1, with the residues
    that these have already, and outliers by outliers modulo P2.
Notation
    d = lowered; an outlier is a row or column that is set apart; the required bits of a
    vector are those that it lacks with the scales of two moduli, see
    numerics.scaling.required_bits_of_vectors.
Exact when
    No vector requires more bits than `gained_bits(shared)` - d, or + d for outliers; a
    balance moves bits from one operand to the other. Products of norms stay below
    P0 / 2, P1 / 2, P2 / 2.
Cost
    num_moduli products, `shared` of the outliers in whole tiles, and all moduli where
    outliers meet; residues of all vectors for `shared` moduli, and those of the
    outliers two more times.
References
    None: the scheme is that of ozaki2.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hifigemm.model.plan import Outliers, SeparateVectors
from hifigemm.model.problem import Problem
from hifigemm.numerics.bits import NO_BIT, Array
from hifigemm.numerics.residues import MAX_MODULI, moduli_set
from hifigemm.numerics.rounded_sums import MAX_TERMS
from hifigemm.numerics.scaling import gained_bits

_LEAST_WORK = 2**40
"""m n k from which fewer moduli save more than it costs to read all residues again for
few rows and columns, and to let the host choose them. On an H200, random operands: 2 to
4 % longer than without at n = 8192, a tenth less at 16384.
"""
_RESIDUES = 200
"""Entries of the result whose products take the time in which the residues of a vector
are made and read.
"""
_TILE = 128
"""Outliers are multiplied in tiles of so many rows or columns."""
_GAIN = 0.97
"""The cost with outliers set apart is to be less than this share of the cost without."""
_MAX_SAVED = 6
"""So many moduli may be saved at most."""
_MAX_OUTLIERS = 2048
"""So many rows, or columns, are set apart at most."""


_LEAST_WORK_SEPARATE = 2**33
"""m n k from which a second look, at each vector, takes little beside the product."""
_MAX_SEPARATE = 64
"""So many rows, or columns, become sums in words at most: two rows of tiles of these
sums, each 1/64 of the time that all entries of 4096 x 4096 take.
"""


class _Scales(NamedTuple):
    """The attributes of `Outliers` that do not depend on which vectors are outliers."""

    num_moduli: int
    shared: int
    lowered: int
    balance: int

    def limits(self) -> tuple[int, int]:
        """Most required bits of rows, and of columns, that are no outliers."""
        bits = gained_bits(self.shared, False) - self.lowered
        return bits + self.balance, bits - self.balance


def may_pay(problem: Problem) -> bool:
    """True if a problem is a large real one and no stack, so that outliers are sought."""
    work = problem.m * problem.n * problem.k
    return problem.batch == 1 and not problem.is_complex and work >= _LEAST_WORK


def may_separate(problem: Problem) -> bool:
    """True if vectors that no moduli hold are sought: in a large real matrix."""
    work = problem.m * problem.n * problem.k
    is_one = problem.batch == 1 and not problem.is_complex
    return is_one and work >= _LEAST_WORK_SEPARATE and problem.k <= MAX_TERMS


def find_separate(required: tuple[Array, Array]) -> SeparateVectors | None:
    """The fewest rows and columns without which moduli hold the product of the others.

    `required` holds the required bits of all rows and of all columns. None where that
    are too many.
    """
    # The most bits of the sides, for the largest number of moduli. The median row and
    # column get what they require, and share the spare bits.
    bits = gained_bits(MAX_MODULI, False)
    medians = [int(np.sort(x.ravel())[x.size // 2]) for x in required]
    wanted = (medians[0] - medians[1]) // 2
    rows = np.flatnonzero(required[0] > bits + wanted)
    cols = np.flatnonzero(required[1] > bits - wanted)
    if max(len(rows), len(cols)) > _MAX_SEPARATE:
        return None
    return SeparateVectors(tuple(rows.tolist()), tuple(cols.tolist()))


def without(
    required: tuple[Array, Array], separate: SeparateVectors
) -> tuple[Array, Array]:
    """The required bits, with those of vectors of zeros for the separate ones."""
    rows, cols = (x.copy() for x in required)
    rows[:, list(separate.rows)] = -NO_BIT
    cols[:, list(separate.cols)] = -NO_BIT
    return rows, cols


def find_outliers(
    problem: Problem, required: tuple[Array, Array], count: int
) -> Outliers | None:
    """The rows and columns to set apart; None where that does not pay.

    `required` holds the required bits of all rows and of all columns; `count` moduli
    hold the exact product of all of them.
    """
    required_rows, required_cols = required
    sorted_rows = np.sort(required_rows.ravel())
    sorted_cols = np.sort(required_cols.ravel())
    m, n = problem.m, problem.n

    def cost(num_moduli: int, shared: int, outlier_rows: int, outlier_cols: int) -> int:
        """Multiplied entries of the result, or as many as take the same time."""
        tiles = -(-outlier_rows // _TILE) * n + -(-outlier_cols // _TILE) * m
        return num_moduli * m * n + shared * (tiles * _TILE + _RESIDUES * (m + n))

    # The cheapest of all scales that leave few outliers.
    best: _Scales | None = None
    best_cost = _GAIN * cost(count, count, 0, 0)
    for scales in _possible_scales(count, sorted_rows, sorted_cols):
        row_limit, col_limit = scales.limits()
        outlier_rows = len(sorted_rows) - _num_within(sorted_rows, row_limit)
        outlier_cols = len(sorted_cols) - _num_within(sorted_cols, col_limit)
        if max(outlier_rows, outlier_cols) > _MAX_OUTLIERS:
            continue
        its_cost = cost(scales.num_moduli, scales.shared, outlier_rows, outlier_cols)
        if its_cost < best_cost:
            best = scales
            best_cost = its_cost
    if best is None:
        return None

    # The numbers of the vectors beyond the limits.
    row_limit, col_limit = best.limits()
    rows = tuple(np.flatnonzero(required_rows > row_limit).tolist())
    cols = tuple(np.flatnonzero(required_cols > col_limit).tolist())
    return Outliers(*best, rows=rows, cols=cols)


def _num_within(sorted_bits: Array, limit: int) -> int:
    """Number of entries up to `limit`."""
    return int(np.searchsorted(sorted_bits, limit, "right"))


def _possible_scales(
    count: int, sorted_rows: Array, sorted_cols: Array
) -> Iterator[_Scales]:
    """All scales with fewer than `count` moduli at which the widest vectors are exact.

    The balance gives the median row and column what they require and halves the spare
    bits, as far as the widest row and column allow it.
    """
    median_row = int(sorted_rows[len(sorted_rows) // 2])
    median_col = int(sorted_cols[len(sorted_cols) // 2])
    wanted = (median_row - median_col) // 2
    widest_row = int(sorted_rows[-1])
    widest_col = int(sorted_cols[-1])
    for num_moduli in range(max(count - _MAX_SAVED, 2), count):
        for shared in range(num_moduli + 1, count + 1):
            lowered = _lowered(num_moduli, shared)
            bits = gained_bits(shared, False) + lowered
            lower = widest_row - bits
            upper = bits - widest_col
            if lower <= upper:
                balance = min(max(wanted, lower), upper)
                yield _Scales(num_moduli, shared, lowered, balance)


@lru_cache
def _lowered(num_moduli: int, shared: int) -> int:
    """Least d for which P1 <= P0 4**d, P1 and P0 the half ranges of the moduli."""
    small = moduli_set(num_moduli, False).half_range
    large = moduli_set(shared, False).half_range
    return next(d for d in range(large.bit_length()) if large <= small << (2 * d))
