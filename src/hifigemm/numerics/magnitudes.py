"""Products with few columns, of a matrix or of its magnitudes: what bounds of linear
systems are made of.

A matrix is read once, and nothing of its size is written. Entries are added in any
order, so results are not unique; their bound is.
"""

from __future__ import annotations

import numpy as np

from hifigemm.numerics.bits import Array
from hifigemm.numerics.subnormals import matmul

FEW = 4
"""Columns that are multiplied in one reading of the matrix, at most."""


def thin_product(a: Array, v: Array) -> Array:
    """A V for float64 matrices, m x n and n x k, k at most `FEW`.

    A term passes n roundings at most, that of its product with them, and may lose half
    of the least number where it underflows.
    """
    return matmul(a, v)


def magnitude_product(a: Array, v: Array) -> Array:
    """|A| V with the same roundings."""
    return matmul(np.abs(a), v)
