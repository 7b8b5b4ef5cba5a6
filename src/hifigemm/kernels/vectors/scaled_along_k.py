"""A D and D**-1 B as operands of their own on a GPU: numerics.inner_scaling, with the
same bits.

D = diag(2**d) stands between the columns of A and the rows of B. Products of the copies
are those of A and B, and whatever reads them knows of no exponents. Entries are float64,
so that no factor takes them out of range: d is chosen such that none becomes larger than
the largest of its vector, nor subnormal. Where neighbours in memory follow each other
along k they do so in the copy; else neighbours are entries of neighbouring vectors.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import (
    NO_PREDICATE,
    Predicate,
    holds,
    power_of_two,
)
from hifigemm.kernels.runtime.launch import Launch, real_view
from hifigemm.kernels.vectors.scaled_residues import layout_of
from hifigemm.kernels.vectors.vector_norms import (
    FREE_OF_OPERANDS,
    NORM_BLOCK,
    PANEL,
    chosen,
    components_of,
    place,
    places_of_block,
)


@triton.jit
def _copy_block(
    operand,
    copy,
    tile_origin,
    q,
    k,
    exponents,
    ALONG_K: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    FORM: tl.constexpr,
):
    """Write 2**d x of A, or 2**-d x of B, for block q of a panel of vectors."""
    entries, inside, _, ks = places_of_block(operand, tile_origin, q, k, ALONG_K, FORM)
    # Both components of a complex entry take its factor.
    d = tl.load(exponents + ks // NEIGHBOURS, mask=ks < k, other=0)
    factors = power_of_two(tl.where(tile_origin[0], d, -d))
    parts = components_of(entries, inside, FORM.width)

    # Entries of a copy lie without gaps, neighbours where they are in the operand.
    count = tile_origin[3]
    matrix = count.to(tl.int64) * k
    if ALONG_K:
        target = copy, matrix, k, 1
    else:
        target = copy, matrix, 1, count
    entries, _, _, _ = places_of_block(target, tile_origin, q, k, ALONG_K, FORM)
    for i in tl.static_range(len(parts)):
        tl.store(entries + i, parts[i] * factors, mask=inside)


_FREE = [*FREE_OF_OPERANDS, "panels_a", "predicate"]


@triton.jit(do_not_specialize=_FREE)
def scaled_along_k_kernel(
    a,
    b,
    counts,
    k,
    copy_a,
    copy_b,
    panels_a,
    exponents,
    predicate,
    NEIGHBOURS: tl.constexpr,
    FORM: tl.constexpr,
):
    """Twin: numerics.inner_scaling.scaled_along_k, of one operand or of both.

    A program copies a block of 256 entries along k of 16 vectors, of A first.
    NEIGHBOURS terms share an exponent. Nothing where the predicate does not hold.
    """
    if not holds(predicate):
        return
    blocks = tl.cdiv(k, NORM_BLOCK)
    panel = tl.program_id(0) // blocks
    q = tl.program_id(0) % blocks
    tile_origin = place(panel, panels_a, counts, PANEL)
    is_left = tile_origin[0]
    operand = chosen(is_left, a, b)
    copy = tl.where(is_left, copy_a, copy_b)
    # Both layouts have compiled code, so that one kernel serves all.
    if operand[3] == 1:
        _copy_block(operand, copy, tile_origin, q, k, exponents, True, NEIGHBOURS, FORM)
    else:
        _copy_block(
            operand, copy, tile_origin, q, k, exponents, False, NEIGHBOURS, FORM
        )


_scale = Launch(scaled_along_k_kernel)


def scaled_along_k(
    operands: Sequence[tuple[Buffer, int]],
    exponents: Buffer,
    predicate: Predicate | None = None,
    *,
    neighbours: int = 1,
) -> list[Buffer]:
    """A D and D**-1 B, or one of them, in float64 or complex128.

    Parameters
    ----------
    operands : one or two (tensor, axis)
        (batch or 1, m, k) with axis 2 for a left operand, (batch or 1, k, n) with axis 1
        for a right one; float32, float64, complex64 or complex128, any strides.
    exponents : int32 tensor
        d, see `inner_scaling.gaining_exponents`.
    predicate : Predicate, optional
        Decides on the device: unless the entry lies within the limits the operands are
        not read, and what is returned means nothing.
    neighbours : int
        Terms that share an exponent: two where complex operands are embedded as real
        ones.
    """
    copies = [_copy_of(x, axis) for x, axis in operands]
    layout = layout_of(tuple(operands))
    # An operand that comes alone may be a right one.
    panels_a = layout.panels[0] if operands[0][1] == 2 else 0
    blocks = -(-layout.k // NORM_BLOCK.value)
    _scale(
        (sum(layout.panels) * blocks,),
        *layout.arguments(tuple(operands)),
        real_view(copies[0]),
        real_view(copies[-1]),
        panels_a,
        exponents,
        predicate or NO_PREDICATE,
        NEIGHBOURS=neighbours,
        FORM=layout.size_form,
        num_warps=8,
    )
    return copies


def layout_of_copy(
    x: torch.Tensor | Buffer, axis: int
) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    """Shape, strides and dtype of the copy of an operand; `axis` is that of k."""
    batch, rows, cols = x.shape
    # The order along k is that in memory, as the kernel sees it.
    is_along_k = layout_of(((x, axis),)).distances[0][2] == 1
    is_by_rows = is_along_k == (axis == 2)
    strides = (rows * cols, cols, 1) if is_by_rows else (rows * cols, 1, rows)
    dtype = torch.complex128 if x.is_complex() else torch.float64
    return (batch, rows, cols), strides, dtype


def _copy_of(x: Buffer, axis: int) -> Buffer:
    """Memory for the copy of an operand."""
    shape, strides, dtype = layout_of_copy(x, axis)
    copy: Buffer = x.launches.empty(shape, dtype)
    return copy.as_strided(shape, strides)
