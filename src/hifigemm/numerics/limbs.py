"""Big integers as arrays of limbs, V = sum_j limbs[j] 2**(32 j).

There is one int64 array for each limb. Limbs are signed and may carry more than 32 bits
until `carry` sweeps them, so sums of sums cost one addition each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hifigemm.numerics.bits import Array

LIMB_BITS = 32
"""Bits of a limb after a sweep: half of an int64, so that sums of limbs have room."""

_MASK = (1 << LIMB_BITS) - 1
"""The bits of a limb."""


def num_limbs(bits: int) -> int:
    """Number of limbs that hold all integers below 2**bits in magnitude, with signs."""
    return bits // LIMB_BITS + 1


def limbs_from_sums(sums: Array, shifts: Sequence[int], count: int) -> Array:
    """Limbs of sum_s sums[s] * 2**shifts[s].

    `sums` is int64 (S, N), below 2**62 in magnitude; the limbs are int64 (count, N)
    with `count` enough for every value, not yet swept: below 2**33 S in magnitude.
    """
    limbs = np.zeros((count + 2, sums.shape[1]), np.int64, like=sums)
    for total, shift in zip(sums, shifts, strict=True):
        # A sum, shifted by r < 32, reaches into three limbs.
        j, r = divmod(shift, LIMB_BITS)
        upper = total >> (LIMB_BITS - r)
        limbs[j] += (total & (_MASK >> r)) << r
        limbs[j + 1] += upper & _MASK
        limbs[j + 2] += upper >> LIMB_BITS
    # Limbs above `count` hold nothing but the sign, which vanishes modulo 2**64.
    limbs[count - 1] += limbs[count] << LIMB_BITS
    return limbs[:count]


def carry(limbs: Array, bits: int = LIMB_BITS) -> None:
    """Sweep the carries upward in place.

    Then 0 <= limbs[j] < 2**bits for all limbs but the last, which has the sign.
    """
    for j in range(len(limbs) - 1):
        limbs[j + 1] += limbs[j] >> bits
        limbs[j] &= (1 << bits) - 1
