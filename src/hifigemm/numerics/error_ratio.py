"""How large are the errors of scaled integers beside |A||B|? The ratio that says which
number of moduli keeps a target.

Fast scaling rounds 2**s_i A_i and 2**t_j B_j to integers with 2**-s_i < 2 ||A_i|| / T,
T**2 = half_range of the moduli. The error of an entry is then at most (||A_i||
sum|B_j| + ||B_j|| sum|A_i|) / T, but for terms of relative size k / T.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache

import numpy as np

from hifigemm.numerics.bits import Array
from hifigemm.numerics.blocking import put, vector_blocks
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
    """Largest (||A_i|| sum|B_j| + ||B_j|| sum|A_i|) / (|A||B|)_ij over all components
    of the result, or more.

    Norms and sums are rounded up, |A||B| is taken from the first 2**17 terms with
    magnitudes rounded down to 7 bits; inf where it is not shown to be positive. All are
    integers, so every engine finds the same float64. Rows and columns with an Inf or
    NaN do not count.

    `a` (batch or 1, m, k) and `b` (batch or 1, k, n) are real or complex;
    `block_entries` of an operand and `entries` of the result are worked on at a time.
    """
    (e, norm_a, sum_a), (f, norm_b, sum_b) = (
        _sizes(a, 2, block_entries),
        _sizes(b, 1, block_entries),
    )
    batch, m, n, top = (
        max(len(a), len(b)),
        a.shape[1],
        b.shape[2],
        2**MAGNITUDE_BITS_DOWN - 1,
    )
    step, worst = max(entries // (batch * n), 1), 0.0
    a, b = a[:, :, :MAGNITUDE_TERMS], b[:, :MAGNITUDE_TERMS]
    down_b = [magnitudes_down(c, f) for c in components(clean(b))]
    for rows in (slice(i, i + step) for i in range(0, m, step)):
        down_a = [magnitudes_down(c, e[:, rows]) for c in components(clean(a[:, rows]))]
        above = norm_a[:, rows] * sum_b + norm_b * sum_a[:, rows]
        for below in component_sums(exact, down_a, down_b, top):
            with np.errstate(divide="ignore", invalid="ignore"):
                found = np.where(
                    above == 0, 0.0, above / (below * 4.0**-MAGNITUDE_BITS_DOWN)
                )
            worst = max(worst, float(found.max(initial=0.0)))
    return worst


def _sizes(x: Array, axis: int, block_entries: int) -> tuple[Array, Array, Array]:
    """Exponents e of the vectors of x, their norms and sums of magnitudes in units of
    2**e, rounded up.

    Norms and sums of vectors with an Inf or NaN are 0.
    """
    shape = (x.shape[0], x.shape[1], 1) if axis == 2 else (x.shape[0], 1, x.shape[2])
    found: dict[str, Array] = {}
    for where in vector_blocks(x, axis, block_entries):
        y = x[where]
        squares, sums, exponent = vector_sizes(clean(y), axis)
        finite = np.isfinite(y).all(axis=axis, keepdims=True)
        put(found, "exponent", shape, where, exponent)
        put(
            found,
            "norm",
            shape,
            where,
            np.where(finite, np.sqrt(squares) * 2.0**-NORM_BITS, 0.0),
        )
        put(found, "sum", shape, where, np.where(finite, sums * 2.0**-NORM_BITS, 0.0))
    return found["exponent"], found["norm"], found["sum"]


def least_norm(terms: int) -> int:
    """T from which on k / (2 T) lies within the 2**-19 that `least_range` adds, and all
    rounding is to nearest.
    """
    return terms << 19


def _least_range(terms: int, r: float, ratio: float) -> int | None:
    """half_range from which on every entry keeps r, for operands with this
    `error_ratio`; None if it is inf.
    """
    wanted = ratio * (1.0 + 2.0**-19) / r
    if not math.isfinite(wanted):
        return None
    least: int = max(math.ceil(wanted), least_norm(terms)) ** 2
    return least


@lru_cache(maxsize=1024)
def largest_ratio(terms: int, r: float, half_range: int) -> float:
    """Largest `error_ratio` of operands for which moduli of this range keep r in every
    entry; -inf for none.

    By bisection of its bits: `_least_range` nowhere falls.
    """

    def suffices(bits: int) -> bool:
        least = _least_range(terms, r, struct.unpack("d", struct.pack("q", bits))[0])
        return least is not None and least <= half_range

    if not suffices(0):
        return -math.inf
    low, high = 0, 0x7FF << 52
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if suffices(middle) else (low, middle)
    return float(struct.unpack("d", struct.pack("q", low))[0])


def count_for_ratio(terms: int, r: float, ratio: float, is_complex: bool) -> int | None:
    """Fewest moduli that keep r in every entry for this `error_ratio`; None where no
    number does.
    """
    least = _least_range(terms, r, ratio)
    return None if least is None else count_for_range(least, is_complex)


def error_bound(terms: int, ratio: float, half_range: int) -> float:
    """The r that moduli of this range keep for operands with this `error_ratio`; inf
    where that is not known.
    """
    root = math.isqrt(half_range)
    if not math.isfinite(ratio) or root < least_norm(terms):
        return math.inf
    return ratio * (1.0 + 2.0**-18) / root
