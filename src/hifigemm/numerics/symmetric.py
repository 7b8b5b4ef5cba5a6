"""Symmetric and Hermitian results from their lower triangles."""

from __future__ import annotations

import numpy as np

from hifigemm.numerics.bits import Array


def mirror(x: Array, conjugate: bool) -> None:
    """Overwrite the upper triangles of matrices (batch, n, n) by the lower ones.

    With `conjugate` they become the conjugates of these, and diagonals become real.
    """
    is_hermitian = conjugate and x.dtype.kind == "c"
    transposed = x.mT.conj() if is_hermitian else x.mT.copy()
    numbers = np.arange(x.shape[-1])
    is_above_diagonal = numbers[:, None] < numbers
    np.copyto(x, transposed, where=is_above_diagonal)
    if is_hermitian:
        diagonals = np.einsum("bii->bi", x.imag)
        diagonals[...] = 0.0
