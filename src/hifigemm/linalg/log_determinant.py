"""slogdet: the sign of a determinant and the logarithm of its magnitude, with a radius.

Idea
    det A lies between two numbers of one sign, or in a disk that does not hold zero, as
    `determinant` says, times 2^e. With c in the middle and r the largest distance from
    it, r < |c|,

        |log |det A / 2^e| - log |c|| <= -log(1 - r / |c|) <= r / (|c| - r),

    and a complex sign is off by |z / |z| - c / |c|| <= 2 r / |c| for all z of the disk.
Rounding
    NumPy's log errs by four units in the last place at most, hypot and the constant log 2
    by one, and so do the product by e and the sum: eight units of both terms are more
    than all of that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hifigemm.base.exceptions import VerificationError
from hifigemm.base.transforms import opaque
from hifigemm.linalg.determinant import ComplexDeterminant, Determinant, det
from hifigemm.linalg.upward import UNIT, above
from hifigemm.numerics.bits import Array

_LOG_2 = math.log(2.0)
_UNITS = 16.0 * UNIT
"""Eight units in the last place, relative to a number."""


@dataclass(frozen=True)
class LogDeterminant:
    """``|logabsdet - log|det A|| <= radius`` and ``|sign - det A / |det A|| <=
    sign_radius``.

    For a stack all are NumPy arrays, for a tensor all are tensors: `sign` in float64 or
    complex128, the others in float64.

    Attributes
    ----------
    sign : int or complex
        1 or -1; for complex matrices a number of modulus 1. 0 if the determinant is 0.
    logabsdet : float
        -Inf if the determinant is 0.
    radius : float
    sign_radius : float
        0 for real matrices.
    """

    sign: Any
    logabsdet: Any
    radius: Any
    sign_radius: Any = 0.0


@opaque
def log_determinant_of_numbers(a: object) -> LogDeterminant:
    """`slogdet` of a matrix whose operations nothing records: numbers, of a stack arrays
    of NumPy.
    """
    try:
        return _logarithms(det(a))
    except VerificationError as error:
        if isinstance(error.solution, (Determinant, ComplexDeterminant)):
            error.solution = _logarithms(error.solution)
        raise


def _logarithms(d: Determinant | ComplexDeterminant) -> LogDeterminant:
    """The logarithms of one determinant, or of those of a stack as arrays."""
    with np.errstate(all="ignore"):
        if isinstance(d, Determinant):
            lower, upper = np.abs(d.lower), np.abs(d.upper)
            least = np.minimum(lower, upper)
            distance = np.abs(np.subtract(d.upper, d.lower))
            size = least + distance / 2.0
            sign = np.asarray(d.sign)
            sign_radius = np.zeros(np.shape(size))
        else:
            size, distance = np.abs(d.center), np.asarray(d.radius)
            is_zero = size == 0.0
            sign = np.where(is_zero, 0.0, d.center / np.where(is_zero, 1.0, size))
            sign_radius = above(2.0 * distance / size, 2) + _UNITS
            sign_radius = np.where(is_zero, 0.0, sign_radius)
        logabsdet, radius = _logarithm(size, distance, np.asarray(d.exponent))
    parts = sign, logabsdet, radius, sign_radius
    return LogDeterminant(*(x if np.ndim(x) else x[()].item() for x in parts))


def _logarithm(size: Array, distance: Array, exponent: Array) -> tuple[Array, Array]:
    """log(size 2^exponent) and its radius, for numbers within a distance of the size; Inf
    where nothing is proven.
    """
    of_size = np.log(size)
    of_exponent = exponent * _LOG_2
    # The size itself may be rounded by a unit in its last place
    spread = above(distance / (size - distance), 4) + _UNITS
    sizes = np.abs(of_size) + np.abs(of_exponent)
    radius = above(spread + _UNITS * sizes, 4)
    is_proven = distance < size
    radius = np.where(is_proven, radius, np.inf)
    return of_size + of_exponent, np.where(size == 0.0, 0.0, radius)
