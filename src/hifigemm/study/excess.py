"""Errors held against |A||B|, as exact ratios: how far a computed value is from keeping a componentwise promise."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .exact import integers_and_exponents

__all__ = ["Excess", "component_excesses", "ratio"]

Excess = tuple[int, int]
"""A nonnegative error and the |A||B| that it is held against, both times the same positive number."""


def ratio(excess: Excess) -> float:
    """Return the excess as a float64: 0/0 is 0, x/0 is Inf."""
    numerator, denominator = excess
    if numerator <= 0:
        return 0.0
    try:
        return numerator / denominator
    except (ZeroDivisionError, OverflowError):
        return float("inf")


def component_excesses(
    c: NDArray[Any], integers: NDArray[Any], sizes: NDArray[Any], exponent: NDArray[np.int64], rounding: bool
) -> Iterator[Excess]:
    """Yield an excess for each entry of the floats c against v = integers * 2**exponent.

    Parameters
    ----------
    c : ndarray of float16, float32 or float64
        The values to be judged, not necessarily finite.
    integers, sizes : ndarray of object (Python int), shape of c
        Exact values and |A||B|, both times 2**-exponent.
    exponent : ndarray of int64, shape of c
    rounding : bool
        Whether max(u |v|, half the smallest subnormal) of c's dtype is forgiven.
    """
    info = np.finfo(c.dtype)
    t, smallest_exponent = info.nmant + 1, info.minexp - info.nmant
    threshold = Fraction(2) ** info.maxexp - Fraction(2) ** (info.maxexp - t - 1)
    finite = np.isfinite(c)
    c_integers, c_exponent = integers_and_exponents(np.where(finite, c, 0))
    columns = (c, finite, c_integers, c_exponent, integers, sizes, exponent)
    for value, is_finite, m, e, n, size, g in zip(*(x.ravel().tolist() for x in columns), strict=True):
        if is_finite:
            yield _finite_excess((m, e), (n, g), size, (t, smallest_exponent) if rounding else None)
        elif np.isnan(value):
            yield 1, 0
        else:
            missing = max(threshold - (n if value > 0 else -n) * Fraction(2) ** g, Fraction(0))
            ratio = missing / (Fraction(2) ** g)
            yield ratio.numerator, size * ratio.denominator


def _finite_excess(c: tuple[int, int], exact: tuple[int, int], size: int, last: tuple[int, int] | None) -> Excess:
    """Excess of c against the exact value, both as (integer, exponent).

    last = (t, exponent of the smallest subnormal) of the last rounding, None when nothing is forgiven.
    """
    (m, e), (n, g) = c, exact
    e = e if m else g
    allowance, allowance_exponent = 0, g
    if last is not None:
        t, smallest_exponent = last
        is_subnormal = n == 0 or g + n.bit_length() <= smallest_exponent + t - 1
        allowance, allowance_exponent = (1, smallest_exponent - 1) if is_subnormal else (abs(n), g - t)
    low = min(e, g, allowance_exponent)
    error = abs((m << e - low) - (n << g - low)) - (allowance << allowance_exponent - low)
    return max(error, 0), size << g - low
