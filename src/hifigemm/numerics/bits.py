"""Exponents and powers of two of float64 arrays, taken from the bits and never from
libm.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

(LEAST,) = struct.unpack("<d", bytes([1, 0, 0, 0, 0, 0, 0, 0]))
"""2.0**-1074 by its bits: a literal becomes zero where a thread that flushes subnormal
numbers compiles it.
"""
NO_BIT = 1 << 20
"""`lowest_bit` of a vector of zeros: above every exponent, so that nothing lies below
any grid.
"""

_FRACTION = (1 << 52) - 1


def ceil_log2(n: int) -> int:
    """Smallest integer x with 2**x >= n, for n >= 1."""
    return (n - 1).bit_length()


def power_of_two(e: Array) -> Array:
    """2.0**e for integer arrays with -1022 <= e <= 1023, made from bits."""
    return ((e.astype(np.int64, copy=False) + 1023) << 52).view(np.float64)


def scale_by_power(x: Array, e: Array) -> Array:
    """x * 2**e for any integer e; exact wherever the result is a float64, rounded at
    most twice where it is subnormal.

    Three factors of equal direction are taken when 2**e itself is no float64; from
    +-2100 on every nonzero x has overflowed or vanished.
    """
    e = e.astype(np.int64, copy=False)
    if e.size == 0 or (e.max() <= 1023 and e.min() >= -1022):
        return x * power_of_two(e)
    e = np.clip(e, -2100, 2100)
    third = e // 3
    factor = power_of_two(third)
    return x * factor * factor * power_of_two(e - 2 * third)


def scale_entries(x: Array, e: int) -> Array:
    """x * 2**e in the dtype of x, complex ones too; exact wherever the dtype holds the
    result.
    """
    parts = np.ascontiguousarray(x, like=x).view(x.real.dtype)
    return (
        scale_by_power(parts, np.array(e))
        .astype(parts.dtype)
        .view(x.dtype)
        .reshape(x.shape)
    )


def ceil_magnitude(x: Array, e: Array) -> Array:
    """ceil(|x| 2**e) in float64, 1 where x is not zero but |x| 2**e underflows."""
    size = np.abs(x)
    return np.maximum(np.ceil(scale_by_power(size, e)), size > 0)


def real_vectors(x: Array, axis: int) -> Array:
    """Vectors of a stack of matrices along `axis` in float64, re and im of an entry one
    after the other.
    """
    if x.dtype.kind != "c":
        return x.astype(np.float64, copy=False)
    if axis == 2:
        return np.ascontiguousarray(x, np.complex128, like=x).view(np.float64)
    out = np.empty((len(x), 2 * x.shape[1], x.shape[2]), like=x)
    out[:, 0::2], out[:, 1::2] = x.real, x.imag
    return out


def largest_exponent(x: Array, axis: int, limit: float = 1.0) -> Array:
    """Smallest e with |x| < limit 2**e along `axis` (kept with length 1),
    1/2 < limit <= 1, int64; 0 for zeros.
    """
    largest = np.maximum(
        x.max(axis=axis, keepdims=True, initial=0),
        -x.min(axis=axis, keepdims=True, initial=0),
    )
    mantissa, exponent = np.frexp(largest.astype(np.float64, copy=False))
    return exponent.astype(np.int64) + (mantissa >= limit)


def least_exponent(x: Array) -> int:
    """floor(log2 |x|) of the component of least magnitude that is neither zero nor NaN;
    -1 where there is none.
    """
    size = np.abs(np.ascontiguousarray(x, like=x).view(x.real.dtype))
    return int(np.frexp(float(np.min(size, where=size > 0, initial=np.inf)))[1]) - 1


def lowest_bit(x: Array, axis: int) -> Array:
    """Exponent of the least significant set bit along `axis` (kept with length 1),
    int64.

    Every entry of the vector is an integer multiple of 2**lowest_bit. A vector of zeros
    gives `NO_BIT`.
    """
    bits = np.ascontiguousarray(x, np.float64, like=x).view(np.int64)
    biased = (bits >> 52) & 0x7FF
    significand = bits & _FRACTION
    significand |= (biased > 0).astype(np.int64) << 52
    significand &= -significand
    trailing = (significand.astype(np.float64).view(np.int64) >> 52) - 1023
    exponent = np.maximum(biased, 1, out=biased)
    exponent += trailing
    exponent -= 1075
    exponent[significand == 0] = NO_BIT
    return exponent.min(axis=axis, keepdims=True, initial=NO_BIT)
