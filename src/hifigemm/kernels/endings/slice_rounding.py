"""Diagonals of slices rounded correctly: schemes.ozaki1 in the mode "correct" on the
device.

The sum of the diagonals of S slices is an integer in limbs of 32 bits, of any length,
which is rounded once. Ziv's test, or the ends of a row and a column, prove nearly all
entries correctly rounded; the places of the others go into a list. A second launch adds
these entries up from all bits of their rows and columns, in digits of 16 bits, and
rounds the sums once. What remains is counted for the host: entries beyond the list, and
those of vectors that span more than `_DIGITS` digits.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, attr-defined, misc, no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from hifigemm.kernels.endings.rounding import leading_bits, round_head
from hifigemm.kernels.endings.special import nonfinite_product
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import ROUND_DOUBLE, power_of_two
from hifigemm.kernels.runtime.launch import Launch, operand_arguments
from hifigemm.kernels.runtime.tiles import gpu_of
from hifigemm.kernels.vectors.slice_counts import OFFSET, vector_facts
from hifigemm.kernels.vectors.slices import Slices
from hifigemm.kernels.vectors.vector_tiles import NOT_FINITE
from hifigemm.numerics.bits import ceil_log2
from hifigemm.numerics.bounds import ozaki1_error_exponent

_BLOCK = 128
"""Columns of a program that rounds; it is a warp."""
_LISTED = 2**16
"""Entries that the second launch adds up anew."""
_PROGRAMS = 8
"""Programs of it on a multiprocessor."""
_TERMS = 256
"""Terms that one of them takes at a time."""
_DIGITS = tl.constexpr(8)
_DIGIT_BITS = tl.constexpr(16)
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
    # Exponents in units of the last bit of head.
    drop = quantum - top + 63
    error = error - top + 63
    dropped = tl.minimum(drop, 63).to(tl.uint64)
    one = tl.full(head.shape, 1, tl.uint64)
    low = head & ((one << dropped) - one)
    half = one << (dropped - one)
    distance = (low - half).to(tl.int64, bitcast=True).to(tl.float64) * 2.0**32
    distance = tl.abs(distance + (tail >> 32).to(tl.int64).to(tl.float64))
    limit = power_of_two(tl.minimum(tl.maximum(error, -32), 63) + 32)
    far = tl.where(drop <= 63, distance > limit, (drop >= 66) & (error < 63))
    return far & (head != 0)


@triton.jit
def _zeros(like, COUNT: tl.constexpr):
    limbs = ()
    for _ in tl.static_range(COUNT):
        limbs = limbs + (tl.zeros(like.shape, tl.int64),)  # noqa: RUF005
    return limbs


@triton.jit(do_not_specialize=["shift", "m", "k", "row_sums", "part_sums", "listed"])
def slice_rounding_kernel(
    sums,
    left,
    right,
    out,
    operands,
    places,
    counter,
    listed,
    shift,
    m,
    n,
    k,
    row_sums,
    part_sums,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Twin: schemes.ozaki1.Ozaki1.multiply, its rounding and its certificate.

    A tile is BLOCK columns of a row, and a program is a warp with one tile. The
    arguments of a side are its exponents, needed slices and the stride of both along
    the stack. `places` gets the first `listed` entries that are not certain, and
    `counter` counts them.
    """
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
    limbs = _zeros(offset, LIMBS)
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
    # Nothing was left out of exact entries, and marked ones are made from A and B.
    certain = (needed - 1 <= COUNT) | marked
    certain |= _is_certain(head, tail, top, unit + KIND.err, KIND.single)
    open_ = inside & ~certain
    if tl.max(open_.to(tl.int32)) > 0:
        first = tl.full(columns.shape, 1, tl.int32)
        place = tl.atomic_add(counter + first - 1, first, mask=open_, sem="relaxed")
        entry = (z * m + i) * n + columns
        tl.store(places + place, entry, mask=open_ & (place < listed))
    if tl.max(marked.to(tl.int32)) > 0:
        a, a_batch, a_row, a_k, b, b_batch, b_k, b_column = operands
        row_entries = a + z * a_batch + i * a_row
        column_entries = b + z * b_batch + columns.to(tl.int64) * b_column
        value = tl.where(
            marked,
            nonfinite_product(row_entries, column_entries, k, a_k, b_k, inside, 1),
            value,
        )
    c, out_batch, out_row, out_column = out
    address = c + z * out_batch + i * out_row + columns.to(tl.int64) * out_column
    tl.store(address, value.to(c.dtype.element_ty), mask=inside)


_round = Launch(slice_rounding_kernel)


