"""alpha op(A) op(B) + beta C of untracked arrays: no derivatives, no tracing."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from hifigemm.base.exceptions import PlanError
from hifigemm.base.transforms import (
    check_scalar,
    check_tensor,
    check_untraced,
    is_traced_by_compiler,
    opaque,
)
from hifigemm.libraries import Library, library_of
from hifigemm.model.accuracy import Accuracy, Relative
from hifigemm.model.executable import Refusal
from hifigemm.model.plan import Plan, Report
from hifigemm.numerics.bits import Array, DType, scale_entries
from hifigemm.numerics.epilogue import PLAIN, Epilogue, combine, frexp, is_moderate
from hifigemm.numerics.subnormals import ieee_arithmetic, is_ieee
from hifigemm.operands.exact_operands import in_words, one_word
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
    unprepared,
)
from hifigemm.operands.out_dtype import as_out_dtype
from hifigemm.running.admission import request_of_prepared, with_out_dtype
from hifigemm.running.calls import Refused, replay
from hifigemm.running.executor import quiet
from hifigemm.running.keys import (
    in_memory,
    key_of,
    layout_of_result,
    share_storage,
    view_of,
)
from hifigemm.running.request import Request, request_of_plan
from hifigemm.running.road import deliver, product
from hifigemm.schemes import Scheme, as_scheme

if TYPE_CHECKING:
    from hifigemm.model.signatures import Scalar


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
    out_dtype: object = None,
    key_and_arguments: KeyAndArguments | None = None,
) -> Any:
    """`gemm` of untracked arrays; with what `key_of_gemm` gives, where that is known
    already.
    """
    if c is not None and beta == 0 and is_ieee():
        # Not read, nor dropped where PyTorch follows it.
        check_untraced(
            {"c": c}, engine=engine, plan=plan, out=out, return_report=return_report
        )
        check_tensor(c, "c")
        c = None

    # A call like an earlier one runs what that one has run.
    if key_and_arguments is None:
        policy = (
            accuracy,
            scheme,
            engine,
            workspace,
            return_report,
            "array",
            "",
            plan,
            out_dtype,
        )
        scalars = cast(complex, alpha), cast(complex, beta)
        key_and_arguments = key_of_gemm(
            (a, b, c, out), scalars, (trans_a, trans_b), policy
        )
    key, arguments = key_and_arguments or (None, ())
    replayed = replay(key, arguments, out, return_report)
    refusal = None
    if isinstance(replayed, Refused):
        refusal = replayed.refusal
    elif replayed is not None:
        return replayed

    with ieee_arithmetic():
        request = Request(
            accuracy,
            scheme,
            engine,
            plan,
            workspace,
            return_report,
            out_dtype=as_out_dtype(out_dtype),
        )
        check_untraced(
            {"a": a, "b": b, "c": c},
            engine=engine,
            plan=plan,
            out=out,
            out_dtype=out_dtype,
            return_report=return_report,
        )
        alpha = as_scalar(alpha, "alpha")
        beta = as_scalar(beta, "beta")
        out = as_out(out)
        if beta == 0:
            c = None
        library = library_of(("a", a), ("b", b), ("c", c), ("out", out))
        with library.active():
            operands, c, request = _admit(a, b, c, trans_a, trans_b, library, request)
            request = request_of_prepared(operands.a, operands.b, request)
            check_scalars(operands.dtype, alpha=alpha, beta=beta)
            narrow = request.out_dtype
            if out is not None:
                dtype = operands.dtype if narrow is None else narrow
                check_out(out, operands.shapes, dtype, library)

            scalars = alpha, beta
            if narrow is None:
                values, report = _product(
                    operands, c, request, scalars, out, key, refusal
                )
            else:
                values, report = _narrow_product(
                    operands, c, request, scalars, key, refusal
                )
            return deliver(values, report, library, out, return_report)


_EXACT_INTEGERS = 2**53
"""Integers up to this magnitude are numbers of float64."""
KeyAndArguments = tuple[Hashable, tuple[Any, ...]]
"""The kind of a call, and what a `KeptCall` takes of it."""


def key_of_gemm(
    arrays: tuple[Any, Any, Any, Any],
    scalars: tuple[complex, complex],
    transposes: tuple[str, str],
    policy: tuple[Any, ...],
) -> KeyAndArguments:
    """The kind of a call, and the arguments of what is kept of it; None for calls of
    which nothing is kept.

    `arrays` are A, B, C and out, `scalars` alpha and beta, of which the key holds what
    executables are made for. `policy` is what `keys.key_of` takes behind the arrays.
    """
    a, b, c, out = arrays
    alpha, beta = scalars
    if type(alpha) is not float or type(beta) is not float:
        return None, ()
    mantissa, shift = frexp(alpha)
    has_addend = beta != 0
    if mantissa == 0:
        return None, ()
    # Sums with powers of two may be rounded once, see `product_plus`.
    is_power = mantissa in (1.0, -1.0) and abs(frexp(beta)[0]) == 1.0
    x = view_of(a, transposes[0])
    y = view_of(b, transposes[1])
    if x is None or y is None:
        return None, ()
    if type(x) is np.ndarray and x.dtype.kind not in "fc":
        return None, ()
    key = key_of(x, y, None if has_addend else out, *policy)
    if key is not None and mantissa == -1.0 and not has_addend:
        # The sign goes to A, see `_with_sign`.
        if type(x) is Prepared or type(y) is Prepared:
            return None, ()
        x = -x
        mantissa = 1.0
        key = key_of(x, y, out, *policy)
    if key is None:
        return None, ()

    if not has_addend:
        is_product = mantissa == 1.0
        kind: Hashable = shift, is_product or is_moderate(mantissa)
        numbers = () if is_product else (None, mantissa)
        return ("gemm", is_product, kind, key), (x, y, out, *numbers)
    p = in_memory(x)
    q = in_memory(y)
    layout = layout_of_result(p, q, c)
    target = layout if out is c or out is None else layout_of_result(p, q, out)
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
    a: object,
    b: object,
    c: Any,
    trans_a: str,
    trans_b: str,
    library: Library,
    request: Request,
) -> tuple[Operands, Array | None, Request]:
    """op(A) and op(B) as the road takes them, C in the dtype of the product, and the
    request for it.
    """
    x = as_operand(a, "a", library)
    y = as_operand(b, "b", library)
    x, y = in_words(x, y, (trans_a, trans_b), integers=False)
    x = _transposed(x, trans_a, "a")
    y = _transposed(y, trans_b, "b")
    shapes = shapes_of(x.shape, y.shape)
    if c is None:
        operands = Operands(x, y, library, result_dtype(x.dtype, y.dtype))
        operands, request = with_out_dtype(operands, request)
        return operands, None, request

    addend = one_word(as_addend(c, library), "c")
    # A scalar of Python promotes as NumPy lets it, by its kind alone.
    kind = type(c)
    is_python_scalar = kind in (bool, int, float, complex)
    dtype = result_dtype(x.dtype, y.dtype, kind() if is_python_scalar else addend.dtype)
    check_addend(addend.shape, shapes.result)
    operands, request = with_out_dtype(Operands(x, y, library, dtype), request)
    return operands, converted(addend, operands.dtype), request


def _narrow_product(
    operands: Operands,
    c: Array | None,
    request: Request,
    scalars: tuple[complex, complex],
    key: Hashable,
    refusal: Refusal | None,
) -> tuple[Array, Report]:
    """alpha A B + beta C in a dtype that is narrower than the product's, with its
    report. Later calls of this key may repeat a product that is rounded twice.
    """
    import cmath

    from hifigemm.running import narrow
    from hifigemm.running.scaled_sums import sum_of_longer_operands

    out_dtype = cast(DType, request.out_dtype)
    u = operands.problem().fmt.u
    request = narrow.request_of_product(operands, request)
    is_once = request.result == "enclosure"
    has_terms = c is not None or scalars[0] != 0
    has_entries = math.prod(operands.shapes.result) > 0
    is_finite = all(map(cmath.isfinite, scalars))
    if is_once and has_terms and has_entries and is_finite:
        # Words of alpha A are none of those that A was prepared in.
        operands = unprepared(operands)
        values, report = sum_of_longer_operands(operands, c, request, scalars)
    else:
        # Without terms, and with scalars that are not finite, nothing is rounded.
        request = replace(request, result="array")
        product = _product(operands, c, request, scalars, None, key, refusal)
        values = cast(Array, product[0])
        report = product[1]
    values = narrow.rounded_values(values, None, out_dtype)
    return values, narrow.report_of_rounding(report, out_dtype, u, is_once)


@quiet
def _product(
    operands: Operands,
    c: Array | None,
    request: Request,
    scalars: tuple[complex, complex],
    out: object,
    key: Hashable,
    refusal: Refusal | None,
) -> tuple[Array | None, Report]:
    """alpha A B + beta C with its report, in `out` where it can be written there; later
    calls of this key may repeat it. `refusal` is why what is kept under it did not
    serve.
    """
    from hifigemm.running.scaled_sums import (
        accuracy_of_sum,
        costs_less_rounded_once,
        rounded_sum,
        with_room_for_rounding,
    )

    alpha, beta = scalars
    reads_product = alpha != 0
    mantissa, shift = frexp(alpha)
    plans = operands.plans(request.plan)
    problem = operands.problem()
    has_product = reads_product and problem.multiplications > 0
    has_entries = math.prod(operands.shapes.result) > 0
    is_sum = c is not None or (has_product and mantissa not in (1.0, -1.0))

    # An accuracy that two roundings would not keep is that of the sum.
    accuracy = accuracy_of_sum(problem, request, plans, alpha)
    if accuracy is None and costs_less_rounded_once(operands, c, request, scalars):
        accuracy = "correct"
    if accuracy is not None and is_sum and has_entries:
        import cmath

        if cmath.isfinite(alpha) and cmath.isfinite(beta):
            of_sum = replace(request, accuracy=accuracy)
            if plans:
                of_sum = request_of_plan(of_sum, plans[0])
                key = None
            # Words of alpha A are none of those that A was prepared in.
            operands = unprepared(operands)
            return rounded_sum(operands, c, of_sum, scalars, key, refusal)
        if isinstance(accuracy, Relative):
            raise PlanError(
                f"alpha = {alpha}, beta = {beta}: a relative error is promised for "
                "finite scalars"
            )
        # Finite scalars of this key are rounded once, which these are not.
        key = None

    negates = mantissa == -1.0 and (c is None or _is_one_sided(request, plans))
    if negates:
        operands = _with_sign(operands)
        mantissa = 1.0
        if c is not None or operands.are_prepared:
            key = None

    # What is rounded once more than T = 2**shift A B.
    is_product = mantissa == 1.0 and c is None
    epilogue = PLAIN if is_product else Epilogue(mantissa, beta, c)
    is_complex = isinstance(mantissa, complex)
    if is_complex:
        key = None
    if not is_product:
        of_product = with_room_for_rounding(request.accuracy, problem.fmt)
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
    if type(x) is float:
        return x
    is_traced = is_traced_by_compiler()
    if type(x) is int and not is_traced and abs(x) <= _EXACT_INTEGERS:
        return float(x)
    check_scalar(x, name)
    if is_traced:
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
            f"{name} = {x!r} is not a float64 number; it would be rounded to {value}"
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
