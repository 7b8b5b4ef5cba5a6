"""Exactness conditions and error bounds that plans rely on.

u is a unit roundoff, k the inner dimension, h = 2**(beta - 1) the largest slice entry
for slices of beta bits.
"""

from __future__ import annotations

import math

import numpy as np

from hifigemm.numerics.bits import Array, ceil_log2
from hifigemm.numerics.blocking import BLOCK_ENTRIES, vector_blocks

MAX_EXPONENT_SPAN = 2100
"""Bits between the lowest bit of the smallest subnormal and the top bit of the largest
float64, and a little more.
"""

_SUM_BITS = 62


def exact_k_limit(accumulator_max: int, max_a: int, max_b: int) -> int:
    """Largest k with k max_a max_b <= accumulator_max: no partial sum, in any order, is
    ever rounded.
    """
    return accumulator_max // max(max_a * max_b, 1)


def slice_bits_for(k: int, k_block: int, accumulator_max: int, max_integer: int) -> int:
    """Largest beta with h <= max_integer, min(k, k_block) h**2 <= accumulator_max and
    exact int64 sums, or 0.

    The second condition is that of [MOOI20] for signed slices; the last bounds a sum of
    at most MAX_EXPONENT_SPAN / beta + 1 pairs over all k by 2**62.
    """
    for log2_h in reversed(range(max_integer.bit_length())):
        pairs = MAX_EXPONENT_SPAN // (log2_h + 1) + 2
        if (
            min(k, k_block) * 4**log2_h <= accumulator_max
            and k * pairs * 4**log2_h <= 2**_SUM_BITS
        ):
            return log2_h + 1
    return 0


def ozaki1_error_exponent(
    k: int, num_slices: int, slice_bits: int, twos_complement: bool = False
) -> int:
    """x such that the pairs p + q >= S that are left out sum to at most 2**x, in units
    of the last diagonal kept.

    The diagonals p + q < S = num_slices are kept; the unit of the last is 2**(-beta
    (S - 1)) of the first. Slice p of A is at most h 2**(-beta p); what B lacks after
    S - p slices is at most half a unit of its slice S - p - 1. Summed over p < S, with
    the remainder of A against |B| <= h, that is (S + 1) k h / 2. Two's-complement
    digits leave up to h / (2h - 1) of a unit: 2h / (2h - 1) times as much.
    """
    terms, base = (num_slices + 1) * k, 2**slice_bits
    if twos_complement:
        terms = -(-terms * base // (base - 1))
    return ceil_log2(terms) + slice_bits - 2


def first_slice_count(slice_bits: int, wanted_bits: int) -> int:
    """Smallest S >= 2 whose left-out part is at most 2**-wanted_bits of k h**2, the
    largest product possible.

    (S + 1) k h / 2 * 2**(-beta (S - 1)) <= 2**-wanted_bits k h**2, compared in
    exponents.
    """
    s = 2
    while ceil_log2(s + 1) > 1 + slice_bits * (s - 1) + (slice_bits - 1) - wanted_bits:
        s += 1
    return s


def native_bound(terms: int, u: float) -> float:
    """gamma_k = k u / (1 - k u): |C - AB| <= gamma_k |A||B| for sums of `terms`
    products in any order [Hig02].
    """
    return terms * u / (1.0 - terms * u) if terms * u < 1.0 else math.inf


def underflow_free(size: Array, terms: int, smallest_normal: float) -> Array:
    """Whether gradual underflow in k products is covered by the rounding of results of
    this magnitude.

    Each underflowing product errs by at most half the smallest subnormal, u
    smallest_normal; k of them stay below u |c| if |c| >= k smallest_normal.
    """
    return size >= terms * smallest_normal


def are_ordinary(x: Array, terms: int, smallest_normal: float) -> bool:
    """Whether all entries of a stack on the host are finite and `underflow_free`.

    Part by part, as a copy of all costs time.
    """
    if not isinstance(x, np.ndarray):
        return False
    for part in (
        (x,) if x.size <= BLOCK_ENTRIES else (x[where] for where in vector_blocks(x, 2))
    ):
        size = np.abs(part)
        if not (
            underflow_free(size.min(), terms, smallest_normal) and size.max() < np.inf
        ):
            return False
    return True
