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
    return _matrices_in_scale(a, sizes)


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

    scaled_b, exponents = _sides_in_scale(matrix, b, sizes_of_b)
    determinant_exponent = matrix.rows.sum() + matrix.columns.sum()
    return Equilibrated(matrix.a, scaled_b, exponents, determinant_exponent)


def stack_in_scale(a: Array, b: Array) -> tuple[Array, Array, Array, Array]:
    """(A', B', exponents, is_moderate) for the systems of stacks A (batch, n, n) and B
    (batch, n, k); `is_moderate` is (batch, 1, 1), and where it is false nothing is to be
    read.
    """
    sizes = np.abs(a)
    sizes_of_b = np.abs(b)
    is_moderate = _are_moderate(sizes, (1, 2)) & _are_moderate(sizes_of_b, (1, 2))
    matrices = _matrices_in_scale(a, sizes)
    return matrices.a, *_sides_in_scale(matrices, b, sizes_of_b), is_moderate


def _matrices_in_scale(a: Array, sizes: Array) -> MatrixInScale:
    """Matrices of these magnitudes in scale: their rows, then columns of what these make of
    them.
    """
    rows = -_exponents(sizes, axis=-1)
    in_scale = power_of_two(rows)
    columns = -_exponents(sizes * in_scale, axis=-2)
    return MatrixInScale(a * in_scale * power_of_two(columns), rows, columns)


def _sides_in_scale(
    matrices: MatrixInScale, b: Array, sizes: Array
) -> tuple[Array, Array]:
    """Right sides of these magnitudes, in scale with the rows of their matrices, and the
    exponents of X.
    """
    of_rows = power_of_two(matrices.rows)
    sides = -_exponents(sizes * of_rows, axis=-2)
    exponents = np.swapaxes(matrices.columns, -1, -2) - sides
    return b * of_rows * power_of_two(sides), exponents


def _are_moderate(sizes: Array, axis: tuple[int, ...] = (0, 1)) -> Array:
    """True if all magnitudes along axes (kept with length 1) are moderate; False where one
    is NaN.
    """
    is_moderate = (sizes <= MODERATE) & (sizes >= 1.0 / MODERATE)
    return (is_moderate | (sizes == 0.0)).all(axis=axis, keepdims=True)


def _exponents(sizes: Array, axis: int) -> Array:
    """The e with 2^(e - 1) <= max < 2^e along an axis (kept with length 1), 0 for
    zeros.
    """
    _, exponents = np.frexp(sizes.max(axis=axis, keepdims=True, initial=0.0))
    return exponents.astype(np.int64)
