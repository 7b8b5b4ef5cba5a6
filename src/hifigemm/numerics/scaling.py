"""Powers of two by which Ozaki scheme II scales rows and columns before it rounds them
to integers.

Wanted: integers A' ~ 2**s_i A_ih and B' ~ 2**t_j B_hj with sum_h |A'_ih|
|B'_hj| <= T**2 for every (i, j), T**2 <= half_range of the moduli. Both rules bound the
sum by g_i h_j with a number for each row and one for each column:

- fast (Cauchy-Schwarz): g_i = ||A_i||, h_j = ||B_j||; the operands are independent of
  each other. The squares are added up in blocks of k, each on the grid of its own
  largest entry, so that one pass over an operand is enough.
- accurate: G = |A| |B| from magnitudes rounded up to 6 bits, one INT8 product;
  g_i**2 = max_j G_ij and h_j**2 = max_i G_ij, because G_ij <= min(g_i**2,
  h_j**2) <= g_i h_j. Survives rows and columns whose large entries do not meet.

s_i is the largest integer with 2**s_i g_i <= T. All sums are sums of integers
(magnitudes rounded up), so the exponents do not depend on the order of any summation
and are the same on every engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hifigemm.numerics.bits import (
    NO_BIT,
    Array,
    ceil_magnitude,
    largest_exponent,
    lowest_bit,
    real_vectors,
    scale_by_power,
)
from hifigemm.numerics.blocking import map_vectors, vector_blocks
from hifigemm.numerics.residues import ModuliSet, moduli_set
from hifigemm.numerics.special import clean

NORM_BITS = 15
NORM_BLOCK = 256
INFINITE = 1025
"""Exponent of a block of a vector with an Inf or NaN, above that of every float64."""
NO_EXPONENT = -2096
"""Exponent of a block of zeros, below that of every float64."""


@dataclass(frozen=True)
class Scale:
    """How the vectors of an operand become integers: round(2**exponent x)."""

    exponent: Array  # int, shape (batch, m, 1) or (batch, 1, n)
    # bool, same shape: rounding to nearest keeps the integers within what the exponent
    # was chosen for; else toward zero
    nearest: Array
    axis: int  # the inner dimension of the operand
    bits: int  # the integers stay below 2**bits

    def take(self, batch: slice, vectors: slice) -> Scale:
        """The scale of some vectors of some matrices of the stack."""
        stack = batch if len(self.exponent) > 1 else slice(None)
        where = (stack, vectors) if self.axis == 2 else (stack, slice(None), vectors)
        return Scale(self.exponent[where], self.nearest[where], self.axis, self.bits)


def norm_scale(
    x: Array, axis: int, moduli: ModuliSet, balance: int, block_entries: int
) -> Scale:
    """Fast scaling of an operand, real or complex, by its own norms, with `balance`
    added.
    """
    each = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    exponent, nearest = np.empty(each, np.int64, like=x), np.empty(each, bool, like=x)
    for where in vector_blocks(x, axis, block_entries):
        found = scale_of_norms(*square_norms(x[where], axis), axis, moduli, balance)
        exponent[where], nearest[where] = found.exponent, found.nearest
    return Scale(exponent, nearest, axis, norm_bits(moduli, balance))


def norm_bits(moduli: ModuliSet, balance: int) -> int:
    """Bits of the integers that `norm_scale` makes: none is larger than its norm, which
    is at most sqrt(half_range).
    """
    return math.isqrt(moduli.half_range).bit_length() + max(balance, 0)


def required_bits(
    a: Array, b: Array, most: int, block_entries: int
) -> tuple[int, int] | None:
    """What the scales of two moduli fall short of the lowest set bits of A's rows and
    B's columns, or None.

    For each operand the largest -l - s over its vectors, l the exponent of the lowest
    set bit and s that of `norm_scale` without balance; -`NO_BIT` for an operand of
    zeros. Scales that are larger by so much make integers that hold all bits. None
    where the two add up to more than `most`: no need to know by how much.

    a (batch or 1, m, k) and b (batch or 1, k, n) are real or both complex; Inf and NaN
    count as zeros.
    """
    return widest(required_bits_of_vectors(a, b, block_entries), most)


def widest(required: tuple[Array, Array], most: int) -> tuple[int, int] | None:
    """`required_bits` of operands whose `required_bits_of_vectors` are known."""
    left, right = (int(x.max(initial=-NO_BIT)) for x in required)
    return None if left + right > most else (left, right)


def required_bits_of_vectors(
    a: Array, b: Array, block_entries: int
) -> tuple[Array, Array]:
    """What the scale of each row of A and of each column of B lacks, see
    `required_bits`: (batch, m) and (batch, n).
    """
    found = []
    for x, axis in ((a, 2), (b, 1)):

        def required(y: Array, axis: int = axis) -> Array:
            y = clean(y)
            low = lowest_bit(real_vectors(y, axis), axis)
            scale = norm_scale(
                y, axis, moduli_set(2, y.dtype.kind == "c"), 0, block_entries
            )
            return np.where(low == NO_BIT, -NO_BIT, -low - scale.exponent)

        found.append(
            map_vectors(required, x, axis, block_entries).reshape(
                len(x), x.shape[3 - axis]
            )
        )
    return found[0], found[1]


def gained_bits(count: int, is_complex: bool) -> int:
    """Bits by which the scales of `count` moduli are larger at least than those of two:
    log4 of the ratio of ranges.
    """
    least, most = (moduli_set(n, is_complex).half_range for n in (2, count))
    return ((most // least).bit_length() - 1) // 2


def balance(required: tuple[int, int], count: int, is_complex: bool) -> int:
    """Bits of scale that rows get at the expense of columns, for `count` moduli that
    hold the exact product.

    A scale must reach down to the lowest bit of every vector, see `required_bits`. What
    one operand has to spare goes to the other, but no more of it than that one needs.
    """
    left, right = required
    if min(left, right) == -NO_BIT:
        return 0
    gained = gained_bits(count, is_complex)
    return max(left - gained, 0) or min(gained - right, 0)


def exponents(x: Array, axis: int, block_entries: int, limit: float = 1.0) -> Array:
    """`largest_exponent` of the vectors of an operand, real or complex, along
    `axis`.
    """
    return map_vectors(
        lambda y: largest_exponent(real_vectors(y, axis), axis, limit),
        x,
        axis,
        block_entries,
    )


def lowest_bits(x: Array, axis: int, block_entries: int) -> Array:
    """`lowest_bit` of these vectors."""
    return map_vectors(
        lambda y: lowest_bit(real_vectors(y, axis), axis), x, axis, block_entries
    )


def block_norms(x: Array, axis: int, block_entries: int) -> tuple[Array, Array]:
    """Sums of squares of the blocks of 256 of every vector, each on its own grid, and
    the exponents of these grids.

    Both keep `axis`, along which they have one number for each block.
    `squares_of_blocks` joins them, wherever the blocks of a vector lie. The exponent of
    a block of zeros is `NO_EXPONENT`; the largest one of a vector with an Inf or NaN is
    `INFINITE`.
    """
    blocks = -(-x.shape[axis] // NORM_BLOCK)
    shape = (*x.shape[:axis], blocks, *x.shape[axis + 1 :])
    sums, exponents = np.zeros(shape, like=x), np.zeros(shape, np.int64, like=x)
    for where in vector_blocks(x, axis, block_entries) if blocks else ():
        magnitudes, own, _ = _block_magnitudes(clean(x[where]), axis)
        squares = np.square(magnitudes).sum(axis=axis + 1)
        found = np.where(squares == 0, NO_EXPONENT, own.reshape(squares.shape))
        finite = np.isfinite(x[where]).all(axis=axis, keepdims=True)
        sums[where], exponents[where] = squares, np.where(finite, found, INFINITE)
    return sums, exponents


def squares_of_blocks(sums: Array, own: Array, exponent: Array, axis: int) -> Array:
    """The part of `square_norms` that some blocks of vectors make, in units of the
    exponents of the whole vectors.
    """
    return ceil_magnitude(sums, 2 * (own - exponent)).sum(axis=axis, keepdims=True)


def scale_of_norms(
    squares: Array, exponent: Array, axis: int, moduli: ModuliSet, balance: int
) -> Scale:
    """`norm_scale` of vectors whose `square_norms` are known."""
    s = scale_exponent(squares, exponent, NORM_BITS, moduli) + balance
    return Scale(s, s + exponent >= NORM_BITS, axis, norm_bits(moduli, balance))


def square_norms(x: Array, axis: int) -> tuple[Array, Array]:
    """Integers N >= ||x||**2 2**(2 (15 - e)) along `axis` and e, the exponent of the
    largest component.

    The squares of ceil(|x| 2**(15 - e_q)) are added up over blocks q of 256 with
    exponents e_q of their own, and the block sums times 4**(e_q - e), rounded up, over
    the blocks: exact in float64 below 2**23 entries, in any order.
    """
    magnitudes, own, exponent = _block_magnitudes(x, axis)
    return _joined(np.square(magnitudes), 2, own, exponent, axis), exponent


def vector_sizes(x: Array, axis: int) -> tuple[Array, Array, Array]:
    """`square_norms`, and integers S >= sum|x| 2**(15 - e) that are added up in the
    same way: N, S, e.
    """
    magnitudes, own, exponent = _block_magnitudes(x, axis)
    squares = _joined(np.square(magnitudes), 2, own, exponent, axis)
    return squares, _joined(magnitudes, 1, own, exponent, axis), exponent


def _block_magnitudes(x: Array, axis: int) -> tuple[Array, Array, Array]:
    """ceil(|x| 2**(15 - e_q)) in blocks (..., blocks, entries, ...), the e_q, and the
    exponents of whole vectors.
    """
    length = NORM_BLOCK * (2 if x.dtype.kind == "c" else 1)
    x = real_vectors(x, axis)
    k = x.shape[axis]
    if k > length and k % length:
        missing = np.zeros((*x.shape[:axis], -k % length, *x.shape[axis + 1 :]), like=x)
        x = np.concatenate([x, missing], axis=axis)
    blocks = (
        x.reshape(*x.shape[:axis], -1, min(k, length), *x.shape[axis + 1 :])
        if k
        else np.expand_dims(x, axis)
    )
    own = largest_exponent(blocks, axis + 1)
    exponent = (
        own[(slice(None),) * axis + (0,)]
        if own.shape[axis] == 1
        else largest_exponent(x, axis)
    )
    return ceil_magnitude(blocks, NORM_BITS - own), own, exponent


def _joined(sums: Array, power: int, own: Array, exponent: Array, axis: int) -> Array:
    """The sums of blocks in units of their own, times 2**(power (e_q - e)) and rounded
    up, over all blocks.
    """
    total = sums.sum(axis=axis + 1, keepdims=True)
    if own.shape[axis] == 1:  # the block is the vector
        return total[(slice(None),) * axis + (0,)]
    return ceil_magnitude(total, power * (own - np.expand_dims(exponent, axis))).sum(
        axis=axis
    )


def scale_exponent(
    squares: Array, exponent: Array, bits: int, moduli: ModuliSet
) -> Array:
    """Largest s with 4**(s + exponent - bits) * squares <= half_range; -exponent where
    squares is 0.

    `squares` holds the integers g**2 < 2**53 in units of 4**(exponent - bits). Rounding
    is monotonic, so neither the 53 leading bits of half_range nor the rounded quotient
    of two such numbers lies across a power of two.
    """
    below = max(moduli.half_range.bit_length() - 53, 0)
    mantissa, power = math.frexp(moduli.half_range >> below)
    safe = np.where(squares == 0, 1.0, squares)
    log2_floor = np.frexp(mantissa / safe)[1].astype(np.int64) - 1 + power + below
    return np.where(squares == 0, 0, (log2_floor >> 1) + bits) - exponent


def round_to_integers(x: Array, exponent: Array, nearest: Array) -> Array:
    """2**exponent x as float64 integers, rounded to nearest even, or toward zero for
    vectors that are not `nearest`.

    The magnitude bound 2**(s + e - bits) ceil(|x| 2**(bits - e)) is an integer when
    s + e >= bits, so rounding to nearest cannot exceed it; below that only truncation
    is safe.
    """
    y = scale_by_power(x, exponent)
    if nearest.all():
        return np.rint(y, out=y)
    return np.where(nearest, np.rint(y), np.trunc(y))
