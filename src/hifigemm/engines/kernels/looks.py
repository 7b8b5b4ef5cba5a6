"""What the operands of Ozaki scheme II tell before they are multiplied: how many moduli every entry needs.

The GPU's version of schemes.promise.error_ratio, with the same float64 as its result, and of
numerics.scaling.norm_scale on the way: one pass over the operands for the sizes of their vectors, one for magnitudes of
7 bits, one INT8 product whose entries leave nothing behind but their largest ratio. All sums are sums of integers.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from hifigemm.engines.kernels import looks_kernels as kernels
from hifigemm.engines.kernels.launch import Launch, empty
from hifigemm.engines.kernels.vectors import VectorScale
from hifigemm.engines.kernels.vectors_constants import vector_constants
from hifigemm.numerics.estimates import MAGNITUDE_TERMS
from hifigemm.numerics.residues import ModuliSet

__all__ = ["Look", "error_ratio"]

_BLOCK = 256
_VECTORS = 8, 16
"""Vectors of a tile along whose k entries lie side by side, and of one across."""
_SCALE = 2.0**-16
"""Sums and norms are in units of 2**-15 each, magnitudes of 2**-7."""

_sizes = Launch(kernels.sizes_kernel)
_join = Launch(kernels.join_kernel)
_magnitudes = Launch(kernels.magnitudes_kernel)
_ratio = Launch(kernels.ratio_kernel)


class Look:
    """Sizes of the vectors of two operands, float64 or float32 of any strides: (batch, m, k) and (batch, k, n).

    Attributes
    ----------
    scales : tuple of VectorScale
        Fast scaling for the moduli, see numerics.scaling.norm_scale.
    """

    def __init__(self, left: Any, right: Any, moduli: ModuliSet, balances: tuple[int, int] = (0, 0)) -> None:
        self.left, self.right = left, right
        self.device = device = left.device
        self.k = left.shape[2]
        (self.batch_a, self.m), (self.batch_b, self.n) = left.shape[:2], (right.shape[0], right.shape[2])
        self.total_a = self.batch_a * self.m
        self.total = self.total_a + self.batch_b * self.n
        strides = (*_strides(left, 2), *_strides(right, 1))
        self._along = strides[2] == 1 or self.k == 1, strides[5] == 1 or self.k == 1
        self._place = (self.m, self.n, self.k, *strides)
        blocks = -(-self.k // _BLOCK)
        exponents = empty((blocks, self.total), torch.int32, device)
        squares, sums = (empty((blocks, self.total), torch.float64, device) for _ in range(2))
        vectors = [_VECTORS[0] if along else _VECTORS[1] for along in self._along]
        tiles = self.batch_a * -(-self.m // vectors[0]), self.batch_b * -(-self.n // vectors[1])
        arguments = (left, right, exponents, squares, sums, *self._place, *tiles, self.total_a, self.total)
        options = {"ALONG_A": self._along[0], "ALONG_B": self._along[1]}
        _sizes(
            (sum(tiles), blocks),
            *arguments,
            **options,
            VECTORS_A=vectors[0],
            VECTORS_B=vectors[1],
            BLOCK=_BLOCK,
            num_warps=4,
            enable_fp_fusion=False,
        )
        scales = empty((2, self.total), torch.int32, device)
        self._own, self._sizes = (
            empty((self.total,), torch.int32, device),
            empty((2, self.total), torch.float64, device),
        )
        _join(
            (triton.cdiv(self.total, 32),),
            *(
                exponents,
                squares,
                sums,
                scales,
                self._own,
                self._sizes,
                vector_constants(moduli, 1, 1, device, False).range,
            ),
            *(blocks, self.total_a, self.total, *balances),
            ROWS=32,
            COLUMNS=32,
            num_warps=4,
            enable_fp_fusion=False,
        )
        pieces = scales.split([self.total_a, self.total - self.total_a], dim=1)
        shapes = (self.batch_a, self.m), (self.batch_b, self.n)
        self.scales = tuple(
            VectorScale(*(x.unflatten(0, shape) for x in piece)) for piece, shape in zip(pieces, shapes, strict=True)
        )

    def ratio(self) -> Any:
        """The error ratio as a float64 tensor of one entry, which nobody has waited for."""
        pitch = -(-self.k // 128) * 128
        low = [
            empty((b, v, pitch), torch.int8, self.device) for b, v in ((self.batch_a, self.m), (self.batch_b, self.n))
        ]
        tiles = self.batch_a * -(-self.m // 16), self.batch_b * -(-self.n // 16)
        arguments = (self.left, self.right, self._own, *low, *self._place, *tiles, self.total_a, pitch)
        options = {"ALONG_A": self._along[0], "ALONG_B": self._along[1], "VECTORS": 16, "BLOCK": 128}
        _magnitudes((sum(tiles), pitch // 128), *arguments, **options, num_warps=4, enable_fp_fusion=False)
        out = torch.zeros(1, dtype=torch.int64, device=self.device)
        batch = max(self.batch_a, self.batch_b)
        strides = [0 if x.shape[0] < batch or batch == 1 else x.shape[1] for x in low]
        grid = triton.cdiv(self.m, 128) * triton.cdiv(self.n, 128), batch
        _ratio(
            grid,
            *(*low, self._sizes, out, self.m, self.n, pitch, min(pitch, MAGNITUDE_TERMS)),
            *(strides[0] * pitch, strides[1] * pitch, *strides, self.total_a, self.total),
            BLOCK_M=128,
            BLOCK_N=128,
            BLOCK_K=128,
            GROUP=8,
            num_warps=8,
            num_stages=3,
            enable_fp_fusion=False,
        )
        return out.view(torch.float64) * _SCALE


def error_ratio(left: Any, right: Any, moduli: ModuliSet) -> float:
    """schemes.promise.error_ratio of real operands; waits for the device."""
    return float(Look(left, right, moduli).ratio())


def _strides(x: Any, axis: int) -> tuple[int, int, int]:
    """Distances of matrices, of vectors, and of entries of a vector."""
    return (x.stride(0) if x.shape[0] > 1 else 0), x.stride(3 - axis), x.stride(axis)
