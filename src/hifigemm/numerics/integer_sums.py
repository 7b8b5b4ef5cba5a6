"""Integers with a further term, and the two roundings of a pair or an enclosure.

Idea
    Where moduli hold the exact product, the Chinese remainder theorem gives the integer
    V behind an entry, and nothing of it is lost. V 2**x + C is an integer of more bits,
    which is rounded once. A pair is that rounding of V 2**x, and the rounding of V 2**x
    - high; an enclosure follows from the sign of this difference.
Exact when
    V is: |V| <= half_range of the moduli, and all entries are integers at their scales
    (the condition of ozaki2.py for correct rounding). A second word asks for no further
    modulus and for no test of its rounding, as V - high 2**-x is an integer as well:
    high is a multiple of its own unit, which is a multiple of 2**x wherever rounding
    changed anything.
Cost
    Each entry is laid out as an integer of all its bits, however far apart V and C lie.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hifigemm.base.formats import Format
from hifigemm.numerics.bits import Array, lowest_bit, scale_by_power
from hifigemm.numerics.limbs import LIMB_BITS, carry
from hifigemm.numerics.rounded_sums import Addend
from hifigemm.numerics.rounding_formats import result_dtype
from hifigemm.numerics.three_words import neighbours

_MASK = (1 << LIMB_BITS) - 1
"""The bits of a limb."""


class Rounding(NamedTuple):
    """What is made of exact sums: one array or two, C among the terms or not."""

    result: str = "array"  # or "pair", "enclosure"
    has_addend: bool = False
    c_exponent: int = 0  # C is multiplied by c_sign 2**c_exponent
    c_sign: int = 1
    sign: int = 1  # of A B beside an addend

    @property
    def has_two_parts(self) -> bool:
        """True for a pair or an enclosure."""
        return self.result != "array"

    @property
    def kind(self) -> str:
        """What `three_words.certified_sums` calls it."""
        return self.result if self.has_two_parts else "nearest"

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reason of a plan says of it."""
        of_parts = ("both arrays of one product",) if self.has_two_parts else ()
        return (*of_parts, "C among the terms") if self.has_addend else of_parts


NEAREST = Rounding()
"""The nearest number."""


@np.errstate(all="ignore")
def rounded_integers(
    limbs: Array,
    exponent: Array,
    fmt: Format,
    *,
    result: str = "array",
    addend: Addend | None = None,
    sign: int = 1,
) -> tuple[Array, Array | None]:
    """sign V 2**exponent + C rounded once, and a second array for other results.

    The result "pair" adds what is left of the sum, rounded once, 0 where the value is
    not finite. "enclosure" gives the numbers next to the sum instead, from below and
    above. An exact zero is +0; a negative sum that rounds to zero is -0. What is not
    finite of C is added to the rounded sign V 2**exponent.

    Parameters
    ----------
    limbs : int64 array (L, N), signed and unswept
    exponent : int64 array (N,)
    fmt : FP64 or FP32
    addend : of N entries, or None
    """
    from hifigemm.numerics.rounding import round_limbs

    limbs = sign * limbs
    if addend is not None:
        c = np.where(np.isfinite(addend.c), addend.c, 0).astype(np.float64)
        c_exponent = np.full(len(c), addend.exponent)
        limbs, exponent = _with_term(limbs, exponent, c * addend.sign, c_exponent)
    values = round_limbs(limbs.copy(), exponent, fmt).values
    if addend is not None:
        signed = addend.c * addend.c.dtype.type(addend.sign)
        values = np.where(np.isfinite(addend.c), values, values + signed)
    if result == "array":
        return values, None

    # What is left of the sum. Beyond the largest number the sum has the sign of the
    # infinity, and nothing is taken away from it.
    is_finite = np.isfinite(values)
    near = np.where(is_finite, values, 0).astype(np.float64)
    no_shift = np.zeros(len(near), np.int64)
    remainder, unit = _with_term(limbs, exponent, -near, no_shift)
    rounded = round_limbs(remainder.copy(), unit, fmt)
    if result == "pair":
        return values, np.where(is_finite, rounded.values, 0).astype(values.dtype)
    carry(remainder)
    is_negative = remainder[-1] < 0
    is_nonzero = rounded.magnitude >= 0
    side = np.where(is_negative, -1, np.where(is_nonzero, 1, 0))
    largest = np.finfo(result_dtype(fmt)).max
    return neighbours(np.clip(values, -largest, largest), side)


def _with_term(
    limbs: Array, exponent: Array, x: Array, x_exponent: Array
) -> tuple[Array, Array]:
    """Limbs and exponents of V 2**exponent + x 2**x_exponent for float64 x."""
    # x is an integer at its lowest bit; that of both terms is the unit of the sum.
    lowest = lowest_bit(x[None], 0)[0]
    is_zero = x == 0
    lowest = np.where(is_zero, 0, lowest)
    significand = scale_by_power(x, -lowest).astype(np.int64)
    x_exponent = np.where(is_zero, exponent, lowest + x_exponent)
    unit = np.minimum(exponent, x_exponent)
    shifts = exponent - unit
    x_shifts = x_exponent - unit

    # Room for both, one more limb for what a shift reaches into, and one for the sign.
    swept = limbs.copy()
    carry(swept)
    bits = shifts + LIMB_BITS * len(limbs)
    x_bits = x_shifts + 2 * LIMB_BITS
    most_bits = int(np.maximum(bits, x_bits).max(initial=0))
    count = most_bits // LIMB_BITS + 3
    total = np.zeros((count, len(x)), np.int64)
    columns = np.arange(len(x))

    def add(part: Array, shift: Array) -> None:
        """Add part 2**shift, for parts of up to 32 bits and a sign."""
        index, shift_in_limb = np.divmod(shift, LIMB_BITS)
        shifted = part << shift_in_limb
        total[index, columns] += shifted & _MASK
        total[index + 1, columns] += shifted >> LIMB_BITS

    # The last limb has the sign, and more than 32 bits.
    for j, limb in enumerate(swept[:-1]):
        add(limb, shifts + LIMB_BITS * j)
    add(swept[-1] & _MASK, shifts + LIMB_BITS * (len(swept) - 1))
    add(swept[-1] >> LIMB_BITS, shifts + LIMB_BITS * len(swept))
    add(significand & _MASK, x_shifts)
    add(significand >> LIMB_BITS, x_shifts + LIMB_BITS)
    return total, unit
