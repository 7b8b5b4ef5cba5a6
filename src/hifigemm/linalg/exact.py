"""Exact solutions of small systems in Python's integers, and their rounding.

Idea
    Rows of [A b] times powers of two are integers. Fraction-free elimination (Bareiss)
    divides each minor by the one before it, which leaves no remainder, so numbers stay
    as short as Hadamard's bound allows [Bar68]. At the end x = y / det A.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hifigemm.numerics.bits import Array, DType

Row = list[int]


def exact_solution(a: Array, b: Array) -> list[list[Fraction]] | None:
    """The rows of A^-1 b; None where A is singular. a is n x n, b n x k, both finite
    and real.
    """
    n = len(a)
    rows = [integers_of(np.concatenate([a[i], b[i]])) for i in range(n)]
    if not _eliminate(rows, n):
        return None
    determinant = rows[-1][n - 1]
    return _back_substituted(rows, n, determinant)


def integers_of(vector: Array) -> Row:
    """The entries of a float64 vector times the least power of two that makes integers
    of them all.
    """
    ratios = [x.as_integer_ratio() for x in vector.tolist()]
    # All denominators are powers of two, and divide the largest one
    common = max(denominator for _, denominator in ratios)
    return [numerator * (common // denominator) for numerator, denominator in ratios]


def _eliminate(rows: list[Row], n: int) -> bool:
    """Bring rows to echelon form in place; False where a column has no pivot."""
    previous = 1
    for k in range(n):
        pivots = [i for i in range(k, n) if rows[i][k]]
        if not pivots:
            return False
        pivot_row = rows[pivots[0]]
        rows[pivots[0]] = rows[k]
        rows[k] = pivot_row
        pivot = pivot_row[k]
        for row in rows[k + 1 :]:
            factor = row[k]
            for j in range(k + 1, len(row)):
                minor = pivot * row[j] - factor * pivot_row[j]
                row[j] = minor // previous
            row[k] = 0
        previous = pivot
    return True


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
