"""Exponents and powers of two of float64 arrays, by their bits and never by libm."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]
DType = np.dtype[Any]

(LEAST,) = struct.unpack("<d", bytes([1, 0, 0, 0, 0, 0, 0, 0]))
"""2.0**-1074, the smallest float64, by its bits.

A literal becomes zero where a thread that flushes subnormal numbers compiles it.
"""

NO_BIT = 1 << 20
"""`lowest_bit` of zeros: above every exponent, so that nothing lies below any grid."""

_FRACTION = (1 << 52) - 1
"""The 52 bits that float64 stores of a significand."""

_HIDDEN_BIT = 1 << 52
"""The leading bit of the significands of normal numbers, which is not stored."""


def ceil_log2(n: int) -> int:
    """Smallest integer x with 2**x >= n, for n >= 1."""
    return (n - 1).bit_length()


def power_of_two(e: Array) -> Array:
    """2.0**e for integer arrays with -1022 <= e <= 1023."""
    return ((e.astype(np.int64, copy=False) + 1023) << 52).view(np.float64)


def scale_by_power(x: Array, e: Array) -> Array:
    """x * 2**e for any integer e, exact wherever the result is a float64.

    Subnormal results are rounded at most twice.
    """
    e = e.astype(np.int64, copy=False)
    if e.size == 0 or np.abs(e).max() <= 1022:
        return x * power_of_two(e)

    # 2**e itself is no float64: three factors that all grow, or all shrink, make it.
    # From +-2100 on every nonzero x has overflowed or vanished.
    e = np.clip(e, -2100, 2100)
    third = e // 3
    factor = power_of_two(third)
    return x * factor * factor * power_of_two(e - 2 * third)


def real_components(x: Array) -> Array:
    """A contiguous x as real numbers: re and im side by side for complex entries."""
    return np.ascontiguousarray(x, like=x).view(x.real.dtype)


def scale_entries(x: Array, e: int) -> Array:
    """x * 2**e in the dtype of x, real or complex; exact where it holds the result."""
    components = real_components(x)
    scaled = scale_by_power(components, np.array(e)).astype(components.dtype)
    return scaled.view(x.dtype).reshape(x.shape)


def ceil_magnitude(x: Array, e: Array) -> Array:
    """ceil(|x| 2**e) in float64, also where |x| 2**e underflows: 1 then."""
    magnitude = np.abs(x)
    return np.maximum(np.ceil(scale_by_power(magnitude, e)), magnitude > 0)


def real_vectors(x: Array, axis: int) -> Array:
    """The stack of matrices x in float64, with complex vectors along `axis` made real.

    They become twice as long, re and im of an entry one after the other.
    """
    if x.dtype.kind != "c":
        return x.astype(np.float64, copy=False)
    if axis == 2:
        return np.ascontiguousarray(x, np.complex128, like=x).view(np.float64)
    out = np.empty((len(x), 2 * x.shape[1], x.shape[2]), like=x)
    out[:, 0::2] = x.real
    out[:, 1::2] = x.imag
    return out


def largest_exponent(x: Array, axis: int, limit: float = 1.0) -> Array:
    """Smallest e with |x| < limit 2**e along `axis`, int64; 0 for a vector of zeros.

    x is real and finite, 1/2 < limit <= 1, and `axis` remains with length 1.
    """
    largest = np.abs(x).max(axis=axis, keepdims=True, initial=0)
    mantissa, exponent = np.frexp(largest.astype(np.float64, copy=False))
    exponent = exponent.astype(np.int64)
    if limit < 1.0:
        exponent += mantissa >= limit
    return exponent


def least_exponent(x: Array) -> int:
    """floor(log2 |x|) of the smallest component that is neither zero nor NaN.

    -1 where there is none.
    """
    magnitude = np.abs(real_components(x))
    smallest = float(np.min(magnitude, where=magnitude > 0, initial=np.inf))
    return int(np.frexp(smallest)[1]) - 1


def lowest_bit(x: Array, axis: int) -> Array:
    """Exponent of the least significant set bit of the vectors along `axis`, int64.

    Every entry of a vector is an integer multiple of 2**lowest_bit. A vector of zeros
    gives `NO_BIT`; x is finite, and `axis` remains with length 1.
    """
    # Significands as integers with a hidden bit, which subnormal numbers do not have;
    # it lies above their lowest bit.
    bits = np.ascontiguousarray(x, np.float64, like=x).view(np.int64)
    significand = bits & _FRACTION
    significand |= _HIDDEN_BIT

    # The lowest set bit alone, a power of two whose float64 tells its exponent.
    significand &= -significand
    exponent = significand.astype(np.float64).view(np.int64) >> 52

    # The unit of the significand is 2**(biased - 1075); subnormal numbers have that of
    # the smallest normal ones. The other exponent is biased by 1023.
    biased = (bits >> 52) & 0x7FF
    exponent += np.maximum(biased, 1, out=biased)
    exponent -= 1075 + 1023
    exponent[bits << 1 == 0] = NO_BIT  # +0 and -0
    return exponent.min(axis=axis, keepdims=True, initial=NO_BIT)
