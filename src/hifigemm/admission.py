"""The door of a product: operands and request, as the road takes them.

Each operand is asked once whose it is and what it holds. Behind the door stand arrays
of one library, which have NumPy's interface whatever library that is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hifigemm.exact_words import in_words
from hifigemm.exceptions import PlanError
from hifigemm.libraries import Library
from hifigemm.numerics.bits import DType
from hifigemm.operands import Operands, as_operand, result_dtype
from hifigemm.request import OF_INTEGERS, Request

_DTYPES = {"int64": np.dtype(np.int64), "object": np.dtype(object)}
"""Dtypes of the kinds of results of integers."""


def admit(
    a: object, b: object, out: object, library: Library, request: Request
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


def are_integers(a: DType, b: DType, result: str) -> bool:
    """True if the product of operands of these dtypes is one of integers or bools.

    NumPy promotes int64 beside uint64 to float64: their product is one of integers
    where a kind of them is asked for.
    """
    if a.kind not in "biu" or b.kind not in "biu":
        return False
    return result != "array" or np.result_type(a, b).kind in "biu"


def integer_dtype(
    a: DType,
    b: DType,
    request: Request,
    out: object,
    library: Library,
) -> DType:
    """The dtype of a product of integers: that of an `out` of integers where every
    entry is to be exact.

    The product of bools is one of bools, and in an `out` of integers it is the exact
    sums that count.

    Raises PlanError: no kind of result for integers. TypeError: Python integers in
    tensors, an `out` of floats for bools whose sums are to be exact.
    """
    result = request.result
    if result not in ("array", *_DTYPES):
        raise PlanError(
            f'result={result!r}, the operands are {a} and {b}: expected "array", '
            '"int64" or "object"'
        )
    if result == "object" and library.name != "numpy":
        raise TypeError(
            f'result="object" of tensors of {a} and {b}: no tensor holds Python '
            "integers"
        )
    dtype = _DTYPES[result] if result in _DTYPES else np.result_type(a, b)
    if request.forbids_wrapping and out is not None and library.owns(out):
        out_dtype = library.asarray(out, "out").dtype.newbyteorder("=")
        if out_dtype.kind in "iu":
            return out_dtype
        if dtype.kind == "b" != out_dtype.kind:
            raise TypeError(
                f"out has dtype {out_dtype}; the product of bools is one of bools, and their exact sums are integers: "
                "expected bool or a dtype of integers"
            )
    return dtype
