"""What says more of an exact product than the nearest float: pairs and enclosures.

Idea
    C is A B rounded once, and A B - C, rounded once as well, is a sum like any other:
    see `augmented`. It is the low part of a pair. Its sign says on which side of C the
    exact value lies.
Exact when
    Both are correctly rounded. For signs, A B - C is multiplied by a power of two, so
    that no difference of products of subnormal numbers rounds to zero. Results beyond
    the largest float stand for that one as C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from hifigemm.exceptions import PlanError
from hifigemm.numerics.bits import Array

Result = Literal["array", "pair", "enclosure", "int64", "object"]
TWO_PARTS = "pair", "enclosure"

Rest = Callable[[Array, int], Array]
"""2**shift (A B - C), rounded once, of C and the shift."""


def check_two_parts(result: str, accuracy: Any, out: Any, plan: Any) -> None:
    """Raise PlanError where a pair or an enclosure does not go with the other arguments
    of a product.
    """
    given = {
        "accuracy": None if accuracy == "correct" else accuracy,
        "out": out,
        "plan": plan,
    }
    beside = [name for name, value in given.items() if value is not None]
    if beside:
        raise PlanError(
            f"result={result!r} is two arrays made from exact values: leave out {', '.join(beside)}"
        )


def pair(nearest: Array, rest: Rest) -> tuple[Array, Array]:
    """(high, low): high is the nearest float, and low that of what is left; 0 where
    high is not finite.
    """
    high = _components(nearest)
    known, zero = np.isfinite(high), high.dtype.type(0)
    low = rest(_of_components(np.where(known, high, zero), nearest), 0)
    return nearest, _of_components(np.where(known, _components(low), zero), nearest)


def enclosure(nearest: Array, rest: Rest, known: Array) -> tuple[Array, Array]:
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
        _components(rest(_of_components(near, nearest), real.nmant - real.minexp))
    )
    found = []
    for sign in (-1, 1):
        moved = np.where(
            side == sign, np.nextafter(near, near.dtype.type(sign * np.inf)), near
        )
        found.append(np.where(known, _of_components(moved, nearest), nearest))
    return found[0], found[1]


def _components(x: Array) -> Array:
    """Real numbers, re and im side by side for complex ones, along one axis."""
    return np.ascontiguousarray(x, like=x).reshape(-1).view(x.real.dtype)


def _of_components(x: Array, like: Array) -> Array:
    """The array with these `_components`, in the dtype and shape of another one."""
    return x.view(like.dtype).reshape(like.shape)
