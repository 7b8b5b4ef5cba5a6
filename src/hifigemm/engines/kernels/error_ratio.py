"""How many moduli do the entries of a product need? The GPU's version of
numerics.error_ratio.error_ratio.

The norms and sums of vectors and magnitudes of 7 bits are made beside the residues, by
`scaled_residues.sized_residues`. The kernel multiplies the magnitudes as INT8 and
stores nothing but the largest ratio of the entries: the same float64 as that of the
plain function.

A division in float64 costs as much as many products. So a tile is first held against
the largest ratio that is known, in FP32: only where an entry may lie above are its
ratios found, and the largest of all is made known to the other programs. For most data
that happens in few programs; in none where all that is asked is whether a ratio lies
above a number that counts as known from the start, and none does.

With r the largest ratio known, an entry above / low > r has above_32 > r_32 low_32
(1 - 2**-20) in FP32: of the factors of above_32 = g t + h s, of the sum, of r_32 and of
low_32 none errs by more than 2**-24, eight of them in all.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels.common import (
    LARGEST,
    NO_PREDICATE,
    Predicate,
    holds,
    place_of,
    tiles_of,
    unfolded,
)
from hifigemm.engines.kernels.launch import Launch, cleared, empty
from hifigemm.engines.kernels.residue_gemm import wrapped
from hifigemm.engines.kernels.scaled_residues import Sizes, sized_residues
from hifigemm.engines.kernels.tiles import (
    KERNELS,
    ProductShape,
    gpu_of,
    hopper_module,
    tile_for,
    tiles_along,
)
from hifigemm.numerics.estimates import MAGNITUDE_TERMS
from hifigemm.numerics.residues import ModuliSet

RATIO_UNIT = 2.0**-16
"""Sums and norms are in units of 2**-15 each, magnitudes of 2**-7."""
MARGIN = tl.constexpr(1.0 - 2.0**-20)
_LEAST = tl.constexpr(-(2**31))
_FINITE = int(np.float64(2.0**100).view(np.int64))
"""Bits of a float64 above all ratios but inf, whose numerators are below it, and which
FP32 holds.
"""


@triton.jit
def halves(tiles):
    """Left and right halves of tensors."""
    ROWS: tl.constexpr = tiles[0].shape[0]
    COLUMNS: tl.constexpr = tiles[0].shape[1] // 2
    found = ()
    for i in tl.static_range(len(tiles)):
        found += tl.split(
            tl.permute(tl.reshape(tiles[i], [ROWS, 2, COLUMNS]), (0, 2, 1))
        )
    return found


@triton.jit
def _largest(low, g, s, at_b, total, left):
    """The largest ratio of a tile in float64; a quarter of the columns at a time, for
    the sake of the registers.
    """
    COLUMNS: tl.constexpr = low.shape[1] // 4
    parts = halves(halves((low,)))
    best = tl.zeros([low.shape[0]], dtype=tl.float64)
    for i in tl.static_range(4):
        columns = i * COLUMNS + tl.arange(0, COLUMNS)
        h = tl.load(at_b + columns, mask=columns < left, other=0.0)[None, :]
        t = tl.load(at_b + total + columns, mask=columns < left, other=0.0)[None, :]
        above = g[:, None] * t + h * s[:, None]
        below = tl.maximum(parts[i], 1).to(tl.float64)
        ratio = tl.where(
            parts[i] > 0, above / below, tl.where(above > 0.0, float("inf"), 0.0)
        )
        best = tl.maximum(best, tl.max(ratio, axis=1))
    return tl.max(best, axis=0)


@triton.jit(
    do_not_specialize=[
        "m",
        "n",
        "norms_a",
        "norms_b",
        "total_a",
        "total",
        "enough",
        "least",
        "most",
    ]
)
def error_ratio_kernel(
    left,
    right,
    sizes,
    out,
    m,
    n,
    pitch,
    terms,
    left_batch,
    right_batch,
    norms_a,
    norms_b,
    total_a,
    total,
    enough,
    predicate,
    least,
    most,
    WIDTH: tl.constexpr,
    TRIANGLE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Raise the bits at `out` to the largest (g_i t_j + h_j s_i) / (|A||B|)_ij of a
    tile, |A||B| from magnitudes.

    `out` starts as 0 or as the bits of any ratio; a tile without ratios above `enough`
    may leave it. Nothing where the predicate, which is no entry of `out`, does not
    hold. FMA contraction must be off. g, s and h, t are norms and sums of magnitudes of
    rows and columns. Vectors have WIDTH components, `pitch` apart, of which `terms`
    count, both multiples of BLOCK_K. Planes are pairings of the components: for the
    second of a matrix, those of the right operand swap.
    """
    if predicate is not None:  # noqa: SIM102
        if not holds(predicate, least, most):
            return
    tiles_m, tiles_n = tiles_of(m, n, BLOCK_M, BLOCK_N, TRIANGLE)
    plane, row, column = place_of(tl.program_id(0), tiles_m, tiles_n, GROUP)
    tile_m, tile_n = unfolded(row, column, m, BLOCK_M, BLOCK_N, TRIANGLE)
    z = (plane // WIDTH).to(tl.int64)
    swap = plane % WIDTH
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    column0 = tile_n * BLOCK_N
    columns = column0 + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    x = (
        left
        + z * left_batch
        + wrapped(rows, m)[:, None] * (WIDTH * pitch)
        + ks[None, :]
    )
    y = (
        right
        + z * right_batch
        + wrapped(columns, n)[:, None] * (WIDTH * pitch)
        + ks[None, :]
    )
    # The sum of two components may exceed 2**31, where the instructions of most GPUs
    # saturate; it begins at -2**31.
    low = tl.full((BLOCK_M, BLOCK_N), _LEAST if WIDTH == 2 else 0, dtype=tl.int32)
    for i in tl.static_range(WIDTH):
        own, other = x + i * pitch, y + (i ^ swap) * pitch
        for start in range(0, terms, BLOCK_K):
            low = tl.dot(
                tl.load(own + start),
                tl.trans(tl.load(other + start)),
                low,
                out_dtype=tl.int32,
            )
    if WIDTH == 2:
        low ^= _LEAST
    low = low.to(tl.uint32, bitcast=True)
    at_a, at_b = sizes + z * norms_a + rows, sizes + total_a + z * norms_b + column0
    g, s = (
        tl.load(at_a, mask=rows < m, other=0.0),
        tl.load(at_a + total, mask=rows < m, other=0.0),
    )
    h = tl.load(at_b + columns - column0, mask=columns < n, other=0.0).to(tl.float32)
    t = tl.load(at_b + total + columns - column0, mask=columns < n, other=0.0).to(
        tl.float32
    )
    known = tl.maximum(tl.load(out, cache_modifier=".cg"), enough).to(
        tl.float64, bitcast=True
    )
    finite = known < float("inf")
    known = tl.where(finite, known, 0.0).to(tl.float32) * MARGIN
    g_32, s_32 = (
        tl.where(finite, g, 0.0).to(tl.float32),
        tl.where(finite, s, 0.0).to(tl.float32),
    )
    above = tl.fma(g_32[:, None], t[None, :], h[None, :] * s_32[:, None])
    if tl.max(tl.fma(low.to(tl.float32), -known, above)) > 0.0:
        tl.atomic_max(
            out,
            _largest(low, g, s, at_b, total, n - column0).to(tl.int64, bitcast=True),
            sem="relaxed",
        )


@triton.jit
def _copy_kernel(number, copy):
    """A copy of one number."""
    tl.store(copy, tl.load(number))


_ratio = Launch(error_ratio_kernel)
_copy = Launch(_copy_kernel)


def error_ratio_bits(
    sizes: Sizes,
    terms: int | None = None,
    enough: int = 0,
    *,
    into: torch.Tensor | None = None,
    predicate: Predicate | None = None,
) -> Any:
    """The bits of the error ratio, a float64 in units of RATIO_UNIT, as an int64 tensor
    of one entry.

    Parameters
    ----------
    terms : int, optional
        |A||B| is taken from so many terms first, a multiple of 128, so that the ratio comes out larger, or as it is.
        Where its bits are at most `enough`, the other terms are not read.
    enough : int
        Bits up to which the ratio need not be known: where its own are no more, what is
        returned are bits of a lower bound of it.
    into : int64 tensor of one entry, optional
        Holds 0 or the bits of a lower bound of the ratio; the larger of these and the
        ratio afterwards, with the exception of `enough`. Otherwise a new tensor starts
        at 0.
    predicate : (int64 tensor of one entry, least, most), optional
        Decides on the device: unless least <= predicate <= most beforehand the tensor
        stays as it was. It may be `into` itself.

    Returns
    -------
    `into`, or the new tensor
    """
    fresh = cleared(4 * ((into is None) + (terms is not None)), sizes.norms).view(
        torch.int64
    )
    out = fresh[:1] if into is None else into
    enough = max(min(enough, _FINITE), 0)
    if terms is None:
        _launch_ratio(sizes, out, None, enough, _apart_from(out, predicate))
        return out
    first = fresh[-2:-1]  # 16 bytes behind the other one: both are aligned alike
    _launch_ratio(sizes, first, terms, enough, predicate or NO_PREDICATE)
    _launch_ratio(sizes, out, None, enough, (first, enough + 1, LARGEST))
    return out


def _apart_from(out: Any, predicate: Predicate | None) -> tuple[Any, int, int]:
    """The predicate on a copy where it is one on `out`: the warps of a program must all
    read the same number.
    """
    if predicate is None:
        return NO_PREDICATE
    number, least, most = predicate
    if number is not out:
        return predicate
    copy = empty((1,), torch.int64, out)
    _copy((1,), number, copy, num_warps=1)
    return copy, least, most


def _launch_ratio(
    sizes: Sizes,
    out: torch.Tensor,
    terms: int | None,
    enough: int,
    predicate: tuple[Any, int, int],
) -> None:
    """Raise `out` to the ratio over so many terms or all, unless the predicate does not
    hold.
    """
    (left, right), width = sizes.magnitudes, sizes.width
    (batch_a, m, length), (batch_b, n, _) = left.shape, right.shape
    batch, pitch = max(batch_a, batch_b), length // width
    terms = min(pitch, MAGNITUDE_TERMS, terms or pitch)
    hopper = hopper_module("error_ratio_hopper", left.device)
    kernels = ("triton",) if hopper is None else KERNELS
    tile = tile_for(
        ProductShape(m, n, width * terms, width * batch), gpu_of(left.device), kernels
    )
    if tile.kernel == "hopper":
        hopper.launch(sizes, out, terms, tile, enough, predicate)
        return
    block = 128 if tile.block_m * tile.block_n >= 128 * 128 else 64
    rows = [x.shape[1] if x.shape[0] == batch > 1 else 0 for x in (left, right)]
    tiles = math.prod(tiles_along(m, n, block, block, triangle=left is right))
    _ratio(
        (width * batch * tiles,),
        *(
            left,
            right,
            sizes.norms,
            out,
            m,
            n,
            pitch,
            terms,
            rows[0] * length,
            rows[1] * length,
        ),
        *(*rows, *sizes.places, enough, *predicate),
        WIDTH=width,
        TRIANGLE=left is right,
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
