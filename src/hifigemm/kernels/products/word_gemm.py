"""Products of words in one kernel: schemes.corrected and chains of schemes.multiword on
the device, bit for bit.

With A = A_hi + 2**-s A_lo and B likewise, block by block along k,

    P = A_hi B_hi (from zero),    S = S + P (FP32, to nearest),    D = A_hi B_lo + (A_lo B_hi + D) (in the unit),

and C = 2**(row_exponent + col_exponent) (S + 2**-s D), rounded once more where it is
subnormal. "In the unit" means chained through the accumulator of the tensor core,
instruction by instruction; an operand of one word has no A_lo. Sums that are "chained"
leave S to the unit as well.

With `pairs` of words, or one word an operand, there are no corrections: P is a chain of
the products of all pairs, one pair after the other, as in schemes.multiword. It covers
all of k where sums are "chained", a block of k where they are "blocked", and a single
pair where they are "separate"; then it is added to S and starts anew.

Both kernels follow one schedule of these products (`Kind`). A walk goes over blocks of
k and makes the same products of each: a word of A times one of B, for P ("main") or D
("correction"). A main product and its corrections share a walk, and the words they
load; each pair has a walk of its own. P is added to S after each "block" of a walk,
each "walk" over all of k, or each "round" of all walks over some blocks; "never" where
the unit adds main products to S itself.

Where k is cut into spans (numerics.spans), each span of a matrix is made by programs of
its own, which write S + 2**-s D of their terms to scratch memory, 4 bytes an entry and
span. A second launch adds them in FP32, in the order of the spans, scales and rounds.

The order in which blocks, words and spans follow each other is part of the arithmetic,
the tile is not. Rows and columns with an Inf or NaN are those of
numerics.special.fill_nonfinite.

The kernel here is plain Triton, for every GPU; word_gemm_hopper.py has one for Hopper.
A product of a block that is added to a sum would be made part of the chain by the
compiler: fma(P, 1, S) with a factor that is only known at run time is the same sum and
cannot be.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import (
    power_of_two,
    power_of_two_single,
    sign_of_finite,
    tile_of_plane,
)
from hifigemm.kernels.runtime.launch import Launch, operand_arguments
from hifigemm.kernels.runtime.tiles import (
    KERNELS,
    ProductShape,
    Tile,
    gpu_of,
    hopper_module,
    tile_for,
    tiles_along,
)
from hifigemm.kernels.vectors.vector_tiles import NOT_FINITE
from hifigemm.kernels.vectors.words import ALL_LOSSES, Words, losses_in_range
from hifigemm.numerics.spans import num_spans

BLOCKS = {"fp16": (16, 32, 64), "bf16": (16, 32, 64), "tf32": (16, 32, 64)}
"""Lengths of a block of k that is loaded at a time."""
WHOLE_BLOCK = {"fp16": 64, "bf16": 64, "tf32": 32}
"""Four instructions."""
SUMS = "chained", "blocked", "separate"
"""Which sums the unit adds; see above."""

_ADDITION = Tile("triton", 16, 32, 1, 1, 4)
"""Of the launch that adds spans: no wider than the least tile of the products, so that
it reads nothing above the diagonal that they have not made.
"""
_SPANS_AT_A_TIME = 8
"""Of which a thread of it holds four entries each."""
_MATRICES = 65535
"""Of a stack in one launch: the plain kernel counts them along the second axis of its
grid.
"""
Product = tuple[int, int, str]
"""A word of A, a word of B, and the sum that takes their product."""
_CORRECTED = (0, 0, "main"), (1, 0, "correction"), (0, 1, "correction")
"""A main product and its corrections: their order is part of the arithmetic."""


@dataclass(frozen=True)
class Kind:
    """What a kernel knows of the words when it is compiled: the schedule of the module
    docstring, and what is done with the sums; FP16 words are scaled back in FP32.
    """

    walks: tuple[tuple[Product, ...], ...]  # with the main product of a block first
    added: str  # after each "block", "walk" or "round", or "never"
    in_fp32: bool
    triangle: bool
    spans: bool = False  # of k, whose sums are written as they are

    @property
    def main_is_chain(self) -> bool:
        """True if P is a chain over several blocks, which starts from zero."""
        return self.added in ("walk", "round")

    @property
    def products(self) -> tuple[Product, ...]:
        """The products of a block, their words counted from the first ones at hand."""
        left, right, _ = self.walks[0][0]
        return tuple((p - left, q - right, target) for p, q, target in self.walks[0])

    @property
    def left_words(self) -> int:
        """Words of A that are at hand at a time."""
        return 1 + max(p for p, _, _ in self.products)

    @property
    def right_words(self) -> int:
        """Words of B that are at hand at a time."""
        return 1 + max(q for _, q, _ in self.products)


class WordsProduct(NamedTuple):
    """What a kernel is launched for; see `word_gemm`."""

    left: Words
    right: Words
    out: tuple[Any, int, int, int]  # with strides; a matrix for each span of a matrix
    operands: tuple[Any, ...] | None  # A and B themselves, with strides
    noted_losses: Any  # None where all losses are in range
    losses: tuple[int, int]
    shift: int
    terms_per_round: int  # of k, in a walk of a round
    kind: Kind
    tile: Tile
    span: int = 0  # terms; 0 where all of k is one sum

    @property
    def low_scale(self) -> float:
        """2**-s, the scale of second words."""
        return float(2.0**-self.left.splitting.low_shift)

    def tiles_of(self, tile: Tile) -> tuple[int, int]:
        """Rows and columns of tiles of a matrix of the result."""
        return tiles_along(
            self.left.vectors,
            self.right.vectors,
            tile.block_m,
            tile.block_n,
            triangle=self.kind.triangle,
        )


class WordsOperand(NamedTuple):
    """An operand as kernels take it; strides along a stack of one are 0."""

    planes: Any
    batch: int
    exponents: Any
    exponents_batch: int
    vectors: int


@triton.jit
def _load(side, p: tl.constexpr, h, EVEN: tl.constexpr):
    """Entries h of words p of some vectors of an operand, zeros beyond the last one.

    `side` are the address of the words, the distance from one word to the next, the
    numbers of the vectors, and their pitch. One of the vectors and h is a column, the
    other a row, of the tile that is loaded.
    """
    words, plane, vector, pitch = side
    address = words + plane * p + vector.to(tl.int64) * pitch + h
    if EVEN:
        block = tl.load(address)
    else:
        block = tl.load(address, mask=h < pitch, other=0.0)
    return block


@triton.jit
def _add(total, main, one):
    """S + P in FP32; see the module docstring for `one`."""
    return tl.fma(main, tl.zeros_like(total) + one, total)


@triton.jit
def _round(
    total,
    correction,
    sides,
    first,
    last,
    one,
    KIND: tl.constexpr,
    TILE: tl.constexpr,
    EVEN: tl.constexpr,
):
    """S and D with the products of terms first .. last - 1 of all walks."""
    left, right = sides
    # P where that is a chain; else S itself, to which each block adds.
    main = tl.zeros_like(total) if KIND.main_is_chain else total
    for i in tl.static_range(len(KIND.walks)):
        for start in range(first, last, TILE.block_k):
            h = start + tl.arange(0, TILE.block_k)
            for j in tl.static_range(len(KIND.walks[i])):
                # A word that two products share is loaded once by the compiler.
                a = _load(left, KIND.walks[i][j][0], h[None, :], EVEN)
                b = _load(right, KIND.walks[i][j][1], h[:, None], EVEN)
                if KIND.walks[i][j][2] == "correction":
                    correction = tl.dot(a, b, correction, input_precision="tf32")
                elif KIND.added == "block":
                    main = _add(main, tl.dot(a, b, input_precision="tf32"), one)
                else:
                    main = tl.dot(a, b, main, input_precision="tf32")
        if KIND.added == "walk":
            total = _add(total, main, one)
            main = tl.zeros_like(total)
    if KIND.added == "round":
        total = _add(total, main, one)
    elif not KIND.main_is_chain:
        total = main
    return total, correction


@triton.jit
def nonfinite_sums(left, right, left_k, right_k, inside_m, inside_n, k, zeros):
    """Twin: numerics.special.fill_nonfinite. sum_h S(a_h) S(b_h) of rows and columns.

    S is the sign of a finite entry and the entry itself otherwise.
    """
    # One entry of each row and column after the other: such tiles are rare. Only the
    # pattern of Inf and NaN matters, which no order of the terms changes.
    total = zeros
    for h in range(k):
        offset = tl.cast(h, tl.int64)
        a = sign_of_finite(
            tl.load(left + offset * left_k, mask=inside_m, other=0.0).to(zeros.dtype)
        )
        b = sign_of_finite(
            tl.load(right + offset * right_k, mask=inside_n, other=0.0).to(zeros.dtype)
        )
        total += a[:, None] * b[None, :]
    return total


@triton.jit
def unscaled(sums, row_exponent, col_exponent, in_fp32):
    """sums 2**(row_exponent + col_exponent) in float32, rounded once."""
    # Powers of two in FP32 where sums, exponents of rows and of columns keep the
    # product in its normal range; else one in FP64, and one rounding.
    if in_fp32:
        result = (
            sums
            * power_of_two_single(row_exponent)[:, None]
            * power_of_two_single(col_exponent)[None, :]
        )
    else:
        exponent = tl.maximum(
            tl.minimum(row_exponent[:, None] + col_exponent[None, :], 1023), -1022
        )
        factor = power_of_two(exponent)
        result = (sums.to(tl.float64) * factor).to(tl.float32)
    return result


@triton.jit
def _store_entries(
    total,
    z,
    tile_m,
    tile_n,
    left,
    right,
    out,
    operands,
    shift,
    k,
    KIND: tl.constexpr,
):
    """Scale the sums of a tile of matrix z back and store them, as entries of the
    result.
    """
    BLOCK_M: tl.constexpr = total.shape[0]
    BLOCK_N: tl.constexpr = total.shape[1]
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    # Exponents of the tile's rows and columns. Marked vectors have NOT_FINITE, which
    # makes the spread too wide for FP32.
    inside_m = rows < left.vectors
    inside_n = cols < right.vectors
    row_exponent = (
        tl.load(
            left.exponents + z * left.exponents_batch + rows, mask=inside_m, other=0
        )
        + shift
    )
    col_exponent = tl.load(
        right.exponents + z * right.exponents_batch + cols, mask=inside_n, other=0
    )
    inside = inside_m[:, None] & inside_n[None, :]
    # Sums of FP16 words are multiples of 2**-24 2**-24 2**-11, the smallest words and
    # the scale of D: times 2**-64 or more they are normal, so that only the factor of
    # the column rounds.
    row_spread = tl.max(tl.abs(row_exponent), axis=0)
    col_spread = tl.max(tl.abs(col_exponent), axis=0)
    result = unscaled(
        total,
        row_exponent,
        col_exponent,
        KIND.in_fp32 & (row_spread <= 64) & (col_spread <= 126),
    )
    c, out_batch, out_row, out_col = out
    target = (
        c
        + z * out_batch
        + rows[:, None].to(tl.int64) * out_row
        + cols[None, :].to(tl.int64) * out_col
    )
    if operands is not None:
        # Entries of marked vectors are stored apart; both stores together write each
        # entry once.
        marked = (row_exponent == NOT_FINITE + shift)[:, None] | (
            col_exponent == NOT_FINITE
        )[None, :]
        tl.store(target, result, mask=inside & (marked == 0))
        # A and B themselves are read by few programs: those with a marked vector.
        if (tl.min(row_exponent, axis=0) == NOT_FINITE + shift) | (
            tl.min(col_exponent, axis=0) == NOT_FINITE
        ):
            a, a_batch, a_row, a_k, b, b_batch, b_k, b_col = operands
            a += z * a_batch + rows.to(tl.int64) * a_row
            b += z * b_batch + cols.to(tl.int64) * b_col
            zeros = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            filled = nonfinite_sums(a, b, a_k, b_k, inside_m, inside_n, k, zeros)
            tl.store(target, filled, mask=inside & marked)
    else:
        tl.store(target, result, mask=inside)


@triton.jit(
    do_not_specialize=[
        "operands",
        "shift",
        "loss_from",
        "loss_to",
        "blocks_per_round",
        "tiles_m",
        "tiles_n",
        "span",
    ]
)
def _corrected_kernel(
    left,
    right,
    losses,
    out,
    operands,
    shift,
    low_scale,
    one,
    loss_from,
    loss_to,
    k,
    blocks_per_round,
    pitch,
    tiles_m,
    tiles_n,
    span,
    KIND: tl.constexpr,
    TILE: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Twin: schemes.corrected.Corrected, with pairs schemes.multiword.Multiword.

    A tile has TILE.block_m x TILE.block_n entries of matrix z of the stack, and a
    program makes one tile, of `span` blocks of k where there are spans. No two programs
    write to the same entries. Bits are those of the scheme on a model of the GPU's
    tensor core.
    """
    if losses is not None:  # noqa: SIM102
        if not losses_in_range(losses, loss_from, loss_to):
            return
    BLOCK_M: tl.constexpr = TILE.block_m
    BLOCK_N: tl.constexpr = TILE.block_n
    BLOCK_K: tl.constexpr = TILE.block_k
    # The first axis of the grid counts the tiles of a matrix, the second one the
    # matrices, the third one the spans of k, whose terms are begin .. end - 1.
    begin = 0
    end = k
    if KIND.spans:
        # The compiler sees that spans begin where blocks of k do, and loads several
        # words at a time.
        begin = tl.program_id(2) * span * BLOCK_K
        end = tl.minimum(begin + span * BLOCK_K, k)
    z = tl.program_id(1).to(tl.int64)
    tile_m, tile_n = tile_of_plane(
        tl.program_id(0), tiles_m, tiles_n, left.vectors, KIND.triangle, TILE
    )
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows and columns beyond the last one are read as the first ones again: what they
    # give is not stored.
    row = (rows % left.vectors)[:, None]
    col = (cols % right.vectors)[None, :]
    # Words of an operand are planes of vectors of `pitch` words.
    left_planes = left.planes + z * left.batch
    right_planes = right.planes + z * right.batch
    sides = (
        (left_planes, pitch.to(tl.int64) * left.vectors, row, pitch),
        (right_planes, pitch.to(tl.int64) * right.vectors, col, pitch),
    )
    # S and D in the notation of the module.
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    correction = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if KIND.added == "round":
        for first in range(begin, end, blocks_per_round * BLOCK_K):
            last = tl.minimum(first + blocks_per_round * BLOCK_K, end)
            total, correction = _round(
                total, correction, sides, first, last, one, KIND, TILE, EVEN
            )
    else:
        total, correction = _round(
            total, correction, sides, begin, end, one, KIND, TILE, EVEN
        )
    # S + 2**-s D, of which the power of two is a factor from the host.
    if len(KIND.products) > 1:
        total = total + correction * low_scale
    if KIND.spans:
        # Sums of spans follow each other as matrices do.
        c, out_batch, out_row, out_col = out
        target = (
            c
            + (z * tl.num_programs(2) + tl.program_id(2)) * out_batch
            + rows[:, None].to(tl.int64) * out_row
            + cols[None, :].to(tl.int64) * out_col
        )
        inside = (rows < left.vectors)[:, None] & (cols < right.vectors)[None, :]
        tl.store(target, total, mask=inside)
    else:
        _store_entries(
            total,
            z,
            tile_m,
            tile_n,
            left,
            right,
            out,
            operands,
            shift,
            k,
            KIND,
        )


