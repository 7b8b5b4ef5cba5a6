"""Planes of residues as rows of one matrix, which is how TMA reads and writes them.

Plane (z, l) of an operand, matrix z of the batch modulo p_l, starts at row z * batch_rows + l * part_rows.
"""

from __future__ import annotations

import torch

from hifigemm.engines.kernels.launch import TensorMap, tensor_map

__all__ = ["map_of", "map_of_products", "steps_between_planes", "supports"]


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


def map_of(x: torch.Tensor, start: int, length: int, block: tuple[int, int], *, plain: bool = False) -> TensorMap:
    """Columns start .. start + length of the stacked planes of an operand."""
    return tensor_map(x.data_ptr() + start, x.dtype, _rows(x), length, x.stride(2), block, plain)


def map_of_products(out: torch.Tensor, block: tuple[int, int], *, plain: bool = False) -> TensorMap:
    """All planes of a contiguous stack of products."""
    batch, parts, rows, columns = out.shape
    return tensor_map(out.data_ptr(), out.dtype, batch * parts * rows, columns, columns, block, plain)


def steps_between_planes(x: torch.Tensor) -> tuple[int, int]:
    """Rows from one matrix of the batch to the next, 0 where it is broadcast, and from one modulus to the next."""
    batch, part, pitch = x.stride()[:3]
    return (batch // pitch if x.shape[0] > 1 else 0), (part // pitch if x.shape[1] > 1 else 0)
