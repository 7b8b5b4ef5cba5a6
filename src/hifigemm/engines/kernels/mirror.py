"""The lower triangle of square results copied to the upper one."""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl

from hifigemm.engines.kernels.common import tiles_of, unfolded
from hifigemm.engines.kernels.launch import Launch, real_view
from hifigemm.engines.kernels.tiles import tiles_along

_BLOCK = 64


@triton.jit
def _mirror_kernel(
    x,
    x_batch,
    x_row,
    x_column,
    n,
    WIDTH: tl.constexpr,
    CONJUGATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A tile on or below the diagonal of a matrix; entries have WIDTH components, and
    strides count entries.
    """
    tiles_m, tiles_n = tiles_of(n, n, BLOCK, BLOCK, True)
    tiles = tiles_m * tiles_n
    z = (tl.program_id(0) // tiles).to(tl.int64)
    place = tl.program_id(0) % tiles
    tile_m, tile_n = unfolded(place // tiles_n, place % tiles_n, n, BLOCK, BLOCK, True)
    i = tile_m.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    j = tile_n.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    below = x + WIDTH * (z * x_batch + i[:, None] * x_row + j[None, :] * x_column)
    above = x + WIDTH * (z * x_batch + j[:, None] * x_row + i[None, :] * x_column)
    inside = (j[:, None] < i[None, :]) & (i[None, :] < n)
    for part in tl.static_range(WIDTH):
        y = tl.trans(
            tl.load(below + part, mask=(i[:, None] < n) & (j[None, :] < n), other=0.0)
        )
        if CONJUGATE and part == 1:
            y = -y
            tl.store(
                above + part,
                tl.zeros_like(y),
                mask=(j[:, None] == i[None, :]) & (i[None, :] < n),
            )
        tl.store(above + part, y, mask=inside)


_launch: Any = Launch(_mirror_kernel)


def mirror(x: Any, conjugate: bool) -> None:
    """numerics.symmetric.mirror of a tensor (batch, n, n) of any strides, on torch's
    current stream.
    """
    if x.numel() == 0:
        return
    batch, n, _ = x.shape
    _launch(
        (batch * math.prod(tiles_along(n, n, _BLOCK, _BLOCK, triangle=True)),),
        *(real_view(x), *x.stride(), n),
        WIDTH=2 if x.is_complex() else 1,
        CONJUGATE=conjugate and x.is_complex(),
        BLOCK=_BLOCK,
        num_warps=4,
    )
