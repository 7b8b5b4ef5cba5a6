"""slogdet: the sign of a determinant and the logarithm of its magnitude, with a radius.

Idea
    det A lies between two numbers of one sign, or in a disk that does not hold zero, as
    `determinant` says, times 2^e. With c in the middle and r the largest distance from
    it, r < |c|,

        |log |det A / 2^e| - log |c|| <= -log(1 - r / |c|) <= r / (|c| - r),

    and a complex sign is off by |z / |z| - c / |c|| <= 2 r / |c| for all z of the disk.
Rounding
    log, hypot and the constant log 2 err by a unit in the last place each, and so do the
    product by e and the sum: eight units of both terms are more than all of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hifigemm.base.exceptions import VerificationError
from hifigemm.base.transforms import opaque
from hifigemm.linalg.determinant import ComplexDeterminant, Determinant, det
from hifigemm.linalg.upward import UNIT, above

_LOG_2 = math.log(2.0)
_UNITS = 16.0 * UNIT
"""Eight units in the last place, relative to a number."""


@dataclass(frozen=True)
class LogDeterminant:
    """``|logabsdet - log|det A|| <= radius`` and ``|sign - det A / |det A|| <=
    sign_radius``.

    Attributes
    ----------
    sign : int or complex
        1 or -1, and of complex matrices a number of modulus 1; 0 where the determinant is
        0.
    logabsdet : float
        -Inf where the determinant is 0.
    radius : float
    sign_radius : float
        0 for real matrices.
    """

    sign: Any
    logabsdet: Any
    radius: Any
    sign_radius: Any = 0.0


@opaque
def slogdet(a: object) -> LogDeterminant:
    """The sign of a determinant and the logarithm of its magnitude: `det` where that would
    overflow.

    Parameters
    ----------
    a : array_like
        Shape (..., n, n), dtype as for `solve`.

    Returns
    -------
    LogDeterminant
        ``.sign``, ``.logabsdet``, ``.radius`` and ``.sign_radius``. Of a stack they are
        arrays of NumPy.

    Raises
    ------
    VerificationError, LinAlgError, TypeError, ValueError
        As for `det`.

    Examples
    --------
    >>> import hifigemm.linalg
    >>> d = hifigemm.linalg.slogdet([[1.0, 2.0], [3.0, 4.0]])
    >>> d.sign, round(d.logabsdet, 12), d.radius < 1e-14
    (-1, 0.69314718056, True)
    """
    try:
        return _logarithms(det(a))
    except VerificationError as error:
        if isinstance(error.solution, (Determinant, ComplexDeterminant)):
            error.solution = _logarithms(error.solution)
        raise


def _logarithms(d: Determinant | ComplexDeterminant) -> LogDeterminant:
    """The logarithms of one determinant, or of those of a stack as arrays."""
    logarithm: Callable[..., LogDeterminant]
    if isinstance(d, Determinant):
        parts = d.lower, d.upper, d.exponent
        logarithm = _of_bounds
    else:
        parts = d.center, d.radius, d.exponent
        logarithm = _of_disk
    if np.ndim(d.exponent) == 0:
        return logarithm(*parts)
    ones = [logarithm(*one) for one in zip(*(np.ravel(x).tolist() for x in parts))]
    stack = np.shape(d.exponent)
    kind = int if isinstance(d, Determinant) else complex
    return LogDeterminant(
        np.array([x.sign for x in ones], kind).reshape(stack),
        *(
            np.array([getattr(x, name) for x in ones], float).reshape(stack)
            for name in ("logabsdet", "radius", "sign_radius")
        ),
    )


def _of_bounds(lower: float, upper: float, exponent: int) -> LogDeterminant:
    """The logarithm of a number between two of one sign; NaN for bounds of NaN."""
    if lower == upper == 0.0:
        return LogDeterminant(0, -math.inf, 0.0)
    if math.isnan(lower):
        return LogDeterminant(0, math.nan, math.inf)
    sign = 1 if lower > 0.0 else -1
    least, most = sorted((abs(lower), abs(upper)))
    logabsdet, radius = _logarithm(least + (most - least) / 2.0, most - least, exponent)
    return LogDeterminant(sign, logabsdet, radius)


def _of_disk(center: complex, radius: float, exponent: int) -> LogDeterminant:
    """The logarithm of a number of a disk; NaN for a center of NaN."""
    size = abs(center)
    if size == 0.0:
        return LogDeterminant(0j, -math.inf, 0.0)
    if math.isnan(size):
        return LogDeterminant(complex(math.nan, math.nan), math.nan, math.inf, math.inf)
    logabsdet, radius_of_log = _logarithm(size, radius, exponent)
    sign_radius = above(2.0 * radius / size, 2) + _UNITS
    return LogDeterminant(center / size, logabsdet, radius_of_log, sign_radius)


def _logarithm(size: float, distance: float, exponent: int) -> tuple[float, float]:
    """log(size 2^exponent) and its radius, for numbers within a distance of the size."""
    of_size = math.log(size)
    of_exponent = exponent * _LOG_2
    least = size - distance
    if not least > 0.0:
        return of_size + of_exponent, math.inf
    # The size itself may be rounded by a unit in its last place
    spread = above(distance / least, 4) + _UNITS
    return of_size + of_exponent, above(
        spread + _UNITS * (abs(of_size) + abs(of_exponent)), 4
    )
