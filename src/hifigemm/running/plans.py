"""Plans and prepared operands of untracked arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from hifigemm.base.exceptions import PlanError
from hifigemm.engines import engine_for
from hifigemm.libraries import Library, library_of
from hifigemm.model.accuracy import Accuracy
from hifigemm.model.engine import has_kernels
from hifigemm.model.plan import Plan
from hifigemm.model.problem import Problem
from hifigemm.numerics.bits import Array
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
from hifigemm.running.executor import quiet, split_of
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
    with library.active():
        return _plans_of(operands, request)[1]


@quiet
@ieee_arithmetic()
def prepared(
    a: object,
    side: Literal["left", "right"],
    plan: Plan | None,
    accuracy: Accuracy,
    scheme: str | Scheme,
) -> Prepared:
    """An operand with what products make of it first, by a plan or for a request."""
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
    asked = None
    with library.active():
        if plan is None:
            asked = accuracy, scheme
            plan, reusable_plan = _plans_with_transpose(x, side, library, asked)
        else:
            reusable_plan = plan
            _check_fits(x, side, plan.problem)

        # Where a device chooses between words, a narrow operand keeps its dtype.
        problem = plan.problem
        is_narrow = problem.narrow is not None
        is_narrow = is_narrow and problem.narrow is common_narrow(x.dtype, x.dtype)
        keeps_dtype = is_narrow and bool(plan.alternatives)
        operand = x if keeps_dtype else converted(x, problem.dtype)
        if operand is x:
            operand = x.copy()
        split = None
        engine = engine_for(plan.engine, library.name, library.device)
        # On a CPU a scheme that looked at the operands splits others in another way.
        has_looked = asked is not None and plan.evidence is not None
        serves_others = has_kernels(engine) or not has_looked
        if operand.size and serves_others:
            stack = own_stack(operand, side, problem)
            split = split_of(plan, stack, side, engine)
    return Prepared(operand, split, side, reusable_plan, library, asked)


def _check_fits(x: Array, side: str, problem: Problem) -> None:
    """Raise PlanError unless an operand is one of products like this one."""
    k = x.shape[-1] if side == "left" or x.ndim == 1 else x.shape[-2]
    if k != problem.k or result_dtype(x.dtype, problem.dtype) != problem.dtype:
        raise PlanError(
            f"operand of shape {x.shape} and {x.dtype} does not fit the plan's {problem}"
        )


def _plans_with_transpose(
    x: Array, side: str, library: Library, asked: tuple[Accuracy, str | Scheme]
) -> tuple[Plan, Plan]:
    """The plan for the product of an operand and its own transpose, which has the k, the
    dtype and the magnitudes of the operand; and the same for other operands.
    """
    transpose = x if x.ndim < 2 else np.swapaxes(x, -1, -2)
    left, right = (x, transpose) if side == "left" else (transpose, x)
    request = Request(*asked, return_report=True)
    operands = Operands(left, right, library, result_dtype(x.dtype, x.dtype))
    return _plans_of(operands, request)


def _plans_of(operands: Operands, request: Request) -> tuple[Plan, Plan]:
    """The plan of a product, and what of it serves other operands."""
    library = operands.library
    problem = operands.problem()
    engine = engine_for(request.engine, library.name, library.device)
    has_terms = bool(problem.multiplications)
    limit = workspace_limit(problem, request.workspace, engine)
    plan, _ = plan_for(operands, problem, request, engine, limit, may_inspect=has_terms)
    if has_terms:
        check_strict(plan)
    return plan, reusable(plan, engine, limit)
