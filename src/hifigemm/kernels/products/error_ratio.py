"""How many moduli do the entries of a product need? The GPU's version of
numerics.error_ratio.error_ratio.

The norms and sums of vectors and magnitudes of 7 bits are made beside the residues, by
`scaled_residues.sized_residues`. The magnitudes are multiplied as INT8
(`int8_product.py`), and the epilogue stores nothing but the largest ratio of the
entries: the same float64 as that of the plain function.

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

from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from hifigemm.kernels.products.int8_product import (
    launch_on_magnitudes,
    product_of_magnitudes,
)
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import (
    LARGEST,
    NO_PREDICATE,
    Predicate,
)
from hifigemm.kernels.runtime.launch import Launch
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.runtime.tiles import (
    KERNELS,
    ProductShape,
    gpu_of,
    hopper_module,
    tile_for,
)
from hifigemm.kernels.vectors.scaled_residues import Sizes, sized_residues
from hifigemm.numerics.estimates import MAGNITUDE_TERMS
from hifigemm.numerics.residues import ModuliSet

RATIO_UNIT = 2.0**-16
"""The unit of a product of a norm and a sum, of 2**-15 each, over that of a product of
two magnitudes, of 2**-7 each.
"""
MARGIN = tl.constexpr(1.0 - 2.0**-20)
"""1 less what FP32 errs by at most: see above."""
_FINITE = int(np.float64(2.0**100).view(np.int64))
"""Bits of a float64 above all ratios but inf, whose numerators are below it, and which
FP32 holds.
"""


@triton.jit
def halves(tiles):
    """Left and right halves of tensors."""
    ROWS: tl.constexpr = tiles[0].shape[0]
    COLUMNS: tl.constexpr = tiles[0].shape[1] // 2
    parts = ()
    for i in tl.static_range(len(tiles)):
        parts += tl.split(
            tl.permute(tl.reshape(tiles[i], [ROWS, 2, COLUMNS]), (0, 2, 1))
        )
    return parts


@triton.jit
def _largest(low, g, s, column_sizes, total, num_columns):
    """The largest ratio of a tile in float64.

    `num_columns` columns exist, whose sizes begin at `column_sizes`. A quarter of them
    at a time keeps the registers few.
    """
    COLUMNS: tl.constexpr = low.shape[1] // 4
    parts = halves(halves((low,)))
    best = tl.zeros([low.shape[0]], dtype=tl.float64)
    for i in tl.static_range(4):
        columns = i * COLUMNS + tl.arange(0, COLUMNS)
        h = tl.load(column_sizes + columns, mask=columns < num_columns, other=0.0)[
            None, :
        ]
        t = tl.load(
            column_sizes + total + columns, mask=columns < num_columns, other=0.0
        )[None, :]
        # 0 / 0 counts 0 and a positive number over 0 counts inf; max(low, 1) keeps the
        # division defined.
        above = g[:, None] * t + h * s[:, None]
        below = tl.maximum(parts[i], 1).to(tl.float64)
        ratio = tl.where(
            parts[i] > 0, above / below, tl.where(above > 0.0, float("inf"), 0.0)
        )
        best = tl.maximum(best, tl.max(ratio, axis=1))
    return tl.max(best, axis=0)


@triton.jit
def raise_ratio(low, tile_origin, m, n, target, numbers):
    """The epilogue of an error ratio: raise the bits of a result to the largest one of a
    tile.

    Twin: numerics.error_ratio.error_ratio. It is (g_i t_j + h_j s_i) / (|A||B|)_ij, with
    |A||B| from magnitudes, norms g and sums s of rows, h and t of columns; `target` and
    `numbers` are `Ratio` and `Numbers`. The bits start as 0 or as those of any ratio; a
    tile without ratios above `enough_bits` may leave them. FMA contraction must be off.
    """
    _, z, _, row0, column0 = tile_origin
    rows = row0 + tl.arange(0, low.shape[0])
    columns = tl.arange(0, low.shape[1])
    # Sums of two components have the bits of a UINT32, see `int8_product_kernel`.
    low = low.to(tl.uint32, bitcast=True)
    # Norms and sums of the tile's rows and columns: 0 beyond m and n, as are ratios.
    row_sizes = target.sizes + z * numbers.rows_a + rows
    column_sizes = target.sizes + numbers.first_right + z * numbers.rows_b + column0
    inside = columns < n - column0
    g = tl.load(row_sizes, mask=rows < m, other=0.0)
    s = tl.load(row_sizes + numbers.total, mask=rows < m, other=0.0)
    h = tl.load(column_sizes + columns, mask=inside, other=0.0).to(tl.float32)
    t = tl.load(column_sizes + numbers.total + columns, mask=inside, other=0.0).to(
        tl.float32
    )
    # The largest ratio that is known by now, read past the L1 cache, which may hold an
    # old one. Other programs may raise it meanwhile: then the tile is looked at in
    # vain, never left out wrongly. Bits of positive float64 are ordered as the numbers
    # are.
    known_ratio = tl.maximum(
        tl.load(target.bits, cache_modifier=".cg"), numbers.enough_bits
    ).to(tl.float64, bitcast=True)
    is_finite = known_ratio < float("inf")
    known_ratio = tl.where(is_finite, known_ratio, 0.0).to(tl.float32) * MARGIN
    g_32 = tl.where(is_finite, g, 0.0).to(tl.float32)
    s_32 = tl.where(is_finite, s, 0.0).to(tl.float32)
    # Is above > known low for any entry? FP32 with the margin of the module says no
    # only where float64 would. Nothing is larger than inf, where all factors become 0.
    # Warps may know different ratios; they share one maximum, and go the same way.
    above = tl.fma(g_32[:, None], t[None, :], h[None, :] * s_32[:, None])
    if tl.max(tl.fma(low.to(tl.float32), -known_ratio, above)) > 0.0:
        # A maximum does not depend on the order of programs.
        largest = _largest(low, g, s, column_sizes, numbers.total, n - column0)
        tl.atomic_max(target.bits, largest.to(tl.int64, bitcast=True), sem="relaxed")


@triton.jit
def _copy_kernel(number, copy):
    """A copy of one number; it has no twin."""
    tl.store(copy, tl.load(number))


_copy = Launch(_copy_kernel)


class Ratio(NamedTuple):
    """What an error ratio is made from, and where its bits go."""

    sizes: Buffer  # norms and sums of all vectors
    bits: Buffer


class Numbers(NamedTuple):
    """Where sizes lie, as numbers of vectors, and the bits that are enough."""

    rows_a: int  # from one matrix to the next
    rows_b: int
    first_right: int
    total: int
    enough_bits: int

    @property
    def are_wide(self) -> bool:
        """True: the bits are INT64 in kernels."""
        return True


def error_ratio_bits(
    sizes: Sizes,
    terms: int | None = None,
    enough: int = 0,
    *,
    into: Buffer | None = None,
    predicate: Predicate | None = None,
) -> Any:
    """The bits of the error ratio, a float64 in units of RATIO_UNIT.

    Parameters
    ----------
    terms : int, optional
        |A||B| is taken from so many terms first, a multiple of 128, so that the ratio
        comes out larger, or as it is. Where its bits are at most `enough`, the other
        terms are not read.
    enough : int
        Bits up to which the ratio need not be known: where its own are no more, what is
        returned are bits of a lower bound of it.
    into : int64 tensor of one entry, optional
        Holds 0 or the bits of a lower bound of the ratio; the larger of these and the
        ratio afterwards, with the exception of `enough`. Otherwise a new tensor starts
        at 0.
    predicate : Predicate, optional
        Decides on the device: unless the entry lies within the limits beforehand the
        tensor stays as it was. It may be `into` itself.

    Returns
    -------
    `into`, or a new int64 tensor of one entry
    """
    count = 2 * ((into is None) + (terms is not None))
    fresh = sizes.norms.launches.zeros((count,), torch.int64)
    out = fresh[:1] if into is None else into
    enough = max(min(enough, _FINITE), 0)
    if terms is None:
        _launch_ratio(sizes, out, None, enough, _apart_from(out, predicate))
        return out
    first = fresh[-2:-1]  # 16 bytes behind the other one: both are aligned alike
    _launch_ratio(sizes, first, terms, enough, predicate or NO_PREDICATE)
    _launch_ratio(sizes, out, None, enough, Predicate(first, enough + 1, LARGEST))
    return out


def _apart_from(out: Buffer, predicate: Predicate | None) -> Predicate:
    """The predicate, on a copy where it is one on `out`.

    The warps of a program must all read the same number, while others write to `out`.
    """
    if predicate is None:
        return NO_PREDICATE
    if predicate.number is not out:
        return predicate
    copy = out.launches.empty((1,), torch.int64)
    _copy((1,), predicate.number, copy, num_warps=1)
    return predicate._replace(number=copy)


def _launch_ratio(
    sizes: Sizes,
    out: Buffer,
    terms: int | None,
    enough_bits: int,
    predicate: Predicate,
) -> None:
    """Raise `out` to the ratio over so many terms or all.

    Nothing happens where the predicate does not hold.
    """
    left, right = sizes.magnitudes[0], sizes.magnitudes[-1]
    width = sizes.width
    pitch = left.shape[2] // width
    terms = min(pitch, MAGNITUDE_TERMS, terms or pitch)
    of_magnitudes = product_of_magnitudes(sizes.magnitudes, width, terms, predicate)
    product = of_magnitudes.product
    hopper = hopper_module("error_ratio_hopper", left.device)
    kernels = ("triton",) if hopper is None else KERNELS
    shape = ProductShape(product.m, product.n, width * terms, product.planes)
    tile = tile_for(shape, gpu_of(left.device), kernels)
    ratio = Ratio(sizes.norms, out)
    rows = of_magnitudes.rows_a, of_magnitudes.rows_b
    numbers = Numbers(*rows, *sizes.places, enough_bits)
    if tile.kernel == "hopper":
        hopper.launch(product, left, right, tile, ratio, numbers)
        return
    launch_on_magnitudes(
        of_magnitudes, sizes.magnitudes, tile, raise_ratio, ratio, numbers
    )


def error_ratio_of(sizes: Sizes) -> float:
    """The error ratio from the sizes of tensors; waits for the device."""
    return _ratio_from(run_recorded(error_ratio_bits, sizes))


def error_ratio(left: torch.Tensor, right: torch.Tensor, moduli: ModuliSet) -> float:
    """numerics.error_ratio.error_ratio of real operands; waits for the device."""
    return _ratio_from(run_recorded(_bits_of_operands, left, right, moduli))


def _bits_of_operands(left: Buffer, right: Buffer, moduli: ModuliSet) -> Buffer:
    """The bits of the error ratio of two operands."""
    *_, sizes = sized_residues(((left, 2), (right, 1)), moduli)
    return error_ratio_bits(sizes)


def _ratio_from(bits: torch.Tensor) -> float:
    return float(bits.view(torch.float64)) * RATIO_UNIT
