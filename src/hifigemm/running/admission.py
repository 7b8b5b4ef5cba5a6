"""The door of a product: operands and request, as the road takes them.

Each operand is asked once whose it is and what it holds. Behind the door stand arrays
of one library, which have NumPy's interface whatever library that is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hifigemm.base.exceptions import PlanError
from hifigemm.engines import engine_for
from hifigemm.libraries import Library, library_of
from hifigemm.libraries.array_like import holds_python_integers
from hifigemm.model.accuracy import Accuracy
from hifigemm.numerics.bits import Array, DType
from hifigemm.operands.exact_operands import in_one_dtype, in_words, why_no_integers
from hifigemm.operands.operands import Operands, Prepared, as_operand, result_dtype
from hifigemm.operands.out_dtype import dtype_of_product
from hifigemm.running.request import OF_INTEGERS, TWO_PARTS, Request
from hifigemm.schemes import Scheme

_DTYPES = {"int64": np.dtype(np.int64), "object": np.dtype(object)}
"""Dtypes of the kinds of results of integers."""


def admit(
    a: object, b: object, out: object, library: Library, request: Request
) -> tuple[Operands, Request]:
    """Both operands of a product as the road takes them, and what is asked of it.

    Integers that never wrap around, as those of Python, are to be exact: in arrays of
    objects, and in what is no array, such as lists.

    Raises PlanError: a kind of result that these operands have not. TypeError,
    ValueError: what no product takes.
    """
    x = as_operand(a, "a", library)
    y = as_operand(b, "b", library)
    request = request_of_prepared(x, y, request)
    i, j = in_words(x, y)
    if i.dtype.kind in "biu" and j.dtype.kind in "biu":
        never_wraps = _never_wraps(x, a) or _never_wraps(y, b)
        if never_wraps:
            i, j = in_one_dtype(i, j)
            if request.accuracy is None:
                request = replace(request, accuracy="correct")
        # NumPy promotes int64 beside uint64 to float64.
        promoted = np.result_type(i.dtype, j.dtype)
        if never_wraps or request.result != "array" or promoted.kind != "f":
            dtype = integer_dtype(i.dtype, j.dtype, request, out, library)
            dtype = dtype_of_product(dtype, request.out_dtype)
            return Operands(i, j, library, dtype), request

    if request.result in OF_INTEGERS:
        reason = f"the operands are {x.dtype} and {y.dtype}"
        if "O" in (x.dtype.kind, y.dtype.kind):
            reason = why_no_integers(x, "a") or why_no_integers(y, "b")
        raise PlanError(
            f"result={request.result!r}, {reason}: expected "
            '"array", "pair", "enclosure"'
        )
    dtype = result_dtype(i.dtype, j.dtype)
    return with_out_dtype(Operands(i, j, library, dtype), request)


def with_out_dtype(operands: Operands, request: Request) -> tuple[Operands, Request]:
    """The operands of a product in the dtype of the result, and the request without it;
    where it is narrower than the product's, operands and request are unchanged.
    """
    dtype = dtype_of_product(operands.dtype, request.out_dtype)
    if dtype == request.out_dtype:
        request = replace(request, out_dtype=None)
    return replace(operands, dtype=dtype), request


def request_of_prepared(
    a: Array | Prepared, b: Array | Prepared, request: Request
) -> Request:
    """What is asked of a product: by the call, or by its prepared operands.

    Raises PlanError: an operand on the other side, operands that were prepared for
    different requests, or beside other options of the call.
    """
    operands = {"a": a, "b": b}
    prepared = {name: x for name, x in operands.items() if isinstance(x, Prepared)}
    for name, x in prepared.items():
        side = "left" if name == "a" else "right"
        if x.side != side:
            raise PlanError(
                f"an operand prepared for the {x.side} is used on the {side}"
            )
        request.check_engine(x.plan)
        options = request.accuracy_and_scheme
        has_own = request.plan is None and request.result not in TWO_PARTS
        if options and has_own:
            raise PlanError(
                f"{name} was prepared with its own accuracy ({x.plan.target}) and scheme "
                f"({x.plan.scheme}); leave {options} out, or prepare it again"
            )
    requests = [x.asked for x in prepared.values() if x.asked is not None]
    asked = list(dict.fromkeys(requests))
    follows_plan = len(requests) < len(prepared)
    if follows_plan or request.plan is not None or not asked:
        return request
    if len(asked) > 1:
        texts = " and ".join(f"accuracy={p!r}, scheme={q!r}" for p, q in asked)
        raise PlanError(f"operands were prepared for different requests: {texts}")
    accuracy, scheme = asked[0]
    return replace(request, accuracy=accuracy, scheme=scheme)


def _never_wraps(x: Array | Prepared, source: object) -> bool:
    """True for an operand, made of this source, whose integers are to be exact."""
    if x.dtype.kind in "iu":
        return holds_python_integers(source)
    return x.dtype.kind == "O"


def integer_dtype(
    a: DType,
    b: DType,
    request: Request,
    out: object,
    library: Library,
) -> DType:
    """The dtype of a product of integers: that of an `out` of integers where every
    entry is to be exact, and int64 for integers of int64 beside those of uint64.

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
    if dtype.kind == "f":
        dtype = _DTYPES["int64"]
    if request.forbids_wrapping and out is not None and library.owns(out):
        out_dtype = library.asarray(out, "out").dtype.newbyteorder("=")
        if out_dtype.kind in "iu":
            return out_dtype
        if dtype.kind == "b" != out_dtype.kind:
            raise TypeError(
                f"out has dtype {out_dtype}; a product of bools is bool, or an exact sum in integers: expected bool or "
                "a dtype of integers"
            )
    return dtype


def check_options(
    accuracy: Accuracy,
    scheme: str | Scheme,
    engine: str | None,
    workspace: int | None,
    like: object,
) -> None:
    """Raise PlanError for options that no product of an array would take."""
    Request(accuracy, scheme, engine, None, workspace)
    if engine is not None:
        library = library_of(("an operand", like))
        engine_for(engine, library.name, library.device)
