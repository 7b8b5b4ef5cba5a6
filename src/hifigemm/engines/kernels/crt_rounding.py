"""Rounding of whole integers, alpha and beta, Inf and NaN for the reconstruction kernel.

Integers V come as the kernel holds them (crt_constants): H as float64, the word with the upper 64 bits of
V_T + 2**(T - 1), of which the lower 52 count where T = 52, and the limbs below it, the lowest first. FMA contraction
must be off (enable_fp_fusion=False): the error-free transformations do not survive it.
"""

# mypy: disable-error-code="no-untyped-def, misc, assignment, var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from hifigemm.engines.kernels.elementary import power_of_two, sign_of_finite
from hifigemm.numerics.epilogue import DOWN

__all__ = ["combine", "exponent_field", "nonfinite_product", "round_integer"]

_SAFE_LARGEST = tl.constexpr(2.0**990)
_SAFE_SMALLEST = tl.constexpr(2.0**-900)
_SPLITTER = tl.constexpr(2.0**27 + 1.0)
_DOWN = tl.constexpr(2.0**-DOWN)


@triton.jit
def exponent_field(x):
    """The eleven exponent bits of float64 x as INT32."""
    return (x.to(tl.int64, bitcast=True) >> 52).to(tl.int32) & 0x7FF


@triton.jit
def round_integer(h, word, limbs, exponent, SINGLE: tl.constexpr, LOW_BITS: tl.constexpr, BITS: tl.constexpr):
    """numerics.rounding.round_limbs of V 2**(exponent - T) for any V and exponent: values, and floor(log2 |V|) or -1.

    The values are float64; with SINGLE, numbers of float32 or too large for it.
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
    high = (high.to(tl.uint64, bitcast=True) ^ flip) + ((low == 0) & (carry != 0)).to(tl.uint64)
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
    shift = (63 + 1023 - tl.maximum(exponent_field(leading), 1023)).to(tl.uint64)
    head = (high << shift) | ((low >> 1) >> (63 - shift))
    rest = rest | (low << shift)
    top = unit + 127 - shift.to(tl.int32)
    magnitude = tl.where(head == 0, -1, top - exponent + LOW_BITS)
    return _round_head(head, rest != 0, top, negative, SINGLE), magnitude


@triton.jit
def _round_head(head, sticky, top, negative, SINGLE: tl.constexpr):
    """+-head 2**(top - 63), rounded to nearest even once; the sticky flag lies below the last bit of head."""
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
    value = (kept + up.to(tl.uint64)).to(tl.float64) * power_of_two(half) * power_of_two(quantum - half)
    return value * tl.where(negative, -1.0, 1.0).to(tl.float64)


@triton.jit
def _halves(a):
    t = _SPLITTER * a
    high = t - (t - a)
    return high, a - high


@triton.jit
def _two_product(a, b):
    """numerics.eft.two_product, operation by operation."""
    p = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    return p, a_low * b_low - (((p - a_high * b_high) - a_low * b_high) - a_high * b_low)


@triton.jit
def _is_safe(a, b, p):
    """The error of p = fl(a b) is the same number by two_product and by a fused multiply-add."""
    ordinary = (tl.abs(a) < _SAFE_LARGEST) & (tl.abs(b) < _SAFE_LARGEST)
    return ordinary & ((tl.abs(p) > _SAFE_SMALLEST) | (a == 0.0) | (b == 0.0))


@triton.jit
def _sum_of_products(p, p_error, q, q_error):
    s = p + q
    t = s - p
    error = (p - (s - t)) + (q - t)
    return s + (error + (p_error + q_error))


@triton.jit
def _either_way(x, y, alpha, beta):
    """The sum by the first way, by the second one where that is not finite, of what is endless where an entry is."""
    p, p_error = _two_product(alpha, x)
    q, q_error = _two_product(beta, y)
    near = _sum_of_products(p, p_error, q, q_error)
    x_known, y_known = tl.abs(x) < float("inf"), tl.abs(y) < float("inf")
    endless = tl.where(x_known, 0.0, p) + tl.where(y_known, 0.0, q)
    p, p_error = _two_product(alpha, x * _DOWN)
    q, q_error = _two_product(beta, y * _DOWN)
    far = _sum_of_products(p, p_error, q, q_error) * (1.0 / _DOWN)
    return tl.where(tl.abs(near) < float("inf"), near, tl.where(x_known & y_known, far, endless))


@triton.jit
def combine(x, y, alpha, beta, HAS_C: tl.constexpr, FUSED: tl.constexpr):
    """numerics.epilogue.combine of float64 x and y for moderate scalars, in float64."""
    if HAS_C:
        p = alpha * x
        q = beta * y
        if FUSED:
            safe = _is_safe(alpha, x, p) & _is_safe(beta, y, q)
            result = _sum_of_products(p, tl.fma(alpha, x, -p), q, tl.fma(beta, y, -q))
            plain = tl.min(safe.to(tl.int32)) > 0
        else:
            result = p
            plain = False
        if not plain:
            result = _either_way(x, y, alpha, beta)
    else:
        result = alpha * x + 0.0
    return result


@triton.jit
def nonfinite_product(row, columns, k, row_step, column_step, inside, WIDTH: tl.constexpr):
    """sum_h S(a_h) S(b_hj), S the sign of a finite entry and the entry itself otherwise; float64.

    For complex entries (WIDTH = 2) re and im side by side, with S of each component.
    """
    total = tl.zeros(columns.shape, tl.float64)
    other = tl.zeros(columns.shape, tl.float64)
    for h in range(k):
        at = tl.cast(h, tl.int64) * WIDTH
        a = sign_of_finite(tl.load(row + at * row_step).to(tl.float64))
        b = sign_of_finite(tl.load(columns + at * column_step, mask=inside, other=0.0).to(tl.float64))
        total += a * b
        if WIDTH == 2:
            a_im = sign_of_finite(tl.load(row + at * row_step + 1).to(tl.float64))
            b_im = sign_of_finite(tl.load(columns + at * column_step + 1, mask=inside, other=0.0).to(tl.float64))
            total -= a_im * b_im
            other += a * b_im + a_im * b
    if WIDTH == 2:
        total = tl.join(total, other)
    return total
