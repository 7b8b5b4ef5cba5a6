"""The INT8 residue product for Hopper in Gluon: sums as in `hopper_ring.py`, reduced
modulo p and stored by TMA.

The diagonals of slices are made by the same kernel and stored as INT32; part l is a
diagonal of `num_planes` - l pairs.

TMA reads and writes planes of residues as rows of one matrix: plane (z, l) of an
operand, matrix z of the batch modulo p_l, starts at row z * batch_rows + l * part_rows.
Rows beyond m and columns beyond n of a plane are made from what lies behind an operand,
and stored: `out` is padded.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

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
    tma_store,
)
from hifigemm.kernels.products.residue_gemm import CONSTANTS, Reduction, reduce_ptx
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import NO_PREDICATE, tiles_of
from hifigemm.kernels.runtime.launch import Launch, tensor_map
from hifigemm.kernels.runtime.tiles import ProductShape, Tile, gpu_of, grid_size


@gluon.jit
def _entries(
    HALF: gl.constexpr,
    ring,
    count,
    steps,
    target,
    table,
    COLUMNS: gl.constexpr,
    ADD: gl.constexpr,
    DIAGONALS: gl.constexpr,
):
    """Store the next tile's residues, or its sums; the stages that were used until
    then.

    The tile is half of the rows and the first COLUMNS. `target` are the memory of the
    result and its columns, room for residues in shared memory, and the first row and
    column of the tile. Residues go to shared memory, whose other columns are stored as
    they are: they lie beyond n. Sums of diagonals go to global memory.
    """
    old, out_columns, out_tile, row, column = target
    # Triton 3.6 does not compile integer wgmma wider than 224; two of 128 side by side
    # are as fast.
    WIDE: gl.constexpr = COLUMNS if COLUMNS < 128 else 128
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDE, 32]
    )
    sums, count = multiply(ring, count, steps, HALF, COLUMNS, layout)
    # Where sums of diagonals go, and residues of earlier blocks of k come from: written
    # by the launch before, and in this one by this warpgroup alone, later. There is no
    # mask, as `out` is padded to whole tiles.
    rows = row + gl.arange(0, sums.shape[0], gl.SliceLayout(1, layout))
    columns = column + gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    address = old + rows[:, None].to(gl.int64) * out_columns + columns[None, :]
    if DIAGONALS:
        gl.store(address, sums)
    else:
        if ADD:
            sums += gl.load(address).to(gl.int32)
        residues = reduce_ptx(sums, table)
        # The copy of the tile before this one has read what is written now.
        tma.store_wait(0)
        out_tile.slice(0, COLUMNS, 1).store(residues.to(gl.int8))
    return count


@gluon.jit
def _consume(
    HALF: gl.constexpr,
    ring,
    results,
    constants,
    m,
    n,
    tiles,
    num_planes,
    lengths,
    ADD: gl.constexpr,
    DIAGONALS: gl.constexpr,
    TRIANGLE: gl.constexpr,
    TILE: gl.constexpr,
):
    """Multiply, reduce and store half of the rows of each tile.

    `results` are the map of the result for TMA, its memory, room for tiles in shared
    memory, and the rows and columns of a plane; all else is as for `produce`.
    """
    out, old, out_tiles, out_rows, out_columns = results
    tiles_m, tiles_n, total_planes = tiles
    BLOCK_M: gl.constexpr = TILE.block_m
    BLOCK_N: gl.constexpr = TILE.block_n
    ROWS: gl.constexpr = BLOCK_M // 2
    out_tile = out_tiles.index(HALF)
    count = 0
    total = tiles_m * tiles_n * total_planes
    # The tiles of this program in the order of its producer; `count` numbers the
    # stages.
    for index in range(gl.program_id(0), total, gl.num_programs(0)):
        plane, tile_m, tile_n = tile_of_turn(index, tiles, m, DIAGONALS, TRIANGLE, TILE)
        l = plane % num_planes
        steps = steps_of(l, lengths)
        row = plane * out_rows + tile_m * BLOCK_M + HALF * ROWS
        column = tile_n * BLOCK_N
        table = constants
        if not DIAGONALS:
            table += l * CONSTANTS
        target = old, out_columns, out_tile, row, column
        # A warpgroup without rows releases the stages of the tile, as the other one
        # waits for them.
        if tile_m * BLOCK_M + HALF * ROWS >= m:
            count = skip(ring, count, steps)
        else:
            # At the right edge no more columns are multiplied than the producer
            # fetches. Each width is a loop of its own, without a condition inside.
            if n - column <= BLOCK_N // 4:
                count = _entries(
                    HALF,
                    ring,
                    count,
                    steps,
                    target,
                    table,
                    BLOCK_N // 4,
                    ADD,
                    DIAGONALS,
                )
            elif n - column <= BLOCK_N // 2:
                count = _entries(
                    HALF,
                    ring,
                    count,
                    steps,
                    target,
                    table,
                    BLOCK_N // 2,
                    ADD,
                    DIAGONALS,
                )
            else:
                count = _entries(
                    HALF, ring, count, steps, target, table, BLOCK_N, ADD, DIAGONALS
                )
            if not DIAGONALS:
                # TMA sees what threads wrote to shared memory after the fence alone.
                fence_async_shared()
                tma_store(out, [row, column], out_tile)
    # Shared memory has to stay until the last copy is done.
    if not DIAGONALS:
        tma.store_wait(0)


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
        "out_shape",
        "parts",
        "predicate",
    ]
)
def _hopper_kernel(
    left,
    right,
    quarter,
    out,
    old,
    constants,
    m,
    n,
    k,
    total_planes,
    num_planes,
    spans,
    left_rows,
    right_rows,
    out_shape,
    parts,
    predicate,
    ADD: gl.constexpr,
    DIAGONALS: gl.constexpr,
    TRIANGLE: gl.constexpr,
    TILE: gl.constexpr,
):
    """Twin: numerics.residue_products.residue_gemm, any representatives.

    out = left right.T mod p for every plane, where the predicate holds; `old` is out's
    memory, read where ADD. A TILE has block_m x block_n entries of a plane, half of the
    rows for each consumer. `left_rows` and `right_rows` are the rows from one matrix to
    the next and from one part to the next, `out_shape` rows and columns of a plane. k is
    cut into `spans` of as many steps, each of which is a plane of `out`; those of a
    matrix follow each other.

    With DIAGONALS the sums themselves go to `old`; `out` and `constants` are not used.
    `parts` are less_k and max_k: part l takes l less_k columns less than part 0, those
    on the right begin as many further right, and max_k at most.
    """
    ring = allocate(left, right, 1, 1, TILE)
    # Residues on their way to TMA; the ring stands for tiles that are not used.
    out_tiles = ring[0]
    if not DIAGONALS:
        out_tiles = gl.allocate_shared_memory(
            gl.int8, [2, TILE.block_m // 2, TILE.block_n], out.layout
        )
    tiles_m, tiles_n = tiles_of(m, n, TILE.block_m, TILE.block_n, TRIANGLE)
    # Columns behind k, which the last spans may ask for, are zeros.
    steps = gl.cdiv(gl.cdiv(k, TILE.block_k), spans)
    # All parts have the same length, or the diagonals of slices grow shorter.
    lengths = steps, 0, steps
    component = 0
    if DIAGONALS:
        less_k, max_k = parts
        lengths = steps, less_k // TILE.block_k, max_k // TILE.block_k
        component = less_k
    total_planes = planes_behind(predicate, total_planes)
    tiles = tiles_m, tiles_n, total_planes
    results = out, old, out_tiles, out_shape[0], out_shape[1]
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
                    UPPER, ring, results, constants, m, n, tiles, num_planes, lengths,
                    ADD, DIAGONALS, TRIANGLE, TILE,
                ),
            ),
            (
                _consume,
                (
                    LOWER, ring, results, constants, m, n, tiles, num_planes, lengths,
                    ADD, DIAGONALS, TRIANGLE, TILE,
                ),
            ),
            (
                produce,
                (
                    left_operand, right_operand, ring, n, tiles, num_planes, lengths,
                    spans, component, 1, DIAGONALS, TRIANGLE, TILE,
                ),
            ),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip


_product = Launch(_hopper_kernel)


def supports(left: Buffer, right: Buffer, out: Buffer) -> bool:
    """True if TMA can move these operands and products in tiles of 128 x 256.

    Their axes are (batch, part, vector, entry).
    """
    whole = (
        out.is_contiguous()
        and out.shape[2] % 128 == 0
        and out.shape[3] % 256 == 0
        and out.data_ptr() % 16 == 0
    )
    return (
        whole
        and out.shape[0] * out.shape[1] * out.shape[2] < 2**31
        and _is_stacked(left)
        and _is_stacked(right)
    )


def _is_stacked(x: Buffer) -> bool:
    """True if the planes of an operand are rows of one matrix that TMA can read."""
    batch, part, pitch, unit = x.stride()
    if unit != 1 or pitch <= 0 or pitch % 16 or x.data_ptr() % 16:
        return False
    whole = all(
        s % pitch == 0 and s >= 0
        for s, size in ((batch, x.shape[0]), (part, x.shape[1]))
        if size > 1
    )
    return whole and pitch < 2**32 and _rows(x) < 2**31


def _rows(x: Buffer) -> int:
    """Rows of the matrix in which the planes of an operand are stacked."""
    return (
        sum(
            (size - 1) * step
            for size, step in zip(x.shape[:2], _steps_between_planes(x), strict=True)
        )
        + x.shape[2]
    )


def _steps_between_planes(x: Buffer) -> tuple[int, int]:
    """Rows from one matrix of the batch to the next, and from one modulus to the next.

    The first is 0 where the batch is broadcast.
    """
    batch, part, pitch = x.stride()[:3]
    return (batch // pitch if x.shape[0] > 1 else 0), (
        part // pitch if x.shape[1] > 1 else 0
    )


def launch(
    left: Buffer,
    right: Buffer,
    out: Buffer,
    tile: Tile,
    reduction: Reduction,
    k_block: int,
) -> None:
    """Make the launches of `residue_gemm.residue_gemm`, whose spans are matrices of
    `out`.

    Operands are not empty, and `supports` accepts them.
    """
    _, parts, m, k = left.shape
    n = right.shape[2]
    stack, _, rows, columns = out.shape
    planes = stack * parts
    boxes = boxes_of(tile)
    spans = reduction.spans
    target = tensor_map(
        out, planes * rows, columns, columns, (tile.block_m // 2, tile.block_n)
    )
    grid = (grid_size(tile, ProductShape(m, n, k, planes), gpu_of(left.device)),)
    for start in range(0, k, spans * k_block):
        length = min(spans * k_block, k - start)
        left_map, right_map, quarter_map = (
            tensor_map(x, _rows(x), length, x.stride(2), box, start=start)
            for x, box in zip((left, right, right), boxes, strict=True)
        )
        _product(
            grid,
            left_map,
            right_map,
            quarter_map,
            target,
            out,
            reduction.constants,
            m,
            n,
            length,
            planes,
            parts,
            spans,
            _steps_between_planes(left),
            _steps_between_planes(right),
            (rows, columns),
            (0, 0),
            reduction.predicate,
            ADD=start > 0,
            DIAGONALS=False,
            TRIANGLE=reduction.triangle,
            TILE=tile,
            num_warps=4,
        )


def launch_diagonals(
    left: Buffer,
    right: Buffer,
    out: Buffer,
    start: int,
    tile: Tile,
    k_block: int,
) -> None:
    """Make the launch of `residue_gemm.diagonals`.

    It takes the pairs from the column `start` of the slices on.
    """
    batch, parts, rows, columns = out.shape
    _, m, count, pitch = left.shape
    n = right.shape[1]
    planes = batch * parts
    length = count * pitch - start
    left_map, right_map, quarter_map = (
        tensor_map(x, x.shape[0] * x.shape[1], length, count * pitch, box, start=start)
        for x, box in zip((left, right, right), boxes_of(tile), strict=True)
    )
    left_batch, right_batch = (
        x.shape[1] if x.shape[0] > 1 else 0 for x in (left, right)
    )
    shape = ProductShape(m, n, length, planes)
    _product(
        (grid_size(tile, shape, gpu_of(left.device)),),
        left_map,
        right_map,
        quarter_map,
        out,  # which stands for a map and for constants that are not used
        out,
        out,
        m,
        n,
        length,
        planes,
        parts,
        1,
        (left_batch, 0),
        (right_batch, 0),
        (rows, columns),
        (pitch, k_block),
        NO_PREDICATE,
        ADD=False,
        DIAGONALS=True,
        TRIANGLE=False,
        TILE=tile,
        num_warps=4,
    )
