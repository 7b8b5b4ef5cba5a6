"""From the operands of a product to its result and report: plan, execute, deliver.

`product` is the whole way. It leaves a function for calls of the same kind, which
`programs` keeps; they skip it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Hashable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from hifigemm.accuracy import Target
from hifigemm.augmented import sum_with_product
from hifigemm.engine import Engine, Outcome
from hifigemm.engines import engine_for
from hifigemm.exceptions import PlanError
from hifigemm.executor import execute, in_steps
from hifigemm.libraries import Library
from hifigemm.numerics.bits import Array
from hifigemm.numerics.bounds import are_ordinary
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.numerics.subnormals import is_ieee
from hifigemm.operands import (
    Prepared,
    Shapes,
    common_narrow,
    result_dtype,
    shapes_of,
    stacked,
    usable_split,
)
from hifigemm.plan import Decision, Evidence, Plan, Report
from hifigemm.planner import (
    Options,
    check_strict,
    for_problem,
    make,
    steady,
    workspace_limit,
)
from hifigemm.problem import Problem
from hifigemm.programs import keep
from hifigemm.schemes import Native, Scheme
from hifigemm.settings import decision_log, is_strict

quiet = np.errstate(all="ignore")
"""Underflow, overflow and NaN are part of the work here, whatever the caller's settings
are.
"""


@quiet
def product(
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
    """alpha (2**shift A B) + beta C in the result's shape, with its report: the flow of
    the library.

    `idle` says why A and B are not read. No result is returned where it was written to
    `out`.
    """
    dtype = dtype or result_dtype(a.dtype, b.dtype)
    shapes = shapes_of(a.shape, b.shape)
    problem = shapes.problem(dtype, common_narrow(a.dtype, b.dtype), mirror)
    given = given_plan(a, b, options, problem)
    engine = engine_for(
        options.engine if given is None else given.engine, library.name, library.device
    )
    if not problem.multiplications:
        idle = "a dimension is 0: nothing to multiply"
    limit = workspace_limit(problem, options.workspace, engine)
    started = time.perf_counter()
    if given is not None:
        plan = for_problem(given, problem, engine, limit, options.return_report)
    else:
        plan = plan_for(
            a, b, shapes, problem, options, engine, limit, may_look=not idle
        )
    decided = time.perf_counter() - started
    stack = problem.batch, problem.m, problem.n
    if epilogue.c is not None:
        epilogue = replace(
            epilogue, c=np.broadcast_to(epilogue.c, shapes.result).reshape(stack)
        )
    if idle:
        values = epilogue.without_product(np.zeros(stack, dtype, like=array_of(a)))
        report = _report(
            replace(plan, reason=idle), Outcome(values, 0.0, 0), engine, decided
        )
        _log(problem, report)
        return values.reshape(shapes.result), report
    check_strict(plan)
    left, right = stacks_of(
        a,
        b,
        shapes,
        None if plan.alternatives and problem.narrow is not None else dtype,
    )
    view = library.out_view(out, stack, array_of(a), array_of(b))
    splits = (
        usable_split(a, "left", shapes.left),
        usable_split(b, "right", shapes.right),
    )
    first = plan
    plan, outcome = execute(
        plan, left, right, engine, limit, shift, epilogue, splits, view
    )
    # not on the memory that is free
    rests_on_call = plan is first and (plan.is_whole or limit == steady(limit))
    if options.key is not None and rests_on_call and (view is None) == (out is None):
        operands = array_of(a), array_of(b)
        _keep(
            options.key,
            plan,
            engine,
            library,
            limit,
            operands,
            (left, right),
            shapes.result,
            view,
        )
    report = _report(plan, outcome, engine, decided)
    if plan.alternatives and is_strict():
        check_strict(plan, report.scheme)
    _log(problem, report)
    return None if outcome.values is view else outcome.values.reshape(
        shapes.result
    ), report


def plan_for(
    a: Array | Prepared,
    b: Array | Prepared,
    shapes: Shapes,
    problem: Problem,
    options: Options,
    engine: Engine,
    limit: int,
    *,
    may_look: bool,
) -> Plan:
    """The plan of the product of two operands, which are only looked at where
    `may_look` and the plan rests on them.
    """

    def look(scheme: Scheme, target: Target) -> Evidence | None:
        return scheme.evidence(
            problem, target, *stacks_of(a, b, shapes, problem.dtype), engine, limit
        )

    return make(
        problem,
        options.accuracy,
        options.scheme,
        engine,
        limit,
        look if may_look else None,
        options.return_report,
    )


def _report(
    plan: Plan, outcome: Outcome, engine: Engine, decision_seconds: float
) -> Report:
    """What was done; where a device decides, what it found is read when somebody
    looks.
    """
    planned, certificate = (
        (plan.scheme, outcome.num_products, outcome.bound, plan.k_block),
        outcome.certificate,
    )
    reasons = [plan.reason, *outcome.notes]

    def decide() -> Decision:
        scheme, products, bound, k_block = planned
        if certificate is not None:
            found = certificate()
            scheme, products, bound, k_block = (
                found.scheme,
                found.num_products,
                found.bound,
                found.k_block,
            )
            if plan.alternatives:
                reasons.append(f"{scheme} taken")
        native = isinstance(scheme, Native) and products > 0
        count = math.ceil(products - 1e-9)
        return Decision(
            scheme,
            count,
            bound,
            bound == 0.0,
            k_block,
            native,
            "; ".join(reasons),
            plan.target.relative,
        )

    return Report(engine.name, engine.device, plan.workspace, decision_seconds, decide)


def _log(problem: Problem, report: Report) -> None:
    """A line for each decision, where somebody reads them; it waits for a device that
    decides.
    """
    log = decision_log()
    if log.isEnabledFor(logging.INFO):
        milliseconds = 1e3 * report.decision_seconds
        log.info(
            "%s: %s, %s; decided in %.3g ms",
            problem,
            report.scheme,
            report.reason,
            milliseconds,
        )
        log.debug("%s", report)


@quiet
def product_plus(
    a: Array,
    b: Array,
    c: Array,
    s: float,
    options: Options,
    library: Library,
    shift: int,
    dtype: np.dtype[Any],
) -> tuple[Array, Report]:
    """2**shift (A B + s C), rounded once, in the result's shape."""
    shapes = shapes_of(a.shape, b.shape)
    left, right = stacks_of(a, b, shapes, dtype)
    stack = np.broadcast_to(c, shapes.result).reshape(
        shapes.count, left.shape[1], right.shape[2]
    )

    def multiply(x: Array, y: Array) -> tuple[Array, Report]:
        values, report = product(x, y, options, library, shift, dtype)
        return cast(Array, values), report

    values, report = sum_with_product(left, right, stack, s, multiply)
    return values.reshape(shapes.result), report