@triton.jit(
    do_not_specialize=[
        "operands",
        "shift",
        "loss_from",
        "loss_to",
        "k",
        "spans",
        "tiles_m",
        "tiles_n",
    ]
)
def _add_spans_kernel(
    sums,
    left,
    right,
    losses,
    out,
    operands,
    shift,
    loss_from,
    loss_to,
    k,
    spans,
    tiles_m,
    tiles_n,
    KIND: tl.constexpr,
    TILE: tl.constexpr,
    AT_A_TIME: tl.constexpr,
):
    """Twin: the additions of schemes.word_scheme.WordScheme.sum_products, and the
    scaling back of it.

    A program makes a tile of TILE.block_m x TILE.block_n entries of matrix z from
    `sums`, which has a matrix for each span of each matrix. The launch before wrote
    these; it read the same losses, so that they are there wherever this one runs.
    """
    if losses is not None:  # noqa: SIM102
        if not losses_in_range(losses, loss_from, loss_to):
            return
    BLOCK_M: tl.constexpr = TILE.block_m
    BLOCK_N: tl.constexpr = TILE.block_n
    # The first axis of the grid counts the tiles of a matrix, the second one the
    # matrices.
    z = tl.program_id(1).to(tl.int64)
    tile_m, tile_n = tile_of_plane(
        tl.program_id(0), tiles_m, tiles_n, left.vectors, KIND.triangle, TILE
    )
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    cols = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    inside = (rows < left.vectors) & (cols < right.vectors)
    entries = tl.cast(left.vectors, tl.int64) * right.vectors
    source = sums + z * spans * entries + rows.to(tl.int64) * right.vectors + cols
    # Some spans are loaded together, and added one after the other; 0 takes the place
    # of those beyond the last one.
    total = tl.load(source, mask=inside, other=0.0)
    for first in range(1, spans, AT_A_TIME):
        for i in tl.static_range(AT_A_TIME):
            span = tl.cast(first + i, tl.int64)
            wanted = inside & (rows < tl.where(span < spans, left.vectors, 0))
            total += tl.load(source + span * entries, mask=wanted, other=0.0)
    _store_entries(
        total,
        z,
        tile_m,
        tile_n,
        left,
        right,
        out,
        operands,
        shift,
        k,
        KIND,
    )


