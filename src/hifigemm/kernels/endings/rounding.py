"""Whole integers rounded once, for the rare entries that kernels round again, and for
results that say more of a sum than the nearest number.

The bits are those of numerics.rounding.round_limbs and of
numerics.integer_sums.rounded_integers. The functions take tiles of any shape, and treat
each entry by itself.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def, misc, assignment, var-annotated"

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from hifigemm.kernels.runtime.common import power_of_two
from hifigemm.numerics.integer_sums import NEAREST, Rounding

_HALF = tl.constexpr(2.0**32)
"""The unit of the upper half of a word of 64 bits."""
_WHOLE = tl.constexpr(2.0**64)
"""The unit of what lies above a word."""


class Targets(NamedTuple):
    """Where entries of a result go, and what is made of their exact sums: tensors or
    buffers of one shape and dtype.
    """

    out: Any
    rounding: Rounding = NEAREST
    c: Any = None  # broadcasts to the shape; None where there is no C
    second: Any = None  # of a pair or an enclosure


@triton.jit
def round_integer(
    h,
    word,
    limbs,
    exponent,
    SINGLE: tl.constexpr,
    LOW_BITS: tl.constexpr,
    BITS: tl.constexpr,
):
    """Twin: numerics.rounding.round_limbs of V 2**(exponent - T), any V and exponent.

    For the arguments see `leading_bits`. The values are float64; with SINGLE, numbers
    of float32 or too large for it.
    """
    head, _, sticky, top, is_negative = leading_bits(
        h, word, limbs, exponent, LOW_BITS, BITS
    )
    return round_head(head, sticky, top, is_negative, SINGLE)


@triton.jit
def leading_bits(h, word, limbs, exponent, LOW_BITS: tl.constexpr, BITS: tl.constexpr):
    """`leading_bits_of` the integer V = H 2**T + V_T.

    It comes as float64 h, as the word with the upper 64 bits of V_T + 2**(T - 1), of
    which the lower 52 count where T = LOW_BITS = 52, and as the limbs of BITS bits below
    it, the lowest first.
    """
    high, low = as_integer(h, word, LOW_BITS)
    return leading_bits_of(high, low, limbs, (), exponent, BITS)


@triton.jit
def as_integer(h, word, LOW_BITS: tl.constexpr):
    """high and low of V = high 2**64 + low in two's complement, low in units of the
    word's last bit, from the arguments of `leading_bits`.
    """
    # Flipping the first bit of the word takes 2**(T - 1) away again.
    if LOW_BITS == 52:
        word = word << 12
    d = word ^ (-1 << 63)
    return h.to(tl.int64) + (d >> 63), d.to(tl.uint64, bitcast=True)


@triton.jit
def leading_bits_of(high, low, limbs, fraction, exponent, BITS: tl.constexpr):
    """The 64 leading bits of |V|, the bits behind them, whether any bit follows, the
    exponent of the first one, and the sign.

    V is high 2**64 + low, in units of 2**(exponent - 64), with limbs of BITS bits below
    it, the lowest first, and below these a fraction of one word or none. The first 64 -
    BITS or more of the 64 bits behind the leading ones are those of |V|.
    """
    # |V|: all bits of a negative V are flipped, and the 1 that is then added carries
    # from the lowest limb up.
    is_negative = high < 0
    carry = is_negative.to(tl.uint64)
    flipped_bits = tl.where(is_negative, -1, 0).to(tl.int64).to(tl.uint64, bitcast=True)
    if len(fraction) > 0:
        last_word = (fraction[0] ^ flipped_bits) + carry
        carry = ((last_word == 0) & (carry != 0)).to(tl.uint64)
    magnitudes = ()
    for j in tl.static_range(len(limbs)):
        limb = ((limbs[j] ^ flipped_bits) & ((1 << BITS) - 1)) + carry
        carry = limb >> BITS
        magnitudes = magnitudes + (limb & ((1 << BITS) - 1),)  # noqa: RUF005
    low = (low ^ flipped_bits) + carry
    high = (high.to(tl.uint64, bitcast=True) ^ flipped_bits) + (
        (low == 0) & (carry != 0)
    ).to(tl.uint64)
    # Limbs move up into the 128 bits as long as the first BITS + 1 bits are 0, the
    # highest limb first; the other limbs count as lost bits. low is a multiple of
    # 2**unit all the time.
    unit = exponent - 64
    lost_bits = tl.zeros_like(low)
    for i in tl.static_range(len(limbs)):
        limb = magnitudes[len(limbs) - 1 - i]
        has_room = (high >> (63 - BITS)) == 0
        lost_bits = tl.where(has_room, lost_bits, lost_bits | limb)
        high = tl.where(has_room, (high << BITS) | (low >> (64 - BITS)), high)
        low = tl.where(has_room, (low << BITS) | limb, low)
        unit = tl.where(has_room, unit - BITS, unit)
    # The fraction follows as a whole where the upper word is still 0.
    if len(fraction) > 0:
        has_room = high == 0
        lost_bits = tl.where(has_room, lost_bits, lost_bits | last_word)
        high = tl.where(has_room, low, high)
        low = tl.where(has_room, last_word, low)
        unit = tl.where(has_room, unit - 64, unit)
    # Where the upper word is still 0, the lower one takes its place.
    is_empty = high == 0
    high = tl.where(is_empty, low, high)
    low = tl.where(is_empty, 0, low)
    unit = tl.where(is_empty, unit - 64, unit)
    # Leading zeros of high from the exponent of a float64. Bits behind other bits are
    # cleared first, so that the conversion cannot round up to the next power of two.
    # 1023 is the bias of the exponent; high = 0 counts as 1.
    leading = (high & (high ^ (high >> 1))).to(tl.float64)
    exponents = (leading.to(tl.int64, bitcast=True) >> 52).to(tl.int32) & 0x7FF
    shift = (63 + 1023 - tl.maximum(exponents, 1023)).to(tl.uint64)
    # The 64 leading bits of |V|. A shift by 64 - shift comes in two steps, as a shift
    # by 64 is undefined.
    head = (high << shift) | ((low >> 1) >> (63 - shift))
    tail = low << shift
    return (
        head,
        tail,
        (lost_bits | tail) != 0,
        unit + 127 - shift.to(tl.int32),
        is_negative,
    )


@triton.jit
def round_head(head, sticky, top, negative, SINGLE: tl.constexpr):
    """+-head 2**(top - 63), rounded to nearest even once.

    Bit 63 of head is set unless V is 0. The sticky flag stands for bits below head's
    last.
    """
    # The exponent of the result's last bit: 23 or 52 below the first one, or that of
    # the smallest subnormal number.
    if SINGLE:
        quantum = tl.maximum(top - 23, -149)
    else:
        quantum = tl.maximum(top - 52, -1074)
    # head in quarters of the last place: the second last bit is the half, the last one
    # is sticky.
    drop = tl.minimum(quantum - top + 61, 63).to(tl.uint64)
    quarter = head >> drop
    sticky = sticky | ((quarter << drop) != head) | ((quarter & 1) != 0)
    significand = quarter >> 2
    rounds_up = ((quarter & 2) != 0) & (sticky | ((significand & 1) != 0))
    # From 2**1024 on everything is Inf, so that 1100 stands for larger exponents. The
    # power is a product of two, as `power_of_two` makes normal numbers only.
    quantum = tl.minimum(quantum, 1100)
    half = quantum >> 1
    value = (
        (significand + rounds_up.to(tl.uint64)).to(tl.float64)
        * power_of_two(half)
        * power_of_two(quantum - half)
    )
    return value * tl.where(negative, -1.0, 1.0).to(tl.float64)


@triton.jit
def nearest_finite(x, SINGLE: tl.constexpr):
    """x, or for an infinity the largest number of the format with its sign."""
    if SINGLE:
        largest = 3.4028234663852886e38
    else:
        largest = 1.7976931348623157e308
    infinite = tl.abs(x) == float("inf")
    return tl.where(infinite, tl.where(x > 0, largest, -largest), x)


@triton.jit
def neighbour(x, step, SINGLE: tl.constexpr):
    """The next number of the format above (step 1), below (-1), or x itself (0)."""
    if SINGLE:
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
        # Integers in the order of the numbers they stand for; both zeros are 0.
        index = tl.where(bits < 0, (-1 << 31) - bits, bits) + step
        # What comes to zero keeps its sign.
        is_negative = (index < 0) | ((index == 0) & (bits < 0))
        bits = tl.where(is_negative, (-1 << 31) - index, index)
        moved = bits.to(tl.float32, bitcast=True).to(tl.float64)
    else:
        bits = x.to(tl.int64, bitcast=True)
        index = tl.where(bits < 0, (-1 << 63) - bits, bits) + step
        is_negative = (index < 0) | ((index == 0) & (bits < 0))
        bits = tl.where(is_negative, (-1 << 63) - index, index)
        moved = bits.to(tl.float64, bitcast=True)
    return tl.where(step == 0, x, moved)


@triton.jit
def with_addend(values, addend):
    """Values with the Inf and NaN of C where IEEE arithmetic puts them."""
    return tl.where(tl.abs(addend) < float("inf"), values, values + addend)


@triton.jit
def finite(x):
    """x, or 0 for Inf and NaN."""
    return tl.where(tl.abs(x) < float("inf"), x, 0.0)


@triton.jit
def rounded_words(above, low, WIDE: tl.constexpr, SINGLE: tl.constexpr):
    """above 2**64 + low, |above| < 2**41, rounded once to float64.

    To nearest, or with SINGLE to odd, so that the conversion to float32 rounds
    correctly.
    """
    # Integers that float64 holds: the upper half, signed, and the lower half of `low`.
    high_half = (low >> 32).to(tl.int32).to(tl.float64) * _HALF
    low_half = (low & 0xFFFFFFFF).to(tl.uint32).to(tl.float64)
    if WIDE:
        # Every term is a multiple of 2**32 until `rest` is added, and what a first sum
        # leaves is below 2**53.
        top = above.to(tl.float64) * _WHOLE
        total = top + high_half
        low_half += (top - total) + high_half
        high_half = total
    value = high_half + low_half
    if SINGLE:
        # What the sum lost; the bits of a value that is too large in magnitude step
        # back, and where any bit was lost the last one is set.
        lost = low_half - (value - high_half)
        bits = value.to(tl.int64, bitcast=True)
        bits -= ((lost != 0.0) & ((lost < 0.0) != (value < 0.0))).to(tl.int64)
        value = (bits | (lost != 0.0).to(tl.int64)).to(tl.float64, bitcast=True)
    return value
