"""How many slices the published DP and SP modes of Ozaki scheme I take, by the
published splitting.

Idea
    For each row x of A, rho = ceil(53 - (24 - log2 k)/2), tau = ceil(log2 max|x|),
    sigma = 2**(rho + tau):
    slice fl((x + sigma) - sigma) in float64, the rest is x - slice, and so on, with a
    new tau each time. The number of slices is the smallest d >= 2 with 2 sqrt(k) u
    |A|(|B| e) > (d + 1) |A_d|(|B| e) in all rows, A_d the last slice and e all ones.
    Products p + q <= d + 1 make d (d + 1) / 2.
References
    [MOOI20] DGEMM using Tensor Cores, and Its Accurate and Reproducible Versions,
    doi:10.1007/978-3-030-50743-5_12.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["sigma_num_slices", "sigma_slice"]

Array = NDArray[Any]


def sigma_slice(x: Array) -> Array:
    """The first slice of each row of a float64 matrix, short enough for k exact FP16
    products in FP32.
    """
    k = x.shape[1]
    rho = math.ceil(53 - (24 - math.log2(k)) / 2)
    largest = abs(x).max(axis=1, keepdims=True)
    tau = np.ceil(np.log2(np.where(largest > 0, largest, 1.0)))
    sigma = 2.0 ** (rho + tau)
    return (x + sigma) - sigma


def sigma_num_slices(a: Array, b: Array, u: float) -> int:
    """d for both operands: the larger one; a row or column that ends first needs no
    more.

    Parameters
    ----------
    a, b : float64 arrays, shapes (m, k) and (k, n)
        Well within the range of float64.
    u : float
        Unit roundoff of the accuracy that is aimed at.
    """
    return max(_count(a, abs(b).sum(axis=1), u), _count(b.T, abs(a).sum(axis=0), u))


def _count(rows: Array, weights: Array, u: float) -> int:
    rest = rows
    limit = 2.0 * math.sqrt(rows.shape[1]) * u * (abs(rows) @ weights)
    count = 0
    while rest.any():
        last = sigma_slice(rest)
        rest, count = rest - last, count + 1
        if count >= 2 and np.all((count + 1) * (abs(last) @ weights) < limit):
            break
    return max(count, 1)
