"""Approximate inverses of large matrices on a GPU, by halves.

Idea
    The library's elimination waits for its pivots: at n = 16384 it runs at a third of
    the rate of products. With pivots from the first half of the rows alone, it is that
    of two matrices of half the size, and all else are six products,

        [ A11  A12 ]^-1   [ R + V Y W   -V Y ]
        [ A21  A22 ]    = [    -Y W       Y  ],   R = A11^-1, W = A21 R, V = R A12,

    Y = (A22 - W A12)^-1, which `hifigemm.matmul` makes on the engine for integers, in
    less time than the library on that for float64.
Errors
    They grow by the condition of A11, which is looked at first, and the product of the
    result and one vector is looked at in the end. Where one is large, there is no
    inverse by halves: pivots from all rows are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hifigemm.linalg.block_inverse import inverse_by_blocks
from hifigemm.running.products import product_of_numbers

if TYPE_CHECKING:
    from torch import Tensor

SMALLEST_OF_HALVES = 6144
"""Rows from which halves pay."""
MOST_CONDITION = 2.0**27
"""Of A11, by norms of Frobenius: some ten times that of a matrix of normal numbers."""
MOST_GAP = 2.0**-10
"""Of entries of A X v - v, those of v being at most 1. Sums of magnitudes of a row of
A X - I are larger by about the square root of n at most.
"""


def inverse_by_halves(a: Tensor) -> Tensor | None:
    """The inverse of a square tensor, of real or complex numbers; None where the pivots of
    the first half of its rows are no good ones. The host waits for two numbers.
    """
    import torch

    n = len(a)
    half = n // 2
    a11, a12 = a[:half, :half], a[:half, half:]
    a21, a22 = a[half:, :half], a[half:, half:]
    r = inverse_by_blocks(a11)
    norms = torch.linalg.matrix_norm(a11) * torch.linalg.matrix_norm(r)
    if not bool(norms <= MOST_CONDITION):
        return None
    w = _product(a21, r)
    y = inverse_by_blocks(a22 - _product(w, a12))
    v = _product(r, a12)
    corner = _product(y, w)
    x = torch.empty_like(a, memory_format=torch.contiguous_format)
    x[:half, :half] = r + _product(v, corner)
    x[:half, half:] = -_product(v, y)
    x[half:, :half] = -corner
    x[half:, half:] = y

    # One vector tells what is left of I: Inf and NaN are no proof either
    places = torch.arange(n, dtype=torch.float64, device=a.device)
    probe = places.cos().to(a.dtype)
    gap = (a @ (x @ probe) - probe).abs().amax()
    return x if bool(gap <= MOST_GAP) else None


def _product(a: Tensor, b: Tensor) -> Tensor:
    """A B, as good as one in float64."""
    return product_of_numbers(a, b, None)
