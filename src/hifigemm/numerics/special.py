"""Infinities and NaNs, apart from the exact schemes, which see zeros in their place.

An output whose row of A or column of B holds a non-finite entry is itself Inf or NaN.
Which one follows from the product of S(A) and S(B), with S the sign of a finite entry
and the entry itself otherwise: no sum of finite terms can overflow there, so the result
is what IEEE arithmetic gives in any order of summation.
"""

from __future__ import annotations

import numpy as np

from hifigemm.numerics.bits import Array, real_components
from hifigemm.numerics.embedding import embed_left, embed_right, unembed


def nonfinite_vectors(x: Array, axis: int) -> Array:
    """True for rows (axis 2) or columns (axis 1) that hold an Inf or NaN.

    `axis`, the inner dimension, remains with length 1.
    """
    if x.dtype.kind == "c":
        return nonfinite_vectors(x.real, axis) | nonfinite_vectors(x.imag, axis)
    largest = x.max(axis=axis, keepdims=True, initial=0)
    smallest = x.min(axis=axis, keepdims=True, initial=0)
    return np.logical_not(np.isfinite(largest) & np.isfinite(smallest))


def clean(x: Array) -> Array:
    """Copy of x with zeros for non-finite entries."""
    return np.where(np.isfinite(x), x, x.dtype.type(0))


def clean_components(x: Array) -> Array:
    """Copy of x with zeros for real components that are not finite."""
    return clean(real_components(x)).view(x.dtype)


def _signs(x: Array) -> Array:
    """S(x): the signs of finite entries and the other entries themselves."""
    return np.where(np.isfinite(x), np.sign(x), x)


def _product_of_signs(a: Array, b: Array, is_complex: bool) -> Array:
    """S(A) S(B) for real or complex matrices, which has the Inf and NaN of A B."""
    if not is_complex:
        return np.matmul(_signs(a), _signs(b))
    return unembed(np.matmul(_signs(embed_left(a)), _signs(embed_right(b))))


def fill_nonfinite(values: Array, a: Array, b: Array, rows: Array, cols: Array) -> None:
    """Overwrite the results of rows and columns with an Inf or NaN by what they give.

    `values` (batch, m, n) is changed in place; `rows` and `cols` are those of
    `nonfinite_vectors`.
    """
    is_complex = values.dtype.kind == "c"
    for z in range(len(values)):
        # A stack of one matrix serves the whole batch.
        za = min(z, len(a) - 1)
        zb = min(z, len(b) - 1)
        left = a[za]
        right = b[zb]
        i = np.flatnonzero(rows[za])
        j = np.flatnonzero(cols[zb])
        with np.errstate(all="ignore"):
            values[z][i, :] = _product_of_signs(left[i], right, is_complex)
            values[z][:, j] = _product_of_signs(left, right[:, j], is_complex)
