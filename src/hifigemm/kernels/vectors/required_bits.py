"""How many bits do exact integers of two operands need? The GPU's version of
numerics.scaling.required_bits.

One launch reads both operands once and leaves two numbers on the device, or one for
each row and column: how far the scales of vectors stay above their lowest set bits. For
operands that need more than a limit, as all but short data do where a limit is low, it
stops early.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.launch import Launch
from hifigemm.kernels.vectors.residue_words import vector_constants
from hifigemm.kernels.vectors.scaled_residues import layout_of
from hifigemm.kernels.vectors.statistics import NO_LOWEST
from hifigemm.kernels.vectors.vector_norms import (
    FREE_OF_OPERANDS,
    NORM_BITS,
    NORM_BLOCK,
    PANEL,
    join_blocks,
    join_lowest,
    place,
    scale_of,
    store_block,
)
from hifigemm.kernels.vectors.vector_tiles import num_sms
from hifigemm.numerics.bits import NO_BIT, Array
from hifigemm.numerics.residues import moduli_set

NO_LIMIT = 2**24
"""More bits than any two operands lack."""
_PROGRAMS = 2
"""Programs that a multiprocessor runs at a time.

No more take part in a look that may stop early, which each has to notice.
"""
_NO_BIT = tl.constexpr(NO_BIT)


@triton.jit
def _look_at(
    index,
    operands,
    sizes,
    range_ptr,
    results,
    FORM: tl.constexpr,
    PTX: tl.constexpr,
):
    """Sizes of block `index`; then the bits of its panel, if all other blocks of the
    panel are finished.
    """
    blocks, panels_a, counts, k = sizes
    workspace, counters, bits_of_vectors = results
    block_sums, block_e, block_low = workspace
    # Indices count the blocks of a panel, then the panels in turn. The first panel of B
    # has the second turn: what it and the first one of A lack may be enough to look no
    # further.
    turn = index // blocks
    q = index % blocks
    panel = tl.where(
        turn == 1, panels_a, tl.where((turn > 1) & (turn <= panels_a), turn - 1, turn)
    )
    tile_origin = place(panel, panels_a, counts, PANEL)
    first_block = panel.to(tl.int64) * blocks
    store_block(
        operands, tile_origin, q, first_block, k, workspace,
        FORM, False, True, PTX,
    )  # fmt: skip
    # All threads have stored their part of the block before the program counts it as
    # finished. The program that counts the last block of the panel sees what all others
    # stored, and joins it.
    tl.debug_barrier()
    if tl.atomic_add(counters + 2 + panel, 1, sem="acq_rel") == blocks - 1:
        n, _, e = join_blocks(
            block_sums + first_block * PANEL,
            block_e + first_block * PANEL,
            blocks,
            False,
        )
        low = join_lowest(block_low + first_block * PANEL, blocks)
        # How far the scale of a vector stays above its lowest set bit; nothing for
        # zeros and vectors that do not exist.
        scale, _ = scale_of(n, e, range_ptr, 0, NORM_BITS)
        has_bits = (low != NO_LOWEST) & (
            tile_origin[2] + tl.arange(0, PANEL) < tile_origin[3]
        )
        required = tl.where(has_bits, _NO_BIT - low - scale, 0)
        if bits_of_vectors is not None:
            tl.store(
                bits_of_vectors + panel.to(tl.int64) * PANEL + tl.arange(0, PANEL),
                required,
            )
        # The largest of a side: a maximum does not depend on the order of programs.
        tl.atomic_max(counters + tl.where(tile_origin[0], 0, 1), tl.max(required))


@triton.jit
def _so_far(counters):
    """Bits that both operands lack together, as far as they are known.

    All threads of a program get the same number.
    """
    # Atomic reads, which one thread makes for all: plain loads could differ from warp
    # to warp, and so could the branches on them.
    return (
        tl.atomic_add(counters, 0, sem="relaxed")
        + tl.atomic_add(counters + 1, 0, sem="relaxed")
        - 2 * _NO_BIT
    )


@triton.jit(do_not_specialize=[*FREE_OF_OPERANDS, "limit", "panels", "panels_a"])
def required_bits_kernel(
    a,
    b,
    counts,
    k,
    range_ptr,
    workspace,
    counters,
    bits_of_vectors,
    limit,
    panels,
    panels_a,
    FORM: tl.constexpr,
    PTX: tl.constexpr,
):
    """Twin: numerics.scaling.required_bits, with `bits_of_vectors`
    required_bits_of_vectors.

    A tile is a block of 256 entries along k of the 16 vectors of a panel. `counters`, 0
    beforehand, are the largest -l - s + NO_BIT of A and of B, then the finished blocks
    of each panel. `bits_of_vectors` gets -l - s + NO_BIT of every vector of every
    panel; each program takes one block. Without it, programs take one after the other,
    and stop once the largest that were found add up to more than `limit`.
    """
    blocks = tl.cdiv(k, NORM_BLOCK)
    operands = a, b
    sizes = blocks, panels_a, counts, k
    results = workspace, counters, bits_of_vectors
    index = tl.program_id(0)
    if bits_of_vectors is not None:
        # True for all programs; the branch saves 12 registers, and so leaves room for a
        # third program on a multiprocessor.
        if index < panels * blocks:
            _look_at(index, operands, sizes, range_ptr, results, FORM, PTX)
    else:
        # Programs go on to blocks that lie apart by the number of programs. None waits
        # for another, so that each may stop as soon as it sees the limit exceeded.
        # Which blocks were looked at by then depends on timing; that the limit is
        # exceeded does not.
        so_far = limit
        while (index < panels * blocks) & (so_far <= limit):
            _look_at(index, operands, sizes, range_ptr, results, FORM, PTX)
            index += tl.num_programs(0)
            so_far = _so_far(counters)


_launch = Launch(required_bits_kernel)


def num_counters(left: Buffer, right: Buffer) -> int:
    """How many counters `launch` takes."""
    return 2 + sum(layout_of(((left, 2), (right, 1))).panels)


def launch(
    left: Buffer,
    right: Buffer,
    most: int,
    counters: Buffer | None = None,
) -> Buffer:
    """Launch the look at two operands.

    Parameters
    ----------
    left, right : tensors, shapes (batch or 1, m, k) and (batch or 1, k, n)
        float32, float64, complex64 or complex128, the same for both, any strides, none
        of the sizes 0.
    most : int
        See numerics.scaling.required_bits.
    counters : int32 tensor of `num_counters` zeros, optional
        Whose first two entries are returned.

    Returns
    -------
    int32 tensor of two entries, for `required_bits_from`
    """
    return _launch_counters(left, right, most, None, counters)[:2]


def launch_each(left: Buffer, right: Buffer) -> Buffer:
    """Launch the look at one matrix times another.

    Returns
    -------
    int32 tensor, for `required_bits_of_vectors_from`
    """
    panels = sum(-(-size // PANEL.value) for size in (left.shape[1], right.shape[2]))
    bits_of_vectors = left.launches.empty((panels * PANEL.value,), torch.int32)
    _launch_counters(left, right, NO_LIMIT, bits_of_vectors)
    return bits_of_vectors


def _launch_counters(
    left: Buffer,
    right: Buffer,
    limit: int,
    bits_of_vectors: Buffer | None,
    counters: Buffer | None = None,
) -> Buffer:
    """The counters of a launch that is under way."""
    operands = (left, 2), (right, 1)
    layout = layout_of(operands)
    constants = vector_constants(
        moduli_set(2, layout.width == 2), layout.width, 1, left.device, layout.ptx
    )
    blocks = -(-layout.k // NORM_BLOCK.value)
    panels = sum(layout.panels)
    shape = panels, blocks, PANEL.value
    # Sums, exponents and lowest bits of blocks.
    dtypes = torch.int64, torch.int32, torch.int32
    workspace = tuple(left.launches.empty(shape, dtype) for dtype in dtypes)
    if counters is None:
        counters = left.launches.zeros((2 + panels,), torch.int32)
    programs = panels * blocks
    # Where a look may stop early, no more programs start than run at a time.
    if bits_of_vectors is None and limit < NO_LIMIT:
        programs = min(programs, _PROGRAMS * max(num_sms(left), 1))
    _launch(
        (programs,),
        *layout.arguments(operands),
        constants.range,
        workspace,
        counters,
        bits_of_vectors,
        limit,
        panels,
        layout.panels[0],
        FORM=layout.size_form,
        PTX=layout.ptx,
        num_warps=8,
    )
    return counters


def required_bits_of_vectors_from(
    numbers: Array, m: int, n: int
) -> tuple[Array, Array]:
    """The bits that each row and column lacks, from the numbers of `launch_each` on the
    host.

    They are those of numerics.scaling.required_bits_of_vectors.
    """
    columns = -(-m // PANEL.value) * PANEL.value
    return numbers[None, :m] - NO_BIT, numbers[None, columns : columns + n] - NO_BIT


def required_bits_from(numbers: Sequence[int], most: int) -> tuple[int, int] | None:
    """The bits that each side lacks, from the numbers of `launch` on the host.

    They are those of numerics.scaling.required_bits: None where the sum exceeds `most`.
    """
    left, right = (x - NO_BIT for x in numbers)
    return None if left + right > most else (left, right)
