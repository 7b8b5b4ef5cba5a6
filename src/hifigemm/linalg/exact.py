"""Exact solutions, determinants and definiteness of small matrices in Python's integers,
and their rounding.

Idea
    Rows of [A b] times powers of two are integers. Fraction-free elimination (Bareiss)
    divides each minor by the one before it, which leaves no remainder, so numbers stay
    as short as Hadamard's bound allows [Bar68]. The last pivot is det A, the ones before
    are minors, without exchanges the leading ones. At the end x = y / det A.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from hifigemm.numerics.bits import Array, DType

Row = list[int]

MOST_ROWS = 64
"""Of matrices that are eliminated: half a second of one core for entries of 53 bits."""
_QUICK_SECONDS = 4e-4
"""An elimination is quicker than floating point with a proof: up to 12 rows of 53 bits."""
_MOST_SECONDS = 2.0
"""Longer ones are left."""


@dataclass(frozen=True)
class IntegerMatrix:
    """Integers N = D1 A D2, where D1 and D2 are diagonals of powers of two: minors of A
    and of N have the same signs.
    """

    rows: list[Row]  # of N
    exponent: int  # det A = det N 2^-exponent

    @classmethod
    def of(cls, a: Array) -> IntegerMatrix | None:
        """The integers of a square matrix of float64; None for a complex or large one."""
        if a.dtype.kind == "c" or len(a) > MOST_ROWS:
            return None
        exponent = 0
        rows = []
        for vector in a:
            row, exponent_of_row = integers_of(vector)
            rows.append(row)
            exponent += exponent_of_row
        for j in range(len(rows)):
            common = _trailing_zeros([row[j] for row in rows])
            for row in rows:
                row[j] >>= common
            exponent -= common
        return cls(rows, exponent)

    @property
    def is_quick(self) -> bool:
        """True if an elimination takes no longer than a proof in floating point."""
        return self.seconds <= _QUICK_SECONDS

    @property
    def is_affordable(self) -> bool:
        """True if an elimination may be waited for."""
        return self.seconds <= _MOST_SECONDS

    @cached_property
    def seconds(self) -> float:
        """What an elimination takes of one core, about: n^3 / 3 steps with numbers that
        grow to n times the bits of an entry, by schoolbook multiplication.
        """
        n = len(self.rows)
        bits = max((abs(x).bit_length() for row in self.rows for x in row), default=0)
        digits = n * bits / 60  # of 30 bits, half of the longest
        return n**3 / 3 * (1.2e-7 + 1.2e-9 * digits**2)

    def determinant(self) -> Fraction:
        """det A."""
        n = len(self.rows)
        rows = [row.copy() for row in self.rows]
        if not _eliminate(rows, n):
            return Fraction(0)
        last = rows[-1][-1] if n else 1
        return Fraction(last) / Fraction(2) ** self.exponent

    def is_positive_definite(self) -> bool:
        """True if all leading minors are positive, which is Sylvester's criterion for a
        symmetric A.
        """
        rows = [row.copy() for row in self.rows]
        previous = 1
        for k, row in enumerate(rows):
            if row[k] <= 0:
                return False
            _eliminate_column(rows, k, previous)
            previous = row[k]
        return True


def exact_solution(a: Array, b: Array) -> list[list[Fraction]] | None:
    """The rows of A^-1 b; None where A is singular. a is n x n, b n x k, both finite
    and real.
    """
    n = len(a)
    rows = [integers_of(np.concatenate([a[i], b[i]]))[0] for i in range(n)]
    if not _eliminate(rows, n):
        return None
    determinant = rows[-1][n - 1]
    return _back_substituted(rows, n, determinant)


def integers_of(vector: Array) -> tuple[Row, int]:
    """Integers and the least e >= 0 with a float64 vector = integers / 2^e."""
    ratios = [x.as_integer_ratio() for x in vector.tolist()]
    # All denominators are powers of two, and divide the largest one
    common = max((denominator for _, denominator in ratios), default=1)
    integers = [
        numerator * (common // denominator) for numerator, denominator in ratios
    ]
    return integers, common.bit_length() - 1


def _trailing_zeros(numbers: Row) -> int:
    """Bits below the lowest one of any of these integers; 0 for zeros."""
    joined = 0
    for x in numbers:
        joined |= abs(x)
    return (joined & -joined).bit_length() - 1 if joined else 0


def _eliminate(rows: list[Row], n: int) -> bool:
    """Bring rows to echelon form in place; False where a column has no pivot."""
    previous = 1
    for k in range(n):
        pivots = [i for i in range(k, n) if rows[i][k]]
        if not pivots:
            return False
        if pivots[0] != k:
            # With another sign, so that the determinant keeps its own
            pivot_row = rows[pivots[0]]
            rows[pivots[0]] = [-x for x in rows[k]]
            rows[k] = pivot_row
        _eliminate_column(rows, k, previous)
        previous = rows[k][k]
    return True


def _eliminate_column(rows: list[Row], k: int, previous: int) -> None:
    """Take a multiple of row k from the rows below, whose entries are minors then;
    `previous` is the pivot before.
    """
    pivot_row = rows[k]
    pivot = pivot_row[k]
    for row in rows[k + 1 :]:
        factor = row[k]
        for j in range(k + 1, len(row)):
            minor = pivot * row[j] - factor * pivot_row[j]
            row[j] = minor // previous
        row[k] = 0


def _back_substituted(
    rows: list[Row], n: int, determinant: int
) -> list[list[Fraction]]:
    """x of U x = c, by y = det x, whose entries are integers by Cramer's rule."""
    sides = range(n, len(rows[0])) if rows else range(0)
    solution: list[list[Fraction]] = [[] for _ in range(n)]
    for side in sides:
        y = [0] * n
        for i in reversed(range(n)):
            row = rows[i]
            total = determinant * row[side]
            for j in range(i + 1, n):
                total -= row[j] * y[j]
            y[i] = total // row[i]
            solution[i].append(Fraction(y[i], determinant))
    return solution


def nearest(value: Fraction, dtype: DType) -> float:
    """The number of a dtype, float64 or float32, that is nearest to a fraction, ties to
    even; Inf beyond its range.
    """
    info = np.finfo(dtype)
    numerator = abs(value.numerator)
    denominator = value.denominator
    if numerator == 0:
        return 0.0

    # 2^exponent <= |value| < 2^(exponent + 1)
    exponent = numerator.bit_length() - denominator.bit_length()
    if numerator << max(-exponent, 0) < denominator << max(exponent, 0):
        exponent -= 1
    unit = max(exponent, int(info.minexp)) - int(info.nmant)

    # Python rounds a fraction to the nearest integer, ties to even
    significand = round(value / Fraction(2) ** unit)
    if abs(significand) >= 1 << (int(info.maxexp) - unit):
        return float("inf") if value > 0 else float("-inf")
    return float(np.ldexp(float(significand), unit))
