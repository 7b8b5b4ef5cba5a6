"""Scales and residues of the operands of Ozaki scheme II on a GPU, and what the
operands tell of their products.

Overrides of numerics.scaling.norm_scale and of the residues of
numerics.scaling.round_to_integers, with the same bits. An operand is given as (tensor,
axis): (batch, m, k) with axis 2 for rows, or (batch, k, n) with axis 1 for columns;
float32, float64, complex64 or complex128, any strides, none of its sizes 0. Two
operands share each launch, and have the same k, dtype and device.

Short vectors stay in the registers of a program. Long ones are cut into pieces: scales
run ahead of residues in the same launch, so that operands are read a second time from a
cache. Which of the two is taken changes no bits.

Tiles of residues have pieces that are what a warp has of its vectors, 16 consecutive
entries in a thread: residues are stored 16 bytes wide, and loads across the vectors
still fill sectors of 32 bytes, without an exchange between threads. The axes of tiles
are those of vector_norms.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.common import NO_PREDICATE, Predicate, holds, runs_ptx
from hifigemm.kernels.runtime.launch import Launch, real_view
from hifigemm.kernels.vectors import vector_norms
from hifigemm.kernels.vectors.residue_words import (
    VectorConstants,
    integer_words,
    num_words_for,
    residue,
    residue_pair,
    vector_constants,
)
from hifigemm.kernels.vectors.statistics import INFINITE, NO_LOWEST
from hifigemm.kernels.vectors.vector_norms import (
    BLOCK,
    FREE_OF_OPERANDS,
    NORM_BITS,
    NORM_BLOCK,
    PANEL,
    PIECE,
    VECTOR,
    K,
    SizeForm,
    Vectors,
    along,
    are_below,
    block_sizes,
    chosen,
    components_of,
    exponent_factors,
    join_blocks,
    join_lowest,
    joined_sizes,
    lowest_bits,
    magnitude,
    place,
    scale_of,
    store_block,
)
from hifigemm.numerics.estimates import MAGNITUDE_BITS_DOWN, MAGNITUDE_BITS_UP
from hifigemm.numerics.residues import ModuliSet

Operand = tuple[Any, int]
_NOT_FINITE = vector_norms.NOT_FINITE
NOT_FINITE: int = _NOT_FINITE.value
"""Exponent of a vector with an Inf or NaN; its residues mean nothing."""
_SIZES = {torch.float32: 4, torch.float64: 8, torch.complex64: 4, torch.complex128: 8}
_LONG = 1024
"""Inner dimension from which rows of residues begin on lines of 128 bytes: odd pitches
slow the products down.
"""
_ENTRIES = 32
"""Real numbers of a thread; where their integers have many words, threads have half as
many.
"""
_LEAST_AHEAD = 3
"""Panels by which scales run ahead of residues, at least: while one program joins the
blocks of a long panel, the residues of the panel before are made.
"""
_PAIR_REGISTERS = 128
"""Of a thread that makes pairs of residues: two programs of 256 threads on a
multiprocessor, of which one may load.
"""
NONE_MISSING: int = 2**12
"""What stands for integers that hold all bits, the lowest one included: numbers of missing
bits are above it, and of those to spare below. See `scaled_residues`.
"""
_NONE_MISSING = tl.constexpr(NONE_MISSING)
_BITS_DOWN = tl.constexpr(MAGNITUDE_BITS_DOWN)
_BITS_UP = tl.constexpr(MAGNITUDE_BITS_UP)


@dataclass(frozen=True)
class ResiduesForm:
    """What the kernel knows of the operands and its tile of residues when it is
    compiled.
    """

    vector: int  # entries of an operand along k that may be loaded at a time
    width: int  # components of an entry: 1, or 2 for complex operands
    # `vectors`, `blocks`: vectors and blocks of 256 along k in a tile
    vectors: int
    blocks: int

    @property
    def piece(self) -> int:
        """Entries of a piece."""
        return 512 // self.vectors


@dataclass(frozen=True)
class Task:
    """What a launch does, known when the kernel is compiled."""

    whole: bool  # whether vectors stay in the registers of a program
    scales: bool  # whether scales are found; else they are given
    residues: bool
    sums: bool  # whether sizes and magnitudes are made
    bits: bool  # whether the bits that the integers miss are counted
    truncates: bool  # whether a vector may be rounded toward zero


_task = cache(Task)
"""The task with these fields, made once: a launch compares it with those it knows."""


class VectorScale(NamedTuple):
    """How vectors become integers, as numerics.scaling.Scale: int32 tensors of shape
    (batch, vectors).
    """

    exponent: Any  # tensor: power of two that multiplies the vector, or NOT_FINITE
    # tensor: 1 where the integers are rounded to nearest, 0 where toward zero
    nearest: Any


class _BalancedScale(NamedTuple):
    """A scale as the kernel takes it, with the balance of its side."""

    exponent: Any
    nearest: Any
    balance: int


class _Blocks(NamedTuple):
    """What the programs that share a panel of long vectors leave for each other."""

    # int64 and int32 tensors, shape (panels, blocks, 16): sums and exponents of blocks
    sums: Any
    exponents: Any
    # int32 tensor, shape (panels,), zeros at first: blocks that are stored, and one more
    # once the scales are
    arrivals: Any
    # int32 tensor, shape (panels, blocks, 16): lowest bits; None where nobody asks
    lows: Any = None


@triton.jit
def along_k(step, FORM: tl.constexpr):
    """Indices along k of tile number `step`.

    The axes are K, PIECE and BLOCK: entries of a piece, pieces of a block of 256,
    blocks.
    """
    blocks = (step * FORM.blocks + tl.arange(0, FORM.blocks)) * NORM_BLOCK
    pieces = tl.arange(0, NORM_BLOCK // FORM.piece) * FORM.piece
    return (
        along(tl.arange(0, FORM.piece), K) + along(pieces, PIECE) + along(blocks, BLOCK)
    )


@triton.jit
def vectors_of_tile(start, FORM: tl.constexpr):
    """Indices of the vectors of a tile, the first of which is `start`."""
    return start + along(tl.arange(0, FORM.vectors), VECTOR)


@triton.jit
def load_either(operands, tile_origin, ks, k, FORM: tl.constexpr):
    """The components of a tile of the operand that the program takes."""
    is_left, batch, start, count = tile_origin
    x, sb, sv, sk = chosen(is_left, operands[0], operands[1])
    # A vector beyond the last one is read as the last: nothing of it is stored.
    vs = tl.minimum(vectors_of_tile(start, FORM), count - 1).to(tl.int64)
    # Both layouts have compiled code, so that one kernel serves all. Along k the
    # compiler sees that FORM.vector entries are loaded at a time. A `return` in each
    # branch would make threads exchange what they have loaded.
    if sk == 1:
        vectors = batch * (sb // FORM.vector) + vs * (sv // FORM.vector)
        entries = x + vectors * (FORM.vector * FORM.width) + ks * FORM.width
        parts = components_of(entries, are_below(ks, k, FORM.vector), FORM.width)
    else:
        vectors = batch * sb + vs * sv
        entries = x + vectors * FORM.width + ks.to(tl.int64) * (sk * FORM.width)
        parts = components_of(entries, ks < k, FORM.width)
    return parts


@triton.jit
def _store_residues(
    words,
    out,
    tile_origin,
    ks,
    FORM: tl.constexpr,
    ARITHMETIC: tl.constexpr,
    LEAVES: tl.constexpr,
):
    """Twin: numerics.residues.residues, of the integers of a tile.

    A row of the table makes one residue or, with pairs, two; the pitch is in units of
    16 bytes. With LEAVES they leave the cache before anything else does. No other
    program writes to this tile's part of the planes.
    """
    POLICY: tl.constexpr = "evict_first" if LEAVES else ""
    planes, pitch16, num_planes, table = out
    is_left, batch, start, count = tile_origin
    vs = vectors_of_tile(start, FORM)
    mask = (vs < count) & (ks < pitch16 * 16)
    # Planes of a matrix follow each other, one for each residue; all rows begin on
    # multiples of 16 bytes.
    row = (batch * num_planes * count + vs) * pitch16
    residues = tl.where(is_left, planes[0], planes[1]) + row * 16 + ks
    plane_stride = count.to(tl.int64) * pitch16 * 16
    # Entries beyond k are zeros, and so are their residues.
    if ARITHMETIC.pairs:
        for l in range(0, num_planes, 2):
            plus, minus = residue_pair(words, table + (l // 2) * (len(words) + 4))
            place_of_plus = residues + l * plane_stride
            place_of_minus = place_of_plus + plane_stride
            tl.store(place_of_plus, plus, mask=mask, eviction_policy=POLICY)
            tl.store(place_of_minus, minus, mask=mask, eviction_policy=POLICY)
    else:
        LENGTH: tl.constexpr = len(words) + (3 if ARITHMETIC.dp4a else 2)
        for l in range(num_planes):
            tl.store(
                residues + l * plane_stride,
                residue(words, table + l * LENGTH, ARITHMETIC.dp4a),
                mask=mask,
                eviction_policy=POLICY,
            )


@triton.jit
def store_magnitudes(
    parts,
    e,
    magnitudes,
    tile_origin,
    ks,
    k,
    FORM: tl.constexpr,
    PTX: tl.constexpr,
    UP: tl.constexpr = False,
):
    """Twin: numerics.estimates.magnitudes_down. |x| 2**(7 - e) of a tile, rounded down;
    with UP numerics.estimates.magnitudes_up, |x| 2**(6 - e), rounded up.

    Entries that are Inf or NaN count 0; without UP a vector that holds one has the
    exponent INFINITE.
    """
    BITS: tl.constexpr = _BITS_UP if UP else _BITS_DOWN
    is_left, batch, start, count = tile_origin
    vs = vectors_of_tile(start, FORM)
    first, second = exponent_factors(e, BITS)
    # Rows are as long as a multiple of 128 bytes.
    pitch16 = tl.cdiv(k, 128) * 8
    row = (batch * count + vs) * pitch16 * FORM.width
    entries = tl.where(is_left, magnitudes[0], magnitudes[1]) + row * 16 + ks
    # re of a vector, and behind it im; bytes beyond k are zeros up to the pitch.
    for i in tl.static_range(len(parts)):
        z = tl.where(tl.abs(parts[i]) < float("inf"), parts[i], 0.0)
        rounded = magnitude(z, first, second, UP, PTX).to(tl.int8)
        tl.store(
            entries + i * pitch16 * 16,
            rounded,
            mask=(vs < count) & (ks < pitch16 * 16),
        )


@triton.jit
def _count_missing(lowest, scale, inside, is_left, missing):
    """Raise the numbers of missing bits, of both operands and of this one, to what
    vectors with these lowest bits and scales miss.
    """
    # Zeros miss nothing. Vectors with an Inf or NaN have no integers.
    counts = inside & (lowest != NO_LOWEST) & (scale != _NOT_FINITE)
    bits = tl.max(tl.where(counts, _NONE_MISSING - lowest - scale, 0)).to(tl.int64)
    # A maximum does not depend on the order of programs.
    tl.atomic_max(missing, bits, sem="relaxed")
    tl.atomic_max(missing + tl.where(is_left, 1, 2), bits, sem="relaxed")


_FREE = [
    *FREE_OF_OPERANDS, "tiles_a", "scale_a", "scale_b", "total_a", "total",
    "pitch16", "num_planes", "panels", "ahead", "predicate",
]  # fmt: skip


@triton.jit(do_not_specialize=_FREE)
def scaled_residues_kernel(
    a,
    b,
    counts,
    k,
    tiles_a,
    range_ptr,
    table,
    scale_a,
    scale_b,
    vector_sizes,
    total_a,
    total,
    low,
    planes,
    pitch16,
    num_planes,
    panel_blocks,
    panels,
    ahead,
    missing,
    predicate,
    FORM: tl.constexpr,
    SIZES: tl.constexpr,
    TASK: tl.constexpr,
    ARITHMETIC: tl.constexpr,
):
    """Twin: numerics.scaling.norm_scale, then
    numerics.residue_products.scaled_residues.

    Scales, residues, sizes and magnitudes as the TASK has them; the twins of the last
    two are numerics.scaling.vector_sizes and numerics.estimates.magnitudes_down. A tile
    has FORM.vectors vectors and FORM.blocks blocks of 256 entries along k, a panel 16
    vectors. `vector_sizes` are exponents and norms, `low` and `planes` what goes to the
    magnitudes and residues of A and of B; `missing` is as for `scaled_residues`.

    Where vectors are whole, which asks for scales and residues, each program keeps some
    of them in its registers. Else panels of 16 vectors follow each other: in every
    round the first programs take the blocks of one panel, the others make the residues
    of a panel `ahead` rounds before, which a cache still holds. These wait for the
    scales of their panel, which depend on programs with smaller indices only, and those
    wait for no other program. Where the predicate does not hold, all programs leave at once,
    those that would wait and those that they would wait for.
    """
    if not holds(predicate):
        return
    operands = a, b
    scales = (
        (scale_a.exponent, scale_a.nearest, scale_a.balance, 0),
        (scale_b.exponent, scale_b.nearest, scale_b.balance, total_a),
    )
    sizes = vector_sizes, total
    out = planes, pitch16, num_planes, table
    if TASK.whole:
        # A program for each tile of FORM.vectors whole vectors, which stay in its
        # registers from the sizes to the residues; the tiles of A come first.
        tile_origin = place(tl.program_id(0), tiles_a, counts, FORM.vectors)
        vs = vectors_of_tile(tile_origin[2], FORM)
        ks = along_k(0, FORM)
        parts = load_either(operands, tile_origin, ks, k, FORM)
        if TASK.bits:
            lowest = lowest_bits(parts, K)
        # Sizes of the blocks, then of the vectors: the largest exponent, and the sums
        # on its grid.
        block_e, sums = block_sizes(parts, K, TASK.sums, ARITHMETIC.ptx)
        e = tl.max(block_e, axis=BLOCK, keep_dims=True)
        block_n, block_s = joined_sizes(sums, block_e, e)
        n = tl.sum(block_n, axis=BLOCK, keep_dims=True)
        s = tl.sum(block_s, axis=BLOCK, keep_dims=True)
        scale, nearest = _store_scales(
            (n, s, e), tile_origin, vs, range_ptr, scales, sizes, TASK.sums
        )
        if TASK.sums:
            store_magnitudes(parts, e, low, tile_origin, ks, k, FORM, ARITHMETIC.ptx)
        if TASK.bits:
            inside = vs < tile_origin[3]
            _count_missing(lowest, scale, inside, tile_origin[0], missing)
        # The scaled and rounded entries as words of integers, and from these all
        # residues.
        words = integer_words(
            parts, scale, nearest, ARITHMETIC.num_words, TASK.truncates
        )
        _store_residues(words, out, tile_origin, ks, FORM, ARITHMETIC, False)
    else:
        # The programs of a round: first those of the blocks of a panel, then those of
        # its tiles of residues.
        blocks = tl.cdiv(k, NORM_BLOCK) if TASK.scales else 0
        steps = tl.cdiv(k, FORM.blocks * NORM_BLOCK)
        per_round = blocks + (steps * (PANEL // FORM.vectors) if TASK.residues else 0)
        panel = tl.program_id(0) // per_round
        task = tl.program_id(0) % per_round
        if task < blocks:
            # Block number `task` of the 16 vectors of a panel; its sizes go to memory.
            if TASK.scales:  # noqa: SIM102 - known when the kernel is compiled
                if panel < panels:
                    tile_origin = place(panel, tiles_a, counts, PANEL)
                    first_block = panel.to(tl.int64) * blocks
                    workspace = panel_blocks.sums, panel_blocks.exponents
                    if TASK.bits:
                        workspace += (panel_blocks.lows,)
                    store_block(
                        operands, tile_origin, task, first_block, k, workspace,
                        SIZES, TASK.sums, False, ARITHMETIC.ptx,
                    )  # fmt: skip
                    # All threads have stored their part before the program counts as
                    # arrived. The last program of a panel to arrive sees what all
                    # others stored, joins the blocks, and arrives once more.
                    tl.debug_barrier()
                    arrived = tl.atomic_add(
                        panel_blocks.arrivals + panel, 1, sem="acq_rel"
                    )
                    if arrived == blocks - 1:
                        panel_sizes = join_blocks(
                            panel_blocks.sums + first_block * PANEL,
                            panel_blocks.exponents + first_block * PANEL,
                            blocks,
                            TASK.sums,
                        )
                        vs = tile_origin[2] + tl.arange(0, PANEL)
                        scale, _ = _store_scales(
                            panel_sizes,
                            tile_origin,
                            vs,
                            range_ptr,
                            scales,
                            sizes,
                            TASK.sums,
                        )
                        if TASK.bits:
                            lowest = join_lowest(
                                panel_blocks.lows + first_block * PANEL, blocks
                            )
                            inside = vs < tile_origin[3]
                            _count_missing(
                                lowest, scale, inside, tile_origin[0], missing
                            )
                        tl.debug_barrier()
                        tl.atomic_add(panel_blocks.arrivals + panel, 1, sem="release")
        elif TASK.residues:
            # One tile of a panel whose scales are on their way since `ahead` rounds.
            # The tiles along k of the same vectors are counted first.
            panel -= ahead
            task -= blocks
            is_left, batch, start, count = place(panel, tiles_a, counts, PANEL)
            start += task // steps * FORM.vectors
            if (panel >= 0) & (start < count):
                tile_origin = (is_left, batch, start, count)
                vs = vectors_of_tile(start, FORM)
                ks = along_k(task % steps, FORM)
                # The loads are under way while the program waits for the scales.
                parts = load_either(operands, tile_origin, ks, k, FORM)
                # One arrival more than blocks: the scales are stored. The programs that
                # this one waits for have smaller indices, and so have started.
                if TASK.scales:
                    arrivals = panel_blocks.arrivals + panel
                    arrived = tl.atomic_add(arrivals, 0, sem="acquire")
                    while arrived <= blocks:
                        arrived = tl.atomic_add(arrivals, 0, sem="acquire")
                scale_exponents, to_nearest, _, begin = chosen(
                    is_left, scales[0], scales[1]
                )
                vectors = batch * count + vs
                scale = tl.load(scale_exponents + vectors, mask=vs < count, other=0)
                nearest = tl.load(to_nearest + vectors, mask=vs < count, other=1)
                if TASK.sums:
                    e = tl.load(
                        vector_sizes[0] + begin + vectors, mask=vs < count, other=0
                    )
                    store_magnitudes(
                        parts, e, low, tile_origin, ks, k, FORM, ARITHMETIC.ptx
                    )
                words = integer_words(
                    parts, scale, nearest, ARITHMETIC.num_words, TASK.truncates
                )
                # The cache is for the panels whose scales run ahead.
                _store_residues(words, out, tile_origin, ks, FORM, ARITHMETIC, True)


@triton.jit
def _store_scales(
    size_of_vectors, tile_origin, vs, range_ptr, scales, sizes, SUMS: tl.constexpr
):
    """Store scales of the vectors `vs` of a place, and with SUMS their sizes.

    `size_of_vectors` are their norms, sums and exponents.
    """
    n, s, e = size_of_vectors
    is_left, batch, _, count = tile_origin
    scale_exponents, to_nearest, balance, begin = chosen(is_left, scales[0], scales[1])
    scale, nearest = scale_of(n, e, range_ptr, balance, NORM_BITS)
    inside = vs < count
    vectors = batch * count + vs
    tl.store(scale_exponents + vectors, scale, mask=inside)
    tl.store(to_nearest + vectors, nearest, mask=inside)
    if SUMS:
        exponents_of_vectors, norms = sizes[0]
        total = sizes[1]
        # Vectors with an Inf or NaN have the norm 0. Those of the right operand come
        # behind all of the left one.
        finite = e < INFINITE
        vectors += begin
        tl.store(exponents_of_vectors + vectors, e, mask=inside)
        tl.store(norms + vectors, tl.where(finite, tl.sqrt(n), 0.0), mask=inside)
        tl.store(norms + total + vectors, tl.where(finite, s, 0.0), mask=inside)
    return scale, nearest


_launch = Launch(scaled_residues_kernel)


class Sizes(NamedTuple):
    """What the vectors of two operands tell of their products."""

    # int32 tensor, shape (total,): of the largest entries of all vectors of the left
    # operand, then of the right one
    exponents: Any
    # float64 tensor, shape (2, total): norms and sums of magnitudes in units of
    # 2**(exponent - 15), rounded up; 0 for vectors with an Inf or NaN
    norms: Any
    # int8 tensors of both operands, or of one that stands on both sides, shape (batch,
    # vectors, width kp), kp = k rounded up to 128: |x| 2**(7 - exponent), rounded down,
    # zero beyond k; of re, then of im
    magnitudes: tuple[Any, ...]
    # components of an entry: 1, or 2 for complex operands, whose vectors have the sizes
    # of both components together
    width: int = 1

    @property
    def is_of_one_operand(self) -> bool:
        """True if one operand stands on both sides."""
        return len(self.magnitudes) == 1

    @property
    def places(self) -> tuple[int, int]:
        """Where the norms of the right operand begin, and how many vectors there are; 0
        where both are one operand.
        """
        totals = [x.shape[0] * x.shape[1] for x in self.magnitudes]
        return sum(totals[:-1]), sum(totals)


@dataclass(frozen=True)
class Config:
    """Shape of a tile; it changes no bits."""

    vectors: int = 4  # vectors of a tile: 2, 4, 8 or 16
    # blocks of 256 along k in a tile, at most: a power of two. Vectors that are no
    # longer stay in registers
    blocks: int = 4
    # bytes by which scales run ahead of residues, if these are three panels or more
    ahead: int = 8 << 20


def norm_scales(
    operands: tuple[Operand, ...],
    moduli: ModuliSet,
    balances: tuple[int, ...] = (0, 0),
    config: Config | None = None,
) -> tuple[VectorScale, ...]:
    """Scales by Cauchy-Schwarz, see numerics.scaling.norm_scale.

    Parameters
    ----------
    operands : one or two (tensor, axis)
    moduli : ModuliSet
    balances : tuple of int
        Added to the exponents of each operand.
    config : Config, optional
        Otherwise `config_for` chooses.
    """
    layout = layout_of(operands, config)
    constants = vector_constants(
        moduli, layout.width, 1, operands[0][0].device, layout.ptx
    )
    return _run(layout, operands, constants, balances)


def scaled_residues(
    operands: tuple[Operand, ...],
    moduli: ModuliSet,
    scales: tuple[VectorScale, ...] | None = None,
    balances: tuple[int, ...] = (0, 0),
    bits: int | None = None,
    config: Config | None = None,
    predicate: Predicate | None = None,
    least_square: int = 0,
    missing: Any = None,
) -> tuple[tuple[Any, ...], tuple[VectorScale, ...]]:
    """Residues of the scaled and rounded operands, for the products of
    numerics.residue_products.product_operands.

    Parameters
    ----------
    operands : one or two (tensor, axis)
    moduli : ModuliSet
    scales : tuple of VectorScale, contiguous, optional
        Of these vectors; found on the way where None.
    balances : tuple of int
        Added to the exponents that are found on the way, or contained in those that are
        given.
    bits : int, optional
        |2**exponent x| < 2**bits for given scales that are not those of `norm_scales`.
    config : Config, optional
        Otherwise `config_for` chooses.
    predicate : Predicate, optional
        Decides on the device: unless the entry lies within the limits the operands are
        not read, and what is returned means nothing.
    least_square : int
        As for `vector_constants`: numerics.scaling.largest_square makes the scales those
        of `largest_scale` there.
    missing : int64 tensor of three entries, 0 beforehand, optional
        Get NONE_MISSING + the largest -l - s of the finite vectors of both operands, of
        the first and of the second: l is the lowest set bit, and s the exponent of the
        scale, which is found on the way. So many bits the integers miss; below
        NONE_MISSING they have some to spare. 0 for zeros.

    Returns
    -------
    planes : tuple of int8 tensors, shape (batch, products, vectors, pitch)
        Representatives in [-128, 127], zero beyond k; the pitch is k rounded up to 16,
        or to 128 from k = 1024 on.
    scales : tuple of VectorScale
    """
    layout = layout_of(operands, config)
    constants, planes = _planes(layout, operands, moduli, balances, bits, least_square)
    return planes, _run(
        layout,
        operands,
        constants,
        balances,
        scales,
        planes,
        predicate=predicate,
        missing=missing,
    )


def sized_residues(
    operands: tuple[Operand, ...],
    moduli: ModuliSet,
    balances: tuple[int, int] = (0, 0),
    config: Config | None = None,
    predicate: Predicate | None = None,
) -> tuple[tuple[Any, ...], tuple[VectorScale, ...], Sizes]:
    """`scaled_residues` of two operands, and their sizes; one operand stands for both
    sides of its product.

    Parameters
    ----------
    predicate : Predicate, optional
        As for `scaled_residues`.
    """
    layout = layout_of(operands, config, sized=True)
    like = operands[0][0]
    total = sum(layout.totals)
    constants, planes = _planes(layout, operands, moduli, balances, None)
    pitch = layout.width * (-(-layout.k // 128) * 128)
    magnitudes = [
        like.launches.empty((*shape, pitch), torch.int8) for shape in layout.shapes
    ]
    exponents = like.launches.empty((total,), torch.int32)
    norms = like.launches.empty((2, total), torch.float64)
    sizes = Sizes(exponents, norms, tuple(magnitudes), layout.width)
    return (
        planes,
        _run(
            layout,
            operands,
            constants,
            balances,
            None,
            planes,
            sizes,
            predicate,
        ),
        sizes,
    )


def _planes(
    layout: Partition,
    operands: tuple[Operand, ...],
    moduli: ModuliSet,
    balances: tuple[int, ...],
    bits: int | None,
    least_square: int = 0,
) -> tuple[VectorConstants, tuple[Any, ...]]:
    """Constants for integers of some bits, and tensors for residues."""
    device = operands[0][0].device
    top = (
        (math.isqrt(moduli.half_range) + 1) << max(*balances, 0)
        if bits is None
        else 1 << bits
    )
    constants = vector_constants(
        moduli, layout.width, num_words_for(top), device, layout.ptx, least_square
    )
    shapes = [
        (batch, constants.num_planes, count, layout.pitch)
        for batch, count in layout.shapes
    ]
    return constants, tuple(
        operands[0][0].launches.empty(shape, torch.int8) for shape in shapes
    )


def _run(
    layout: Partition,
    operands: tuple[Operand, ...],
    constants: VectorConstants,
    balances: tuple[int, ...],
    scales: tuple[VectorScale, ...] | None = None,
    planes: tuple[Any, ...] | None = None,
    sizes: Sizes | None = None,
    predicate: Predicate | None = None,
    missing: Any = None,
) -> tuple[VectorScale, ...]:
    """Launch what is asked for.

    Scales where they are not given, residues and sizes where there is room for them.
    """
    like = operands[0][0]
    is_given = scales is not None
    has_residues = planes is not None
    if scales is None:
        numbers = [
            like.launches.empty((2, *shape), torch.int32) for shape in layout.shapes
        ]
        scales = tuple(VectorScale(*x.unbind()) for x in numbers)

    # Programs: one for each few vectors that stay in registers; else rounds, each with
    # the blocks of a panel and the tiles of residues of another one.
    is_whole = layout.steps == 1 and has_residues and not is_given
    tiles = layout.tiles if is_whole else layout.panels
    programs = sum(tiles)
    blocks = 0
    ahead = 0
    panel_blocks = None
    if not is_whole:
        if not is_given:
            blocks = -(-layout.k // NORM_BLOCK.value)
            ahead = layout.ahead if has_residues else 0
            shape = programs, blocks, PANEL.value
            panel_blocks = _Blocks(
                sums=like.launches.empty(shape, torch.int64),
                exponents=like.launches.empty(shape, torch.int32),
                arrivals=like.launches.zeros((programs,), torch.int32),
                lows=None
                if missing is None
                else like.launches.empty(shape, torch.int32),
            )
        in_panel = layout.steps * (PANEL.value // layout.form.vectors)
        programs = (programs + ahead) * (blocks + (in_panel if has_residues else 0))

    vector_sizes, low = None, None
    if sizes is not None:
        vector_sizes = sizes.exponents, sizes.norms
        low = sizes.magnitudes[0], sizes.magnitudes[-1]
    arithmetic = constants.arithmetic
    options: dict[str, Any] = {"num_warps": 8}
    if has_residues:
        options["num_warps"] = warps_for(
            layout.warps, arithmetic.num_words, dp4a=arithmetic.dp4a
        )
        if arithmetic.pairs:
            options["maxnreg"] = _PAIR_REGISTERS
    truncates = is_given or constants.truncates(layout.width * layout.k, balances)
    task = _task(
        is_whole,
        not is_given,
        has_residues,
        sizes is not None,
        missing is not None,
        has_residues and truncates,
    )
    _launch(
        (programs,),
        *layout.arguments(operands),
        tiles[0],
        constants.range,
        constants.table,
        _BalancedScale(*scales[0], balances[0]),
        _BalancedScale(*scales[-1], balances[-1]),
        vector_sizes,
        layout.totals[0],
        sum(layout.totals),
        low,
        None if planes is None else (planes[0], planes[-1]),
        layout.pitch // 16,
        constants.num_planes,
        panel_blocks,
        sum(tiles),
        ahead,
        missing,
        predicate or NO_PREDICATE,
        FORM=layout.form,
        SIZES=None if is_whole else layout.size_form,
        TASK=task,
        ARITHMETIC=arithmetic,
        **options,
    )
    return scales


@dataclass(frozen=True, eq=False)
class Partition:
    """How operands of some shapes and strides are cut up."""

    shapes: tuple[tuple[int, int], ...]  # (batch, vectors) of each operand
    totals: tuple[int, ...]  # vectors of the stack of each operand
    # strides along the stack, from vector to vector and along k of each operand, as the
    # kernels take them: the last one is 1 where the order along k is that in memory
    distances: tuple[tuple[int, int, int], ...]
    # `k`, `pitch`: inner dimension, and the length of rows of residues
    k: int
    pitch: int
    # `form`, `size_form`: for the residues, and for the sizes
    form: ResiduesForm
    size_form: SizeForm
    # `tiles`, `panels`: tiles of vectors that stay in registers, and panels of 16
    # vectors, of each operand
    tiles: tuple[int, ...]
    panels: tuple[int, ...]
    steps: int  # tiles of residues along k; one where the vectors stay in registers
    ahead: int  # panels by which scales run ahead of residues
    warps: int  # of a program that makes residues
    ptx: bool  # whether inline PTX may be used

    @property
    def width(self) -> int:
        """Components of an entry."""
        return self.form.width

    def arguments(self, operands: tuple[Operand, ...]) -> tuple[Any, ...]:
        """Both operands as real numbers, their numbers of vectors, and k; one operand
        stands for both.
        """
        sides = (
            Vectors(real_view(operands[i][0]), *self.distances[i]) for i in (0, -1)
        )
        return *sides, (self.shapes[0][1], self.shapes[-1][1]), self.k


def config_for(dtype: Any, k: int, *, sized: bool) -> Config:
    """The tile that was quickest for square operands on an H200, between n = 512 and
    16384, and for long vectors on an H100.

    Two vectors in the registers of a program as long as they are no longer than 2048,
    or real ones without sizes than 4096: 71 us instead of 81 for 15 moduli at n = 2048,
    with sizes 76 instead of 88, and a tenth less for other dtypes; at n = 4096 between
    nothing and 7 % less, but with sizes 14 % more. Longer float64 vectors go in pieces
    of 512: 270 us instead of 290 at n = 4096; beyond 4096 sixteen at a time in pieces
    of 256. On an H100 those take 1560 us for 1627 at 256 x 2**18, 1492 for 1583 at 1024
    x 2**16, 1210 for 1228 at n = 8192.
    """
    if k <= 1024:
        return Config()
    if k <= (2048 if sized or dtype.is_complex else 4096):
        return Config(vectors=2, blocks=8 if k <= 2048 else 16)
    if dtype != torch.float64:
        return Config()
    return Config(vectors=8, blocks=2) if k <= 4096 else Config(vectors=16, blocks=1)


def warps_for(warps: int, num_words: int, *, dp4a: bool) -> int:
    """Warps of a program that makes residues, where one that holds integers of two
    words has `warps`.

    Twice as many for more words, which are registers, or pairs of them in float64:
    three words of 32 integers leave room for 8 warps on a multiprocessor, of 16
    integers for 16.
    """
    return min(2 * warps, 32) if num_words * (1 if dp4a else 2) > 2 else warps


def layout_of(
    operands: tuple[Operand, ...], config: Config | None = None, *, sized: bool = False
) -> Partition:
    """How these operands are cut up, whether or not their sizes are asked for."""
    first, axis = operands[0]
    config = config or config_for(first.dtype, first.shape[axis], sized=sized)
    facts = tuple(
        (x.shape, x.stride(), axis, x.data_ptr() % 16 == 0) for x, axis in operands
    )
    return _layout(first.dtype, runs_ptx(first), config, facts)


@lru_cache(maxsize=1024)
def _layout(dtype: Any, ptx: bool, config: Config, facts: tuple[Any, ...]) -> Partition:
    width, block, panel = 2 if dtype.is_complex else 1, NORM_BLOCK.value, PANEL.value
    k = facts[0][0][facts[0][2]]
    shapes = tuple((shape[0], shape[3 - axis]) for shape, _, axis, _ in facts)
    distances = [
        (stride[0] if shape[0] > 1 else 0, stride[3 - axis], stride[axis])
        for shape, stride, axis, _ in facts
    ]
    wide = 16 // _SIZES[dtype] if width == 1 else 1
    strides = []
    is_wide = True
    is_scattered = False
    for (b, v, e), (_, count), (*_, aligned) in zip(
        distances, shapes, facts, strict=True
    ):
        is_along_k = k == 1 or e == 1
        strides.append((b, v, 1 if is_along_k else e))
        is_scattered |= not is_along_k and v != 1
        # Entries that lie side by side are loaded 16 bytes at a time, where all of them
        # begin at multiples of 16 bytes.
        length, step = (k, v) if is_along_k else (count, e)
        is_wide &= aligned and all(x % wide == 0 for x in (b, step, length))
    vector = wide if is_wide else 1
    blocks = min(config.blocks, 1 << (-(-k // block) - 1).bit_length())
    panels = tuple(batch * -(-count // panel) for batch, count in shapes)
    return Partition(
        shapes=shapes,
        totals=tuple(batch * count for batch, count in shapes),
        distances=tuple(strides),
        k=k,
        pitch=-(-k // 128) * 128 if k >= _LONG else -(-k // 16) * 16,
        form=ResiduesForm(vector, width, config.vectors, blocks),
        size_form=SizeForm(vector, width, is_scattered),
        tiles=tuple(batch * -(-count // config.vectors) for batch, count in shapes),
        panels=panels,
        steps=-(-k // (blocks * block)),
        ahead=min(
            max(config.ahead // (panel * k * width * _SIZES[dtype]), _LEAST_AHEAD),
            sum(panels),
        ),
        warps=min(
            max(blocks * block * config.vectors * width // (32 * _ENTRIES), 1), 32
        ),
        ptx=ptx,
    )
