"""Products of untracked arrays: no derivatives, no tracing."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from hifigemm.base.transforms import check_untraced, opaque
from hifigemm.engines.arrays import memory_of
from hifigemm.libraries import library_of
from hifigemm.model.accuracy import Accuracy
from hifigemm.model.plan import Plan
from hifigemm.numerics.bits import Array
from hifigemm.numerics.subnormals import ieee_arithmetic
from hifigemm.operands.operands import as_out, check_out
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
        )
    if refused is None:
        replayed = replay(key, (a, b, out), out, return_report)
        if isinstance(replayed, Refused):
            refused = replayed
        elif replayed is not None:
            return replayed

    # The door: what is asked, whose arrays these are, and if they can be multiplied.
    check_result(result)
    has_two_parts = result in TWO_PARTS
    if has_two_parts:
        from hifigemm.running.exact_results import check_two_parts, two_parts

        check_two_parts(result, accuracy, out, plan)
        accuracy = "correct"
    request = Request(accuracy, scheme, engine, plan, workspace, return_report, result)
    check_untraced(
        {"a": a, "b": b},
        engine=engine,
        plan=plan,
        out=out,
        result=None if result == "array" else result,
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
                key = key_of(x, y, None, *policy, mirror, plan)
            if key is not None:
                key = "cupy", key
                replayed = replay(key, (x, y), None, return_report)
                if isinstance(replayed, Refused):
                    refused = replayed
                elif replayed is not None:
                    return replayed
        if out is not None:
            check_out(out, operands.shapes, operands.dtype, library)

        # The road of this kind of product.
        if has_two_parts:
            parts, report = two_parts(operands, request, key)
            native_parts = tuple(library.to_native(x) for x in parts)
            return (native_parts, report) if return_report else native_parts
        values: Array | None
        if operands.dtype.kind in "biuO":
            from hifigemm.running.integers import integer_product

            values, report = integer_product(operands, request, key)
        else:
            values, report = product(
                operands,
                request,
                out=out,
                mirror=mirror,
                key=key,
                refused=refused,
            )
        return deliver(values, report, library, out, return_report)
