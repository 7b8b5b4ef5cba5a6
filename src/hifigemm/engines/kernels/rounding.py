"""Whole integers rounded once: numerics.rounding.round_limbs, for the rare entries that
kernels round again.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def, misc, assignment, var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from hifigemm.engines.kernels.common import power_of_two


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
    """numerics.rounding.round_limbs of V 2**(exponent - T) for any V and exponent.

    V = H 2**T + V_T comes as float64 h, as the word with the upper 64 bits of
    V_T + 2**(T - 1), of which the lower 52 count where T = LOW_BITS = 52, and as the
    limbs of BITS bits below it, the lowest first. The values are float64; with SINGLE,
    numbers of float32 or too large for it.
    """
    if LOW_BITS == 52:
        word = word << 12
    d = word ^ (-1 << 63)
    high = h.to(tl.int64) + (d >> 63)
    low = d.to(tl.uint64, bitcast=True)
    negative = high < 0
    carry = negative.to(tl.uint64)
    flip = tl.where(negative, -1, 0).to(tl.int64).to(tl.uint64, bitcast=True)
    magnitudes = ()
    for j in tl.static_range(len(limbs)):
        limb = ((limbs[j] ^ flip) & ((1 << BITS) - 1)) + carry
        carry = limb >> BITS
        magnitudes = magnitudes + (limb & ((1 << BITS) - 1),)  # noqa: RUF005
    low = (low ^ flip) + carry
    high = (high.to(tl.uint64, bitcast=True) ^ flip) + ((low == 0) & (carry != 0)).to(
        tl.uint64
    )
    unit = exponent - 64
    rest = tl.zeros_like(low)
    for i in tl.static_range(len(limbs)):
        limb = magnitudes[len(limbs) - 1 - i]
        room = (high >> (63 - BITS)) == 0
        rest = tl.where(room, rest, rest | limb)
        high = tl.where(room, (high << BITS) | (low >> (64 - BITS)), high)
        low = tl.where(room, (low << BITS) | limb, low)
        unit = tl.where(room, unit - BITS, unit)
    empty = high == 0
    high = tl.where(empty, low, high)
    low = tl.where(empty, 0, low)
    unit = tl.where(empty, unit - 64, unit)
    leading = (high & (high ^ (high >> 1))).to(tl.float64)
    exponents = (leading.to(tl.int64, bitcast=True) >> 52).to(tl.int32) & 0x7FF
    shift = (63 + 1023 - tl.maximum(exponents, 1023)).to(tl.uint64)
    head = (high << shift) | ((low >> 1) >> (63 - shift))
    rest = rest | (low << shift)
    return _round_head(
        head, rest != 0, unit + 127 - shift.to(tl.int32), negative, SINGLE
    )


@triton.jit
def _round_head(head, sticky, top, negative, SINGLE: tl.constexpr):
    """+-head 2**(top - 63), rounded to nearest even once; the sticky flag lies below
    the last bit of head.
    """
    if SINGLE:
        quantum = tl.maximum(top - 23, -149)
    else:
        quantum = tl.maximum(top - 52, -1074)
    drop = tl.minimum(quantum - top + 61, 63).to(tl.uint64)
    quarter = head >> drop
    sticky = sticky | ((quarter << drop) != head) | ((quarter & 1) != 0)
    kept = quarter >> 2
    up = ((quarter & 2) != 0) & (sticky | ((kept & 1) != 0))
    quantum = tl.minimum(quantum, 1100)
    half = quantum >> 1
    value = (
        (kept + up.to(tl.uint64)).to(tl.float64)
        * power_of_two(half)
        * power_of_two(quantum - half)
    )
    return value * tl.where(negative, -1.0, 1.0).to(tl.float64)
