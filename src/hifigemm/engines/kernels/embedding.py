"""Complex operands and results as real ones on the device: numerics.embedding, for
kernels of real numbers.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels.launch import Launch, empty, real_view

_ROWS, _COLUMNS = 16, 64


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
    """Two rows of a contiguous `out` for each row of x: re and im, or with DOUBLED [re,
    im] and [-im, re].

    TURNED writes the transpose of the latter: [re, -im] and [im, re]. Entries of x are
    pairs.
    """
    across = tl.cdiv(cols, COLUMNS)
    tiles = tl.cdiv(rows, ROWS) * across
    z = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    r = (tile // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    first_col = (tile % across).to(tl.int64) * COLUMNS
    c = first_col + tl.arange(0, COLUMNS)
    inside = (r < rows)[:, None] & (c < cols)[None, :]
    at = x + z * x_batch + r[:, None] * x_row + c[None, :] * x_col
    re = tl.load(at, mask=inside, other=0.0)
    im = tl.load(at + 1, mask=inside, other=0.0)
    if DOUBLED:
        upper, lower = (-im, im) if TURNED else (im, -im)
        pairs = 2 * first_col + tl.arange(0, 2 * COLUMNS)
        to = out + (2 * (z * rows + r) * 2 * cols)[:, None] + pairs[None, :]
        inside = (r < rows)[:, None] & (pairs < 2 * cols)[None, :]
        tl.store(to, tl.interleave(re, upper), mask=inside)
        tl.store(to + 2 * cols, tl.interleave(lower, re), mask=inside)
    else:
        to = out + (2 * (z * rows + r) * cols)[:, None] + c[None, :]
        tl.store(to, re, mask=inside)
        tl.store(to + cols, im, mask=inside)


_embed: Any = Launch(_embedding_kernel)


def interleaved(x: torch.Tensor) -> torch.Tensor | None:
    """A complex tensor (batch, rows, cols) as a real one (batch, rows, 2 cols); None
    unless its rows are contiguous.
    """
    batch, rows, cols = x.shape
    if cols != 1 and x.stride(2) != 1:
        return None
    made: torch.Tensor = real_view(x).as_strided(
        (batch, rows, 2 * cols), (2 * x.stride(0), 2 * x.stride(1), 1)
    )
    return made


def embed_left(a: torch.Tensor) -> torch.Tensor:
    """(batch, m, k) complex, any strides, to (batch, m, 2 k): a_re, a_im, ...; a view
    where rows are contiguous.
    """
    view = interleaved(a)
    if view is not None:
        return view
    batch, m, k = a.shape
    out = empty((batch, 2 * k, m), real_view(a).dtype, a)
    _launch(a, (2, 1), out, doubled=False, turned=False)
    made: torch.Tensor = out.as_strided((batch, m, 2 * k), (2 * k * m, 1, m))
    return made


def embed_right(b: torch.Tensor) -> torch.Tensor:
    """(batch, k, n) complex, any strides, to (batch, 2 k, 2 n): rows b_re, b_im, ...
    and -b_im, b_re, ...
    """
    batch, k, n = b.shape
    out = empty((batch, 2 * k, 2 * n), real_view(b).dtype, b)
    turned = b.stride(1) < b.stride(2)
    if turned:
        out = out.as_strided((batch, 2 * n, 2 * k), (4 * k * n, 2 * k, 1))
    _launch(b, (2, 1) if turned else (1, 2), out, doubled=True, turned=turned)
    made: torch.Tensor = (
        out.as_strided((batch, 2 * k, 2 * n), (4 * k * n, 1, 2 * k)) if turned else out
    )
    return made


def _launch(
    x: Any, axes: tuple[int, int], out: Any, *, doubled: bool, turned: bool
) -> None:
    """The launch for the axes of x that are rows and columns of `out`."""
    rows, cols = (x.shape[axis] for axis in axes)
    pairs = real_view(x)
    strides = (
        pairs.stride(0) if x.shape[0] > 1 else 0,
        *(pairs.stride(axis) for axis in axes),
    )
    grid = x.shape[0] * -(-rows // _ROWS) * -(-cols // _COLUMNS)
    if grid:
        _embed(
            *((grid,), pairs, *strides, out, rows, cols),
            DOUBLED=doubled,
            TURNED=turned,
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            num_warps=4,
        )
