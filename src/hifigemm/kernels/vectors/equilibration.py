"""A matrix with rows and columns in scale: numerics.equilibration.matrix_in_scale, in two
readings of the matrix for its scales and one for what is written.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import power_of_two
from hifigemm.kernels.runtime.launch import Launch, unread
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.vectors.statistics import ABSOLUTE, magnitude_bits
from hifigemm.numerics.equilibration import MODERATE

_ROWS = 32
"""Rows of a tile: 256 bytes of a column, where columns lie in memory."""
_TERMS = 32
"""Columns of a tile: as many bytes of a row, where rows do."""
_LONGEST = 2048
"""Columns that a program reads: many programs share a row."""


@triton.jit
def _extremes_kernel(
    a,
    exponents,
    largest,
    smallest,
    m,
    n,
    row,
    column,
    IN_SCALE: tl.constexpr,
    ROWS: tl.constexpr,
    TERMS: tl.constexpr,
    LONGEST: tl.constexpr,
):
    """The largest bits of the magnitudes of rows, and the smallest of those that are not
    zero, within each span of LONGEST columns.

    With IN_SCALE entries of column j count times 2^exponents[j], and `smallest` is not
    written. Bits of magnitudes are ordered as the numbers are, NaN above all.
    """
    # A tile is ROWS rows times TERMS columns. The first axis of the grid counts ROWS
    # rows at a time, the second one spans. A program walks over the tiles of its span.
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    span = tl.program_id(1)
    j = span * LONGEST + tl.arange(0, TERMS)
    starts_of_rows = a + i[:, None] * row
    entries = starts_of_rows + j[None, :].to(tl.int64) * column
    step = tl.full((), TERMS, tl.int64) * column
    is_row = i[:, None] < m
    # Each place of a tile keeps its own extremes, which meet after the last tile.
    high = tl.zeros((ROWS, TERMS), tl.int64)
    low = tl.full((ROWS, TERMS), ABSOLUTE, tl.int64)
    for start in range(0, LONGEST, TERMS):
        is_term = j + start < n
        x = tl.load(entries, mask=is_row & is_term[None, :], other=0.0)
        if IN_SCALE:
            x = x * power_of_two(tl.load(exponents + j + start, mask=is_term, other=0))
        bits = magnitude_bits(x)
        high = tl.maximum(high, bits)
        if not IN_SCALE:
            low = tl.minimum(low, tl.where(bits == 0, low, bits))
        entries += step
    # One number for each row and span, which no other program writes: the caller joins
    # the spans.
    out = span.to(tl.int64) * m + i
    tl.store(largest + out, tl.max(high, axis=1), mask=i < m)
    if not IN_SCALE:
        tl.store(smallest + out, tl.min(low, axis=1), mask=i < m)


@triton.jit
def _scaled_kernel(
    a,
    rows,
    columns,
    out,
    m,
    n,
    row,
    column,
    ROWS: tl.constexpr,
    TERMS: tl.constexpr,
):
    """Entries times powers of two for their row and column, to a matrix with rows in
    memory.

    A tile is ROWS rows, counted by the first axis of the grid, times TERMS columns,
    counted by the second one. A program makes one tile.
    """
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1).to(tl.int64) * TERMS + tl.arange(0, TERMS)
    is_row = i < m
    is_column = j < n
    is_inside = is_row[:, None] & is_column[None, :]
    entries = a + i[:, None] * row + j[None, :] * column
    x = tl.load(entries, mask=is_inside)
    of_row = power_of_two(tl.load(rows + i, mask=is_row, other=0))
    of_column = power_of_two(tl.load(columns + j, mask=is_column, other=0))
    y = x * of_row[:, None] * of_column[None, :]
    places = out + i[:, None] * n + j[None, :]
    tl.store(places, y, mask=is_inside)


_launch_extremes = Launch(_extremes_kernel)
_launch_scaled = Launch(_scaled_kernel)


def matrix_in_scale(
    a: torch.Tensor,
) -> tuple[torch.Tensor, NDArray[np.int64], NDArray[np.int64]] | None:
    """(A', s, t), A' = 2^s A 2^t with rows in memory, s and t of n x 1 and 1 x n in the
    memory of the CPU; None where an entry is not moderate. The host waits twice.

    Parameters
    ----------
    a : tensor of float64, n x n, any strides
    """
    extremes = torch.stack(run_recorded(extremes_of_rows, a)).cpu().numpy()

    # In float64 again; the smallest of a row of zeros is no number
    largest = extremes[0].max(axis=0).view(np.float64)
    smallest = extremes[1].min(axis=0).view(np.float64)
    is_moderate = (largest <= MODERATE) & (
        (smallest >= 1.0 / MODERATE) | (largest == 0.0)
    )
    if not is_moderate.all():
        return None
    rows = -np.frexp(largest)[1]
    rows_there = torch.from_numpy(rows).to(a.device)
    (of_columns,) = run_recorded(extremes_of_rows, a.T, rows_there)
    largest = of_columns.cpu().numpy().max(axis=0).view(np.float64)
    columns = -np.frexp(largest)[1]
    columns_there = torch.from_numpy(columns).to(a.device)
    scaled = run_recorded(scaled_entries, a, rows_there, columns_there)
    return scaled, rows.astype(np.int64)[:, None], columns.astype(np.int64)[None, :]


def extremes_of_rows(a: Buffer, exponents: Buffer | None = None) -> tuple[Buffer, ...]:
    """Largest and smallest magnitudes of rows, of spans of columns, as bits; the largest
    alone with columns times powers of two.
    """
    m, n = a.shape
    spans = triton.cdiv(n, _LONGEST)
    in_scale = exponents is not None
    extremes: tuple[Buffer, ...] = tuple(
        a.launches.empty((spans, m), torch.int64) for _ in range(1 if in_scale else 2)
    )
    _launch_extremes(
        (triton.cdiv(m, _ROWS), spans),
        a,
        exponents if in_scale else unread(torch.int32),
        extremes[0],
        unread(torch.int64) if in_scale else extremes[1],
        m,
        n,
        *a.stride(),
        IN_SCALE=in_scale,
        ROWS=_ROWS,
        TERMS=_TERMS,
        LONGEST=_LONGEST,
        num_warps=4,
    )
    return extremes


def scaled_entries(a: Buffer, rows: Buffer, columns: Buffer) -> Buffer:
    """A with rows and columns times powers of two, a matrix with rows in memory."""
    m, n = a.shape
    out: Buffer = a.launches.empty((m, n), torch.float64)
    _launch_scaled(
        (triton.cdiv(m, _ROWS), triton.cdiv(n, _TERMS)),
        a,
        rows,
        columns,
        out,
        m,
        n,
        *a.stride(),
        ROWS=_ROWS,
        TERMS=_TERMS,
        num_warps=4,
    )
    return out