_launch: Any = Launch(_corrected_kernel)
_launch_addition: Any = Launch(_add_spans_kernel)


def word_gemm(
    left: Words,
    right: Words,
    out: Buffer,
    *,
    block: int | None = None,
    sums: str = "blocked",
    pairs: Sequence[tuple[int, int]] = (),
    span: int = 0,
    shift: int = 0,
    losses: tuple[int, int] = ALL_LOSSES,
    operands: tuple[Buffer, Buffer] | None = None,
    config: Tile | None = None,
    triangle: bool = False,
) -> None:
    """out = 2**shift A B from the words of A and B; see the module docstring.

    Parameters
    ----------
    left, right : Words
        Of one format and low_shift, with one or two words each, or as many as `pairs`
        name.
    out : float32 tensor (batch, m, n), any strides
    block : int, optional
        Length of a block of k: one of `BLOCKS`, or with `pairs` a multiple of one;
        otherwise four instructions of the tensor core.
    sums : "chained", "blocked" or "separate"
        Which sums the unit adds, see the module docstring; "separate" goes with
        `pairs`. Where sums are chained, blocks only set the order of the corrections.
    pairs : pairs of int
        Words of A and B, counted from 0, whose products make a chain in the unit, one
        after the other, in place of a main product and corrections. Words that an
        operand does not have are zeros.
    span : int
        Number of terms of a span of k, a multiple of `block`; the sums of all spans are
        added at the end. 0 where all of k is one sum.
    shift : int
        Power of two that the result is multiplied with before it is rounded.
    losses : pair of int
        Nothing is written unless the bits that both operands lose together, where that
        was noted, lie in range(*losses): the way to choose between formats on the
        device.
    operands : tensors (batch or 1, m, k) and (batch or 1, k, n), any strides, or None
        A and B themselves, read where a row or column holds an Inf or NaN; None where
        there are none.
    config : Tile, optional
        Otherwise `tile_for` chooses.
    triangle : bool
        Make only the tiles of a square result that have entries on or below the
        diagonal.
    """
    fmt = left.splitting.fmt.name
    block = WHOLE_BLOCK[fmt] if block is None else block
    counts = left.splitting.num_words, right.splitting.num_words
    if counts == (1, 1) and not pairs:
        pairs = ((0, 0),)
    _check(left, right, out, block, sums, pairs, span)
    if out.numel() == 0:
        return
    options: dict[str, Any] = {
        "sums": sums,
        "pairs": pairs,
        "span": span,
        "losses": losses,
        "triangle": triangle,
        "shift": shift,
    }
    if out.shape[0] > _MATRICES:
        for start in range(0, out.shape[0], _MATRICES):
            part = slice(start, start + _MATRICES)
            a, b = (
                x._replace(
                    planes=_part_of(x.planes, part),
                    exponents=_part_of(x.exponents, part),
                )
                for x in (left, right)
            )
            operands_of_part = (
                None
                if operands is None
                else (_part_of(operands[0], part), _part_of(operands[1], part))
            )
            word_gemm(
                a,
                b,
                out[part],
                block=block,
                operands=operands_of_part,
                config=config,
                **options,
            )
        return
    hopper = hopper_module("word_gemm_hopper", out.device)
    spans = num_spans(left.k, span)
    if config is None:
        # a triangle has about as many tiles
        columns = -(-right.vectors // 2) if triangle else right.vectors
        family = family_of(sums, pairs)
        loaded = loaded_block(fmt, block, sums, pairs)
        planes = out.shape[0] * spans
        shape = ProductShape(
            left.vectors, columns, span or left.k, planes, family, fmt, loaded
        )
        config = tile_for(
            shape, gpu_of(out.device), ("triton",) if hopper is None else KERNELS
        )
    product = WordsProduct(
        left,
        right,
        (out, *out.stride()),
        operands=None if operands is None else tuple(operand_arguments(operands)),
        noted_losses=None if losses == ALL_LOSSES else left.losses,
        losses=losses,
        shift=shift,
        terms_per_round=block if sums == "blocked" else max(left.k, 1),
        kind=Kind(*_schedule(counts, sums, pairs), fmt == "fp16", triangle),
        tile=config,
    )
    launch = _launch_plain if config.kernel == "triton" else hopper.launch
    if spans == 1:
        launch(product)
        return
    # The sums of all spans, each a matrix of its own, then the result.
    parts = out.launches.empty((out.shape[0] * spans, *out.shape[1:]), torch.float32)
    launch(
        product._replace(
            out=(parts, *parts.stride()),
            operands=None,
            kind=replace(product.kind, spans=True),
            span=span,
        )
    )
    tiles_m, tiles_n = product.tiles_of(_ADDITION)
    _launch_addition(
        (tiles_m * tiles_n, out.shape[0]),
        parts,
        side_of(left, 1),
        side_of(right, 1),
        product.noted_losses,
        product.out,
        product.operands,
        shift,
        *losses,
        left.k,
        spans,
        tiles_m,
        tiles_n,
        # One kernel for the sums of all schemes.
        KIND=replace(product.kind, walks=(), added="never"),
        TILE=_ADDITION,
        AT_A_TIME=_SPANS_AT_A_TIME,
        num_warps=_ADDITION.warps,
        enable_fp_fusion=False,
    )


def _schedule(
    counts: tuple[int, int], sums: str, pairs: Sequence[tuple[int, int]]
) -> tuple[tuple[tuple[Product, ...], ...], str]:
    """Walks and additions of a `Kind` for operands of `counts` words."""
    left_count, right_count = counts
    schedule = [(p, q, "main") for p, q in pairs] if pairs else _CORRECTED
    products = tuple(
        (p, q, target)
        for p, q, target in schedule
        if p < left_count and q < right_count
    )
    if pairs:
        added = {"chained": "never", "blocked": "round", "separate": "walk"}[sums]
        return tuple((product,) for product in products), added
    return (products,), "never" if sums == "chained" else "block"


def family_of(sums: str, pairs: Sequence[tuple[int, int]]) -> str:
    """The family of `tiles.TILES` for a product."""
    if not pairs:
        return "words"
    return "chains" if sums == "chained" else "sums of chains"


def loaded_block(
    fmt: str, block: int, sums: str, pairs: Sequence[tuple[int, int]]
) -> int:
    """The length of the blocks of k that are loaded at a time.

    It is `block` itself where corrections alternate with it. Chains of pairs may take
    shorter ones, of which several make a block.
    """
    if not pairs:
        return block
    if sums != "blocked":
        return WHOLE_BLOCK[fmt]
    lengths = [b for b in BLOCKS[fmt] if b <= WHOLE_BLOCK[fmt] and block % b == 0]
    return max(lengths)


def _part_of(x: Buffer, part: slice) -> Buffer:
    """Some matrices of a stack; a stack of one is meant for all of them."""
    return x[part] if x.shape[0] > 1 else x


def _check(
    left: Words,
    right: Words,
    out: Buffer,
    block: int,
    sums: str,
    pairs: Sequence[tuple[int, int]],
    span: int,
) -> None:
    """Raise ValueError where `word_gemm` does not take these arguments."""
    a, b = left.splitting, right.splitting
    too_many = not pairs and max(a.num_words, b.num_words) > 2
    if (a.fmt, a.low_shift, left.k) != (b.fmt, b.low_shift, right.k) or too_many:
        raise ValueError(
            f"no product of {a} with k = {left.k} and {b} with k = {right.k}"
        )
    if pairs and a.low_shift:
        raise ValueError(
            f"words of {a} have scales of their own, so that their products make no chain"
        )
    if pairs and not any(p < a.num_words and q < b.num_words for p, q in pairs):
        raise ValueError(
            f"pairs = {pairs}: no pair of {a.num_words} and {b.num_words} words"
        )
    blocks = BLOCKS[a.fmt.name]
    is_multiple = bool(pairs) and block > 0 and block % blocks[0] == 0
    if block not in blocks and not is_multiple:
        raise ValueError(
            f"block = {block}: expected one of {blocks} for {a.fmt.name}, "
            f"or with pairs a multiple of {blocks[0]}"
        )
    if sums not in SUMS or (sums == "separate" and not pairs):
        raise ValueError(
            f"sums = {sums!r}: expected one of {SUMS}, the last one with pairs"
        )
    if span and (sums != "blocked" or span % block):
        raise ValueError(
            f"spans of {span} terms: expected whole blocks of {block} that are added "
            f"outside the unit, not {sums} sums"
        )
    if out.dtype is not torch.float32 or out.shape[1:] != (left.vectors, right.vectors):
        raise ValueError(
            f"a {out.dtype} result of shape {tuple(out.shape)} for {left.vectors} x {right.vectors}"
        )
    if any(words.planes.shape[0] not in (1, out.shape[0]) for words in (left, right)):
        raise ValueError(
            f"stacks of {left.planes.shape[0]} and {right.planes.shape[0]} for one of {out.shape[0]}"
        )


def side_of(words: Words, unit: int) -> WordsOperand:
    """An operand as kernels take it; `unit` entries are the unit of its stride."""
    stack = words.planes.shape[0] > 1
    batch, exponents_batch = (
        (words.planes.stride(0) // unit, words.vectors) if stack else (0, 0)
    )
    return WordsOperand(
        words.planes, batch, words.exponents, exponents_batch, words.vectors
    )


def _launch_plain(product: WordsProduct) -> None:
    """Launch the plain kernel."""
    left, right, tile = product.left, product.right, product.tile
    tiles_m, tiles_n = product.tiles_of(tile)
    pitch = left.planes.shape[3]
    spans = num_spans(left.k, product.span)
    _launch(
        (tiles_m * tiles_n, product.out[0].shape[0] // spans, spans),
        side_of(left, 1),
        side_of(right, 1),
        product.noted_losses,
        product.out,
        product.operands,
        product.shift,
        product.low_scale,
        1.0,
        *product.losses,
        max(left.k, 1),
        product.terms_per_round // tile.block_k,
        pitch,
        tiles_m,
        tiles_n,
        product.span // tile.block_k,
        KIND=product.kind,
        TILE=tile,
        EVEN=pitch % tile.block_k == 0,
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=False,
    )
