"""How many moduli do the entries of a product need? The GPU's version of schemes.promise.error_ratio.

Sizes of vectors and magnitudes of 7 bits are found beside the residues (`vectors.sized_residues`). Their INT8 product
leaves nothing behind but the largest ratio of its entries: the same float64 as that of the plain maths.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from hifigemm.engines.kernels.launch import Launch
from hifigemm.engines.kernels.looks_kernels import ratio_kernel
from hifigemm.engines.kernels.vectors import Sizes, sized_residues
from hifigemm.numerics.estimates import MAGNITUDE_TERMS
from hifigemm.numerics.residues import ModuliSet

__all__ = ["error_ratio", "ratio_of"]

_SCALE = 2.0**-16
"""Sums and norms are in units of 2**-15 each, magnitudes of 2**-7."""

_ratio = Launch(ratio_kernel)


def ratio_of(sizes: Sizes) -> Any:
    """The error ratio as a float64 tensor of one entry, which nobody has waited for."""
    left, right = sizes.magnitudes
    (batch_a, m, pitch), (batch_b, n, _) = left.shape, right.shape
    out = torch.zeros(1, dtype=torch.int64, device=left.device)
    batch = max(batch_a, batch_b)
    strides = [0 if x.shape[0] < batch or batch == 1 else x.shape[1] for x in (left, right)]
    _ratio(
        (triton.cdiv(m, 128) * triton.cdiv(n, 128), batch),
        *(left, right, sizes.norms, out, m, n, pitch, min(pitch, MAGNITUDE_TERMS)),
        *(strides[0] * pitch, strides[1] * pitch, *strides, batch_a * m, batch_a * m + batch_b * n),
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
    *_, sizes = sized_residues(((left, 2), (right, 1)), moduli)
    return float(ratio_of(sizes))
