"""matmul, make_plan, warmup and prepare: from what a caller passes to the road of a
product.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from hifigemm.accuracy import Accuracy
from hifigemm.engines import engine_for
from hifigemm.exact_results import TWO_PARTS, Result, check_two_parts, enclosure, pair
from hifigemm.exact_words import in_words, one_word
from hifigemm.exceptions import PlanError
from hifigemm.executor import whole_split
from hifigemm.integers import are_integers, integer_dtype, integer_product
from hifigemm.libraries import Library, library_of
from hifigemm.numerics.bits import Array
from hifigemm.numerics.special import nonfinite_vectors
from hifigemm.numerics.subnormals import ieee_arithmetic
from hifigemm.operands import (
    Prepared,
    as_operand,
    as_out,
    check_out,
    common_narrow,
    converted,
    own_stack,
    result_dtype,
    shapes_of,
)
from hifigemm.plan import Plan, Report
from hifigemm.planner import (
    Options,
    check_plan,
    check_strict,
    reusable,
    workspace_limit,
)
from hifigemm.programs import key_of, repeat
from hifigemm.road import (
    array_of,
    deliver,
    plan_for,
    product,
    product_plus,
    quiet,
    stacks_of,
)
from hifigemm.schemes import Native, Scheme
from hifigemm.transforms import belongs_to_jax, belongs_to_torch, check_untraced, opaque

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor
    from typing_extensions import Unpack

    from hifigemm.signatures import (
        AnyTensor,
        Arrays,
        Asked,
        No,
        Operand,
        Out,
        Policy,
        SchemeName,
        Tensors,
        TwoParts,
        Yes,
    )


@overload
def matmul(
    a: Arrays,
    b: Arrays,
    *,
    out: None = None,
    return_report: No = False,
    **options: Unpack[Asked],
) -> NDArray[Any]: ...
@overload
def matmul(
    a: Arrays,
    b: Arrays,
    *,
    out: None = None,
    return_report: Yes,
    **options: Unpack[Asked],
) -> tuple[NDArray[Any], Report]: ...
@overload
def matmul(
    a: Arrays,
    b: Arrays,
    *,
    out: None = None,
    return_report: bool,
    **options: Unpack[Asked],
) -> Any: ...
@overload
def matmul(
    a: Tensors,
    b: Tensors,
    *,
    out: None = None,
    return_report: No = False,
    **options: Unpack[Asked],
) -> Tensor: ...
@overload
def matmul(
    a: Tensors,
    b: Tensors,
    *,
    out: None = None,
    return_report: Yes,
    **options: Unpack[Asked],
) -> tuple[Tensor, Report]: ...
@overload
def matmul(
    a: Tensors,
    b: Tensors,
    *,
    out: None = None,
    return_report: bool,
    **options: Unpack[Asked],
) -> Any: ...
@overload
def matmul(
    a: Arrays,
    b: Arrays,
    *,
    result: TwoParts,
    return_report: No = False,
    **options: Unpack[Policy],
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def matmul(
    a: Tensors,
    b: Tensors,
    *,
    result: TwoParts,
    return_report: No = False,
    **options: Unpack[Policy],
) -> tuple[Tensor, Tensor]: ...
@overload
def matmul(
    a: Operand,
    b: Operand,
    *,
    result: TwoParts,
    return_report: bool,
    **options: Unpack[Policy],
) -> Any: ...
@overload
def matmul(
    a: Operand,
    b: Operand,
    *,
    out: Out,
    return_report: No = False,
    **options: Unpack[Asked],
) -> Out: ...
@overload
def matmul(
    a: Operand, b: Operand, *, out: Out, return_report: Yes, **options: Unpack[Asked]
) -> tuple[Out, Report]: ...
@overload
def matmul(
    a: Operand, b: Operand, *, out: Out, return_report: bool, **options: Unpack[Asked]
) -> Any: ...
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
        float32, float64, complex64 or complex128, shapes as for `numpy.matmul`:
        vectors, matrices, stacks that broadcast, empty dimensions, any strides and byte
        order. Mixed dtypes promote as in NumPy. float16, and bfloat16 of PyTorch and
        ml_dtypes, are taken too: the result of two such operands is float32, to the
        same accuracies as for float32 operands. The product of integers or bools has
        the promoted dtype and wraps around where an entry lies beyond it, as that of
        `numpy.matmul`; with an accuracy, or a kind of `result`, every entry is exact.
        (NumPy makes float64 of int64 beside uint64; a kind of `result` makes their
        product exact.) What would be rounded as an array, or lose a mask, a unit or
        labels, is refused. Both are of one library, NumPy, PyTorch, CuPy or JAX, and of
        one device; the result is too. Matrices of mpmath and python-flint, and lists or
        arrays of their numbers and those of gmpy2, of fractions, decimals and large
        integers, are taken where each entry is the sum of up to four float64 numbers,
        beside one another and arrays of NumPy. Integers among them that int64 or uint64
        holds are integers, whose product does not wrap around: it is exact or an error.
    accuracy : None, float, "fp32", "fp64", "correct" or Relative
        A float r promises |C - AB| <= r |A||B| + u |AB| in every entry, u the unit
        roundoff of the result's dtype, whatever the exponents of the data (for results
        in the subnormal range, and half the smallest subnormal). "fp32" and "fp64" are
        r = max(4, sqrt(k)/4) u of that format, at which a native product in that format
        is accepted too: plan and report then state its worst case, k u / (1 - k u) with
        2 k for complex operands, and `strict` refuses it where that exceeds r. None is
        the level of the result's dtype. "correct": every real component is the exact
        value rounded once, to nearest, ties to even. For complex operands the promise
        holds for re and im, with |A||B| of the real embedding. `Relative` is
        |C - AB| <= r |AB|, by the exact schemes.
    scheme : "auto", "native", "multiword", "corrected", "ozaki1", "ozaki2", "double-double", or ``Ozaki1("fp64")``
        A scheme is obeyed. Where it has an explicit count, or is one of words
        ("multiword", "corrected") or of a mode of Ozaki scheme I, and no accuracy is
        given, only what its report states is promised.
    out : array, optional
        Receives the result; may be one of the operands. An array of NumPy may have a
        wider dtype, or be a stack that the result fills by broadcasting, as in
        `numpy.matmul`. Where integers are to be exact it may have any dtype of
        integers, which every entry then has to fit; of bools it takes the exact sums.
    engine : str, optional
        See `engines`; None takes the one of the operands.
    plan : Plan, optional
        From `make_plan`; replaces accuracy, scheme and engine.
    workspace : int, optional
        Limit in bytes for what a scheme holds besides the operands, in the result's
        dtype and without Inf and NaN, and the result; what a library's own product
        takes does not count. Changes no bit of an exact scheme. None takes a multiple
        of operands and result, but of large products no more than half of what memory
        is free besides them, where no bit depends on it. It holds for each product
        behind a pair or an enclosure, and not for integers.
    result : "array", "pair", "enclosure", "int64" or "object"
        "pair": (high, low), high the correctly rounded product and low what is left of
        the exact one, rounded once. "enclosure": (lower, upper), the two neighbouring
        floats between which the exact value lies, equal where it is a float. Both by
        component of complex entries, at several times the cost of "correct", ten to
        twenty-five on a CPU, and not for prepared operands. "int64" and "object" are
        for operands of integers or bools, whatever NumPy promotes them to: the exact
        entries in int64, so that int8 operands do not wrap around at 127, or as Python
        integers of any size, the latter for arrays of NumPy alone.
    return_report : bool
        Return (result, Report). On a GPU a call at the level of the result, or with a
        forced count, never waits for the device, so that it can be captured in a CUDA
        graph: the device decides by the operands between steps that all keep the bound
        of the plan, and the report waits when somebody looks at it. Tighter accuracies
        and "correct" wait once. So do products of integers, for their largest
        magnitudes.

    Returns
    -------
    array, or (array, Report); a pair of arrays in the place of the array for "pair" and
    "enclosure"

    Raises
    ------
    PlanError
        Unknown options, a plan for other operands, a workspace too small.
    AccuracyError
        A forced scheme cannot keep the accuracy for these operands, or strict mode
        refuses the native product that "auto" would take at less: see `strict`. An
        entry of integers that is to be exact lies beyond the dtype of the result; the
        message has the index and the value of the first, and how many there are. Or the
        thread flushes subnormal numbers to zero, as callbacks of JAX and libraries
        built with -ffast-math let it, or does not round to nearest, as libraries of
        interval arithmetic ask, and its mode cannot be lifted for the call: on x86-64
        and aarch64 under Linux and macOS it is, and restored.
    ValueError, TypeError
        Shapes or dtypes that do not fit; tensors that PyTorch differentiates, batches
        or traces.

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> a = np.array([[1e16, 1.0, -1e16]])
    >>> hg.matmul(a, np.ones((3, 1)), accuracy="correct")
    array([[1.]])
    >>> i = np.array([[100, 27]], np.int8)
    >>> (
    ...     hg.matmul(i, i.T),
    ...     hg.matmul(i, i.T, result="int64"),
    ...     hg.matmul(i.astype(np.uint64) << 57, i.T, result="object"),
    ... )
    (array([[-23]], dtype=int8), array([[10729]]), array([[1546211852865857650688]], dtype=object))
    """
    is_array = isinstance(result, str) and result == "array"
    is_plain = (
        plan is None
        and out is None
        and engine is None
        and is_array
        and not return_report
    )
    if is_plain and type(a) is not np.ndarray:
        if belongs_to_torch(a, b):
            from hifigemm.interop import torch_operators

            return torch_operators.matmul(a, b, accuracy, scheme, workspace)
        if belongs_to_jax(a, b):
            from hifigemm.interop import jax_primitive

            return jax_primitive.matmul(a, b, accuracy, scheme, workspace)
    return product_of_numbers(
        a, b, accuracy, scheme, out, engine, plan, workspace, return_report, result
    )


