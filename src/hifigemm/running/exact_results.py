"""Pairs and enclosures, which say more of an exact product than the nearest float.

Idea
    On a CPU both are roundings of sums in three words, see numerics/three_words.py. On
    a GPU they are those of the integers behind residues, see numerics/integer_sums.py,
    or of sums term by term, see numerics/rounded_sums.py: one launch writes both.
    Elsewhere, and for entries that sums in three words do not settle, C is A B rounded
    once, and A B - C, rounded once as well, is a sum like any other: see `augmented`.
    It is the low part of a pair. Its sign says on which side of C the exact value lies.
Exact when
    Both are correctly rounded. For signs, A B - C is multiplied by a power of two, so
    that no difference of products of subnormal numbers rounds to zero. Results beyond
    the largest float stand for that one as C.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import cast

import numpy as np

from hifigemm.base.exceptions import PlanError
from hifigemm.model.accuracy import Accuracy
from hifigemm.model.plan import Plan, Report
from hifigemm.numerics.bits import Array
from hifigemm.numerics.integer_sums import Rounding
from hifigemm.numerics.special import nonfinite_vectors
from hifigemm.numerics.three_words import neighbours, open_block
from hifigemm.operands.operands import Operands
from hifigemm.running.augmented import Term
from hifigemm.running.executor import quiet
from hifigemm.running.request import Request
from hifigemm.running.road import (
    by_slices,
    product,
    product_plus,
    rounded_once,
    with_others,
)

Remainder = Callable[[Array, int], Array]
"""2**shift (A B - C), rounded once, as a function of C and the shift."""


def check_two_parts(
    result: str,
    accuracy: Accuracy,
    out: object,
    plan: Plan | None,
    out_dtype: object = None,
) -> None:
    """Raise PlanError where a pair or an enclosure does not go with the other arguments
    of a product.
    """
    if accuracy == "correct":
        accuracy = None
    others = {"accuracy": accuracy, "out": out, "plan": plan, "out_dtype": out_dtype}
    names = [name for name, value in others.items() if value is not None]
    if names:
        raise PlanError(
            f"result={result!r} is two arrays made from exact values: leave out "
            f"{', '.join(names)}"
        )


@quiet
def two_parts(
    operands: Operands, request: Request, key: Hashable = None
) -> tuple[tuple[Array, Array], Report]:
    """The pair or the enclosure of a product, with its report.

    `key` is what its executable is kept under, for calls of the same kind.

    Both parts are roundings of the same sums: in three words on a CPU, by launches on
    a GPU. Where these do not settle an entry, and elsewhere, they come from a product
    and from A B - C.

    Raises PlanError: a prepared operand.
    """
    if operands.are_prepared:
        raise PlanError(
            f"result={request.result!r} needs more products than a plan has: pass the array itself"
        )
    rounding = Rounding(request.result)
    at_once = rounded_once(operands, request, rounding, key=key)
    if at_once is None:
        return _by_products(operands, request)
    outcome, report = at_once
    first = outcome.values
    second = cast(Array, outcome.second)

    # The rows and columns of the entries that are not settled, by products.
    certified = outcome.certified
    if certified is not None and not certified.all():
        stack = operands.shapes.stack
        certified = certified.reshape(stack)
        first = first.reshape(stack)
        second = second.reshape(stack)
        block, rows, cols = open_block(certified)
        left, right = operands.stacks(operands.dtype)
        others = replace(operands, a=left[:, rows], b=right[:, :, cols])
        products, second_report = _by_products(others, by_slices(request))
        for part, values in zip((first, second), products, strict=True):
            part[block] = np.where(certified[block], part[block], values)
        report = with_others(report, second_report, certified, block)
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
        low, second = product_plus(operands, Term(c, -1.0), request, shift)
        reason = f"and {second.num_products} products for A B - C"
        report = report.with_product(second, 1.0, reason)
        return low

    if request.result == "pair":
        parts = pair(nearest, remainder)
        return parts, report

    # Entries have an enclosure if neither the row nor the column holds an Inf or NaN.
    left, right = operands.stacks(operands.dtype)
    has_nonfinite = nonfinite_vectors(left, 2) | nonfinite_vectors(right, 1)
    shapes = operands.shapes
    has_enclosure = np.broadcast_to(np.logical_not(has_nonfinite), shapes.stack)
    parts = enclosure(nearest, remainder, has_enclosure.reshape(shapes.result))
    return parts, report


def pair(nearest: Array, remainder: Remainder) -> tuple[Array, Array]:
    """(high, low): high is the nearest float, and low the remainder, rounded once; 0
    where high is not finite.
    """
    high = _components(nearest)
    zero = high.dtype.type(0)
    is_finite = np.isfinite(high)
    finite = np.where(is_finite, high, zero)
    low = _components(remainder(_of_components(finite, nearest), 0))
    return nearest, _of_components(np.where(is_finite, low, zero), nearest)


def enclosure(
    nearest: Array, remainder: Remainder, has_enclosure: Array
) -> tuple[Array, Array]:
    """(lower, upper): the floats next to the exact value, equal where it is one.

    Where the operands hold Inf or NaN, `has_enclosure` is False, and both are what IEEE
    arithmetic gives.
    """
    real = np.finfo(nearest.dtype)
    finite = np.where(has_enclosure, nearest, nearest.dtype.type(0))
    near = np.clip(_components(finite), -real.max, real.max)

    # With this power of two no difference rounds to zero, so that its sign is known.
    shift = real.nmant - real.minexp
    difference = remainder(_of_components(near, nearest), shift)
    side = np.sign(_components(difference))

    lower, upper = (_of_components(x, nearest) for x in neighbours(near, side))
    lower = np.where(has_enclosure, lower, nearest)
    upper = np.where(has_enclosure, upper, nearest)
    return lower, upper


def _components(x: Array) -> Array:
    """Real numbers, re and im side by side for complex ones, along one axis."""
    return np.ascontiguousarray(x, like=x).reshape(-1).view(x.real.dtype)


def _of_components(x: Array, like: Array) -> Array:
    """The array with these `_components`, in the dtype and shape of another one."""
    return x.view(like.dtype).reshape(like.shape)
