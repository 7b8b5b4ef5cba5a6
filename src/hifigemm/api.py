"""matmul, gemm, make_plan, prepare: the whole flow from operands to a result and its report."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from hifigemm.accuracy import Accuracy, Relative, Target
from hifigemm.augmented import as_factors, sum_with_product
from hifigemm.engine import Engine, Outcome
from hifigemm.engines import engine_for
from hifigemm.exact_results import TWO_PARTS, Result, check_two_parts, enclosure, pair
from hifigemm.exact_words import in_words, one_word
from hifigemm.exceptions import PlanError
from hifigemm.executor import execute, in_steps, whole_split
from hifigemm.formats import INT8
from hifigemm.integers import are_integers, integer_dtype, integer_product
from hifigemm.interop import kernels
from hifigemm.libraries import Library, library_of
from hifigemm.numerics.bits import Array, scale_entries
from hifigemm.numerics.bounds import are_ordinary
from hifigemm.numerics.epilogue import PLAIN, Epilogue, combine, frexp
from hifigemm.numerics.special import nonfinite_vectors
from hifigemm.numerics.subnormals import ieee_arithmetic, is_ieee
from hifigemm.operands import (
    Prepared,
    Shapes,
    as_addend,
    as_operand,
    as_out,
    check_addend,
    check_out,
    check_scalars,
    common_narrow,
    converted,
    own_stack,
    result_dtype,
    shapes_of,
    stacked,
    usable_split,
)
from hifigemm.plan import Decision, Evidence, Plan, Report
from hifigemm.planner import Options, check_plan, check_strict, for_problem, make, reusable, steady, workspace_limit
from hifigemm.problem import Problem
from hifigemm.programs import keep, key_of, repeat
from hifigemm.schemes import Native, Ozaki1, Scheme
from hifigemm.settings import decision_log, is_strict
from hifigemm.transforms import belongs_to_jax, belongs_to_torch, check_tensor, check_untraced, opaque

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor
    from typing_extensions import Unpack

    from hifigemm.signatures import (
        Addend,
        AnyAddend,
        AnyTensor,
        Arrays,
        Asked,
        No,
        Operand,
        Out,
        Policy,
        Scalar,
        Scaled,
        SchemeName,
        TAddend,
        Tensors,
        TwoParts,
        Yes,
    )

_quiet = np.errstate(all="ignore")
"""Underflow, overflow and NaN are part of the work here, whatever the caller's settings are."""


