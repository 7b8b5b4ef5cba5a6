"""The door of a product: operands and request, as the road takes them.

Each operand is asked once whose it is and what it holds. Behind the door stand arrays
of one library, which have NumPy's interface whatever library that is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hifigemm.exact_words import in_words
from hifigemm.exceptions import PlanError
from hifigemm.integers import are_integers, integer_dtype
from hifigemm.libraries import Library
from hifigemm.operands import Operands, as_operand, result_dtype
from hifigemm.request import OF_INTEGERS, Request


def admit(
    a: Any, b: Any, out: Any, library: Library, request: Request
) -> tuple[Operands, Request]:
    """Both operands of a product as the road takes them, and what is asked of it.

    Integers of classes that never wrap around, as those of Python, are to be exact.

    Raises PlanError: a kind of result that these operands have not. TypeError,
    ValueError: what no product takes.
    """
    x = as_operand(a, "a", library)
    y = as_operand(b, "b", library)
    hold_objects = x.dtype.kind == "O" or y.dtype.kind == "O"
    x, y = in_words(x, y)
    if are_integers(x.dtype, y.dtype, request.result):
        if hold_objects and request.accuracy is None:
            request = replace(request, accuracy="correct")
        dtype = integer_dtype(x.dtype, y.dtype, request, out, library)
        return Operands(x, y, library, dtype), request

    if hold_objects and x.dtype.kind in "biu" and y.dtype.kind in "biu":
        raise PlanError(
            "the operands hold integers beyond int64 and negative ones, whose products "
            'no dtype of NumPy has: ask for result="int64" or result="object"'
        )
    if request.result in OF_INTEGERS:
        kinds = (
            "no integers that int64 or uint64 holds"
            if hold_objects
            else f"{x.dtype} and {y.dtype}"
        )
        raise PlanError(
            f"result={request.result!r}, the operands are {kinds}: expected "
            '"array", "pair", "enclosure"'
        )
    return Operands(x, y, library, result_dtype(x.dtype, y.dtype)), request
