"""The product of operands in INT8 slices, scaled and rounded once: schemes.ozaki1 on the device, bit for bit.

C = 2**shift sum_{s < S} 2**(row_exponent + col_exponent - beta s) sum_{p + q = s} A_p B_q in one launch. An INT32
accumulator takes 130944 of k (1023 blocks of 128), |w| <= 128: pairs of a diagonal are added as far as that goes, and
carried on in 64 bits. A diagonal is at most (s + 1) k long, so up to three of them are made side by side while
3 k <= 130944.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from hifigemm.engines.kernels.launch import Launch, empty, operand_arguments
from hifigemm.engines.kernels.slice_product_kernel import slice_product_kernel
from hifigemm.engines.kernels.slices import PITCH, Slices
from hifigemm.engines.kernels.tiles import Gpu, gpu_of
from hifigemm.numerics.slicing import words_of_diagonals

__all__ = ["K_BLOCK", "SliceTile", "slice_product", "tile_for", "valid_tiles"]

K_BLOCK = 1023 * 128
"""Longest sum of INT8 products that INT32 holds, in blocks of 128."""
_TOGETHER = 3
"""Most diagonals that are made side by side."""

_launch = Launch(slice_product_kernel)


@dataclass(frozen=True)
class SliceTile:
    """Block, stages of the pipeline, warps, and rows of tiles in a group; it changes no bits."""

    block_m: int
    block_n: int
    block_k: int
    stages: int
    warps: int
    group: int = 8

    def __str__(self) -> str:
        block = f"{self.block_m}x{self.block_n}x{self.block_k}"
        return f"{block}, {self.stages} stages, {self.warps} warps, groups of {self.group}"


_RATES = {
    True: {
        SliceTile(128, 128, 128, 2, 8): 1.0,
        SliceTile(128, 64, 128, 2, 8): 0.75,
        SliceTile(64, 64, 128, 2, 4): 0.6,
        SliceTile(64, 32, 128, 2, 4): 0.35,
        SliceTile(32, 32, 64, 2, 4): 0.2,
    },
    False: {
        SliceTile(128, 128, 128, 3, 8): 0.9,
        SliceTile(128, 64, 128, 3, 8): 0.6,
        SliceTile(64, 64, 128, 3, 4): 0.45,
        SliceTile(64, 32, 128, 3, 4): 0.25,
        SliceTile(32, 32, 64, 3, 4): 0.15,
    },
}
"""Estimated rates of tiles whose diagonals are made side by side, and one by one, relative to the best."""


def valid_tiles(gpu: Gpu, together: bool) -> dict[SliceTile, float]:
    """The tiles that a GPU has room for, with their estimated rates."""
    slices = 2 * _TOGETHER if together else 2
    ways = 1 if gpu.capability[0] == 9 else 2  # elsewhere the operands of INT8 products pass through registers

    def fits(tile: SliceTile) -> bool:
        shared = tile.stages * slices // 2 * (tile.block_m + tile.block_n) * tile.block_k
        sums = tile.block_m * tile.block_n * (_TOGETHER if together else 3)
        return shared + 1024 <= gpu.shared_per_block and ways * sums <= 32 * tile.warps * 192

    return {tile: rate for tile, rate in _RATES[together].items() if fits(tile)}


@lru_cache(maxsize=4096)
def tile_for(shape: tuple[int, int, int], gpu: Gpu, together: bool) -> SliceTile:
    """The tile with the least predicted time for (batch, m, n), the larger one among equals."""
    batch, m, n = shape
    rates = valid_tiles(gpu, together)

    def cost(tile: SliceTile) -> tuple[float, int]:
        count = batch * -(-m // tile.block_m) * -(-n // tile.block_n)
        area = tile.block_m * tile.block_n
        return -(-count // gpu.num_sms) * area / rates[tile], -area

    return min(rates, key=cost)


def slice_product(
    left: Slices,
    right: Slices,
    out: torch.Tensor,
    k: int,
    *,
    shift: int = 0,
    operands: tuple[torch.Tensor, torch.Tensor] | None = None,
    config: SliceTile | None = None,
) -> None:
    """out = 2**shift times the diagonals s < S of the product, rounded once, on torch's current stream.

    Parameters
    ----------
    left, right : Slices
        S slices of the same bits each.
    out : float32 or float64 tensor (batch, m, n), any strides
    k : int
        Inner dimension.
    shift : int
    operands : tensors (batch or 1, m, k) and (batch or 1, k, n), any strides, or None
        A and B themselves, read where a row or column holds an Inf or NaN; None where there are none.
    config : SliceTile, optional
        Otherwise `tile_for` chooses.
    """
    (_, m, count, pitch), n, beta = left.planes.shape, right.planes.shape[1], left.beta
    words = words_of_diagonals(k, count, beta)
    if words is None:
        raise ValueError(f"two words do not hold {count} diagonals of {beta} bits with k = {k}")
    _check(left, right, out)
    if out.numel() == 0:
        return
    together = count <= _TOGETHER and count * pitch <= K_BLOCK
    gpu = gpu_of(out.device)
    tile = config or tile_for((out.shape[0], m, n), gpu, together)
    tiles_m, tiles_n = -(-m // tile.block_m), -(-n // tile.block_n)
    num_tiles = out.shape[0] * tiles_m * tiles_n
    programs = min(num_tiles, gpu.num_sms * _resident(tile))
    kept = out  # not read where one word holds the sums
    if len(words) == 2:
        kept = empty((programs, tile.block_m, tile.block_n), torch.int64, out)
    sides: list[Any] = []
    for side in (left, right):
        stack = side.planes.shape[0] > 1
        sides += [side.planes, side.planes.stride(0) if stack else 0]
        sides += [side.exponents, side.exponents.stride(0) if stack else 0]
    _launch(
        (programs,),
        *(*sides, out, *out.stride(), kept, *operand_arguments(operands)),
        *(shift, m, n, k, pitch, tiles_m, tiles_n, num_tiles),
        COUNT=count,
        HIGH=words[0],
        BETA=beta,
        TOGETHER=together,
        K_BLOCK=K_BLOCK,
        SINGLE=out.dtype is torch.float32,
        PTX=out.is_cuda and torch.version.hip is None,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        GROUP=tile.group,
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=False,
    )


def _resident(tile: SliceTile) -> int:
    """Programs that a multiprocessor holds at a time, by its registers."""
    return max(1, 256 // (32 * tile.warps)) if tile.block_m * tile.block_n < 128 * 128 else 1


def _check(left: Slices, right: Slices, out: torch.Tensor) -> None:
    """Raise ValueError where `slice_product` does not take these arguments."""
    if left.planes.shape[2:] != right.planes.shape[2:] or left.beta != right.beta or left.planes.shape[3] % PITCH:
        raise ValueError(
            f"slices {tuple(left.planes.shape)} of {left.beta} bits and {tuple(right.planes.shape)} of {right.beta}"
        )
    if out.dtype not in (torch.float32, torch.float64) or out.shape[1:] != (
        left.planes.shape[1],
        right.planes.shape[1],
    ):
        raise ValueError(
            f"a {out.dtype} result of shape {tuple(out.shape)} for {left.planes.shape[1]} x {right.planes.shape[1]}"
        )
    if any(side.planes.shape[0] not in (1, out.shape[0]) for side in (left, right)):
        raise ValueError(f"stacks of {left.planes.shape[0]} and {right.planes.shape[0]} for one of {out.shape[0]}")
