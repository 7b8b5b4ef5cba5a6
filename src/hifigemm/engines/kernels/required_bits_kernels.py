"""Triton kernel of `required_bits.py`: how far the scales of vectors stay above their lowest set bits."""

# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from hifigemm.engines.kernels.vector_norms_kernels import (
    ABSOLUTE,
    NORM_BLOCK,
    PANEL,
    block_of,
    block_sizes,
    exponent_of,
    join_blocks,
    place,
    scale_of,
)
from hifigemm.numerics.bits import NO_BIT as _NO_BIT

__all__ = ["required_bits_kernel"]

NO_BIT = tl.constexpr(_NO_BIT)
FRACTION = tl.constexpr((1 << 52) - 1)
NO_POWER = tl.constexpr(0x7FF << 52)
NO_LOWEST = tl.constexpr(1024)
"""Lowest bit of a vector of zeros, above that of every float64."""


@triton.jit
def _cleaned(parts):
    """The components of entries, all 0 where one of them is Inf or NaN."""
    finite = tl.abs(parts[0]) < float("inf")
    for i in tl.static_range(1, len(parts)):
        finite &= tl.abs(parts[i]) < float("inf")
    found = ()
    for i in tl.static_range(len(parts)):
        found += (tl.where(finite, parts[i], 0.0),)
    return found


@triton.jit
def _lowest_power(x):
    """Bits of the float64 2**l, l the exponent of the lowest set bit of x; those of infinity for 0.

    x less its lowest bit is the float64 whose fraction lacks that bit, and the difference is exact; a power of two,
    whose fraction is 0, is its own lowest bit.
    """
    bits = x.to(tl.int64, bitcast=True) & ABSOLUTE
    rest = (bits & (bits - 1)).to(tl.float64, bitcast=True)
    power = tl.where((bits & FRACTION) == 0, 0.0, rest)
    found = (tl.abs(x) - power).to(tl.int64, bitcast=True)
    return tl.where(bits == 0, NO_POWER, found)


@triton.jit
def _lowest(parts):
    """Exponents of the lowest set bits of the vectors of a block, INT32: shape (vectors, 1); NO_LOWEST for zeros."""
    found = _lowest_power(parts[0])
    for i in tl.static_range(1, len(parts)):
        found = tl.minimum(found, _lowest_power(parts[i]))
    found = tl.min(tl.min(found, axis=2), axis=0)
    return exponent_of(found) - 1


@triton.jit
def _store_block(operand, spot, q, at, k, workspace, SIDE: tl.constexpr, FORM: tl.constexpr, PTX: tl.constexpr):
    """What block `q` of the vectors of a panel tells."""
    block_sums, block_e, block_low = workspace
    parts = _cleaned(block_of(operand, spot, q, k, SIDE, FORM))
    e, sums = block_sizes(parts, 2, False, PTX)
    to = (at + q) * PANEL + tl.arange(0, PANEL)[:, None]
    tl.store(block_sums + to, sums)
    tl.store(block_e + to, e)
    tl.store(block_low + to, _lowest(parts))


@triton.jit
def _join_lowest(block_low, blocks):
    """Exponents of the lowest set bits of the vectors of a panel from those of its blocks."""
    ROWS: tl.constexpr = 16
    at = tl.arange(0, ROWS)[:, None] * PANEL + tl.arange(0, PANEL)[None, :]
    low = tl.full([PANEL], NO_LOWEST, tl.int32)
    for start in range(0, blocks, ROWS):
        mask = (start + tl.arange(0, ROWS) < blocks)[:, None]
        low = tl.minimum(low, tl.min(tl.load(block_low + start * PANEL + at, mask=mask, other=NO_LOWEST), axis=0))
    return low


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
    """Block `index` of all panels; where it is the last one of its panel to be done, what the panel lacks."""
    left, right = operands
    panels_a, num_a, num_b, k = sizes
    block_sums, block_e, block_low = workspace
    # The first panel of B comes second: what it and that of A lack may be enough to look no further.
    turn, q = index // blocks, index % blocks
    panel = tl.where(turn == 1, panels_a, tl.where((turn > 1) & (turn <= panels_a), turn - 1, turn))
    spot = place(panel, panels_a, num_a, num_b, PANEL)
    at = panel.to(tl.int64) * blocks
    if spot[0]:
        _store_block(left, spot, q, at, k, workspace, LEFT.side, LEFT, PTX)
    else:
        _store_block(right, spot, q, at, k, workspace, RIGHT.side, RIGHT, PTX)
    tl.debug_barrier()
    if tl.atomic_add(counters + 2 + panel, 1, sem="acq_rel") == blocks - 1:
        n, _, e = join_blocks(block_sums + at * PANEL, block_e + at * PANEL, blocks, False)
        low = _join_lowest(block_low + at * PANEL, blocks)
        scale, _ = scale_of(n, e, range_ptr, 0)
        known = (low != NO_LOWEST) & (spot[2] + tl.arange(0, PANEL) < spot[3])
        required = tl.where(known, NO_BIT - low - scale, 0)
        if each is not None:
            tl.store(each + panel.to(tl.int64) * PANEL + tl.arange(0, PANEL), required)
        tl.atomic_max(counters + tl.where(spot[0], 0, 1), tl.max(required))


@triton.jit
def _so_far(counters):
    """What both operands lack together, as far as it is known: the same for all threads of a program."""
    return tl.atomic_add(counters, 0, sem="relaxed") + tl.atomic_add(counters + 1, 0, sem="relaxed") - 2 * NO_BIT


_FREE = ["most", "panels", "panels_a", "num_a", "num_b", "k", "sab", "sav", "sak", "sbb", "sbv", "sbk"]


@triton.jit(do_not_specialize=_FREE)
def required_bits_kernel(
    a,
    b,
    range_ptr,
    block_sums,
    block_e,
    block_low,
    counters,
    each,
    most,
    panels,
    panels_a,
    num_a,
    num_b,
    k,
    sab,
    sav,
    sak,
    sbb,
    sbv,
    sbk,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    PTX: tl.constexpr,
):
    """Blocks of 16 vectors of an operand.

    `counters`, 0 beforehand: the largest -l - s + NO_BIT of A and of B, then the blocks of each panel that are done.
    `each`: -l - s + NO_BIT of every vector of every panel; each program takes one block. Without it, programs take one
    after the other, and stop once the largest that were found add up to more than `most`.
    """
    blocks = tl.cdiv(k, NORM_BLOCK)
    operands = (a, sab, sav, sak), (b, sbb, sbv, sbk)
    sizes = panels_a, num_a, num_b, k
    workspace = block_sums, block_e, block_low
    index = tl.program_id(0)
    if each is not None:
        if index < panels * blocks:  # all are; the branch saves 12 registers, and so leaves room for a third program
            _look_at(index, blocks, operands, sizes, range_ptr, workspace, counters, each, LEFT, RIGHT, PTX)
    else:
        so_far = most
        while (index < panels * blocks) & (so_far <= most):
            _look_at(index, blocks, operands, sizes, range_ptr, workspace, counters, each, LEFT, RIGHT, PTX)
            index += tl.num_programs(0)
            so_far = _so_far(counters)
