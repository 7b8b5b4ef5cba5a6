"""INT8 products for Hopper in Gluon: sums as in `hopper_ring.py`, of which an epilogue
says what becomes, as in `int8_product.py`.

An epilogue here is a function of the sums of half of the rows of a tile, with memory
that it shares among the threads of a consumer. `store_sums` is the one of this file; the
reduction modulo p and the error ratio are in `residue_gemm_hopper.py` and
`error_ratio_hopper.py`.

TMA reads planes as rows of one matrix: plane (z, l) of an operand, matrix z of the batch
and part l, starts at row z * batch_rows + l * part_rows. Rows beyond m and columns
beyond n of a plane are made from what lies behind an operand: results are padded to
whole tiles.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from hifigemm.kernels.products.hopper_ring import (
    CONSUMER_REGISTERS,
    PRODUCER_REGISTERS,
    allocate,
    boxes_of,
    multiply,
    planes_behind,
    produce,
    skip,
    steps_of,
    tile_of_turn,
)
from hifigemm.kernels.products.int8_product import Int8Product, num_programs
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import tiles_of
from hifigemm.kernels.runtime.launch import Launch, TensorMap, tensor_map
from hifigemm.kernels.runtime.tiles import Tile


@dataclass(frozen=True)
class Epilogue:
    """What becomes of the sums of a tile, as functions that are compiled into the
    kernel.

    Attributes
    ----------
    apply : gluon.jit function
        Takes the number of the consumer, sums, the origin of the tile (plane, z, l, first
        row and column), m, n, the map of the result for TMA, `target`, `numbers`, and
        what `allocate` returned.
    allocate : gluon.jit function
        Shared memory for both consumers, from the map and the tile.
    has_narrow_tiles : bool
        Whether tiles at the right edge are a half or a quarter as wide where that is
        enough. Each width has code of its own.
    carry : gluon.jit function, optional
        Of parts that are joined: what the next part begins with, from the sums of a part,
        the number of the consumer and of the part, and `target`.
    """

    apply: Any
    allocate: Any
    has_narrow_tiles: bool = True
    carry: Any = None

    @property
    def cache_key(self) -> str:
        """What Triton's cache on disk knows the epilogue by."""
        carry = "" if self.carry is None else self.carry.cache_key
        return (
            f"{self.apply.cache_key} {self.allocate.cache_key} {self.has_narrow_tiles} "
            f"{carry}"
        )


class Rows(NamedTuple):
    """Vectors of an operand, which are the rows of one matrix."""

    entries: Buffer
    rows: int
    terms: int
    pitch: int
    batch: int  # rows from one matrix of the stack to the next; 0 for a stack of one
    part: int = 0  # rows from one part to the next
    start: int = 0  # of the first row, in entries


def rows_of_slices(planes: Buffer, start: int = 0) -> Rows:
    """The vectors of an operand in slices (batch, vectors, count, pitch), each with all of
    its slices from entry `start` of them on.
    """
    batch, vectors, count, pitch = planes.shape
    length = count * pitch
    matrix_rows = vectors if batch > 1 else 0
    return Rows(
        planes, batch * vectors, length - start, length, matrix_rows, start=start
    )


@gluon.jit
def no_memory(out, TILE: gl.constexpr):
    """An epilogue's shared memory: none."""
    return ()


@gluon.jit
def halves(tiles):
    """Left and right halves of tensors, which lie in registers of the same threads."""
    ROWS: gl.constexpr = tiles[0].shape[0]
    COLUMNS: gl.constexpr = tiles[0].shape[1] // 2
    parts = ()
    for i in gl.static_range(len(tiles)):
        parts += tiles[i].reshape([ROWS, 2, COLUMNS]).permute(0, 2, 1).split()
    return parts


@gluon.jit
def entries_in_results(sums, tile_origin, target, numbers):
    """Addresses of the entries of half a tile in planes of `numbers` rows and columns.

    There is no mask, as planes are padded to whole tiles.
    """
    plane, _, _, row, column = tile_origin
    plane_rows, plane_columns = numbers
    layout: gl.constexpr = sums.type.layout
    first_row = plane * plane_rows + row
    rows = first_row + gl.arange(0, sums.shape[0], gl.SliceLayout(1, layout))
    columns = column + gl.arange(0, sums.shape[1], gl.SliceLayout(0, layout))
    return target + rows[:, None].to(gl.int64) * plane_columns + columns[None, :]