@triton.jit
def _digits(x, inside, scale, scale_more):
    """The digits of entries on the grids of 16 bits from 2**-scale on, as INT64."""
    y = tl.load(x, mask=inside, other=0.0).to(tl.float64) * scale * scale_more
    digits = ()
    for _ in tl.static_range(_DIGITS):
        digit = (y + ROUND_DOUBLE) - ROUND_DOUBLE
        digits = digits + (digit.to(tl.int32).to(tl.int64),)  # noqa: RUF005
        y = (y - digit) * 65536.0
    return digits


@triton.jit
def _digits_needed(lowest, g):
    """Digits from the grid 2**g on that hold all bits of a vector; 0 for zeros."""
    bits = -g - lowest + OFFSET + _DIGIT_BITS * _DIGITS
    return tl.where(lowest == 0, 0, tl.where(bits >= _DIGIT_BITS, _DIGITS, _DIGITS + 1))


@triton.jit(do_not_specialize=["listed", "shift", "m", "n", "k"])
def exact_entries_kernel(
    places,
    counter,
    record,
    ends,
    left,
    right,
    out,
    operands,
    listed,
    shift,
    m,
    n,
    k,
    BETA: tl.constexpr,
    SINGLE: tl.constexpr,
    TERMS: tl.constexpr,
):
    """Twin: schemes.ozaki1.Ozaki1 with all slices, for the entries of a list.

    Programs go on to entries that lie apart by their number. The arguments of a side
    are its exponents, lowest bits and the stride of both along the stack. `record` gets
    the number of open entries, how many of them stay open, and the slices of each side
    that are not zeros, of which there are `ends`.
    """
    DIAGONALS: tl.constexpr = 2 * _DIGITS - 1
    count = tl.load(counter)
    if tl.program_id(0) == 0:
        tl.atomic_add(record, count.to(tl.int64))
        tl.atomic_add(record + 1, tl.maximum(count - listed, 0).to(tl.int64))
        tl.atomic_max(record + 2, tl.load(ends).to(tl.int64))
        tl.atomic_max(record + 3, tl.load(ends + 1).to(tl.int64))
    row_exponents, row_lowest, row_batch = left
    column_exponents, column_lowest, column_batch = right
    a, a_batch, a_row, a_k, b, b_batch, b_k, b_column = operands
    c, out_batch, out_row, out_column = out
    for index in range(tl.program_id(0), tl.minimum(count, listed), tl.num_programs(0)):
        entry = tl.load(places + index)
        j = entry % n
        i = entry // n % m
        z = entry // n // m
        # Grids of digits of 16 bits below the largest entry of each vector.
        row = z * row_batch + i
        column = z * column_batch + j
        e = tl.load(row_exponents + row) + (BETA - _DIGIT_BITS)
        f = tl.load(column_exponents + column) + (BETA - _DIGIT_BITS)
        needed = tl.maximum(
            _digits_needed(tl.load(row_lowest + row), e),
            _digits_needed(tl.load(column_lowest + column), f),
        )
        if needed > _DIGITS:
            tl.atomic_add(record + 1, tl.full((), 1, tl.int64))
        else:
            e_first = tl.minimum(-e, 1000)
            f_first = tl.minimum(-f, 1000)
            h = tl.arange(0, TERMS)
            sums = _zeros(h, DIAGONALS)
            for start in range(0, k, TERMS):
                inside = start + h < k
                at = (start + h).to(tl.int64)
                x = _digits(
                    a + z * a_batch + i * a_row + at * a_k,
                    inside,
                    power_of_two(e_first),
                    power_of_two(-e - e_first),
                )
                y = _digits(
                    b + z * b_batch + j * b_column + at * b_k,
                    inside,
                    power_of_two(f_first),
                    power_of_two(-f - f_first),
                )
                longer = ()
                for s in tl.static_range(DIAGONALS):
                    total = sums[s]
                    for p in tl.static_range(_DIGITS):
                        if p <= s:  # noqa: SIM102
                            if s - p < _DIGITS:
                                total += x[p] * y[s - p]
                    longer = longer + (total,)  # noqa: RUF005
                sums = longer
            limbs = _zeros(tl.sum(sums[0], axis=0, keep_dims=True), 10)
            for s in tl.static_range(DIAGONALS):
                limbs = _with_integer(
                    limbs,
                    tl.sum(sums[s], axis=0, keep_dims=True),
                    _DIGIT_BITS * (DIAGONALS - 1 - s),
                )
            unit = e + f + shift - _DIGIT_BITS * (DIAGONALS - 1)
            unit = tl.minimum(tl.maximum(unit, -6000), 6000)
            head, _, sticky, top, is_negative = _leading(limbs, unit)
            value = round_head(head, sticky, top, is_negative, SINGLE)
            address = c + z * out_batch + i * out_row + j * out_column + tl.arange(0, 1)
            tl.store(address, value.to(c.dtype.element_ty))


_add_up = Launch(exact_entries_kernel)


