"""The INT8 residue product for Hopper in Gluon: warp specialised, TMA in and out, wgmma, persistent.

A program keeps a ring of stages in shared memory. One producer warp fills it by TMA; two consumer warpgroups, half of
the rows of the tile each, multiply and never wait for each other, so that one reduces and stores its tile while the
other multiplies. A stage is released when the wgmmas of the next stage have been issued and its own are done.

Operands are seen as matrices with a row for each vector of each plane: plane (z, l) starts at row
z * batch_rows + l * part_rows. Rows beyond m or n of a plane belong to the next plane and reach only outputs beyond
[:m, :n]; columns beyond k_pitch and rows beyond the view are zeros, and count as received bytes.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from hifigemm.engines.kernels.int8_product import CONSTANTS, REDUCE_PTX
from hifigemm.engines.kernels.launch import Address, BoundLaunch, Launch, TensorMap, tensor_map
from hifigemm.engines.kernels.tiles import ProductShape, Tile, gpu_of, grid_size, valid_tiles

__all__ = ["compile_for", "launches", "supports"]

_CONSUMER_REGISTERS = 232
_PRODUCER_REGISTERS = 40


@gluon.jit
def _tile_of(index, tiles_m, tiles_n, GROUP: gl.constexpr):
    """Plane and tile indices of a running number; tiles of a plane go down GROUP rows before the next column."""
    tiles = tiles_m * tiles_n
    plane = index // tiles
    tile = index - plane * tiles
    first = tile // (GROUP * tiles_n) * GROUP
    rows = gl.minimum(tiles_m - first, GROUP)
    inner = tile % (GROUP * tiles_n)
    return plane, first + inner % rows, inner // rows


@gluon.jit
def _produce(
    left,
    right,
    left_ring,
    right_ring,
    full,
    empty,
    tiles_m,
    tiles_n,
    steps,
    num_planes,
    num_parts,
    left_batch,
    left_part,
    right_batch,
    right_part,
    STAGES: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    GROUP: gl.constexpr,
):
    """Fill the ring, one step of k after the other, over all tiles of this program."""
    count = 0
    for index in range(gl.program_id(0), tiles_m * tiles_n * num_planes, gl.num_programs(0)):
        plane, tile_m, tile_n = _tile_of(index, tiles_m, tiles_n, GROUP)
        z = plane // num_parts
        l = plane - z * num_parts
        row = z * left_batch + l * left_part + tile_m * BLOCK_M
        column = z * right_batch + l * right_part + tile_n * BLOCK_N
        for step in range(steps):
            stage = count % STAGES
            mbarrier.wait(empty.index(stage), ((count // STAGES) & 1) ^ 1)
            ready = full.index(stage)
            mbarrier.expect(ready, (BLOCK_M + BLOCK_N) * BLOCK_K)
            at = step * BLOCK_K
            tma.async_copy_global_to_shared(left, [row, at], ready, left_ring.index(stage * 2))
            tma.async_copy_global_to_shared(left, [row + BLOCK_M // 2, at], ready, left_ring.index(stage * 2 + 1))
            tma.async_copy_global_to_shared(right, [column, at], ready, right_ring.index(stage))
            count += 1


@gluon.jit
def _consume(
    HALF: gl.constexpr,
    out,
    old,
    constants,
    left_ring,
    right_ring,
    out_tiles,
    full,
    empty,
    tiles_m,
    tiles_n,
    steps,
    num_planes,
    num_parts,
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
    # Triton 3.6 does not compile integer wgmma wider than 224; two of 128 side by side are as fast.
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 32])
    count = 0
    for index in range(gl.program_id(0), tiles_m * tiles_n * num_planes, gl.num_programs(0)):
        plane, tile_m, tile_n = _tile_of(index, tiles_m, tiles_n, GROUP)
        row = plane * out_rows + tile_m * BLOCK_M + HALF * ROWS
        sums = gl.zeros([ROWS, BLOCK_N], gl.int32, layout)
        previous = count % STAGES
        mbarrier.wait(full.index(previous), (count // STAGES) & 1)
        token = warpgroup_mma(
            left_ring.index(previous * 2 + HALF),
            right_ring.index(previous).permute((1, 0)),
            sums,
            use_acc=False,
            is_async=True,
        )
        sums = warpgroup_mma_wait(1, deps=(token,))
        count += 1
        for _ in range(1, steps):
            stage = count % STAGES
            mbarrier.wait(full.index(stage), (count // STAGES) & 1)
            token = warpgroup_mma(
                left_ring.index(stage * 2 + HALF), right_ring.index(stage).permute((1, 0)), sums, is_async=True
            )
            sums = warpgroup_mma_wait(1, deps=(token,))
            mbarrier.arrive(empty.index(previous), count=1)
            previous = stage
            count += 1
        sums = warpgroup_mma_wait(0, deps=(sums,))
        mbarrier.arrive(empty.index(previous), count=1)
        if ADD:
            rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
            columns = tile_n * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
            sums += gl.load(old + rows[:, None].to(gl.int64) * out_columns + columns[None, :]).to(gl.int32)
        table = constants + (plane % num_parts) * CONSTANTS
        residues = gl.inline_asm_elementwise(
            REDUCE_PTX,
            "=r,r,r,r,r,r,r",
            [sums, gl.load(table), gl.load(table + 1), gl.load(table + 2), gl.load(table + 3), gl.load(table + 4)],
            dtype=gl.int32,
            is_pure=True,
            pack=1,
        )
        tma.store_wait(0)
        out_tiles.index(HALF).store(residues.to(gl.int8))
        fence_async_shared()
        tma.async_copy_shared_to_global(out, [row, tile_n * BLOCK_N], out_tiles.index(HALF))
    tma.store_wait(0)


_RUN_TIME = ["m", "n", "k", "num_planes", "num_parts", "left_batch", "left_part", "right_batch", "right_part"]
_RUN_TIME += ["out_rows", "out_columns"]


@gluon.jit(do_not_specialize=_RUN_TIME)
def _hopper_kernel(
    left,
    right,
    out,
    old,
    constants,
    m,
    n,
    k,
    num_planes,
    num_parts,
    left_batch,
    left_part,
    right_batch,
    right_part,
    out_rows,
    out_columns,
    ADD: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    GROUP: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
):
    """out = left right.T mod p for every plane; `old` is the memory of out, read where ADD."""
    left_ring = gl.allocate_shared_memory(gl.int8, [STAGES * 2, BLOCK_M // 2, BLOCK_K], left.layout)
    right_ring = gl.allocate_shared_memory(gl.int8, [STAGES, BLOCK_N, BLOCK_K], right.layout)
    out_tiles = gl.allocate_shared_memory(gl.int8, [2, BLOCK_M // 2, BLOCK_N], out.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    tiles_m = gl.cdiv(m, BLOCK_M)
    tiles_n = gl.cdiv(n, BLOCK_N)
    steps = gl.cdiv(k, BLOCK_K)
    UPPER: gl.constexpr = 0
    LOWER: gl.constexpr = 1
    # fmt: off
    gl.warp_specialize(
        [
            (_consume, (UPPER, out, old, constants, left_ring, right_ring, out_tiles, full, empty, tiles_m, tiles_n,
                        steps, num_planes, num_parts, out_rows, out_columns, ADD, STAGES, BLOCK_M, BLOCK_N, GROUP)),
            (_consume, (LOWER, out, old, constants, left_ring, right_ring, out_tiles, full, empty, tiles_m, tiles_n,
                        steps, num_planes, num_parts, out_rows, out_columns, ADD, STAGES, BLOCK_M, BLOCK_N, GROUP)),
            (_produce, (left, right, left_ring, right_ring, full, empty, tiles_m, tiles_n, steps, num_planes, num_parts,
                        left_batch, left_part, right_batch, right_part, STAGES, BLOCK_M, BLOCK_N, BLOCK_K, GROUP)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )
    # fmt: on


_product = Launch(_hopper_kernel)


def _is_stacked(x: torch.Tensor) -> bool:
    """Whether the planes of an operand are rows of one matrix that TMA can read."""
    batch, part, pitch, unit = x.stride()
    if unit != 1 or pitch <= 0 or pitch % 16 or x.data_ptr() % 16:
        return False
    whole = all(s % pitch == 0 and s >= 0 for s, size in ((batch, x.shape[0]), (part, x.shape[1])) if size > 1)
    return whole and pitch < 2**32 and _rows(x) < 2**31


def _rows(x: torch.Tensor) -> int:
    """Rows of the matrix in which the planes of an operand are stacked."""
    pitch = x.stride(2)
    return sum((size - 1) * (stride // pitch) for size, stride in zip(x.shape[:2], x.stride()[:2])) + x.shape[2]


def supports(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether `launches` can take these tensors; the plain kernel takes all."""
    whole = out.is_contiguous() and out.shape[2] % 128 == 0 and out.shape[3] % 256 == 0 and out.data_ptr() % 16 == 0
    return whole and out.shape[0] * out.shape[1] * out.shape[2] < 2**31 and _is_stacked(left) and _is_stacked(right)


