"""gemm: alpha op(A) op(B) + beta C."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from hifigemm.base.exceptions import PlanError
from hifigemm.base.settings import mark_incomplete
from hifigemm.base.transforms import (
    belongs_to_jax,
    belongs_to_torch,
    check_scalar,
    check_tensor,
    check_untraced,
    is_compiled,
    is_traced_by_compiler,
    opaque,
)
from hifigemm.libraries import Library, library_of
from hifigemm.model.accuracy import Accuracy, Relative
from hifigemm.model.plan import Plan, Report
from hifigemm.numerics.bits import Array, DType, scale_entries
from hifigemm.numerics.epilogue import PLAIN, Epilogue, combine, frexp, is_moderate
from hifigemm.numerics.subnormals import ieee_arithmetic, is_ieee
from hifigemm.operands.exact_words import in_words, one_word
from hifigemm.operands.operands import (
    Operands,
    Prepared,
    as_addend,
    as_operand,
    as_out,
    check_addend,
    check_out,
    check_scalars,
    check_transpose,
    converted,
    result_dtype,
    shapes_of,
)
from hifigemm.running.keys import (
    key_of,
    layout_of_result,
    repeat,
    share_storage,
    view_of,
)
from hifigemm.running.request import Request
from hifigemm.running.road import deliver, product, quiet
from hifigemm.schemes import Scheme, as_scheme

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor
    from typing_extensions import Unpack

    from hifigemm.model.signatures import (
        Addend,
        AnyAddend,
        Arrays,
        No,
        Operand,
        OtherOperand,
        Out,
        Scalar,
        Scaled,
        TAddend,
        Tensors,
        Yes,
    )


@overload
def gemm(
    a: Arrays,
    b: Arrays,
    c: Addend = None,
    *,
    out: None = None,
    return_report: No = False,
    **options: Unpack[Scaled],
) -> NDArray[Any]: ...
@overload
def gemm(
    a: Arrays,
    b: Arrays,
    c: Addend = None,
    *,
    out: None = None,
    return_report: Yes,
    **options: Unpack[Scaled],
) -> tuple[NDArray[Any], Report]: ...
@overload
def gemm(
    a: Tensors,
    b: Tensors,
    c: TAddend = None,
    *,
    out: None = None,
    return_report: No = False,
    **options: Unpack[Scaled],
) -> Tensor: ...
@overload
def gemm(
    a: Tensors,
    b: Tensors,
    c: TAddend = None,
    *,
    out: None = None,
    return_report: Yes,
    **options: Unpack[Scaled],
) -> tuple[Tensor, Report]: ...
@overload
def gemm(
    a: Operand,
    b: Operand,
    c: AnyAddend = None,
    *,
    out: Out,
    return_report: No = False,
    **options: Unpack[Scaled],
) -> Out: ...
@overload
def gemm(
    a: Operand,
    b: Operand,
    c: AnyAddend = None,
    *,
    out: Out,
    return_report: Yes,
    **options: Unpack[Scaled],
) -> tuple[Out, Report]: ...
@overload
def gemm(
    a: Arrays,
    b: Arrays,
    c: Addend = None,
    *,
    out: Out | None = None,
    return_report: bool,
    **options: Unpack[Scaled],
) -> Any: ...
@overload
def gemm(
    a: OtherOperand,
    b: OtherOperand,
    c: AnyAddend = None,
    *,
    out: Out | None = None,
    return_report: bool = False,
    **options: Unpack[Scaled],
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
    out: object = None,
    engine: str | None = None,
    plan: Plan | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """alpha op(A) op(B) + beta C, as in the BLAS; C is untouched unless it is passed as
    `out`.

    The accuracy speaks of the result, for any alpha and beta: "correct" is the exact
    value of alpha op(A) op(B) + beta C rounded once.

    Parameters
    ----------
    a, b : array_like
        As for `matmul`, with at least two dimensions where they are transposed.
        Integers and bools only where another operand makes the result a floating-point
        one.
    c : array_like, optional
        Broadcasts to the result's shape. Not read when beta is 0; its gradient is zeros
        then.
    alpha, beta : scalar
        Numbers of Python or NumPy that float64 holds, or tensors and arrays without
        axes, which are read as numbers: a tensor that requires a gradient raises
        TypeError. Complex ones only where the result is complex. alpha = 0 does not
        read A and B.
    trans_a, trans_b : "N", "T" or "C"
        Nothing, transpose, conjugate transpose of the last two axes.
    accuracy, scheme, out, engine, plan, workspace, return_report
        As for `matmul`, of the result. A number r bounds its error by
        r (|alpha||A||B| + |beta||C|) + u |result|, and `hifigemm.Relative` by r times
        the exact result. A plan or a prepared operand for "correct" serves for the
        product alone: with other alpha than plus or minus a power of two, or with C,
        the sum is made from the operands themselves.

    Returns
    -------
    array, or (array, Report)

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> a, x, b = np.array([[1e16, 1.0]]), np.array([1.0, 1.0]), np.array([1e16])
    >>> b - a @ x, hg.gemm(a, x, b, alpha=-1.0, beta=1.0, accuracy="correct")
    (array([0.]), array([-1.]))

    Notes
    -----
    With alpha and beta that are plus or minus powers of two, a sum that is rounded once
    costs little more than A B. Other scalars take twice the time of A B, complex ones
    four times.

    Without an accuracy, with a level such as "fp64", and with numbers from 8 u on, T =
    2^e op(A) op(B) is rounded first: alpha = r 2^e, the larger component of r between
    1 and 2. r T + beta C is then evaluated with error-free transformations and rounded,
    for finite scalars of every size. Where T underflows, that adds at most four of the
    smallest subnormal numbers to the error. T may overflow though the result does not:
    for the default and levels, and on a GPU for numbers too. In a native product on a
    GPU A B may overflow before its power of two, except for real operands and an alpha
    below 2^-30.
    """
    if type(alpha) is not float or type(beta) is not float:
        alpha, beta = as_scalar(alpha, "alpha"), as_scalar(beta, "beta")
    if c is None and beta != 0:
        raise ValueError(f"beta = {beta} needs c")
    may_repeat = plan is None and not is_compiled()
    if c is not None and may_repeat and beta == 0 and is_ieee():
        # C is not read. It stays in graphs of PyTorch, with a gradient of zeros. In a
        # thread that flushes subnormal numbers beta may be none.
        if belongs_to_torch(c):
            may_repeat = False
        else:
            c = None
    if may_repeat and type(a) is not np.ndarray:
        # A call like an earlier one: its key says that PyTorch follows no operand.
        repeated = _repeated(
            (a, b, c, out),
            (alpha, beta),
            (trans_a, trans_b),
            (accuracy, scheme, engine, workspace, return_report),
        )
        if repeated is not None:
            return repeated

    # Tracked operands: an operator of PyTorch or a primitive of JAX.
    is_plain = plan is None and out is None and engine is None and not return_report
    if is_plain and type(a) is not np.ndarray:
        if belongs_to_torch(a, b) if c is None else belongs_to_torch(a, b, c):
            from hifigemm.differentiable import torch_operators

            return torch_operators.gemm(
                a,
                b,
                c,
                accuracy,
                scheme,
                workspace,
                alpha=alpha,
                beta=beta,
                trans_a=trans_a,
                trans_b=trans_b,
            )
        is_number = c is None or type(c) in (bool, int, float, complex)
        if belongs_to_jax(a, b) and (is_number or belongs_to_jax(c)):
            from hifigemm.differentiable import jax_primitive

            return jax_primitive.gemm(
                a,
                b,
                c,
                accuracy,
                scheme,
                workspace,
                alpha=alpha,
                beta=beta,
                trans_a=trans_a,
                trans_b=trans_b,
            )
    try:
        return gemm_of_numbers(
            a,
            b,
            c,
            accuracy,
            scheme,
            workspace,
            alpha=alpha,
            beta=beta,
            trans_a=trans_a,
            trans_b=trans_b,
            out=out,
            engine=engine,
            plan=plan,
            return_report=return_report,
        )
    except BaseException as error:
        mark_incomplete(error, out)
        raise


@opaque
def gemm_of_numbers(
    a: object,
    b: object,
    c: object = None,
    accuracy: Accuracy = None,
    scheme: str | Scheme = "auto",
    workspace: int | None = None,
    *,
    alpha: Scalar = 1.0,
    beta: Scalar = 0.0,
    trans_a: Literal["N", "T", "C"] = "N",
    trans_b: Literal["N", "T", "C"] = "N",
    out: object = None,
    engine: str | None = None,
    plan: Plan | None = None,
    return_report: bool = False,
) -> Any:
    """`gemm` of untracked arrays: no derivatives, no tracing."""
    if c is not None and beta == 0 and is_ieee():
        # Not read, nor dropped where PyTorch follows it.
        check_untraced(
            {"c": c}, engine=engine, plan=plan, out=out, return_report=return_report
        )
        check_tensor(c, "c")
        c = None

    # A call like an earlier one goes straight to its program.
    key = None
    if plan is None:
        policy = accuracy, scheme, engine, workspace, return_report
        scalars = cast(complex, alpha), cast(complex, beta)
        arrays = a, b, c, out
        key, arguments = _key(arrays, scalars, (trans_a, trans_b), policy)
        repeated = None if key is None else repeat(key, *arguments)
        if repeated is not None:
            return repeated

    with ieee_arithmetic():
        request = Request(accuracy, scheme, engine, plan, workspace, return_report)
        check_untraced(
            {"a": a, "b": b, "c": c},
            engine=engine,
            plan=plan,
            out=out,
            return_report=return_report,
        )
        alpha = as_scalar(alpha, "alpha")
        beta = as_scalar(beta, "beta")
        out = as_out(out)
        if beta == 0:
            c = None
        library = library_of(("a", a), ("b", b), ("c", c), ("out", out))
        with library.active():
            operands, c = _admit(a, b, c, trans_a, trans_b, library)
            check_scalars(operands.dtype, alpha=alpha, beta=beta)
            if out is not None:
                check_out(out, operands.shapes, operands.dtype, library)

            values, report = _product(operands, c, request, (alpha, beta), out, key)
            return deliver(values, report, library, out, return_report)


def _repeated(
    arrays: tuple[Any, Any, Any, Any],
    scalars: tuple[complex, complex],
    transposes: tuple[str, str],
    policy: tuple[Any, ...],
) -> Any:
    """The result by what an earlier call of this kind has left; None where there is
    none.
    """
    key, arguments = _key(arrays, scalars, transposes, policy)
    return None if key is None else repeat(key, *arguments)


def _key(
    arrays: tuple[Any, Any, Any, Any],
    scalars: tuple[complex, complex],
    transposes: tuple[str, str],
    policy: tuple[Any, ...],
) -> tuple[Hashable, tuple[Any, ...]]:
    """What two calls must share, and the arguments of what repeats them; None for calls
    that are not repeated.

    `arrays` are A, B, C and out, `scalars` alpha and beta, of which the key holds what
    programs are made for. `policy` is what `keys.key_of` takes behind the arrays.
    """
    a, b, c, out = arrays
    alpha, beta = scalars
    if type(alpha) is not float or type(beta) is not float:
        return None, ()
    mantissa, shift = frexp(alpha)
    has_addend = beta != 0
    if mantissa == 0 or (mantissa == -1.0 and not has_addend):
        return None, ()
    # Sums with powers of two may be rounded once, see `product_plus`.
    is_power = mantissa in (1.0, -1.0) and abs(frexp(beta)[0]) == 1.0
    x = view_of(a, transposes[0])
    y = view_of(b, transposes[1])
    if x is None or y is None:
        return None, ()
    key = key_of(x, y, None if has_addend else out, *policy)
    if key is None:
        return None, ()

    if not has_addend:
        is_product = mantissa == 1.0
        kind: Hashable = shift, is_product or is_moderate(mantissa)
        numbers = () if is_product else (None, mantissa)
        return ("gemm", is_product, kind, key), (x, y, out, *numbers)
    layout = layout_of_result(x, y, c)
    target = layout if out is c or out is None else layout_of_result(x, y, out)
    if layout is None or target is None:
        return None, ()
    if out is not None and out is not c and share_storage(c, out):
        return None, ()
    if is_power:
        # C may be a term of the sums, with its factor.
        kind = "once", alpha, beta
    else:
        kind = shift, is_moderate(mantissa) and is_moderate(beta)
    return ("gemm", layout, target, kind, key), (x, y, out, c, mantissa, beta)


def _admit(
    a: object, b: object, c: Any, trans_a: str, trans_b: str, library: Library
) -> tuple[Operands, Array | None]:
    """op(A) and op(B) as the road takes them, and C in the dtype of the result."""
    x = as_operand(a, "a", library)
    y = as_operand(b, "b", library)
    x, y = in_words(x, y, (trans_a, trans_b), integers=False)
    x = _transposed(x, trans_a, "a")
    y = _transposed(y, trans_b, "b")
    shapes = shapes_of(x.shape, y.shape)
    if c is None:
        return Operands(x, y, library, result_dtype(x.dtype, y.dtype)), None

    addend = one_word(as_addend(c, library), "c")
    # A scalar of Python promotes as NumPy lets it, by its kind alone.
    kind = type(c)
    is_python_scalar = kind in (bool, int, float, complex)
    dtype = result_dtype(x.dtype, y.dtype, kind() if is_python_scalar else addend.dtype)
    check_addend(addend.shape, shapes.result)
    return Operands(x, y, library, dtype), converted(addend, dtype)


@quiet
def _product(
    operands: Operands,
    c: Array | None,
    request: Request,
    scalars: tuple[complex, complex],
    out: object,
    key: Hashable,
) -> tuple[Array | None, Report]:
    """alpha A B + beta C with its report, in `out` where it can be written there; later
    calls of this key may repeat it.
    """
    from hifigemm.running.scaled_sums import (
        accuracy_of_sum,
        request_of_plan,
        rounded_sum,
        unprepared,
        with_room_for_rounding,
    )

    alpha, beta = scalars
    reads_product = alpha != 0
    mantissa, shift = frexp(alpha)
    plans = operands.plans(request.plan)
    has_product = reads_product and operands.problem().multiplications > 0
    has_entries = math.prod(operands.shapes.result) > 0
    is_sum = c is not None or (has_product and mantissa not in (1.0, -1.0))

    # An accuracy that two roundings would not keep is that of the sum.
    accuracy = accuracy_of_sum(operands.problem(), request, plans, alpha)
    if accuracy is not None and is_sum and has_entries:
        import cmath

        if cmath.isfinite(alpha) and cmath.isfinite(beta):
            of_sum = replace(request, accuracy=accuracy)
            if plans:
                # Words of alpha A are none of those that the plan splits A in.
                operands = unprepared(operands)
                of_sum = request_of_plan(of_sum, plans[0])
                key = None
            return rounded_sum(operands, c, of_sum, scalars, key)
        if isinstance(accuracy, Relative):
            raise PlanError(
                f"alpha = {alpha}, beta = {beta}: a relative error is promised for "
                "finite scalars"
            )

    negates = mantissa == -1.0 and (c is None or _is_one_sided(request, plans))
    if negates:
        operands = _with_sign(operands)
        mantissa = 1.0
        key = None

    # What is rounded once more than T = 2**shift A B.
    is_product = mantissa == 1.0 and c is None
    epilogue = PLAIN if is_product else Epilogue(mantissa, beta, c)
    is_complex = isinstance(mantissa, complex)
    if is_complex:
        key = None
    if not is_product:
        fmt = operands.problem().fmt
        of_product = with_room_for_rounding(request.accuracy, fmt)
        request = replace(request, accuracy=of_product)
    values, report = product(
        operands,
        request,
        shift=shift,
        epilogue=epilogue,
        no_product="" if reads_product else "alpha is 0: A and B are not read",
        out=out if c is None and not is_complex else None,
        key=key,
    )
    # A finite result may be the difference of two that overflow. A call does not wait
    # for a GPU to find out, and the level of a dtype is that of its native product.
    is_number = isinstance(request.accuracy, Real)
    may_overflow = is_complex or (c is not None and is_number)
    if reads_product and may_overflow and operands.library.on_host:
        values = _without_overflow(
            cast(Array, values), operands, epilogue, request, shift
        )
    return values, report


@quiet
def _without_overflow(
    result: Array,
    operands: Operands,
    epilogue: Epilogue,
    request: Request,
    shift: int,
) -> Array:
    """r T + beta C, where a finite T overflowed, from a smaller one, instead of
    inf - inf.

    What C loses on the way lies far below the last place of such a T.
    """
    if np.isfinite(result).all():
        return result
    real = np.finfo(result.dtype)
    step = int(0.98 * real.maxexp)

    def scaled_product(exponent: int) -> Array:
        return cast(Array, product(operands, request, shift=exponent)[0])

    exponent = shift
    overflowed = ~np.isfinite(scaled_product(exponent))
    while overflowed.any() and exponent > -real.maxexp - 80:
        exponent -= step
        smaller = epilogue.of_c_times_power(exponent - shift)
        t = scaled_product(exponent)
        combined = combine(t, epilogue.alpha, smaller.c, smaller.beta)
        scaled_back = scale_entries(combined, shift - exponent)
        is_settled = overflowed & np.isfinite(t)
        result = np.where(is_settled, scaled_back, result)
        overflowed = overflowed & ~is_settled
    return result


def as_scalar(x: Any, name: str) -> complex:
    """alpha or beta as a Python float, or a complex with an imaginary part.

    Programs that torch.compile traces hold numbers of other types as they are, and
    tensors and scalars of NumPy as numbers that they read when they run.

    Raises TypeError, ValueError: no number, or none of float64; a tensor that PyTorch
    follows.
    """
    check_scalar(x, name)
    if is_traced_by_compiler():
        is_number = type(x) in (bool, int, float, complex)
        return cast(complex, x if is_number else x.item())
    try:
        # complex() would read some of these.
        if isinstance(x, str) or (isinstance(x, np.ndarray) and x.ndim):
            raise TypeError
        value = complex(x)
    except (TypeError, ValueError, RuntimeError):
        # RuntimeError is that of tensors that are no scalars.
        raise TypeError(f"{name} = {x!r}: expected a number") from None
    except OverflowError:
        raise ValueError(f"{name} is beyond the range of float64") from None
    # NumPy and PyTorch would round an integer to compare it.
    exact = x.item() if hasattr(x, "item") else x
    if not (exact == value or exact != exact):
        raise ValueError(
            f"{name} = {x!r} is no number of float64, it would be rounded to {value}"
        )
    return value if value.imag else value.real


def _with_sign(operands: Operands) -> Operands:
    """-A and B, or A and -B; so the sign is that of the product, and -0 is right.

    B takes it where A is prepared, so that the split of A serves, unless the split of
    -A would have other bits.
    """
    a = operands.a
    if isinstance(a, Prepared) and a.plan.scheme.negates_splits(a.plan):
        return replace(operands, b=_negated(operands.b, operands.dtype))
    return replace(operands, a=_negated(a, operands.dtype))


def _is_one_sided(request: Request, plans: Sequence[Plan]) -> bool:
    """Whether -A B may have other bits than the negated product of A and B."""
    schemes = [as_scheme(request.scheme), *(plan.scheme for plan in plans)]
    return any(scheme is not None and not scheme.negates_products for scheme in schemes)


def _negated(x: Any, dtype: DType) -> Any:
    """-x, of integers and bools in the dtype of the result; a prepared operand loses
    its split.
    """
    if isinstance(x, Prepared):
        return replace(x, operand=-x.operand, split=None)
    return -(converted(x, dtype) if x.dtype.kind in "biu" else x)


def _transposed(x: Array | Prepared, how: str, name: str) -> Array | Prepared:
    """op(x) as a view, or a conjugated copy."""
    check_transpose(how, name)
    if how == "N":
        return x
    if isinstance(x, Prepared):
        raise PlanError(f"trans_{name}={how!r}: transpose {name} before it is prepared")
    if x.ndim < 2:
        raise ValueError(
            f"trans_{name}={how!r} needs two dimensions, {name} has shape {x.shape}"
        )
    x = np.swapaxes(x, -1, -2)
    return x.conj() if how == "C" else x