@overload
def matmul(
    a: Arrays, b: Arrays, *, out: None = None, return_report: No = False, **options: Unpack[Asked]
) -> NDArray[Any]: ...
@overload
def matmul(
    a: Arrays, b: Arrays, *, out: None = None, return_report: Yes, **options: Unpack[Asked]
) -> tuple[NDArray[Any], Report]: ...
@overload
def matmul(a: Arrays, b: Arrays, *, out: None = None, return_report: bool, **options: Unpack[Asked]) -> Any: ...
@overload
def matmul(
    a: Tensors, b: Tensors, *, out: None = None, return_report: No = False, **options: Unpack[Asked]
) -> Tensor: ...
@overload
def matmul(
    a: Tensors, b: Tensors, *, out: None = None, return_report: Yes, **options: Unpack[Asked]
) -> tuple[Tensor, Report]: ...
@overload
def matmul(a: Tensors, b: Tensors, *, out: None = None, return_report: bool, **options: Unpack[Asked]) -> Any: ...
@overload
def matmul(
    a: Arrays, b: Arrays, *, result: TwoParts, return_report: No = False, **options: Unpack[Policy]
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def matmul(
    a: Tensors, b: Tensors, *, result: TwoParts, return_report: No = False, **options: Unpack[Policy]
) -> tuple[Tensor, Tensor]: ...
@overload
def matmul(a: Operand, b: Operand, *, result: TwoParts, return_report: bool, **options: Unpack[Policy]) -> Any: ...
@overload
def matmul(a: Operand, b: Operand, *, out: Out, return_report: No = False, **options: Unpack[Asked]) -> Out: ...
@overload
def matmul(a: Operand, b: Operand, *, out: Out, return_report: Yes, **options: Unpack[Asked]) -> tuple[Out, Report]: ...
@overload
def matmul(a: Operand, b: Operand, *, out: Out, return_report: bool, **options: Unpack[Asked]) -> Any: ...
def matmul(
    a: Any,
    b: Any,
    *,
    accuracy: Accuracy = None,
    scheme: str | Scheme = "auto",
    out: Any = None,
    engine: str | None = None,
    plan: Plan | None = None,
    workspace: int | None = None,
    result: Result = "array",
    return_report: bool = False,
) -> Any:
    """A B to an accuracy that is asked for and kept.

    Parameters
    ----------
    a, b : array_like or Prepared
        float32, float64, complex64 or complex128, shapes as for `numpy.matmul`: vectors, matrices, stacks that
        broadcast, empty dimensions, any strides and byte order. Mixed dtypes promote as in NumPy. float16, and bfloat16
        of PyTorch and ml_dtypes, are taken too: the result of two such operands is float32, to the same accuracies as
        for float32 operands. The product of integers or bools has the promoted dtype and wraps around where an entry
        lies beyond it, as that of `numpy.matmul`; with an accuracy, or a kind of `result`, every entry is exact. (NumPy
        makes float64 of int64 beside uint64; a kind of `result` makes their product exact.) What would be rounded as an
        array, or lose a mask, a unit or labels, is refused. Both are of one library, NumPy, PyTorch, CuPy or JAX, and
        of one device; the result is too. Matrices of mpmath and python-flint, and lists or arrays of their numbers and
        those of gmpy2, of fractions, decimals and large integers, are taken where each entry is the sum of up to four
        float64 numbers, beside one another and arrays of NumPy. Integers among them that int64 or uint64 holds are
        integers, whose product does not wrap around: it is exact or an error.
    accuracy : None, float, "fp32", "fp64", "correct" or Relative
        A float r promises |C - AB| <= r |A||B| + u |AB| in every entry, u the unit roundoff of the result's dtype,
        whatever the exponents of the data (for results in the subnormal range, and half the smallest subnormal).
        "fp32" and "fp64" are r = max(4, sqrt(k)/4) u of that format, at which a native product in that format is
        accepted too: plan and report then state its worst case, k u / (1 - k u) with 2 k for complex operands, and
        `strict` refuses it where that exceeds r. None is the level of the result's dtype. "correct": every real
        component is the exact value rounded once, to nearest, ties to even. For complex operands the promise holds for
        re and im, with |A||B| of the real embedding. `Relative` is |C - AB| <= r |AB|, by the exact schemes.
    scheme : "auto", "native", "multiword", "corrected", "ozaki1", "ozaki2", "double-double", or ``Ozaki1("fp64")``
        A scheme is obeyed. Where it has an explicit count, or is one of words ("multiword", "corrected") or of a mode
        of Ozaki scheme I, and no accuracy is given, only what its report states is promised.
    out : array, optional
        Receives the result; may be one of the operands. An array of NumPy may have a wider dtype, or be a stack that
        the result fills by broadcasting, as in `numpy.matmul`. Where integers are to be exact it may have any dtype of
        integers, which every entry then has to fit; of bools it takes the exact sums.
    engine : str, optional
        See `engines`; None takes the one of the operands.
    plan : Plan, optional
        From `make_plan`; replaces accuracy, scheme and engine.
    workspace : int, optional
        Limit in bytes for what a scheme holds besides the operands, in the result's dtype and without Inf and NaN, and
        the result; what a library's own product takes does not count. Changes no bit of an exact scheme. None takes a
        multiple of operands and result, but of large products no more than half of what memory is free besides them,
        where no bit depends on it. It holds for each product behind a pair or an enclosure, and not for integers.
    result : "array", "pair", "enclosure", "int64" or "object"
        "pair": (high, low), high the correctly rounded product and low what is left of the exact one, rounded once.
        "enclosure": (lower, upper), the two neighbouring floats between which the exact value lies, equal where it is a
        float. Both by component of complex entries, at several times the cost of "correct", ten to twenty-five on a
        CPU, and not for prepared operands. "int64" and "object" are for operands of integers or bools, whatever NumPy
        promotes them to: the exact entries in int64, so that int8 operands do not wrap around at 127, or as Python
        integers of any size, the latter for arrays of NumPy alone.
    return_report : bool
        Return (result, Report). On a GPU a call at the level of the result, or with a forced count, never waits for the
        device, so that it can be captured in a CUDA graph: the device decides by the operands between steps that all
        keep the bound of the plan, and the report waits when somebody looks at it. Tighter accuracies and "correct"
        wait once. So do products of integers, for their largest magnitudes.

    Returns
    -------
    array, or (array, Report); a pair of arrays in the place of the array for "pair" and "enclosure"

    Raises
    ------
    PlanError
        Unknown options, a plan for other operands, a workspace too small.
    AccuracyError
        A forced scheme cannot keep the accuracy for these operands, or strict mode refuses the native product that
        "auto" would take at less: see `strict`. An entry of integers that is to be exact lies beyond the dtype of the
        result; the message has the index and the value of the first, and how many there are. Or the thread flushes
        subnormal numbers to zero, as callbacks of JAX and libraries built with -ffast-math let it, or does not round to
        nearest, as libraries of interval arithmetic ask, and its mode cannot be lifted for the call: on x86-64 and
        aarch64 under Linux and macOS it is, and restored.
    ValueError, TypeError
        Shapes or dtypes that do not fit; tensors that PyTorch differentiates, batches or traces.

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> a = np.array([[1e16, 1.0, -1e16]])
    >>> hg.matmul(a, np.ones((3, 1)), accuracy="correct")
    array([[1.]])
    >>> i = np.array([[100, 27]], np.int8)
    >>> hg.matmul(i, i.T), hg.matmul(i, i.T, result="int64"), hg.matmul(i.astype(np.uint64) << 57, i.T, result="object")
    (array([[-23]], dtype=int8), array([[10729]]), array([[1546211852865857650688]], dtype=object))
    """
    is_array = isinstance(result, str) and result == "array"
    is_plain = plan is None and out is None and engine is None and is_array and not return_report
    if is_plain and type(a) is not np.ndarray:
        if belongs_to_torch(a, b):
            from hifigemm.interop import torch_operators

            return torch_operators.matmul(a, b, accuracy, scheme, workspace)
        if belongs_to_jax(a, b):
            from hifigemm.interop import jax_primitive

            return jax_primitive.matmul(a, b, accuracy, scheme, workspace)
    return product_of_numbers(a, b, accuracy, scheme, out, engine, plan, workspace, return_report, result)


@opaque
def product_of_numbers(
    a: Any, b: Any, accuracy: Accuracy = None, scheme: str | Scheme = "auto", out: Any = None,
    engine: str | None = None, plan: Plan | None = None, workspace: int | None = None, return_report: bool = False,
    result: Result = "array", mirror: str = "",
) -> Any:  # fmt: skip
    """`matmul` of operands of which nothing but their numbers is asked; `mirror` as for `Problem`."""
    if not isinstance(result, str):
        raise PlanError(f'result={result!r}: expected "array", "pair", "enclosure", "int64" or "object"')
    key, repeats = None, plan is None and not return_report and result == "array"
    if result in TWO_PARTS:
        check_two_parts(result, accuracy, out, plan)
        accuracy = "correct"
    elif repeats:
        key = key_of(a, b, out, accuracy, scheme, engine, workspace)
        key = key if key is None or not mirror else (mirror, key)
        if key is not None and (again := repeat(key, a, b, out)) is not None:
            return again
    options = Options(accuracy, scheme, engine, plan, workspace, return_report, key)
    asked = None if result == "array" else result
    check_untraced({"a": a, "b": b}, engine=engine, plan=plan, out=out, result=asked, return_report=return_report)
    out = as_out(out)
    library = library_of(("a", a), ("b", b), ("out", out))
    found: tuple[Array | None, Report]
    with ieee_arithmetic(), library.active():
        given = as_operand(a, "a", library), as_operand(b, "b", library)
        a, b = in_words(*given)
        if library.name == "cupy" and repeats and out is None and not mirror:
            key, again = _repeated_of_cupy(a, b, library, accuracy, scheme, engine, workspace)
            if again is not None:
                return again
            options = replace(options, key=key)
        shapes, whole = shapes_of(a.shape, b.shape), are_integers(a, b, result)
        of_objects = "O" in (given[0].dtype.kind, given[1].dtype.kind)
        if whole and accuracy is None and of_objects:
            options = replace(options, accuracy="correct")  # integers of classes that never wrap around
        if of_objects and not whole and a.dtype.kind in "biu" and b.dtype.kind in "biu":
            raise PlanError(
                "the operands hold integers beyond int64 and negative ones, whose products no dtype of NumPy has: ask "
                'for result="int64" or result="object"'
            )
        if whole:
            dtype = integer_dtype(_array_of(a), _array_of(b), options, out, library, result=result)
        elif result == "array" or result in TWO_PARTS:
            dtype = result_dtype(a.dtype, b.dtype)
        else:
            expected = ", ".join(f'"{kind}"' for kind in ("array", *TWO_PARTS))
            kinds = "no integers that int64 or uint64 holds" if of_objects else f"{a.dtype} and {b.dtype}"
            raise PlanError(f"result={result!r}, the operands are {kinds}: expected {expected}")
        if out is not None:
            check_out(out, shapes, dtype, library)
        if result in TWO_PARTS:
            if isinstance(a, Prepared) or isinstance(b, Prepared):
                raise PlanError(f"result={result!r} is made from more products than a plan has: pass the array itself")
            parts, report = _two_parts(result, a, b, options, library, dtype)
            both = tuple(library.to_native(x) for x in parts)
            return (both, report) if return_report else both
        if whole:
            found = integer_product(_array_of(a), _array_of(b), shapes, options, library, dtype, result=result)
        else:
            found = _product(a, b, options, library, dtype=dtype, out=out, mirror=mirror)
        return _deliver(*found, library, out, return_report)


def _repeated_of_cupy(a: Array | Prepared, b: Array | Prepared, library: Library, *asked: Any) -> tuple[Hashable, Any]:
    """The key of a product of CuPy arrays, which is that of their tensors, and the product as `repeat` makes it."""
    from hifigemm.engines.device_array import unwrap, wrap

    if isinstance(a, Prepared) or isinstance(b, Prepared):
        return None, None
    tensors = unwrap(a), unwrap(b)
    key = key_of(*tensors, None, *asked)
    made = None if key is None else repeat(key, *tensors, None)
    return key, None if made is None else library.to_native(wrap(made))


@_quiet
def _two_parts(
    result: Result, a: Array, b: Array, options: Options, library: Library, dtype: np.dtype[Any]
) -> tuple[tuple[Array, Array], Report]:
    """The pair or the enclosure of a product, see `exact_results`."""
    found, report = _product(a, b, options, library, dtype=dtype)
    nearest, shapes = cast(Array, found), shapes_of(a.shape, b.shape)

    def rest(c: Array, shift: int) -> Array:
        nonlocal report
        if 0 in (*a.shape, *b.shape):
            return np.zeros_like(nearest)
        made, second = _sum_with_product(a, b, c, -1.0, options, library, shift, dtype)
        more, reason = second.num_products, f"; and {second.num_products} products for A B - C"
        seconds = report.decision_seconds + second.decision_seconds
        report = report.changed(
            lambda d: replace(d, num_products=d.num_products + more, reason=d.reason + reason), seconds
        )
        return made

    if result == "pair":
        parts = pair(nearest, rest)
        return parts, report
    stacks = _stacks(a, b, shapes, dtype)
    unknown = nonfinite_vectors(stacks[0], 2) | nonfinite_vectors(stacks[1], 1)
    known = np.broadcast_to(np.logical_not(unknown), (shapes.count, shapes.left[1], shapes.right[2]))
    parts = enclosure(nearest, rest, known.reshape(shapes.result))
    return parts, report


@overload
def gemm(
    a: Arrays, b: Arrays, c: Addend = None, *, out: None = None, return_report: No = False, **options: Unpack[Scaled]
) -> NDArray[Any]: ...
@overload
def gemm(
    a: Arrays, b: Arrays, c: Addend = None, *, out: None = None, return_report: Yes, **options: Unpack[Scaled]
) -> tuple[NDArray[Any], Report]: ...
@overload
def gemm(
    a: Arrays, b: Arrays, c: Addend = None, *, out: None = None, return_report: bool, **options: Unpack[Scaled]
) -> Any: ...
@overload
def gemm(
    a: Tensors, b: Tensors, c: TAddend = None, *, out: None = None, return_report: No = False, **options: Unpack[Scaled]
) -> Tensor: ...
@overload
def gemm(
    a: Tensors, b: Tensors, c: TAddend = None, *, out: None = None, return_report: Yes, **options: Unpack[Scaled]
) -> tuple[Tensor, Report]: ...
@overload
def gemm(
    a: Tensors, b: Tensors, c: TAddend = None, *, out: None = None, return_report: bool, **options: Unpack[Scaled]
) -> Any: ...
@overload
def gemm(
    a: Operand, b: Operand, c: AnyAddend = None, *, out: Out, return_report: No = False, **options: Unpack[Scaled]
) -> Out: ...
@overload
def gemm(
    a: Operand, b: Operand, c: AnyAddend = None, *, out: Out, return_report: Yes, **options: Unpack[Scaled]
) -> tuple[Out, Report]: ...
@overload
def gemm(
    a: Operand, b: Operand, c: AnyAddend = None, *, out: Out, return_report: bool, **options: Unpack[Scaled]
) -> Any: ...
def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: Scalar = 1.0,
    beta: Scalar = 0.0,
    trans_a: Literal["N", "T", "C"] = "N",
    trans_b: Literal["N", "T", "C"] = "N",
    accuracy: Accuracy = None,
    scheme: str | Scheme = "auto",
    out: Any = None,
    engine: str | None = None,
    plan: Plan | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """alpha op(A) op(B) + beta C, as in the BLAS; C is untouched unless it is passed as `out`.

    Parameters
    ----------
    a, b : array_like
        As for `matmul`, with at least two dimensions where they are transposed. Integers and bools only where another
        operand makes the result a floating-point one.
    c : array_like, optional
        Broadcasts to the result's shape. Not read when beta is 0.
    alpha, beta : scalar
        The power of two in alpha = r 2**e, the larger component of r between 1 and 2, scales the exact product before
        its one rounding, T = 2**e op(A) op(B). r T + beta C, or r T, is then evaluated with error-free transformations
        in every real component and rounded, so that it errs by u |result| beyond the error of T, and by terms of second
        order: 16 u**2 times the magnitudes of r T and beta C, and some of the smallest subnormal number. That holds for
        finite scalars of every size. T itself may overflow though the result would not, unless the accuracy is
        "correct" or a complex alpha meets operands in the memory of the host. alpha = 0 does not read A and B.
    trans_a, trans_b : "N", "T" or "C"
        Nothing, transpose, conjugate transpose of the last two axes.
    accuracy, scheme, out, engine, plan, workspace, return_report
        As for `matmul`; the accuracy and the bound are those of T. "correct" is promised for the result, that is
        alpha T + beta C rounded once, where alpha and beta are real powers of two with either sign (beta may be 0) and
        neither a plan nor a prepared operand is given: a residual B - A X, say. Where beta / alpha lies beyond the
        range of the dtype, from 2**-149 to 2**127 for float32, C has to hold what it lies beyond by; the report says
        whether the result is correct.

    Returns
    -------
    array, or (array, Report)
    """
    policy = accuracy, scheme, workspace
    if type(alpha) is not float or type(beta) is not float:
        alpha, beta = as_scalar(alpha, "alpha"), as_scalar(beta, "beta")
    if beta != 0 and c is None:
        raise ValueError(f"beta = {beta} needs c")
    if plan is None and out is None and engine is None and not return_report and type(a) is not np.ndarray:
        read = (a, b) if c is None or beta == 0 else (a, b, c)
        if belongs_to_torch(*read) and min(a.dim(), b.dim()) > 1:
            from hifigemm.interop import torch_operators

            x, y = (t.mT if how == "T" else t.mH if how == "C" else t for t, how in ((a, trans_a), (b, trans_b)))
            return torch_operators.gemm(x, y, read[2] if len(read) > 2 else None, *policy, alpha=alpha, beta=beta)
        if belongs_to_jax(a, b) and all(belongs_to_jax(x) or type(x) in (bool, int, float, complex) for x in read[2:]):
            from hifigemm.interop import jax_primitive

            return jax_primitive.gemm(a, b, c, *policy, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b)
    taken = {"alpha": alpha, "beta": beta, "trans_a": trans_a, "trans_b": trans_b, "out": out, "engine": engine}
    return gemm_of_numbers(a, b, c, *policy, plan=plan, return_report=return_report, **taken)


@opaque
@ieee_arithmetic()
def gemm_of_numbers(
    a: Any, b: Any, c: Any = None, accuracy: Accuracy = None, scheme: str | Scheme = "auto",
    workspace: int | None = None, *, alpha: Scalar = 1.0, beta: Scalar = 0.0,
    trans_a: Literal["N", "T", "C"] = "N", trans_b: Literal["N", "T", "C"] = "N", out: Any = None,
    engine: str | None = None, plan: Plan | None = None, return_report: bool = False,
) -> Any:  # fmt: skip
    """`gemm` of operands of which nothing but their numbers is asked."""
    options = Options(accuracy, scheme, engine, plan, workspace, return_report)
    check_untraced({"a": a, "b": b, "c": c}, engine=engine, plan=plan, out=out, return_report=return_report)
    alpha, beta, out = as_scalar(alpha, "alpha"), as_scalar(beta, "beta"), as_out(out)
    library = library_of(("a", a), ("b", b), ("c", None if beta == 0 else c), ("out", out))
    with library.active():
        a, b = in_words(as_operand(a, "a", library), as_operand(b, "b", library), (trans_a, trans_b), integers=False)
        a, b = _transposed(a, trans_a, "a"), _transposed(b, trans_b, "b")
        kind = type(c)
        c = None if beta == 0 else one_word(as_addend(c, library), "c")
        shapes = shapes_of(a.shape, b.shape)
        addends = [] if c is None else [kind() if kind in (bool, int, float, complex) else c.dtype]
        dtype = result_dtype(a.dtype, b.dtype, *addends)
        check_scalars(dtype, alpha=alpha, beta=beta)
        if out is not None:
            check_out(out, shapes, dtype, library)
        if c is not None:
            check_addend(c.shape, shapes.result)
            c = converted(c, dtype)
        mantissa, shift = frexp(alpha)
        if mantissa == -1.0:
            a, b = (a, _negated(b, dtype)) if _keeps_split(a) else (_negated(a, dtype), b)  # so that -0 is right
            mantissa = 1.0
        plans = _plans(plan, a, b)
        is_relative = isinstance(accuracy, Relative) or any(p.target.relative is not None for p in plans)
        once = None
        if (accuracy == "correct" or is_relative) and not plans and mantissa == 1.0:
            once = _rounded_once(a, b, c, beta, shift)
        combined = alpha != 0 and (c is not None or mantissa != 1.0) and 0 not in (*a.shape, *b.shape)
        if is_relative and once is None and combined:
            raise PlanError(
                f"alpha = {alpha}, beta = {beta}: a relative error is promised of A B, and of alpha A B + beta C where "
                "both are powers of two, of either sign, that C can be multiplied by, without plans and prepared "
                "operands"
            )
        if once is not None:
            found = _sum_with_product(a, b, *once, options, library, shift, dtype)
            return _deliver(*found, library, out, return_report)
        epilogue = PLAIN if mantissa == 1.0 and c is None else Epilogue(mantissa, beta, c)
        idle = "alpha is 0: A and B are not read" if alpha == 0 else ""
        reused = out if c is None and not isinstance(mantissa, complex) else None
        result, report = _product(a, b, options, library, shift, dtype, idle, epilogue, reused)
        # A default call does not wait for a GPU, "correct" may.
        is_complex, may_wait = isinstance(mantissa, complex), library.on_host or accuracy == "correct"
        if not idle and ((is_complex and may_wait) or (c is not None and accuracy == "correct")):
            result = _without_overflow(cast(Array, result), a, b, epilogue, options, library, shift)
        if not (epilogue.idle or (idle and c is None)):
            is_product = mantissa == 1.0 and c is None  # scaled by a power of two alone, so not rounded again

            def applied(d: Decision) -> Decision:
                return replace(d, correct=d.correct and is_product, reason=f"{d.reason}; alpha, beta applied")

            report = report.changed(applied)
        return _deliver(result, report, library, out, return_report)


@_quiet
def _without_overflow(
    result: Array,
    a: Array | Prepared,
    b: Array | Prepared,
    epilogue: Epilogue,
    options: Options,
    library: Library,
    shift: int,
) -> Array:
    """r T + beta C, where a finite T overflowed, from a smaller one, instead of inf - inf.

    What C loses on the way lies far below the last place of such a T.
    """
    if np.isfinite(result).all():
        return result
    real = np.finfo(result.dtype)
    down, at = int(0.98 * real.maxexp), shift

    def product() -> Array:
        return cast(Array, _product(a, b, options, library, at, result.dtype)[0])

    beyond = ~np.isfinite(product())
    while beyond.any() and at > -real.maxexp - 80:
        at -= down
        smaller = epilogue.of_c_times_power(at - shift)
        t = product()
        made = scale_entries(combine(t, epilogue.alpha, smaller.c, smaller.beta), shift - at)
        known = beyond & np.isfinite(t)
        result, beyond = np.where(known, made, result), beyond & ~known
    return result


@_quiet
def _rounded_once(
    a: Array | Prepared, b: Array | Prepared, c: Array | None, beta: complex, shift: int
) -> tuple[Array, float] | None:
    """(C', s) with 2**shift (A B + s C') = 2**shift A B + beta C where that can be a product; else None."""
    if c is None or 0 in c.shape or isinstance(a, Prepared) or isinstance(b, Prepared) or 0 in (*a.shape, *b.shape):
        return None
    mantissa, exponent = frexp(beta)
    factors = as_factors(c, exponent - shift) if mantissa in (1.0, -1.0) else None
    return None if factors is None else (factors[0], factors[1] * mantissa.real)


@_quiet
def _sum_with_product(
    a: Array, b: Array, c: Array, s: float, options: Options, library: Library, shift: int, dtype: np.dtype[Any]
) -> tuple[Array, Report]:
    """2**shift (A B + s C), rounded once, in the result's shape."""
    shapes = shapes_of(a.shape, b.shape)
    left, right = _stacks(a, b, shapes, dtype)
    stack = np.broadcast_to(c, shapes.result).reshape(shapes.count, left.shape[1], right.shape[2])

    def multiply(x: Array, y: Array) -> tuple[Array, Report]:
        values, report = _product(x, y, options, library, shift, dtype)
        return cast(Array, values), report

    values, report = sum_with_product(left, right, stack, s, multiply)
    return values.reshape(shapes.result), report


def as_scalar(x: Any, name: str) -> complex:
    """alpha or beta as a Python float, or a complex with an imaginary part.

    Raises TypeError, ValueError: no number, or none of float64.
    """
    check_tensor(x, name)
    try:
        if isinstance(x, str) or (isinstance(x, np.ndarray) and x.ndim):  # some of which complex() would read
            raise TypeError
        value = complex(x)
    except (TypeError, ValueError, RuntimeError):  # the last ones from tensors that are no scalars
        raise TypeError(f"{name} = {x!r}: expected a number") from None
    except OverflowError:
        raise ValueError(f"{name} is beyond the range of float64") from None
    exact = x.item() if isinstance(x, np.ndarray | np.generic) else x  # NumPy rounds integers to compare them
    if not (exact == value or exact != exact):
        raise ValueError(f"{name} = {x!r} is no number of float64, it would be rounded to {value}")
    return value if value.imag else value.real


def _keeps_split(a: Any) -> bool:
    """Whether A is prepared and the sign may go to B: digits of INT8 are those of -x with another remainder."""
    return isinstance(a, Prepared) and not (isinstance(a.plan.scheme, Ozaki1) and a.plan.words.operand is INT8)


def _negated(x: Any, dtype: np.dtype[Any]) -> Any:
    """-x, of integers and bools in the dtype of the result; a prepared operand loses its split."""
    if isinstance(x, Prepared):
        return replace(x, operand=-x.operand, split=None)
    return -(converted(x, dtype) if x.dtype.kind in "biu" else x)


def _transposed(x: Array | Prepared, how: str, name: str) -> Array | Prepared:
    """op(x) as a view, or a conjugated copy."""
    if not isinstance(how, str) or how not in ("N", "T", "C"):
        raise PlanError(f'trans_{name}={how!r}: expected "N", "T" or "C"')
    if how == "N":
        return x
    if isinstance(x, Prepared):
        raise PlanError(f"trans_{name}={how!r}: transpose {name} before it is prepared")
    if x.ndim < 2:
        raise ValueError(f"trans_{name}={how!r} needs two dimensions, {name} has shape {x.shape}")
    x = np.swapaxes(x, -1, -2)
    return x.conj() if how == "C" else x


@opaque
@_quiet
@ieee_arithmetic()
def make_plan(
    a: Operand,
    b: Operand,
    *,
    accuracy: Accuracy = None,
    scheme: SchemeName | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
) -> Plan:
    """What `matmul` would do for these operands, without doing it: ``print(plan)`` explains itself.

    The plan may be passed to `matmul`, `gemm` and `prepare` for any operands of the same k and promoted dtype.

    Parameters
    ----------
    a, b, accuracy, scheme, engine, workspace
        As for `matmul`.

    Returns
    -------
    Plan
    """
    library = library_of(("a", a), ("b", b))
    x, y = in_words(as_operand(a, "a", library), as_operand(b, "b", library))
    dtype = result_dtype(x.dtype, y.dtype)
    shapes = shapes_of(x.shape, y.shape)
    problem = shapes.problem(dtype, common_narrow(x.dtype, y.dtype))
    Options(accuracy, scheme, engine, None, workspace, return_report=True)
    maker = engine_for(engine, library.name, library.device)
    with library.active():
        limit = workspace_limit(problem, workspace, maker)

        def look(chosen: Scheme, target: Target) -> Evidence | None:
            return chosen.evidence(problem, target, *_stacks(x, y, shapes, dtype), maker, limit)

        plan = make(problem, accuracy, scheme, maker, limit, look if problem.multiplications else None)
    if problem.multiplications:
        check_strict(plan)
    return reusable(plan, maker, limit)


def check_options(
    accuracy: Accuracy, scheme: str | Scheme, engine: str | None, workspace: int | None, like: Any
) -> None:
    """Raise PlanError for options that no product of an array would take."""
    Options(accuracy, scheme, engine, None, workspace, return_report=True)
    if engine is not None:
        library = library_of(("an operand", like))
        engine_for(engine, library.name, library.device)


kernels.matmul, kernels.gemm, kernels.make_plan = product_of_numbers, gemm_of_numbers, make_plan


@opaque
def warmup(a: Operand, b: Operand, **options: Unpack[Asked]) -> None:
    """Compile ahead what `matmul` runs for operands like these, so that the first product of a program does not wait.

    On a GPU the first product of a kind compiles its kernels side by side: seconds, or tenths of one where Triton's
    cache on disk has them; the logger "hifigemm" says how many and how long. Products of other operands with the same
    dtypes, shapes and strides find them. Values matter only where counts are left open at an accuracy tighter than the
    level.

    Parameters
    ----------
    a, b : array_like or Prepared
        As for `matmul`, with any values. The product is made, and dropped.
    **options
        accuracy, scheme, engine, plan and workspace, as for `matmul`.
    """
    cast(Any, matmul)(a, b, **options)


@overload
def prepare(a: Arrays, side: Literal["left", "right"], *, plan: Plan) -> Prepared[NDArray[Any]]: ...
@overload
def prepare(a: AnyTensor, side: Literal["left", "right"], *, plan: Plan) -> Prepared[AnyTensor]: ...
@opaque
@_quiet
@ieee_arithmetic()
def prepare(a: Any, side: Literal["left", "right"], *, plan: Plan) -> Prepared:
    """An operand with its split done, for repeated products under one plan; use it in place of a or b.

    Parameters
    ----------
    a : array_like
        The operand. It is copied, so later changes of it do not reach the prepared one.
    side : "left" or "right"
        Where it will stand.
    plan : Plan
        From `make_plan`, for operands of this k and dtype.

    Returns
    -------
    Prepared
        Gives the same bits as the operand itself. Schemes whose splits need both operands (Ozaki2 with accurate
        scaling) and the native product keep the copy alone.
    """
    if not isinstance(side, str) or side not in ("left", "right"):
        raise PlanError(f'side={side!r}: expected "left" or "right"')
    check_plan(plan)
    library = library_of(("a", a))
    x = as_operand(a, "a", library)
    if isinstance(x, Prepared):
        raise PlanError(f"the operand is prepared already: {x!r}")
    x = one_word(x, "a")
    k = x.shape[-1] if side == "left" or x.ndim == 1 else x.shape[-2]
    if k != plan.problem.k or result_dtype(x.dtype, plan.problem.dtype) != plan.problem.dtype:
        raise PlanError(f"operand of shape {x.shape} and {x.dtype} does not fit the plan's {plan.problem}")
    engine = engine_for(plan.engine, library.name, library.device)
    is_narrow = plan.problem.narrow is not None and plan.problem.narrow is common_narrow(x.dtype, x.dtype)
    scheme: Scheme = plan.scheme
    splits = not (isinstance(scheme, Native) or plan.alternatives) and scheme.scales(plan, None, None, engine)
    with library.active():
        operand, split = x if is_narrow and plan.alternatives else converted(x, plan.problem.dtype), None
        if operand is x:
            operand = x.copy()
        if operand.size and splits:
            split = whole_split(plan, own_stack(operand, side, plan.problem), side, engine)
    return Prepared(operand, split, side, plan, library)


def _stacks(
    a: Array | Prepared, b: Array | Prepared, shapes: Shapes, dtype: np.dtype[Any] | None
) -> tuple[Array, Array]:
    """Both operands as stacks of a dtype, None for their own."""
    left, right = _array_of(a), _array_of(b)
    return stacked(left, shapes.left, shapes.batch, dtype), stacked(right, shapes.right, shapes.batch, dtype)


def _plans(plan: Plan | None, a: Array | Prepared, b: Array | Prepared) -> list[Plan]:
    """The plan that was passed, and those that operands were prepared for."""
    return [p for p in (plan, *(x.plan for x in (a, b) if isinstance(x, Prepared))) if p is not None]


def given_plan(a: Array | Prepared, b: Array | Prepared, options: Options, problem: Problem) -> Plan | None:
    """The plan that was passed or that a prepared operand was made for; None where there is none."""
    plans = _plans(options.plan, a, b)
    if not plans:
        return None
    for x, side in ((a, "left"), (b, "right")):
        if isinstance(x, Prepared) and x.side != side:
            raise PlanError(f"an operand prepared for the {x.side} stands on the {side}")
    plan = plans[0]
    if any(p.layout != plan.layout for p in plans):
        raise PlanError(f"operands and plan are of different plans: {', '.join(str(p.scheme) for p in plans)}")
    if options.accuracy is not None or options.scheme != "auto":
        raise PlanError("a plan has its own accuracy and scheme; give either the plan or accuracy and scheme")
    if options.engine not in (None, plan.engine):
        raise PlanError(f"engine={options.engine!r} differs from the plan's engine {plan.engine!r}")
    if plan.problem.k != problem.k or plan.problem.dtype != problem.dtype:
        raise PlanError(f"the plan is for {plan.problem}; the operands are {problem}")
    return plan


@_quiet
def _product(
    a: Array | Prepared,
    b: Array | Prepared,
    options: Options,
    library: Library,
    shift: int = 0,
    dtype: Any = None,
    idle: str = "",
    epilogue: Epilogue = PLAIN,
    out: Any = None,
    mirror: str = "",
) -> tuple[Array | None, Report]:
    """alpha (2**shift A B) + beta C in the result's shape, with its report: the flow of the library.

    `idle` says why A and B are not read. No result is returned where it was written to `out`.
    """
    dtype = dtype or result_dtype(a.dtype, b.dtype)
    shapes = shapes_of(a.shape, b.shape)
    problem = shapes.problem(dtype, common_narrow(a.dtype, b.dtype), mirror)
    given = given_plan(a, b, options, problem)
    engine = engine_for(options.engine if given is None else given.engine, library.name, library.device)
    if not problem.multiplications:
        idle = "a dimension is 0: nothing to multiply"
    limit = workspace_limit(problem, options.workspace, engine)
    started = time.perf_counter()

    def look(scheme: Scheme, target: Target) -> Evidence | None:
        return scheme.evidence(problem, target, *_stacks(a, b, shapes, dtype), engine, limit)

    if given is not None:
        plan = for_problem(given, problem, engine, limit, options.return_report)
    else:
        asked = options.accuracy, options.scheme, engine, limit
        plan = make(problem, *asked, None if idle else look, options.return_report)
    decided = time.perf_counter() - started
    stack = problem.batch, problem.m, problem.n
    if epilogue.c is not None:
        epilogue = replace(epilogue, c=np.broadcast_to(epilogue.c, shapes.result).reshape(stack))
    if idle:
        values = epilogue.without_product(np.zeros(stack, dtype, like=_array_of(a)))
        report = _report(replace(plan, reason=idle), Outcome(values, 0.0, 0), engine, decided)
        _log(problem, report)
        return values.reshape(shapes.result), report
    check_strict(plan)
    left, right = _stacks(a, b, shapes, None if plan.alternatives and problem.narrow is not None else dtype)
    view = library.out_view(out, stack, _array_of(a), _array_of(b))
    splits = usable_split(a, "left", shapes.left), usable_split(b, "right", shapes.right)
    first = plan
    plan, outcome = execute(plan, left, right, engine, limit, shift, epilogue, splits, view)
    rests_on_call = plan is first and (plan.is_whole or limit == steady(limit))  # not on the memory that is free
    if options.key is not None and rests_on_call and (view is None) == (out is None):
        operands = _array_of(a), _array_of(b)
        _keep(options.key, plan, engine, library, limit, operands, (left, right), shapes.result, view)
    report = _report(plan, outcome, engine, decided)
    if plan.alternatives and is_strict():
        check_strict(plan, report.scheme)
    _log(problem, report)
    return None if outcome.values is view else outcome.values.reshape(shapes.result), report


def _keep(
    key: Hashable,
    plan: Plan,
    engine: Engine,
    library: Library,
    limit: int,
    operands: tuple[Array, Array],
    stacks: tuple[Array, Array],
    shape: tuple[int, ...],
    out: Array | None,
) -> None:
    """Leave a function of the operands for calls of this kind."""
    if plan.alternatives and is_strict():
        return
    program, again = engine.compile(plan), None
    if program is not None:
        again = program.repeated(operands, stacks, shape, out)
    elif library.on_host and plan.evidence is None:
        again = _repeated_on_host(plan, engine, library, limit, operands, shape)
    if again is not None:
        keep(key, (again, f"{plan.problem}: {plan.scheme}, {plan.reason}"), (engine.name, engine.device))


def _repeated_on_host(
    plan: Plan, engine: Engine, library: Library, limit: int, operands: tuple[Array, Array], shape: tuple[int, ...]
) -> Any:
    """The plan carried out on matrices of NumPy or tensors of the CPU; a native product is only looked at."""
    if plan.problem.mirror or any(x.ndim != 2 or x.dtype != plan.problem.dtype for x in operands):
        return None
    is_numpy, ordinary = library.name == "numpy", (plan.problem.terms, 2.0**plan.problem.fmt.emin)

    def native_of_arrays(a: Any, b: Any, out: None) -> Any:
        if not is_ieee():
            return None
        c = engine.native_product(a[None], b[None])
        return c[0] if are_ordinary(c, *ordinary) else None

    def native_of_tensors(a: Any, b: Any, out: None) -> Any:
        if not is_ieee():
            return None
        c = native_product_of(a, b)
        return c if are_ordinary(c.numpy()[None], *ordinary) else None

    @_quiet
    def other(a: Any, b: Any, out: None) -> Any:
        if not is_ieee():
            return None
        x, y = (a, b) if is_numpy else (a.numpy(), b.numpy())
        c = in_steps(plan, x[None], y[None], engine, limit).values.reshape(shape)
        return c if is_numpy else library.to_native(c)

    if isinstance(plan.scheme, Native) and plan.scheme.product is None:
        if is_numpy:
            return native_of_arrays
        if engine.name == "torch":
            from hifigemm.engines.torch_engine import native_product_of

            return native_of_tensors
    return other


def _array_of(x: Array | Prepared) -> Array:
    return x.operand if isinstance(x, Prepared) else x


def _report(plan: Plan, outcome: Outcome, engine: Engine, decision_seconds: float) -> Report:
    """What was done; where a device decides, what it found is read when somebody looks."""
    planned, certificate = (plan.scheme, outcome.num_products, outcome.bound, plan.k_block), outcome.certificate
    reasons = [plan.reason, *outcome.notes]

    def decide() -> Decision:
        scheme, products, bound, k_block = planned
        if certificate is not None:
            found = certificate()
            scheme, products, bound, k_block = found.scheme, found.num_products, found.bound, found.k_block
            if plan.alternatives:
                reasons.append(f"{scheme} taken")
        native = isinstance(scheme, Native) and products > 0
        count = math.ceil(products - 1e-9)
        return Decision(scheme, count, bound, bound == 0.0, k_block, native, "; ".join(reasons), plan.target.relative)

    return Report(engine.name, engine.device, plan.workspace, decision_seconds, decide)


def _log(problem: Problem, report: Report) -> None:
    """A line for each decision, where somebody reads them; it waits for a device that decides."""
    log = decision_log()
    if log.isEnabledFor(logging.INFO):
        milliseconds = 1e3 * report.decision_seconds
        log.info("%s: %s, %s; decided in %.3g ms", problem, report.scheme, report.reason, milliseconds)
        log.debug("%s", report)


def _deliver(result: Array | None, report: Report, library: Library, out: Any, return_report: bool) -> Any:
    """The result in `out`, if there is one, as an array of the operands' library, with its report if asked."""
    if out is not None:
        if result is None:
            library.note_change(out)
        else:
            library.asarray(out, "out")[...] = result
            if library.on_host:
                library.note_change(out)
    given = library.to_native(cast(Array, result)) if out is None else out
    return (given, report) if return_report else given
