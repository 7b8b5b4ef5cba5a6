"""What kernels share, in plain Triton and Gluon: elementary functions, predicates of launches, the order of tiles."""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

Predicate = tuple[torch.Tensor, int, int]
"""An int64 tensor of one entry, least and most: a kernel writes nothing unless least <= entry <= most."""
NO_PREDICATE = None, 0, 0
LARGEST = 2**63 - 1
"""No number that a predicate reads is larger."""


@triton.jit
def holds(predicate, least, most):
    """Whether the number at the address `predicate` is one of least .. most."""
    found = tl.load(predicate)
    return (found >= least) & (found <= most)


@triton.jit
def power_of_two(e):
    """2.0**e in float64 for INT32 -1022 <= e <= 1023."""
    return ((e.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def power_of_two_single(e):
    """2.0**e in float32 for INT32 -126 <= e <= 127."""
    return ((e + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def sign_of_finite(x):
    """-1, 0 or 1 for finite entries; Inf and NaN stay what they are."""
    sign = (x > 0.0).to(x.dtype) - (x < 0.0).to(x.dtype)
    return tl.where(tl.abs(x) < float("inf"), sign, x)


@triton.jit
def place_in_plane(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of a tile from its running number; tiles go down GROUP rows before the next column.

    Tiles that are made at the same time share rows and columns of the operands, which then come from the cache.
    """
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
