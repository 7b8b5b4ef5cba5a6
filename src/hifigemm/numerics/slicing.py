"""Slices: an operand as a sum of integer matrices on fixed grids, each row (or column) with its own grid.

Row i of A with |A_ih| < 2**e_i is cut at the exponents g_i, g_i - beta, g_i - 2 beta, ... with g_i = e_i - (beta - 1):

    A_ih = sum_p w_p 2**(g_i - beta p) + remainder,   integer |w_p| <= 2**(beta - 1),   |remainder| <= 2**(g_i - beta
    (d-1) - 1)

after d slices. Every slice is rounded to nearest, so the digits are signed and each slice after the first carries beta
bits. This is the splitting of [MOOI20] with its (x + sigma) - sigma written as a rounding to integers, which neither
overflows for rows near the largest float nor depends on the association of a sum.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hifigemm.numerics.bits import NO_BIT, Array, scale_by_power

__all__ = ["slice_vectors", "slices_needed", "unit_exponent"]


MAX_GRID = 1023
"""Slices whose largest value is 2**MAX_GRID or less can be subtracted as they are."""


def unit_exponent(exponent: Array, slice_bits: int) -> Array:
    """Exponent g of the first slice's grid for vectors below 2**exponent."""
    return exponent - (slice_bits - 1)


def slices_needed(unit: Array, lowest: Array, slice_bits: int) -> Array:
    """Number of slices after which the remainder is zero; `unit` and `lowest` hold exponents, one per vector."""
    return np.where(lowest == NO_BIT, 0, np.maximum(-((lowest - unit) // slice_bits), 0) + 1)


def slice_vectors(x: Array, unit: Array, slice_bits: int) -> Iterator[Array]:
    """Yield the slices of x in order, as float64 arrays of integers; stops at the caller's will, never by itself.

    `x` is float64 and is overwritten by the remainder; `unit` broadcasts against it. Next to the largest float a slice
    may round up to 2**1024, so x and the slice are halved there before they are subtracted, which is exact.
    """
    grid = unit.copy()
    while True:
        w = np.rint(scale_by_power(x, -grid))
        yield w
        high = grid + slice_bits > MAX_GRID
        if high.any():
            half = np.where(high, 0.5, 1.0)
            x[...] = np.where(w == 0, x, (x * half - scale_by_power(w, grid - high)) / half)
        else:
            x -= scale_by_power(w, grid)
        grid -= slice_bits
