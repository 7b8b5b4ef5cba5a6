"""A B + s C rounded once, s a power of two: the product of operands with more columns
and rows.

Idea
    A B + s C = [A C] [B; s I]. Columns are taken in groups of w, which add w terms to
    the k there are. Where s is no number of the dtype, C takes what s is too large or
    too small by.
Exact when
    The product of the augmented operands is correctly rounded, and nothing of C is lost
    by what it takes. Real components of C that are Inf or NaN are added to the rounded
    sum of the others, and end where IEEE arithmetic puts them.
Cost
    (k + w) / k of the product with w = max(k / 8, 64), or n where that is less; A is
    split again for each group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hifigemm.numerics.bits import Array, scale_entries
from hifigemm.plan import Decision, Report

Multiply = Callable[[Array, Array], tuple[Array, Report]]
"""The correctly rounded product of two stacks, with its report."""


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
    components = np.ascontiguousarray(c, like=c).view(real.dtype)
    scaled = scale_entries(components, excess)
    is_unchanged = scale_entries(scaled, -excess) == components
    if not (is_unchanged | ~np.isfinite(components)).all():
        return None
    return Term(scaled.view(c.dtype).reshape(c.shape), s)


def sum_with_product(
    a: Array, b: Array, addend: Term, multiply: Multiply
) -> tuple[Array, Report]:
    """a b + s c by a product that rounds correctly, with a report in which groups count
    by their columns.

    a (batch or 1, m, k), b (batch or 1, k, n) and c (batch, m, n) are of one dtype and
    device. `multiply` gives the product of a stack (batch, m, k + w) by
    (batch or 1, k + w, w) and its report.
    """
    c, s = addend
    batch, m, n = c.shape
    k = a.shape[2]

    # Inf and NaN of C are added at the end.
    components = np.ascontiguousarray(c, like=c).view(c.real.dtype)
    real = components.dtype.type
    is_finite = np.isfinite(components)
    finite = np.where(is_finite, components, real(0)).view(c.dtype)

    # [A C] is laid out for a group of w columns of C at a time.
    width = min(n, max(k // 8, 64))
    left = np.empty((batch, m, k + width), c.dtype, like=c)
    left[..., :k] = a
    values = np.empty(c.shape, c.dtype, like=c)
    num_products = 0.0
    reports = []
    for start in range(0, n, width):
        columns = slice(start, min(start + width, n))
        w = columns.stop - start
        left[..., k : k + w] = finite[..., columns]
        # [B; s I]: the diagonal of the last w rows holds s.
        right = np.zeros((len(b), k + w, w), c.dtype, like=c)
        right[:, :k] = b[..., columns]
        right.reshape(len(b), -1)[:, k * w :: w + 1] = s
        values[..., columns], report = multiply(left[..., : k + w], right)
        reports.append(report)
        num_products += report.num_products * w / n

    sums = values.view(components.dtype)
    sums = np.where(is_finite, sums, sums + components * real(s))

    # The report of the last group stands for all, with the products of each.
    last = reports[-1]
    reason = f"{last.reason}; C among the terms, so that the sum is rounded once"
    seconds = sum(report.decision_seconds for report in reports)

    def of_all_groups(d: Decision) -> Decision:
        return replace(d, num_products=round(num_products), reason=reason)

    return sums.view(c.dtype), last.changed(of_all_groups, seconds)
