"""Elementary functions of numbers in kernels, for plain Triton and Gluon."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["power_of_two", "power_of_two_single", "sign_of_finite"]


@triton.jit
def power_of_two(e):
    """2.0**e in float64 for INT32 -1022 <= e <= 1023."""
    return ((e.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def power_of_two_single(e):
    """2.0**e in float32 for INT32 -126 <= e <= 127."""
    return ((e + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def sign_of_finite(x):
    """-1, 0 or 1 for finite entries; Inf and NaN stay what they are."""
    sign = (x > 0.0).to(x.dtype) - (x < 0.0).to(x.dtype)
    return tl.where(tl.abs(x) < float("inf"), sign, x)