@opaque
def product_of_numbers(
    a: Any,
    b: Any,
    accuracy: Accuracy = None,
    scheme: str | Scheme = "auto",
    out: Any = None,
    engine: str | None = None,
    plan: Plan | None = None,
    workspace: int | None = None,
    return_report: bool = False,
    result: Result = "array",
    mirror: str = "",
) -> Any:
    """`matmul` of operands of which nothing but their numbers is asked; `mirror` as for
    `Problem`.
    """
    if not isinstance(result, str):
        raise PlanError(
            f'result={result!r}: expected "array", "pair", "enclosure", "int64" or "object"'
        )
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
    check_untraced(
        {"a": a, "b": b},
        engine=engine,
        plan=plan,
        out=out,
        result=asked,
        return_report=return_report,
    )
    out = as_out(out)
    library = library_of(("a", a), ("b", b), ("out", out))
    found: tuple[Array | None, Report]
    with ieee_arithmetic(), library.active():
        given = as_operand(a, "a", library), as_operand(b, "b", library)
        a, b = in_words(*given)
        if library.name == "cupy" and repeats and out is None and not mirror:
            key, again = _repeated_of_cupy(
                a, b, library, accuracy, scheme, engine, workspace
            )
            if again is not None:
                return again
            options = replace(options, key=key)
        shapes, whole = shapes_of(a.shape, b.shape), are_integers(a, b, result)
        of_objects = "O" in (given[0].dtype.kind, given[1].dtype.kind)
        if whole and accuracy is None and of_objects:
            # integers of classes that never wrap around
            options = replace(options, accuracy="correct")
        if of_objects and not whole and a.dtype.kind in "biu" and b.dtype.kind in "biu":
            raise PlanError(
                "the operands hold integers beyond int64 and negative ones, whose products no dtype of NumPy has: ask "
                'for result="int64" or result="object"'
            )
        if whole:
            dtype = integer_dtype(
                array_of(a), array_of(b), options, out, library, result=result
            )
        elif result == "array" or result in TWO_PARTS:
            dtype = result_dtype(a.dtype, b.dtype)
        else:
            expected = ", ".join(f'"{kind}"' for kind in ("array", *TWO_PARTS))
            kinds = (
                "no integers that int64 or uint64 holds"
                if of_objects
                else f"{a.dtype} and {b.dtype}"
            )
            raise PlanError(
                f"result={result!r}, the operands are {kinds}: expected {expected}"
            )
        if out is not None:
            check_out(out, shapes, dtype, library)
        if result in TWO_PARTS:
            if isinstance(a, Prepared) or isinstance(b, Prepared):
                raise PlanError(
                    f"result={result!r} is made from more products than a plan has: pass the array itself"
                )
            parts, report = _two_parts(result, a, b, options, library, dtype)
            both = tuple(library.to_native(x) for x in parts)
            return (both, report) if return_report else both
        if whole:
            found = integer_product(
                array_of(a), array_of(b), shapes, options, library, dtype, result=result
            )
        else:
            found = product(a, b, options, library, dtype=dtype, out=out, mirror=mirror)
        return deliver(*found, library, out, return_report)


