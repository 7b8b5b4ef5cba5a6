"""How many moduli do the entries of a product need? The GPU's version of numerics.error_ratio.error_ratio.

The norms and sums of vectors and magnitudes of 7 bits are made beside the residues, by
`scaled_residues.sized_residues`. The kernel multiplies the magnitudes as INT8 and stores nothing but the largest ratio
of the entries: the same float64 as that of the plain function.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from hifigemm.engines.kernels.error_ratio_kernels import copy_kernel, error_ratio_kernel
from hifigemm.engines.kernels.launch import Launch, empty
from hifigemm.engines.kernels.predicate import LARGEST, NO_PREDICATE, Predicate
from hifigemm.engines.kernels.scaled_residues import Sizes, sized_residues
from hifigemm.engines.kernels.tiles import ProductShape, gpu_of, hopper_module, tile_for
from hifigemm.engines.kernels.zeros import cleared
from hifigemm.numerics.estimates import MAGNITUDE_TERMS
from hifigemm.numerics.residues import ModuliSet

__all__ = ["RATIO_UNIT", "error_ratio", "error_ratio_bits", "error_ratio_of"]

RATIO_UNIT = 2.0**-16
"""Sums and norms are in units of 2**-15 each, magnitudes of 2**-7."""

_ratio = Launch(error_ratio_kernel)
_copy = Launch(copy_kernel)


def error_ratio_bits(
    sizes: Sizes,
    few: tuple[int, int] | None = None,
    *,
    into: torch.Tensor | None = None,
    predicate: Predicate | None = None,
) -> Any:
    """The bits of the error ratio, a float64 in units of RATIO_UNIT, as an int64 tensor of one entry.

    Parameters
    ----------
    few : (terms, most), optional
        |A||B| is taken from so many terms first, a multiple of 128, so that the ratio comes out larger, or as it is.
        Where its bits are at most `most`, the other terms are not read, and the tensor stays as it was.
    into : int64 tensor of one entry, optional
        Holds 0 or the bits of a lower bound of the ratio; the larger of these and the ratio afterwards. Where few terms
        suffice it remains a lower bound, which is at most `most` as the ratio is. Otherwise a new tensor starts at 0.
    predicate : (int64 tensor of one entry, least, most), optional
        Decides on the device: unless least <= predicate <= most beforehand the tensor stays as it was. It may be
        `into` itself.

    Returns
    -------
    `into`, or the new tensor
    """
    fresh = cleared(4 * ((into is None) + (few is not None)), sizes.norms).view(torch.int64)
    out = fresh[:1] if into is None else into
    if few is None:
        _launch_ratio(sizes, out, None, _apart_from(out, predicate))
        return out
    terms, most = few
    first = fresh[-2:-1]  # 16 bytes behind the other one: both are aligned alike
    _launch_ratio(sizes, first, terms, predicate or NO_PREDICATE)
    _launch_ratio(sizes, out, None, (first, max(most + 1, 1), LARGEST))
    return out


def _apart_from(out: Any, predicate: Predicate | None) -> tuple[Any, int, int]:
    """The predicate on a copy where it is one on `out`: the warps of a program must all read the same number."""
    if predicate is None:
        return NO_PREDICATE
    number, least, most = predicate
    if number is not out:
        return predicate
    copy = empty((1,), torch.int64, out)
    _copy((1,), number, copy, num_warps=1)
    return copy, least, most


def _launch_ratio(sizes: Sizes, out: torch.Tensor, terms: int | None, predicate: tuple[Any, int, int]) -> None:
    """Raise `out` to the ratio over so many terms or all, unless the predicate does not hold."""
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
    """numerics.error_ratio.error_ratio of real operands; waits for the device."""
    *_, sizes = sized_residues(((left, 2), (right, 1)), moduli)
    return error_ratio_of(sizes)
