"""alpha A B + beta C rounded once: the product of operands with more columns and rows.

Idea
    A B + s C = [A C] [B; s I] for a power of two s. Columns are taken in groups of w,
    which add w terms to the k there are. Where s is no number of the dtype, C takes
    what s is too large or too small by.

    For other scalars alpha A = A_1 + A_2 and beta C = C_1 + C_2 exactly, see
    numerics/scalar_words.py, and the sum is [A_1 A_2 C_1 C_2] [B; B; s I; s I].
Exact when
    The product of the augmented operands is correctly rounded, and nothing of C is lost
    by what it takes. Real components of C that are Inf or NaN are added to the rounded
    sum of the others, and end where IEEE arithmetic puts them.
Cost
    (k + w) / k of the product with w = max(k / 8, 64), or n where that is less; A is
    split again for each group. Each word of alpha A takes k terms, each of beta C w.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hifigemm.model.plan import Decision, Report
from hifigemm.numerics.bits import Array, real_components, scale_entries
from hifigemm.numerics.scalar_words import Word, powers_in_range, words_of_multiple

Multiply = Callable[[Array, Array], tuple[Array, Report]]
"""The correctly rounded product of two stacks, with its report."""

ShiftedMultiply = Callable[[Array, Array, int], tuple[Array, Report]]
"""2**shift times the correctly rounded product of two stacks, with its report."""

_LEAST_POWER, _LARGEST_POWER = -1074, 1023
"""Exponents of the powers of two that float64 holds."""


class Term(NamedTuple):
    """s C, a term of sums that are rounded once."""

    c: Array
    s: float  # a power of two, or minus one, that the dtype of C holds


def term_of(c: Array, power: int) -> Term | None:
    """c 2**power; None where rounding or overflow would change an entry of what C takes
    of the power.
    """
    real = np.finfo(c.dtype)
    exponent = min(max(power, real.minexp - real.nmant), real.maxexp - 1)
    s = 2.0**exponent
    if exponent == power:
        return Term(c, s)

    # The dtype has no number 2**power: C takes the other part of it.
    excess = power - exponent
    components = real_components(c)
    scaled = scale_entries(components, excess)
    is_unchanged = scale_entries(scaled, -excess) == components
    if not (is_unchanged | ~np.isfinite(components)).all():
        return None
    return Term(scaled.view(c.dtype).reshape(c.shape), s)


def sum_of_multiples(
    alpha: complex,
    a: Array,
    b: Array,
    beta: complex,
    c: Array | None,
    multiply: ShiftedMultiply,
    shifts: tuple[int, int],
) -> tuple[Array, Report] | None:
    """alpha a b + beta c by a product that rounds correctly, for any finite scalars,
    with a report; None where the words of its terms do not fit in the range of float64
    together.

    a, b and c are as in `sum_with_product`, of float64 or complex128, and finite. The
    product is multiplied by a power of two within `shifts`.
    """
    words = words_of_multiple(alpha, a)
    addends = [] if c is None else words_of_multiple(beta, c)
    shift = _common_exponent(words, b, addends, shifts)
    if shift is None:
        return None

    # alpha a b = [A_1 A_2 ...] [B; B; ...].
    lefts = [a[..., :0]]
    rights = [b[:, :0]]
    for word in words:
        power = word.exponent - shift
        of_word = 0
        if power:
            down, up = powers_in_range(word.x)
            of_word = min(max(power, down), up)
        lefts.append(_scaled(word.x, of_word))
        rights.append(_scaled(b, power - of_word))
    left = np.concatenate(lefts, axis=2)
    right = np.concatenate(rights, axis=1)

    # beta c = 2**shift (s_1 C_1 + ...).
    terms = []
    for word in addends:
        power = word.exponent - shift
        exponent = min(max(power, _LEAST_POWER), _LARGEST_POWER)
        terms.append(Term(_scaled(word.x, power - exponent), 2.0**exponent))

    def multiply_shifted(x: Array, y: Array) -> tuple[Array, Report]:
        return multiply(x, y, shift)

    if terms:
        return sum_with_product(left, right, terms, multiply_shifted)
    return multiply_shifted(left, right)


def _scaled(x: Array, e: int) -> Array:
    """x 2**e, x itself for e = 0."""
    return scale_entries(x, e) if e else x


def _common_exponent(
    words: list[Word], b: Array, addends: list[Word], shifts: tuple[int, int]
) -> int | None:
    """A power of two that all terms can have in common, the rest of theirs being taken
    by the words, b and the s of addends; None if there is none.
    """
    terms = [*words, *addends]
    preferred = terms[0].exponent if terms else 0
    preferred = min(max(preferred, shifts[0]), shifts[1])
    is_as_it_is = all(word.exponent == preferred for word in words)
    powers = [word.exponent - preferred for word in addends]
    if is_as_it_is and all(_LEAST_POWER <= e <= _LARGEST_POWER for e in powers):
        return preferred

    low, high = shifts
    room_of_b = powers_in_range(b)
    for word in words:
        down, up = powers_in_range(word.x)
        low = max(low, word.exponent - (up + room_of_b[1]))
        high = min(high, word.exponent - (down + room_of_b[0]))
    for word in addends:
        down, up = powers_in_range(word.x)
        low = max(low, word.exponent - (up + _LARGEST_POWER))
        high = min(high, word.exponent - (down + _LEAST_POWER))
    return min(max(preferred, low), high) if low <= high else None


def sum_with_product(
    a: Array, b: Array, addends: Sequence[Term], multiply: Multiply
) -> tuple[Array, Report]:
    """a b + s c + ... over all addends by a product that rounds correctly, with a report
    in which groups count by their columns.

    a (batch or 1, m, k), b (batch or 1, k, n) and each c (batch, m, n) are of one dtype
    and device. `multiply` gives the product of a stack (batch, m, k + terms) by
    (batch or 1, k + terms, w) and its report, w columns of each c making w terms.
    """
    first = addends[0].c
    batch, m, n = first.shape
    k = a.shape[2]
    dtype = first.dtype

    # Inf and NaN of C are added at the end.
    real = first.real.dtype
    components = [real_components(c) for c, _ in addends]
    finite = [np.where(np.isfinite(x), x, real.type(0)).view(dtype) for x in components]

    # [A C] is laid out for a group of w columns of C at a time.
    width = min(n, max(k // 8, 64))
    left = np.empty((batch, m, k + len(addends) * width), dtype, like=first)
    left[..., :k] = a
    values = np.empty(first.shape, dtype, like=first)
    num_products = 0.0
    reports = []
    for start in range(0, n, width):
        columns = slice(start, min(start + width, n))
        w = columns.stop - start
        # [B; s I; ...]: the diagonal of w rows holds s.
        right = np.zeros((len(b), k + len(addends) * w, w), dtype, like=first)
        right[:, :k] = b[..., columns]
        for i, (c, addend) in enumerate(zip(finite, addends, strict=True)):
            at = k + i * w
            left[..., at : at + w] = c[..., columns]
            diagonal = slice(at * w, (at + w) * w, w + 1)
            right.reshape(len(b), -1)[:, diagonal] = addend.s
        values[..., columns], report = multiply(left[..., : right.shape[1]], right)
        reports.append(report)
        num_products += report.num_products * w / n

    sums = values.view(real)
    for x, addend in zip(components, addends, strict=True):
        sums = np.where(np.isfinite(x), sums, sums + x * real.type(addend.s))

    # The report of the last group stands for all, with the products of each.
    last = reports[-1]
    reason = f"{last.reason}; C among the terms, so that the sum is rounded once"
    seconds = sum(report.decision_seconds for report in reports)

    def of_all_groups(d: Decision) -> Decision:
        return replace(d, num_products=round(num_products), reason=reason)

    return sums.view(dtype), last.changed(of_all_groups, seconds)
