"""Plans and prepared operands of untracked arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from hifigemm.base.exceptions import PlanError
from hifigemm.engines import engine_for
from hifigemm.libraries import library_of
from hifigemm.model.accuracy import Accuracy
from hifigemm.model.plan import Plan
from hifigemm.numerics.subnormals import ieee_arithmetic
from hifigemm.operands.exact_operands import in_words, one_word
from hifigemm.operands.operands import (
    Operands,
    Prepared,
    as_operand,
    common_narrow,
    converted,
    own_stack,
    result_dtype,
)
from hifigemm.running.executor import quiet, whole_split
from hifigemm.running.planner import check_strict, reusable, workspace_limit
from hifigemm.running.request import Request, check_plan
from hifigemm.running.road import plan_for
from hifigemm.schemes import Scheme

if TYPE_CHECKING:
    from hifigemm.model.signatures import Operand


@quiet
@ieee_arithmetic()
def plan_of_numbers(
    a: Operand,
    b: Operand,
    *,
    accuracy: Accuracy = None,
    scheme: str | Scheme = "auto",
    engine: str | None = None,
    workspace: int | None = None,
) -> Plan:
    """The plan that `matmul` would follow for these operands."""
    request = Request(accuracy, scheme, engine, None, workspace, return_report=True)
    library = library_of(("a", a), ("b", b))
    x, y = in_words(as_operand(a, "a", library), as_operand(b, "b", library))
    operands = Operands(x, y, library, result_dtype(x.dtype, y.dtype))
    problem = operands.problem()
    unit = engine_for(engine, library.name, library.device)
    has_terms = bool(problem.multiplications)
    with library.active():
        limit = workspace_limit(problem, workspace, unit)
        plan, _ = plan_for(
            operands, problem, request, unit, limit, may_inspect=has_terms
        )
    if has_terms:
        check_strict(plan)
    return reusable(plan, unit, limit)


@quiet
@ieee_arithmetic()
def prepared(
    a: object,
    side: Literal["left", "right"],
    plan: Plan | None,
    accuracy: Accuracy,
    scheme: str | Scheme,
) -> Prepared:
    """An operand with its split done, by a plan or by one for its own transpose."""
    if not isinstance(side, str) or side not in ("left", "right"):
        raise PlanError(f'side={side!r}: expected "left" or "right"')
    if plan is not None:
        check_plan(plan)
        if accuracy is not None or scheme != "auto":
            raise PlanError(
                "a plan has its own accuracy and scheme; give either the plan or "
                "accuracy and scheme"
            )
    library = library_of(("a", a))
    x = as_operand(a, "a", library)
    if isinstance(x, Prepared):
        raise PlanError(f"the operand is prepared already: {x!r}")
    x = one_word(x, "a")
    if plan is None:
        plan = _plan_with_transpose(library.to_native(x), side, accuracy, scheme)
    problem = plan.problem
    k = x.shape[-1] if side == "left" or x.ndim == 1 else x.shape[-2]
    if k != problem.k or result_dtype(x.dtype, problem.dtype) != problem.dtype:
        raise PlanError(
            f"operand of shape {x.shape} and {x.dtype} does not fit the plan's {problem}"
        )

    # A split serves plans with one scheme, whose scales do not rest on both operands.
    engine = engine_for(plan.engine, library.name, library.device)
    chosen: Scheme = plan.scheme
    may_split = not chosen.is_native and not plan.alternatives
    splits = may_split and chosen.scales(plan, None, None, engine) is not None

    # Where a device chooses between words, a narrow operand keeps its dtype.
    is_narrow = problem.narrow is not None
    is_narrow = is_narrow and problem.narrow is common_narrow(x.dtype, x.dtype)
    keeps_dtype = is_narrow and bool(plan.alternatives)
    with library.active():
        operand = x if keeps_dtype else converted(x, problem.dtype)
        if operand is x:
            operand = x.copy()
        split = None
        if operand.size and splits:
            stack = own_stack(operand, side, problem)
            split = whole_split(plan, stack, side, engine)
    return Prepared(operand, split, side, plan, library)


def _plan_with_transpose(
    a: Any,
    side: Literal["left", "right"],
    accuracy: Accuracy,
    scheme: str | Scheme,
) -> Plan:
    """A plan for the product of an operand and its own transpose, which has the k, the
    dtype and the magnitudes of the operand.
    """
    transpose = a if a.ndim < 2 else a.swapaxes(-1, -2)
    left, right = (a, transpose) if side == "left" else (transpose, a)
    return plan_of_numbers(left, right, accuracy=accuracy, scheme=scheme)
