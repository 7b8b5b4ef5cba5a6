"""Powers of two by which Ozaki scheme II scales rows and columns before it rounds them to integers.

Wanted: integers A' ~ 2**s_i A_ih and B' ~ 2**t_j B_hj with sum_h |A'_ih| |B'_hj| <= T**2 for every (i, j), T**2 <=
half_range of the moduli. Both rules bound the sum by g_i h_j with a number for each row and one for each column:

- fast (Cauchy-Schwarz): g_i = ||A_i||, h_j = ||B_j||; the operands are independent of each other.
- accurate: G = |A| |B| from magnitudes rounded up to 6 bits, one INT8 product; g_i**2 = max_j G_ij and
  h_j**2 = max_i G_ij, because G_ij <= min(g_i**2, h_j**2) <= g_i h_j. Survives rows and columns whose large entries do
  not meet.

s_i is the largest integer with 2**s_i g_i <= T. All sums are sums of integers (magnitudes rounded up), so the exponents
do not depend on the order of any summation and are the same on every engine.
"""

from __future__ import annotations

import math

import numpy as np

from hifigemm.numerics.bits import Array, ceil_magnitude, scale_by_power
from hifigemm.numerics.residues import ModuliSet

__all__ = [
    "NORM_BITS",
    "round_to_integers",
    "scale_exponent",
    "square_norms",
]

NORM_BITS = 15


def square_norms(x: Array, exponent: Array, axis: int) -> Array:
    """Integers N >= ||x||**2 2**(2 (15 - exponent)) along `axis`, exact in float64 below 2**23 entries."""
    return np.sum(np.square(ceil_magnitude(x, NORM_BITS - exponent)), axis=axis, keepdims=True)


def scale_exponent(squares: Array, exponent: Array, bits: int, moduli: ModuliSet) -> Array:
    """Largest s with 4**(s + exponent - bits) * squares <= half_range; -exponent where squares is 0.

    `squares` holds the integers g**2 in units of 4**(exponent - bits). The quotient half_range / squares is rounded
    down by more than its error, so a scale is never too large; it may be one too small when the quotient is within
    2**-50 of a power of four.
    """
    mantissa, power = math.frexp(moduli.half_range >> max(moduli.half_range.bit_length() - 53, 0))
    power += max(moduli.half_range.bit_length() - 53, 0)
    safe = np.where(squares == 0, 1.0, squares)
    quotient = (mantissa / safe) * (1.0 - 2.0**-50)
    log2_floor = np.frexp(quotient)[1].astype(np.int64) - 1 + power
    return np.where(squares == 0, 0, (log2_floor >> 1) + bits) - exponent


def round_to_integers(x: Array, scale: Array, exponent: Array, bits: int) -> Array:
    """2**scale x as float64 integers, rounded to nearest even, or toward zero for vectors with scale + exponent < bits.

    The magnitude bound 2**(scale + exponent - bits) ceil(|x| 2**(bits - exponent)) is an integer when scale +
    exponent >= bits, so rounding to nearest cannot exceed it; below that only truncation is safe.
    """
    y = scale_by_power(x, scale)
    nearest = scale + exponent >= bits
    if nearest.all():
        return np.rint(y, out=y)
    return np.where(nearest, np.rint(y), np.trunc(y))
