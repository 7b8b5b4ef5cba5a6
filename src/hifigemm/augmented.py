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

import numpy as np

from hifigemm.numerics.bits import Array, scale_entries
from hifigemm.plan import Report

Multiply = Callable[[Array, Array], tuple[Array, Report]]


def as_factors(c: Array, power: int) -> tuple[Array, float] | None:
    """(c', s) in the dtype of c with c' s = c 2**power; None where rounding or overflow
    would change an entry of c'.
    """
    real = np.finfo(c.dtype)
    kept = min(max(power, real.minexp - real.nmant), real.maxexp - 1)
    if kept != power:
        parts = np.ascontiguousarray(c, like=c).view(real.dtype)
        moved = scale_entries(parts, power - kept)
        if not (
            (scale_entries(moved, kept - power) == parts) | ~np.isfinite(parts)
        ).all():
            return None
        c = moved.view(c.dtype).reshape(c.shape)
    return c, 2.0**kept


def sum_with_product(
    a: Array, b: Array, c: Array, s: float, multiply: Multiply
) -> tuple[Array, Report]:
    """a b + s c by a product that rounds correctly, with a report in which groups count
    by their columns.

    a (batch or 1, m, k), b (batch or 1, k, n) and c (batch, m, n) are of one dtype and
    device, s is a power of two, or minus one, that the dtype holds. `multiply` gives
    the product of a stack (batch, m, k + w) by (batch or 1, k + w, w) and its report.
    """
    (batch, m, n), k = c.shape, a.shape[2]
    given = np.ascontiguousarray(c, like=c).view(c.real.dtype)
    known = np.isfinite(given)
    finite = np.where(known, given, given.dtype.type(0)).view(c.dtype)
    values, products, reports = np.empty(c.shape, c.dtype, like=c), 0.0, []
    width = min(n, max(k // 8, 64))
    left = np.empty((batch, m, k + width), c.dtype, like=c)
    left[..., :k] = a
    for start in range(0, n, width):
        columns = slice(start, min(start + width, n))
        w = columns.stop - start
        left[..., k : k + w] = finite[..., columns]
        right = np.zeros((len(b), k + w, w), c.dtype, like=c)
        right[:, :k] = b[..., columns]
        right.reshape(len(b), -1)[:, k * w :: w + 1] = s
        values[..., columns], report = multiply(left[..., : k + w], right)
        reports.append(report)
        products += report.num_products * w / n
    rounded = values.view(given.dtype)
    values = np.where(known, rounded, rounded + given * given.dtype.type(s)).view(
        c.dtype
    )
    last = reports[-1]
    reason = f"{last.reason}; C among the terms, so that the sum is rounded once"
    seconds = sum(report.decision_seconds for report in reports)
    return values, last.changed(
        lambda d: replace(d, num_products=round(products), reason=reason), seconds
    )
