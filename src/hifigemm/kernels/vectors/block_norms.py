"""Norms and lowest bits of the blocks of vectors, for vectors whose pieces lie on
several GPUs.

The GPU's versions of numerics.scaling.block_norms and lowest_bits: one launch reads the
operand once.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.launch import Launch
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.vectors.scaled_residues import layout_of
from hifigemm.kernels.vectors.statistics import NO_LOWEST
from hifigemm.kernels.vectors.vector_norms import (
    FREE_OF_OPERANDS,
    NORM_BLOCK,
    PANEL,
    SUM_MASK,
    place,
    store_block,
)
from hifigemm.numerics import scaling
from hifigemm.numerics.bits import NO_BIT


@triton.jit(do_not_specialize=[*FREE_OF_OPERANDS, "blocks", "panels"])
def block_norms_kernel(
    a,
    b,
    counts,
    k,
    blocks,
    panels,
    workspace,
    FORM: tl.constexpr,
    PTX: tl.constexpr,
):
    """Twin: numerics.scaling.block_norms; where the workspace has a third array also
    numerics.scaling.lowest_bits.

    A tile is one block of 256 entries along k of the 16 vectors of a panel, and a
    program makes one tile. The operand stands on both sides.
    """
    # Programs count the blocks q of a panel, then the panels of all matrices. Each
    # writes the numbers of its own block, so that their order does not matter.
    operands = a, b
    panel = tl.program_id(0) // blocks
    q = tl.program_id(0) % blocks
    tile_origin = place(panel, panels, counts, PANEL)
    first_block = panel.to(tl.int64) * blocks
    CLEANS: tl.constexpr = len(workspace) == 3
    store_block(
        operands, tile_origin, q, first_block, k, workspace,
        FORM, False, CLEANS, PTX,
    )  # fmt: skip


_launch = Launch(block_norms_kernel)


def block_norms(x: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of squares and exponents of the blocks of vectors of a stack of one.

    The bits are those of numerics.scaling.block_norms; the sums of blocks with an Inf
    or NaN mean nothing.
    """
    if 0 in x.shape:
        shape = (
            *x.shape[:axis],
            -(-x.shape[axis] // NORM_BLOCK.value),
            *x.shape[axis + 1 :],
        )
        return x.new_zeros(shape, dtype=torch.float64), x.new_zeros(
            shape, dtype=torch.int64
        )
    sums, exponents = run_recorded(_sizes_of_blocks, x, axis, torch.int64, torch.int32)
    sums &= SUM_MASK.value
    exponents = exponents.to(torch.int64)
    # The sum of a block of Inf alone is 0 as well.
    is_zero = (sums == 0) & (exponents < scaling.INFINITE)
    exponents = torch.where(is_zero, scaling.NO_EXPONENT, exponents)
    return _by_vectors(sums.to(torch.float64), x, axis), _by_vectors(exponents, x, axis)


def lowest_bits(x: torch.Tensor, axis: int) -> torch.Tensor:
    """The lowest set bits of vectors, as numerics.scaling.lowest_bits of a stack of
    one.
    """
    if 0 in x.shape:
        return x.new_full(
            (*x.shape[:axis], 1, *x.shape[axis + 1 :]), NO_BIT, dtype=torch.int64
        )
    dtypes = torch.int64, torch.int32, torch.int32
    *_, lowest = run_recorded(_sizes_of_blocks, x, axis, *dtypes)
    low = _by_vectors(lowest, x, axis).amin(axis, keepdim=True).to(torch.int64)
    return torch.where(low == NO_LOWEST.value, NO_BIT, low)


def _sizes_of_blocks(x: Buffer, axis: int, *dtypes: torch.dtype) -> tuple[Buffer, ...]:
    """Sums and exponents of the blocks of all panels, and lowest bits where there is a
    third dtype.

    Each has the shape (panels, blocks, 16).
    """
    operands = ((x, axis),)
    layout = layout_of(operands)
    (panels,) = layout.panels
    blocks = -(-layout.k // NORM_BLOCK.value)
    shape = panels, blocks, PANEL.value
    workspace = tuple(x.launches.empty(shape, dtype) for dtype in dtypes)
    _launch(
        (panels * blocks,),
        *layout.arguments(operands),
        blocks,
        panels,
        workspace,
        FORM=layout.size_form,
        PTX=layout.ptx,
        num_warps=8,
    )
    return workspace


def _by_vectors(numbers: torch.Tensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    """Numbers of panels and blocks in the order of the operand's axes."""
    panels, blocks, width = numbers.shape
    rows = numbers.permute(0, 2, 1).reshape(panels * width, blocks)[: x.shape[3 - axis]]
    return (rows if axis == 2 else rows.T).unsqueeze(0)
