"""The order in which kernels make the tiles of their results.

Tiles that are made at the same time share rows and columns of the operands, which then come from the cache.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["place_in_plane", "place_of"]


@triton.jit
def place_in_plane(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of a tile from its running number; tiles go down GROUP rows before the next column."""
    first = tile // (GROUP * tiles_n) * GROUP
    rows = tl.minimum(tiles_m - first, GROUP)
    inner = tile % (GROUP * tiles_n)
    return first + inner % rows, inner // rows


@triton.jit
def place_of(index, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Plane, and row and column there, of a tile from its running number; one plane after the other."""
    tiles = tiles_m * tiles_n
    plane = index // tiles
    row, column = place_in_plane(index - plane * tiles, tiles_m, tiles_n, GROUP)
    return plane, row, column
