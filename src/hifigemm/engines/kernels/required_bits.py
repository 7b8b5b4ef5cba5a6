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
from typing import Any

import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels.launch import Launch, cleared, empty
from hifigemm.engines.kernels.residue_words import vector_constants
from hifigemm.engines.kernels.scaled_residues import layout_of
from hifigemm.engines.kernels.vector_norms import (
    NO_LOWEST,
    NORM_BLOCK,
    PANEL,
    join_blocks,
    join_lowest,
    place,
    scale_of,
    store_block,
)
from hifigemm.engines.kernels.vector_tiles import num_sms
from hifigemm.numerics.bits import NO_BIT, Array
from hifigemm.numerics.residues import moduli_set

NO_LIMIT = 2**24
"""More bits than any two operands lack."""
_PROGRAMS = 2
"""That a multiprocessor runs at a time; no more take part in a look that may stop
early, which each has to find out.
"""
_NO_BIT = tl.constexpr(NO_BIT)


@triton.jit
def _look_at(
    index,
    blocks,
    operands,
    sizes,
    range_ptr,
    workspace,
    counters,
    each,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    PTX: tl.constexpr,
):
    """Block `index` of all panels; where it is the last one of its panel to be done,
    what the panel lacks.
    """
    panels_a, num_a, num_b, k = sizes
    block_sums, block_e, block_low = workspace
    # The first panel of B comes second: what it and that of A lack may be enough to
    # look no further.
    turn, q = index // blocks, index % blocks
    panel = tl.where(
        turn == 1, panels_a, tl.where((turn > 1) & (turn <= panels_a), turn - 1, turn)
    )
    spot = place(panel, panels_a, num_a, num_b, PANEL)
    at = panel.to(tl.int64) * blocks
    store_block(operands, spot, q, at, k, workspace, LEFT, RIGHT, False, PTX)
    # All threads have stored their part of the block before the program says that it is
    # done. The program that counts the last block of the panel sees what all others
    # stored, and joins it.
    tl.debug_barrier()
    if tl.atomic_add(counters + 2 + panel, 1, sem="acq_rel") == blocks - 1:
        n, _, e = join_blocks(
            block_sums + at * PANEL, block_e + at * PANEL, blocks, False
        )
        low = join_lowest(block_low + at * PANEL, blocks)
        # How far the scale of a vector stays above its lowest set bit; nothing for
        # zeros and vectors that do not exist.
        scale, _ = scale_of(n, e, range_ptr, 0)
        known = (low != NO_LOWEST) & (spot[2] + tl.arange(0, PANEL) < spot[3])
        required = tl.where(known, _NO_BIT - low - scale, 0)
        if each is not None:
            tl.store(each + panel.to(tl.int64) * PANEL + tl.arange(0, PANEL), required)
        tl.atomic_max(counters + tl.where(spot[0], 0, 1), tl.max(required))


@triton.jit
def _so_far(counters):
    """What both operands lack together, as far as it is known: the same for all threads
    of a program.
    """
    return (
        tl.atomic_add(counters, 0, sem="relaxed")
        + tl.atomic_add(counters + 1, 0, sem="relaxed")
        - 2 * _NO_BIT
    )


_FREE = [
    "most",
    "panels",
    "panels_a",
    "num_a",
    "num_b",
    "k",
    "sab",
    "sav",
    "sak",
    "sbb",
    "sbv",
    "sbk",
]


