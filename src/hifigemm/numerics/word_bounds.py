"""Error bounds of products of words, |C - AB| <= r |A||B| + E, that hold for every
finite operand.

Let A = sum_p A_p + R and B = sum_q B_q + S with words as in numerics.words. Then

    A B - sum_kept A_p B_q = R B + A S - R S + sum_dropped A_p B_q,

and the unit errs by at most c_pq |A_p||B_q| for each kept pair, c_pq from the number of
roundings that its terms go through: an error of eps (|C| + sum |x|) in a step can be
shared out as a factor 1 + theta, |theta| <= eps, for C and for each x, so a term that
goes through N steps carries N factors (`growth`). To first order this is ((p + 1)
u**p + c u_acc) |A||B| of [FHLMM23].

Every matrix X above is majorised row by row (column by column for B) as |X| <= relative
|A| + absolute, where `absolute` is what over- and underflow add to the a-priori bound,
0 as a rule (`Majorant`). Products of majorants give r |A||B| and E. Two more things add
to `absolute`, see numerics.accumulation: a subnormal word is aligned like the smallest
normal number, and sums below the normal range of the accumulator lose `tiny` in every
step, and once more where a sum is scaled back by 2**-low_shift.

References
    [FHLMM23] Matrix Multiplication in Multiword Arithmetic, doi:10.1137/21M1465032.
    [BHM20] A Class of Fast and Accurate Summation Algorithms, doi:10.1137/19M1257780.
    [MM25] Error Analysis of Matrix Multiplication with Narrow Range Floating-Point
    Arithmetic, doi:10.1137/24M1685109.
"""

from __future__ import annotations

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
    """|C - AB| <= relative |A||B| + absolute; None for an absolute part of zero, else
    an array (batch, m, n).
    """

    relative: float
    absolute: Array | None


@dataclass(frozen=True)
class Majorant:
    """|X| <= relative |A| + absolute, `absolute` one number a row (left) or column
    (right); total >= sum_h |A_h|.
    """

    relative: float
    absolute: Array
    total: Array

    def times(self, other: Majorant, k: int) -> Array:
        """E of |X||Y| <= r s |A||B| + E, for a left and a right factor, relative r and
        s.
        """
        absolute = (
            self.relative * self.total * other.absolute
            + self.absolute * other.total * other.relative
        )
        return absolute + k * self.absolute * other.absolute


def growth(*factors: tuple[float, int]) -> float:
    """prod (1 + u)**n - 1 over the pairs (u, n), rounded up; inf where that
    overflows.
    """
    exponent = sum(n * math.log1p(u) for u, n in factors)
    return math.expm1(exponent) * _UP if exponent < 700.0 else math.inf


def steps_in_blocks(unit: Accumulation, k: int, block: int) -> int:
    """Steps that a sum of k products takes where a step ends with each block."""
    return k // block * unit.steps(block) + unit.steps(k % block)


def relative_error(
    splitting: Splitting,
    kept: Mapping[Pair, float],
    remainders: tuple[bool, bool] = (True, True),
) -> float:
    """r of the module docstring for data without over- and underflow.

    `kept` gives c_pq for the pairs that are multiplied, `remainders` says whether A and
    B have any.
    """
    *words, rest = splitting.relative_bounds()
    r, s = (rest if has else 0.0 for has in remainders)
    pairs = (
        (p, q) for p in range(splitting.num_words) for q in range(splitting.num_words)
    )
    return (
        sum(kept.get((p, q), 1.0) * words[p] * words[q] for p, q in pairs)
        + r
        + s
        + r * s
    ) * _UP