def _repeated_of_cupy(
    a: Array | Prepared, b: Array | Prepared, library: Library, *asked: Any
) -> tuple[Hashable, Any]:
    """The key of a product of CuPy arrays, which is that of their tensors, and the
    product as `repeat` makes it.
    """
    from hifigemm.engines.device_array import unwrap, wrap

    if isinstance(a, Prepared) or isinstance(b, Prepared):
        return None, None
    tensors = unwrap(a), unwrap(b)
    key = key_of(*tensors, None, *asked)
    made = None if key is None else repeat(key, *tensors, None)
    return key, None if made is None else library.to_native(wrap(made))


@quiet
def _two_parts(
    result: Result,
    a: Array,
    b: Array,
    options: Options,
    library: Library,
    dtype: np.dtype[Any],
) -> tuple[tuple[Array, Array], Report]:
    """The pair or the enclosure of a product, see `exact_results`."""
    found, report = product(a, b, options, library, dtype=dtype)
    nearest, shapes = cast(Array, found), shapes_of(a.shape, b.shape)

    def rest(c: Array, shift: int) -> Array:
        nonlocal report
        if 0 in (*a.shape, *b.shape):
            return np.zeros_like(nearest)
        made, second = product_plus(a, b, c, -1.0, options, library, shift, dtype)
        more, reason = (
            second.num_products,
            f"; and {second.num_products} products for A B - C",
        )
        seconds = report.decision_seconds + second.decision_seconds
        report = report.changed(
            lambda d: replace(
                d, num_products=d.num_products + more, reason=d.reason + reason
            ),
            seconds,
        )
        return made

    if result == "pair":
        parts = pair(nearest, rest)
        return parts, report
    stacks = stacks_of(a, b, shapes, dtype)
    unknown = nonfinite_vectors(stacks[0], 2) | nonfinite_vectors(stacks[1], 1)
    known = np.broadcast_to(
        np.logical_not(unknown), (shapes.count, shapes.left[1], shapes.right[2])
    )
    parts = enclosure(nearest, rest, known.reshape(shapes.result))
    return parts, report