@gluon.jit
def store_sums(
    HALF: gl.constexpr, sums, tile_origin, m, n, out, target, numbers, memory
):
    """The epilogue of sums that are stored as they are."""
    gl.store(entries_in_results(sums, tile_origin, target[0], numbers), sums)


SUMS = Epilogue(store_sums, no_memory)


@gluon.jit
def _make_tile(
    HALF: gl.constexpr,
    ring,
    count,
    lengths,
    tile_origin,
    m,
    n,
    results,
    COLUMNS: gl.constexpr,
    EPILOGUE: gl.constexpr,
    JOINED: gl.constexpr,
):
    """Multiply half of the rows and the first COLUMNS of a tile, and leave the sums to
    the epilogue; the stages that were used until then.
    """
    out, target, numbers, memory = results
    # Triton 3.6 does not compile integer wgmma wider than 224; two of 128 side by side
    # are as fast.
    WIDE: gl.constexpr = COLUMNS if COLUMNS < 128 else 128
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDE, 32]
    )
    l = tile_origin[2]
    sums, count = multiply(ring, count, steps_of(l, lengths), HALF, COLUMNS, layout)
    for part in gl.static_range(1, JOINED):
        sums = EPILOGUE.carry(HALF, sums, part - 1, target)
        steps = steps_of(l + part, lengths)
        sums, count = multiply(ring, count, steps, HALF, COLUMNS, layout, sums)
    EPILOGUE.apply(HALF, sums, tile_origin, m, n, out, target, numbers, memory)
    return count


