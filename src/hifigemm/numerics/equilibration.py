"""Rows and columns of a linear system in scale, where no bit can be lost.

Idea
    A' = 2^s A 2^t and B' = 2^s B 2^c have the solution X' = 2^-t X 2^c. With s and t
    the largest entries of rows and columns of A' lie in [1/2, 1), and with c those of
    the columns of B'. The columns come second: their largest entries are below 1
    already, and at least as large afterwards, so rows stay in scale.
Exact when
    Entries are zeros, or 2^-200 to 2^200 in modulus: s is within 200 of zero, t at most
    400, c within 400. No scaled entry has a bit below 2^(-200 - 200 - 400 - 52), which
    lies above 2^-1074, and the powers of two are float64 numbers, as are their
    products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hifigemm.numerics.bits import Array, power_of_two

MODERATE = 2.0**200
"""Of magnitudes, from its reciprocal on: for them nothing can be lost."""


class Equilibrated(NamedTuple):
    """A' and B', and what they are the system of."""

    a: Array
    b: Array
    exponents: Array
    """X = X' 2^exponents: t - c, n x k."""
    determinant_exponent: Array | int
    """det A' = det A 2^determinant_exponent: the sum of s and t."""


class MatrixInScale(NamedTuple):
    """A' and its exponents: s, n x 1, and t, 1 x n."""

    a: Array
    rows: Array
    columns: Array


def matrix_in_scale(a: Array, are_others_moderate: Any) -> MatrixInScale | None:
    """A (n x n, float64) with rows and columns in scale; None where an entry is not
    moderate, or `are_others_moderate` is false.
    """
    sizes = np.abs(a)
    if not bool(_are_moderate(sizes) & are_others_moderate):
        return None

    # Rows, then columns of what they make of A
    rows = -_exponents(sizes, axis=1)
    in_scale = power_of_two(rows)
    columns = -_exponents(sizes * in_scale, axis=0)
    return MatrixInScale(a * in_scale * power_of_two(columns), rows, columns)


def equilibrated(
    a: Array,
    b: Array,
    in_scale: Callable[[Array, Any], MatrixInScale | None] = matrix_in_scale,
) -> Equilibrated | None:
    """The system of A (n x n) and B (n x k), both float64, in scale; None where an
    entry is not moderate.
    """
    sizes_of_b = np.abs(b)
    matrix = in_scale(a, _are_moderate(sizes_of_b))
    if matrix is None:
        return None

    # Right sides, in scale with the rows
    of_rows = power_of_two(matrix.rows)
    sides = -_exponents(sizes_of_b * of_rows, axis=0)
    return Equilibrated(
        matrix.a,
        b * of_rows * power_of_two(sides),
        matrix.columns.reshape(-1, 1) - sides,
        matrix.rows.sum() + matrix.columns.sum(),
    )


def stack_in_scale(a: Array, b: Array) -> tuple[Array, Array, Array, Array]:
    """(A', B', exponents, is_moderate) for the systems of stacks A (batch, n, n) and B
    (batch, n, k), n > 0; `is_moderate` is (batch, 1, 1), and where it is false nothing is to
    be read.
    """
    n = a.shape[1]
    systems = np.concatenate([a, b], axis=2)
    sizes = np.abs(systems)
    is_moderate = (sizes <= MODERATE) & (sizes >= 1.0 / MODERATE)
    is_moderate = (is_moderate | (sizes == 0.0)).all(axis=(1, 2), keepdims=True)

    # Rows of A; right sides are columns like those of A
    _, rows = np.frexp(sizes[:, :, :n].max(axis=2, keepdims=True))
    in_scale = power_of_two(-rows)
    _, columns = np.frexp((sizes * in_scale).max(axis=1, keepdims=True))
    systems = systems * in_scale * power_of_two(-columns)
    columns_of_a = columns[:, :, :n]
    columns_of_b = columns[:, :, n:]
    exponents = columns_of_b - np.swapaxes(columns_of_a, 1, 2)
    return systems[:, :, :n], systems[:, :, n:], exponents, is_moderate


def _are_moderate(sizes: Array) -> Array:
    """True if all magnitudes are moderate; False where one is NaN."""
    smallest = sizes.min(initial=1.0, where=sizes > 0.0)
    return (sizes.max(initial=0.0) <= MODERATE) & (smallest >= 1.0 / MODERATE)


def _exponents(sizes: Array, axis: int) -> Array:
    """The e with 2^(e - 1) <= max < 2^e along an axis (kept with length 1), 0 for
    zeros.
    """
    _, exponents = np.frexp(sizes.max(axis=axis, keepdims=True, initial=0.0))
    return exponents.astype(np.int64)