@opaque
@quiet
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
    """What `matmul` would do for these operands, without doing it: ``print(plan)``
    explains itself.

    The plan may be passed to `matmul`, `gemm` and `prepare` for any operands of the
    same k and promoted dtype.

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
    options = Options(accuracy, scheme, engine, None, workspace, return_report=True)
    maker = engine_for(engine, library.name, library.device)
    with library.active():
        limit = workspace_limit(problem, workspace, maker)
        plan = plan_for(
            x,
            y,
            shapes,
            problem,
            options,
            maker,
            limit,
            may_look=bool(problem.multiplications),
        )
    if problem.multiplications:
        check_strict(plan)
    return reusable(plan, maker, limit)


def check_options(
    accuracy: Accuracy,
    scheme: str | Scheme,
    engine: str | None,
    workspace: int | None,
    like: Any,
) -> None:
    """Raise PlanError for options that no product of an array would take."""
    Options(accuracy, scheme, engine, None, workspace, return_report=True)
    if engine is not None:
        library = library_of(("an operand", like))
        engine_for(engine, library.name, library.device)


@opaque
def warmup(a: Operand, b: Operand, **options: Unpack[Asked]) -> None:
    """Compile ahead what `matmul` runs for operands like these, so that the first
    product of a program does not wait.

    On a GPU the first product of a kind compiles its kernels side by side: seconds, or
    tenths of one where Triton's cache on disk has them; the logger "hifigemm" says how
    many and how long. Products of other operands with the same dtypes, shapes and
    strides find them. Values matter only where counts are left open at an accuracy
    tighter than the level.

    Parameters
    ----------
    a, b : array_like or Prepared
        As for `matmul`, with any values. The product is made, and dropped.
    **options
        accuracy, scheme, engine, plan and workspace, as for `matmul`.
    """
    cast(Any, matmul)(a, b, **options)


@overload
def prepare(
    a: Arrays, side: Literal["left", "right"], *, plan: Plan
) -> Prepared[NDArray[Any]]: ...
@overload
def prepare(
    a: AnyTensor, side: Literal["left", "right"], *, plan: Plan
) -> Prepared[AnyTensor]: ...
@opaque
@quiet
@ieee_arithmetic()
def prepare(a: Any, side: Literal["left", "right"], *, plan: Plan) -> Prepared:
    """An operand with its split done, for repeated products under one plan; use it in
    place of a or b.

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
        Gives the same bits as the operand itself. Schemes whose splits need both
        operands (Ozaki2 with accurate scaling) and the native product keep the copy
        alone.
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
    if (
        k != plan.problem.k
        or result_dtype(x.dtype, plan.problem.dtype) != plan.problem.dtype
    ):
        raise PlanError(
            f"operand of shape {x.shape} and {x.dtype} does not fit the plan's {plan.problem}"
        )
    engine = engine_for(plan.engine, library.name, library.device)
    is_narrow = (
        plan.problem.narrow is not None
        and plan.problem.narrow is common_narrow(x.dtype, x.dtype)
    )
    scheme: Scheme = plan.scheme
    splits = not (isinstance(scheme, Native) or plan.alternatives) and scheme.scales(
        plan, None, None, engine
    )
    with library.active():
        operand, split = (
            x if is_narrow and plan.alternatives else converted(x, plan.problem.dtype),
            None,
        )
        if operand is x:
            operand = x.copy()
        if operand.size and splits:
            split = whole_split(
                plan, own_stack(operand, side, plan.problem), side, engine
            )
    return Prepared(operand, split, side, plan, library)
