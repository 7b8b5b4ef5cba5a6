"""Eigenvalues and singular values with their radii: what `eigvalsh` and `svdvals` return,
and what both do to their operand before and after.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hifigemm.base.exceptions import VerificationError
from hifigemm.linalg.arguments import (
    Answers,
    WideOperands,
    as_native,
    beyond_range,
    in_dtype,
    verifying,
)
from hifigemm.linalg.arrays import check_finite, numbers, to_device_of
from hifigemm.linalg.scaling import restored, scaled
from hifigemm.linalg.upward import above
from hifigemm.numerics.bits import LEAST, Array, DType


@dataclass(frozen=True, eq=False)
class VerifiedValues:
    """Eigenvalues or singular values with ``|values - exact| <= radius`` in every
    entry.

    Attributes
    ----------
    values : array
        In the operand's library, real, of shape ``(..., n)``. Eigenvalues ascend,
        singular values descend.
    radius : array
        The same shape as ``values``.
    """

    values: Any
    radius: Any


Enclosure = tuple[Array, Array]
"""Values and radii of one matrix, in the memory of the CPU."""


def verified_values(
    operands: WideOperands, count: int, enclosure: Callable[[Array], Enclosure]
) -> VerifiedValues:
    """The values of a stack of matrices of `count` values each; `enclosure` is that of one
    matrix.

    Raises VerificationError: for the first matrix that fails, after all were tried.
    """
    (a,) = operands.arrays
    stack = a.shape[:-2]
    values = np.full((*stack, count), np.nan, operands.real, like=a)
    radius = np.full((*stack, count), np.inf, operands.real, like=a)

    def enclose(index: tuple[int, ...]) -> None:
        if count:
            interval = enclosure(a[index])
            matrix_values, matrix_radius = _in_range(*interval, operands.real)
            values[index] = to_device_of(a, matrix_values)
            radius[index] = to_device_of(a, matrix_radius)

    def native() -> VerifiedValues:
        return VerifiedValues(as_native(operands, values), as_native(operands, radius))

    with verifying(operands.library):
        Answers(stack, enclose).check(native)
        return native()


def _in_range(values: Array, radius: Array, dtype: DType) -> Enclosure:
    """Both in a dtype, all of them finite."""
    values, radius = in_dtype(values, radius, dtype)
    beyond = beyond_range(values, radius, "values")
    if beyond:
        raise VerificationError(
            f"{beyond}. What helps: the matrix times a power of two"
        )
    return values, radius


@dataclass(frozen=True, eq=False)
class ScaledMatrix:
    """A matrix 2^-e A whose largest component lies in [1/2, 1), up to a loss."""

    array: Array
    exponent: int
    """e."""
    loss: float
    """At least the norm of what numbers below 2^-1074 are rounded by: each entry by less
    than eta.
    """

    def restored(self, values: Array, radius: Array) -> Enclosure:
        """Values and radii of A from those of `array`."""
        exponents = np.full(values.shape, self.exponent)
        return restored(values, above(radius + self.loss, 1), exponents)


def scaled_matrix(a: Array) -> ScaledMatrix:
    """One matrix in scale. Raises VerificationError: Inf and NaN."""
    check_finite(a=a)
    sizes = np.abs(a.real)
    if a.dtype.kind == "c":
        sizes = np.maximum(sizes, np.abs(a.imag))
    (largest,) = numbers(sizes.max())
    exponent = math.frexp(largest)[1]
    array = scaled(a, np.full((1, 1), -exponent, like=a))
    return ScaledMatrix(array, exponent, max(a.shape) * LEAST)


def check_ordered(differences: Array, solver: str) -> None:
    """Raise VerificationError unless all differences of neighbours are 0 or more."""
    if not (differences >= 0.0).all():
        raise VerificationError(
            f"{solver} of the library returned values that are not in order, or NaN: nothing can be proven by them"
        )
