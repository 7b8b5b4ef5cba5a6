"""How many moduli suffice for a product: for the accuracy, for exact integers, for an
error ratio.
"""

from __future__ import annotations

import math
from functools import lru_cache

from hifigemm.base.exceptions import PlanError
from hifigemm.model.accuracy import Target
from hifigemm.model.plan import Evidence
from hifigemm.model.problem import Problem
from hifigemm.numerics import scaling
from hifigemm.numerics.bits import NO_BIT, ceil_log2
from hifigemm.numerics.error_ratio import count_for_ratio, least_norm
from hifigemm.numerics.residues import (
    MAX_MODULI,
    count_for_bits,
    count_for_range,
    moduli_set,
)
from hifigemm.schemes import certify


@lru_cache(maxsize=1024)
def exact_count(is_complex: bool, left: int, right: int) -> int:
    """Fewest moduli that hold the exact product of operands with these required bits.

    The bits are those of `scaling.required_bits`. MAX_MODULI + 1 means that no number
    of moduli does.
    """
    if min(left, right) == -NO_BIT:
        return 2
    for count in range(2, MAX_MODULI + 1):
        if left + right <= 2 * scaling.gained_bits(count, is_complex):
            return count
    return MAX_MODULI + 1


def exact_bits(is_complex: bool, left: int, right: int) -> int:
    """Bits of the exact product of operands with these required bits."""
    if min(left, right) == -NO_BIT:
        return 1
    return max(left + right + moduli_set(2, is_complex).half_range.bit_length(), 1)


@lru_cache(maxsize=1024)
def expected_count(problem: Problem, target: Target) -> int:
    """Moduli for data of one size, and at least the fewest of any error ratio."""
    count = count_for_bits(wanted_bits(problem, target), problem.is_complex)
    if target.by_entry or math.isinf(target.r):
        return count
    smallest_range = least_norm(problem.terms) ** 2
    fewest = count_for_range(smallest_range, problem.is_complex) or MAX_MODULI
    return max(count, fewest)


def invariant_count(problem: Problem, target: Target) -> int:
    """Fewest moduli whose `scaling.normwise_error` keeps the target; it follows from k
    and the target alone.

    Raises PlanError: no number of moduli does, for more terms than any memory holds.
    """
    assert target.normwise is not None
    for count in range(2, MAX_MODULI + 1):
        if normwise_error(problem, count) <= target.normwise:
            return count
    raise PlanError(f"{MAX_MODULI} moduli are too few for {target} of {problem}")


def normwise_error(problem: Problem, count: int) -> float:
    """`scaling.normwise_error` of so many moduli."""
    terms = problem.terms
    bits = scaling.largest_bits(terms, moduli_set(count, problem.is_complex))
    return scaling.normwise_error(terms, bits)


def wanted_bits(problem: Problem, target: Target) -> int:
    """Bits of half_range to begin with, for data of one size.

    Such data have errors of sqrt(k) T against sums of T**2. A correctly rounded sum
    needs the rounding unit and 16 bits of its own below it, and so does a relative
    error; terms of either sign cost as much as sqrt(k) again.
    """
    bits = certify.bits_of_inverse(target.r)
    if target.by_entry:
        if target.correct:
            bits = problem.fmt.t
        return 2 * (bits + 16 + ceil_log2(problem.terms)) + 1
    return max(2 * (bits + 2) + ceil_log2(problem.terms) + 1, 1)


def bits_held_by(problem: Problem, count: int) -> int:
    """Largest sum of the required bits of both operands that `count` moduli hold."""
    return 2 * scaling.gained_bits(count, problem.is_complex)


def count_for(problem: Problem, target: Target, ratio: float) -> int | None:
    """Moduli that keep the target for operands with this error ratio; None if no number
    of moduli does.
    """
    count = count_for_ratio(problem.terms, target.r, ratio, problem.is_complex)
    return None if count is None else max(expected_count(problem, target), count)


def sufficient_count(problem: Problem, target: Target, evidence: Evidence) -> int:
    """Moduli that suffice by the evidence; MAX_MODULI + 1 where none do."""
    counts = [MAX_MODULI + 1]
    if evidence.required_bits is not None:
        counts.append(exact_count(problem.is_complex, *evidence.required_bits))
    if evidence.error_ratio is not None:
        count = count_for(problem, target, evidence.error_ratio)
        counts += [] if count is None else [count]
    return min(counts)
