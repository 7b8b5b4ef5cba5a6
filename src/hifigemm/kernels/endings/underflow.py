"""Which entries of a library's product are to be made again: those that are not finite,
and those in which underflow may count.

The host waits for nothing. One launch looks at the product. Where it sees a small entry
(zeros are small), the next one looks at the operands: no product of two entries
underflows unless their exponents are far below zero. What both have found stays on the
device, for `finish_entries`.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.launch import (
    Launch,
    Strided,
    float64_bits,
    real_view,
    strided,
)
from hifigemm.kernels.vectors.statistics import (
    NO_POWER,
    exponent_of,
    magnitude_bits,
    tile_of_vectors,
)

_MOST = tl.constexpr(256)
"""Programs that look at a matrix, at most; each leaves one number."""
_ENTRIES = 4096
"""Of a product that a program reads at a time."""
_VECTORS, _TERMS = 32, 128
"""Of a tile of an operand."""
_TOP = tl.constexpr(1025)
"""Above the exponents floor(log2 |x|) of all numbers. Distances from here are never
negative.
"""
_LARGEST_THRESHOLD = 960
"""Exponent from which the threshold of small entries is infinite."""
_SMALL = tl.constexpr(1)
_NOT_FINITE = tl.constexpr(2)
"""Kinds of entries, as bits of a number."""


class Underflow(NamedTuple):
    """What tells entries in which underflow may count."""

    kinds: Buffer  # int32: the kinds of entries that each program has come across
    # from `_TOP` down to the least exponents of both operands, int32, of each program
    distances: Buffer
    # An entry is small below the float64 with these bits. Small entries are open where
    # the distances of both operands have a larger sum than this.
    threshold_bits: int
    most_distance: int
    programs: int  # that have looked at each matrix


@triton.jit(do_not_specialize=["size", "threshold_bits"])
def _look_at_product_kernel(
    product, size: tl.int64, threshold_bits: tl.int64, kinds, BLOCK: tl.constexpr
):
    """Whether components of a product are small, or not finite; see `Underflow`."""
    kinds_here = tl.zeros([BLOCK], tl.int32)
    for block in range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
        index = tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(product + index, mask=index < size, other=1.0)
        bits = magnitude_bits(x.to(tl.float64))
        kinds_here |= tl.where(bits < threshold_bits, _SMALL, 0)
        kinds_here |= tl.where(bits >= NO_POWER, _NOT_FINITE, 0)
    all_kinds = tl.max(kinds_here & _SMALL) | tl.max(kinds_here & _NOT_FINITE)
    tl.store(kinds + tl.program_id(0), all_kinds)


@triton.jit
def _distance(
    operand, sizes, WIDTH: tl.constexpr, VECTORS: tl.constexpr, TERMS: tl.constexpr
):
    """Twin: numerics.bits.least_exponent, of the tiles of a program, as the distance
    from `_TOP`; 1 where there is none.

    `sizes` are those of the stack, WIDTH the components of an entry.
    """
    batch, vectors, k = sizes
    chunks = tl.cdiv(k, TERMS)
    tiles = batch * tl.cdiv(vectors, VECTORS) * chunks
    smallest = tl.full([VECTORS, TERMS], NO_POWER, tl.int64)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        entries, inside, _, _, _ = tile_of_vectors(
            operand, tile, vectors, k, chunks, VECTORS, TERMS
        )
        for part in tl.static_range(WIDTH):
            x = tl.load(entries + part, mask=inside, other=0.0)
            bits = magnitude_bits(x.to(tl.float64))
            smallest = tl.minimum(smallest, tl.where(bits == 0, NO_POWER, bits))
    # exponent_of is one larger than floor(log2 |x|).
    return _TOP + 1 - exponent_of(tl.min(smallest))


@triton.jit
def _numbers(numbers, programs):
    """What programs have left, and zeros."""
    index = tl.arange(0, _MOST)
    return tl.load(numbers + index, mask=index < programs, other=0)


@triton.jit(do_not_specialize=["left", "left_sizes", "right", "right_sizes"])
def _look_at_operands_kernel(
    left,
    left_sizes,
    right,
    right_sizes,
    kinds,
    distances,
    WIDTH: tl.constexpr,
    VECTORS: tl.constexpr,
    TERMS: tl.constexpr,
):
    """The distances of `Underflow`, where a component of the product is small."""
    of_product = _numbers(kinds, tl.num_programs(0))
    if tl.max(of_product & _SMALL) > 0:
        if tl.program_id(1) == 0:
            distance = _distance(left, left_sizes, WIDTH, VECTORS, TERMS)
        else:
            distance = _distance(right, right_sizes, WIDTH, VECTORS, TERMS)
        place = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        tl.store(distances + place, distance)


@triton.jit
def open_by_underflow(underflow):
    """Below which magnitude finite entries are open, and whether any entry is: twin of
    numerics.bounds.free_of_underflow, not of one entry, but of the product.
    """
    programs = underflow.programs
    kinds = _numbers(underflow.kinds, programs)
    of_left = _numbers(underflow.distances, programs)
    of_right = _numbers(underflow.distances + programs, programs)
    is_deep = tl.max(of_left) + tl.max(of_right) > underflow.most_distance
    is_lost = is_deep & (tl.max(kinds & _SMALL) > 0)
    bits = tl.cast(underflow.threshold_bits, tl.int64)
    threshold = bits.to(tl.float64, bitcast=True)
    is_any_open = is_lost | (tl.max(kinds & _NOT_FINITE) > 0)
    return tl.where(is_lost, threshold, 0.0), is_any_open


@triton.jit(do_not_specialize=["underflow"])
def _send_is_open_kernel(underflow, host_word):
    """One program tells the host whether any entry is open."""
    _, is_any_open = open_by_underflow(underflow)
    tl.store(host_word, is_any_open.to(tl.int64))


_send_is_open = Launch(_send_is_open_kernel)
_look_at_product = Launch(_look_at_product_kernel)
_look_at_operands = Launch(_look_at_operands_kernel)


def look_for_underflow(
    product: Buffer,
    left: Buffer,
    right: Buffer,
    terms: int,
    least_exponent: int,
    shift: int = 0,
) -> Underflow:
    """What tells `finish_entries` which entries of a library's product are open: those
    that are not finite, and small ones where a product of two entries underflows.

    Parameters
    ----------
    product : buffer (batch, m, n), contiguous
        2**shift fl(A B), real or complex.
    left, right : buffers (batch or 1, m, k) and (batch or 1, k, n), any strides
    terms : int
        Products in the sum of a component.
    least_exponent : int
        2**least_exponent is the smallest normal number of the format.
    shift : int
    """
    values = real_view(product)
    sides = _tiled(left), _tiled(right)
    blocks = -(-values.numel() // _ENTRIES)
    num_tiles = max(blocks, *(_num_tiles(sizes) for _, sizes in sides))
    programs = min(num_tiles, _MOST.value)
    kinds = product.launches.empty((programs,), torch.int32)
    distances = product.launches.empty((2 * programs,), torch.int32)
    # fl(A B) and 2**shift times it are to be large.
    exponent = least_exponent + max(shift, 0)
    threshold = terms * 2.0**exponent if exponent < _LARGEST_THRESHOLD else math.inf
    threshold_bits = float64_bits(threshold)
    most_distance = 2 * _TOP.value - least_exponent + min(shift, 0)
    _look_at_product(
        (programs,),
        values,
        values.numel(),
        threshold_bits,
        kinds,
        BLOCK=_ENTRIES,
        num_warps=8,
    )
    _look_at_operands(
        (programs, 2),
        *sides[0],
        *sides[1],
        kinds,
        distances,
        WIDTH=2 if left.is_complex() else 1,
        VECTORS=_VECTORS,
        TERMS=_TERMS,
        num_warps=4,
    )
    return Underflow(kinds, distances, threshold_bits, most_distance, programs)


def send_is_open(underflow: Underflow, host_word: Buffer) -> None:
    """Send 1 to the buffer of a `HostWord` if any entry is open, else 0."""
    _send_is_open((1,), underflow, host_word, num_warps=4)


def _num_tiles(sizes: tuple[int, int, int]) -> int:
    """Of a stack."""
    batch, vectors, k = sizes
    return batch * -(-vectors // _VECTORS) * -(-k // _TERMS)


def _tiled(x: Buffer) -> tuple[Strided, tuple[int, int, int]]:
    """A stack, strides in components, and its sizes; neighbouring threads have
    neighbouring entries.
    """
    operand, (batch, vectors, k) = strided(x), x.shape
    if operand.column != 1 and operand.row == 1:
        operand, vectors, k = operand.transposed, k, vectors
    width = 2 if x.is_complex() else 1
    entries, *strides = operand
    counted = Strided(entries, *(width * stride for stride in strides))
    return counted, (batch, vectors, k)