@triton.jit
def _needed_of(exponents, lowest_bits, needed, ends, place, count, BETA: tl.constexpr):
    v = place * 1024 + tl.arange(0, 1024)
    g = tl.load(exponents + v, mask=v < count, other=0)
    lowest = tl.load(lowest_bits + v, mask=v < count, other=0)
    # 1 - floor((lowest - g) / beta), by a quotient of positive numbers.
    g = tl.where(g == NOT_FINITE, 0, g)
    slices = 1 + 4096 - (-lowest - g + OFFSET + 4096 * BETA) // BETA
    slices = tl.where(lowest == 0, 0, slices)
    tl.store(needed + v, slices, mask=v < count)
    tl.atomic_max(ends, tl.max(slices), sem="relaxed")


@triton.jit(do_not_specialize=["programs", "left_count", "right_count"])
def needed_kernel(
    left, left_count, right, right_count, programs, ends, BETA: tl.constexpr
):
    """Twin: numerics.slicing.slices_needed, for all rows of A and columns of B.

    `ends`, zeros beforehand, gets the largest of each side.
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


class VectorEnds(NamedTuple):
    """Where the vectors of both operands end.

    `lowest` and `needed` are for each side an int32 tensor (batch or 1, vectors): see
    `slice_counts.vector_facts` and `numerics.slicing.slices_needed`. `most` holds the
    largest number of needed slices of each side.
    """

    lowest: tuple[Any, Any]
    needed: tuple[Any, Any]
    most: Any


def ends_of(left: Buffer, right: Buffer, slices: tuple[Slices, Slices]) -> VectorEnds:
    """Launch the look for the ends of the rows of A and the columns of B.

    `slices` are those of the operands.
    """
    facts = vector_facts(left, right)
    sides = []
    for (_, lowest), made in zip(facts, slices, strict=True):
        needed = left.launches.empty(tuple(made.exponents.shape), torch.int32)
        sides.append((made.exponents, lowest, needed))
    counts = [side[0].numel() for side in sides]
    blocks = [-(-count // 1024) for count in counts]
    most = left.launches.zeros((2,), torch.int32)
    _needed(
        (sum(blocks),),
        sides[0],
        counts[0],
        sides[1],
        counts[1],
        blocks[0],
        most,
        BETA=slices[0].beta,
        num_warps=4,
    )
    _, lowest_bits, needed_slices = zip(*sides, strict=True)
    return VectorEnds(lowest_bits, needed_slices, most)


def round_correctly(
    sums: list[Buffer],
    slices: tuple[Slices, Slices],
    ends: VectorEnds,
    out: Buffer,
    record: Buffer,
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
    ends : Ends
    out : float32 or float64 tensor (batch, m, n), any strides
    record : int64 tensor of four entries
        The number of entries that the diagonals do not settle is added to the first,
        that of those which nothing settles to the second. The others become the most
        slices of a row and of a column, where they are less.
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
    places = out.launches.empty((_LISTED,), torch.int64)
    counter = out.launches.zeros((1,), torch.int32)
    # For each side its exponents and the stride of them along the stack.
    left, right = (x.exponents for x in slices)
    left_stride, right_stride = (
        x.exponents.stride(0) if len(x.planes) > 1 else 0 for x in slices
    )
    left_needed, right_needed = ends.needed
    left_lowest, right_lowest = ends.lowest
    strided_out = (out, *out.stride())
    strided_operands = tuple(operand_arguments(operands))
    _round(
        (batch * m * -(-n // _BLOCK),),
        tuple(argument for x in sums for argument in (x, x.stride(0))),
        (left, left_needed, left_stride),
        (right, right_needed, right_stride),
        strided_out,
        strided_operands,
        places,
        counter,
        _LISTED,
        shift,
        m,
        n,
        k,
        sums[0].stride(2),
        sums[0].stride(1),
        KIND=kind,
        BLOCK=_BLOCK,
        num_warps=1,
        enable_fp_fusion=False,
    )
    _add_up(
        (_PROGRAMS * gpu_of(out.device).num_sms,),
        places,
        counter,
        record,
        ends.most,
        (left, left_lowest, left_stride),
        (right, right_lowest, right_stride),
        strided_out,
        strided_operands,
        _LISTED,
        shift,
        m,
        n,
        k,
        BETA=beta,
        SINGLE=kind.single,
        TERMS=_TERMS,
        num_warps=4,
        enable_fp_fusion=False,
    )


def num_limbs(k: int, count: int, beta: int) -> int:
    """Limbs of 32 bits that hold the sum of all diagonals, and those of a diagonal
    next to them.
    """
    bits = ceil_log2(k) + 2 * (beta - 1) + beta * (count - 1) + 2
    return max(-(-bits // 32), beta * (count - 1) // 32 + 2, 3)
