"""Products whose sums run in order of k through one accumulator: what a GPU's FP32 and
FP64 units do with a GEMM.

Idea
    c <- fl(c + a_ih b_hj) for h = 0, 1, ..., each step one fused multiply-add, rounded
    once, to nearest. With a BLAS that sums blocks of k separately, errors grow more
    slowly; chains are what the published errors of cublasSgemm and cublasDgemm agree
    with (docs/experiments.md).
References
    [BM08] Emulation of a FMA and Correctly Rounded Sums: Proved Algorithms Using
    Rounding to Odd, doi:10.1109/TC.2007.70819.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["chained_product", "fused_multiply_add"]

Array = NDArray[Any]
_ROWS = 64
"""Rows of the result at a time: the temporaries of a step stay in cache."""


def chained_product(a: ArrayLike, b: ArrayLike, c: ArrayLike | None = None) -> Array:
    """A B + C by one fused multiply-add after the other along k.

    Parameters
    ----------
    a, b : float32 or float64 arrays, shapes (m, k) and (k, n), of the same dtype
        Products and their errors must neither overflow nor underflow.
    c : array of that dtype, shape (m, n), or None
        None is zero.

    Returns
    -------
    array, shape (m, n), of that dtype
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.dtype.type not in (np.float32, np.float64):
        raise TypeError(
            f"chained_product takes two float32 or two float64 matrices, not {a.dtype} and {b.dtype}"
        )
    out = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    if c is not None:
        out[...] = c
    step = (
        _add_exact
        if a.dtype == np.float64 and _is_single(a) and _is_single(b)
        else fused_multiply_add
    )
    for start in range(0, len(out), _ROWS):
        total, rows = out[start : start + _ROWS], a[start : start + _ROWS]
        for h in range(b.shape[0]):
            total = step(rows[:, h, None], b[h], total)
        out[start : start + _ROWS] = total
    return out


def fused_multiply_add(x: Array, y: Array, z: Array) -> Array:
    """fl(x y + z), rounded once to nearest, for arrays of float32 or of float64;
    [BM08].

    In float64 the exact product p + e and z are added so that what lies below the last
    addition is rounded to odd, which makes that addition the only rounding that counts.
    In float32 the product is exact in float64, and its sum with z is rounded to odd
    there.
    """
    if x.dtype == np.float32:
        return _add_to_odd(x.astype(np.float64) * y, z.astype(np.float64)).astype(
            np.float32
        )
    product, error = _two_product(x, y)
    low, lowest = _two_sum(z, error)
    high, middle = _two_sum(product, low)
    return high + _add_to_odd(middle, lowest)


def _add_exact(x: Array, y: Array, z: Array) -> Array:
    """fl(x y + z) where x y is exact."""
    return x * y + z


def _is_single(x: Array) -> bool:
    """Whether all entries are float32 numbers whose products float64 holds."""
    with np.errstate(over="ignore"):
        return bool(np.all(x == x.astype(np.float32)))


def _two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _two_product(x: Array, y: Array) -> tuple[Array, Array]:
    """Product and its error; halves of 26 bits by Veltkamp's splitting."""
    product = x * y
    (xh, xl), (yh, yl) = (_halves(v) for v in (x, y))
    return product, ((xh * yh - product) + xh * yl + xl * yh) + xl * yl


def _halves(x: Array) -> tuple[Array, Array]:
    scaled = 134217729.0 * x
    high = scaled - (scaled - x)
    return high, x - high


def _add_to_odd(x: Array, y: Array) -> Array:
    """x + y in float64 rounded to odd: exact sums stay, others become the neighbour
    whose last bit is 1.
    """
    total, error = _two_sum(x, y)
    bits = total.view(np.int64)
    even = (error != 0) & ((bits & 1) == 0)
    away = np.signbit(error) == np.signbit(total)
    return (bits + np.where(even, np.where(away, 1, -1), 0)).view(np.float64)
