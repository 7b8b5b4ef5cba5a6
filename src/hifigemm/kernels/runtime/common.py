"""What kernels share, in plain Triton and Gluon: elementary functions, predicates of
launches, the order of tiles.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.launch import unread


class Predicate(NamedTuple):
    """An int64 tensor of one entry, a lower and an upper limit.

    A kernel writes nothing unless the entry lies between the limits or equals one of
    them. An earlier launch has written the entry, and the kernel itself does not, so
    that all programs agree. Products of words read two losses instead, whose sum lies
    in a range of limits.
    """

    number: Any
    lower_limit: int
    upper_limit: int

    @property
    def are_wide(self) -> bool:
        """True: the limits are INT64 in kernels."""
        return True


def runs_ptx(x: Any) -> bool:
    """Whether kernels on a tensor or buffer are compiled for NVIDIA."""
    return bool(x.is_cuda and torch.version.hip is None)


LARGEST = 2**63 - 1
"""No number that a predicate reads is larger."""
ALWAYS = tl.constexpr(-(2**31))
"""The lower limit of what runs always: no number is read."""
NO_PREDICATE = Predicate(unread(torch.int64), ALWAYS.value, LARGEST)
ROUND_DOUBLE = tl.constexpr(1.5 * 2.0**52)
"""Added and taken away again, it rounds a float64 below 2**51 to an integer."""
ROUND_SINGLE = tl.constexpr(1.5 * 2.0**23)
"""The same for float32 below 2**22."""


@triton.jit
def holds(predicate):
    """True if the number of a predicate lies within its limits, or from ALWAYS on.

    A kernel with a predicate and one without are the same compiled kernel.
    """
    return is_within(predicate.number, predicate.lower_limit, predicate.upper_limit)


@triton.jit
def is_within(number, lower_limit, upper_limit):
    """True if the INT64 at an address lies within limits, or these begin at ALWAYS."""
    value = tl.load(number, mask=lower_limit > ALWAYS, other=ALWAYS)
    return (value >= lower_limit) & (value <= upper_limit)


@triton.jit
def as_mask(flag, like):
    """A mask in the shape of a tensor that is true where a scalar flag is.

    A scalar is no mask itself: the interpreter of Triton 3.9 spreads booleans as INT32
    and raises an error for a mask of that type.
    """
    return tl.zeros_like(like).to(tl.int32) + flag.to(tl.int32) != 0


@triton.jit
def power_of_two(e):
    """2.0**e in float64 for INT32 -1022 <= e <= 1023."""
    # 1023 is the bias of exponents in float64, and 52 bits of fraction lie below them.
    return ((e.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def power_of_two_single(e):
    """2.0**e in float32 for INT32 -126 <= e <= 127."""
    # In float32 the bias is 127, and the fraction has 23 bits.
    return ((e + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def sign_of_finite(x):
    """-1, 0 or 1 for finite entries; Inf and NaN themselves."""
    sign = (x > 0.0).to(x.dtype) - (x < 0.0).to(x.dtype)
    return tl.where(tl.abs(x) < float("inf"), sign, x)


@triton.jit
def place_in_plane(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of a tile from its running number in a plane.

    Tiles go down GROUP rows before the next column. Tiles that are made at the same
    time share rows and columns of the operands, which then come from the cache.
    """
    # A group holds all columns of GROUP rows of tiles; the last group may have fewer
    # rows.
    first = tile // (GROUP * tiles_n) * GROUP
    rows = tl.minimum(tiles_m - first, GROUP)
    inner = tile % (GROUP * tiles_n)
    return first + inner % rows, inner // rows


@triton.jit
def tiles_of(
    m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TRIANGLE: tl.constexpr
):
    """Rows and columns of the tiles of an (m, n) plane.

    With TRIANGLE the lower triangle is folded into a rectangle. It consists of squares,
    as large as the longer side of a tile: row r has r + 1 of them up to the diagonal.
    Of N rows, the upper h = N // 2 are folded: row i of the rectangle is row h + i, of
    h + i + 1 squares, followed by row h - 1 - i, which has the other h - i of its
    2 h + 1 squares.
    """
    if TRIANGLE:
        SQUARE: tl.constexpr = BLOCK_M if BLOCK_M > BLOCK_N else BLOCK_N
        squares = tl.cdiv(m, SQUARE)
        # Rows of the rectangle are the lower rows of squares: N - h of them.
        half = squares // 2
        return (squares - half) * (SQUARE // BLOCK_M), (2 * half + 1) * (
            SQUARE // BLOCK_N
        )
    else:
        return tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)


@triton.jit
def unfolded(
    row, column, m, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TRIANGLE: tl.constexpr
):
    """Row and column of a tile of the result, from its place in `tiles_of`."""
    if TRIANGLE:
        SQUARE: tl.constexpr = BLOCK_M if BLOCK_M > BLOCK_N else BLOCK_N
        TALL: tl.constexpr = SQUARE // BLOCK_M
        WIDE: tl.constexpr = SQUARE // BLOCK_N
        # Square (i, j) of the rectangle, in which this tile lies.
        half = tl.cdiv(m, SQUARE) // 2
        i = row // TALL
        j = column // WIDE
        # Up to column h + i it is square (h + i, j) of the result; after that, square
        # (h - 1 - i, j - h - i - 1).
        is_low = j <= half + i
        row += (tl.where(is_low, half + i, half - 1 - i) - i) * TALL
        column -= tl.where(is_low, 0, half + i + 1) * WIDE
    return row, column


@triton.jit
def place_of(index, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Plane, row and column of a tile from its running number, plane after plane.

    Like `tile_of_result`, for planes that are no triangles.
    """
    tiles = tiles_m * tiles_n
    plane = index // tiles
    row, column = place_in_plane(index - plane * tiles, tiles_m, tiles_n, GROUP)
    return plane, row, column


@triton.jit
def tile_of_plane(
    tile, tiles_m, tiles_n, m, TRIANGLE: tl.constexpr, TILE: tl.constexpr
):
    """Row and column of a tile of the result from its running number in a plane.

    `tiles_m` and `tiles_n` are those of `tiles_of`.
    """
    row, column = place_in_plane(tile, tiles_m, tiles_n, TILE.group)
    return unfolded(row, column, m, TILE.block_m, TILE.block_n, TRIANGLE)


@triton.jit
def tile_of_result(
    index, tiles_m, tiles_n, m, TRIANGLE: tl.constexpr, TILE: tl.constexpr
):
    """Plane, row and column of a tile of the result, plane after plane.

    All parts of a program ask here, so that they walk over the same tiles in the same
    order.
    """
    plane, row, column = place_of(index, tiles_m, tiles_n, TILE.group)
    row, column = unfolded(row, column, m, TILE.block_m, TILE.block_n, TRIANGLE)
    return plane, row, column


@triton.jit
def two_sum(a, b):
    """Twin: numerics.eft.two_sum."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)
