"""Gaussian elimination with partial pivoting of a few columns, row by row.

No proof relies on its accuracy: callers bound the residual of L and U. So the compiled
core's version may return other bits.
"""

from __future__ import annotations

import numpy as np

from hifigemm.numerics.bits import Array


def factor_panel(panel: Array) -> Array:
    """Write L, below the diagonal, and U over an m x n panel A, m >= n, and return an order
    with A[order] close to L U.

    A column without a pivot stays as it is.
    """
    order = np.arange(len(panel))
    for k in range(panel.shape[1]):
        pivot = k + int(np.argmax(np.abs(panel[k:, k])))
        if panel[pivot, k] == 0.0:
            continue
        if pivot != k:
            panel[[k, pivot]] = panel[[pivot, k]]
            order[[k, pivot]] = order[[pivot, k]]
        panel[k + 1 :, k] /= panel[k, k]
        panel[k + 1 :, k + 1 :] -= panel[k + 1 :, k, None] * panel[k, k + 1 :]
    return order
