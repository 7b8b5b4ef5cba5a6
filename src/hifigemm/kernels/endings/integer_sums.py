"""Integers with a further term, and the two roundings of a pair or an enclosure.

The bits are those of numerics/integer_sums.py, which has the exactness condition.
There an entry is laid out with all bits between V and C. Here a term is added to the
128 bits and the limbs that hold V, with 64 bits of a fraction below them. A term that
reaches beyond them lies 2**10 above V or 2**11 below its last bit. Then 64 leading bits
of the larger one, and whether anything is set further down, decide the rounding.

The functions take tiles of any shape, and treat each entry by itself.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def, misc, assignment, var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from hifigemm.kernels.endings.rounding import (
    as_integer,
    finite,
    leading_bits_of,
    nearest_finite,
    neighbour,
    round_head,
)

_TOP_BIT = tl.constexpr(1 << 63)
_ROOM = tl.constexpr(126)
"""Bits of high and low that a term may reach: |high| < 2**53 then leaves the sign."""


@triton.jit
def _significand(x):
    """(m, e, is_negative) with |x| = m 2**e, the leading bit of m is 2**52; 0 for 0."""
    # Subnormal numbers are made normal first.
    is_small = tl.abs(x) < 2.0**-1022
    bits = tl.where(is_small, x * 2.0**54, x).to(tl.int64, bitcast=True)
    m = (bits & ((1 << 52) - 1)) | (1 << 52)
    e = ((bits >> 52).to(tl.int32) & 0x7FF) - 1075 - tl.where(is_small, 54, 0)
    m = tl.where(x == 0.0, 0, m)
    return m.to(tl.uint64, bitcast=True), e, bits < 0


@triton.jit
def _window(m, distance):
    """The 64 bits of m from 2**distance on, and zeros beyond m."""
    up = tl.minimum(tl.maximum(-distance, 0), 63).to(tl.uint64)
    down = tl.minimum(tl.maximum(distance, 0), 63).to(tl.uint64)
    return tl.where((distance > -64) & (distance < 64), (m << up) >> down, 0)


@triton.jit
def _with_term(
    high, low, limbs, m, place, is_negative, FRACTION: tl.constexpr, BITS: tl.constexpr
):
    """V +- m 2**place, place counted from the last bit of V: high, low, limbs, and the
    word of the fraction below them, with FRACTION.
    """
    # V - x is the complement of the complement of V, plus x: bits are flipped before
    # and after an addition.
    flip = tl.where(is_negative, -1, 0).to(tl.int64).to(tl.uint64, bitcast=True)
    carry = tl.zeros_like(low)
    fraction = ()
    if FRACTION:
        part = _window(m, -64 - place)
        word = flip + part
        carry = (word < part).to(tl.uint64)
        fraction = (word ^ flip,)
    MASK: tl.constexpr = (1 << BITS) - 1
    sums = ()
    for j in tl.static_range(len(limbs)):
        part = _window(m, BITS * j - place) & MASK
        limb = ((limbs[j].to(tl.uint64) ^ flip) & MASK) + part + carry
        carry = limb >> BITS
        sums = sums + ((limb ^ flip) & MASK,)  # noqa: RUF005
    AT: tl.constexpr = BITS * len(limbs)
    part = _window(m, AT - place)
    total = (low ^ flip) + part
    carry_of_sum = (total < part).to(tl.uint64)
    total += carry
    carry_of_sum += ((total == 0) & (carry != 0)).to(tl.uint64)
    upper = _window(m, AT + 64 - place) + carry_of_sum
    high = ((high.to(tl.uint64, bitcast=True) ^ flip) + upper) ^ flip
    return high.to(tl.int64, bitcast=True), total ^ flip, sums, fraction


@triton.jit
def _with_far_term(head, sticky, top, is_negative, m, e, m_is_negative, is_above):
    """Leading bits of V and a term m 2**e that lies far above V, or far below it.

    The arguments and results are those of `leading_bits_of`, without the tail.
    """
    # Both get the leading bit 2**63. A term above V moves one bit down, so that the sum
    # has room; a V above the term needs none, as the term lies below its last bit.
    m_head = m << 11
    m_top = e + 52
    large = tl.where(is_above, m_head >> 1, head)
    large_top = tl.where(is_above, m_top + 1, top)
    small = tl.where(is_above, head, m_head)
    small_top = tl.where(is_above, top, m_top)
    # What of the smaller one lies below the last bit of the larger one.
    distance = large_top - small_top
    down = tl.minimum(tl.maximum(distance, 0), 63).to(tl.uint64)
    part = tl.where(distance < 64, small >> down, 0)
    lost = ((part << down) != small) | (is_above & sticky)
    differs = is_negative != m_is_negative
    # A difference lies below the one without the lost bits.
    total = large + tl.where(differs, 0, part)
    total -= tl.where(differs, part + lost.to(tl.uint64), 0)
    # Up to two leading zeros: the bit of room, and one that a difference may lose.
    for _ in tl.static_range(2):
        is_short = (total & _TOP_BIT) == 0
        total = tl.where(is_short, total << 1, total)
        large_top = tl.where(is_short, large_top - 1, large_top)
    return total, lost, large_top, tl.where(is_above, m_is_negative, is_negative)


@triton.jit
def _rounded(head, sticky, top, is_negative, SINGLE: tl.constexpr):
    """`round_head` in float64, of numbers of float32 with SINGLE."""
    value = round_head(head, sticky, top, is_negative, SINGLE)
    if SINGLE:
        value = value.to(tl.float32).to(tl.float64)
    return value


@triton.jit
def rounded_integers(
    h,
    word,
    limbs,
    exponent,
    addend,
    addend_exponent,
    sign,
    RESULT: tl.constexpr,
    HAS_C: tl.constexpr,
    SINGLE: tl.constexpr,
    LOW_BITS: tl.constexpr,
    BITS: tl.constexpr,
):
    """Twin: numerics.integer_sums.rounded_integers of V 2**(exponent - T).

    For V see `rounding.leading_bits`. The sum is sign V + addend 2**addend_exponent, a
    finite addend, with RESULT "array" only. Values are float64; with SINGLE, numbers of float32.
    """
    tl.static_assert(RESULT == "array" or not HAS_C)
    high, low = as_integer(h, word, LOW_BITS)
    # Exponent of the last bit of V.
    AT: tl.constexpr = BITS * len(limbs)
    last = exponent - 64 - AT
    fraction = ()
    if HAS_C:
        # It is sign (V + sign addend), and the sign of zero is none.
        m, e, m_is_negative = _significand(addend * sign.to(tl.float64))
        e += addend_exponent
        is_above = e - last > AT + _ROOM - 53
        is_below = e - last < -64
        near = tl.where(is_above | is_below, 0, m)
        high, low, limbs, fraction = _with_term(
            high, low, limbs, near, e - last, m_is_negative, True, BITS
        )
    head, _, sticky, top, is_negative = leading_bits_of(
        high, low, limbs, fraction, exponent, BITS
    )
    if HAS_C:
        # A term below all bits of V changes nothing where V has bits behind the leading
        # ones: these are sticky already.
        is_above |= is_below & (head == 0)
        is_far = (m != 0) & (is_above | (is_below & (sticky == 0)))
        far = _with_far_term(
            head, sticky, top, is_negative, m, e, m_is_negative, is_above
        )
        head = tl.where(is_far, far[0], head)
        sticky = tl.where(is_far, far[1], sticky)
        top = tl.where(is_far, far[2], top)
        is_negative = tl.where(is_far, far[3], is_negative)
        is_negative ^= (sign < 0) & (head != 0)
    value = _rounded(head, sticky, top, is_negative, SINGLE)
    second = value
    if RESULT != "array":
        # What is left of V. Nothing is taken away from it beyond the largest number,
        # where it has the sign of the infinity.
        is_finite = tl.abs(value) < float("inf")
        m, e, m_is_negative = _significand(finite(value))
        high, low, limbs, _ = _with_term(
            high, low, limbs, m, e - last, m_is_negative == 0, False, BITS
        )
        head, _, sticky, top, is_negative = leading_bits_of(
            high, low, limbs, (), exponent, BITS
        )
        if RESULT == "pair":
            rest = _rounded(head, sticky, top, is_negative, SINGLE)
            second = tl.where(is_finite, rest, 0.0)
        else:
            near = nearest_finite(value, SINGLE)
            side = tl.where(head == 0, 0, tl.where(is_negative, -1, 1))
            value = neighbour(near, tl.minimum(side, 0), SINGLE)
            second = neighbour(near, tl.maximum(side, 0), SINGLE)
    return value, second
