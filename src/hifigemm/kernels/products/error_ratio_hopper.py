"""The kernel of `error_ratio.py` for Hopper in Gluon: sums as in `hopper_ring.py`, of
which none is stored.

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

from hifigemm.kernels.products.error_ratio import MARGIN
from hifigemm.kernels.products.hopper_ring import (
    CONSUMER_REGISTERS,
    PRODUCER_REGISTERS,
    allocate,
    boxes_of,
    multiply,
    planes_behind,
    produce,
    tile_of_turn,
)
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import Predicate, tiles_of
from hifigemm.kernels.runtime.launch import Launch, tensor_map
from hifigemm.kernels.runtime.tiles import ProductShape, Tile, gpu_of, grid_size
from hifigemm.kernels.vectors.scaled_residues import Sizes

_BIG = gl.constexpr(2.0**52)
_BIG_BITS = gl.constexpr(0x4330000000000000)
"""The bits of 2**52: with n in the bits behind the exponent it is 2**52 + n."""


@gluon.jit
def _halves(tiles):
    """Left and right halves of tensors, which lie in registers of the same threads."""
    ROWS: gl.constexpr = tiles[0].shape[0]
    COLUMNS: gl.constexpr = tiles[0].shape[1] // 2
    parts = ()
    for i in gl.static_range(len(tiles)):
        parts += tiles[i].reshape([ROWS, 2, COLUMNS]).permute(0, 2, 1).split()
    return parts


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
def _compare(
    HALF: gl.constexpr,
    ring,
    sizes,
    out,
    columns_32,
    m,
    n,
    tiles,
    steps,
    enough_bits,
    WIDTH: gl.constexpr,
    TRIANGLE: gl.constexpr,
    TILE: gl.constexpr,
):
    """Multiply half of the rows of each tile and raise the known ratio where one is
    larger.

    `sizes` are those of all vectors with their places: vectors of a matrix of A and of
    B, of all of A, and of both; `tiles` are as for `produce`.
    """
    sizes_of_a, rows_a, rows_b, total_a, total = sizes
    sizes_of_b = sizes_of_a + total_a
    tiles_m, tiles_n, total_planes = tiles
    BLOCK_M: gl.constexpr = TILE.block_m
    BLOCK_N: gl.constexpr = TILE.block_n
    ROWS: gl.constexpr = BLOCK_M // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 32]
    )
    # BLOCK_N is a multiple of 128.
    flat: gl.constexpr = gl.BlockedLayout([BLOCK_N // 128], [32], [4], [0])
    of_columns = columns_32.index(HALF * 2), columns_32.index(HALF * 2 + 1)
    count = 0
    for index in range(
        gl.program_id(0), tiles_m * tiles_n * total_planes, gl.num_programs(0)
    ):
        plane, tile_m, tile_n = tile_of_turn(index, tiles, m, False, TRIANGLE, TILE)
        z = plane // WIDTH
        rows = (
            tile_m * BLOCK_M
            + HALF * ROWS
            + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        )
        columns = tile_n * BLOCK_N + gl.arange(0, BLOCK_N, flat)
        row_sizes = sizes_of_a + z * rows_a
        column_sizes = sizes_of_b + z * rows_b
        # Asked for early: they arrive while the tile is multiplied. A ratio that is
        # raised meanwhile is not seen: the tile may then be looked at in vain.
        g = gl.load(row_sizes + rows, mask=rows < m, other=0.0)
        s = gl.load(row_sizes + total + rows, mask=rows < m, other=0.0)
        h = gl.load(column_sizes + columns, mask=columns < n, other=0.0)
        t = gl.load(column_sizes + total + columns, mask=columns < n, other=0.0)
        known_ratio = gl.maximum(gl.load(out, cache_modifier=".cg"), enough_bits).to(
            gl.float64, bitcast=True
        )
        sums, count = multiply(ring, count, steps, HALF, BLOCK_N, layout)
        # Columns' norms and sums go through shared memory, from which each part loads
        # its own in the layout of the sums. The area belongs to this consumer alone.
        of_columns[0].store(h.to(gl.float32))
        of_columns[1].store(t.to(gl.float32))
        # Eighths of the columns, which take turns in float64.
        parts = _halves(_halves(_halves((sums,))))
        if _may_exceed(known_ratio, parts, (g, s), of_columns):
            largest = _largest(
                parts,
                (g, s),
                column_sizes + tile_n * BLOCK_N,
                total,
                n - tile_n * BLOCK_N,
            )
            gl.atomic_max(out, largest.to(gl.int64, bitcast=True), sem="relaxed")


_RUN_TIME = [
    "m",
    "n",
    "rows_a",
    "rows_b",
    "total_a",
    "total",
    "steps",
    "total_planes",
    "component",
    "enough_bits",
]


@gluon.jit(do_not_specialize=[*_RUN_TIME, "predicate"])
def _ratio_kernel(
    left,
    right,
    quarter,
    sizes,
    out,
    m,
    n,
    rows_a,
    rows_b,
    total_a,
    total,
    steps,
    total_planes,
    component,
    enough_bits,
    predicate,
    WIDTH: gl.constexpr,
    TRIANGLE: gl.constexpr,
    TILE: gl.constexpr,
):
    """Twin: numerics.error_ratio.error_ratio.

    It does what error_ratio.error_ratio_kernel does, half of the rows of a tile in each
    consumer. Planes are pairings of the components of a matrix, of which the next one
    begins `rows_a` and `rows_b` vectors behind. Nothing where the predicate does not hold.
    """
    ring = allocate(left, right, 1, 1, TILE)
    # Norms and sums of the columns of a tile, for each consumer.
    columns_32 = gl.allocate_shared_memory(
        gl.float32, [4, TILE.block_n], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    tiles_m, tiles_n = tiles_of(m, n, TILE.block_m, TILE.block_n, TRIANGLE)
    total_planes = planes_behind(predicate, total_planes)
    tiles = tiles_m, tiles_n, total_planes
    sizes_in_place = sizes, rows_a, rows_b, total_a, total
    UPPER: gl.constexpr = 0
    LOWER: gl.constexpr = 1
    # Two warpgroups of four warps that multiply, and a warp that fills the ring. All
    # three walk over the same tiles in the same order.
    gl.warp_specialize(
        [
            (
                _compare,
                (
                    UPPER, ring, sizes_in_place, out, columns_32, m, n, tiles, steps,
                    enough_bits, WIDTH, TRIANGLE, TILE,
                ),
            ),
            (
                _compare,
                (
                    LOWER, ring, sizes_in_place, out, columns_32, m, n, tiles, steps,
                    enough_bits, WIDTH, TRIANGLE, TILE,
                ),
            ),
            (
                produce,
                (
                    (left, rows_a, 0), (right, quarter, rows_b, 0), ring, n, tiles,
                    WIDTH, (steps, 0, steps), 1, component, WIDTH, False, TRIANGLE, TILE,
                ),
            ),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip


_ratio = Launch(_ratio_kernel)


def launch(
    sizes: Sizes,
    out: Buffer,
    terms: int,
    tile: Tile,
    enough_bits: int,
    predicate: Predicate,
) -> None:
    """Make the launch of `error_ratio.error_ratio_bits`.

    `terms` of each component count, a multiple of 128.
    """
    left, right = sizes.magnitudes[0], sizes.magnitudes[-1]
    width = sizes.width
    batch_a, m, pitch = left.shape
    batch_b, n, _ = right.shape
    batch = max(batch_a, batch_b)
    planes = batch * width
    rows = [x.shape[1] if x.shape[0] == batch > 1 else 0 for x in (left, right)]
    left_rows, right_rows = rows
    left_map, right_map, quarter_map = (
        tensor_map(x, x.shape[0] * x.shape[1], pitch, pitch, box)
        for x, box in zip((left, right, right), boxes_of(tile), strict=True)
    )
    first_right, total = sizes.places
    shape = ProductShape(m, n, width * terms, planes)
    _ratio(
        (grid_size(tile, shape, gpu_of(left.device)),),
        left_map,
        right_map,
        quarter_map,
        sizes.norms,
        out,
        m,
        n,
        left_rows,
        right_rows,
        first_right,
        total,
        width * terms // tile.block_k,
        planes,
        pitch // width,
        enough_bits,
        predicate,
        WIDTH=width,
        TRIANGLE=sizes.is_of_one_operand,
        TILE=tile,
        num_warps=4,
        enable_fp_fusion=False,
    )
