"""Complex operands and results as real ones on the device: numerics.embedding, for
kernels of real numbers.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.launch import Launch, real_view

_ROWS = 16
_COLUMNS = 64
"""Complex entries of a tile."""


@triton.jit
def _embedding_kernel(
    x,
    x_batch,
    x_row,
    x_col,
    out,
    rows,
    cols,
    DOUBLED: tl.constexpr,
    TURNED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Twin: numerics.embedding.embed_left, with DOUBLED embed_right.

    Two rows of `out` for each row of x hold re and im, or with DOUBLED [re, im] and
    [-im, re]. TURNED writes the transpose of the latter: [re, -im] and [im, re]. `out`
    is contiguous; entries of x are pairs.
    """
    # A tile has ROWS x COLUMNS complex entries. Programs count the tiles of a matrix,
    # then the matrices z of the stack.
    across = tl.cdiv(cols, COLUMNS)
    tiles = tl.cdiv(rows, ROWS) * across
    z = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    r = (tile // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    first_col = (tile % across).to(tl.int64) * COLUMNS
    c = first_col + tl.arange(0, COLUMNS)
    inside = (r < rows)[:, None] & (c < cols)[None, :]
    # Both components of an entry lie side by side, and the strides count real numbers.
    entries = x + z * x_batch + r[:, None] * x_row + c[None, :] * x_col
    re = tl.load(entries, mask=inside, other=0.0)
    im = tl.load(entries + 1, mask=inside, other=0.0)
    # Rows 2 r and 2 r + 1 of `out` belong to row r of x. No two programs write the same
    # row and column.
    if DOUBLED:
        upper, lower = (-im, im) if TURNED else (im, -im)
        # A row of a tile has twice as many numbers: entries and their partners
        # alternate.
        pairs = 2 * first_col + tl.arange(0, 2 * COLUMNS)
        upper_row = out + (2 * (z * rows + r) * 2 * cols)[:, None] + pairs[None, :]
        inside = (r < rows)[:, None] & (pairs < 2 * cols)[None, :]
        tl.store(upper_row, tl.interleave(re, upper), mask=inside)
        tl.store(upper_row + 2 * cols, tl.interleave(lower, re), mask=inside)
    else:
        upper_row = out + (2 * (z * rows + r) * cols)[:, None] + c[None, :]
        tl.store(upper_row, re, mask=inside)
        tl.store(upper_row + cols, im, mask=inside)


_embed = Launch(_embedding_kernel)


def interleaved(x: Buffer) -> Buffer | None:
    """A complex tensor (batch, rows, cols) as a real one (batch, rows, 2 cols).

    None unless its rows are contiguous.
    """
    batch, rows, cols = x.shape
    if cols != 1 and x.stride(2) != 1:
        return None
    pairs: Buffer = real_view(x).as_strided(
        (batch, rows, 2 * cols), (2 * x.stride(0), 2 * x.stride(1), 1)
    )
    return pairs


def embed_left(a: Buffer) -> Buffer:
    """(batch, m, k) complex numbers as (batch, m, 2 k) real ones: a_re, a_im, ...

    The strides may be any; the result is a view where rows are contiguous.
    """
    view = interleaved(a)
    if view is not None:
        return view
    batch, m, k = a.shape
    out = a.launches.empty((batch, 2 * k, m), real_view(a).dtype)
    _launch(a, (2, 1), out, doubled=False, turned=False)
    embedded: Buffer = out.as_strided((batch, m, 2 * k), (2 * k * m, 1, m))
    return embedded


def embed_right(b: Buffer) -> Buffer:
    """(batch, k, n) complex numbers as (batch, 2 k, 2 n) real ones, of any strides.

    Row h becomes the rows b_re, b_im, ... and -b_im, b_re, ...
    """
    batch, k, n = b.shape
    out = b.launches.empty((batch, 2 * k, 2 * n), real_view(b).dtype)
    is_turned = b.stride(1) < b.stride(2)
    if is_turned:
        out = out.as_strided((batch, 2 * n, 2 * k), (4 * k * n, 2 * k, 1))
    _launch(b, (2, 1) if is_turned else (1, 2), out, doubled=True, turned=is_turned)
    embedded: Buffer = (
        out.as_strided((batch, 2 * k, 2 * n), (4 * k * n, 1, 2 * k))
        if is_turned
        else out
    )
    return embedded


def as_real(a: Buffer, b: Buffer, out: Buffer) -> tuple[Buffer, Buffer, Buffer]:
    """Operands and result of a product as real matrices; real ones themselves.

    The rows of a complex result are contiguous.
    """
    if not out.is_complex():
        return a, b, out
    pairs = interleaved(out)
    assert pairs is not None
    return embed_left(a), embed_right(b), pairs


def _launch(
    x: Buffer,
    axes: tuple[int, int],
    out: Buffer,
    *,
    doubled: bool,
    turned: bool,
) -> None:
    """Launch the kernel for the axes of x that are rows and columns of `out`."""
    rows, cols = (x.shape[axis] for axis in axes)
    pairs = real_view(x)
    batch_stride = pairs.stride(0) if x.shape[0] > 1 else 0
    row_stride, col_stride = (pairs.stride(axis) for axis in axes)
    grid = x.shape[0] * -(-rows // _ROWS) * -(-cols // _COLUMNS)
    if grid:
        _embed(
            (grid,),
            pairs,
            batch_stride,
            row_stride,
            col_stride,
            out,
            rows,
            cols,
            DOUBLED=doubled,
            TURNED=turned,
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            num_warps=4,
        )
