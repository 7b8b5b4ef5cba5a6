"""Slices of both operands of a product on the device, in INT8, FP16, BF16 or FP64:
numerics.slicing as schemes.ozaki1 uses it.

Slices lie with k innermost, those of a vector one after the other: (batch, vectors,
count, k_pitch), zeros beyond k, in order on the left and in reverse order on the right,
so that the pairs p + q = s of a diagonal are two contiguous planes of s + 1 slices. One
launch makes the slices of both operands, and reads them once; see vector_tiles.py. One
more before it clears what the programs of vectors longer than a tile exchange.

Entries are scaled to y = 2**-g x, g the exponent of the first slice's grid, and then
each slice is an integer next to y, and what is left of y times 2**beta goes on. All of
it is exact in FP32, or in FP64 for float64: what underflows lies further below the first
slice than the entries reach, and never gets to a slice.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import (
    ROUND_DOUBLE,
    ROUND_SINGLE,
    power_of_two,
    power_of_two_single,
)
from hifigemm.kernels.runtime.launch import Launch
from hifigemm.kernels.runtime.tiles import VECTOR_ENTRIES
from hifigemm.kernels.vectors.statistics import magnitude_bits
from hifigemm.kernels.vectors.vector_tiles import (
    COUNTS,
    NOT_FINITE,
    VectorTile,
    largest_magnitude,
    launch_both,
    load_tile,
    side_of,
)
from hifigemm.numerics.slicing import digit_limit

PITCH = 128
"""Entries that the length of a stored slice is a multiple of."""
MAX_COUNT = 12
"""Slices that the kernel makes of an entry."""
MAX_BITS = {torch.int8: 8, torch.float16: 12, torch.bfloat16: 9, torch.float64: 27}
"""Bits of a slice, by the format of the slices: half of 2**bits is an integer of it."""
LEAST_BITS = 3
"""With fewer, the power of two of a vector of the largest numbers is subnormal."""
MAX_BITS_SINGLE = 22
"""Bits of a slice of a float32 operand, as digits are rounded in float32 by a sum."""


@dataclass(frozen=True)
class _SlicesForm:
    """What the kernel knows of the slices of an operand when it is compiled."""

    single: bool  # entries are FP32, or become it, else FP64
    count: int  # number of slices
    beta: int  # bits of a slice
    # `integers`, `double`: slices are INT8, or FP64; else FP16 or BF16
    integers: bool
    double: bool
    # remainders from here on belong to the next integer; 1 for digits to nearest
    limit: float
    # fraction bits of an entry from which on the grid is one coarser; more than there
    # are for digits to nearest
    top: int
    reverse: bool  # the last slice stands first
    tile: VectorTile


@triton.jit
def _grid(largest, FORM: tl.constexpr):
    """Exponent of the first slice's grid for vectors, from the bits of their
    magnitudes.
    """
    STORED: tl.constexpr = 23 if FORM.single else 52
    normal = largest >= (1 << STORED)
    # A subnormal number becomes a normal one as the integer that it is a multiple of
    # the smallest one by. Unlike `statistics.exponent_of`, which took more instructions
    # here, this leaves the fraction, too.
    whole = largest.to(tl.float32 if FORM.single else tl.float64).to(
        largest.dtype, bitcast=True
    )
    bits = tl.where(normal, largest, whole)
    # Smallest e with x < 2**e: the exponent less its bias, 127 or 1023, plus 1; for an
    # integer of units 2**-149 or 2**-1074 less these, too.
    e = (bits >> STORED).to(tl.int32) - tl.where(
        normal, 126 if FORM.single else 1022, 275 if FORM.single else 2096
    )
    # Fractions from FORM.top on would round to a digit that is too large.
    e += ((bits & ((1 << STORED) - 1)) >= FORM.top).to(tl.int32)
    return tl.where(largest == 0, 0, e) - (FORM.beta - 1)


@triton.jit
def _scaled(x, g, FORM: tl.constexpr):
    """2**-g x, by two powers of two that the format holds."""
    if FORM.single:
        # -126 <= -g <= 155 for slices of three bits and more.
        first = tl.minimum(-g, 126)
        return x * power_of_two_single(first) * power_of_two_single(-g - first)
    else:
        # -1022 <= -g <= 1080 for slices of three bits and more.
        first = tl.minimum(-g, 1000)
        return x * power_of_two(first) * power_of_two(-g - first)


@triton.jit
def _digit(y, FORM: tl.constexpr):
    """The slice of y as a float, or as INT32 whose low byte is it, and a remainder.

    As INT8 it wraps from h = 2**(beta - 1) to -h. The remainder is y less the integer
    nearest to y, exactly.
    """
    ROUND: tl.constexpr = ROUND_SINGLE if FORM.single else ROUND_DOUBLE
    # The sum with 1.5 2**23 or 1.5 2**52 is rounded to an integer, whose low bits are
    # those of the digit.
    shifted = y + ROUND
    digit = shifted - ROUND
    remainder = y - digit
    if FORM.integers:
        digit = shifted.to(tl.int32 if FORM.single else tl.int64, bitcast=True)
        digit = digit.to(tl.int32)
        # Two's complement: a remainder from the limit on would make the next digit h,
        # which wraps to -h and takes 2 h = 2**beta from it: 1 more in this digit.
        if FORM.limit < 1.0:
            digit += (remainder >= FORM.limit).to(tl.int32)
    return digit, remainder


@triton.jit
def _slice_tile(operand, counts, program, k, pitch, FORM: tl.constexpr):
    """Slices of a tile of an operand: block_v vectors times block_k entries along k."""
    vectors, _, chunks = counts
    value, z, v, h = load_tile(operand, counts, program, k, FORM)
    exists = v < vectors
    magnitude = magnitude_bits(value)
    row = z * vectors + v
    largest = largest_magnitude(magnitude, operand, counts, program, row, exists, FORM)
    # In the stage "magnitudes" the largest magnitude is not known yet, and a second
    # launch does what follows. Vectors with an Inf or NaN, whose bits begin at those of
    # infinity, are marked and count as 0.
    if FORM.tile.stage != "magnitudes":
        finite = largest < (0x7F800000 if FORM.single else 0x7FF0000000000000)
        g = tl.where(finite, _grid(largest, FORM), 0)
        # The first tile of a vector writes its exponent.
        if program % chunks == 0:
            tl.store(
                operand.exponents + row, tl.where(finite, g, NOT_FINITE), mask=exists
            )
        y = _scaled(tl.where(finite[:, None], value, 0.0), g[:, None], FORM)
        COUNT: tl.constexpr = FORM.count
        # The slices of a vector follow each other, `pitch` entries apart, with zeros
        # beyond k. No other program writes to this tile's part of them.
        target = operand.planes + (row * pitch * COUNT)[:, None] + h[None, :]
        for p in tl.static_range(COUNT):
            # The highest digit first; what it leaves, times 2**beta, has the next one.
            digit, remainder = _digit(y, FORM)
            address = target + (COUNT - 1 - p if FORM.reverse else p) * pitch
            if not FORM.integers and not FORM.double:
                digit = digit.to(tl.float32)
            digit = digit.to(operand.planes.dtype.element_ty)
            if FORM.tile.even:
                tl.store(address, digit)
            else:
                tl.store(address, digit, mask=exists[:, None] & (h < pitch)[None, :])
            y = remainder * 2.0**FORM.beta


@triton.jit(do_not_specialize=COUNTS)
def slice_kernel(
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
    pitch,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
):
    """Twin: numerics.slicing.slice_vectors.

    A program makes one tile, of the left operand first, then of the right one.
    """
    # The first programs take the left operand, whose compiled code differs.
    program = tl.program_id(0)
    if program < programs:
        _slice_tile(
            left, (left_vectors, left_total, left_chunks), program, k, pitch, LEFT
        )
    else:
        _slice_tile(
            right,
            (right_vectors, right_total, right_chunks),
            program - programs,
            k,
            pitch,
            RIGHT,
        )


_slice = Launch(slice_kernel)


class Slices(NamedTuple):
    """The slices of an operand."""

    # tensor of integers in the dtype of the products, shape (batch or 1, vectors, count,
    # k_pitch)
    planes: Any
    # int32 tensor, shape (batch or 1, vectors): 2**exponent is the unit of the first
    # slice of a row or column;
    # `NOT_FINITE` where it holds an Inf or NaN
    exponents: Any
    beta: int  # bits of a slice


def k_pitch(k: int) -> int:
    """Length of a stored slice: k rounded up to 128, at least 128."""
    return max(PITCH, -(-k // PITCH) * PITCH)


def slice_operands(
    operands: Sequence[tuple[Buffer, int]],
    count: int,
    beta: int,
    dtype: torch.dtype = torch.int8,
) -> list[Slices]:
    """Slices of one or two operands, with the bits of `numerics.slicing.slice_vectors`.

    INT8 slices of eight bits have digits in two's complement, all others digits to
    nearest.

    Parameters
    ----------
    operands : pairs (tensor, axis)
        float64 tensors, or tensors of float32, float16 and bfloat16 in any mixture, of
        three dimensions and any strides, and the axis of k: 2 for a left operand, 1 for
        a right one.
    count : int
        Number of slices, at most twelve.
    beta : int
        Bits of a slice, from `LEAST_BITS` to those of `MAX_BITS` and `MAX_BITS_SINGLE`.
    dtype : torch.dtype
        Of the slices: one of `MAX_BITS`.

    Returns
    -------
    list of Slices, one an operand
    """
    are_single = [x.dtype is not torch.float64 for x, _ in operands]
    most = MAX_BITS[dtype]
    if are_single[0]:
        most = min(most, MAX_BITS_SINGLE)
    if not LEAST_BITS <= beta <= most or not 1 <= count <= MAX_COUNT:
        raise ValueError(
            f"{count} {dtype} slices of {beta} bits: "
            f"expected 1 .. {MAX_COUNT} slices of {LEAST_BITS} .. {most} bits"
        )
    sides = [
        side_of(
            x,
            axis,
            k_pitch(x.shape[axis]),
            VECTOR_ENTRIES["float32 slices" if is_single else "float64 slices"],
        )
        for (x, axis), is_single in zip(operands, are_single, strict=True)
    ]
    k = sides[0].k
    like = operands[0][0]
    if any(side.k != k for side in sides) or len(set(are_single)) > 1:
        raise ValueError(
            f"operands of k = {', '.join(str(side.k) for side in sides)}, {[x.dtype for x, _ in operands]}"
        )
    slices = []
    tensors = []
    forms = []
    for (x, axis), side in zip(operands, sides, strict=True):
        planes = like.launches.empty(
            (side.batch, side.vectors, count, k_pitch(k)), dtype
        )
        exponents = like.launches.empty((side.batch, side.vectors), torch.int32)
        slices.append(Slices(planes, exponents, beta))
        tensors.append((x, planes, exponents, None))
        forms.append(_form_of(are_single[0], dtype, count, beta, axis == 1, side.tile))
    launch_both(
        _slice,
        sides,
        tensors,
        forms,
        torch.int32 if are_single[0] else torch.int64,
        k,
        k_pitch(k),
        enable_fp_fusion=False,
    )
    return slices


@lru_cache(maxsize=1024)
def _form_of(
    is_single: bool,
    stored: torch.dtype,
    count: int,
    beta: int,
    reverse: bool,
    tile: VectorTile,
) -> _SlicesForm:
    bits = 24 if is_single else 53
    is_twos_complement = stored is torch.int8 and beta == 8
    limit = digit_limit(beta, bits) if is_twos_complement else 1.0
    return _SlicesForm(
        single=is_single,
        count=count,
        beta=beta,
        integers=stored is torch.int8,
        double=stored is torch.float64,
        limit=limit / 2 if is_twos_complement else 1.0,
        top=int(limit * 2.0**bits) - 2 ** (bits - 1),
        reverse=reverse,
        tile=tile,
    )
