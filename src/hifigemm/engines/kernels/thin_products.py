"""Products with few columns, of a matrix or of its magnitudes, and residuals in two words,
in one reading of the matrix.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels.launch import Launch
from hifigemm.engines.kernels.rounded_sums import _minus_product, _two_sum
from hifigemm.numerics.magnitudes import FEW

_ROWS = 16
"""Rows of a tile: 128 bytes of a column, where columns lie in memory."""
_TERMS = 64
"""Columns of a tile: 512 bytes of a row, where rows do."""
_ROWS_OF_RESIDUAL = 4
_TERMS_OF_RESIDUAL = 256
"""A tile of a residual is longer: the more sums a row has side by side, the smaller is
the bound of their errors.
"""


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


@triton.jit
def _joined(high, low, other_high, other_low):
    """The sum of two numbers of two words, as two words of which the first is nearest."""
    s, lost = _two_sum(high, other_high)
    return _two_sum(s, lost + (low + other_low))


@triton.jit
def _neighbours(x):
    """The entries of even and of odd columns of a tile."""
    return tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))


@triton.jit
def _residual_kernel(
    a,
    x,
    b,
    q,
    sizes,
    m,
    n,
    row,
    column,
    WORDS: tl.constexpr,
    FMA: tl.constexpr,
    ROWS: tl.constexpr,
    TERMS: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """b - A x in two words, and |A| |x| + |b|; held against exact fractions.

    A program makes ROWS entries of the residual, as the kernel above makes its rows. The
    words of x lie one after the other, n numbers each.
    """
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, TERMS)
    entries = a + i[:, None] * row + j[None, :].to(tl.int64) * column
    is_row = i[:, None] < m

    # Each place of a tile has its own sum in two words, the first one with b
    side = tl.load(b + i[:, None], mask=is_row, other=0.0)
    high = tl.where(j[None, :] == 0, side, 0.0)
    low = tl.zeros((ROWS, TERMS), tl.float64)
    size = tl.abs(high)
    step = tl.full((), TERMS, tl.int64) * column
    for start in range(0, n, TERMS):
        is_term = start + j < n
        factor = tl.load(entries, mask=is_row & is_term[None, :], other=0.0)
        for word in tl.static_range(WORDS):
            y = tl.load(x + word * n + start + j, mask=is_term, other=0.0)
            other = tl.zeros((ROWS, TERMS), tl.float64) + y[None, :]
            minus, error = _minus_product(factor, other, FMA)
            s, lost = _two_sum(high, minus)
            high, low = _two_sum(s, low + (lost - error))
            size += tl.abs(minus)
        entries += step

    # Places of a row are added in pairs of neighbours
    for _ in tl.static_range(LEVELS):
        first_high, second_high = _neighbours(high)
        first_low, second_low = _neighbours(low)
        high, low = _joined(first_high, first_low, second_high, second_low)
    is_inside = i < m
    tl.store(q + i, tl.reshape(high, (ROWS,)), mask=is_inside)
    tl.store(sizes + i, tl.sum(size, axis=1), mask=is_inside)


_launch: Any = Launch(_thin_product_kernel)
_launch_residual: Any = Launch(_residual_kernel)


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


def roundings(n: int) -> int:
    """How many a term of n passes at most, that of its product with them."""
    return min(n, triton.cdiv(n, _TERMS) + _TERMS.bit_length())


def residual(a: Any, words: Any, b: Any) -> tuple[Any, Any, int]:
    """(q, s, t): b - A (x1 + ...) up to u |q| + (3 t + 10) u^2 s, s close to
    |A| (|x1| + ...) + |b| after t roundings.

    Parameters
    ----------
    a : tensor of float64, m x n, any strides
    words : tensor of float64, w x n
        The words of x.
    b : tensor of float64, m
    """
    m, n = a.shape
    q = torch.empty_like(b, memory_format=torch.contiguous_format)
    sizes = torch.empty_like(q)
    if m:
        write_residual(a, words.contiguous(), b.contiguous(), q, sizes)
    partial_sums = (
        len(words) * triton.cdiv(n, _TERMS_OF_RESIDUAL)
        + _TERMS_OF_RESIDUAL.bit_length()
        + 1
    )
    return q, sizes, partial_sums


def write_residual(a: Any, words: Any, b: Any, q: Any, sizes: Any) -> None:
    """The same for tensors in memory, to q and sizes."""
    _launch_residual(
        (triton.cdiv(a.shape[0], _ROWS_OF_RESIDUAL),),
        a,
        words,
        b,
        q,
        sizes,
        *a.shape,
        *a.stride(),
        WORDS=words.shape[0],
        FMA=q.is_cuda,
        ROWS=_ROWS_OF_RESIDUAL,
        TERMS=_TERMS_OF_RESIDUAL,
        LEVELS=_TERMS_OF_RESIDUAL.bit_length() - 1,
        num_warps=4,
        enable_fp_fusion=False,
    )
