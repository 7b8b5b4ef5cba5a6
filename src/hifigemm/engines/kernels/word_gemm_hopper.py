"""Products of words on Hopper: `word_gemm` in Gluon, with TMA, wgmma and specialised warps.

Each thread block walks over tiles of the result. One warp loads the words of both operands for a block of k into a
ring in shared memory; two warpgroups of half the rows each multiply, and never wait for each other. A warpgroup holds
three accumulators: P, the main product of the block, which starts from zero; D, the chain of the corrections; S, the
sum of all P. It issues the MMAs of P, then those of D, frees the words of the block before as soon as its corrections
are made, waits for P only and adds it to S while D is being made. The exponents of rows and columns arrive during the
last corrections of a tile; tiles that lie inside the result and have no wide exponents are scaled and stored by a
short path, which takes 3 us less (4 % of a tile at n = 4096).

The order of all operations is that of `word_gemm`, and so are the bits.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from hifigemm.engines.kernels.hopper_ring import tma_load
from hifigemm.engines.kernels.launch import Launch, TensorMap, tensor_map
from hifigemm.engines.kernels.tile_order import place_of
from hifigemm.engines.kernels.tiles import Tile, gpu_of
from hifigemm.engines.kernels.word_gemm import nonfinite_sums, unscaled
from hifigemm.engines.kernels.words import NOT_FINITE, Words
from hifigemm.engines.kernels.words_kernels import losses_in_range

__all__ = ["launch"]

_NOT_FINITE = gl.constexpr(NOT_FINITE)
_CONSUMER_REGISTERS = 232
_PRODUCER_REGISTERS = 40


@gluon.jit
def _produce(
    maps,
    ring,
    rows_of,
    counts,
    LEFT_WORDS: gl.constexpr,
    RIGHT_WORDS: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP_M: gl.constexpr,
    WORD_BYTES: gl.constexpr,
):
    """The warp that loads."""
    HALF: gl.constexpr = BLOCK_M // 2
    BYTES: gl.constexpr = (LEFT_WORDS * BLOCK_M + RIGHT_WORDS * BLOCK_N) * BLOCK_K * WORD_BYTES
    left_map, right_map = maps
    left_ring, right_ring, full, empty = ring
    left_batch_rows, left_word_rows, right_batch_rows, right_word_rows = rows_of
    k_steps, tiles, tiles_m, tiles_n = counts
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        z, at_m, at_n = place_of(tile, tiles_m, tiles_n, GROUP_M)
        left_row = z * left_batch_rows + at_m * BLOCK_M
        right_row = z * right_batch_rows + at_n * BLOCK_N
        for i in range(k_steps):
            stage = step % STAGES
            barrier = full.index(stage)
            mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)
            mbarrier.expect(barrier, BYTES)
            for p in gl.static_range(LEFT_WORDS):
                for half in gl.static_range(2):
                    at = left_row + p * left_word_rows + half * HALF
                    slot = left_ring.index((stage * LEFT_WORDS + p) * 2 + half)
                    tma_load(left_map, [at, i * BLOCK_K], barrier, slot)
            for p in gl.static_range(RIGHT_WORDS):
                at = right_row + p * right_word_rows
                slot = right_ring.index(stage * RIGHT_WORDS + p)
                tma_load(right_map, [at, i * BLOCK_K], barrier, slot)
            step += 1


@gluon.jit
def _uniform(flag):
    """A flag that all threads of a warp share, from the first of them: ptxas sees that branches on it do not diverge.

    Where it does not see that, it keeps what the loop around the branch computes in registers of each thread, and moves
    the descriptors of each MMA to uniform registers: a block of k takes 213 instructions instead of 153.
    """
    shared = gl.inline_asm_elementwise(
        "shfl.sync.idx.b32 $0, $1, 0, 0x1f, 0xffffffff;", "=r,r", [flag.to(gl.int32)], gl.int32, is_pure=True, pack=1
    )
    return shared != 0


@gluon.jit
def _consume(
    HALF_INDEX: gl.constexpr,
    ring,
    target,
    left_side,
    right_side,
    shift,
    low_scale,
    sizes,
    counts,
    LEFT_WORDS: gl.constexpr,
    RIGHT_WORDS: gl.constexpr,
    CHAINED: gl.constexpr,
    IN_FP32: gl.constexpr,
    ADJACENT: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP_M: gl.constexpr,
    MMA_K: gl.constexpr,
):
    """A warpgroup that multiplies: upper or lower half of the rows of each tile."""
    HALF: gl.constexpr = BLOCK_M // 2
    CORRECTIONS: gl.constexpr = LEFT_WORDS + RIGHT_WORDS - 2
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, MMA_K]
    )
    left_ring, right_ring, full, empty = ring
    out, out_batch, out_row, out_col = target
    left_exponents, left_exponents_batch, left_operand, left_operand_batch, left_operand_row, left_operand_k = left_side
    right_exponents, right_exponents_batch, right_operand, right_operand_batch, right_operand_k, right_operand_col = (
        right_side
    )
    m, n, k = sizes
    k_steps, tiles, tiles_m, tiles_n = counts
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        z, at_m, at_n = place_of(tile, tiles_m, tiles_n, GROUP_M)
        total = gl.zeros([HALF, BLOCK_N], gl.float32, layout)
        correction = gl.zeros([HALF, BLOCK_N], gl.float32, layout)
        zero = gl.zeros([HALF, BLOCK_N], gl.float32, layout)
        before = 0
        for i in range(k_steps):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), (step // STAGES) & 1)
            left = left_ring.index(stage * LEFT_WORDS * 2 + HALF_INDEX)
            right = right_ring.index(stage * RIGHT_WORDS).permute((1, 0))
            if CHAINED:
                main = warpgroup_mma(left, right, total, is_async=True)
            else:
                main = warpgroup_mma(left, right, zero, use_acc=False, is_async=True)
            if CORRECTIONS == 0:
                main = warpgroup_mma_wait(0, deps=(main,))
                mbarrier.arrive(empty.index(before), count=1, pred=i > 0)
            else:
                chain = correction
                if LEFT_WORDS == 2:
                    low_left = left_ring.index((stage * LEFT_WORDS + 1) * 2 + HALF_INDEX)
                    chain = warpgroup_mma(low_left, right, chain, is_async=True)
                if RIGHT_WORDS == 2:
                    low_right = right_ring.index(stage * RIGHT_WORDS + 1).permute((1, 0))
                    chain = warpgroup_mma(left, low_right, chain, is_async=True)
                main, chain = warpgroup_mma_wait(CORRECTIONS + 1, deps=(main, chain))
                mbarrier.arrive(empty.index(before), count=1, pred=i > 0)
                main, correction = warpgroup_mma_wait(CORRECTIONS, deps=(main, chain))
            if CHAINED:
                total = main
            else:
                total = total + main
            before = stage
            step += 1
        rows = at_m * BLOCK_M + HALF_INDEX * HALF + gl.arange(0, HALF, gl.SliceLayout(1, layout))
        cols = at_n * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
        row_exponent = gl.load(left_exponents + z * left_exponents_batch + rows, mask=rows < m, other=0) + shift
        col_exponent = gl.load(right_exponents + z * right_exponents_batch + cols, mask=cols < n, other=0)
        # Every warp looks at all rows and columns of its warpgroup, so that warps need not exchange anything.
        again = at_m * BLOCK_M + HALF_INDEX * HALF + gl.arange(0, HALF, gl.SliceLayout(0, layout))
        exponents = gl.load(left_exponents + z * left_exponents_batch + again, mask=again < m, other=0) + shift
        # Where a row or column is marked, its spread is far too wide.
        narrow = _uniform((gl.max(gl.abs(exponents), axis=0) <= 64) & (gl.max(gl.abs(col_exponent), axis=0) <= 126))
        # All of that while the corrections of the last block are being made.
        if CORRECTIONS > 0:
            correction = warpgroup_mma_wait(0, deps=(correction,))
            total = total + correction * low_scale
        mbarrier.arrive(empty.index(before), count=1)
        to = out + z.to(gl.int64) * out_batch + rows[:, None].to(gl.int64) * out_row
        if ADJACENT:
            to = to + cols[None, :]
        else:
            to = to + cols[None, :].to(gl.int64) * out_col
        if IN_FP32 & narrow & (at_m * BLOCK_M + (HALF_INDEX + 1) * HALF <= m) & ((at_n + 1) * BLOCK_N <= n):
            gl.store(to, unscaled(total, row_exponent, col_exponent, True))
        else:
            result = unscaled(total, row_exponent, col_exponent, IN_FP32 & narrow)
            inside = (rows[:, None] < m) & (cols[None, :] < n)
            if left_operand is not None:
                marked = (row_exponent == _NOT_FINITE + shift)[:, None] | (col_exponent == _NOT_FINITE)[None, :]
                gl.store(to, result, mask=inside & (marked == 0))
                least, other = gl.min(exponents, axis=0), gl.min(col_exponent, axis=0)
                if _uniform((least == _NOT_FINITE + shift) | (other == _NOT_FINITE)):
                    at = left_operand + z.to(gl.int64) * left_operand_batch + rows.to(gl.int64) * left_operand_row
                    bt = right_operand + z.to(gl.int64) * right_operand_batch + cols.to(gl.int64) * right_operand_col
                    filled = nonfinite_sums(at, bt, left_operand_k, right_operand_k, rows < m, cols < n, k, zero)
                    gl.store(to, filled, mask=inside & marked)
            else:
                gl.store(to, result, mask=inside)


@gluon.jit(do_not_specialize=["shift", "k_steps", "tiles", "tiles_m", "tiles_n", "loss_from", "loss_to"])
def _corrected_kernel(
    left_map,
    right_map,
    out,
    out_batch,
    out_row,
    out_col,
    left_operand,
    left_operand_batch,
    left_operand_row,
    left_operand_k,
    right_operand,
    right_operand_batch,
    right_operand_k,
    right_operand_col,
    left_exponents,
    left_exponents_batch,
    left_batch_rows,
    left_word_rows,
    right_exponents,
    right_exponents_batch,
    right_batch_rows,
    right_word_rows,
    losses,
    shift,
    low_scale,
    loss_from,
    loss_to,
    m,
    n,
    k,
    k_steps,
    tiles,
    tiles_m,
    tiles_n,
    LEFT_WORDS: gl.constexpr,
    RIGHT_WORDS: gl.constexpr,
    CHAINED: gl.constexpr,
    IN_FP32: gl.constexpr,
    ADJACENT: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP_M: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
):
    """Tiles of the product, as many as there are where the loss of both operands lies in the range asked for."""
    WORD_BYTES: gl.constexpr = left_map.dtype.primitive_bitwidth // 8
    MMA_K: gl.constexpr = 32 // WORD_BYTES
    left_ring = gl.allocate_shared_memory(
        left_map.dtype, [STAGES * LEFT_WORDS * 2, BLOCK_M // 2, BLOCK_K], left_map.layout
    )
    right_ring = gl.allocate_shared_memory(right_map.dtype, [STAGES * RIGHT_WORDS, BLOCK_N, BLOCK_K], right_map.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    if losses is not None:
        tiles = gl.where(losses_in_range(losses, loss_from, loss_to), tiles, 0)
    upper: gl.constexpr = 0
    lower: gl.constexpr = 1
    ring, counts = (left_ring, right_ring, full, empty), (k_steps, tiles, tiles_m, tiles_n)
    rows_of = left_batch_rows, left_word_rows, right_batch_rows, right_word_rows
    target = out, out_batch, out_row, out_col
    left_side = left_exponents, left_exponents_batch, left_operand, left_operand_batch, left_operand_row, left_operand_k
    # fmt: off
    right_side = (right_exponents, right_exponents_batch, right_operand, right_operand_batch, right_operand_k,
                  right_operand_col)
    gl.warp_specialize(
        [
            (_consume, (upper, ring, target, left_side, right_side, shift, low_scale, (m, n, k), counts, LEFT_WORDS,
                        RIGHT_WORDS, CHAINED, IN_FP32, ADJACENT, BLOCK_M, BLOCK_N, STAGES, GROUP_M, MMA_K)),
            (_consume, (lower, ring, target, left_side, right_side, shift, low_scale, (m, n, k), counts, LEFT_WORDS,
                        RIGHT_WORDS, CHAINED, IN_FP32, ADJACENT, BLOCK_M, BLOCK_N, STAGES, GROUP_M, MMA_K)),
            (_produce, ((left_map, right_map), ring, rows_of, counts, LEFT_WORDS, RIGHT_WORDS, BLOCK_M, BLOCK_N,
                        BLOCK_K, STAGES, GROUP_M, WORD_BYTES)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )
    # fmt: on


_launch: Any = Launch(_corrected_kernel)


def _map_of(words: Words, block: tuple[int, int]) -> TensorMap:
    """All words of an operand as one matrix; rows that a tile reads beyond its own end up beyond the result."""
    batch, count, vectors, pitch = words.planes.shape
    return tensor_map(words.planes, batch * count * vectors, pitch, pitch, block)


def _side(words: Words) -> tuple[Any, ...]:
    """The arguments of an operand: exponents, and rows from one matrix and one word to the next."""
    batch, count, vectors, _ = words.planes.shape
    exponents_batch, rows = (vectors, count * vectors) if batch > 1 else (0, 0)
    return words.exponents, exponents_batch, rows, vectors


def _constants(tile: Tile) -> dict[str, int]:
    return {
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "STAGES": tile.stages,
        "GROUP_M": tile.group,
        "CONSUMER_REGISTERS": _CONSUMER_REGISTERS,
        "PRODUCER_REGISTERS": _PRODUCER_REGISTERS,
        "num_warps": 4,
        "enable_fp_fusion": False,
    }


def launch(
    left: Words,
    right: Words,
    out: torch.Tensor,
    tile: Tile,
    *,
    chained: bool,
    in_fp32: bool,
    shift: int,
    predicate: torch.Tensor | None,
    losses: tuple[int, int],
    operands: list[Any],
) -> None:
    """The launch of `word_gemm.word_gemm`; see there."""
    m, n = out.shape[1:]
    tiles_m, tiles_n = -(-m // tile.block_m), -(-n // tile.block_n)
    tiles = out.shape[0] * tiles_m * tiles_n
    _launch(
        (min(tiles, gpu_of(out.device).num_sms),),
        _map_of(left, (tile.block_m // 2, tile.block_k)),
        _map_of(right, (tile.block_n, tile.block_k)),
        out,
        *out.stride(),
        *operands,
        *_side(left),
        *_side(right),
        *(predicate, shift, 2.0**-left.splitting.low_shift, *losses),
        *(m, n, left.k, -(-max(left.k, 1) // tile.block_k), tiles, tiles_m, tiles_n),
        LEFT_WORDS=left.splitting.num_words,
        RIGHT_WORDS=right.splitting.num_words,
        CHAINED=chained,
        IN_FP32=in_fp32,
        ADJACENT=out.stride(2) == 1,
        **_constants(tile),
    )
