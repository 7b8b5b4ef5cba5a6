"""Slices: an operand as a sum of integer matrices, each row or column on its own grid.

Row i of A with |A_ih| < 2**e_i is cut at the exponents g_i, g_i - beta, g_i - 2 beta,
... with g_i = e_i - (beta - 1). After d slices

    A_ih = sum_p w_p 2**(g_i - beta p) + remainder,

    w_p integer,  |w_p| <= h = 2**(beta - 1),  |remainder| <= 2**(g_i - beta (d-1) - 1).

Every slice is rounded to nearest, so the digits are signed and each slice after the
first carries beta bits. This is the splitting of [MOOI20] with its (x + sigma) - sigma
written as a rounding to integers, which neither overflows for rows near the largest
float nor depends on the association of a sum.

Integers of beta bits in two's complement hold -h .. h - 1. Digits in this range leave
remainders from -h / (2h - 1) to (h - 1) / (2h - 1) units: from there on the next
integer is taken, and e_i is one larger where |A_ih| reaches 2**e_i (2h - 2) / (2h - 1).
So INT8 holds slices of eight bits; digits up to +h allow slices of seven.

References
    [MOOI20] Mukunoki, Ozaki, Ogita, Imamura: DGEMM using Tensor Cores, and its accurate
    and reproducible versions, doi:10.1007/978-3-030-50743-5_12.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from hifigemm.numerics.bits import NO_BIT, Array, scale_by_power

_RANGE_BITS = 900
"""Integers are below 2**900 while they are made, and what is smaller than their unit by
2**-900 has no influence on them.
"""

_WORD_BITS = 62
"""An int64 sum over some diagonals stays below 2**62."""

_SUM_BITS = 105
"""Two of these sums together stay below 2**105."""


def digit_limit(slice_bits: int, significand_bits: int = 53) -> float:
    """(2h - 2) / (2h - 1) rounded up to `significand_bits` bits.

    Half of it bounds the remainders of two's-complement digits.
    """
    base = 2**slice_bits
    return -(-((base - 2) << significand_bits) // (base - 1)) * 2.0**-significand_bits


def unit_exponent(exponent: Array, slice_bits: int) -> Array:
    """Exponent g of the first grid of vectors below 2**exponent."""
    return exponent - (slice_bits - 1)


def slices_needed(unit: Array, lowest: Array, slice_bits: int) -> Array:
    """Number of slices after which the remainder of a vector is zero.

    `unit` holds the exponents g and `lowest` those of the lowest set bits, one for each
    vector. Entries are below 2**(unit + slice_bits), so lowest < unit + slice_bits.
    """
    return np.where(lowest == NO_BIT, 0, 1 - (lowest - unit) // slice_bits)


def slice_vectors(
    x: Array,
    unit: Array,
    slice_bits: int,
    twos_complement: bool = False,
    at_once: int = 1,
) -> Iterator[Array]:
    """Yield the slices of x in order, without end, as float64 arrays of integers.

    `x` is float64; `unit` broadcasts against it. Two's-complement digits want
    |x| < `digit_limit` 2**(unit + slice_bits - 1). `at_once` slices are made together.

    With V_p = x rounded to an integer in units of 2**(g - beta p), slice p is
    V_p - 2**beta V_(p-1): rounding the remainder of the slices before gives the same, as
    2**beta V_(p-1) is an even integer.
    """
    base = 2.0**slice_bits
    at_once = min(at_once, max(_RANGE_BITS // slice_bits, 1))
    numbers = np.arange(at_once, like=unit).reshape((-1,) + (1,) * unit.ndim)
    shifts = numbers * slice_bits - unit
    above: Array | None = None  # 2**beta V of the slice before
    bits = 0  # |V| is below 2**bits
    while True:
        # Entries that have ended leave zeros, and would overflow.
        if above is not None and bits + at_once * slice_bits > _RANGE_BITS:
            is_open = np.abs(above) < base * 2.0**53
            x = np.where(is_open, x, 0.0)
            above = np.where(is_open, above, 0.0)
            bits = 53
        bits += at_once * slice_bits

        # Integers V_p of all these slices, then the slices.
        scaled = scale_by_power(x, shifts)
        slices = np.rint(scaled)
        if twos_complement:
            # A remainder beyond the limit would make the next digit h.
            scaled -= slices
            slices += scaled >= digit_limit(slice_bits) / 2
        np.multiply(slices, base, out=scaled)
        if above is not None:
            slices[0] -= above
        slices[1:] -= scaled[:-1]
        above = scaled[-1]
        yield from slices
        shifts += at_once * slice_bits


def num_pairs(num_diagonals: int, left: int, right: int) -> int:
    """Number of pairs (p, q) of slices with p + q < `num_diagonals`, of operands with
    so many slices; one has at least one.
    """
    left = max(left, 1)
    right = max(right, 1)
    pairs = 0
    for p in range(min(left, num_diagonals)):
        pairs += max(0, min(right, num_diagonals - p))
    return pairs


@lru_cache(maxsize=1024)
def diagonals_in_words(
    k: int, count: int, slice_bits: int, word_bits: int = _WORD_BITS
) -> tuple[int, ...]:
    """Numbers of diagonals s < `count` that sums below 2**word_bits hold one after the
    other, at least one of them each.

    The sum over the diagonals s = first .. last is sum_s D_s 2**(beta (last - s)) with
    |D_s| <= (s + 1) k h**2.
    """
    lengths: list[int] = []
    bound = 0
    for s in range(count):
        diagonal = (s + 1) * k * 4 ** (slice_bits - 1)
        bound = (bound << slice_bits) + diagonal
        if lengths and bound < 2**word_bits:
            lengths[-1] += 1
        else:
            lengths.append(1)
            bound = diagonal
    return tuple(lengths)


def words_of_diagonals(k: int, count: int, slice_bits: int) -> tuple[int, ...] | None:
    """`diagonals_in_words` where one or two sums are enough, which together stay below
    2**105; else None.
    """
    if (count * k * 4 ** (slice_bits - 1)) >> _WORD_BITS:
        return None
    lengths = diagonals_in_words(k, count, slice_bits)
    is_long = len(lengths) == 2 and _WORD_BITS + slice_bits * lengths[1] > _SUM_BITS
    return None if len(lengths) > 2 or is_long else lengths
