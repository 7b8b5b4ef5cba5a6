"""Twins: numerics.magnitudes.thin_product and magnitude_product. Residuals in two words.

Products with at most four columns, of a matrix or of its magnitudes, and residuals
b - A x: a matrix is read once, and the time of that is all that they cost.

A program makes ROWS entries of a result in tiles of ROWS rows and TERMS terms. Each
position of a tile adds its own terms, every TERMS-th of a row, in the order of k; at the
end the TERMS partial sums of a row are added. The order is fixed, but it is not that of
the twin, so products agree within the bound of numerics/magnitudes.py and not bit for
bit. Residuals have a bound of their own, and are held against exact fractions.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import two_sum
from hifigemm.kernels.runtime.launch import Launch
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.sums.rounded_sums import _minus_product
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
def _column_terms(v, j, is_term):
    """The terms j of a column of V, (1, TERMS), with zeros beyond its end."""
    return tl.load(v + j, mask=is_term, other=0.0)[None, :]


@triton.jit
def _thin_product_kernel(
    a,
    v,
    out,
    m,
    n,
    row_stride,
    column_stride,
    COLUMNS: tl.constexpr,
    MAGNITUDES: tl.constexpr,
    ROWS: tl.constexpr,
    TERMS: tl.constexpr,
):
    """Twins: numerics.magnitudes.thin_product and magnitude_product, without and with
    MAGNITUDES.

    V lies in memory by columns, COLUMNS of n entries, and so does the result, of m
    entries each.
    """
    # The first tile: rows i, terms j. Strides of 64 bits, as A may exceed 2**31 entries.
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, TERMS)
    row_starts = a + i[:, None] * row_stride
    entries = row_starts + j[None, :].to(tl.int64) * column_stride
    step = tl.full((), TERMS, tl.int64) * column_stride
    is_row = i[:, None] < m

    # One tile of partial sums for each column of V; those beyond COLUMNS are not used.
    sums_0 = tl.zeros((ROWS, TERMS), tl.float64)
    sums_1 = tl.zeros((ROWS, TERMS), tl.float64)
    sums_2 = tl.zeros((ROWS, TERMS), tl.float64)
    sums_3 = tl.zeros((ROWS, TERMS), tl.float64)
    for start in range(0, n, TERMS):
        # A tile of A is read once, for all columns.
        is_term = start + j < n
        x = tl.load(entries, mask=is_row & is_term[None, :], other=0.0)
        if MAGNITUDES:
            x = tl.abs(x)
        sums_0 += x * _column_terms(v + start, j, is_term)
        if COLUMNS > 1:
            sums_1 += x * _column_terms(v + n + start, j, is_term)
        if COLUMNS > 2:
            sums_2 += x * _column_terms(v + 2 * n + start, j, is_term)
        if COLUMNS > 3:
            sums_3 += x * _column_terms(v + 3 * n + start, j, is_term)
        entries += step

    # The partial sums of a row are added in a tree.
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
    s, loss = two_sum(high, other_high)
    return two_sum(s, loss + (low + other_low))


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
    row_stride,
    column_stride,
    WORDS: tl.constexpr,
    FMA: tl.constexpr,
    ROWS: tl.constexpr,
    TERMS: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """b - A x in two words, and |A| |x| + |b|; without a twin, held against exact
    fractions.

    The words of x lie one after the other, n numbers each. LEVELS is log2(TERMS).
    """
    # The first tile, as in the kernel above.
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, TERMS)
    row_starts = a + i[:, None] * row_stride
    entries = row_starts + j[None, :].to(tl.int64) * column_stride
    step = tl.full((), TERMS, tl.int64) * column_stride
    is_row = i[:, None] < m

    # Each position of a tile has a sum in two words; that of the first term begins
    # with b.
    addend = tl.load(b + i[:, None], mask=is_row, other=0.0)
    high = tl.where(j[None, :] == 0, addend, 0.0)
    low = tl.zeros((ROWS, TERMS), tl.float64)
    size = tl.abs(high)
    for start in range(0, n, TERMS):
        is_term = start + j < n
        factor = tl.load(entries, mask=is_row & is_term[None, :], other=0.0)
        for word in tl.static_range(WORDS):
            # -a x with its error, added with the error of the sum.
            x_terms = _column_terms(x + word * n + start, j, is_term)
            x_tile = tl.zeros((ROWS, TERMS), tl.float64) + x_terms
            minus, error = _minus_product(factor, x_tile, FMA)
            s, loss = two_sum(high, minus)
            high, low = two_sum(s, low + (loss - error))
            size += tl.abs(minus)
        entries += step

    # The sums of a row are added in pairs of neighbours, until one is left.
    for _ in tl.static_range(LEVELS):
        even_high, odd_high = _neighbours(high)
        even_low, odd_low = _neighbours(low)
        high, low = _joined(even_high, even_low, odd_high, odd_low)
    is_inside = i < m
    tl.store(q + i, tl.reshape(high, (ROWS,)), mask=is_inside)
    tl.store(sizes + i, tl.sum(size, axis=1), mask=is_inside)


_launch = Launch(_thin_product_kernel)
_launch_residual = Launch(_residual_kernel)


def thin_product(
    a: torch.Tensor, v: torch.Tensor, *, of_magnitudes: bool
) -> torch.Tensor:
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
    if m == 0 or k == 0:
        return a.new_empty((m, k))
    columns = v.T.contiguous()
    product: torch.Tensor = run_recorded(
        product_of_columns, a, columns, of_magnitudes=of_magnitudes
    )
    return product.T


def product_of_columns(a: Buffer, columns: Buffer, *, of_magnitudes: bool) -> Buffer:
    """The columns of the result, k x m in memory, from those of V, k x n."""
    m, n = a.shape
    row_stride, column_stride = a.stride()
    out: Buffer = a.launches.empty((len(columns), m), torch.float64)
    _launch(
        (triton.cdiv(m, _ROWS),),
        a,
        columns,
        out,
        m,
        n,
        row_stride,
        column_stride,
        COLUMNS=columns.shape[0],
        MAGNITUDES=of_magnitudes,
        ROWS=_ROWS,
        TERMS=_TERMS,
        num_warps=4,
    )
    return out


def roundings(n: int) -> int:
    """How many a term of n passes at most, that of its product with them."""
    return min(n, triton.cdiv(n, _TERMS) + _TERMS.bit_length())


def residual(
    a: torch.Tensor, words: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """(q, s, t): b - A (x1 + ...) up to u |q| + (3 t + 10) u^2 s, s close to
    |A| (|x1| + ...) + |b| after t roundings.

    Parameters
    ----------
    a : tensor of float64, m x n, any strides
    words : tensor of float64, w x n
        The words of x.
    b : tensor of float64, m
    """
    q, sizes = run_recorded(residual_of_column, a, words.contiguous(), b.contiguous())
    partial_sums = (
        len(words) * triton.cdiv(a.shape[1], _TERMS_OF_RESIDUAL)
        + _TERMS_OF_RESIDUAL.bit_length()
        + 1
    )
    return q, sizes, partial_sums


def residual_of_column(a: Buffer, words: Buffer, b: Buffer) -> tuple[Buffer, Buffer]:
    """q and s for words and b in memory."""
    q: Buffer = a.launches.empty(b.shape, torch.float64)
    sizes: Buffer = a.launches.empty(b.shape, torch.float64)
    m, n = a.shape
    row_stride, column_stride = a.stride()
    _launch_residual(
        (triton.cdiv(m, _ROWS_OF_RESIDUAL),),
        a,
        words,
        b,
        q,
        sizes,
        m,
        n,
        row_stride,
        column_stride,
        WORDS=words.shape[0],
        FMA=q.is_cuda,
        ROWS=_ROWS_OF_RESIDUAL,
        TERMS=_TERMS_OF_RESIDUAL,
        LEVELS=_TERMS_OF_RESIDUAL.bit_length() - 1,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return q, sizes
