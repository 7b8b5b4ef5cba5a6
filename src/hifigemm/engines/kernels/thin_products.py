"""Products with few columns, of a matrix or of its magnitudes, in one reading of it."""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels.launch import Launch
from hifigemm.numerics.magnitudes import FEW

_ROWS = 16
"""Rows of a tile: 128 bytes of a column, where columns lie in memory."""
_TERMS = 64
"""Columns of a tile: 512 bytes of a row, where rows do."""


@triton.jit
def _thin_product_kernel(
    a,
    v,
    out,
    m,
    n,
    row,
    column,
    COLUMNS: tl.constexpr,
    MAGNITUDES: tl.constexpr,
    ROWS: tl.constexpr,
    TERMS: tl.constexpr,
):
    """Twins: numerics.magnitudes.thin_product and magnitude_product.

    A program makes ROWS rows of the result. V lies in memory by columns, COLUMNS of n
    entries, and so does the result. `row` and `column` are the strides of A.
    """
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, TERMS)
    entries = a + i[:, None] * row + j[None, :].to(tl.int64) * column
    is_row = i[:, None] < m

    # Each place of a tile adds its own terms, in order of j, for up to four columns of V
    step = tl.full((), TERMS, tl.int64) * column
    sums_0 = tl.zeros((ROWS, TERMS), tl.float64)
    sums_1 = tl.zeros((ROWS, TERMS), tl.float64)
    sums_2 = tl.zeros((ROWS, TERMS), tl.float64)
    sums_3 = tl.zeros((ROWS, TERMS), tl.float64)
    for start in range(0, n, TERMS):
        is_term = start + j < n
        x = tl.load(entries, mask=is_row & is_term[None, :], other=0.0)
        if MAGNITUDES:
            x = tl.abs(x)
        y = tl.load(v + start + j, mask=is_term, other=0.0)
        sums_0 += x * y[None, :]
        if COLUMNS > 1:
            y = tl.load(v + n + start + j, mask=is_term, other=0.0)
            sums_1 += x * y[None, :]
        if COLUMNS > 2:
            y = tl.load(v + 2 * n + start + j, mask=is_term, other=0.0)
            sums_2 += x * y[None, :]
        if COLUMNS > 3:
            y = tl.load(v + 3 * n + start + j, mask=is_term, other=0.0)
            sums_3 += x * y[None, :]
        entries += step

    # Places of a row are added at the end
    is_inside = i < m
    tl.store(out + i, tl.sum(sums_0, axis=1), mask=is_inside)
    if COLUMNS > 1:
        tl.store(out + m + i, tl.sum(sums_1, axis=1), mask=is_inside)
    if COLUMNS > 2:
        tl.store(out + 2 * m + i, tl.sum(sums_2, axis=1), mask=is_inside)
    if COLUMNS > 3:
        tl.store(out + 3 * m + i, tl.sum(sums_3, axis=1), mask=is_inside)


_launch: Any = Launch(_thin_product_kernel)


def thin_product(a: Any, v: Any, *, of_magnitudes: bool) -> Any:
    """A V, or |A| V, a new tensor with columns in memory; a term passes n roundings at
    most.

    Parameters
    ----------
    a : tensor of float64, m x n, any strides
    v : tensor of float64, n x k with k at most `FEW`
    of_magnitudes : bool
    """
    m = a.shape[0]
    k = v.shape[1]
    if k > FEW:
        raise ValueError(f"v has {k} columns; expected at most {FEW}")
    out = torch.empty((k, m), dtype=torch.float64, device=a.device)
    if m and k:
        write_thin_product(a, v.T.contiguous(), out, of_magnitudes=of_magnitudes)
    return out.T


def write_thin_product(a: Any, columns: Any, out: Any, *, of_magnitudes: bool) -> None:
    """The same for the columns of V, k x n in memory, to those of the result, k x m."""
    _launch(
        (triton.cdiv(a.shape[0], _ROWS),),
        a,
        columns,
        out,
        *a.shape,
        *a.stride(),
        COLUMNS=columns.shape[0],
        MAGNITUDES=of_magnitudes,
        ROWS=_ROWS,
        TERMS=_TERMS,
        num_warps=4,
    )