@gluon.jit
def _consume(
    HALF: gl.constexpr,
    ring,
    results,
    m,
    n,
    tiles,
    num_planes,
    lengths,
    EPILOGUE: gl.constexpr,
    JOINED: gl.constexpr,
    UNEVEN: gl.constexpr,
    TRIANGLE: gl.constexpr,
    TILE: gl.constexpr,
):
    """Multiply half of the rows of each tile, and leave the sums to the epilogue.

    `results` are the map of the result for TMA, what the epilogue is given, and its
    shared memory; all else is as for `produce`.
    """
    tiles_m, tiles_n, total_planes = tiles
    BLOCK_N: gl.constexpr = TILE.block_n
    count = 0
    total = tiles_m * tiles_n * total_planes
    # The tiles of this program in the order of its producer; `count` numbers the
    # stages.
    for index in range(gl.program_id(0), total, gl.num_programs(0)):
        plane, tile_m, tile_n = tile_of_turn(index, tiles, m, UNEVEN, TRIANGLE, TILE)
        z = plane // num_planes
        l = plane % num_planes
        row = tile_m * TILE.block_m + HALF * (TILE.block_m // 2)
        column = tile_n * BLOCK_N
        tile_origin = plane, z, l, row, column
        # A warpgroup without rows releases the stages of the tile, as the other one
        # waits for them.
        if row >= m:
            for part in gl.static_range(JOINED):
                count = skip(ring, count, steps_of(l + part, lengths))
        elif EPILOGUE.has_narrow_tiles:
            # At the right edge no more columns are multiplied than the producer
            # fetches. Each width is a loop of its own, without a condition inside.
            if n - column <= BLOCK_N // 4:
                count = _make_tile(
                    HALF, ring, count, lengths, tile_origin, m, n, results,
                    BLOCK_N // 4, EPILOGUE, JOINED,
                )  # fmt: skip
            elif n - column <= BLOCK_N // 2:
                count = _make_tile(
                    HALF, ring, count, lengths, tile_origin, m, n, results,
                    BLOCK_N // 2, EPILOGUE, JOINED,
                )  # fmt: skip
            else:
                count = _make_tile(
                    HALF, ring, count, lengths, tile_origin, m, n, results,
                    BLOCK_N, EPILOGUE, JOINED,
                )  # fmt: skip
        else:
            # Columns that the producer has not fetched are old ones of the ring. They
            # lie beyond n, and the epilogue leaves their sums out.
            count = _make_tile(
                HALF, ring, count, lengths, tile_origin, m, n, results,
                BLOCK_N, EPILOGUE, JOINED,
            )  # fmt: skip
    # Shared memory has to stay until the last copy is done, if there is one.
    tma.store_wait(0)


def _name(specialization: Any) -> str:
    """The name of a compiled kernel, by which profiles tell it from others."""
    epilogue = specialization.constants["EPILOGUE"].apply
    return f"int8_product_hopper_{epilogue.__name__}"


@gluon.jit(
    do_not_specialize=[
        "m",
        "n",
        "k",
        "total_planes",
        "num_planes",
        "spans",
        "left_rows",
        "right_rows",
        "numbers",
        "part_lengths",
        "predicate",
    ],
    repr=_name,
)
def int8_product_hopper_kernel(
    left,
    right,
    quarter,
    out,
    target,
    numbers,
    m,
    n,
    k,
    total_planes,
    num_planes,
    spans,
    left_rows,
    right_rows,
    part_lengths,
    predicate,
    EPILOGUE: gl.constexpr,
    WIDTH: gl.constexpr,
    JOINED: gl.constexpr,
    UNEVEN: gl.constexpr,
    TRIANGLE: gl.constexpr,
    TILE: gl.constexpr,
):
    """Twin: the exact product left[z, l] right[z, l].T, whose tiles the EPILOGUE takes.

    A TILE has block_m x block_n entries of a plane, half of the rows for each consumer.
    Programs count tiles as in `int8_product_kernel`, and every entry is made by one
    consumer alone. `out` is the map of the result where it is stored by TMA.
    `left_rows` and `right_rows` are the rows from one matrix to the next and from one
    part to the next; `part_lengths` are less_k, max_k and component of `Int8Product`, which
    has all else. With UNEVEN parts are of several lengths. Nothing happens where the
    predicate does not hold.

    JOINED parts follow each other in a tile, and each begins with what `carry` leaves of
    the sums of the one before.
    """
    ring = allocate(left, right, 1, 1, TILE)
    memory = EPILOGUE.allocate(out, TILE)
    tiles_m, tiles_n = tiles_of(m, n, TILE.block_m, TILE.block_n, TRIANGLE)
    # Steps of k of each span. The columns behind k that the last spans may ask for are
    # zeros.
    steps = gl.cdiv(gl.cdiv(k, TILE.block_k), spans)
    less_k, max_k, component = part_lengths
    lengths = steps, 0, steps
    if UNEVEN or JOINED > 1:
        lengths = steps, less_k // TILE.block_k, max_k // TILE.block_k
    total_planes = planes_behind(predicate, total_planes)
    tiles = tiles_m, tiles_n, total_planes
    results = out, target, numbers, memory
    left_operand = left, left_rows[0], left_rows[1]
    right_operand = right, quarter, right_rows[0], right_rows[1]
    UPPER: gl.constexpr = 0
    LOWER: gl.constexpr = 1
    # Two warpgroups of four warps that multiply, and a warp that fills the ring. All
    # three walk over the same tiles in the same order.
    gl.warp_specialize(
        [
            (
                _consume,
                (
                    UPPER, ring, results, m, n, tiles, num_planes, lengths,
                    EPILOGUE, JOINED, UNEVEN, TRIANGLE, TILE,
                ),
            ),
            (
                _consume,
                (
                    LOWER, ring, results, m, n, tiles, num_planes, lengths,
                    EPILOGUE, JOINED, UNEVEN, TRIANGLE, TILE,
                ),
            ),
            (
                produce,
                (
                    left_operand, right_operand, ring, n, tiles, num_planes, lengths,
                    spans, component, WIDTH, JOINED, UNEVEN, TRIANGLE, TILE,
                ),
            ),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip


_product = Launch(int8_product_hopper_kernel)


def launch(
    product: Int8Product,
    left: Rows,
    right: Rows,
    tile: Tile,
    epilogue: Epilogue,
    target: tuple[Any, ...],
    numbers: tuple[int, ...],
    out: TensorMap | None = None,
) -> None:
    """Launch the kernel for Hopper, like `int8_product.launch`.

    Operands are not empty; `out` is the result where the epilogue stores it by TMA.
    """
    left_map, right_map, quarter_map = (
        tensor_map(x.entries, x.rows, x.terms, x.pitch, box, start=x.start)
        for x, box in zip((left, right, right), boxes_of(tile), strict=True)
    )
    _product(
        (num_programs(product, left.entries, tile),),
        left_map,
        right_map,
        quarter_map,
        out,
        target,
        numbers,
        product.m,
        product.n,
        product.k * product.width,
        product.planes,
        product.parts,
        product.spans,
        (left.batch, left.part),
        (right.batch, right.part),
        (product.less_k, product.max_k, product.component),
        product.predicate,
        EPILOGUE=epilogue,
        WIDTH=product.width,
        JOINED=product.joined,
        UNEVEN=product.less_k > 0 and product.joined == 1,
        TRIANGLE=product.triangle,
        TILE=tile,
        num_warps=4,
        enable_fp_fusion=False,
    )