@triton.jit(do_not_specialize=_FREE)
def required_bits_kernel(
    a,
    sab,
    sav,
    sak,
    b,
    sbb,
    sbv,
    sbk,
    num_a,
    num_b,
    k,
    range_ptr,
    block_sums,
    block_e,
    block_low,
    counters,
    each,
    most,
    panels,
    panels_a,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    PTX: tl.constexpr,
):
    """Blocks of 16 vectors of an operand.

    `counters`, 0 beforehand: the largest -l - s + NO_BIT of A and of B, then the blocks
    of each panel that are done. `each`: -l - s + NO_BIT of every vector of every panel;
    each program takes one block. Without it, programs take one after the other, and
    stop once the largest that were found add up to more than `most`.
    """
    blocks = tl.cdiv(k, NORM_BLOCK)
    operands = (a, sab, sav, sak), (b, sbb, sbv, sbk)
    sizes = panels_a, num_a, num_b, k
    workspace = block_sums, block_e, block_low
    index = tl.program_id(0)
    if each is not None:
        # all are; the branch saves 12 registers, and so leaves room for a third program
        if index < panels * blocks:
            _look_at(
                index,
                blocks,
                operands,
                sizes,
                range_ptr,
                workspace,
                counters,
                each,
                LEFT,
                RIGHT,
                PTX,
            )
    else:
        so_far = most
        while (index < panels * blocks) & (so_far <= most):
            _look_at(
                index,
                blocks,
                operands,
                sizes,
                range_ptr,
                workspace,
                counters,
                each,
                LEFT,
                RIGHT,
                PTX,
            )
            index += tl.num_programs(0)
            so_far = _so_far(counters)


_launch = Launch(required_bits_kernel)


def num_counters(left: Any, right: Any) -> int:
    """Entries of the counters of `launch`."""
    return 2 + sum(layout_of(((left, 2), (right, 1))).panels)


def launch(left: Any, right: Any, most: int, counters: Any = None) -> Any:
    """Launch the look at two operands; an int32 tensor of two entries for
    `required_bits_from`.

    Parameters
    ----------
    left, right : tensors, shapes (batch or 1, m, k) and (batch or 1, k, n)
        float32, float64, complex64 or complex128, the same for both, any strides, none
        of the sizes 0.
    most : int
        See numerics.scaling.required_bits.
    counters : int32 tensor of `num_counters` zeros, optional
        Whose first two entries are returned.
    """
    return _launch_counters(left, right, most, None, counters)[:2]


def launch_each(left: Any, right: Any) -> Any:
    """Launch the look at one matrix times another; an int32 tensor for
    `required_bits_of_vectors_from`.
    """
    panels = sum(-(-size // PANEL.value) for size in (left.shape[1], right.shape[2]))
    each = empty((panels * PANEL.value,), torch.int32, left)
    _launch_counters(left, right, NO_LIMIT, each)
    return each


def _launch_counters(
    left: Any, right: Any, most: int, each: Any, counters: Any = None
) -> Any:
    """The counters of a launch, on their way."""
    operands = (left, 2), (right, 1)
    layout = layout_of(operands)
    constants = vector_constants(
        moduli_set(2, layout.width == 2), layout.width, 1, left.device, layout.ptx
    )
    blocks = -(-layout.k // NORM_BLOCK.value)
    shape = sum(layout.panels), blocks, PANEL.value
    counters = cleared(2 + sum(layout.panels), left) if counters is None else counters
    programs = sum(layout.panels) * blocks
    if each is None and most < NO_LIMIT:
        programs = min(programs, _PROGRAMS * max(num_sms(left), 1))
    _launch(
        (programs,),
        *(*layout.arguments(operands), constants.range),
        *(
            empty(shape, dtype, left)
            for dtype in (torch.int64, torch.int32, torch.int32)
        ),
        *(counters, each, most, sum(layout.panels), layout.panels[0]),
        LEFT=layout.size_forms[0],
        RIGHT=layout.size_forms[1],
        PTX=layout.ptx,
        num_warps=8,
    )
    return counters


def required_bits_of_vectors_from(found: Array, m: int, n: int) -> tuple[Array, Array]:
    """numerics.scaling.required_bits_of_vectors from what a look at each found, once it
    is on the host.
    """
    columns = -(-m // PANEL.value) * PANEL.value
    return found[None, :m] - NO_BIT, found[None, columns : columns + n] - NO_BIT


def required_bits_from(found: Sequence[int], most: int) -> tuple[int, int] | None:
    """numerics.scaling.required_bits from what a look found, once it is on the host."""
    left, right = (x - NO_BIT for x in found)
    return None if left + right > most else (left, right)
