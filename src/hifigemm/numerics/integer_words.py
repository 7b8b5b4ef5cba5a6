"""Exact products of integers of up to 64 bits by exact products of short words.

Idea
    An integer is x = sum_j x_j 2**(22 j) with balanced words, |x_j| <= 2**21; three
    words hold every int64 and every uint64. With S_s the sum over k of all a_i b_j with
    i + j = s, A B = sum_s S_s 2**(22 s).

Exact when
    A product of words is made over k_block terms at a time, 2048 of FP64 words, so that
    no partial sum exceeds the accumulator: 2048 2**21 2**21 = 2**53. At most three
    pairs of words have the same i + j, so the int64 sums of 128 such blocks stay below
    3 2**60; then their carries are swept upward. With p at least the words of A plus
    those of B, S_0 to S_{p-1} hold every sum of less than 2**40 terms, as the last one
    is below k 2**22.

Cost
    A product for each pair of words: 9 where both operands fill 64 bits, 6 where the
    result is wanted modulo 2**64, 1 for integers of up to 2**21.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hifigemm.numerics.bits import Array
from hifigemm.numerics.limbs import carry

WORD_BITS = 22
"""Bits by which words are apart: three of them hold 64 bits."""

MAX_WORD = 2 ** (WORD_BITS - 1)
"""Largest magnitude of a word."""

MODULAR_SUMS = 3
"""Sums S_s that the product modulo 2**64 rests on: 2**(22 3) is a multiple of 2**64."""

_BLOCKS = 128
"""Blocks of k between two sweeps of the carries."""

_SATURATED = 2**40
"""The high part of an integer is cut off here, beyond every limit of 64 bits."""


def num_words(largest: int) -> int:
    """Number of words that hold integers of magnitude up to `largest`."""
    count = 1
    while largest > MAX_WORD:
        largest = (largest + MAX_WORD) >> WORD_BITS
        count += 1
    return count


def cut(x: Array, count: int, dtype: type[np.generic]) -> list[Array]:
    """Words of the integers x, lowest first, in a dtype that holds them."""
    words = []
    if count > 1 and x.dtype != np.uint64:
        x = x.astype(np.int64, copy=False)
    drop = 64 - WORD_BITS
    for _ in range(count - 1):
        # The lowest 22 bits with their sign, and the others, rounded to nearest.
        word = (x << drop).astype(np.int64, copy=False) >> drop
        words.append(word.astype(dtype))
        x = (((x >> (WORD_BITS - 1)) + 1) >> 1).astype(np.int64, copy=False)
    return [*words, x.astype(dtype)]


def word_sums(
    a: Array,
    b: Array,
    counts: tuple[int, int],
    num_sums: int,
    dtype: type[np.generic],
    k_block: int,
    product: Callable[[Array, Array], Array],
) -> Array:
    """S_0 to S_{num_sums-1} of A B, int64 (num_sums, batch, m, n).

    a is (batch or 1, m, k), b is (batch or 1, k, n). `counts` are the numbers of words
    of A and of B, `dtype` is that of the words, and `product` multiplies stacks of
    words over `k_block` terms. Where `num_sums` leaves sums out, the others hold the
    product modulo 2**(22 num_sums).
    """
    (batch,) = np.broadcast_shapes(a.shape[:1], b.shape[:1])
    shape = (num_sums, batch, a.shape[1], b.shape[2])
    sums = np.zeros(shape, np.int64, like=a)
    for block, start in enumerate(range(0, a.shape[2], k_block), 1):
        left = cut(a[:, :, start : start + k_block], counts[0], dtype)
        right = cut(b[:, start : start + k_block], counts[1], dtype)
        for i, x in enumerate(left):
            for j, y in enumerate(right[: max(num_sums - i, 0)]):
                sums[i + j] += product(x, y).astype(np.int64)
        if block % _BLOCKS == 0:
            carry(sums, WORD_BITS)
    return sums


def wrapped(sums: Array) -> Array:
    """The integers modulo 2**64, as int64."""
    total = sums[0]
    for s in range(1, min(len(sums), MODULAR_SUMS)):
        total = total + (sums[s] << (WORD_BITS * s))
    return total


def beyond(sums: Array, limits: np.iinfo[np.integer]) -> Array:
    """True for the integers beyond these limits; sweeps the carries in place."""
    # The integer without its lowest 44 bits, cut off at 2**62, decides for 64 bits,
    # whose limits have only zeros or only ones in these 44 bits.
    carry(sums, WORD_BITS)
    high = sums[len(sums) - 1]
    for s in range(len(sums) - 2, 1, -1):
        high = (np.clip(high, -_SATURATED, _SATURATED) << WORD_BITS) + sums[s]
    drop = 2 * WORD_BITS
    is_beyond = (high < limits.min >> drop) | (high > limits.max >> drop)

    # Narrower limits differ in the lower bits, which the integer modulo 2**64 has.
    if limits.bits < 64:
        value = wrapped(sums)
        is_beyond |= (value < limits.min) | (value > limits.max)
    return is_beyond


def python_integers(sums: Array) -> Array:
    """The integers as those of Python, in an array of objects on the host.

    Sweeps the carries in place.
    """
    # Two sums at a time fill an int64 with 44 bits.
    carry(sums, WORD_BITS)
    total = sums[len(sums) - 1].astype(object)
    for s in range(len(sums) - 2, 0, -2):
        pair = (sums[s] << WORD_BITS) + sums[s - 1]
        total = total * 2 ** (2 * WORD_BITS) + pair
    return total if len(sums) % 2 else total * 2**WORD_BITS + sums[0]
