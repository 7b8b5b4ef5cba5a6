"""Exponents, norms, sums of magnitudes and lowest bits of vectors:
numerics.scaling.vector_sizes and norm_scale.

A vector is a row of A or a column of B. Every sum is one of integers below 2**53, so
neither tiles nor the order of programs show in any bit.

Tiles have four axes: K (within a piece), VECTOR, PIECE (of a block of k) and BLOCK (of
k). Triton lets the threads of a program follow the axes in the order of their
contiguity. Strides that are known at run time leave nothing but ties, which Triton 3.6
breaks in favour of the first axis and later versions in favour of the last one. So the
place of an axis depends on the version, and threads follow K first, then VECTOR.
"""

# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from hifigemm.kernels.runtime.common import power_of_two
from hifigemm.kernels.vectors.statistics import (
    INFINITE,
    NO_LOWEST,
    exponent_of,
    lowest_power,
    magnitude_bits,
)

_PLACES = (0, 1, 2, 3) if triton.__version__.startswith("3.6.") else (3, 2, 1, 0)
K = tl.constexpr(_PLACES[0])
VECTOR = tl.constexpr(_PLACES[1])
PIECE = tl.constexpr(_PLACES[2])
BLOCK = tl.constexpr(_PLACES[3])
NOT_FINITE = tl.constexpr(-(2**30))
"""Scale of a vector that holds an Inf or NaN."""
NO_EXPONENT = tl.constexpr(-2096)
"""Exponent of a block that does not exist, below that of every block."""
NORM_BLOCK = tl.constexpr(256)
"""Entries of a vector in a block, whose sums are taken on a grid of its own."""
NORM_BITS = tl.constexpr(15)
"""Bits of the rounded magnitudes whose squares are summed."""
PANEL = tl.constexpr(16)
"""Vectors that are looked at together."""
SUM_BIT = tl.constexpr(40)
"""Where the sum of magnitudes begins in a word whose low bits hold the sum of
squares.
"""
SUM_MASK = tl.constexpr(2**40 - 1)
"""The sum of squares in such a word."""
FULL = tl.constexpr(2**39)
"""The largest sum of squares: 512 components, a complex entry has two, of magnitude
2**15.
"""
_ROWS = tl.constexpr(32)
"""Blocks of a panel that are joined at a time: two of a thread in a program of 256.

The blocks of a long vector are many, and others wait for the one program that joins
them.
"""
_TWO_TO_52 = tl.constexpr(2.0**52)
"""The low bits of 2**52 + n are the integer n."""

FREE_OF_OPERANDS = ["a", "b", "counts", "k"]
"""Arguments that kernels of two operands are not specialised for: the strides of both,
the numbers of vectors of a matrix, and the length of all.
"""


class Vectors(NamedTuple):
    """The vectors of an operand as kernels take them, with the strides along the stack,
    from vector to vector and along k.
    """

    entries: Any
    batch: int
    vector: int
    k: int


@dataclass(frozen=True)
class SizeForm:
    """What is known of operands whose sizes are taken when the kernel is compiled."""

    # Entries that may be loaded at a time: in an operand ALONG_K a divisor of k, in
    # another one of the number of vectors. Strides to the next vector, or along k, are
    # multiples of it.
    vector: int
    width: int  # components of an entry: 1, or 2 for complex operands
    scattered: bool  # operands that are not ALONG_K may have any strides

    # Entries along k that the threads share: a thread has few of a piece, but some of
    # every piece.

    @property
    def piece_along_k(self) -> int:
        """Entries of a piece of an operand ALONG_K."""
        return 32 * self.vector

    @property
    def piece_across(self) -> int:
        """Entries of a piece of another operand."""
        return 32 if self.scattered else PANEL.value * self.vector


@triton.jit
def along(numbers, AXIS: tl.constexpr):
    """Numbers as a tile that is one entry wide along all other axes."""
    if AXIS == 0:
        return numbers[:, None, None, None]
    elif AXIS == 1:
        return numbers[None, :, None, None]
    elif AXIS == 2:
        return numbers[None, None, :, None]
    else:
        return numbers[None, None, None, :]


