"""What says more of an exact product than the nearest float: pairs and enclosures.

Idea
    On a CPU both are roundings of sums in three words, see numerics/three_words.py, and
    so they are on a GPU where products of residues take longer. Elsewhere, and for
    entries that these sums do not settle, C is A B rounded once, and A B - C, rounded
    once as well, is a sum like any other: see `augmented`. It is the low part of a
    pair. Its sign says on which side of C the exact value lies.
Exact when
    Both are correctly rounded. For signs, A B - C is multiplied by a power of two, so
    that no difference of products of subnormal numbers rounds to zero. Results beyond
    the largest float stand for that one as C.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from hifigemm.exceptions import PlanError
from hifigemm.numerics.bits import Array
from hifigemm.numerics.special import nonfinite_vectors
from hifigemm.numerics.three_words import open_block, remainders, rounded, signs
from hifigemm.operands import Operands
from hifigemm.plan import Report
from hifigemm.request import Request
from hifigemm.road import (
    by_slices,
    exact_sums,
    of_entries,
    product,
    product_plus,
    quiet,
    sums_of_terms,
    with_others,
)

Remainder = Callable[[Array, int], Array]
"""2**shift (A B - C), rounded once, of C and the shift."""


def check_two_parts(result: str, accuracy: Any, out: Any, plan: Any) -> None:
    """Raise PlanError where a pair or an enclosure does not go with the other arguments
    of a product.
    """
    others = {
        "accuracy": None if accuracy == "correct" else accuracy,
        "out": out,
        "plan": plan,
    }
    names = [name for name, value in others.items() if value is not None]
    if names:
        raise PlanError(
            f"result={result!r} is two arrays made from exact values: leave out "
            f"{', '.join(names)}"
        )


@quiet
def two_parts(
    operands: Operands, request: Request
) -> tuple[tuple[Array, Array], Report]:
    """The pair or the enclosure of a product, with its report.

    On a CPU both parts are roundings of the same sums in three words. Where these do
    not settle an entry, and elsewhere, they come from a product and from A B - C.

    Raises PlanError: a prepared operand.
    """
    if operands.are_prepared:
        raise PlanError(
            f"result={request.result!r} is made from more products than a plan has: "
            "pass the array itself"
        )
    by_terms = sums_of_terms(operands, request, result=request.result)
    if by_terms is not None:
        shape = operands.shapes.result
        (first, second), report = by_terms
        return (first.reshape(shape), cast(Array, second).reshape(shape)), report
    sums = exact_sums(operands, request)
    if sums is None:
        return _by_products(operands, request)

    # Both parts of all entries.
    words, report = sums
    fmt = operands.problem().fmt
    high, is_high_certain = rounded(words, fmt)
    if request.result == "pair":
        is_finite = np.isfinite(high)
        low, is_low_certain = rounded(remainders(words, high), fmt)
        is_low_certain |= ~is_finite
        parts = high, np.where(is_finite, low, 0)
    else:
        largest = np.finfo(high.dtype).max
        near = np.clip(high, -largest, largest)
        side, is_low_certain = signs(remainders(words, near))
        parts = _neighbours(near, side)
    first, second = (
        x.astype(high.dtype, copy=False).view(operands.dtype) for x in parts
    )
    is_certain = of_entries(is_high_certain & is_low_certain, first)

    # The rows and columns of the entries that are not settled, by products.
    if not is_certain.all():
        block, rows, cols = open_block(is_certain)
        left, right = operands.stacks(operands.dtype)
        others = replace(operands, a=left[:, rows], b=right[:, :, cols])
        products, second_report = _by_products(others, by_slices(request))
        for part, values in zip((first, second), products, strict=True):
            part[block] = np.where(is_certain[block], part[block], values)
        report = with_others(report, second_report, is_certain, block)
    shape = operands.shapes.result
    return (first.reshape(shape), second.reshape(shape)), report


def _by_products(
    operands: Operands, request: Request
) -> tuple[tuple[Array, Array], Report]:
    """The pair or the enclosure by a product C and by A B - C."""
    values, report = product(operands, request)
    nearest = cast(Array, values)

    def remainder(c: Array, shift: int) -> Array:
        nonlocal report
        if operands.are_empty:
            return np.zeros_like(nearest)
        low, second = product_plus(operands, c, -1.0, request, shift)
        reason = f"and {second.num_products} products for A B - C"
        report = report.with_product(second, 1.0, reason)
        return low

    if request.result == "pair":
        parts = pair(nearest, remainder)
        return parts, report

    # An enclosure is known where neither the row nor the column holds an Inf or NaN.
    left, right = operands.stacks(operands.dtype)
    is_unknown = nonfinite_vectors(left, 2) | nonfinite_vectors(right, 1)
    shapes = operands.shapes
    known = np.broadcast_to(np.logical_not(is_unknown), shapes.stack)
    parts = enclosure(nearest, remainder, known.reshape(shapes.result))
    return parts, report


def pair(nearest: Array, remainder: Remainder) -> tuple[Array, Array]:
    """(high, low): high is the nearest float, and low that of what is left; 0 where
    high is not finite.
    """
    high = _components(nearest)
    known, zero = np.isfinite(high), high.dtype.type(0)
    low = remainder(_of_components(np.where(known, high, zero), nearest), 0)
    return nearest, _of_components(np.where(known, _components(low), zero), nearest)


def enclosure(
    nearest: Array, remainder: Remainder, known: Array
) -> tuple[Array, Array]:
    """(lower, upper): the floats next to the exact value, equal where it is one.

    Where the operands hold Inf or NaN, `known` is False, and both are what IEEE
    arithmetic gives.
    """
    real = np.finfo(nearest.dtype)
    near = np.clip(
        _components(np.where(known, nearest, nearest.dtype.type(0))),
        -real.max,
        real.max,
    )
    side = np.sign(
        _components(remainder(_of_components(near, nearest), real.nmant - real.minexp))
    )
    lower, upper = (
        np.where(known, _of_components(x, nearest), nearest)
        for x in _neighbours(near, side)
    )
    return lower, upper


def _neighbours(near: Array, side: Array) -> tuple[Array, Array]:
    """The floats below and above values that lie on this side of their nearest float,
    -1, 0 or 1; both are that float for 0.
    """
    infinity = near.dtype.type(np.inf)
    lower = np.where(side < 0, np.nextafter(near, -infinity), near)
    upper = np.where(side > 0, np.nextafter(near, infinity), near)
    return lower, upper


def _components(x: Array) -> Array:
    """Real numbers, re and im side by side for complex ones, along one axis."""
    return np.ascontiguousarray(x, like=x).reshape(-1).view(x.real.dtype)


def _of_components(x: Array, like: Array) -> Array:
    """The array with these `_components`, in the dtype and shape of another one."""
    return x.view(like.dtype).reshape(like.shape)
