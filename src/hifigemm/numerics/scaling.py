"""Powers of two by which Ozaki scheme II scales rows and columns to integers.

Wanted: integers A'_ih ~ 2**s_i A_ih and B'_hj ~ 2**t_j B_hj with

    sum_h |A'_ih| |B'_hj| <= T**2 for every (i, j),    T**2 <= half_range of the moduli.

All rules bound the sum by g_i h_j, with a number for each row and one for each column:

- fast (Cauchy-Schwarz): g_i = ||A_i||, h_j = ||B_j||; the operands are independent of
  each other. The squares are added up in blocks of k, each on the grid of its own
  largest entry, so that one pass over an operand is enough.
- accurate: G = |A| |B| from magnitudes rounded up to 6 bits, one INT8 product;
  g_i**2 = max_j G_ij and h_j**2 = max_i G_ij, because
  G_ij <= min(g_i**2, h_j**2) <= g_i h_j. No bits are lost for rows and columns whose
  large entries do not meet.
- largest: g_i = sqrt(K) 2**e_i, h_j = sqrt(K) 2**f_j for K terms and the exponents of
  the largest entries. A maximum has no order: neither a permutation of k nor a cut of
  it moves a scale, where blocks of fast norms are rounded up each by itself.

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
from hifigemm.numerics.blocking import (
    map_vectors,
    put,
    shape_of_vectors,
    vector_blocks,
)
from hifigemm.numerics.residues import ModuliSet, moduli_set
from hifigemm.numerics.special import clean

NORM_BITS = 15
"""Bits of the magnitudes, rounded up, whose squares are added."""

NORM_BLOCK = 256
"""Entries of a block of a norm, complex ones counted once."""

INFINITE = 1025
"""Exponent of a block of a vector with an Inf or NaN, above that of every float64."""

NO_EXPONENT = -2096
"""Exponent of a block of zeros, below that of every float64."""


@dataclass(frozen=True)
class Scale:
    """Rounding of the vectors of an operand to integers: round(2**exponent x)."""

    exponent: Array  # int, shape (batch, m, 1) or (batch, 1, n)
    # bool, same shape: True to round to nearest, which keeps the integers within the
    # bound that the exponent was chosen for; False to round toward zero.
    nearest: Array
    axis: int  # the inner dimension of the operand
    bits: int  # the integers stay below 2**bits

    def take(self, batch: slice, vectors: slice) -> Scale:
        """The scale of some vectors of some matrices of the stack."""
        stack = batch if len(self.exponent) > 1 else slice(None)
        index = (stack, vectors) if self.axis == 2 else (stack, slice(None), vectors)
        return Scale(self.exponent[index], self.nearest[index], self.axis, self.bits)

    def above(self, columns: Scale) -> Scale:
        """The scale of these rows, and below them of columns that have become rows."""
        exponents = [self.exponent, np.swapaxes(columns.exponent, 1, 2)]
        roundings = [self.nearest, np.swapaxes(columns.nearest, 1, 2)]
        return Scale(
            np.concatenate(exponents, axis=1),
            np.concatenate(roundings, axis=1),
            self.axis,
            max(self.bits, columns.bits),
        )


def norm_scale(
    x: Array, axis: int, moduli: ModuliSet, balance: int, block_entries: int
) -> Scale:
    """Fast scale of a real or complex operand by its norms, plus `balance` bits."""
    if x.size <= block_entries:
        squares, grid = square_norms(x, axis)
    else:
        norms: dict[str, Array] = {}
        shape = shape_of_vectors(x, axis)
        for block in vector_blocks(x, axis, block_entries):
            block_squares, block_grid = square_norms(x[block], axis)
            put(norms, "squares", shape, block, block_squares)
            put(norms, "grid", shape, block, block_grid)
        squares = norms["squares"]
        grid = norms["grid"]
    return scale_of_norms(squares, grid, axis, moduli, balance)


def largest_bits(terms: int, moduli: ModuliSet) -> int:
    """Largest S with terms 4**S <= half_range; -1 where there is none.

    Integers of magnitude 2**S or less have sums of products within half_range.
    """
    return ((moduli.half_range // terms).bit_length() - 1) // 2 if terms else 0


def largest_scale(exponent: Array, axis: int, terms: int, moduli: ModuliSet) -> Scale:
    """Scale of vectors by the exponents of their largest entries.

    It equals the scale of `scale_of_norms` for `largest_square`.
    """
    bits = largest_bits(terms, moduli)
    s = bits - exponent
    return Scale(s, s + exponent >= NORM_BITS, axis, max(bits, 0) + 1)


def largest_square(terms: int, moduli: ModuliSet) -> int:
    """A power of two with the scales of the largest `square_norms` of so many terms.

    half_range is from 1 to 2 times 4**(S - NORM_BITS) as large. So there are few of
    them, whatever k is.
    """
    bits = largest_bits(terms, moduli)
    return 1 << moduli.half_range.bit_length() - 1 - 2 * (bits - NORM_BITS)


def normwise_error(terms: int, bits: int) -> float:
    """The r of |A B - A' B'| <= r |a_i| |b_j| for `largest_scale` with so many bits,
    rounded up; |a_i| and |b_j| are the Euclidean norms of a row and a column.

    With y = sqrt(K) 2**-S it is 2 y + y**2. An integer errs by half of one, 2**-(s + 1)
    in units of A; 2**-s = 2**(e - S) <= 2**(1 - S) |a_i|, as an entry of a_i is
    2**(e - 1) or more; and sums of K magnitudes are at most sqrt(K) |a_i|. Hence
    |A||B - B'| <= y |a_i| |b_j|, and |A - A'||B'| <= y |a_i| |b_j| + y**2 |a_i| |b_j|.
    Below NORM_BITS integers are rounded toward zero, and err by twice as much. Where
    S < 0, all of them are 0 and nothing is known.
    """
    if bits < 0:
        return math.inf
    # sqrt(K), rounded up to a multiple of 2**-32.
    root = math.isqrt((terms << 64) - 1) + 1 if terms else 0
    y = math.ldexp(root, -32 - bits + (bits < NORM_BITS))
    # One rounding of y, one of y**2 and one of their sum are below 2**-51 of it.
    return (2.0 * y + y * y) * (1.0 + 2.0**-50)


def norm_bits(moduli: ModuliSet, balance: int) -> int:
    """Bits of the integers that a scale of norms makes.

    None of them is larger than the norm of its vector, at most sqrt(half_range) before
    the balance.
    """
    return math.isqrt(moduli.half_range).bit_length() + max(balance, 0)


def required_bits(
    a: Array, b: Array, limit: int, block_entries: int
) -> tuple[int, int] | None:
    """Extra bits of scale with which A and B become integers, or None if they are many.

    For each operand the largest -l - s over its vectors, l the exponent of the lowest
    set bit and s that of `norm_scale` with two moduli and no balance; -`NO_BIT` for an
    operand of zeros. Scales that are larger by so much make integers that hold all
    bits. None where the two add up to more than `limit`.

    a (batch or 1, m, k) and b (batch or 1, k, n) are real or both complex; Inf and NaN
    count as zeros.
    """
    return widest(required_bits_of_vectors(a, b, block_entries), limit)


def widest(required: tuple[Array, Array], limit: int) -> tuple[int, int] | None:
    """`required_bits` of operands with these `required_bits_of_vectors`."""
    left, right = (int(x.max(initial=-NO_BIT)) for x in required)
    return None if left + right > limit else (left, right)


def required_bits_of_vectors(
    a: Array, b: Array, block_entries: int
) -> tuple[Array, Array]:
    """Extra bits of scale of each row of A (batch, m) and each column of B (batch, n).

    See `required_bits`.
    """

    def required(x: Array, axis: int) -> Array:
        x = clean(x)
        low = lowest_bit(real_vectors(x, axis), axis)
        two_moduli = moduli_set(2, x.dtype.kind == "c")
        scale = norm_scale(x, axis, two_moduli, 0, block_entries)
        return np.where(low == NO_BIT, -NO_BIT, -low - scale.exponent)

    rows = map_vectors(lambda x: required(x, 2), a, 2, block_entries)
    columns = map_vectors(lambda x: required(x, 1), b, 1, block_entries)
    return rows[:, :, 0], columns[:, 0, :]


def gained_bits(count: int, is_complex: bool) -> int:
    """Bits by which scales of `count` moduli exceed those of two, at least.

    This is the floor of log4 of the ratio of their ranges.
    """
    range_of_two = moduli_set(2, is_complex).half_range
    ratio = moduli_set(count, is_complex).half_range // range_of_two
    return (ratio.bit_length() - 1) // 2


def balance(required: tuple[int, int], count: int, is_complex: bool) -> int:
    """Bits of scale that rows get at the expense of columns.

    `count` moduli hold the exact product. A scale must reach down to the lowest bit of
    every vector, see `required_bits`. Bits that one operand can spare go to the other,
    but no more of them than that one needs.
    """
    left, right = required
    if min(left, right) == -NO_BIT:
        return 0
    gained = gained_bits(count, is_complex)
    return max(left - gained, 0) or min(gained - right, 0)


def exponents(x: Array, axis: int, block_entries: int, limit: float = 1.0) -> Array:
    """`largest_exponent` of the vectors along `axis` of a real or complex operand."""
    return map_vectors(
        lambda y: largest_exponent(real_vectors(y, axis), axis, limit),
        x,
        axis,
        block_entries,
    )


def lowest_bits(x: Array, axis: int, block_entries: int) -> Array:
    """`lowest_bit` of the vectors along `axis` of a real or complex operand."""
    return map_vectors(
        lambda y: lowest_bit(real_vectors(y, axis), axis), x, axis, block_entries
    )


def block_norms(x: Array, axis: int, block_entries: int) -> tuple[Array, Array]:
    """Sums of squares of blocks of 256 entries of every vector, and their exponents.

    Each sum is on the grid of its block, which its exponent gives. Both arrays keep
    `axis`, with one number for each block along it. `squares_of_blocks` adds them,
    wherever the blocks of a vector lie. The exponent of a block of zeros is
    `NO_EXPONENT`; all those of a vector with an Inf or NaN are `INFINITE`.
    """
    count = -(-x.shape[axis] // NORM_BLOCK)
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    sums = np.zeros(shape, like=x)
    exponents = np.zeros(shape, np.int64, like=x)
    if not count:
        return sums, exponents
    for block in vector_blocks(x, axis, block_entries):
        magnitudes, grids, _ = _block_magnitudes(clean(x[block]), axis)
        squares = np.square(magnitudes).sum(axis=axis + 1)
        grids = np.where(squares == 0, NO_EXPONENT, grids.reshape(squares.shape))
        finite = np.isfinite(x[block]).all(axis=axis, keepdims=True)
        sums[block] = squares
        exponents[block] = np.where(finite, grids, INFINITE)
    return sums, exponents


def squares_of_blocks(sums: Array, grids: Array, exponent: Array, axis: int) -> Array:
    """Part of `square_norms` that some blocks of the vectors contribute.

    `sums` and `grids` are those of `block_norms`, `exponent` is that of whole vectors,
    in whose units the result is.
    """
    return ceil_magnitude(sums, 2 * (grids - exponent)).sum(axis=axis, keepdims=True)


def scale_of_norms(
    squares: Array, exponent: Array, axis: int, moduli: ModuliSet, balance: int
) -> Scale:
    """`norm_scale` of vectors with these `square_norms`."""
    s = scale_exponent(squares, exponent, NORM_BITS, moduli) + balance
    return Scale(s, s + exponent >= NORM_BITS, axis, norm_bits(moduli, balance))


def square_norms(x: Array, axis: int) -> tuple[Array, Array]:
    """Integers N >= ||x||**2 4**(15 - e) along `axis`, and the exponents e.

    e is that of the largest component. The squares of ceil(|x| 2**(15 - e_q)) are added
    up over blocks q of 256 entries with exponents e_q, and the sums of blocks times
    4**(e_q - e), rounded up, over the blocks. Exact in float64, in any order, below
    2**23 entries.
    """
    magnitudes, grids, exponent = _block_magnitudes(x, axis)
    return _sum_blocks(np.square(magnitudes), 2, grids, exponent, axis), exponent


def vector_sizes(x: Array, axis: int) -> tuple[Array, Array, Array]:
    """N of `square_norms`, integers S >= sum|x| 2**(15 - e), and the exponents e.

    S is added up like N.
    """
    magnitudes, grids, exponent = _block_magnitudes(x, axis)
    squares = _sum_blocks(np.square(magnitudes), 2, grids, exponent, axis)
    sums = _sum_blocks(magnitudes, 1, grids, exponent, axis)
    return squares, sums, exponent


def _block_magnitudes(x: Array, axis: int) -> tuple[Array, Array, Array]:
    """ceil(|x| 2**(15 - e_q)) in blocks q, the exponents e_q, and e of whole vectors.

    In the first two arrays `axis` becomes two axes: blocks, and entries of a block.
    """
    # Blocks of 256 entries, which have two components if complex. The last one is
    # filled with zeros; a vector that is shorter than a block stays as it is.
    length = NORM_BLOCK * (2 if x.dtype.kind == "c" else 1)
    x = real_vectors(x, axis)
    k = x.shape[axis]
    before = x.shape[:axis]
    after = x.shape[axis + 1 :]
    if k > length and k % length:
        missing = np.zeros((*before, -k % length, *after), like=x)
        x = np.concatenate([x, missing], axis=axis)
    if k:
        shape_in_blocks = (*before, -(-k // length), min(k, length), *after)
        blocks = x.reshape(shape_in_blocks)
    else:
        blocks = np.expand_dims(x, axis)

    # Where a vector is one block, they share an exponent.
    grids = largest_exponent(blocks, axis + 1)
    if grids.shape[axis] == 1:
        exponent = grids[(slice(None),) * axis + (0,)]
    else:
        exponent = largest_exponent(x, axis)
    return ceil_magnitude(blocks, NORM_BITS - grids), grids, exponent


def _sum_blocks(
    values: Array, power: int, grids: Array, exponent: Array, axis: int
) -> Array:
    """Sums over all blocks of their sums times 2**(power (e_q - e)), rounded up.

    `values` are in blocks, in units of 2**(power e_q).
    """
    sums = values.sum(axis=axis + 1, keepdims=True)
    if grids.shape[axis] == 1:  # the block is the vector
        return sums[(slice(None),) * axis + (0,)]
    shift = power * (grids - np.expand_dims(exponent, axis))
    return ceil_magnitude(sums, shift).sum(axis=axis)


def scale_exponent(
    squares: Array, exponent: Array, bits: int, moduli: ModuliSet
) -> Array:
    """Largest s with 4**(s + exponent - bits) * squares <= half_range.

    -exponent where squares is 0. `squares` holds the integers g**2 < 2**53 in units of
    4**(exponent - bits). Rounding is monotonic, so neither the 53 leading bits of
    half_range nor the rounded quotient of two such numbers lies across a power of two.
    """
    drop = max(moduli.half_range.bit_length() - 53, 0)
    mantissa, power = math.frexp(moduli.half_range >> drop)
    is_zero = squares == 0
    divisor = np.where(is_zero, 1.0, squares)
    # The floor of the logarithm of the quotient, and half of it.
    log2_floor = np.frexp(mantissa / divisor)[1].astype(np.int64)
    log2_floor += power + drop - 1
    log2_floor >>= 1
    log2_floor += bits
    log2_floor[is_zero] = 0
    return log2_floor - exponent


def round_to_integers(x: Array, exponent: Array, nearest: Array) -> Array:
    """2**exponent x as float64 integers, rounded to nearest even where `nearest`.

    Other vectors are rounded toward zero. The magnitude bound
    2**(s + e - bits) ceil(|x| 2**(bits - e)) is an integer when s + e >= bits, so that
    rounding to nearest cannot exceed it; below that only truncation is safe.
    """
    y = scale_by_power(x, exponent)
    if nearest.all():
        return np.rint(y, out=y)
    return np.where(nearest, np.rint(y), np.trunc(y))