def safe_exponent(splitting: Splitting, floor: int) -> int:
    """Least e such that words of entries of exponent e and more, 24 bits each, lose
    nothing that the bounds see.

    The remainder of p words is at most unit**p of such entries for every p, and nonzero
    products of two words, one of them a first word, have exponents of at least `floor`
    after the scaling by 2**-low_shift; `floor` is the safe exponent of a unit.
    """
    fmt, last = splitting.fmt, splitting.num_words - 1
    whole = fmt.emin + last * max(
        fmt.t - (splitting.rounding == "zero") - splitting.low_shift, 0
    )
    return max(whole, -(-(floor + 23) // 2)) if _meets(splitting, floor) else whole


def _meets(splitting: Splitting, floor: int) -> bool:
    """Whether products of subnormal words lie below the floor of a unit."""
    return 2 * splitting.fmt.emin < floor + splitting.low_shift * (
        splitting.num_words - 1
    )


def relative_error_at(
    splitting: Splitting,
    errors: Callable[[Accumulation], Mapping[Pair, float]],
    unit: Accumulation,
    lost: int = 0,
) -> float:
    """r with E = 0 for operands of 24 bits that lose `lost` bits together; inf where a
    sum may meet the floor.

    An operand loses l bits where its least nonzero entry, as it is split, has the
    exponent `safe_exponent` - l, l >= 0. With u the unit of the splitting, remainders
    after p words are then at most 2**l u**p |A|, and a subnormal word is aligned like
    the smallest normal number of its scale, so many times the bound of the word: the
    error of a step grows by as much. All terms are convex in the share of an operand in
    `lost`, so r is largest where one operand loses all.

    `errors` gives the kept pairs with their c_pq for a unit.
    """
    safe = safe_exponent(splitting, unit.safe_exponent)
    if lost > 64 or (
        _meets(splitting, unit.safe_exponent)
        and 2 * safe - 23 - lost < unit.safe_exponent
    ):
        return math.inf
    count, worst = splitting.num_words, 0.0
    for losses in ((lost, 0), (0, lost)):
        (a, aligned_a), (b, aligned_b) = (
            _sizes(splitting, safe - x, 2.0**x) for x in losses
        )
        r, s = (2.0**x * splitting.unit**count for x in losses)
        total = r + s + r * s
        for p, q in np.ndindex(count, count):
            c = errors(
                replace(unit, error=unit.error * aligned_a[p] * aligned_b[q])
            ).get((p, q), 1.0)
            total += c * a[p] * b[q]
        worst = max(worst, total)
    return worst * _UP


def _sizes(
    splitting: Splitting, least: int, lost: float
) -> tuple[list[float], list[float]]:
    """Bounds of |word p| / |A| for entries of exponents from `least` on, and by how
    much alignment exceeds them.
    """
    u, shift, emin = splitting.unit, splitting.low_shift, splitting.fmt.emin
    words, aligned = [], []
    for p in range(splitting.num_words):
        words.append(1.0 + u * lost if p == 0 else u**p * (1.0 + u) * lost)
        aligned.append(max(1.0, 2.0 ** (emin - shift * p - least) / words[p]))
    return words, aligned


def word_error(
    left: WordFacts,
    right: WordFacts,
    splitting: Splitting,
    kept: Mapping[Pair, float],
    accumulation: Accumulation,
    k: int,
    steps: int | None = None,
) -> WordError:
    """The error bound of a block of C for words of these facts.

    `kept` gives c_pq for the products that are made, all in `accumulation`, k is the
    length of the sums, `steps` what one of them takes where that is not the number for
    all of k at once.
    """
    relative = relative_error(
        splitting, kept, (bool(left.inexact.any()), bool(right.inexact.any()))
    )
    steps = (accumulation.steps(k) if steps is None else steps) * len(kept) + 1
    meets_floor = (
        left.lowest + right.lowest < accumulation.safe_exponent + splitting.low_shift
    )
    if not (
        meets_floor.any()
        or any(x.any() for f in (left, right) for x in (f.excess, f.subnormal))
    ):
        return WordError(relative, None)
    with np.errstate(over="ignore", invalid="ignore"):
        absolute = _absolute_error(left, right, splitting, kept, k)
        tiny = steps * accumulation.tiny * (1.0 + max(kept.values()))
        absolute = (absolute + meets_floor * tiny) * _UP + (k + 16) * LEAST
    return WordError(relative, np.where(np.isnan(absolute), np.inf, absolute))


def _absolute_error(
    left: WordFacts,
    right: WordFacts,
    splitting: Splitting,
    kept: Mapping[Pair, float],
    k: int,
) -> Array:
    """The absolute parts of all products of majorants in the module docstring."""
    count = splitting.num_words
    a, b = (
        _majorants(f, splitting, axis, widened=False)
        for f, axis in ((left, -1), (right, -2))
    )
    wide_a, wide_b = (
        _majorants(f, splitting, axis, widened=True)
        for f, axis in ((left, -1), (right, -2))
    )
    whole_a, whole_b = (
        Majorant(1.0, np.zeros_like(f.total), f.total) for f in (left, right)
    )
    absolute = (
        a[count].times(whole_b, k)
        + whole_a.times(b[count], k)
        + a[count].times(b[count], k)
    )
    for p in range(count):
        for q in range(count):
            if (p, q) in kept:
                absolute += kept[p, q] * wide_a[p].times(wide_b[q], k)
            else:
                absolute += a[p].times(b[q], k)
    return absolute


def _majorants(
    facts: WordFacts, splitting: Splitting, axis: int, *, widened: bool
) -> list[Majorant]:
    """Majorants of the words and, last, of the remainder; widened for subnormal words,
    as their alignment needs it.
    """
    result = []
    for p, relative in enumerate(splitting.relative_bounds()):
        absolute = np.take(facts.excess, [p], axis=axis)
        if widened and p < splitting.num_words:
            absolute = absolute + np.take(facts.subnormal, [p], axis=axis)
        result.append(Majorant(relative, absolute, facts.total))
    return result
