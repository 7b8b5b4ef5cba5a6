"""One sum of products as an integer of all its bits, for entries that sums in words
leave open.

A term is a product of two significands of 53 bits, an integer of 106 bits at a place of
its own. The sum is worked out 32 bits at a time from the lowest place, the terms side
by side; what exceeds 32 bits is carried. The number of these windows follows from the
places between which the terms lie: six for entries of one size, 137 for all there are.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from hifigemm.kernels.endings.rounding import round_head
from hifigemm.kernels.runtime.common import sign_of_finite
from hifigemm.kernels.vectors.statistics import biased_exponent, significand_of

_NOWHERE = tl.constexpr(100000)
"""Beyond the place of every term."""


@triton.jit
def _parts(x):
    """Sign, significand and exponent e of x = +-significand 2**(e - 1075)."""
    is_negative = x.to(tl.int64, bitcast=True) < 0
    significand = significand_of(x).to(tl.uint64)
    return is_negative, significand, tl.maximum(biased_exponent(x), 1)


@triton.jit
def _exact_terms(row, row_step, column, column_step, h, k):
    """Terms of a sum as +-(upper 2**64 + lower) 2**(exponent - 2150)."""
    inside = h < k
    a = tl.load(row + h * row_step, mask=inside, other=0.0).to(tl.float64)
    b = tl.load(column + h * column_step, mask=inside, other=0.0).to(tl.float64)
    a_negative, a_significand, a_exponent = _parts(a)
    b_negative, b_significand, b_exponent = _parts(b)
    lower = a_significand * b_significand
    upper = tl.umulhi(a_significand, b_significand)
    return a_negative != b_negative, upper, lower, a_exponent + b_exponent


@triton.jit
def _special_terms(row, row_step, column, column_step, h, k):
    """Twin: numerics.special. Products with an Inf or NaN, where a finite factor counts
    as its sign; 0 for all other products.
    """
    inside = h < k
    a = tl.load(row + h * row_step, mask=inside, other=0.0).to(tl.float64)
    b = tl.load(column + h * column_step, mask=inside, other=0.0).to(tl.float64)
    product = sign_of_finite(a) * sign_of_finite(b)
    return tl.where(tl.abs(product) <= 1.0, 0.0, product)


@triton.jit
def _digits(negative, upper, lower, position):
    """The sum of the 32 bits of terms from bit `position` of each, with their signs."""
    left = tl.minimum(tl.maximum(-position, 0), 63).to(tl.uint64)
    right = tl.minimum(tl.maximum(position, 0), 63).to(tl.uint64)
    beyond = tl.minimum(tl.maximum(position - 64, 0), 63).to(tl.uint64)
    inner = (lower >> right) | ((upper << 1) << (63 - right))
    digit = tl.where(position < 0, lower << left, inner)
    digit = tl.where(position >= 64, upper >> beyond, digit)
    digit = tl.where((position > -32) & (position < 128), digit & 0xFFFFFFFF, 0)
    signed = digit.to(tl.int64)
    return tl.sum(tl.where(negative, -signed, signed))


@triton.jit
def _pushed(kept, limb, window):
    """What is known of a magnitude once its next 32 bits are there.

    `kept` holds three limbs, if a bit below these is set, the same at the last limb
    that was not 0, and the window of that one.
    """
    x0, x1, x2, lost, top0, top1, top2, top_lost, top = kept
    lost = lost | x0
    x0 = x1
    x1 = x2
    x2 = limb
    is_top = limb != 0
    top0 = tl.where(is_top, x0, top0)
    top1 = tl.where(is_top, x1, top1)
    top2 = tl.where(is_top, x2, top2)
    top_lost = tl.where(is_top, lost, top_lost)
    top = tl.where(is_top, window, top)
    return x0, x1, x2, lost, top0, top1, top2, top_lost, top


@triton.jit
def exact_entry(
    row,
    row_step,
    column,
    column_step,
    k,
    extra,
    extra_exponent,
    shift,
    SINGLE: tl.constexpr,
    LANES: tl.constexpr,
):
    """One sum as an integer of all its bits: its value times 2**shift rounded once, its
    sign, and the pattern of Inf and NaN, 0 where there are none.

    All threads of a program work on the entry, LANES terms at a time. They add
    integers, so that no order changes a bit. `extra` is a tensor of LANES further terms
    extra 2**extra_exponent.
    """
    lanes = tl.arange(0, LANES)
    # The exponents between which the terms lie, as `_exact_terms` has them. A further
    # term has one factor instead of two; 1075 makes up for the other.
    extra_negative, extra_lower, extra_place = _parts(extra)
    extra_place += 1075 + extra_exponent
    extra_upper = tl.zeros_like(extra_lower)
    least = tl.min(tl.where(extra_lower != 0, extra_place, _NOWHERE))
    most = tl.max(tl.where(extra_lower != 0, extra_place, -_NOWHERE))
    special = tl.zeros([LANES], tl.float64)
    for start in range(0, k, LANES):
        special += _special_terms(row, row_step, column, column_step, start + lanes, k)
        _, upper, lower, place = _exact_terms(
            row, row_step, column, column_step, start + lanes, k
        )
        is_term = (upper | lower) != 0
        least = tl.minimum(least, tl.min(tl.where(is_term, place, _NOWHERE)))
        most = tl.maximum(most, tl.max(tl.where(is_term, place, -_NOWHERE)))

    # 32 bits at a time, from the lowest, with carries: of the sum and of its negative,
    # of which one ends without a carry.
    zero = tl.full((), 0, tl.int64)
    kept = zero, zero, zero, zero, zero, zero, zero, zero, zero
    minus_kept = kept
    carry = zero
    minus_carry = zero
    # 106 bits of a term, 31 of their number.
    windows = tl.maximum((most - least + 106 + 31) // 32 + 1, 0)
    for window in range(windows):
        total = _digits(
            extra_negative,
            extra_upper,
            extra_lower,
            32 * window - (extra_place - least),
        )
        for start in range(0, k, LANES):
            negative, upper, lower, place = _exact_terms(
                row, row_step, column, column_step, start + lanes, k
            )
            total += _digits(negative, upper, lower, 32 * window - (place - least))
        carry += total
        minus_carry -= total
        kept = _pushed(kept, carry & 0xFFFFFFFF, window)
        minus_kept = _pushed(minus_kept, minus_carry & 0xFFFFFFFF, window)
        carry = carry >> 32
        minus_carry = minus_carry >> 32

    # The leading 64 bits of the magnitude, and what is set below them.
    is_negative = carry < 0
    _, _, _, _, top0, top1, top2, lost, top = kept
    _, _, _, _, minus0, minus1, minus2, minus_lost, minus_top = minus_kept
    top0 = tl.where(is_negative, minus0, top0).to(tl.uint64)
    top1 = tl.where(is_negative, minus1, top1).to(tl.uint64)
    top2 = tl.where(is_negative, minus2, top2).to(tl.uint64)
    lost = tl.where(is_negative, minus_lost, lost)
    top = tl.where(is_negative, minus_top, top)
    bits = biased_exponent(top2.to(tl.int64).to(tl.float64)) - 1023 + 1
    bits = tl.maximum(bits, 1)
    room = (32 - bits).to(tl.uint64)
    head = (((top2 << 32) | top1) << room) | (top0 >> (32 - room))
    sticky = (lost != 0) | (((top0 << room) & 0xFFFFFFFF) != 0)
    exponent = 32 * top.to(tl.int32) + bits - 1 + least - 2150 + shift
    is_zero = top2 == 0
    value = round_head(head, sticky, exponent, is_negative, SINGLE)
    sign = tl.where(is_zero, 0, tl.where(is_negative, -1, 1))
    return tl.where(is_zero, 0.0, value), sign, tl.sum(special)
