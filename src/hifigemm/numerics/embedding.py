"""Complex products as real ones: (A B) seen as real numbers is
embed_left(A) @ embed_right(B).

Real and imaginary parts are interleaved, re and im of an entry side by side, so the
embedded result is the memory of the complex result: re = sum a c - b d and im = sum a
d + b c are each one real sum of 2 k products.
"""

from __future__ import annotations

import numpy as np

from hifigemm.numerics.bits import Array


def components(x: Array) -> list[Array]:
    """The operand as float64, or its real and its imaginary part."""
    parts = [x.real, x.imag] if x.dtype.kind == "c" else [x]
    return [part.astype(np.float64, copy=False) for part in parts]


def embed_left(a: Array) -> Array:
    """(..., m, k) complex to (..., m, 2 k) float64: a_re, a_im, ...; real input becomes
    float64. Always a new array.
    """
    if a.dtype.kind != "c":
        return np.array(a, np.float64, order="C", like=a)
    return np.array(a, np.complex128, order="C", like=a).view(np.float64)


def embed_right(b: Array) -> Array:
    """(..., k, n) complex to (..., 2 k, 2 n) float64: rows b_re, b_im, ... and -b_im,
    b_re, ... A new array.
    """
    if b.dtype.kind != "c":
        return np.array(b, np.float64, order="C", like=b)
    *stack, k, n = b.shape
    out = np.empty((*stack, 2 * k, 2 * n), like=b)
    out[..., 0::2, 0::2] = b.real
    out[..., 0::2, 1::2] = b.imag
    # np.negative with a strided out is at fault in NumPy 2.4: no ufunc writes to one
    out[..., 1::2, 0::2] = -b.imag
    out[..., 1::2, 1::2] = b.real
    return out


def unembed(c: Array) -> Array:
    """(..., m, 2 n) float64 or float32 back to (..., m, n) complex, without a copy
    where c is contiguous.
    """
    return np.ascontiguousarray(c, like=c).view(
        np.complex64 if c.dtype == np.float32 else np.complex128
    )
