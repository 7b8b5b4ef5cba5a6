"""Infinities and NaNs: computed apart from the exact schemes, which see zeros in their
place.

An output whose row of A or column of B holds a non-finite entry is itself Inf or NaN.
Which one follows from the product of S(A) and S(B), with S the sign of a finite entry
and the entry itself otherwise: no sum of finite terms can overflow there, so the result
is what IEEE arithmetic gives in any order of summation.
"""

from __future__ import annotations

import numpy as np

from hifigemm.numerics.bits import Array
from hifigemm.numerics.embedding import embed_left, embed_right, unembed


def nonfinite_vectors(x: Array, axis: int) -> Array:
    """Which rows (axis 2, the inner dimension) or columns (axis 1) hold an Inf or NaN:
    bool with the axis kept.
    """
    if x.dtype.kind == "c":
        return nonfinite_vectors(x.real, axis) | nonfinite_vectors(x.imag, axis)
    largest, least = (
        x.max(axis=axis, keepdims=True, initial=0),
        x.min(axis=axis, keepdims=True, initial=0),
    )
    return np.logical_not(np.isfinite(largest) & np.isfinite(least))


def clean(x: Array) -> Array:
    """A copy with zeros in place of non-finite entries."""
    return np.where(np.isfinite(x), x, x.dtype.type(0))


def _signs(x: Array) -> Array:
    return np.where(np.isfinite(x), np.sign(x), x)


def fill_nonfinite(values: Array, a: Array, b: Array, rows: Array, cols: Array) -> None:
    """Overwrite, in place, the outputs (batch, m, n) of the marked rows of a and
    columns of b by their Inf or NaN.
    """
    is_complex = values.dtype.kind == "c"
    for z in range(len(values)):
        za, zb = min(z, len(a) - 1), min(z, len(b) - 1)
        i, j = np.flatnonzero(rows[za]), np.flatnonzero(cols[zb])
        for part_a, part_b, where in (
            (a[za][i], b[zb], (i, slice(None))),
            (a[za], b[zb][:, j], (slice(None), j)),
        ):
            left, right = (
                (part_a, part_b)
                if not is_complex
                else (embed_left(part_a), embed_right(part_b))
            )
            with np.errstate(all="ignore"):
                filled = np.matmul(_signs(left), _signs(right))
                values[z][where] = unembed(filled) if is_complex else filled