def deliver(
    result: Array | None,
    report: Report,
    library: Library,
    out: Any,
    return_report: bool,
) -> Any:
    """The result in `out`, if there is one, as an array of the operands' library, with
    its report if asked.
    """
    if out is not None:
        if result is None:
            library.note_change(out)
        else:
            library.asarray(out, "out")[...] = result
            if library.on_host:
                library.note_change(out)
    given = library.to_native(cast(Array, result)) if out is None else out
    return (given, report) if return_report else given


def given_plan(
    a: Array | Prepared, b: Array | Prepared, options: Options, problem: Problem
) -> Plan | None:
    """The plan that was passed or that a prepared operand was made for; None where
    there is none.
    """
    plans = plans_of(options.plan, a, b)
    if not plans:
        return None
    for x, side in ((a, "left"), (b, "right")):
        if isinstance(x, Prepared) and x.side != side:
            raise PlanError(
                f"an operand prepared for the {x.side} stands on the {side}"
            )
    plan = plans[0]
    if any(p.layout != plan.layout for p in plans):
        raise PlanError(
            f"operands and plan are of different plans: {', '.join(str(p.scheme) for p in plans)}"
        )
    if options.accuracy is not None or options.scheme != "auto":
        raise PlanError(
            "a plan has its own accuracy and scheme; give either the plan or accuracy and scheme"
        )
    if options.engine not in (None, plan.engine):
        raise PlanError(
            f"engine={options.engine!r} differs from the plan's engine {plan.engine!r}"
        )
    if plan.problem.k != problem.k or plan.problem.dtype != problem.dtype:
        raise PlanError(f"the plan is for {plan.problem}; the operands are {problem}")
    return plan


def stacks_of(
    a: Array | Prepared,
    b: Array | Prepared,
    shapes: Shapes,
    dtype: np.dtype[Any] | None,
) -> tuple[Array, Array]:
    """Both operands as stacks of a dtype, None for their own."""
    left, right = array_of(a), array_of(b)
    return stacked(left, shapes.left, shapes.batch, dtype), stacked(
        right, shapes.right, shapes.batch, dtype
    )


def plans_of(plan: Plan | None, a: Array | Prepared, b: Array | Prepared) -> list[Plan]:
    """The plan that was passed, and those that operands were prepared for."""
    of_operands = [x.plan for x in (a, b) if isinstance(x, Prepared)]
    return of_operands if plan is None else [plan, *of_operands]


def array_of(x: Array | Prepared) -> Array:
    """The operand itself, prepared or not."""
    return x.operand if isinstance(x, Prepared) else x


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
        keep(
            key,
            (again, f"{plan.problem}: {plan.scheme}, {plan.reason}"),
            (engine.name, engine.device),
        )


def _repeated_on_host(
    plan: Plan,
    engine: Engine,
    library: Library,
    limit: int,
    operands: tuple[Array, Array],
    shape: tuple[int, ...],
) -> Any:
    """The plan carried out on matrices of NumPy or tensors of the CPU; a native product
    is only looked at.
    """
    if plan.problem.mirror or any(
        x.ndim != 2 or x.dtype != plan.problem.dtype for x in operands
    ):
        return None
    is_numpy, ordinary = (
        library.name == "numpy",
        (plan.problem.terms, 2.0**plan.problem.fmt.emin),
    )

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

    @quiet
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
