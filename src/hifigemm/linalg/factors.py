"""L U = P A by elimination with partial pivoting, and the residual of the factors.

Idea
    The columns are halved until few are left, so most of the work is in products. Rows of
    U to the right of a half are solved for block by block. No bound relies on the
    accuracy of the factors.
Residual
    In F = P A - L U all digits that float64 has of L U cancel. L and U are triangular, so
    an entry (i, j) has min(i, j) terms. The products go by strips: the rows of a strip,
    from the diagonal to the right, and its columns below the diagonal take the terms up
    to the end of the strip. With eight strips that is two fifths of the work of a full
    product.
"""

from __future__ import annotations

import numpy as np

from hifigemm.engines import core
from hifigemm.linalg.arrays import (
    close_sums,
    correct_residual,
    diagonal,
    is_on_host,
    lengths,
    lu_of_device,
    matmul,
)
from hifigemm.linalg.upward import above
from hifigemm.numerics.bits import LEAST, Array
from hifigemm.numerics.elimination import factor_panel

_FEW = 64
"""Columns that are eliminated one by one, and rows that are solved for at once."""
_STRIPS = 8
_NARROW = 128
"""Rows of a strip, at least."""


def pivoted_factors(a: Array) -> tuple[Array, Array, Array]:
    """(L, U, order) with a[order] close to L U, L with ones on its diagonal; `order` lies in
    the memory of the CPU.
    """
    if not is_on_host(a):
        return lu_of_device(a)
    packed = a.copy(order="C")
    order = _eliminate(packed)
    lower = np.tril(packed, -1)
    diagonal(lower)[...] = 1.0
    return lower, np.triu(packed), order


def _eliminate(panel: Array) -> Array:
    """Write L and U over an m x n panel, m >= n; the order of its rows."""
    n = panel.shape[1]
    if n <= _FEW:
        return core.override(factor_panel)(panel)
    half = n // 2
    order = _eliminate(panel[:, :half])
    panel[:, half:] = panel[order, half:]
    _solve_lower(panel[:half, :half], panel[:half, half:])
    panel[half:, half:] -= matmul(panel[half:, :half], panel[:half, half:])

    # The second half exchanges rows of the first one too
    of_second = _eliminate(panel[half:, half:])
    panel[half:, :half] = panel[half:, :half][of_second]
    order[half:] = order[half:][of_second]
    return order


def _solve_lower(lower: Array, b: Array) -> None:
    """Write L^-1 B over B; only entries of `lower` below the diagonal are read."""
    for start in range(0, len(b), _FEW):
        rows = slice(start, start + _FEW)
        if start:
            b[rows] -= matmul(lower[rows, :start], b[:start])
        block = np.tril(lower[rows, rows], -1)
        diagonal(block)[...] = 1.0
        b[rows] = np.linalg.solve(block, b[rows])


def residual_of_factors(lower: Array, upper: Array, a: Array) -> tuple[Array, Array]:
    """(F, e) with |F - (A - L U)| <= 2 u |F| + e for triangular factors."""
    if is_on_host(a):
        gaps, share = _residual_by_strips(lower, upper, a)
    else:
        gaps, share = correct_residual(lower, upper, a), 0.0

    # Norms of whole rows and columns are no less than those in a strip
    of_rows = lengths(lower, 1)
    of_columns = lengths(upper, 0)
    return gaps, above((share * of_rows) * of_columns, 8, 2.0 * LEAST)


def _residual_by_strips(lower: Array, upper: Array, a: Array) -> tuple[Array, float]:
    """(F, r) with |F - (A - L U)| <= 2 u |F| + r |l_i| |u_j| + 2 eta, with norms of rows of L
    and columns of U.
    """
    n = len(a)
    gaps = np.empty_like(a)
    share = 0.0
    strip = max(-(-n // _STRIPS), _NARROW)
    for start in range(0, n, strip):
        stop = min(start + strip, n)
        blocks = [(slice(start, stop), slice(start, n))]
        if stop < n:
            blocks.append((slice(stop, n), slice(start, stop)))
        for i, j in blocks:
            operands = lower[i, :stop], upper[:stop, j], a[i, j]
            sums = close_sums(*operands)
            if sums is None:
                gaps[i, j] = correct_residual(*operands)
                continue
            gaps[i, j] = sums[0]
            share = max(share, sums[1])
    return gaps, share
