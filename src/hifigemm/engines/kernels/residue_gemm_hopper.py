"""The INT8 residue product for Hopper in Gluon: sums as in `hopper_ring.py`, reduced modulo p and stored by TMA.

Rows beyond m and columns beyond n of a plane are made from what lies behind an operand, and stored: `out` is padded.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from hifigemm.engines.kernels import planes
from hifigemm.engines.kernels.hopper_ring import (
    CONSUMER_REGISTERS,
    PRODUCER_REGISTERS,
    allocate,
    multiply,
    planes_behind,
    produce,
    skip,
    tma_store,
)
from hifigemm.engines.kernels.launch import Launch
from hifigemm.engines.kernels.planes import Blocks
from hifigemm.engines.kernels.residue_gemm import CONSTANTS, REDUCE_PTX
from hifigemm.engines.kernels.tile_order import place_of
from hifigemm.engines.kernels.tiles import Tile

__all__ = ["launch"]


@gluon.jit
def _residues(
    ring,
    count,
    steps,
    old,
    out_columns,
    out_tile,
    row,
    column,
    table,
    HALF: gl.constexpr,
    COLUMNS: gl.constexpr,
    ADD: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Residues of half of the rows and the first columns of the next tile in shared memory; the stages used until then.

    The other columns of `out_tile` are stored as they are: they lie beyond n.
    """
    # Triton 3.6 does not compile integer wgmma wider than 224; two of 128 side by side are as fast.
    WIDE: gl.constexpr = COLUMNS if COLUMNS < 128 else 128
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDE, 32])
    sums, count = multiply(ring, count, steps, HALF, COLUMNS, STAGES, layout)
    if ADD:
        rows = row + gl.arange(0, sums.shape[0], gl.SliceLayout(1, layout))
        columns = column + gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
        sums += gl.load(old + rows[:, None].to(gl.int64) * out_columns + columns[None, :]).to(gl.int32)
    residues = gl.inline_asm_elementwise(
        REDUCE_PTX,
        "=r,r,r,r,r,r,r",
        [sums, gl.load(table), gl.load(table + 1), gl.load(table + 2), gl.load(table + 3), gl.load(table + 4)],
        dtype=gl.int32,
        is_pure=True,
        pack=1,
    )
    tma.store_wait(0)
    out_tile.slice(0, COLUMNS, 1).store(residues.to(gl.int8))
    return count


@gluon.jit
def _consume(
    HALF: gl.constexpr,
    out,
    old,
    constants,
    ring,
    out_tiles,
    m,
    n,
    tiles_m,
    tiles_n,
    steps,
    total_planes,
    num_planes,
    out_rows,
    out_columns,
    ADD: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    GROUP: gl.constexpr,
):
    """Multiply, reduce and store half of the rows of each tile."""
    ROWS: gl.constexpr = BLOCK_M // 2
    out_tile = out_tiles.index(HALF)
    count = 0
    for index in range(gl.program_id(0), tiles_m * tiles_n * total_planes, gl.num_programs(0)):
        plane, tile_m, tile_n = place_of(index, tiles_m, tiles_n, GROUP)
        row = plane * out_rows + tile_m * BLOCK_M + HALF * ROWS
        column = tile_n * BLOCK_N
        table = constants + (plane % num_planes) * CONSTANTS
        if tile_m * BLOCK_M + HALF * ROWS >= m:
            count = skip(ring, count, steps, STAGES)
        else:
            if n - column <= BLOCK_N // 4:
                count = _residues(
                    ring, count, steps, old, out_columns, out_tile, row, column, table, HALF, BLOCK_N // 4, ADD, STAGES
                )
            elif n - column <= BLOCK_N // 2:
                count = _residues(
                    ring, count, steps, old, out_columns, out_tile, row, column, table, HALF, BLOCK_N // 2, ADD, STAGES
                )
            else:
                count = _residues(
                    ring, count, steps, old, out_columns, out_tile, row, column, table, HALF, BLOCK_N, ADD, STAGES
                )
            fence_async_shared()
            tma_store(out, [row, column], out_tile)
    tma.store_wait(0)


_RUN_TIME = ["m", "n", "k", "total_planes", "num_planes", "left_batch", "left_part", "right_batch", "right_part"]
_RUN_TIME += ["out_rows", "out_columns"]


@gluon.jit(do_not_specialize=[*_RUN_TIME, "least", "most"])
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
    left_batch,
    left_part,
    right_batch,
    right_part,
    out_rows,
    out_columns,
    predicate,
    least,
    most,
    ADD: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    GROUP: gl.constexpr,
):
    """out = left right.T mod p for every plane, where the predicate holds; `old` is out's memory, read where ADD."""
    ring = allocate(left, right, STAGES, BLOCK_M, BLOCK_N, BLOCK_K)
    out_tiles = gl.allocate_shared_memory(gl.int8, [2, BLOCK_M // 2, BLOCK_N], out.layout)
    tiles_m = gl.cdiv(m, BLOCK_M)
    tiles_n = gl.cdiv(n, BLOCK_N)
    steps = gl.cdiv(k, BLOCK_K)
    total_planes = planes_behind(predicate, least, most, total_planes)
    UPPER: gl.constexpr = 0
    LOWER: gl.constexpr = 1
    # fmt: off
    gl.warp_specialize(
        [
            (_consume, (UPPER, out, old, constants, ring, out_tiles, m, n, tiles_m, tiles_n, steps, total_planes,
                        num_planes, out_rows, out_columns, ADD, STAGES, BLOCK_M, BLOCK_N, GROUP)),
            (_consume, (LOWER, out, old, constants, ring, out_tiles, m, n, tiles_m, tiles_n, steps, total_planes,
                        num_planes, out_rows, out_columns, ADD, STAGES, BLOCK_M, BLOCK_N, GROUP)),
            (produce, (left, right, quarter, ring, n, tiles_m, tiles_n, steps, total_planes, num_planes, left_batch,
                       left_part, right_batch, right_part, 0, 1, STAGES, BLOCK_M, BLOCK_N, GROUP)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )
    # fmt: on


_product = Launch(_hopper_kernel)


def _constants(tile: Tile) -> dict[str, int]:
    """The constexpr arguments but ADD, and the option, that go with a tile."""
    return {
        "STAGES": tile.stages,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "GROUP": tile.group,
        "num_warps": 4,
    }


def _blocks(tile: Tile) -> Blocks:
    """Half of the rows goes to each consumer; the right operand comes in tiles or, at the edge, in quarters of one."""
    half, right = tile.block_m // 2, ((tile.block_n, tile.block_k), (tile.block_n // 4, tile.block_k))
    return (half, tile.block_k), right, (half, tile.block_n)


def launch(
    operands: tuple[torch.Tensor, ...], out: torch.Tensor, tile: Tile, k_block: int, predicate: tuple[Any, int, int]
) -> None:
    """See `planes.launch`."""
    planes.launch(_product, _blocks(tile), _constants(tile), operands, out, tile, k_block, predicate, plain=False)
