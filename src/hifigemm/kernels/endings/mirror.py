"""The lower triangle of square results copied to the upper one."""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import tiles_of, unfolded
from hifigemm.kernels.runtime.launch import Launch, Strided, real_view
from hifigemm.kernels.runtime.tiles import tiles_along

_BLOCK = 64
"""Rows and columns of a tile."""


@triton.jit
def _mirror_kernel(
    x,
    n,
    WIDTH: tl.constexpr,
    CONJUGATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Twin: numerics.symmetric.mirror.

    A tile on or below the diagonal is copied to its mirror image. A tile has BLOCK x
    BLOCK entries of WIDTH components each. Strides count entries.
    """
    # Programs count the tiles of the folded triangle, one matrix of the stack after
    # the other.
    tiles_m, tiles_n = tiles_of(n, n, BLOCK, BLOCK, True)
    tiles = tiles_m * tiles_n
    z = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    tile_m, tile_n = unfolded(tile // tiles_n, tile % tiles_n, n, BLOCK, BLOCK, True)
    # Entry (i, j) of the lower triangle and its image (j, i). The tile `above` has the
    # axes of the transposed one, in the order (j, i) of the loaded entries.
    i = tile_m.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    j = tile_n.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    below = x.entries + WIDTH * (
        z * x.batch + i[:, None] * x.row + j[None, :] * x.column
    )
    above = x.entries + WIDTH * (
        z * x.batch + j[:, None] * x.row + i[None, :] * x.column
    )
    # Entries strictly below the diagonal alone go to the other side. A program writes
    # to the mirror image of its tile, which no other program reads or writes: they may
    # run in any order. A tile on the diagonal is its own mirror image, and
    # no entry that is written there is one whose loaded value is used.
    inside = (j[:, None] < i[None, :]) & (i[None, :] < n)
    for part in tl.static_range(WIDTH):
        y = tl.trans(
            tl.load(below + part, mask=(i[:, None] < n) & (j[None, :] < n), other=0.0)
        )
        # The mirror image of a conjugate matrix has -im, and its diagonal is real.
        if CONJUGATE and part == 1:
            y = -y
            tl.store(
                above + part,
                tl.zeros_like(y),
                mask=(j[:, None] == i[None, :]) & (i[None, :] < n),
            )
        tl.store(above + part, y, mask=inside)


_launch = Launch(_mirror_kernel)


def mirror(x: Buffer, conjugate: bool) -> None:
    """Copy the lower triangle of each matrix to the upper one.

    The bits are those of numerics.symmetric.mirror.

    Parameters
    ----------
    x : buffer, shape (batch, n, n), any strides
    conjugate : bool
        The upper triangle of a complex x gets conjugates, its diagonal becomes real.
    """
    if x.numel() == 0:
        return
    batch, n, _ = x.shape
    tiles = math.prod(tiles_along(n, n, _BLOCK, _BLOCK, triangle=True))
    _launch(
        (batch * tiles,),
        Strided(real_view(x), *x.stride()),
        n,
        WIDTH=2 if x.is_complex() else 1,
        CONJUGATE=conjugate and x.is_complex(),
        BLOCK=_BLOCK,
        num_warps=4,
    )
