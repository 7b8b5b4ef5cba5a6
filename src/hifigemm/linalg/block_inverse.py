"""Approximate inverses of large matrices on a GPU, by products of blocks.

Idea
    P^T A = L U by the library, whose factorisation waits for its pivots. After that
    nothing waits for long: with the inverses of the diagonal blocks of L and U, made by
    doubling, Z = L^-1 and X = U^-1 Z follow block by block, and A^-1 = X P^T. Nearly
    all of that are products of large blocks, where a triangular solve with n right
    sides runs at half of their rate.

        [ L11      ]^-1   [  L11^-1                     ]
        [ L21  L22 ]    = [ -L22^-1 L21 L11^-1   L22^-1 ]
Errors
    A product with the inverse of a block of U errs by the condition of that block more
    than a triangular solve does, and blocks of smooth kernels have no digit to lose. One
    step of refinement takes the error back, where a condition is large. Blocks of L are
    well conditioned: entries are at most 1 after pivoting.

The inverse is trusted in nothing: a certificate judges it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 512
"""Rows of a block: products with it run at the rate of large ones on an H200."""
SMALLEST = 4 * BLOCK
"""Rows from which blocks pay."""
MOST_CONDITION = 2.0**20
"""Of blocks of U, by norms of Frobenius: above it, products with their inverses are
refined.
"""
_START = 64
"""Rows of the blocks whose inverses the library makes, all at once."""


def inverse_by_blocks(a: Tensor) -> Tensor:
    """The inverse of a square tensor, of real or complex numbers; Inf and NaN where a
    pivot is zero.
    """
    import torch

    n = len(a)
    padding = -n % BLOCK
    if padding:
        padded = torch.eye(n + padding, dtype=a.dtype, device=a.device)
        padded[:n, :n] = a
        return inverse_by_blocks(padded)[:n, :n]
    factors, pivots, _ = torch.linalg.lu_factor_ex(a)
    permutation, _, _ = torch.lu_unpack(factors, pivots, unpack_data=False)
    order = permutation.real.argmax(dim=1)
    del permutation

    # The host waits here, before the products
    of_lower = _inverses_of_diagonal_blocks(factors, is_upper=False)
    of_upper = _inverses_of_diagonal_blocks(factors, is_upper=True)
    upper = _blocks(factors, BLOCK, 0, 0, BLOCK).triu()
    conditions = torch.linalg.matrix_norm(upper) * torch.linalg.matrix_norm(of_upper)
    are_good = bool((conditions <= MOST_CONDITION).all())

    # Z = L^-1, one block of rows after the other
    z = torch.zeros_like(factors, memory_format=torch.contiguous_format)
    for block, inverse in enumerate(of_lower):
        start = block * BLOCK
        rows = slice(start, start + BLOCK)
        earlier = slice(0, start)
        z[rows, rows] = inverse
        if start:
            image = factors[rows, earlier] @ z[earlier, earlier]
            z[rows, earlier] = -inverse @ image

    # X = U^-1 Z from the last block to the first, in the memory of Z
    for block in reversed(range(n // BLOCK)):
        start = block * BLOCK
        rows = slice(start, start + BLOCK)
        later = slice(start + BLOCK, n)
        gap = torch.addmm(z[rows], factors[rows, later], z[later], alpha=-1.0)
        if are_good:
            z[rows] = of_upper[block] @ gap
        else:
            z[rows] = _refined_image(of_upper[block], upper[block], gap)
    return z.index_select(1, order)


def _inverses_of_diagonal_blocks(factors: Tensor, is_upper: bool) -> Tensor:
    """The inverses of the diagonal blocks of U, or of L with ones on its diagonal."""
    import torch

    size = _START
    blocks = _blocks(factors, size, 0, 0, size)
    identity = torch.eye(size, dtype=factors.dtype, device=factors.device)
    inverses = torch.linalg.solve_triangular(
        blocks, identity.expand_as(blocks), upper=is_upper, unitriangular=not is_upper
    )
    while size < BLOCK:
        # Two neighbours and the block between them make an inverse of twice the size.
        upper_left = inverses[0::2]
        lower_right = inverses[1::2]
        joined = upper_left.new_zeros((len(upper_left), 2 * size, 2 * size))
        joined[:, :size, :size] = upper_left
        joined[:, size:, size:] = lower_right
        if is_upper:
            corner = _blocks(factors, size, 0, size, 2 * size)
            triangle = _blocks(factors, size, 0, 0, 2 * size).triu()
            image = -corner @ lower_right
            joined[:, :size, size:] = _refined_image(upper_left, triangle, image)
        else:
            corner = _blocks(factors, size, size, 0, 2 * size)
            joined[:, size:, :size] = -lower_right @ corner @ upper_left
        inverses = joined
        size *= 2
    return inverses


def _refined_image(inverse: Tensor, triangle: Tensor, b: Tensor) -> Tensor:
    """T^-1 B by an inverse of T, as good as by substitution while the condition of T is
    below 1 / u.
    """
    x = inverse @ b
    return x + inverse @ (b - triangle @ x)


def _blocks(a: Tensor, size: int, row: int, column: int, step: int) -> Tensor:
    """The square blocks at (row, column), (row + step, column + step), ... of a matrix."""
    row_stride, column_stride = a.stride()
    block_stride = step * (row_stride + column_stride)
    return a[row:, column:].as_strided(
        (len(a) // step, size, size), (block_stride, row_stride, column_stride)
    )
