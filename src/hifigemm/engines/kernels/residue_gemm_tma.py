"""The INT8 residue product for Hopper in plain Triton with loads and stores by TMA, where Gluon does not compile.

It needs neither addresses nor masks, so that one warpgroup holds the 128 x 128 sums of a tile and two tiles share a
multiprocessor: Triton 3.6 waits for every integer MMA, which the other tile's fill. On an H200 at n = 4096 it made 1298
TOP/s sustained, the kernel of `residue_gemm.py` 1169 in the same run, with two warpgroups a tile 1242.

Rows beyond m and columns beyond n of a plane are made from what lies behind an operand, and stored: `out` is padded.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels import planes
from hifigemm.engines.kernels.launch import Launch
from hifigemm.engines.kernels.planes import Blocks
from hifigemm.engines.kernels.residue_gemm import CONSTANTS, holds, reduce_ptx
from hifigemm.engines.kernels.tile_order import place_of
from hifigemm.engines.kernels.tiles import Tile

__all__ = ["launch"]

_RUN_TIME = ["m", "n", "k", "total_planes", "num_planes", "left_batch", "left_part", "right_batch", "right_part"]
_RUN_TIME += ["out_rows"]


@triton.jit(do_not_specialize=[*_RUN_TIME, "least", "most"])
def _tma_kernel(
    left,
    right,
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
    ADD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """out = left right.T mod p for every plane, where the predicate holds; `old` is out's memory, read where ADD."""
    if predicate is not None:  # noqa: SIM102
        if not holds(predicate, least, most):
            return
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    steps = tl.cdiv(k, BLOCK_K)
    for index in range(tl.program_id(0), tiles_m * tiles_n * total_planes, tl.num_programs(0)):
        plane, tile_m, tile_n = place_of(index, tiles_m, tiles_n, GROUP)
        z = plane // num_planes
        l = plane % num_planes
        left_row = z * left_batch + l * left_part + tile_m * BLOCK_M
        right_row = z * right_batch + l * right_part + tile_n * BLOCK_N
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
        for step in range(steps):
            x = left.load([left_row, step * BLOCK_K])
            y = right.load([right_row, step * BLOCK_K])
            sums = tl.dot(x, y.T, sums, out_dtype=tl.int32)
        row = plane * out_rows + tile_m * BLOCK_M
        column = tile_n * BLOCK_N
        if ADD:
            rows = (row + tl.arange(0, BLOCK_M)).to(tl.int64)
            sums += tl.load(old + rows[:, None] * out_columns + column + tl.arange(0, BLOCK_N)[None, :]).to(tl.int32)
        out.store([row, column], reduce_ptx(sums, constants + l * CONSTANTS))


_product = Launch(_tma_kernel)


def _constants(tile: Tile) -> dict[str, int]:
    """The constexpr arguments but ADD, and the options, that go with a tile."""
    blocks = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "GROUP": tile.group}
    return blocks | {"num_warps": tile.warps, "num_stages": tile.stages}


def _blocks(tile: Tile) -> Blocks:
    return (tile.block_m, tile.block_k), ((tile.block_n, tile.block_k),), (tile.block_m, tile.block_n)


def launch(
    operands: tuple[torch.Tensor, ...], out: torch.Tensor, tile: Tile, k_block: int, predicate: tuple[Any, int, int]
) -> None:
    """See `planes.launch`."""
    planes.launch(_product, _blocks(tile), _constants(tile), operands, out, tile, k_block, predicate, plain=True)
