"""Planes of residues as rows of one matrix, which is how TMA reads and writes them.

Plane (z, l) of an operand, matrix z of the batch modulo p_l, starts at row z * batch_rows + l * part_rows.
"""

from __future__ import annotations

from typing import Any

import torch

from hifigemm.engines.kernels.launch import Launch, TensorMap, tensor_map
from hifigemm.engines.kernels.tiles import ProductShape, Tile, gpu_of, grid_size

__all__ = ["Blocks", "launch", "supports"]

Block = tuple[int, int]
Blocks = tuple[Block, tuple[Block, ...], Block]
"""What TMA moves at a time: of the left operand, of the right one in one way or several, of the products."""


def supports(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether TMA can move these operands and products, (batch, part, vector, entry), in tiles of 128 x 256."""
    whole = out.is_contiguous() and out.shape[2] % 128 == 0 and out.shape[3] % 256 == 0 and out.data_ptr() % 16 == 0
    return whole and out.shape[0] * out.shape[1] * out.shape[2] < 2**31 and _is_stacked(left) and _is_stacked(right)


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


def _map_of(x: torch.Tensor, start: int, length: int, block: Block, plain: bool) -> TensorMap:
    """Columns start .. start + length of the stacked planes of an operand."""
    return tensor_map(x, _rows(x), length, x.stride(2), block, start=start, plain=plain)


def _steps_between_planes(x: torch.Tensor) -> tuple[int, int]:
    """Rows from one matrix of the batch to the next, 0 where it is broadcast, and from one modulus to the next."""
    batch, part, pitch = x.stride()[:3]
    return (batch // pitch if x.shape[0] > 1 else 0), (part // pitch if x.shape[1] > 1 else 0)


def launch(
    product: Launch,
    blocks: Blocks,
    constants: dict[str, int],
    operands: tuple[torch.Tensor, ...],
    out: torch.Tensor,
    tile: Tile,
    k_block: int,
    predicate: tuple[Any, int, int],
    *,
    plain: bool,
) -> None:
    """The launches of `residue_gemm.residue_gemm` for non-empty operands that `supports` accepts.

    `operands` are those on the left and right, and the constants of the moduli; `plain` as for `tensor_map`.
    """
    left, right, table = operands
    (_, parts, m, k), n = left.shape, right.shape[2]
    batch, _, rows, columns = out.shape
    planes, (left_block, right_blocks, out_block) = batch * parts, blocks
    target = tensor_map(out, planes * rows, columns, columns, out_block, plain=plain)
    grid = (grid_size(tile, ProductShape(m, n, k, planes), gpu_of(left.device)),)
    for start in range(0, k, k_block):
        length = min(k_block, k - start)
        product(
            grid,
            _map_of(left, start, length, left_block, plain),
            *(_map_of(right, start, length, block, plain) for block in right_blocks),
            *(target, out, table, m, n, length, planes, parts),
            *(*_steps_between_planes(left), *_steps_between_planes(right), rows, columns, *predicate),
            ADD=start > 0,
            **constants,
        )
