"""Products of untracked arrays: no derivatives, no tracing."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from hifigemm.base.transforms import check_untraced, opaque
from hifigemm.libraries import library_of
from hifigemm.model.accuracy import Accuracy
from hifigemm.model.plan import Plan
from hifigemm.numerics.bits import Array
from hifigemm.numerics.subnormals import ieee_arithmetic
from hifigemm.operands.operands import Operands, as_out, check_out
from hifigemm.running.admission import admit
from hifigemm.running.keys import key_of, replay
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
) -> Any:
    """`matmul` of untracked arrays. `mirror` is that of `Problem`."""
    check_result(result)
    has_two_parts = result in TWO_PARTS
    if has_two_parts:
        from hifigemm.running.exact_results import check_two_parts, two_parts

        check_two_parts(result, accuracy, out, plan)
        accuracy = "correct"

    # A call like an earlier one goes straight to its program. Products of integers, and
    # those of a plan that was passed, leave none.
    is_plain = result == "array" and plan is None
    key = None
    if is_plain or (has_two_parts and not return_report):
        key = key_of(a, b, out, accuracy, scheme, engine, workspace, return_report)
        if key is not None and (mirror or has_two_parts):
            key = result, mirror, key
        if key is not None:
            replayed = replay(key, a, b, out)
            if replayed is not None:
                return replayed

    # The door: what is asked, whose arrays these are, and if they can be multiplied.
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
        if library.name == "cupy" and is_plain and out is None and not mirror:
            key, replayed = _replayed_of_cupy(operands, request)
            if replayed is not None:
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

            values, report = integer_product(operands, request)
        else:
            values, report = product(operands, request, out=out, mirror=mirror, key=key)
        return deliver(values, report, library, out, return_report)


def _replayed_of_cupy(operands: Operands, request: Request) -> tuple[Hashable, Any]:
    """The key of a product of CuPy arrays, which is that of their tensors, and the
    product, or None where no earlier call has left its program.
    """
    from hifigemm.engines.device_array import unwrap, wrap

    if operands.are_prepared:
        return None, None
    a, b = map(unwrap, operands.arrays)
    policy = request.accuracy, request.scheme, request.engine, request.workspace
    key = key_of(a, b, None, *policy, request.return_report)
    replayed = None if key is None else replay(key, a, b, None)
    if replayed is None:
        return key, None
    to_native = operands.library.to_native
    if request.return_report:
        values, report = replayed
        return key, (to_native(wrap(values)), report)
    return key, to_native(wrap(replayed))