def _map_of(x: torch.Tensor, start: int, length: int, block: tuple[int, int]) -> TensorMap:
    """Columns start .. start + length of the stacked planes of an operand."""
    return tensor_map(x.data_ptr() + start, x.dtype, _rows(x), length, x.stride(2), block)


def _steps_between_planes(x: torch.Tensor) -> tuple[int, int]:
    """Rows from one matrix of the batch to the next, 0 where it is broadcast, and from one modulus to the next."""
    batch, part, pitch = x.stride()[:3]
    return (batch // pitch if x.shape[0] > 1 else 0), (part // pitch if x.shape[1] > 1 else 0)


def _constants(tile: Tile) -> dict[str, int]:
    """The constexpr arguments but ADD, and the option, that go with a tile."""
    return {
        "STAGES": tile.stages,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "GROUP": tile.group,
        "CONSUMER_REGISTERS": _CONSUMER_REGISTERS,
        "PRODUCER_REGISTERS": _PRODUCER_REGISTERS,
        "num_warps": 4,
    }


def compile_for(device: torch.device) -> None:
    """Compile the kernel for a device without a launch, which raises where this Triton's Gluon is another one."""
    tile = next(tile for tile in valid_tiles(gpu_of(device)) if tile.kernel == "hopper")
    half, byte = tile.block_m // 2, torch.int8
    blocks = (half, tile.block_k), (tile.block_n, tile.block_k), (half, tile.block_n)
    maps = [tensor_map(1 << 20, byte, 256, 256, 256, block).host for block in blocks]
    pointers = Address(1 << 20, byte), Address(1 << 20, torch.int32)
    with torch.cuda.device(device):
        _hopper_kernel.warmup(*maps, *pointers, *[256] * len(_RUN_TIME), grid=(1,), ADD=False, **_constants(tile))


def launches(
    left: torch.Tensor, right: torch.Tensor, constants: torch.Tensor, out: torch.Tensor, tile: Tile, k_block: int
) -> Iterator[BoundLaunch]:
    """What `int8_product.multiply_residues` launches for non-empty operands that `supports` accepts."""
    (_, parts, m, k), n = left.shape, right.shape[2]
    batch, _, out_rows, out_columns = out.shape
    planes, half = batch * parts, tile.block_m // 2
    target = tensor_map(out.data_ptr(), out.dtype, planes * out_rows, out_columns, out_columns, (half, tile.block_n))
    grid = (grid_size(tile, ProductShape(m, n, k, planes), gpu_of(left.device)),)
    for start in range(0, k, k_block):
        length = min(k_block, k - start)
        yield _product.bind(
            grid,
            _map_of(left, start, length, (half, tile.block_k)),
            _map_of(right, start, length, (tile.block_n, tile.block_k)),
            *(target, out, constants, m, n, length, planes, parts),
            *(*_steps_between_planes(left), *_steps_between_planes(right), out_rows, out_columns),
            ADD=start > 0,
            **_constants(tile),
        )
