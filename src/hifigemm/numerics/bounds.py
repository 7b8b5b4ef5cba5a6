"""Exactness conditions and error bounds that plans rely on.

u is a unit roundoff, k the inner dimension, beta = slice_bits the bits of a slice and
h = 2**(beta - 1) its largest entry.

References
    [MOOI20] Mukunoki, Ozaki, Ogita, Imamura: DGEMM using Tensor Cores, and its accurate
    and reproducible versions, doi:10.1007/978-3-030-50743-5_12.
    [Hig02] Higham: Accuracy and Stability of Numerical Algorithms,
    doi:10.1137/1.9780898718027.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from hifigemm.numerics.bits import Array, ceil_log2, least_exponent
from hifigemm.numerics.blocking import BLOCK_ENTRIES, vector_blocks

MAX_EXPONENT_SPAN = 2100
"""Bits from the lowest to the highest of all float64 numbers, and a little more."""

_SUM_BITS = 62
"""int64 sums stay below 2**62."""


def exact_k_limit(accumulator_max: int, max_a: int, max_b: int) -> int:
    """Largest k with k max_a max_b <= accumulator_max.

    Up to this k no partial sum of integers a b, in any order, is rounded.
    """
    return accumulator_max // max(max_a * max_b, 1)


def slice_bits_for(k: int, k_block: int, accumulator_max: int, max_integer: int) -> int:
    """Largest beta with which slice products and their int64 sums are exact, or 0.

    Exact when h <= max_integer, so that a slice fits the format;
    min(k, k_block) h**2 <= accumulator_max, for signed slices as in [MOOI20]; and
    k h**2 times the pairs of slices on a diagonal, MAX_EXPONENT_SPAN / beta + 1 or
    fewer, is at most 2**62.
    """
    for log2_h in reversed(range(max_integer.bit_length())):
        pairs = MAX_EXPONENT_SPAN // (log2_h + 1) + 2
        is_product_exact = min(k, k_block) * 4**log2_h <= accumulator_max
        if is_product_exact and k * pairs * 4**log2_h <= 2**_SUM_BITS:
            return log2_h + 1
    return 0


def ozaki1_error_exponent(
    k: int, num_slices: int, slice_bits: int, twos_complement: bool = False
) -> int:
    """Exponent x of the bound 2**x of what S = num_slices slices leave out.

    The diagonals p + q < S are multiplied, all other pairs are left out. The unit of x
    is that of the last diagonal, 2**(-beta (S - 1)) of the first. Slice p of A is at
    most h 2**(-beta p); what B lacks after S - p slices is at most half a unit of its
    slice S - p - 1. Summed over p < S, with the remainder of A against |B| <= h, that
    is (S + 1) k h / 2. Two's-complement digits leave up to h / (2h - 1) of a unit:
    2h / (2h - 1) times as much.
    """
    terms = (num_slices + 1) * k
    if twos_complement:
        base = 2**slice_bits
        terms = -(-terms * base // (base - 1))
    return ceil_log2(terms) + slice_bits - 2


def first_slice_count(slice_bits: int, wanted_bits: int) -> int:
    """Smallest S >= 2 that leaves out at most 2**-wanted_bits of the largest product.

    The largest product is k h**2, and what S slices leave out is at most
    (S + 1) k h / 2 * 2**(-beta (S - 1)); both are compared in exponents.
    """
    s = 2
    while ceil_log2(s + 1) > 1 + slice_bits * (s - 1) + (slice_bits - 1) - wanted_bits:
        s += 1
    return s


def native_bound(terms: int, u: float) -> float:
    """gamma_k = k u / (1 - k u) for k = `terms`, inf where k u >= 1 [Hig02].

    |C - AB| <= gamma_k |A||B| for sums of k products in any order.
    """
    return terms * u / (1.0 - terms * u) if terms * u < 1.0 else math.inf


def underflow_free(size: Array, terms: int, smallest_normal: float) -> Array:
    """True where the rounding of a result of this size covers underflow in k products.

    Each underflowing product errs by at most half the smallest subnormal, u
    smallest_normal; k of them stay below u |c| if |c| >= k smallest_normal.
    """
    return size >= terms * smallest_normal


def free_of_underflow(c: Array, a: Array, b: Array, terms: int, emin: int) -> Array:
    """True for the components c of fl(A B) in which no underflow counts.

    Each is so large that its rounding covers it; or no product of two components of A
    and B is below 2**emin, the smallest normal number, unless it is zero.
    """
    is_free: Array = underflow_free(np.abs(c), terms, 2.0**emin)
    if not is_free.all() and least_exponent(a) + least_exponent(b) >= emin:
        is_free[...] = True
    return is_free


def are_ordinary(x: Array, terms: int, smallest_normal: float) -> bool:
    """True if all entries of a stack on the host are finite and `underflow_free`.

    False for arrays of a device, which are not looked at.
    """
    if not isinstance(x, np.ndarray):
        return False
    # Block by block: a copy of a large stack costs time.
    blocks: Iterable[Array] = (x,)
    if x.size > BLOCK_ENTRIES:
        blocks = (x[index] for index in vector_blocks(x, 2))
    for block in blocks:
        size = np.abs(block)
        # In float64, so that the bound is not rounded down to float32.
        least = np.asarray(size.min(), np.float64)
        is_covered = underflow_free(least, terms, smallest_normal)
        if not (is_covered and size.max() < np.inf):
            return False
    return True
