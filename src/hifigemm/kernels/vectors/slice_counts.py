"""How many slices does the estimate of [MOOI20] take? The GPU's version of
numerics.estimates.published_num_slices.

Four launches read both operands three times and leave four numbers on the device:
exponents of rows, columns and terms; sums of magnitudes over the other index of an
operand; weights of the terms; sums of the digits of each vector with these weights. All
sums are integers that float64 or INT64 holds, and all joins are maxima and sums of
integers, so that no order of programs changes a number.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, misc, no-untyped-def"

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from hifigemm.kernels.endings.rounding import finite
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import ROUND_DOUBLE, power_of_two
from hifigemm.kernels.runtime.launch import Launch, Strided, float64_bits, strided
from hifigemm.kernels.vectors.statistics import (
    NO_POWER,
    biased_exponent,
    entries_of,
    exponent_of,
    exponent_or,
    lowest_power,
    magnitude_bits,
    tile_of_vectors,
)
from hifigemm.numerics.bits import ceil_log2

MAX_DIGITS = 12
"""Slices that are looked at. Operands that need more are left to the plain function."""
OFFSET = tl.constexpr(4096)
"""Added to exponents: 0 stands for vectors and terms without entries."""
_TILE = tl.constexpr(64)
"""Vectors of a tile, and terms of it."""
_TERMS = tl.constexpr(1024)
"""Terms whose weights a program makes."""
_WEIGHT_BITS = tl.constexpr(20)
_INTEGERS = tl.constexpr(2.0**52)
"""Added to a float64 from 0 to 2**51 and taken away again, it rounds to an integer."""


@triton.jit
def _loaded(entries, inside):
    """Entries in float64; 0 where there is none, or an Inf or NaN."""
    return finite(tl.load(entries, mask=inside, other=0.0).to(tl.float64))


@triton.jit
def _tile(operand, tile, vectors, k):
    """Magnitudes of a tile of an operand, its matrix, vectors and terms."""
    entries, inside, z, v, h = tile_of_vectors(
        operand, tile, vectors, k, tl.cdiv(k, _TILE), _TILE, _TILE
    )
    return tl.abs(_loaded(entries, inside)), z, v, h


@triton.jit
def _exponents_of_tile(operand, facts, tile, vectors, k):
    """Join the exponents and lowest bits of a tile into those of its vectors and terms.

    The largest exponent of all is joined too, where terms are asked for.
    """
    magnitude, z, v, h = _tile(operand, tile, vectors, k)
    vector_exponents, lowest_bits, term_exponents, top = facts
    # Maxima and minima of bits first, then exponents of what few numbers are left.
    bits = magnitude_bits(magnitude)
    of_vectors = exponent_or(tl.max(bits, axis=1), -OFFSET) + OFFSET
    smallest = tl.min(lowest_power(magnitude), axis=1)
    lowest = tl.where(smallest == NO_POWER, 0, OFFSET - (exponent_of(smallest) - 1))
    # Maxima over vectors and over terms; the memory starts as zeros.
    row = z * vectors + v
    tl.atomic_max(vector_exponents + row, of_vectors, mask=v < vectors, sem="relaxed")
    tl.atomic_max(lowest_bits + row, lowest, mask=v < vectors, sem="relaxed")
    if term_exponents is not None:
        tl.atomic_max(
            term_exponents + z * k + h,
            exponent_or(tl.max(bits, axis=0), -OFFSET) + OFFSET,
            mask=h < k,
            sem="relaxed",
        )
        tl.atomic_max(top, tl.max(of_vectors), sem="relaxed")


@triton.jit(do_not_specialize=["programs", "left_vectors", "right_vectors", "k"])
def exponents_kernel(
    left, left_facts, left_vectors, right, right_facts, right_vectors, programs, k
):
    """Twin: numerics.bits.largest_exponent along both axes, and lowest_bit.

    A tile is 64 vectors times 64 terms, in the order of `place_of_tile`. The first
    `programs` programs take a tile of the left operand each, all others one of the
    right operand. Exponents come with `OFFSET` added, lowest bits l as `OFFSET` - l;
    0 where all entries are zeros, or Inf or NaN.
    """
    program = tl.program_id(0)
    if program < programs:
        _exponents_of_tile(left, left_facts, program, left_vectors, k)
    else:
        _exponents_of_tile(right, right_facts, program - programs, right_vectors, k)


_exponents = Launch(exponents_kernel)


@triton.jit
def _ceil(x):
    """The next integer from 0 <= x <= 2**51 on."""
    nearest = (x + _INTEGERS) - _INTEGERS
    return nearest + (nearest < x).to(tl.float64)


@triton.jit
def _sums_of_tile(operand, term_exponents, sums, tile, vectors, k):
    magnitude, z, _, h = _tile(operand, tile, vectors, k)
    e = tl.load(term_exponents + z * k + h, mask=h < k, other=0)
    # 2**(20 - e) by two powers that float64 holds.
    scale = -tl.where(e == 0, 0, e - OFFSET) + _WEIGHT_BITS
    first = tl.minimum(scale, 1000)
    scaled = magnitude * power_of_two(first)[None, :]
    scaled = scaled * power_of_two(scale - first)[None, :]
    # What underflows counts as 1.
    integers = tl.maximum(_ceil(scaled), (magnitude > 0).to(tl.float64))
    # Sums of integers do not depend on the order of programs; the memory starts as
    # zeros.
    total = tl.sum(integers, axis=0).to(tl.int64)
    tl.atomic_add(sums + z * k + h, total, mask=h < k, sem="relaxed")


@triton.jit(do_not_specialize=["programs", "left_vectors", "right_vectors", "k"])
def sums_kernel(
    left,
    left_exponents,
    left_sums,
    left_vectors,
    right,
    right_exponents,
    right_sums,
    right_vectors,
    programs,
    k,
):
    """Twin: the sums of magnitudes of numerics.estimates.vector_weights.

    Programs take the same tiles as in `exponents_kernel`, which has run before.
    """
    program = tl.program_id(0)
    if program < programs:
        _sums_of_tile(left, left_exponents, left_sums, program, left_vectors, k)
    else:
        _sums_of_tile(
            right, right_exponents, right_sums, program - programs, right_vectors, k
        )


_sums = Launch(sums_kernel)


@triton.jit
def _on_one_grid(term_exponents, sums, top, h, k):
    """Sums of terms h on the grid of the largest term of the stack, in float64.

    Sums that lie further below it than 1000 bits are raised to there: the weight of all
    of them is 1, as it is rounded up.
    """
    total = tl.load(sums + h, mask=h < k, other=0).to(tl.float64)
    drop = tl.load(term_exponents + h, mask=h < k, other=0) - top
    return total * power_of_two(tl.maximum(drop, -1000))


@triton.jit
def _weights_of_terms(
    term_exponents, sums, top, weights, place, k, DROPPED: tl.constexpr
):
    """Weights of block number `place` of _TERMS terms, counted matrix after matrix."""
    blocks = tl.cdiv(k, _TERMS)
    z = (place // blocks).to(tl.int64)
    largest = tl.load(top)
    # Every program finds the largest sum of its matrix by itself.
    best = tl.zeros([_TERMS], tl.float64)
    for start in range(0, k, _TERMS):
        best = tl.maximum(
            best,
            _on_one_grid(
                term_exponents + z * k,
                sums + z * k,
                largest,
                start + tl.arange(0, _TERMS),
                k,
            ),
        )
    largest_sum = tl.max(best)
    e = tl.where(largest_sum == 0, 0, biased_exponent(largest_sum) - 1022)
    h = (place % blocks) * _TERMS + tl.arange(0, _TERMS)
    total = _on_one_grid(term_exponents + z * k, sums + z * k, largest, h, k)
    weight = _ceil(total * power_of_two(-e + _WEIGHT_BITS))
    # Shorter weights keep the sums of `_count_of_panel` exact.
    if DROPPED > 0:
        weight = _ceil(weight * 2.0**-DROPPED)
    tl.store(weights + z * k + h, weight, mask=h < k)


@triton.jit(do_not_specialize=["programs", "k"])
def weights_kernel(left, right, programs, k, DROPPED: tl.constexpr):
    """Twin: numerics.estimates.vector_weights and short_weights, of their sums."""
    program = tl.program_id(0)
    if program < programs:
        exponents, sums, top, weights = left
        _weights_of_terms(exponents, sums, top, weights, program, k, DROPPED)
    else:
        exponents, sums, top, weights = right
        _weights_of_terms(exponents, sums, top, weights, program - programs, k, DROPPED)


_weights = Launch(weights_kernel)


@triton.jit
def _count_of_panel(
    operand,
    facts,
    weights,
    found,
    threshold_bits,
    program,
    vectors,
    k,
    BETA: tl.constexpr,
    DIGITS: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Raise `found` to the count, and the needed slices, of a panel of BLOCK_V vectors.

    The program walks over all terms, so that sums need no other program.
    """
    vector_exponents, lowest_bits, facts_stride = facts
    weights, weights_stride = weights
    panels = tl.cdiv(vectors, BLOCK_V)
    z = (program // panels).to(tl.int64)
    v = (program % panels) * BLOCK_V + tl.arange(0, BLOCK_V)
    exists = v < vectors
    row = z * facts_stride + v
    e = tl.load(vector_exponents + row, mask=exists, other=0)
    lowest = tl.load(lowest_bits + row, mask=exists, other=0)
    g = tl.where(e == 0, 0, e - OFFSET) - (BETA - 1)
    # Slices after which a vector ends: 1 - floor((lowest - g) / beta), by a quotient of
    # positive numbers.
    distance = -lowest - g + OFFSET
    needed = tl.where(lowest == 0, 0, 1 + 4096 - (distance + 4096 * BETA) // BETA)
    tl.atomic_max(found + 1, tl.max(needed), sem="relaxed")
    # Sums of |digit| weight, exact in float64, for all digits of a vector.
    first = tl.minimum(-g, 1000)
    scale = power_of_two(first)
    second = power_of_two(-g - first)
    sums = ()
    for _ in tl.static_range(DIGITS):
        sums = sums + (tl.zeros([BLOCK_V, BLOCK_K], tl.float64),)  # noqa: RUF005
    for start in range(0, k, BLOCK_K):
        h = start + tl.arange(0, BLOCK_K)
        inside = exists[:, None] & (h < k)[None, :]
        value = _loaded(entries_of(operand, z, v, h), inside)
        weight = tl.load(weights + z * weights_stride + h, mask=h < k, other=0.0)
        y = value * scale[:, None] * second[:, None]
        longer = ()
        for d in tl.static_range(DIGITS):
            digit = (y + ROUND_DOUBLE) - ROUND_DOUBLE
            longer = longer + (sums[d] + tl.abs(digit) * weight[None, :],)  # noqa: RUF005
            y = (y - digit) * 2.0**BETA
        sums = longer
    # The first d from 2 on with 2 sqrt(k) u sum_1 > (d + 1) sum_d, as in [MOOI20],
    # sum_d in units of the first digit; DIGITS + 1 where there is none. Maxima do not
    # depend on the order of programs.
    threshold = tl.cast(threshold_bits, tl.int64).to(tl.float64, bitcast=True)
    first_sum = tl.sum(sums[0], axis=1)
    limit = threshold * first_sum
    count = tl.where(first_sum > 0, DIGITS + 1, 2)
    unit = 1.0
    for i in tl.static_range(1, DIGITS):
        unit = unit * 2.0**-BETA
        size = tl.sum(sums[i], axis=1) * (i + 2.0) * unit
        meets = (count > DIGITS) & (size < limit)
        count = tl.where(meets, i + 1, count)
    tl.atomic_max(found, tl.max(count), sem="relaxed")


@triton.jit(
    do_not_specialize=[
        "threshold_bits",
        "programs",
        "left_vectors",
        "right_vectors",
        "k",
    ]
)
def counts_kernel(
    left,
    left_facts,
    left_weights,
    left_vectors,
    right,
    right_facts,
    right_weights,
    right_vectors,
    found,
    threshold_bits,
    programs,
    k,
    BETA: tl.constexpr,
    DIGITS: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
):
    """Twin: the counts of numerics.estimates.published_num_slices.

    `found`, zeros at first, gets the count and the most slices of a vector of A, then
    the same two numbers of B. LEFT and RIGHT are the vectors and terms of a tile; a
    program takes all tiles of a panel of vectors, first of A, then of B.
    `threshold_bits` are the bits of the float64 2 sqrt(k) u.
    """
    program = tl.program_id(0)
    if program < programs:
        _count_of_panel(
            left,
            left_facts,
            left_weights,
            found,
            threshold_bits,
            program,
            left_vectors,
            k,
            BETA,
            DIGITS,
            LEFT[0],
            LEFT[1],
        )
    else:
        _count_of_panel(
            right,
            right_facts,
            right_weights,
            found + 2,
            threshold_bits,
            program - programs,
            right_vectors,
            k,
            BETA,
            DIGITS,
            RIGHT[0],
            RIGHT[1],
        )


_counts = Launch(counts_kernel)


def _vectors_first(x: Buffer, axis: int) -> Strided:
    """An operand with vectors as rows."""
    return strided(x) if axis == 2 else strided(x).transposed


def vector_facts(
    left: Buffer, right: Buffer
) -> tuple[tuple[Buffer, Buffer], tuple[Buffer, Buffer]]:
    """Launch the look for the exponents of the rows of A and the columns of B.

    Returns for each operand two int32 tensors (batch or 1, vectors): the smallest e
    with |x| < 2**e plus 4096, and 4096 less the exponent of the lowest set bit. Both
    are 0 for vectors of zeros; Inf and NaN count as zeros.
    """
    facts = tuple(_cleared_facts(x, axis, False) for x, axis in _sides(left, right))
    _launch_exponents(left, right, facts)
    return (facts[0][0], facts[0][1]), (facts[1][0], facts[1][1])


def _sides(
    left: Buffer, right: Buffer
) -> tuple[tuple[Buffer, int], tuple[Buffer, int]]:
    return (left, 2), (right, 1)


def _cleared_facts(x: Buffer, axis: int, has_terms: bool) -> tuple[Any, ...]:
    """Memory for what `exponents_kernel` finds of an operand."""
    batch, vectors, k = x.shape[0], x.shape[3 - axis], x.shape[axis]
    both = [x.launches.zeros((batch, vectors), torch.int32) for _ in range(2)]
    if not has_terms:
        return (*both, None, None)
    return (
        *both,
        x.launches.zeros((batch, k), torch.int32),
        x.launches.zeros((1,), torch.int32),
    )


def _launch_exponents(
    left: Buffer, right: Buffer, facts: Sequence[tuple[Any, ...]]
) -> None:
    k = left.shape[2]
    programs = [_num_tiles(x, axis) for x, axis in _sides(left, right)]
    _exponents(
        (sum(programs),),
        _vectors_first(left, 2),
        facts[0],
        left.shape[1],
        _vectors_first(right, 1),
        facts[1],
        right.shape[2],
        programs[0],
        k,
        num_warps=8,
    )


def _num_tiles(x: Buffer, axis: int) -> int:
    tile = _TILE.value
    return x.shape[0] * -(-x.shape[3 - axis] // tile) * -(-x.shape[axis] // tile)


def launch(left: Buffer, right: Buffer, beta: int, u: float) -> Buffer:
    """Launch the look at two operands.

    Parameters
    ----------
    left, right : tensors, shapes (batch or 1, m, k) and (batch or 1, k, n)
        float32 or float64, any strides, none of the sizes 0.
    beta : int
        Bits of a slice.
    u : float
        Unit roundoff of the accuracy that is aimed at.

    Returns
    -------
    int32 buffer of four entries, for `num_slices_from`
    """
    k = left.shape[2]
    sides = _sides(left, right)
    facts = [_cleared_facts(x, axis, True) for x, axis in sides]
    _launch_exponents(left, right, facts)

    # Sums over the vectors of an operand, which weigh the terms of the other one.
    sums = [x.launches.zeros((len(x), k), torch.int64) for x, _ in sides]
    programs = [_num_tiles(x, axis) for x, axis in sides]
    _sums(
        (sum(programs),),
        _vectors_first(left, 2),
        facts[0][2],
        sums[0],
        left.shape[1],
        _vectors_first(right, 1),
        facts[1][2],
        sums[1],
        right.shape[2],
        programs[0],
        k,
        num_warps=8,
    )
    free_bits = 53 - (beta - 1) - ceil_log2(max(k, 1))
    bits = min(_WEIGHT_BITS.value, max(free_bits, 1))
    weights = [x.launches.empty((x.shape[0], k), torch.float64) for x, _ in sides]
    blocks = -(-k // _TERMS.value)
    _weights(
        ((len(left) + len(right)) * blocks,),
        (facts[0][2], sums[0], facts[0][3], weights[0]),
        (facts[1][2], sums[1], facts[1][3], weights[1]),
        len(left) * blocks,
        k,
        DROPPED=_WEIGHT_BITS.value - bits,
        num_warps=4,
    )

    # Every matrix of the larger stack; that of a stack of one serves all.
    batch = max(len(left), len(right))
    arguments: list[Any] = []
    tiles = []
    for i, (x, axis) in enumerate(sides):
        vectors = x.shape[3 - axis]
        stride = vectors if len(x) > 1 else 0
        other = weights[1 - i]
        arguments += [
            _vectors_first(x, axis),
            (facts[i][0], facts[i][1], stride),
            (other, k if len(other) > 1 else 0),
            vectors,
        ]
        tiles.append((4, 128) if x.stride(axis) == 1 or vectors == 1 else (8, 64))
    programs = [
        batch * -(-x.shape[3 - axis] // tile[0])
        for (x, axis), tile in zip(sides, tiles, strict=True)
    ]
    found: Buffer = left.launches.zeros((4,), torch.int32)
    _counts(
        (sum(programs),),
        *arguments,
        found,
        float64_bits(2.0 * math.sqrt(k) * u),
        programs[0],
        k,
        BETA=beta,
        DIGITS=num_digits(beta, u),
        LEFT=tiles[0],
        RIGHT=tiles[1],
        num_warps=4,
        enable_fp_fusion=False,
    )
    return found


def num_digits(beta: int, u: float) -> int:
    """Slices that are looked at: three times as many bits as the accuracy has, or
    `MAX_DIGITS`.
    """
    return max(3, min(MAX_DIGITS, 3 * round(-math.log2(u)) // beta))


def num_slices_from(
    numbers: Sequence[int], beta: int, u: float
) -> tuple[int, bool] | None:
    """What numerics.estimates.published_num_slices returns, from the numbers of
    `launch` on the host; None where the operands need a longer look.
    """
    # Zeros have a slice, and a count is 2 at least.
    left, left_slices, right, right_slices = map(max, numbers, (2, 1, 2, 1))
    if max(left, right) > num_digits(beta, u):
        return None
    if left_slices < left and right_slices < right:
        return left_slices + right_slices - 1, True
    return max(left, right), False
