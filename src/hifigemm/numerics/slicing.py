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

import numpy as np

from hifigemm.numerics.bits import NO_BIT, Array, scale_by_power

MAX_GRID = 1023
"""Slices whose largest value is 2**MAX_GRID or less can be subtracted as they are."""

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
    x: Array, unit: Array, slice_bits: int, twos_complement: bool = False
) -> Iterator[Array]:
    """Yield the slices of x in order, without end, as float64 arrays of integers.

    `x` is float64 and is overwritten by the remainder; `unit` broadcasts against it.
    Two's-complement digits want |x| < `digit_limit` 2**(unit + slice_bits - 1).
    """
    grid = unit.copy()
    while True:
        scaled = scale_by_power(x, -grid)
        w = np.rint(scaled)
        yield _wrapped(w, scaled - w, slice_bits) if twos_complement else w

        # The remainder. Next to the largest float a slice may round up to 2**1024: x
        # and the slice are halved there before they are subtracted, which is exact.
        is_high = grid + slice_bits > MAX_GRID
        if is_high.any():
            half = np.where(is_high, 0.5, 1.0)
            remainder = (x * half - scale_by_power(w, grid - is_high)) / half
            x[...] = np.where(w == 0, x, remainder)
        else:
            x -= scale_by_power(w, grid)
        grid -= slice_bits


def _wrapped(w: Array, remainder: Array, slice_bits: int) -> Array:
    """Digits -h .. h - 1, from digits to nearest and their remainders in units.

    A remainder beyond the limit makes the next digit h. Then this digit is one larger,
    which is 2h = 2**beta units of the next one, and the next one becomes h - 2h = -h.
    """
    h = 2.0 ** (slice_bits - 1)
    up = np.where(remainder >= digit_limit(slice_bits) / 2, w + 1.0, w)
    return np.where(up == h, -h, up)


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


def words_of_diagonals(k: int, count: int, slice_bits: int) -> tuple[int, ...] | None:
    """Numbers of diagonals s < `count` that one or two int64 sums hold, in order.

    The sum over the diagonals s = first .. last is sum_s D_s 2**(beta (last - s)) with
    |D_s| <= (s + 1) k h**2, and stays below 2**62; two of them together stay below
    2**105. None where two sums are not enough.
    """

    def length(first: int) -> int:
        """Number of diagonals from `first` on that one sum holds."""
        bound = 0
        last = first - 1
        while last + 1 < count:
            bound = (bound << slice_bits) + (last + 2) * k * 4 ** (slice_bits - 1)
            if bound >> _WORD_BITS:
                break
            last += 1
        return last + 1 - first

    high = length(0)
    low = length(high)
    if high + low < count or _WORD_BITS + slice_bits * low > _SUM_BITS:
        return None
    return (high, low) if low else (high,)
