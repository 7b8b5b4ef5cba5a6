"""Magnitudes of 6 bits, rounded up, and the scales that follow from the largest sums of
their products: "accurate" scaling of Ozaki scheme II on a GPU.

Overrides of numerics.estimates.magnitudes_up and numerics.scaling.scale_exponent, with
the same bits. Entries with an Inf or NaN count as zeros, and their vectors are marked.
Operands are given as to `scaled_residues`. Both are read twice: for the largest
component of each vector, then for the magnitudes.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import runs_ptx
from hifigemm.kernels.runtime.launch import Launch
from hifigemm.kernels.vectors.residue_words import vector_constants
from hifigemm.kernels.vectors.scaled_residues import (
    Operand,
    VectorScale,
    along_k,
    layout_of,
    load_either,
    store_magnitudes,
    vectors_of_tile,
)
from hifigemm.kernels.vectors.statistics import exponent_or, magnitude_bits
from hifigemm.kernels.vectors.vector_norms import (
    BLOCK,
    FREE_OF_OPERANDS,
    NORM_BLOCK,
    NOT_FINITE,
    PIECE,
    K,
    finite_entries,
    place,
    scale_of,
)
from hifigemm.numerics.estimates import MAGNITUDE_BITS_UP
from hifigemm.numerics.residues import ModuliSet

_BITS = tl.constexpr(MAGNITUDE_BITS_UP)
_SCALES = 256
"""Vectors whose scales a program finds."""


class UpperMagnitudes(NamedTuple):
    """Magnitudes of two operands, or of one that stands on both sides.

    In arrays of all vectors, the vectors of the left operand come first.
    """

    # int8 tensors (batch, vectors, width kp), kp = k rounded up to 128: |x| 2**(6 - e),
    # rounded up, zero beyond k; of re, then of im
    entries: tuple[Any, ...]
    # int64 tensor (total,): bits of the largest component of a vector, whose exponent
    # is e
    largest: Any
    marks: Any  # int32 tensor (total,): 1 where a vector holds an Inf or NaN
    width: int  # components of an entry

    @property
    def first_right(self) -> int:
        """The first vector of the right operand; 0 if one operand stands on both
        sides.
        """
        return sum(x.shape[0] * x.shape[1] for x in self.entries[:-1])


@triton.jit(do_not_specialize=[*FREE_OF_OPERANDS, "tiles_a", "total_a"])
def upper_magnitudes_kernel(
    a,
    b,
    counts,
    k,
    tiles_a,
    total_a,
    largest,
    marks,
    up,
    FORM: tl.constexpr,
    STORES: tl.constexpr,
    PTX: tl.constexpr,
):
    """Twin: numerics.estimates.magnitudes_up. Without STORES the kernel finds the bits
    of `largest`, and marks vectors.

    A program takes a tile of FORM.vectors vectors and FORM.blocks blocks of 256 entries
    along k. The tiles along k of the same vectors are counted first.
    """
    steps = tl.cdiv(k, FORM.blocks * NORM_BLOCK)
    tile_origin = place(tl.program_id(0) // steps, tiles_a, counts, FORM.vectors)
    is_left, batch, start, count = tile_origin
    vs = vectors_of_tile(start, FORM)
    ks = along_k(tl.program_id(0) % steps, FORM)
    loaded = load_either((a, b), tile_origin, ks, k, FORM)
    parts = finite_entries(loaded)
    numbers = tl.where(is_left, 0, total_a) + batch * count + vs
    exists = vs < count
    if STORES:
        # No other program writes to this tile's part of the magnitudes.
        e = exponent_or(tl.load(largest + numbers, mask=exists, other=0), 0)
        store_magnitudes(parts, e, up, tile_origin, ks, k, FORM, PTX, True)
    else:
        bits = magnitude_bits(parts[0])
        marked = (loaded[0] != parts[0]).to(tl.int32)
        for i in tl.static_range(1, len(parts)):
            bits = tl.maximum(bits, magnitude_bits(parts[i]))
            marked = tl.maximum(marked, (loaded[i] != parts[i]).to(tl.int32))
        bits = _largest_of_vectors(bits)
        marked = _largest_of_vectors(marked)
        # A maximum does not depend on the order of programs.
        tl.atomic_max(largest + numbers, bits, mask=exists, sem="relaxed")
        tl.atomic_max(
            marks + numbers, marked, mask=exists & (marked > 0), sem="relaxed"
        )


@triton.jit
def _largest_of_vectors(x):
    """The largest number of each vector of a tile."""
    x = tl.max(x, axis=K, keep_dims=True)
    x = tl.max(x, axis=PIECE, keep_dims=True)
    return tl.max(x, axis=BLOCK, keep_dims=True)


@triton.jit(do_not_specialize=["total"])
def scales_of_sums_kernel(
    sums, largest, marks, range_ptr, exponents, nearest, total, COUNT: tl.constexpr
):
    """Twin: numerics.scaling.scale_exponent, for the largest sums of vectors. A program
    finds the scales of COUNT vectors.
    """
    numbers = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    exists = numbers < total
    squares = tl.load(sums + numbers, mask=exists, other=0).to(tl.float64)
    e = exponent_or(tl.load(largest + numbers, mask=exists, other=0), 0)
    is_marked = tl.load(marks + numbers, mask=exists, other=0) > 0
    scale, to_nearest = scale_of(squares, e, range_ptr, 0, _BITS)
    # A vector that meets nothing but zeros becomes 1 at the most.
    scale = tl.where(squares == 0.0, -e, scale)
    scale = tl.where(is_marked, NOT_FINITE, scale)
    tl.store(exponents + numbers, scale, mask=exists)
    tl.store(nearest + numbers, to_nearest, mask=exists)


_magnitudes = Launch(upper_magnitudes_kernel)
_scales = Launch(scales_of_sums_kernel)


def upper_magnitudes(operands: tuple[Operand, ...]) -> UpperMagnitudes:
    """Magnitudes of one or two operands (tensor, axis)."""
    layout = layout_of(operands)
    launches = operands[0][0].launches
    pitch = layout.width * (-(-layout.k // 128) * 128)
    total = sum(layout.totals)
    entries = [launches.empty((*shape, pitch), torch.int8) for shape in layout.shapes]
    largest = launches.zeros((total,), torch.int64)
    marks = launches.zeros((total,), torch.int32)
    for stores in (False, True):
        _magnitudes(
            (sum(layout.tiles) * layout.steps,),
            *layout.arguments(operands),
            layout.tiles[0],
            layout.totals[0],
            largest,
            marks,
            (entries[0], entries[-1]),
            FORM=layout.form,
            STORES=stores,
            PTX=layout.ptx,
            num_warps=layout.warps,
        )
    return UpperMagnitudes(tuple(entries), largest, marks, layout.width)


def scales_of_sums(
    magnitudes: UpperMagnitudes, sums: Buffer, moduli: ModuliSet
) -> tuple[VectorScale, ...]:
    """The scale of each vector, from the largest sums of its products, int32 (total,),
    for `scaled_residues`.
    """
    launches = sums.launches
    (total,) = sums.shape
    constants = vector_constants(
        moduli, magnitudes.width, 1, sums.device, runs_ptx(sums)
    )
    numbers = launches.empty((2, total), torch.int32)
    exponents, nearest = numbers.unbind()
    _scales(
        (-(-total // _SCALES),),
        sums,
        magnitudes.largest,
        magnitudes.marks,
        constants.range,
        exponents,
        nearest,
        total,
        COUNT=_SCALES,
        num_warps=4,
    )
    shapes = [x.shape[:2] for x in magnitudes.entries]
    totals = [batch * vectors for batch, vectors in shapes]
    return tuple(
        VectorScale(exponent.view(shape), to_nearest.view(shape))
        for shape, exponent, to_nearest in zip(
            shapes, exponents.split(totals), nearest.split(totals), strict=True
        )
    )
