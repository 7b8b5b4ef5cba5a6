"""Complex products as real ones: A B in real numbers is embed_left(A) @ embed_right(B).

Real and imaginary parts are interleaved, re and im of an entry side by side, so that
the embedded result is the memory of the complex result. With entries a + i b of A and
c + i d of B, re = sum a c - b d and im = sum a d + b c are each one real sum of 2 k
products.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hifigemm.numerics.bits import Array


def components(x: Array) -> list[Array]:
    """[x] in float64, or its real and its imaginary part where x is complex."""
    parts = [x.real, x.imag] if x.dtype.kind == "c" else [x]
    return [part.astype(np.float64, copy=False) for part in parts]


def embed_left(a: Array, dtype: Any = np.float64) -> Array:
    """Rows a_re, a_im, ... (..., m, 2 k) of complex a (..., m, k), a new array of a real
    dtype.

    Real a is copied.
    """
    if a.dtype.kind != "c":
        return np.array(a, dtype, order="C", like=a)
    complex_dtype = np.complex64 if dtype == np.float32 else np.complex128
    return np.array(a, complex_dtype, order="C", like=a).view(dtype)


def embed_right(b: Array, dtype: Any = np.float64) -> Array:
    """Rows b_re, b_im, ... and -b_im, b_re, ... of complex b, a new array of a real dtype.

    b (..., k, n) becomes (..., 2 k, 2 n); real b is copied.
    """
    if b.dtype.kind != "c":
        return np.array(b, dtype, order="C", like=b)
    *stack, k, n = b.shape
    out = np.empty((*stack, 2 * k, 2 * n), dtype, like=b)
    out[..., 0::2, 0::2] = b.real
    out[..., 0::2, 1::2] = b.imag
    # np.negative with a strided `out` is wrong in NumPy 2.4: no ufunc writes to one.
    out[..., 1::2, 0::2] = -b.imag
    out[..., 1::2, 1::2] = b.real
    return out


def unembed(c: Array) -> Array:
    """Complex (..., m, n) of the real result c (..., m, 2 n), in float64 or float32.

    It shares the memory of c where c is contiguous.
    """
    dtype = np.complex64 if c.dtype == np.float32 else np.complex128
    return np.ascontiguousarray(c, like=c).view(dtype)