@triton.jit
def low_word(x):
    """The low 32 bits of float64."""
    return x.to(tl.int64, bitcast=True).to(tl.int32)


@triton.jit
def place(index, tiles_a, counts, VECTORS: tl.constexpr):
    """Where a tile lies: (is it A's, matrix of the stack, first vector, vectors of A or
    B).

    The first `tiles_a` tiles are those of A; `counts` are the vectors of a matrix of A
    and of B.
    """
    is_left = index < tiles_a
    count = tl.where(is_left, counts[0], counts[1])
    tile = tl.where(is_left, index, index - tiles_a)
    tiles = tl.cdiv(count, VECTORS)
    return is_left, (tile // tiles).to(tl.int64), (tile % tiles) * VECTORS, count


@triton.jit
def chosen(is_left, left, right):
    """The numbers of A or those of B, from two tuples in the same order."""
    numbers = ()
    for i in tl.static_range(len(left)):
        numbers += (tl.where(is_left, left[i], right[i]),)
    return numbers


@triton.jit
def exponent_factors(e, BITS: tl.constexpr):
    """Two float64 whose product is 2**(BITS - e).

    For the exponents of tiny entries it is no float64 itself.
    """
    # No float64 but 0 has an exponent below -1073, and 0 times any factor is 0.
    power = BITS - tl.maximum(e, -1074)
    # Up to 2**1089, where the largest power of two of float64 is 2**1023.
    up = tl.where(power > 900, 100, 0)
    return power_of_two(up), power_of_two(power - up)


@triton.jit
def magnitude(x, first, second, UP: tl.constexpr, PTX: tl.constexpr):
    """|x| first second below 2**31 as INT32, rounded up or down.

    It is 1 where it underflows while it is rounded up.
    """
    # The sum with 2**52 is rounded to an integer, once, in the direction that is asked
    # for.
    if PTX:
        return low_word(
            tl.inline_asm_elementwise(
                "fma.rp.f64 $0, $1, $2, 0d4330000000000000;"
                if UP
                else "fma.rm.f64 $0, $1, $2, 0d4330000000000000;",
                "=d,d,d",
                [tl.abs(x) * first, second],
                dtype=tl.float64,
                is_pure=True,
                pack=1,
            )
        )
    else:
        # Products with powers of two are exact unless they underflow. Rounded up, a
        # product that underflows to 0 has to be 1.
        size = tl.abs(x)
        if UP:
            rounded = tl.maximum(
                tl.ceil(size * first * second), tl.where(size > 0.0, 1.0, 0.0)
            )
        else:
            rounded = tl.floor(size * first * second)
        return low_word(rounded + _TWO_TO_52)


@triton.jit
def block_sizes(parts, OUTER: tl.constexpr, SUMS: tl.constexpr, PTX: tl.constexpr):
    """Twin: numerics.scaling.block_norms, of the blocks of a tile.

    Exponents e_q, INT32, and sums n_q + 2**40 s_q modulo 2**64, one for a vector and
    block. OUTER is the axis, K or PIECE, along which a thread has many entries: it is
    reduced first, within threads; INNER is the other one. n_q <= 2**39, and
    s_q <= 2**24 is 0 without SUMS.
    """
    INNER: tl.constexpr = K + PIECE - OUTER
    # The exponent of the largest component of each block, taken of few numbers: those
    # that are left along INNER.
    bits = magnitude_bits(parts[0])
    for i in tl.static_range(1, len(parts)):
        bits = tl.maximum(bits, magnitude_bits(parts[i]))
    e = tl.max(
        exponent_of(tl.max(bits, axis=OUTER, keep_dims=True)),
        axis=INNER,
        keep_dims=True,
    )
    # Magnitudes on the grid of the block, rounded up, and the sums of their squares.
    first, second = exponent_factors(e, NORM_BITS)
    up = magnitude(parts[0], first, second, True, PTX)
    squares = up.to(tl.int64) * up.to(tl.int64)
    for i in tl.static_range(1, len(parts)):
        up_im = magnitude(parts[i], first, second, True, PTX)
        squares += up_im.to(tl.int64) * up_im.to(tl.int64)
        up += up_im
    sums = tl.sum(squares, axis=OUTER, keep_dims=True)
    # The sum of magnitudes, below 2**24, shares the word.
    if SUMS:
        sums += tl.sum(up, axis=OUTER, keep_dims=True).to(tl.int64) << SUM_BIT
    return e, tl.sum(sums, axis=INNER, keep_dims=True)


@triton.jit
def joined_sizes(sums, block_e, e):
    """ceil(n_q 4**(e_q - e)) and ceil(s_q 2**(e_q - e)) as float64.

    These are the sums of blocks on the grid of the whole vector. Of the 24 bits of s_q
    none is left where it is 2**24, that is, where each of 512 components of a block
    counts 2**15.
    """
    # A block that lies 500 bits and more below the largest counts 1: sums are rounded
    # up.
    down = tl.maximum(block_e - e, -500)
    n = sums & SUM_MASK
    s = tl.where(n == FULL, 1 << 24, (sums >> SUM_BIT) & 0xFFFFFF)
    return tl.ceil(n.to(tl.float64) * power_of_two(2 * down)), tl.ceil(
        s.to(tl.float64) * power_of_two(down)
    )


@triton.jit
def scale_of(squares, e, range_ptr, balance, BITS: tl.constexpr):
    """Twin: numerics.scaling.scale_exponent, plus `balance`; of the least square norm
    that the range comes with, if that is larger: numerics.scaling.largest_scale.
    Squares are in units of 4**(e - BITS).

    The second result is 1 where integers are rounded to nearest, else 0.
    """
    # half_range, cut to 53 bits, is mantissa 2**power; it may be too large for float64.
    mantissa = tl.load(range_ptr)
    power = tl.load(range_ptr + 1).to(tl.int32)
    is_zero = squares == 0.0
    squares = tl.maximum(squares, tl.load(range_ptr + 2))
    # The largest s with 4**(s + e - BITS) * squares <= half_range: half of
    # floor(log2(quotient)), rounded down.
    quotient = mantissa / tl.where(is_zero, 1.0, squares)
    log2 = (
        ((quotient.to(tl.int64, bitcast=True) >> 52) & 0x7FF).to(tl.int32)
        - 1023
        + power
    )
    finite = e < INFINITE
    # A vector of zeros has no exponent of its own.
    e = tl.where(is_zero, 0, e)
    s = tl.where(is_zero, 0, (log2 >> 1) + BITS) - e + balance
    return tl.where(finite, s, NOT_FINITE), (finite & (s + e >= BITS)).to(tl.int32)


@triton.jit
def are_below(indices, limit, VECTOR_SIZE: tl.constexpr):
    """True for indices below a limit that is a multiple of VECTOR_SIZE.

    The compiler sees that neighbours share the answer, so that they are loaded at a
    time.
    """
    return indices // VECTOR_SIZE < limit // VECTOR_SIZE


@triton.jit
def places_of_block(
    operand, tile_origin, q, k, ALONG_K: tl.constexpr, FORM: tl.constexpr
):
    """Addresses of block `q` of the 16 vectors of a panel, which of them there are, and
    the indices of vectors and along k.

    A tile has the axes K, VECTOR and PIECE: piece p of a vector holds `LENGTH` entries,
    from number 256 q + p LENGTH on.
    """
    x, sb, sv, sk = operand
    _, batch, start, count = tile_origin
    LENGTH: tl.constexpr = FORM.piece_along_k if ALONG_K else FORM.piece_across
    vs = along(start + tl.arange(0, PANEL), VECTOR)
    pieces = along(tl.arange(0, NORM_BLOCK // LENGTH), PIECE) * LENGTH
    # Indices along k: a thread has a few entries of each piece.
    ks = q * NORM_BLOCK + along(tl.arange(0, LENGTH), K) + pieces
    # Addresses and masks in which the compiler sees that neighbours along k, or
    # neighbouring vectors, lie side by side behind a multiple of FORM.vector entries.
    if ALONG_K:
        vectors = batch * (sb // FORM.vector) + vs.to(tl.int64) * (sv // FORM.vector)
        entries = x + vectors * (FORM.vector * FORM.width) + ks * FORM.width
        inside = are_below(ks, k, FORM.vector) & (vs < count)
    elif FORM.scattered:
        vectors = batch * sb + vs.to(tl.int64) * sv
        entries = x + vectors * FORM.width + ks.to(tl.int64) * (sk * FORM.width)
        inside = (ks < k) & (vs < count)
    else:
        row = ks.to(tl.int64) * (sk // FORM.vector) + batch * (sb // FORM.vector)
        entries = x + row * (FORM.vector * FORM.width) + vs * FORM.width
        inside = (ks < k) & are_below(vs, count, FORM.vector)
    return entries, inside, vs, ks


@triton.jit
def components_of(entries, inside, WIDTH: tl.constexpr):
    """The components of entries as a tuple of float64, 0 where there are none."""
    # Components of a complex entry lie side by side.
    parts = ()
    for i in tl.static_range(WIDTH):
        parts += (tl.load(entries + i, mask=inside, other=0.0).to(tl.float64),)
    return parts


@triton.jit
def join_blocks(block_sums, block_e, blocks, SUMS: tl.constexpr):
    """Twin: numerics.scaling.vector_sizes, from the sizes of blocks.

    N, S and e of the vectors of a panel. The calling program has acquired a counter
    that says that all blocks are stored. A tile is _ROWS blocks of all 16 vectors,
    whose numbers are under way together; they are joined after the last tile, so that
    no tile waits for threads to exchange what they have.
    """
    entries = tl.arange(0, _ROWS)[:, None] * PANEL + tl.arange(0, PANEL)[None, :]
    # First the exponent of each whole vector, which is the grid of its sums.
    largest = tl.full([_ROWS, PANEL], NO_EXPONENT, tl.int32)
    for start in range(0, blocks, _ROWS):
        mask = (start + tl.arange(0, _ROWS) < blocks)[:, None]
        exponents = tl.load(
            block_e + start * PANEL + entries, mask=mask, other=NO_EXPONENT
        )
        largest = tl.maximum(largest, exponents)
    e = tl.max(largest, axis=0)
    # Then the sums of the blocks on that grid: integers below 2**53, whose order does
    # not matter. Blocks that do not exist count 0.
    n = tl.full([_ROWS, PANEL], 0.0, tl.float64)
    s = tl.full([_ROWS, PANEL], 0.0, tl.float64)
    for start in range(0, blocks, _ROWS):
        mask = (start + tl.arange(0, _ROWS) < blocks)[:, None]
        exponents = tl.load(
            block_e + start * PANEL + entries, mask=mask, other=NO_EXPONENT
        )
        sums = tl.load(block_sums + start * PANEL + entries, mask=mask, other=0)
        block_n, block_s = joined_sizes(sums, exponents, e[None, :])
        n += block_n
        if SUMS:
            s += block_s
    return tl.sum(n, axis=0), tl.sum(s, axis=0), e


@triton.jit
def join_lowest(block_low, blocks):
    """Exponents of the lowest set bits of the vectors of a panel, from its blocks.

    A tile is _ROWS blocks of all 16 vectors.
    """
    entries = tl.arange(0, _ROWS)[:, None] * PANEL + tl.arange(0, PANEL)[None, :]
    # Blocks that do not exist have no lowest bit.
    low = tl.full([_ROWS, PANEL], NO_LOWEST, tl.int32)
    for start in range(0, blocks, _ROWS):
        mask = (start + tl.arange(0, _ROWS) < blocks)[:, None]
        exponents = tl.load(
            block_low + start * PANEL + entries, mask=mask, other=NO_LOWEST
        )
        low = tl.minimum(low, exponents)
    return tl.min(low, axis=0)


@triton.jit
def finite_entries(parts):
    """The components of entries, all 0 where one of them is Inf or NaN."""
    is_finite = tl.abs(parts[0]) < float("inf")
    for i in tl.static_range(1, len(parts)):
        is_finite &= tl.abs(parts[i]) < float("inf")
    components = ()
    for i in tl.static_range(len(parts)):
        components += (tl.where(is_finite, parts[i], 0.0),)
    return components


@triton.jit
def lowest_bits(parts, OUTER: tl.constexpr):
    """Twin: numerics.scaling.lowest_bits, of the vectors of a tile.

    INT32 exponents; NO_LOWEST for zeros. OUTER is as for `block_sizes`.
    """
    INNER: tl.constexpr = K + PIECE - OUTER
    # Powers of two are ordered as their bits are. That of infinity becomes NO_LOWEST. Few
    # of them are alive at a time.
    lowest = tl.min(lowest_power(parts[0]), axis=OUTER, keep_dims=True)
    for i in tl.static_range(1, len(parts)):
        others = tl.min(lowest_power(parts[i]), axis=OUTER, keep_dims=True)
        lowest = tl.minimum(lowest, others)
    lowest = tl.min(
        tl.min(lowest, axis=INNER, keep_dims=True), axis=BLOCK, keep_dims=True
    )
    return exponent_of(lowest) - 1


@triton.jit
def _store_block_of(
    operand,
    tile_origin,
    q,
    first_block,
    k,
    workspace,
    ALONG_K: tl.constexpr,
    FORM: tl.constexpr,
    SUMS: tl.constexpr,
    CLEANS: tl.constexpr,
    PTX: tl.constexpr,
):
    """`store_block` for an operand of one layout."""
    LOWEST: tl.constexpr = len(workspace) == 3
    entries, inside, _, _ = places_of_block(operand, tile_origin, q, k, ALONG_K, FORM)
    parts = components_of(entries, inside, FORM.width)
    if CLEANS:
        parts = finite_entries(parts)
    if LOWEST:
        lowest = lowest_bits(parts, PIECE)
    e, sums = block_sizes(parts, PIECE, SUMS, PTX)
    # Numbers of 16 vectors follow each other for each block. No other program writes
    # here.
    numbers = (first_block + q) * PANEL + along(tl.arange(0, PANEL), VECTOR)
    tl.store(workspace[0] + numbers, sums)
    tl.store(workspace[1] + numbers, e)
    if LOWEST:
        tl.store(workspace[2] + numbers, lowest)


@triton.jit
def store_block(
    operands,
    tile_origin,
    q,
    first_block,
    k,
    workspace,
    FORM: tl.constexpr,
    SUMS: tl.constexpr,
    CLEANS: tl.constexpr,
    PTX: tl.constexpr,
):
    """Store exponent, sum of squares and lowest bit of block q of a panel of 16
    vectors.

    An operand is its address and its strides along the stack, the vectors and k, 1
    where its entries lie side by side along k. `first_block` is the number of the
    panel's first block among all. `workspace` takes sums and exponents; with a third
    array also the lowest bits. With CLEANS the entries that hold an Inf or NaN count
    as 0.
    """
    operand = chosen(tile_origin[0], operands[0], operands[1])
    # Both layouts have compiled code, so that one kernel serves all.
    if operand[3] == 1:
        _store_block_of(
            operand,
            tile_origin,
            q,
            first_block,
            k,
            workspace,
            True,
            FORM,
            SUMS,
            CLEANS,
            PTX,
        )
    else:
        _store_block_of(
            operand,
            tile_origin,
            q,
            first_block,
            k,
            workspace,
            False,
            FORM,
            SUMS,
            CLEANS,
            PTX,
        )
