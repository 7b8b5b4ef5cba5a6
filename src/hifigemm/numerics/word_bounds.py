"""Error bounds |C - AB| <= r |A||B| + E of products of words, for all finite operands.

Let A = sum_p A_p + R and B = sum_q B_q + S with words as in numerics.words. Some pairs
(p, q) are multiplied, all others are dropped. Then

    A B - sum_multiplied A_p B_q = R B + A S - R S + sum_dropped A_p B_q,

and the unit errs by at most c_pq |A_p||B_q| for each pair that is multiplied, c_pq from
the number of roundings that its terms go through: an error of eps (|C| + sum |x|) in a
step can be shared out as a factor 1 + theta, |theta| <= eps, for C and for each x, so a
term that goes through N steps carries N factors (`growth`). To first order this is
((p + 1) u**p + c u_acc) |A||B| of [FHLMM23]. Where k is cut into S spans
(numerics.spans), a term goes through the steps of its own span and through S - 1
additions at most, T = ((T_1 + T_2) + T_3) + ..., each with a factor of the
accumulator's unit roundoff; T_1, which goes through all of them, has a whole span.

Every matrix X above is majorised row by row (column by column for B) as
|X| <= relative |A| + absolute (`Majorant`). `absolute` is the amount that over- and
underflow add to the a-priori bound, 0 as a rule. Products of majorants give r |A||B|
and E. Two more things add to `absolute`, see numerics.accumulation: a subnormal word is
aligned like the smallest normal number, and sums below the normal range of the
accumulator lose `tiny` in every step, and once more where a sum is scaled back by
2**-low_shift.

References
    [FHLMM23] Matrix Multiplication in Multiword Arithmetic, doi:10.1137/21M1465032.
    [BHM20] A Class of Fast and Accurate Summation Algorithms, doi:10.1137/19M1257780.
    [MM25] Error Analysis of Matrix Multiplication with Narrow Range Floating-Point
    Arithmetic, doi:10.1137/24M1685109.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from hifigemm.numerics.accumulation import Accumulation
from hifigemm.numerics.bits import LEAST, Array
from hifigemm.numerics.words import Splitting, WordFacts

Pair = tuple[int, int]
"""Indices of a word of A and a word of B, from 0."""

_UP = 1.0 + 2.0**-30
"""Covers the rounding of the bounds themselves, each a few float64 operations."""


@dataclass(frozen=True)
class WordError:
    """|C - AB| <= relative |A||B| + absolute."""

    relative: float
    absolute: Array | None  # (batch, m, n), or None for zeros


@dataclass(frozen=True)
class Majorant:
    """|X| <= relative |A| + absolute for a part X of an operand A."""

    relative: float
    absolute: Array  # one number for each row, or column on the right
    total: Array  # the same shape, at least sum_h |A_h|

    def times(self, other: Majorant, k: int) -> Array:
        """E with |X||Y| <= r s |A||B| + E, for a left X and a right Y.

        r and s are the relative parts of X and Y, k is the inner dimension.
        """
        absolute = (
            self.relative * self.total * other.absolute
            + self.absolute * other.total * other.relative
        )
        return absolute + k * self.absolute * other.absolute


def growth(*factors: tuple[float, int]) -> float:
    """prod (1 + u)**n - 1 over the pairs (u, n), rounded up, or inf from e**700 on."""
    exponent = sum(n * math.log1p(u) for u, n in factors)
    return math.expm1(exponent) * _UP if exponent < 700.0 else math.inf


def steps_in_blocks(unit: Accumulation, k: int, block: int) -> int:
    """Number of steps of a sum of k products where a step ends with each block."""
    return k // block * unit.steps(block) + unit.steps(k % block)


def relative_error(
    splitting: Splitting,
    pair_errors: Mapping[Pair, float],
    remainders: tuple[bool, bool] = (True, True),
) -> float:
    """r of the module docstring for data without over- and underflow.

    `pair_errors` gives c_pq for the pairs that are multiplied, `remainders` says
    whether A and B have any.
    """
    *words, remainder = splitting.relative_bounds()
    has_remainder_of_a, has_remainder_of_b = remainders
    r = remainder if has_remainder_of_a else 0.0
    s = remainder if has_remainder_of_b else 0.0
    products = 0.0
    for p, q in itertools.product(range(splitting.num_words), repeat=2):
        # A dropped product counts in full.
        error = pair_errors.get((p, q), 1.0)
        products += error * words[p] * words[q]
    return (products + r + s + r * s) * _UP


def safe_exponent(splitting: Splitting, floor: int) -> int:
    """Least e from which on the words of entries of 24 bits lose nothing to underflow.

    e is the exponent of the smallest entry. The remainder of p words is then at most
    unit**p of the entry for every p, and nonzero products of two words, one of them a
    first word, have exponents of at least `floor` after the scaling by 2**-low_shift;
    `floor` is the safe exponent of a unit.
    """
    fmt = splitting.fmt
    last = splitting.num_words - 1
    bits = fmt.t - (splitting.rounding == "zero") - splitting.low_shift
    safe_for_words = fmt.emin + last * max(bits, 0)
    if not _meets_floor(splitting, floor):
        return safe_for_words
    # A first word has an exponent of at least e, a further one of at least e - 23.
    return max(safe_for_words, -(-(floor + 23) // 2))


def _meets_floor(splitting: Splitting, floor: int) -> bool:
    """True if products of subnormal words lie below the floor of a unit."""
    last_shift = splitting.low_shift * (splitting.num_words - 1)
    return 2 * splitting.fmt.emin < floor + last_shift


def relative_error_at(
    splitting: Splitting,
    errors: Callable[[Accumulation], Mapping[Pair, float]],
    unit: Accumulation,
    lost_bits: int = 0,
) -> float:
    """r with E = 0 for operands of 24 bits that lose some bits to underflow, or inf.

    Together they lose `lost_bits`; inf where a sum may meet the floor. An operand loses
    l bits where its smallest nonzero entry, as it is split, has the exponent
    `safe_exponent` - l, l >= 0. With u the unit of the splitting, remainders after p
    words are then at most 2**l u**p |A|, and a subnormal word is aligned like the
    smallest normal number of its scale, which is so many times the bound of the word:
    the error of a step grows by as much. All terms are convex in the share of an
    operand in `lost_bits`, so r is largest where one operand loses all.

    `errors` gives the pairs that are multiplied with their c_pq for a unit.
    """
    # No r beyond 64 bits, nor where products of the smallest entries meet the floor.
    safe = safe_exponent(splitting, unit.safe_exponent)
    if lost_bits > 64:
        return math.inf
    lowest = 2 * safe - 23 - lost_bits
    if _meets_floor(splitting, unit.safe_exponent) and lowest < unit.safe_exponent:
        return math.inf

    count = splitting.num_words
    largest = 0.0
    for lost_a, lost_b in ((lost_bits, 0), (0, lost_bits)):
        # The remainders, and each pair of words with the error of its alignment.
        a, aligned_a = _word_sizes(splitting, safe - lost_a, 2.0**lost_a)
        b, aligned_b = _word_sizes(splitting, safe - lost_b, 2.0**lost_b)
        r = 2.0**lost_a * splitting.unit**count
        s = 2.0**lost_b * splitting.unit**count
        total = r + s + r * s
        for p, q in np.ndindex(count, count):
            aligned = replace(unit, error=unit.error * aligned_a[p] * aligned_b[q])
            total += errors(aligned).get((p, q), 1.0) * a[p] * b[q]
        largest = max(largest, total)
    return largest * _UP


def _word_sizes(
    splitting: Splitting, exponent: int, loss: float
) -> tuple[list[float], list[float]]:
    """Bounds of |word p| / |A|, and the factors by which alignment exceeds them.

    Entries have exponents from `exponent` on; `loss` is 2**l for l lost bits.
    """
    u = splitting.unit
    shift = splitting.low_shift
    emin = splitting.fmt.emin
    bounds = []
    factors = []
    for p in range(splitting.num_words):
        bound = 1.0 + u * loss if p == 0 else u**p * (1.0 + u) * loss
        bounds.append(bound)
        factors.append(max(1.0, 2.0 ** (emin - shift * p - exponent) / bound))
    return bounds, factors


def word_error(
    left: WordFacts,
    right: WordFacts,
    splitting: Splitting,
    pair_errors: Mapping[Pair, float],
    accumulation: Accumulation,
    k: int,
    steps: int | None = None,
    spans: int = 1,
) -> WordError:
    """Error bound of a block of C for words of these facts.

    `pair_errors` gives c_pq for the pairs that are multiplied, all in `accumulation`. k
    is the length of the sums, and `steps` the number of steps of one of them where that
    is not the number for all of k at once. The sums of low words are scaled back in
    each of the `spans` of k.
    """
    has_remainders = bool(left.inexact.any()), bool(right.inexact.any())
    relative = relative_error(splitting, pair_errors, has_remainders)

    # Without over- and underflow there is nothing more.
    floor = accumulation.safe_exponent + splitting.low_shift
    meets_floor = left.lowest + right.lowest < floor
    is_ordinary = not meets_floor.any()
    for facts in (left, right):
        is_ordinary &= not (facts.excess.any() or facts.subnormal.any())
    if is_ordinary:
        return WordError(relative, None)

    # All steps of all sums may lose `tiny`, and every rounding here `LEAST`.
    if steps is None:
        steps = accumulation.steps(k)
    steps = steps * len(pair_errors) + spans
    with np.errstate(over="ignore", invalid="ignore"):
        absolute = _absolute_error(left, right, splitting, pair_errors, k)
        tiny = steps * accumulation.tiny * (1.0 + max(pair_errors.values()))
        absolute = (absolute + meets_floor * tiny) * _UP + (k + 16) * LEAST
    return WordError(relative, np.where(np.isnan(absolute), np.inf, absolute))


def _absolute_error(
    left: WordFacts,
    right: WordFacts,
    splitting: Splitting,
    pair_errors: Mapping[Pair, float],
    k: int,
) -> Array:
    """Sum of the absolute parts of all products of majorants in the bound above."""
    # Majorants of words and remainders, and of A and B themselves.
    a = _majorants(left, splitting, -1, widened=False)
    b = _majorants(right, splitting, -2, widened=False)
    wide_a = _majorants(left, splitting, -1, widened=True)
    wide_b = _majorants(right, splitting, -2, widened=True)
    whole_a = Majorant(1.0, np.zeros_like(left.total), left.total)
    whole_b = Majorant(1.0, np.zeros_like(right.total), right.total)

    # R B + A S - R S.
    count = splitting.num_words
    remainder_of_a = a[count]
    remainder_of_b = b[count]
    absolute = remainder_of_a.times(whole_b, k)
    absolute = absolute + whole_a.times(remainder_of_b, k)
    absolute = absolute + remainder_of_a.times(remainder_of_b, k)

    # Products that are multiplied err by c_pq of them, dropped ones count in full.
    for p in range(count):
        for q in range(count):
            if (p, q) in pair_errors:
                absolute += pair_errors[p, q] * wide_a[p].times(wide_b[q], k)
            else:
                absolute += a[p].times(b[q], k)
    return absolute


def _majorants(
    facts: WordFacts, splitting: Splitting, axis: int, *, widened: bool
) -> list[Majorant]:
    """Majorants of the words and, last, of the remainder.

    `widened` ones allow for the alignment of subnormal words.
    """
    result = []
    for p, relative in enumerate(splitting.relative_bounds()):
        absolute = np.take(facts.excess, [p], axis=axis)
        if widened and p < splitting.num_words:
            absolute = absolute + np.take(facts.subnormal, [p], axis=axis)
        result.append(Majorant(relative, absolute, facts.total))
    return result
