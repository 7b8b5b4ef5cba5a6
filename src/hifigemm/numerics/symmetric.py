"""Symmetric and Hermitian results from their lower triangles."""

from __future__ import annotations

import numpy as np

from hifigemm.numerics.bits import Array


def mirror(x: Array, conjugate: bool) -> None:
    """Replace what lies above the diagonals of matrices (batch, n, n) by what lies
    below, its conjugate if asked for.

    Diagonals are made real then.
    """
    above = np.triu_indices(x.shape[-1], 1)
    below = x[:, above[1], above[0]]
    x[:, above[0], above[1]] = below.conj() if conjugate else below
    if conjugate and x.dtype.kind == "c":
        on = np.arange(x.shape[-1])
        x[:, on, on] = x[:, on, on].real
