"""Plans and prepared operands of untracked arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from hifigemm.base.exceptions import PlanError
from hifigemm.base.store import kept
from hifigemm.engines import engine_for
from hifigemm.engines.arrays import memory_of
from hifigemm.libraries import Library, library_of
from hifigemm.model.accuracy import Accuracy
from hifigemm.model.engine import Engine, has_kernels
from hifigemm.model.executable import NO_SPLITS
from hifigemm.model.plan import Plan
from hifigemm.model.problem import Problem
from hifigemm.numerics.bits import Array, DType
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
from hifigemm.running.calls import keep_by_engine
from hifigemm.running.executor import lowering_of_prepared, quiet, splitting
from hifigemm.running.keys import key_of
from hifigemm.running.planner import check_strict, reusable, steady, workspace_limit
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
        return _plans_of(operands, request).reusable_plan


class Preparation(NamedTuple):
    """How operands of one kind are prepared."""

    plan: Plan
    # what of the plan serves other operands
    reusable_plan: Plan
    dtype: DType
    # makes of the copy, as a stack, what products take of it; None: they take the copy
    split: Callable[[Array], Any] | None
    # (accuracy, scheme), or None where the plan was passed
    asked: tuple[Accuracy, str | Scheme] | None

    def __call__(self, copy: Array, side: str, library: Library) -> Prepared:
        """The operand of which this is the copy, prepared."""
        split = None
        if self.split is not None:
            split = self.split(own_stack(copy, side, self.plan.problem))
        return Prepared(copy, split, side, self.reusable_plan, library, self.asked)


Inspect = Callable[[Array, Array], Hashable]
"""What preparations of one kind go by, of an operand and its transpose as stacks."""


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

    # An operand like an earlier one is prepared as that one was.
    key: Hashable = key_of(a, a, None, accuracy, scheme, None, None, plan=plan)
    if key is not None:
        key = "prepare", side, key
        preparation = _kept_preparation(key, x, side, library)
        if preparation is not None:
            return preparation(_copy_of(x, preparation.dtype), side, library)
    with library.active():
        if plan is None:
            copy, preparation = _planned_preparation(
                x, side, library, (accuracy, scheme), key
            )
        else:
            _check_operand_fits(x, side, plan.problem)
            engine = engine_for(plan.engine, library.name, library.device)
            copy, preparation = _preparation(x, side, plan, plan, engine, None)
            if key is not None:
                keep_by_engine(key, preparation, engine)
        return preparation(copy, side, library)


def _kept_preparation(
    key: Hashable, x: Array, side: str, library: Library
) -> Preparation | None:
    """What is kept of operands like this one, which is inspected if it depends on that;
    None without one.
    """
    value: Preparation | Inspect | None = kept(key)
    if value is None or isinstance(value, Preparation):
        return value
    operands = _with_transpose(x, side, library)
    evidence_key = value(*operands.stacks(operands.dtype))
    preparation: Preparation | None = kept((key, evidence_key))
    return preparation


def _planned_preparation(
    x: Array,
    side: str,
    library: Library,
    asked: tuple[Accuracy, str | Scheme],
    key: Hashable,
) -> tuple[Array, Preparation]:
    """A copy, and its preparation by the plan of the product of an operand and its own
    transpose, which has the k, the dtype and the magnitudes of the operand; kept under
    the key, if there is one.
    """
    request = Request(*asked, return_report=True)
    operands = _with_transpose(x, side, library)
    plans = _plans_of(operands, request)
    plan = plans.plan
    engine = plans.engine

    copy, preparation = _preparation(x, side, plan, plans.reusable_plan, engine, asked)
    if key is None or not plans.is_steady:
        return copy, preparation
    if not plans.rests_on_operands:
        keep_by_engine(key, preparation, engine)
        return copy, preparation

    # Operands are told apart by what is seen of them.
    lowering = engine.lowering(plan)
    evidence_key = None if lowering is None else lowering.evidence_key
    is_inner = plan.evidence is not None and plan.evidence.inner
    if lowering is not None and evidence_key is not None and not is_inner:
        left, right = operands.stacks(operands.dtype)
        inspection = lowering.inspection(memory_of(left), memory_of(right), NO_SPLITS)

        def inspect(left: Array, right: Array) -> Hashable:
            return inspection(memory_of(left), memory_of(right), NO_SPLITS)

        keep_by_engine(key, inspect, engine)
        keep_by_engine((key, evidence_key), preparation, engine)
    return copy, preparation


def _preparation(
    x: Array,
    side: str,
    plan: Plan,
    reusable_plan: Plan,
    engine: Engine,
    asked: tuple[Accuracy, str | Scheme] | None,
) -> tuple[Array, Preparation]:
    """A copy of an operand, and how operands like this one are prepared by a plan."""
    dtype = _dtype_of_copy(x, plan, engine)
    copy = _copy_of(x, dtype)
    split = None
    # On a CPU a scheme that looked at the operands splits others in another way.
    serves_others = asked is None or has_kernels(engine) or plan.evidence is None
    if x.size and serves_others:
        split = splitting(plan, own_stack(copy, side, plan.problem), side, engine)
    return copy, Preparation(plan, reusable_plan, dtype, split, asked)


def _copy_of(x: Array, dtype: DType) -> Array:
    """A copy of an operand in this dtype, contiguous, as what makes splits takes it."""
    y = converted(x, dtype)
    return x.copy() if y is x else np.ascontiguousarray(y, like=y)


def _dtype_of_copy(x: Array, plan: Plan, engine: Engine) -> DType:
    """The dtype of the copy of an operand: that of the product, unless the engine takes
    a narrow operand as it is.
    """
    lowering = lowering_of_prepared(plan, engine)
    is_narrow = common_narrow(x.dtype, x.dtype) is not None
    if lowering is not None and is_narrow and lowering.takes_narrow:
        return x.dtype
    return plan.problem.dtype


def _check_operand_fits(x: Array, side: str, problem: Problem) -> None:
    """Raise PlanError unless an operand is one of products like this one."""
    k = x.shape[-1] if side == "left" or x.ndim == 1 else x.shape[-2]
    if k != problem.k or result_dtype(x.dtype, problem.dtype) != problem.dtype:
        raise PlanError(
            f"operand of shape {x.shape} and {x.dtype} does not fit the plan's {problem}"
        )


def _with_transpose(x: Array, side: str, library: Library) -> Operands:
    """An operand on its side, and its transpose on the other one."""
    transpose = x if x.ndim < 2 else np.swapaxes(x, -1, -2)
    left, right = (x, transpose) if side == "left" else (transpose, x)
    return Operands(left, right, library, result_dtype(x.dtype, x.dtype))


class _Plans(NamedTuple):
    """The plan of a product, and what is to be known of it."""

    plan: Plan
    reusable_plan: Plan  # what of it serves other operands
    engine: Engine
    rests_on_operands: bool
    is_steady: bool  # it does not follow from the memory that is free now


def _plans_of(operands: Operands, request: Request) -> _Plans:
    library = operands.library
    problem = operands.problem()
    engine = engine_for(request.engine, library.name, library.device)
    has_terms = bool(problem.multiplications)
    limit = workspace_limit(problem, request.workspace, engine)
    plan, rests_on_operands = plan_for(
        operands, problem, request, engine, limit, may_inspect=has_terms
    )
    if has_terms:
        check_strict(plan)
    is_steady = plan.is_whole or limit == steady(limit)
    reusable_plan = reusable(plan, engine, limit)
    return _Plans(plan, reusable_plan, engine, rests_on_operands, is_steady)
