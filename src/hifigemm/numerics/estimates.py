"""Cheap facts about |A||B| and about where a split may stop.

All sums are sums of integers, so that no decision that rests on them depends on the
order of a summation.
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
from hifigemm.numerics.slicing import slice_vectors, slices_needed, unit_exponent
from hifigemm.numerics.special import clean

MAGNITUDE_BITS_UP = 6
MAGNITUDE_BITS_DOWN = 7
MAGNITUDE_TERMS = 2**17
"""Products of two magnitudes rounded down to 7 bits that INT32 holds."""

_BINADES = 2100
"""More than the exponents of float64 are apart from each other and from 0."""


def magnitudes_up(x: Array, exponent: Array) -> Array:
    """ceil(|x| 2**(6 - exponent)) as int8 in [0, 64], for |x| < 2**exponent: upper
    bounds of |x|.
    """
    return ceil_magnitude(x, MAGNITUDE_BITS_UP - exponent).astype(np.int8)


def magnitudes_down(x: Array, exponent: Array) -> Array:
    """floor(|x| 2**(7 - exponent)) as int8 in [0, 127], for |x| < 2**exponent: lower
    bounds of |x|.
    """
    return np.floor(scale_by_power(np.abs(x), MAGNITUDE_BITS_DOWN - exponent)).astype(
        np.int8
    )


def component_sums(
    exact: ExactProduct, left: Sequence[Array], right: Sequence[Array], top: int
) -> Iterator[Array]:
    """Products of magnitudes up to `top`, given by components, for each component of
    the result, in int64.
    """
    for order in [right] if len(right) == 1 else [right, right[::-1]]:
        yield reduce(
            np.add,
            [
                exact(x, y, top, top).astype(np.int64)
                for x, y in zip(left, order, strict=True)
            ],
        )


def nonzeros(x: Array) -> Array:
    """1 where x is not zero, as int8: the product of two such matrices counts the terms
    of a sum that are not zero.
    """
    return (x != 0).astype(np.int8)


def published_num_slices(
    a: Array, b: Array, slice_bits: int, u: float, block_entries: int = BLOCK_ENTRIES
) -> tuple[int, bool]:
    """Number of slices d by the estimate of [MOOI20], and whether the operands end
    before it is met.

    d >= 2 is the smallest count with 2 sqrt(k) u |A| |B| e > (d + 1) |A_d| |B| e in
    every row, e a vector of ones, and the same for the columns of B. |A| is taken from
    its leading slice and |B| e is rounded up to integers. Where both operands end
    before, the count keeps every slice product.

    `u` is the unit roundoff of the accuracy that is aimed at. Inf and NaN in `a`
    (batch, m, k) and `b` (batch, k, n) count as zeros.
    """
    left, left_needed = _published(
        a, 2, vector_weights(b, 2, block_entries), slice_bits, u, block_entries
    )
    right, right_needed = _published(
        b, 1, vector_weights(a, 1, block_entries), slice_bits, u, block_entries
    )
    if left_needed < left and right_needed < right:
        return left_needed + right_needed - 1, True
    return max(left, right), False


def vector_weights(b: Array, axis: int, block_entries: int) -> Array:
    """Integers proportional to |B| e (sums along `axis`), rounded up, at most 2**20:
    (batch, k), twice k if complex.
    """

    def each(function: Callable[[Array], Array]) -> Array:
        found = map_vectors(
            lambda x: function(clean(real_vectors(x, axis))), b, axis, block_entries
        )
        return found.reshape(len(b), -1, 1)

    exponent = each(lambda x: largest_exponent(x, axis))
    sums = each(
        lambda x: ceil_magnitude(x, 20 - largest_exponent(x, axis)).sum(
            axis=axis, keepdims=True
        )
    )
    exponent = np.where(sums == 0, -_BINADES, exponent)
    sums = scale_by_power(
        sums, np.maximum(exponent - exponent.max(initial=-_BINADES), -1000)
    )
    weights = np.ceil(scale_by_power(sums, 20 - largest_exponent(sums, 1)))[:, :, 0]
    return np.repeat(weights, 2, axis=1) if b.dtype.kind == "c" else weights


def short_weights(weights: Array, slice_bits: int) -> Array:
    """Weights (batch, k) of 20 bits rounded up to 1 to 20, so that sums of k slice
    entries are exact in float64.
    """
    bits = min(20, max(53 - (slice_bits - 1) - ceil_log2(max(weights.shape[1], 1)), 1))
    return np.ceil(weights * 2.0 ** (bits - 20))


def _published(
    a: Array, axis: int, weights: Array, slice_bits: int, u: float, block_entries: int
) -> tuple[int, int]:
    """Largest d of the vectors of a along `axis`, each judged by itself, and the most
    slices that one of them has.
    """
    beta, k = slice_bits, weights.shape[1]
    weights = short_weights(weights, beta)[..., None]
    count, longest = 2, 1
    for where in vector_blocks(a, axis, block_entries):
        finite = clean(real_vectors(a[where], axis))
        rows = finite if axis == 2 else np.swapaxes(finite, 1, 2)
        weight = weights[where[0]] if len(weights) > 1 and len(a) > 1 else weights
        unit = unit_exponent(largest_exponent(rows, 2), beta)
        longest = max(
            longest, int(slices_needed(unit, lowest_bit(rows, 2), beta).max(initial=0))
        )
        slices = slice_vectors(rows, unit, beta)
        size = np.matmul(np.abs(next(slices)), weight)
        unmet, threshold = size > 0, 2.0 * math.sqrt(k) * u * size
        for d, w in enumerate(slices, start=2):
            size = np.matmul(np.abs(w), weight)
            unmet &= (d + 1) * size * 2.0 ** (-beta * (d - 1)) >= threshold
            count = max(count, d)
            if not unmet.any():
                break
    return count, longest
