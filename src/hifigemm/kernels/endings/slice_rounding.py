"""Diagonals of slices rounded correctly: schemes.ozaki1 in the mode "correct" on the
device.

The sum of the diagonals of S slices is an integer in limbs of 32 bits, of any length,
which is rounded once. Ziv's test, or the ends of a row and a column, prove nearly all
entries correctly rounded. The others are open, as are those of rows and columns with an
Inf or NaN, and `finish_entries` completes them from A and B.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, attr-defined, misc, no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from hifigemm.kernels.endings.rounding import Targets, leading_bits, round_head
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import power_of_two
from hifigemm.kernels.runtime.launch import Launch, strided
from hifigemm.kernels.sums.rounded_sums import finish_entries
from hifigemm.kernels.vectors.slice_counts import OFFSET, vector_facts
from hifigemm.kernels.vectors.slices import Slices
from hifigemm.kernels.vectors.vector_tiles import NOT_FINITE
from hifigemm.numerics.bits import ceil_log2
from hifigemm.numerics.bounds import ozaki1_error_exponent

_BLOCK = 128
"""Columns of a program that rounds; it is a warp."""
_MASK = tl.constexpr((1 << 32) - 1)
_SIGN = tl.constexpr(-1 << 63)


@dataclass(frozen=True)
class _RoundingKind:
    """What the kernel knows of the sums when it is compiled."""

    # how many diagonals, the longest first, have a first, a second, ... sum
    parts: tuple[int, ...]
    limbs: int  # of 32 bits
    beta: int  # bits of a slice
    err: int  # what is left out is at most 2**err units of the last diagonal
    single: bool  # results are float32, else float64


@triton.jit
def _with_integer(limbs, number, SHIFT: tl.constexpr):
    """Limbs of 32 bits, without carries, plus an INT64 number times 2**SHIFT."""
    INDEX: tl.constexpr = SHIFT // 32
    low = (number & _MASK) << SHIFT % 32
    high = (number >> 32) << SHIFT % 32
    longer = ()
    for j in tl.static_range(len(limbs)):
        limb = limbs[j]
        if j == INDEX:
            limb += low & _MASK
        elif j == INDEX + 1:
            limb += low >> 32
            # The last limb is signed.
            if j == len(limbs) - 1:
                limb += high
            else:
                limb += high & _MASK
        elif j == INDEX + 2:
            limb += high >> 32
        longer = longer + (limb,)  # noqa: RUF005
    return longer


@triton.jit
def _leading(limbs, exponent):
    """`rounding.leading_bits` of limbs without carries, the first in units of
    2**exponent.
    """
    COUNT: tl.constexpr = len(limbs)
    swept = ()
    carry = tl.zeros_like(limbs[0])
    for j in tl.static_range(COUNT - 1):
        limb = limbs[j] + carry
        carry = limb >> 32
        swept = swept + (limb & _MASK,)  # noqa: RUF005
    word = (swept[COUNT - 2] << 32) | swept[COUNT - 3]
    # The word is signed, and a negative one takes 2**64 away.
    above = limbs[COUNT - 1] + carry + (word < 0).to(tl.int64)
    below = ()
    for j in tl.static_range(COUNT - 3):
        below = below + (swept[j].to(tl.uint64, bitcast=True),)  # noqa: RUF005
    return leading_bits(
        above.to(tl.float64),
        word ^ _SIGN,
        below,
        exponent + (32 * (COUNT - 3) + 64),
        64,
        32,
    )


@triton.jit
def _is_certain(head, tail, top, error, SINGLE: tl.constexpr):
    """Twin: numerics.rounding._far_from_midpoint, for errors up to 2**error."""
    if SINGLE:
        quantum = tl.maximum(top - 23, -149)
    else:
        quantum = tl.maximum(top - 52, -1074)
    # Exponents in units of the last bit of head, and the distance from the middle of
    # two results in units of 2**-32 of it, to which the tail gives 32 bits.
    drop = quantum - top + 63
    error = error - top + 63
    dropped = tl.minimum(drop, 63).to(tl.uint64)
    one = tl.full(head.shape, 1, tl.uint64)
    low = head & ((one << dropped) - one)
    half = one << (dropped - one)
    distance = (low - half).to(tl.int64, bitcast=True).to(tl.float64) * 2.0**32
    distance = tl.abs(distance + (tail >> 32).to(tl.int64).to(tl.float64))
    limit = power_of_two(tl.minimum(tl.maximum(error, -32), 63) + 32)
    # From 66 bits on the sum lies below a quarter of the smallest number, and rounds to
    # zero.
    far = tl.where(drop <= 63, distance > limit, (drop >= 66) & (error < 63))
    return far & (head != 0)


@triton.jit(do_not_specialize=["shift", "m", "row_sums", "part_sums"])
def slice_rounding_kernel(
    sums,
    left,
    right,
    out,
    shift,
    m,
    n,
    row_sums,
    part_sums,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Twin: schemes.ozaki1.Ozaki1.multiply, its rounding and its certificate. Entries
    that are not certain are NaN.

    A tile is BLOCK columns of a row, and a program is a warp with one tile. The
    arguments of a side are its exponents, needed slices and the stride of both along
    the stack. Rows of sums are padded to whole tiles.
    """
    # Programs count the tiles of a row, the rows of a matrix, then the matrices z. No
    # two write to the same entries.
    tiles = tl.cdiv(n, BLOCK)
    row = tl.program_id(0) // tiles
    z = (row // m).to(tl.int64)
    i = tl.cast(row % m, tl.int64)
    columns = (tl.program_id(0) - row * tiles) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < n
    row_exponents, row_needed, row_batch = left
    column_exponents, column_needed, column_batch = right
    f = tl.load(column_exponents + z * column_batch + columns, mask=inside, other=0)
    e = tl.zeros_like(f) + tl.load(row_exponents + z * row_batch + i)
    needed = tl.load(row_needed + z * row_batch + i) + tl.load(
        column_needed + z * column_batch + columns, mask=inside, other=0
    )
    marked = (e == NOT_FINITE) | (f == NOT_FINITE)
    # All diagonals as one integer, part 0 being the last one.
    offset = i * row_sums + columns
    part_stride = tl.cast(part_sums, tl.int64)
    LIMBS: tl.constexpr = KIND.limbs
    limbs = ()
    for _ in tl.static_range(LIMBS):
        limbs = limbs + (tl.zeros(offset.shape, tl.int64),)  # noqa: RUF005
    COUNT: tl.constexpr = KIND.parts[0]
    PIECES: tl.constexpr = len(KIND.parts)
    for l in tl.static_range(COUNT):
        for piece in tl.static_range(PIECES):
            if KIND.parts[piece] > l:
                number = tl.load(
                    sums[2 * piece] + z * sums[2 * piece + 1] + l * part_stride + offset
                ).to(tl.int64)
                limbs = _with_integer(limbs, number, KIND.beta * l)
    unit = tl.where(marked, 0, e + f) + (shift - KIND.beta * (COUNT - 1))
    # Exponents beyond +-6000 give what these give.
    unit = tl.minimum(tl.maximum(unit, -6000), 6000)
    head, tail, sticky, top, is_negative = _leading(limbs, unit)
    value = round_head(head, sticky, top, is_negative, KIND.single)
    # Nothing was left out of exact entries.
    is_certain = (needed - 1 <= COUNT) | _is_certain(
        head, tail, top, unit + KIND.err, KIND.single
    )
    value = tl.where(is_certain & ~marked, value, float("nan"))
    c, out_batch, out_row, out_column = out
    address = c + z * out_batch + i * out_row + columns.to(tl.int64) * out_column
    tl.store(address, value.to(c.dtype.element_ty), mask=inside)


_round = Launch(slice_rounding_kernel)


@triton.jit
def _needed_of(exponents, lowest_bits, needed, ends, place, count, BETA: tl.constexpr):
    """Needed slices of the vectors of tile `place`, 1024 of them, and their maximum."""
    v = place * 1024 + tl.arange(0, 1024)
    g = tl.load(exponents + v, mask=v < count, other=0)
    lowest = tl.load(lowest_bits + v, mask=v < count, other=0)
    # 1 - floor((exponent of the lowest bit - g) / beta), by a quotient of positive
    # numbers; `lowest` is OFFSET less that exponent, and 0 for zeros.
    g = tl.where(g == NOT_FINITE, 0, g)
    slices = 1 + 4096 - (-lowest - g + OFFSET + 4096 * BETA) // BETA
    slices = tl.where(lowest == 0, 0, slices)
    tl.store(needed + v, slices, mask=v < count)
    # A maximum does not depend on the order of programs.
    tl.atomic_max(ends, tl.max(slices), sem="relaxed")


@triton.jit(do_not_specialize=["programs", "left_count", "right_count"])
def needed_kernel(
    left, left_count, right, right_count, programs, ends, BETA: tl.constexpr
):
    """Twin: numerics.slicing.slices_needed, for all rows of A and columns of B.

    The first `programs` programs take the rows of A, the others the columns of B.
    `ends`, zeros or earlier results beforehand, gets the largest of each side.
    """
    place = tl.program_id(0)
    if place < programs:
        exponents, lowest_bits, needed = left
        _needed_of(exponents, lowest_bits, needed, ends, place, left_count, BETA)
    else:
        exponents, lowest_bits, needed = right
        place -= programs
        _needed_of(exponents, lowest_bits, needed, ends + 1, place, right_count, BETA)


_needed = Launch(needed_kernel)


def needed_slices(
    left: Buffer, right: Buffer, slices: tuple[Slices, Slices], ends: Buffer
) -> tuple[Buffer, Buffer]:
    """`numerics.slicing.slices_needed` of the rows of A and the columns of B: int32
    tensors (batch or 1, vectors).

    `slices` are those of the operands. `ends`, int32 of two entries that are zeros or
    earlier results, gets the largest number of each side.
    """
    sides = []
    for (_, lowest), of_side in zip(vector_facts(left, right), slices, strict=True):
        shape = tuple(of_side.exponents.shape)
        needed = left.launches.empty(shape, torch.int32)
        sides.append((of_side.exponents, lowest, needed))
    counts = [side[0].numel() for side in sides]
    blocks = [-(-count // 1024) for count in counts]
    _needed(
        (sum(blocks),),
        sides[0],
        counts[0],
        sides[1],
        counts[1],
        blocks[0],
        ends,
        BETA=slices[0].beta,
        num_warps=4,
    )
    return sides[0][2], sides[1][2]


def round_correctly(
    sums: list[Buffer],
    slices: tuple[Slices, Slices],
    needed: tuple[Buffer, Buffer],
    out: Buffer,
    *,
    shift: int,
    operands: tuple[Buffer, Buffer],
) -> None:
    """out = 2**shift A B, every entry rounded once from its exact value.

    Parameters
    ----------
    sums : list of tensors
        The diagonals, as `slice_product` takes them.
    slices : Slices of both operands
    needed : pair of int32 tensors
        See `needed_slices`.
    out : float32 or float64 tensor (batch, m, n), any strides
    shift : int
    operands : tensors (batch or 1, m, k) and (batch or 1, k, n), any strides
    """
    batch, m, n = out.shape
    k = operands[0].shape[2]
    beta = slices[0].beta
    count = sums[0].shape[1]
    is_twos_complement = slices[0].planes.dtype is torch.int8 and beta == 8
    kind = _RoundingKind(
        parts=tuple(x.shape[1] for x in sums),
        limbs=num_limbs(k, count, beta),
        beta=beta,
        err=ozaki1_error_exponent(k, count, beta, is_twos_complement),
        single=out.dtype is torch.float32,
    )
    # For each side its exponents, needed slices and the stride of both along the stack.
    left, right = (
        (x.exponents, numbers, x.exponents.stride(0) if len(x.planes) > 1 else 0)
        for x, numbers in zip(slices, needed, strict=True)
    )
    _round(
        (batch * m * -(-n // _BLOCK),),
        tuple(argument for x in sums for argument in (x, x.stride(0))),
        left,
        right,
        strided(out),
        shift,
        m,
        n,
        sums[0].stride(2),
        sums[0].stride(1),
        KIND=kind,
        BLOCK=_BLOCK,
        num_warps=1,
        enable_fp_fusion=False,
    )
    finish_entries(*operands, Targets(out), shift=shift)


def num_limbs(k: int, count: int, beta: int) -> int:
    """Limbs of 32 bits that hold the sum of all diagonals, and those of a diagonal
    next to them.
    """
    bits = ceil_log2(k) + 2 * (beta - 1) + beta * (count - 1) + 2
    return max(-(-bits // 32), beta * (count - 1) // 32 + 2, 3)
