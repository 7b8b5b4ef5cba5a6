"""Sums and products of nonnegative numbers, rounded upwards without a rounding mode.

Idea
    A nonnegative expression of sums and products that passes at most m roundings to
    nearest comes out as at least (1 - u)^m times its exact value, u = 2**-53, in any
    order of its sums and with or without fused operations [Rum10, section 5]. So a
    factor of 1 + 2 m u and a little more lifts it above the exact value. A product
    that underflows errs by up to eta / 2, eta = 2**-1074; sums do not underflow.
Where it holds
    In native float64 arithmetic that rounds to nearest and keeps subnormal numbers:
    inside `numerics.subnormals.ieee_arithmetic`, by `numerics.subnormals.matmul`.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np

from hifigemm.numerics.bits import LEAST, Array

UNIT = 2.0**-53
"""u, the unit roundoff of float64."""
_MARGIN = 4
"""Roundings of `above` itself, and the difference of (1 - u)^-m and 1 + m u."""
_ROUNDINGS_OF_HYPOT = 8
"""More than the C libraries need, whose hypot errs by at most one unit in the last
place.
"""


@overload
def above(x: float, roundings: int, underflows: float = 0.0) -> float: ...
@overload
def above(x: Array, roundings: int, underflows: Array | float = 0.0) -> Array: ...
def above(x: Any, roundings: int, underflows: Any = 0.0) -> Any:
    """An upper bound of the nonnegative expression that was computed as x.

    Parameters
    ----------
    x : float, or array of float64
    roundings : int
        The most roundings that a term of the expression passes, at most 2**50. Fewer
        may err in the wrong direction, as 1 - a in a denominator: the bound is for
        factors of 1 - u.
    underflows : array or float
        At least what products that underflowed may have taken from the exact value.

    Notes
    -----
    (1 + 2 (m + 4) u) (1 - u)^2 >= 1 + (2 m + 5) u >= (1 - u)^-m for m u <= 1/4, and the
    factor on the left is a float64 number. The product by it may underflow, hence the
    last eta.
    """
    factor, offset = upward(roundings, underflows)
    return x * factor + offset


def upward(roundings: int, underflows: Any = 0.0) -> tuple[float, Any]:
    """(factor, offset) of `above`, which returns x * factor + offset."""
    factor = 1.0 + (roundings + _MARGIN) * (2.0 * UNIT)
    return factor, 2.0 * underflows + LEAST


def gamma(terms: int) -> float:
    """An upper bound of n u / (1 - n u) for n terms, n (n + 1) u <= 1."""
    return (terms + 1) * UNIT


def moduli(z: Array) -> Array:
    """Upper bounds of |z| in every entry; of real numbers |z| itself."""
    if z.dtype.kind != "c":
        return np.abs(z)
    return above(np.hypot(z.real, z.imag), _ROUNDINGS_OF_HYPOT)
