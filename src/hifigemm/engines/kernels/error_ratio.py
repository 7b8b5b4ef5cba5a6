"""How many moduli do the entries of a product need? The GPU's version of schemes.certify.error_ratio.

The norms and sums of vectors and magnitudes of 7 bits are made beside the residues, by
`scaled_residues.sized_residues`. The kernel multiplies the magnitudes as INT8 and stores nothing but the largest ratio
of the entries: the same float64 as that of the plain function.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from hifigemm.engines.kernels.error_ratio_kernels import error_ratio_kernel
from hifigemm.engines.kernels.launch import Launch
from hifigemm.engines.kernels.residue_gemm import LARGEST, NO_PREDICATE
from hifigemm.engines.kernels.scaled_residues import Sizes, sized_residues
from hifigemm.engines.kernels.tiles import ProductShape, gpu_of, hopper_module, tile_for
from hifigemm.engines.kernels.zeros import cleared
from hifigemm.numerics.estimates import MAGNITUDE_TERMS
from hifigemm.numerics.residues import ModuliSet

__all__ = ["RATIO_UNIT", "error_ratio", "error_ratio_bits", "error_ratio_of"]

RATIO_UNIT = 2.0**-16
"""Sums and norms are in units of 2**-15 each, magnitudes of 2**-7."""

_ratio = Launch(error_ratio_kernel)


def error_ratio_bits(sizes: Sizes, few: tuple[int, int] | None = None) -> Any:
    """The bits of the error ratio, a float64 in units of RATIO_UNIT, as an int64 tensor of one entry.

    Parameters
    ----------
    few : (terms, most), optional
        |A||B| is taken from so many terms first, a multiple of 128, so that the ratio comes out larger, or as it is.
        Where its bits are at most `most`, 0 stays in place of a ratio, and the other terms are not read.
    """
    out = cleared(2 if few is None else 8, sizes.norms).view(torch.int64)  # both aligned alike
    if few is None:
        _launch_ratio(sizes, out, None, NO_PREDICATE)
        return out
    terms, most = few
    _launch_ratio(sizes, out[2:], terms, NO_PREDICATE)
    _launch_ratio(sizes, out[:1], None, (out[2:], most + 1, LARGEST))
    return out[:1]


def _launch_ratio(sizes: Sizes, out: torch.Tensor, terms: int | None, predicate: tuple[Any, int, int]) -> None:
    """The ratio over so many terms or all, nothing where the predicate does not hold."""
    (left, right), width = sizes.magnitudes, sizes.width
    (batch_a, m, length), (batch_b, n, _) = left.shape, right.shape
    batch, pitch = max(batch_a, batch_b), length // width
    terms = min(pitch, MAGNITUDE_TERMS, terms or pitch)
    hopper = hopper_module("error_ratio_hopper", left.device)
    kernels = ("triton",) if hopper is None else ("hopper", "triton")
    tile = tile_for(ProductShape(m, n, width * terms, width * batch), gpu_of(left.device), kernels)
    if tile.kernel == "hopper":
        hopper.launch(sizes, out, terms, tile, predicate)
        return
    block = 128 if tile.block_m * tile.block_n >= 128 * 128 else 64
    rows = [x.shape[1] if x.shape[0] == batch > 1 else 0 for x in (left, right)]
    _ratio(
        (width * batch * triton.cdiv(m, block) * triton.cdiv(n, block),),
        *(left, right, sizes.norms, out, m, n, pitch, terms, rows[0] * length, rows[1] * length),
        *(*rows, batch_a * m, batch_a * m + batch_b * n, *predicate),
        WIDTH=width,
        BLOCK_M=block,
        BLOCK_N=block,
        BLOCK_K=128,
        GROUP=8,
        num_warps=block // 16,
        num_stages=3,
        enable_fp_fusion=False,
    )


def error_ratio_of(sizes: Sizes) -> float:
    """The error ratio; waits for the device."""
    return float(error_ratio_bits(sizes).view(torch.float64)) * RATIO_UNIT


def error_ratio(left: Any, right: Any, moduli: ModuliSet) -> float:
    """schemes.certify.error_ratio of real operands; waits for the device."""
    *_, sizes = sized_residues(((left, 2), (right, 1)), moduli)
    return error_ratio_of(sizes)
