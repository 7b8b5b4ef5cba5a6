"""Products of untracked arrays: no derivatives, no tracing."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, cast

from hifigemm.base.transforms import check_untraced, opaque
from hifigemm.engines.arrays import memory_of
from hifigemm.libraries import library_of
from hifigemm.model.accuracy import Accuracy
from hifigemm.model.plan import Plan
from hifigemm.numerics.bits import Array
from hifigemm.numerics.subnormals import ieee_arithmetic
from hifigemm.operands.operands import as_out, check_out, unprepared
from hifigemm.operands.out_dtype import as_out_dtype
from hifigemm.running.admission import admit
from hifigemm.running.calls import Refused, replay
from hifigemm.running.keys import key_of
from hifigemm.running.request import TWO_PARTS, Request, Result, check_result
from hifigemm.running.road import deliver, product
from hifigemm.schemes import Scheme


@opaque
def product_of_numbers(
    a: object,
    b: object,
    accuracy: Accuracy = None,
    scheme: str | Scheme = "auto",
    out: object = None,
    engine: str | None = None,
    plan: Plan | None = None,
    workspace: int | None = None,
    return_report: bool = False,
    result: Result = "array",
    mirror: str = "",
    out_dtype: object = None,
    key: Hashable = None,
    refused: Refused | None = None,
) -> Any:
    """`matmul` of untracked arrays. `mirror` is that of `Problem`; `key` is that of
    `key_of`, and `refused` what came of `replay`, where they are known.
    """
    # A call like an earlier one runs what that one has run.
    if key is None:
        key = key_of(
            a,
            b,
            out,
            accuracy,
            scheme,
            engine,
            workspace,
            return_report,
            result,
            mirror,
            plan,
            out_dtype,
        )
    if refused is None:
        replayed = replay(key, (a, b, out), out, return_report)
        if isinstance(replayed, Refused):
            refused = replayed
        elif replayed is not None:
            return replayed

    # The door: what is asked, whose arrays these are, and if they can be multiplied.
    check_result(result)
    if result in TWO_PARTS:
        from hifigemm.running.exact_results import check_two_parts

        check_two_parts(result, accuracy, out, plan, out_dtype)
        accuracy = "correct"
    request = Request(
        accuracy,
        scheme,
        engine,
        plan,
        workspace,
        return_report,
        result,
        as_out_dtype(out_dtype),
    )
    check_untraced(
        {"a": a, "b": b},
        engine=engine,
        plan=plan,
        out=out,
        result=None if result == "array" else result,
        out_dtype=out_dtype,
        return_report=return_report,
    )
    out = as_out(out)
    library = library_of(("a", a), ("b", b), ("out", out))
    with ieee_arithmetic(), library.active():
        operands, request = admit(a, b, out, library, request)
        if library.name == "cupy" and out is None:
            # The call is one of the tensors in the memory of the arrays.
            x, y = map(memory_of, operands.arrays)
            policy = accuracy, scheme, engine, workspace, return_report, result
            key = None
            if not operands.are_prepared:
                key = key_of(x, y, None, *policy, mirror, plan, out_dtype)
            if key is not None:
                key = "cupy", key
                replayed = replay(key, (x, y), None, return_report)
                if isinstance(replayed, Refused):
                    refused = replayed
                elif replayed is not None:
                    return replayed
        # A dtype that is narrower than the product's, else None.
        narrow = request.out_dtype
        if out is not None:
            dtype = operands.dtype if narrow is None else narrow
            check_out(out, operands.shapes, dtype, library)
        if narrow is not None:
            from hifigemm.running import narrow as narrowing

            request = narrowing.request_of_product(operands, request)

        # The road of this kind of product.
        values: Array | None
        second = None
        if request.result in TWO_PARTS:
            from hifigemm.running.exact_results import two_parts

            if narrow is not None:
                operands = unprepared(operands)
            (values, second), report = two_parts(operands, request, key)
        elif operands.dtype.kind in "biuO":
            from hifigemm.running.integers import integer_product

            values, report = integer_product(operands, request, key)
        else:
            values, report = product(
                operands,
                request,
                out=out if narrow is None else None,
                mirror=mirror,
                key=key,
                refused=refused,
            )

        # The last rounding, and delivery.
        if narrow is not None:
            first = cast(Array, values)
            u = operands.problem().fmt.u
            values = narrowing.rounded_values(first, second, narrow)
            report = narrowing.report_of_rounding(report, narrow, u, second is not None)
        elif second is not None:
            parts = cast(Array, values), second
            native_parts = tuple(library.to_native(x) for x in parts)
            return (native_parts, report) if return_report else native_parts
        return deliver(values, report, library, out, return_report)
