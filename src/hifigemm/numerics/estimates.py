"""Cheap estimates of |A||B|, and of the slices that a split needs.

All sums are sums of integers, so that no decision that rests on them depends on the
order of a summation.

References
    [MOOI20] Mukunoki, Ozaki, Ogita, Imamura: DGEMM using Tensor Cores, and its accurate
    and reproducible versions, doi:10.1007/978-3-030-50743-5_12.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import numpy as np

from hifigemm.numerics.bits import (
    Array,
    ceil_log2,
    ceil_magnitude,
    largest_exponent,
    lowest_bit,
    real_vectors,
    scale_by_power,
)
from hifigemm.numerics.blocking import BLOCK_ENTRIES, map_vectors, vector_blocks
from hifigemm.numerics.residue_products import ExactProduct
from hifigemm.numerics.residues import ModuliSet
from hifigemm.numerics.slicing import slice_vectors, slices_needed, unit_exponent
from hifigemm.numerics.special import clean

MAGNITUDE_BITS_UP = 6
"""Bits of magnitudes that are rounded up: 2**6 itself occurs and is an INT8."""

MAGNITUDE_BITS_DOWN = 7
"""Bits of magnitudes that are rounded down: 2**7 - 1 is the largest INT8."""

MAGNITUDE_TERMS = 2**17
"""Terms of a sum of products of two 7-bit magnitudes that INT32 holds."""

_WEIGHT_BITS = 20
"""Weights of the published estimate are at most 2**20."""

_BINADES = 2100
"""More than the exponents of float64 are apart from each other and from 0."""


def magnitudes_up(x: Array, exponent: Array) -> Array:
    """ceil(|x| 2**(6 - exponent)) as int8, upper bounds of |x| below 2**exponent."""
    return ceil_magnitude(x, MAGNITUDE_BITS_UP - exponent).astype(np.int8)


def accurate_bits(moduli: ModuliSet, balance: int = 0) -> int:
    """Bits of the integers that scales by the largest sums of `magnitudes_up` make.

    The largest sum of a vector is 1 or more in units of 4**(e - 6), hence
    4**(s + e - 6) <= half_range and |2**s x| < 2**6 sqrt(half_range). Vectors whose sums
    are all zero have s = -e.
    """
    bits = math.isqrt(moduli.half_range).bit_length() + MAGNITUDE_BITS_UP
    return bits + abs(balance)


def magnitudes_down(x: Array, exponent: Array) -> Array:
    """floor(|x| 2**(7 - exponent)) as int8, lower bounds of |x| below 2**exponent."""
    scaled = scale_by_power(np.abs(x), MAGNITUDE_BITS_DOWN - exponent)
    return np.floor(scaled).astype(np.int8)


def component_sums(
    exact: ExactProduct, left: Sequence[Array], right: Sequence[Array], top: int
) -> Iterator[Array]:
    """Yield |A||B| in int64, for the result or for its real and its imaginary part.

    `left` and `right` are integer magnitudes, up to `top`, of components of A and B.
    """
    # For entries a + i b and c + i d, re has |a||c| + |b||d| and im |a||d| + |b||c|.
    orders = [right] if len(right) == 1 else [right, right[::-1]]
    for factors in orders:
        products = [
            exact(x, y, top, top).astype(np.int64)
            for x, y in zip(left, factors, strict=True)
        ]
        yield reduce(np.add, products)


def nonzeros(x: Array) -> Array:
    """1 where x is not zero, else 0, as int8.

    The product of two such matrices counts the nonzero terms of each entry.
    """
    return (x != 0).astype(np.int8)


def published_num_slices(
    a: Array, b: Array, slice_bits: int, u: float, block_entries: int = BLOCK_ENTRIES
) -> tuple[int, bool]:
    """Number of slices by the estimate of [MOOI20]; True if the operands have fewer.

    d >= 2 is the smallest count with 2 sqrt(k) u |A| |B| e > (d + 1) |A_d| |B| e in
    every row, e a vector of ones, and the same for the columns of B. |A| is taken from
    its leading slice and |B| e is rounded up to integers. Where both operands have
    fewer slices than that, the count keeps every slice product.

    `u` is the unit roundoff of the accuracy that is aimed at. Inf and NaN in `a`
    (batch, m, k) and `b` (batch, k, n) count as zeros.
    """
    left_weights = vector_weights(b, 2, block_entries)
    left, left_slices = _published_count(
        a, 2, left_weights, slice_bits, u, block_entries
    )
    right_weights = vector_weights(a, 1, block_entries)
    right, right_slices = _published_count(
        b, 1, right_weights, slice_bits, u, block_entries
    )
    if left_slices < left and right_slices < right:
        return left_slices + right_slices - 1, True
    return max(left, right), False


def vector_weights(b: Array, axis: int, block_entries: int) -> Array:
    """Integers up to 2**20 that are proportional to |B| e, sums along `axis`, or more.

    They are rounded up: (batch, k), or (batch, 2 k) for complex b.
    """

    def map_finite(function: Callable[[Array], Array]) -> Array:
        values = map_vectors(
            lambda x: function(clean(real_vectors(x, axis))), b, axis, block_entries
        )
        return values.reshape(len(b), -1, 1)

    def sum_magnitudes(x: Array) -> Array:
        magnitudes = ceil_magnitude(x, _WEIGHT_BITS - largest_exponent(x, axis))
        return magnitudes.sum(axis=axis, keepdims=True)

    # Sums of |B| on the grid of each vector, and the exponents of these grids.
    exponent = map_finite(lambda x: largest_exponent(x, axis))
    sums = map_finite(sum_magnitudes)

    # All sums on the grid of the largest vector; those below 2**-1000 of it become 1.
    exponent = np.where(sums == 0, -_BINADES, exponent)
    drop = exponent - exponent.max(initial=-_BINADES)
    sums = scale_by_power(sums, np.maximum(drop, -1000))

    # Their leading 20 bits, for both components of a complex entry.
    scaled = scale_by_power(sums, _WEIGHT_BITS - largest_exponent(sums, 1))
    weights = np.ceil(scaled)[:, :, 0]
    return np.repeat(weights, 2, axis=1) if b.dtype.kind == "c" else weights


def short_weights(weights: Array, slice_bits: int) -> Array:
    """Weights (batch, k) of 20 bits, rounded up to as many bits as keep sums exact.

    A sum has k products of a slice entry and a weight; weights keep 1 to 20 bits.
    """
    free_bits = 53 - (slice_bits - 1) - ceil_log2(max(weights.shape[1], 1))
    bits = min(_WEIGHT_BITS, max(free_bits, 1))
    return np.ceil(weights * 2.0 ** (bits - _WEIGHT_BITS))


def _published_count(
    a: Array, axis: int, weights: Array, slice_bits: int, u: float, block_entries: int
) -> tuple[int, int]:
    """Largest d of the vectors of a along `axis`, and the most slices that one has.

    Each vector is judged by itself.
    """
    k = weights.shape[1]
    weights = short_weights(weights, slice_bits)[..., None]
    count = 2
    most_slices = 1
    for block in vector_blocks(a, axis, block_entries):
        # Some vectors as rows, and how many slices leave no remainder.
        finite = clean(real_vectors(a[block], axis))
        rows = finite if axis == 2 else np.swapaxes(finite, 1, 2)
        unit = unit_exponent(largest_exponent(rows, 2), slice_bits)
        needed = slices_needed(unit, lowest_bit(rows, 2), slice_bits)
        most_slices = max(most_slices, int(needed.max(initial=0)))

        # The left side of the condition, with the leading slice instead of |A|.
        is_stack = len(weights) > 1 and len(a) > 1
        block_weights = weights[block[0]] if is_stack else weights
        slices = slice_vectors(rows, unit, slice_bits)
        sums = np.matmul(np.abs(next(slices)), block_weights)
        threshold = 2.0 * math.sqrt(k) * u * sums

        # More slices, until the condition has been met once in every row.
        is_open = sums > 0
        for d, w in enumerate(slices, start=2):
            sums = np.matmul(np.abs(w), block_weights)
            is_open &= (d + 1) * sums * 2.0 ** (-slice_bits * (d - 1)) >= threshold
            count = max(count, d)
            if not is_open.any():
                break
    return count, most_slices
