"""Symmetric and Hermitian results from their lower triangles."""

from __future__ import annotations

import numpy as np

from hifigemm.numerics.bits import Array


def mirror(x: Array, conjugate: bool) -> None:
    """Overwrite the upper triangles of matrices (batch, n, n) by the lower ones.

    With `conjugate` they become the conjugates of these, and diagonals become real.
    """
    rows, columns = np.triu_indices(x.shape[-1], 1)
    lower = x[:, columns, rows]
    x[:, rows, columns] = lower.conj() if conjugate else lower
    if conjugate and x.dtype.kind == "c":
        diagonal = np.arange(x.shape[-1])
        x[:, diagonal, diagonal] = x[:, diagonal, diagonal].real
