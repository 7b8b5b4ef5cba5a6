"""The error ratio as an epilogue of `int8_product_hopper.py`.

Tiles are dismissed in FP32 or looked at in float64 as in `error_ratio.py`, and the same
float64 comes out.

`_quotient` rounds x / d to nearest as a division does, for integers 0 < d < 2**32 and
x = 0 or 1 <= x < 2**100, without the branches of one that takes all numbers. Let u be
the unit in the last place of x / d. With an inverse y that is good to 2**-50, q = x y
is within 2**4 u, and x - d q is a float64: a multiple of u / 2 below 2**36 u. q + y
(x - d q) is within 2**-46 u of x / d before it is rounded. The middle M of two
neighbouring float64 has 54 significant bits, so x - d M is not zero; as a multiple of
u / 2 it keeps x / d at least 2**-33 u away from M, so that both round alike.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from hifigemm.kernels.products import int8_product_hopper as hopper
from hifigemm.kernels.products.error_ratio import MARGIN, Numbers, Ratio
from hifigemm.kernels.products.int8_product import Int8Product
from hifigemm.kernels.products.int8_product_hopper import halves
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.tiles import Tile

_BIG = gl.constexpr(2.0**52)
_BIG_BITS = gl.constexpr(0x4330000000000000)
"""The bits of 2**52: with n in the bits behind the exponent it is 2**52 + n."""


@gluon.jit
def _may_exceed(known_ratio, parts, of_rows, of_columns):
    """True if a ratio of a tile may be larger than the one that is known.

    Nothing is larger than inf.
    """
    g, s = of_rows
    ROWS: gl.constexpr = parts[0].shape[0]
    COLUMNS: gl.constexpr = parts[0].shape[1]
    layout: gl.constexpr = parts[0].type.layout
    # Rows' norms and sums in FP32, in the layout of the parts of the sums.
    is_finite = known_ratio < float("inf")
    known_32 = gl.where(is_finite, known_ratio, 0.0).to(gl.float32) * MARGIN
    g_32 = gl.convert_layout(
        gl.where(is_finite, g, 0.0).to(gl.float32), gl.SliceLayout(1, layout)
    )[:, None]
    s_32 = gl.convert_layout(
        gl.where(is_finite, s, 0.0).to(gl.float32), gl.SliceLayout(1, layout)
    )[:, None]
    excess = gl.full([ROWS, COLUMNS], 0.0, gl.float32, layout)
    for i in gl.static_range(len(parts)):
        h = (
            of_columns[0]
            .slice(i * COLUMNS, COLUMNS)
            .load(gl.SliceLayout(0, layout))[None, :]
        )
        t = (
            of_columns[1]
            .slice(i * COLUMNS, COLUMNS)
            .load(gl.SliceLayout(0, layout))[None, :]
        )
        # Is above > known low for any entry? error_ratio.py explains the margin.
        above = gl.fma(g_32, t, h * s_32)
        low = parts[i].to(gl.uint32, bitcast=True).to(gl.float32)
        excess = gl.maximum(excess, gl.fma(low, -known_32, above))
    return gl.max(gl.max(excess, axis=1), axis=0) > 0.0


@gluon.jit
def _quotient(x, low):
    """x / low in float64, rounded to nearest, for 0 < low < 2**32; see the module."""
    # A float64 of an integer below 2**52, which lies in the low bits of 2**52.
    divisor = (low.to(gl.int64) | _BIG_BITS).to(gl.float64, bitcast=True) - _BIG
    # Some 19 bits; the cube of the error is below 2**-50.
    inverse = gl.inline_asm_elementwise(
        "rcp.approx.ftz.f64 $0, $1;",
        "=d,d",
        [divisor],
        dtype=gl.float64,
        is_pure=True,
        pack=1,
    )
    # y (1 + e + e**2) with e = 1 - d y, which cubes the error of y.
    error = gl.fma(-divisor, inverse, 1.0)
    inverse = gl.fma(inverse, gl.fma(error, error, error), inverse)
    quotient = x * inverse
    return gl.fma(gl.fma(-divisor, quotient, x), inverse, quotient)


@gluon.jit
def _largest(parts, of_rows, column_sizes, total, num_columns):
    """The largest ratio of a tile in float64.

    `num_columns` columns exist, whose sizes begin at `column_sizes`.
    """
    g, s = of_rows
    ROWS: gl.constexpr = parts[0].shape[0]
    COLUMNS: gl.constexpr = parts[0].shape[1]
    COUNT: gl.constexpr = len(parts)
    layout: gl.constexpr = parts[0].type.layout
    g = gl.convert_layout(g, gl.SliceLayout(1, layout))[:, None]
    s = gl.convert_layout(s, gl.SliceLayout(1, layout))[:, None]
    best = gl.full([ROWS], 0.0, gl.float64, gl.SliceLayout(1, layout))
    # Unrolled, this spills; in a loop only the first part can be named, so the parts
    # take turns in its place.
    for i in range(COUNT):
        columns = i * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
        h = gl.load(column_sizes + columns, mask=columns < num_columns, other=0.0)[
            None, :
        ]
        t = gl.load(
            column_sizes + total + columns, mask=columns < num_columns, other=0.0
        )[None, :]
        # 0 / 0 counts 0 and a positive number over 0 counts inf.
        above = g * t + h * s
        low = parts[0].to(gl.uint32, bitcast=True)
        parts = parts[1:] + parts[:1]
        ratio = gl.where(
            low > 0, _quotient(above, low), gl.where(above > 0.0, float("inf"), 0.0)
        )
        best = gl.maximum(best, gl.max(ratio, axis=1))
    return gl.max(best, axis=0)


@gluon.jit
def _sizes_of_columns(out, TILE: gl.constexpr):
    """Room for the norms and sums of the columns of a tile, for each consumer."""
    return gl.allocate_shared_memory(
        gl.float32, [4, TILE.block_n], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )


@gluon.jit
def raise_ratio(
    HALF: gl.constexpr, sums, tile_origin, m, n, out, target, numbers, memory
):
    """The epilogue of `error_ratio.raise_ratio`, with the same two records.

    Twin: numerics.error_ratio.error_ratio.
    """
    _, z, _, row, column = tile_origin
    layout: gl.constexpr = sums.type.layout
    # The columns of a tile are a multiple of 128.
    COLUMNS: gl.constexpr = sums.shape[1]
    flat: gl.constexpr = gl.BlockedLayout([COLUMNS // 128], [32], [4], [0])
    rows = row + gl.arange(0, sums.shape[0], gl.SliceLayout(1, layout))
    columns = gl.arange(0, COLUMNS, flat)
    row_sizes = target.sizes + z * numbers.rows_a
    column_sizes = target.sizes + numbers.first_right + z * numbers.rows_b + column
    total = numbers.total
    g = gl.load(row_sizes + rows, mask=rows < m, other=0.0)
    s = gl.load(row_sizes + total + rows, mask=rows < m, other=0.0)
    inside = columns < n - column
    h = gl.load(column_sizes + columns, mask=inside, other=0.0)
    t = gl.load(column_sizes + total + columns, mask=inside, other=0.0)
    # A ratio that is raised meanwhile is not seen: the tile may then be looked at in
    # vain. Warps of a consumer may know different ratios; they share the maximum that
    # decides.
    known_ratio = gl.maximum(
        gl.load(target.bits, cache_modifier=".cg"), numbers.enough_bits
    ).to(gl.float64, bitcast=True)
    # Columns' norms and sums go through shared memory, from which each part loads its
    # own in the layout of the sums. The area belongs to this consumer alone, and Triton
    # puts barriers of its warps between stores and loads.
    of_columns = memory.index(HALF * 2), memory.index(HALF * 2 + 1)
    of_columns[0].store(h.to(gl.float32))
    of_columns[1].store(t.to(gl.float32))
    # Eighths of the columns, which take turns in float64.
    parts = halves(halves(halves((sums,))))
    if _may_exceed(known_ratio, parts, (g, s), of_columns):
        # A maximum does not depend on the order of consumers and programs.
        largest = _largest(parts, (g, s), column_sizes, total, n - column)
        gl.atomic_max(target.bits, largest.to(gl.int64, bitcast=True), sem="relaxed")


ERROR_RATIO = hopper.Epilogue(raise_ratio, _sizes_of_columns, has_narrow_tiles=False)


def launch(
    product: Int8Product,
    left: Buffer,
    right: Buffer,
    tile: Tile,
    ratio: Ratio,
    numbers: Numbers,
) -> None:
    """Launch the product of magnitudes, both of whose components lie in a row."""
    left_rows, right_rows = (
        hopper.Rows(x, x.shape[0] * x.shape[1], x.shape[2], x.shape[2], rows)
        for x, rows in ((left, numbers.rows_a), (right, numbers.rows_b))
    )
    hopper.launch(product, left_rows, right_rows, tile, ERROR_RATIO, ratio, numbers)
