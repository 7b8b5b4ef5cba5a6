"""FP32 words of float64 operands on the device, and the sums of their products:
numerics.words and the scaling of schemes.word_scheme.

Words are stored in float64, in which their products are exact and in which the library
multiplies them: plane p holds word p of all matrices, each in rows as the operand has
them. One launch makes the words of both operands, and reads them once; see
vector_tiles.py. Another one adds the products of pairs of words, one pair after the
other, and scales the sums back.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from hifigemm.base.formats import FP32
from hifigemm.kernels.products.word_gemm import nonfinite_sums
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import power_of_two
from hifigemm.kernels.runtime.launch import Launch, operand_arguments, strided
from hifigemm.kernels.runtime.tiles import VECTOR_ENTRIES
from hifigemm.kernels.vectors.statistics import exponent_or, magnitude_bits
from hifigemm.kernels.vectors.vector_tiles import (
    COUNTS,
    NOT_FINITE,
    VectorTile,
    largest_magnitude,
    launch_both,
    load_tile,
    side_of,
)
from hifigemm.numerics.words import Splitting

ROUNDINGS = "nearest", "zero"
"""Roundings of words that the kernel has."""
_LARGEST = tl.constexpr((2.0 - 2.0**-23) * 2.0**127)
"""The largest float32."""
_ROWS = 16
_COLUMNS = 128
"""Entries of a tile of the result."""


@dataclass(frozen=True)
class _DoubleWordsForm:
    """What the kernel knows of the words of an operand when it is compiled."""

    num_words: int
    rounding: str
    scaled: bool
    columns: bool  # vectors are the columns of the stored words, else their rows
    tile: VectorTile


class DoubleWords(NamedTuple):
    """The words of an operand."""

    # float64 tensor (words, batch or 1, m, k) of a left, (words, batch or 1, k, n) of a
    # right operand
    planes: Any
    # int32 tensor, shape (batch or 1, vectors): 2**exponent is the unit of a row or
    # column; `NOT_FINITE` where it holds an Inf or NaN
    exponents: Any


@triton.jit
def _rounded(y, FORM: tl.constexpr):
    """Finite y rounded once to FP32, saturating, as float64."""
    if not FORM.scaled:
        y = tl.minimum(tl.maximum(y, -_LARGEST), _LARGEST)
    word = y.to(tl.float32)
    if FORM.rounding == "zero":
        # The conversion rounds to nearest: one step back where that went away from
        # zero.
        above = tl.abs(word.to(tl.float64)) > tl.abs(y)
        bits = word.to(tl.int32, bitcast=True) - above.to(tl.int32)
        word = bits.to(tl.float32, bitcast=True)
    return word.to(tl.float64)


@triton.jit
def _split_tile(operand, counts, program, k, top, FORM: tl.constexpr):
    """Words of a tile of an operand: block_v vectors times block_k entries along k."""
    vectors, total, chunks = counts
    value, z, v, h = load_tile(operand, counts, program, k, FORM)
    exists = v < vectors
    magnitude = magnitude_bits(value)
    row = z * vectors + v
    largest = largest_magnitude(magnitude, operand, counts, program, row, exists, FORM)
    # In the stage "magnitudes" the largest magnitude is not known yet, and a second
    # launch does what follows. Vectors with an Inf or NaN are marked and count as 0.
    if FORM.tile.stage != "magnitudes":
        finite = largest < 0x7FF0000000000000
        shift = tl.zeros_like(largest).to(tl.int32)
        if FORM.scaled:
            shift = tl.where(finite, top - exponent_or(largest, 0), 0)
        # The first tile of a vector writes its exponent.
        if program % chunks == 0:
            tl.store(
                operand.exponents + row,
                tl.where(finite, -shift, NOT_FINITE),
                mask=exists,
            )
        # Two powers of two that float64 holds: -924 <= shift <= 1174 for T = 100. What
        # underflows lies far below the words.
        first = tl.minimum(shift, 1000)
        # Compared for the tile again: where a tile holds one vector, Triton 3.6 does not
        # compile a mask that vectors and tiles share.
        is_finite = largest[:, None] < 0x7FF0000000000000
        remainder = tl.where(is_finite, value, 0.0)
        remainder = remainder * power_of_two(first)[:, None]
        remainder = remainder * power_of_two(shift - first)[:, None]
        # Words are matrices (k, vectors) on the right, and (vectors, k) on the left.
        # Word p lies p times the whole operand after the first one. No other program
        # writes to this tile's part of them.
        if FORM.columns:
            target = z * k * vectors + h[None, :].to(tl.int64) * vectors + v[:, None]
        else:
            target = z * k * vectors + v[:, None].to(tl.int64) * k + h[None, :]
        target = operand.planes + target
        plane = total.to(tl.int64) * k
        WORDS: tl.constexpr = FORM.num_words
        for p in tl.static_range(WORDS):
            # The nearest word, and what it leaves, exactly.
            word = _rounded(remainder, FORM)
            remainder = remainder - word
            if FORM.tile.even:
                tl.store(target + p * plane, word)
            else:
                inside = exists[:, None] & (h < k)[None, :]
                tl.store(target + p * plane, word, mask=inside)


@triton.jit(do_not_specialize=[*COUNTS, "top"])
def double_words_kernel(
    left,
    left_vectors,
    left_total,
    left_chunks,
    right,
    right_vectors,
    right_total,
    right_chunks,
    programs,
    k,
    top,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
):
    """Twin: numerics.words.Splitting.split of entries that are scaled by powers of two.

    A program makes one tile, of the left operand first, then of the right one.
    """
    # The first programs take the left operand, whose compiled code differs.
    program = tl.program_id(0)
    if program < programs:
        _split_tile(
            left, (left_vectors, left_total, left_chunks), program, k, top, LEFT
        )
    else:
        _split_tile(
            right,
            (right_vectors, right_total, right_chunks),
            program - programs,
            k,
            top,
            RIGHT,
        )


_split = Launch(double_words_kernel)


def split_doubles(
    operands: Sequence[tuple[Buffer, int]],
    splitting: Splitting,
    top: int | None,
) -> list[DoubleWords]:
    """Words of both operands, bit for bit those of `numerics.words.Splitting.split`.

    Parameters
    ----------
    operands : pairs (tensor, axis)
        float64 tensors of three dimensions and any strides, and
        the axis of k: 2 for a left operand, 1 for a right one.
    splitting : Splitting
        FP32, rounded to nearest or toward zero.
    top : int or None
        T: scaled entries lie below 2**T. None does not scale; words then saturate.
    """
    if splitting.fmt is not FP32 or splitting.rounding not in ROUNDINGS:
        raise ValueError(f"no words of float64 operands for {splitting}")
    like = operands[0][0]
    sides = []
    words = []
    tensors = []
    forms = []
    for x, axis in operands:
        side = side_of(x, axis, x.shape[axis], VECTOR_ENTRIES["float64 slices"])
        planes = like.launches.empty((splitting.num_words, *x.shape), torch.float64)
        exponents = like.launches.empty((side.batch, side.vectors), torch.int32)
        words.append(DoubleWords(planes, exponents))
        sides.append(side)
        tensors.append((x, planes, exponents, None))
        forms.append(
            _DoubleWordsForm(
                num_words=splitting.num_words,
                rounding=splitting.rounding,
                scaled=top is not None,
                columns=axis == 1,
                tile=side.tile,
            )
        )
    launch_both(
        _split,
        sides,
        tensors,
        forms,
        torch.int64,
        sides[0].k,
        top or 0,
        enable_fp_fusion=False,
    )
    return words


@triton.jit(do_not_specialize=["operands", "m", "n", "k", "shift"])
def double_sums_kernel(
    products,
    left,
    right,
    out,
    operands,
    m,
    n,
    k,
    total,
    shift,
    COUNT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Twin: schemes.multiword.Multiword.sum_products, and the scaling back of it.

    A tile has ROWS x COLUMNS entries of matrix z of the stack, and a program makes one
    tile. `left` and `right` are the exponents and their stride along the stack; `total`
    entries lie between products of one pair of words and of the next.
    """
    # Programs count the tiles of a matrix, one row of tiles after the other.
    z = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(n, COLUMNS)
    rows = (tl.program_id(0) // across) * ROWS + tl.arange(0, ROWS)
    cols = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    inside_m = rows < m
    inside_n = cols < n
    inside = inside_m[:, None] & inside_n[None, :]
    # The products in the order of their pairs, smallest first: one program adds all
    # products of an entry, so that the rounding of the sums is always the same.
    entries = products + (z * m + rows[:, None]) * n + cols[None, :]
    sums = tl.load(entries, mask=inside, other=0.0)
    for i in tl.static_range(1, COUNT):
        sums = tl.load(entries + i * total, mask=inside, other=0.0) + sums
    # An exact zero is +0.
    sums = sums + 0.0
    # 2**e where that is a float64, else three factors that all grow, or all shrink.
    # Exponents are clipped where every sum has overflowed or vanished.
    row_exponents, row_stack = left
    col_exponents, col_stack = right
    row = tl.load(row_exponents + z * row_stack + rows, mask=inside_m, other=0)
    col = tl.load(col_exponents + z * col_stack + cols, mask=inside_n, other=0)
    e = tl.maximum(row, -4000)[:, None] + tl.maximum(col, -4000)[None, :] + shift
    e = tl.maximum(tl.minimum(e, 2100), -2100)
    third = (e + 3000) // 3 - 1000  # rounded down
    once = (e >= -1022) & (e <= 1023)
    first = tl.where(once, e, third)
    second = tl.where(once, 0, third)
    result = sums * power_of_two(first)
    result = result * power_of_two(second)
    result = result * power_of_two(e - first - second)
    c, out_batch, out_row, out_col = out
    target = c + z * out_batch
    target = target + rows[:, None].to(tl.int64) * out_row
    target = target + cols[None, :].to(tl.int64) * out_col
    # Entries of marked vectors are stored apart; both stores together write each entry
    # once.
    marked = (row == NOT_FINITE)[:, None] | (col == NOT_FINITE)[None, :]
    tl.store(target, result, mask=inside & (marked == 0))
    # A and B themselves are read by few programs: those with a marked vector.
    if (tl.min(row, axis=0) == NOT_FINITE) | (tl.min(col, axis=0) == NOT_FINITE):
        a, a_batch, a_row, a_k, b, b_batch, b_k, b_col = operands
        a_rows = a + z * a_batch + rows.to(tl.int64) * a_row
        b_cols = b + z * b_batch + cols.to(tl.int64) * b_col
        zeros = tl.zeros([ROWS, COLUMNS], tl.float64)
        filled = nonfinite_sums(a_rows, b_cols, a_k, b_k, inside_m, inside_n, k, zeros)
        tl.store(target, filled, mask=inside & marked)


_sums = Launch(double_sums_kernel)


def double_sums(
    products: Buffer,
    left: DoubleWords,
    right: DoubleWords,
    out: Buffer,
    operands: tuple[Buffer, Buffer],
    shift: int = 0,
) -> None:
    """out = 2**shift A B from the products of pairs of words.

    Parameters
    ----------
    products : float64 tensor (pairs, batch, m, n), contiguous
        In the order in which they are added.
    out : float64 tensor (batch, m, n), any strides
    operands : tensors (batch or 1, m, k) and (batch or 1, k, n), any strides
        A and B themselves, read where a row or column holds an Inf or NaN.
    """
    count, batch, m, n = products.shape
    tiles = -(-m // _ROWS) * -(-n // _COLUMNS)
    scales = []
    for words in (left, right):
        stack, vectors = words.exponents.shape
        scales.append((words.exponents, vectors if stack > 1 else 0))
    _sums(
        (tiles, batch),
        products,
        *scales,
        strided(out),
        tuple(operand_arguments(operands)),
        m,
        n,
        operands[0].shape[2],
        batch * m * n,
        shift,
        COUNT=count,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        num_warps=4,
        enable_fp_fusion=False,
    )
