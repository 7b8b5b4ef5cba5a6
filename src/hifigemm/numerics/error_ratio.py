"""The error ratio: how large the errors of scaled integers are beside |A||B|.

It says which number of moduli keeps a target. Fast scaling rounds 2**s_i A_i and
2**t_j B_j to integers with 2**-s_i < 2 ||A_i|| / T, T**2 = half_range of the moduli.
The error of an entry is then at most

    (||A_i|| sum|B_j| + ||B_j|| sum|A_i|) / T,

but for terms of relative size k / T.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache

import numpy as np

from hifigemm.numerics.bits import Array
from hifigemm.numerics.blocking import (
    product_shape,
    put,
    shape_of_vectors,
    vector_blocks,
)
from hifigemm.numerics.embedding import components
from hifigemm.numerics.estimates import (
    MAGNITUDE_BITS_DOWN,
    MAGNITUDE_TERMS,
    component_sums,
    magnitudes_down,
)
from hifigemm.numerics.residue_products import ExactProduct
from hifigemm.numerics.residues import count_for_range
from hifigemm.numerics.scaling import NORM_BITS, vector_sizes
from hifigemm.numerics.special import clean


def error_ratio(
    a: Array, b: Array, exact: ExactProduct, block_entries: int, entries: int
) -> float:
    """Upper bound of the largest error ratio of an entry, in units of 1 / T.

    The ratio is (||A_i|| sum|B_j| + ||B_j|| sum|A_i|) / (|A||B|)_ij; components of a
    complex result have an |A||B| each. Norms and sums are rounded up, |A||B| is taken
    from the first 2**17 terms with magnitudes rounded down to 7 bits; inf where it is
    not shown to be positive. All of these are integers, so that every engine finds the
    same float64. Rows and columns with an Inf or NaN do not count.

    `a` (batch or 1, m, k) and `b` (batch or 1, k, n) are real or complex;
    `block_entries` of an operand and `entries` of the result are worked on at a time.
    """
    exponent_a, norm_a, sum_a = _sizes(a, 2, block_entries)
    exponent_b, norm_b, sum_b = _sizes(b, 1, block_entries)

    # Magnitudes of the columns of B, rounded down.
    a = a[:, :, :MAGNITUDE_TERMS]
    b = b[:, :MAGNITUDE_TERMS]
    down_b = [magnitudes_down(x, exponent_b) for x in components(clean(b))]
    top = 2**MAGNITUDE_BITS_DOWN - 1

    # The ratios of some rows of the result at a time.
    batch, m, n = product_shape(a, b)
    step = max(entries // (batch * n), 1)
    largest = 0.0
    for start in range(0, m, step):
        rows = slice(start, start + step)
        down_a = [
            magnitudes_down(x, exponent_a[:, rows])
            for x in components(clean(a[:, rows]))
        ]
        errors = norm_a[:, rows] * sum_b + norm_b * sum_a[:, rows]
        for products in component_sums(exact, down_a, down_b, top):
            with np.errstate(divide="ignore", invalid="ignore"):
                ratios = errors / (products * 4.0**-MAGNITUDE_BITS_DOWN)
                ratios = np.where(errors == 0, 0.0, ratios)
            largest = max(largest, float(ratios.max(initial=0.0)))
    return largest


def _sizes(x: Array, axis: int, block_entries: int) -> tuple[Array, Array, Array]:
    """Exponents e, norms and sums of magnitudes of the vectors of x, rounded up.

    Norms and sums are in units of 2**e, and 0 for vectors with an Inf or NaN.
    """
    shape = shape_of_vectors(x, axis)
    sizes: dict[str, Array] = {}
    for block in vector_blocks(x, axis, block_entries):
        y = x[block]
        squares, sums, exponents = vector_sizes(clean(y), axis)
        finite = np.isfinite(y).all(axis=axis, keepdims=True)
        norms = np.where(finite, np.sqrt(squares) * 2.0**-NORM_BITS, 0.0)
        sums = np.where(finite, sums * 2.0**-NORM_BITS, 0.0)
        put(sizes, "exponents", shape, block, exponents)
        put(sizes, "norms", shape, block, norms)
        put(sizes, "sums", shape, block, sums)
    return sizes["exponents"], sizes["norms"], sizes["sums"]


def least_norm(terms: int) -> int:
    """Least T with k / (2 T) <= 2**-20 for k = `terms`.

    Then the terms of relative size k / T lie within the 2**-19 that `_least_range`
    adds, and every scale lets its vector be rounded to nearest.
    """
    return terms << 19


def _least_range(terms: int, r: float, ratio: float) -> int | None:
    """Least half_range with which every entry keeps r, or None for an infinite ratio.

    `ratio` is the `error_ratio` of the operands.
    """
    norm = ratio * (1.0 + 2.0**-19) / r
    if not math.isfinite(norm):
        return None
    half_range: int = max(math.ceil(norm), least_norm(terms)) ** 2
    return half_range


@lru_cache(maxsize=1024)
def largest_ratio(terms: int, r: float, half_range: int) -> float:
    """Largest `error_ratio` for which moduli of this range keep r in every entry.

    -inf where there is none. Found by bisection of its bits, as `_least_range` nowhere
    falls.
    """

    def suffices(bits: int) -> bool:
        least_range = _least_range(terms, r, _float_of_bits(bits))
        return least_range is not None and least_range <= half_range

    if not suffices(0):
        return -math.inf
    # From the bits of 0 to those of inf.
    low = 0
    high = 0x7FF << 52
    while high - low > 1:
        middle = (low + high) // 2
        if suffices(middle):
            low = middle
        else:
            high = middle
    return _float_of_bits(low)


def _float_of_bits(bits: int) -> float:
    """The float64 with these bits."""
    return float(struct.unpack("d", struct.pack("q", bits))[0])


def count_for_ratio(terms: int, r: float, ratio: float, is_complex: bool) -> int | None:
    """Fewest moduli that keep r in every entry for this `error_ratio`, or None."""
    half_range = _least_range(terms, r, ratio)
    return None if half_range is None else count_for_range(half_range, is_complex)


def error_bound(terms: int, ratio: float, half_range: int) -> float:
    """The r that moduli of this range keep for operands with this `error_ratio`.

    inf where no r is known.
    """
    root = math.isqrt(half_range)
    if not math.isfinite(ratio) or root < least_norm(terms):
        return math.inf
    return ratio * (1.0 + 2.0**-18) / root
