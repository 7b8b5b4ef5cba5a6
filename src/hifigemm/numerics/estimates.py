"""Cheap facts about |A||B| and about where a split may stop.

All sums are sums of integers, so that no decision that rests on them depends on the order of a summation.
"""

from __future__ import annotations

import math

import numpy as np

from hifigemm.numerics.bits import Array, ceil_log2, largest_exponent, scale_by_power
from hifigemm.numerics.slicing import slice_vectors, unit_exponent

__all__ = [
    "MAGNITUDE_BITS_DOWN",
    "MAGNITUDE_BITS_UP",
    "magnitudes_down",
    "magnitudes_up",
    "nonzeros",
    "published_num_slices",
]

MAGNITUDE_BITS_UP = 6
MAGNITUDE_BITS_DOWN = 7
_ROWS = 256


def magnitudes_up(x: Array, exponent: Array) -> Array:
    """ceil(|x| 2**(6 - exponent)) as int8 in [0, 64], for |x| < 2**exponent: upper bounds of |x|."""
    return np.ceil(scale_by_power(np.abs(x), MAGNITUDE_BITS_UP - exponent)).astype(np.int8)


def magnitudes_down(x: Array, exponent: Array) -> Array:
    """floor(|x| 2**(7 - exponent)) as int8 in [0, 127], for |x| < 2**exponent: lower bounds of |x|."""
    return np.floor(scale_by_power(np.abs(x), MAGNITUDE_BITS_DOWN - exponent)).astype(np.int8)


def nonzeros(x: Array) -> Array:
    """1 where x is not zero, as int8: the product of two such matrices counts the terms of a sum that are not zero."""
    return (x != 0).astype(np.int8)


def published_num_slices(a: Array, b: Array, slice_bits: int, u: float) -> tuple[int, bool]:
    """Number of slices d by the estimate of [MOOI20], and whether the operands end before it is met.

    d >= 2 is the smallest count with 2 sqrt(k) u |A| |B| e > (d + 1) |A_d| |B| e in every row, e a vector of ones,
    and the same for the columns of B. |A| is taken from its leading slice and |B| e is rounded up to integers. Where
    both operands end first, the count keeps every slice product.

    Parameters
    ----------
    a, b : float64 arrays, shapes (batch, m, k) and (batch, k, n)
    u : float
        Unit roundoff of the accuracy that is aimed at.
    """
    b_columns = np.swapaxes(b, 1, 2)
    left, left_ended = _published(a, _weights(b), slice_bits, u)
    right, right_ended = _published(b_columns, _weights(np.swapaxes(a, 1, 2)), slice_bits, u)
    if left_ended and right_ended:
        return max(left + right - 1, 1), True
    return max(left, right), False


def _weights(b: Array) -> Array:
    """Integers proportional to |B| e, rounded up, per matrix of the stack: (batch, k), at most 2**20."""
    exponent = largest_exponent(b, 2)
    sums = np.ceil(scale_by_power(np.abs(b), 20 - exponent)).sum(axis=2, keepdims=True)
    sums = scale_by_power(sums, np.clip(exponent - exponent.max(initial=0), -1000, 0))
    top = largest_exponent(sums, 1)
    return np.ceil(scale_by_power(sums, 20 - top))[:, :, 0]


def _published(a: Array, weights: Array, slice_bits: int, u: float) -> tuple[int, bool]:
    """d for the rows of a, in blocks of rows; the second result says that every row ended first."""
    _, m, k = a.shape
    beta = slice_bits
    keep = min(20, max(53 - (beta - 1) - ceil_log2(max(k, 1)), 1))
    weights = np.ceil(weights * 2.0 ** (keep - 20))[..., None]
    count, all_ended = 2, True
    for i in range(0, m, _ROWS):
        rows = np.array(a[:, i : i + _ROWS], np.float64)
        unit = unit_exponent(largest_exponent(rows, 2), beta)
        threshold = None
        for d, w in enumerate(slice_vectors(rows, unit, beta), start=1):
            size = np.matmul(np.abs(w), weights)
            if threshold is None:
                threshold = 2.0 * math.sqrt(k) * u * size
            ended = not rows.any()
            if ended or (d >= 2 and not np.any((size > 0) & ((d + 1) * size * 2.0 ** (-beta * (d - 1)) >= threshold))):
                break
        count, all_ended = max(count, d), all_ended and ended
    return count, all_ended
