"""Matrices whose entries are zero except near the diagonal, or on one side of it.

Idea
    The zeros of a matrix show its band: no argument is needed. Two corners rule out
    nearly all dense matrices, in two comparisons. All other matrices are read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hifigemm.numerics.bits import Array

_BLOCK_ROWS = 64
"""Rows that are multiplied at once, with the columns that some of them need."""


@dataclass(frozen=True)
class Band:
    """Where the entries of an n x n matrix are that may differ from zero."""

    n: int
    lower: int
    """Diagonals below the main one."""
    upper: int
    """Diagonals above the main one."""

    @classmethod
    def of(cls, a: Array) -> Band:
        """The narrowest band of a matrix in the memory of the CPU."""
        n = len(a)
        if n == 0 or (a[0, -1] != 0.0 and a[-1, 0] != 0.0):
            return cls(n, max(n - 1, 0), max(n - 1, 0))
        is_entry = a != 0.0
        rows = np.flatnonzero(is_entry.any(axis=1))
        first_columns = is_entry.argmax(axis=1)[rows]
        last_columns = n - 1 - is_entry[:, ::-1].argmax(axis=1)[rows]
        lower = int((rows - first_columns).max(initial=0))
        upper = int((last_columns - rows).max(initial=0))
        return cls(n, lower, upper)

    @property
    def is_triangular(self) -> bool:
        """True if all entries lie on one side of the diagonal, or on it."""
        return min(self.lower, self.upper) == 0

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Blocks of rows in turn, and the columns in which they have entries."""
        for start in range(0, self.n, _BLOCK_ROWS):
            stop = min(start + _BLOCK_ROWS, self.n)
            first_column = max(start - self.lower, 0)
            last_column = min(stop + self.upper, self.n)
            yield slice(start, stop), slice(first_column, last_column)
