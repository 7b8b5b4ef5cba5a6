"""The product of INT8 slices if one operand has few vectors: `slice_product` in one
launch, which reads each slice of the other operand once.

The weights of a network meet a few rows at a time, so reading the weights decides the
time of a product. A program has the sums of all diagonals of a tile in registers,

    D_s = sum_{p + q = s} A_p B_q,  s < S,

INT32 with (s + 1) k 2**(2 beta - 2) < 2**31. Their sum V = sum_s D_s 2**(beta (S - 1 - s))
fits INT64, and is rounded once.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from hifigemm.kernels.endings.rounding import rounded_words
from hifigemm.kernels.endings.special import nonfinite_product
from hifigemm.kernels.products.int8_product import K_BLOCK
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import power_of_two
from hifigemm.kernels.runtime.launch import Launch, strided
from hifigemm.kernels.runtime.tiles import gpu_of
from hifigemm.kernels.vectors.slices import PITCH, Slices
from hifigemm.kernels.vectors.vector_tiles import NOT_FINITE

MOST_VECTORS = 64
"""Most vectors of the operand that has few."""
MOST_SLICES = 4
"""The sums of more diagonals would not fit in registers."""
_TERMS = tl.constexpr(PITCH)
"""Terms of a step; slices are padded with zeros to a multiple of it."""


class _Side(NamedTuple):
    """Slices of an operand: slice p of a vector begins `first` + p `step` entries after
    its address.
    """

    planes: Buffer
    exponents: Buffer
    batch: int
    vector: int
    first: int
    step: int
    exponents_batch: int


@triton.jit
def _entries(side, z, vectors, start, p, exists):
    """The terms of a step, from `start` on, of slice p of some vectors; zeros for
    vectors that do not exist.
    """
    first = side.planes + z * side.batch + side.first + p * side.step + start
    terms = tl.arange(0, _TERMS)
    address = first + (vectors * side.vector)[:, None] + terms[None, :]
    return tl.load(address, mask=exists[:, None], other=0)


@triton.jit(
    do_not_specialize=["operands", "shift", "num_many", "num_few", "pitch", "k"]
)
def few_vectors_kernel(
    many,
    few,
    out,
    operands,
    shift,
    num_many,
    num_few,
    pitch,
    k,
    COUNT: tl.constexpr,
    BETA: tl.constexpr,
    MANY: tl.constexpr,
    FEW: tl.constexpr,
):
    """Twin: schemes.ozaki1.Ozaki1, of COUNT slices in two's complement or to nearest.

    A program computes the entries of MANY vectors of one operand and all vectors of the
    other, which fit in a tile of FEW. `out` has the strides of a matrix with a row for
    each of the many vectors. `operands` are the entries of both operands, with their
    strides.
    """
    tiles = tl.cdiv(num_many, MANY)
    z = (tl.program_id(0) // tiles).to(tl.int64)
    i = tl.program_id(0) % tiles * MANY + tl.arange(0, MANY)
    j = tl.arange(0, FEW)
    rows = i.to(tl.int64)
    columns = j.to(tl.int64)
    is_row = i < num_many
    is_column = j < num_few

    # INT32 sums of the diagonals, exact in any order.
    sums = ()
    for _ in tl.static_range(COUNT):
        sums += (tl.zeros((MANY, FEW), tl.int32),)
    for start in range(0, pitch, _TERMS):
        slices_of_few = ()
        for q in tl.static_range(COUNT):
            entries = _entries(few, z, columns, start, q, is_column)
            slices_of_few += (tl.trans(entries),)
        new_sums = sums
        for p in tl.static_range(COUNT):
            entries = _entries(many, z, rows, start, p, is_row)
            extended = ()
            for s in tl.static_range(COUNT):
                # Slice p meets slice s - p in diagonal s.
                if s >= p:
                    extended += (
                        tl.dot(
                            entries,
                            slices_of_few[s - p],
                            new_sums[s],
                            out_dtype=tl.int32,
                        ),
                    )
                else:
                    extended += (new_sums[s],)
            new_sums = extended
        sums = new_sums

    # V by Horner's rule, the first diagonal first; one rounding.
    total = tl.zeros((MANY, FEW), tl.int64)
    for s in tl.static_range(COUNT):
        total = (total << BETA) + sums[s].to(tl.int64)
    e = tl.load(many.exponents + z * many.exponents_batch + rows, mask=is_row, other=0)
    f = tl.load(
        few.exponents + z * few.exponents_batch + columns, mask=is_column, other=0
    )
    unit = shift - BETA * (COUNT - 1)
    exponent = (e + unit)[:, None] + f[None, :]
    # Outside of this range results are zeros or Inf in float32.
    scale = power_of_two(tl.minimum(tl.maximum(exponent, -1022), 1023))
    value = rounded_words(total, total, False, True) * scale
    c, out_batch, out_row, out_column = out
    inside = is_row[:, None] & is_column[None, :]
    address = (
        c + z * out_batch + rows[:, None] * out_row + columns[None, :] * out_column
    )
    tl.store(address, value.to(tl.float32), mask=inside)

    # Entries of vectors with an Inf or NaN come from the operands.
    e_marked = e == NOT_FINITE
    f_marked = f == NOT_FINITE
    if (tl.max(e_marked.to(tl.int32)) | tl.max(f_marked.to(tl.int32))) > 0:
        a, a_batch, a_vector, a_k, b, b_batch, b_vector, b_k = operands
        many_entries = a + z * a_batch + rows * a_vector
        for column in range(num_few):
            f_of_column = tl.load(few.exponents + z * few.exponents_batch + column)
            is_marked = e_marked | ((e * 0 + f_of_column) == NOT_FINITE)
            is_written = is_row & is_marked
            few_entries = b + z * b_batch + tl.cast(column, tl.int64) * b_vector
            special = nonfinite_product(
                few_entries, many_entries, k, b_k, a_k, is_written, 1
            )
            target = c + z * out_batch + rows * out_row
            target += tl.cast(column, tl.int64) * out_column
            tl.store(target, special.to(tl.float32), mask=is_written)


_launch = Launch(few_vectors_kernel)


def serves(left: Slices, right: Slices, out: Buffer) -> bool:
    """True for few INT8 slices of few vectors, and results in float32."""
    _, m, count, pitch = left.planes.shape
    return (
        left.planes.dtype is torch.int8
        and out.dtype is torch.float32
        and min(m, right.planes.shape[1]) <= MOST_VECTORS
        and count <= MOST_SLICES
        and count * pitch <= K_BLOCK
    )


def few_vectors_product(
    left: Slices,
    right: Slices,
    out: Buffer,
    k: int,
    operands: tuple[Buffer, Buffer],
    shift: int,
) -> None:
    """`slice_product` of what `serves` takes."""
    batch, m, n = out.shape
    count, pitch = left.planes.shape[2:]
    a, b = (strided(x) for x in operands)
    entries_of_left = a.entries, a.batch, a.row, a.column
    entries_of_right = b.entries, b.batch, b.column, b.row
    c = strided(out)
    by_rows = c.entries, c.batch, c.row, c.column
    by_columns = c.entries, c.batch, c.column, c.row
    sides = _side(left, is_reverse=False), _side(right, is_reverse=True)
    if m >= n:
        many, few = sides
        num_many, num_few = m, n
        results = by_rows
        entries = entries_of_left + entries_of_right
    else:
        few, many = sides
        num_few, num_many = m, n
        results = by_columns
        entries = entries_of_right + entries_of_left

    few_in_tile = max(16, triton.next_power_of_2(num_few))
    largest_block = 64
    if few_in_tile == MOST_VECTORS:
        # With four diagonals, registers hold the sums of fewer vectors.
        largest_block = 32 if count == MOST_SLICES else 128
    num_sms = gpu_of(out.device).num_sms
    block = _block_of_many(batch, num_many, largest_block, num_sms)
    _launch(
        (batch * triton.cdiv(num_many, block),),
        many,
        few,
        results,
        entries,
        shift,
        num_many,
        num_few,
        pitch,
        k,
        COUNT=count,
        BETA=left.beta,
        MANY=block,
        FEW=few_in_tile,
        num_warps=8 if block == 128 else 4,
        num_stages=4 if block == 32 else 3,
        enable_fp_fusion=False,
    )


def _block_of_many(batch: int, vectors: int, block: int, num_sms: int) -> int:
    """Vectors of a tile: at most a block, and few enough that most multiprocessors have
    a tile to read.

    On an H200, 14336 vectors of 4096 terms take 49 us with 64 in a tile times 8
    vectors, and 60 us with 128 in a tile times 64 vectors; 4096 vectors take 23 us with
    32 in a tile.
    """
    while block > 32 and batch * triton.cdiv(vectors, block) < 0.8 * num_sms:
        block //= 2
    return block


def _side(slices: Slices, *, is_reverse: bool) -> _Side:
    """The slices of an operand; the right operand has the last slice first."""
    planes = slices.planes
    batch, vector, pitch, _ = planes.stride()
    is_stack = planes.shape[0] > 1
    first = (planes.shape[2] - 1) * pitch if is_reverse else 0
    exponents_batch = slices.exponents.stride(0) if is_stack else 0
    return _Side(
        planes,
        slices.exponents,
        batch if is_stack else 0,
        vector,
        first,
        -pitch if is_reverse else pitch,
        exponents_batch,
    )
