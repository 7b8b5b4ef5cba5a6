"""From the operands of a product to its result and report: plan, execute, deliver.

`product` runs all three steps. It keeps its executable, and later calls of the same
kind run that directly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hifigemm.base.exceptions import PlanError
from hifigemm.base.settings import announce, is_strict
from hifigemm.engines import engine_for
from hifigemm.engines.arrays import memory_of
from hifigemm.engines.core_sums import expected_seconds
from hifigemm.libraries import Library
from hifigemm.model.engine import Engine, has_kernels
from hifigemm.model.executable import (
    NOT_FINITE,
    Outcome,
    Refusal,
    Signature,
)
from hifigemm.model.plan import Plan, Report, Verification
from hifigemm.model.problem import Problem, counted
from hifigemm.numerics.bits import Array
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.numerics.integer_sums import Rounding
from hifigemm.numerics.three_words import open_block
from hifigemm.operands.operands import Operands, Prepared
from hifigemm.running.auto import EvidenceByNeed, Need
from hifigemm.running.calls import KeptCall, Refused, keep_by_engine
from hifigemm.running.executor import (
    SumsInSteps,
    continue_after,
    lowered,
    outcome_of,
    planned,
    quiet,
    run,
    usable_split,
)
from hifigemm.running.planner import (
    check_strict,
    for_problem,
    make,
    steady,
    workspace_limit,
)
from hifigemm.running.reports import log_decision, report_on
from hifigemm.running.request import Request

if TYPE_CHECKING:
    from hifigemm.running.augmented import Term


@quiet
def product(
    operands: Operands,
    request: Request,
    *,
    shift: int = 0,
    epilogue: Epilogue = PLAIN,
    no_product: str = "",
    out: object = None,
    mirror: str = "",
    key: Hashable = None,
    refused: Refused | None = None,
) -> tuple[Array | None, Report]:
    """alpha (2**shift A B) + beta C in the result's shape, with its report.

    This is the flow of the library.

    Parameters
    ----------
    operands, request
        The operands and the options of the call.
    shift, epilogue
        The power of two of alpha, the rest of it, beta and C.
    no_product
        Why A and B are not read; "" if they are.
    out
        An array of the operands' library. If the result was written there, none is
        returned; otherwise the caller copies it.
    mirror
        See `Problem`.
    key
        The key under which the executable is kept for calls of the same kind; None: do
        not keep it.
    refused
        The kept executable of this kind of call, and why it rejected these operands;
        None if it was not tried.
    """
    library = operands.library
    dtype = operands.dtype
    shapes = operands.shapes
    problem = operands.problem(mirror)

    # The plan: from the caller or a prepared operand, or from the planner.
    passed = passed_plan(operands, request, problem)
    engine_name = request.engine if passed is None else passed.engine
    engine = engine_for(engine_name, library.name, library.device)
    limit = workspace_limit(problem, request.workspace, engine)
    if not problem.multiplications:
        no_product = "a dimension is 0: nothing to multiply"
    started = time.perf_counter()
    rests_on_operands = False
    refusal = None
    if refused is not None and refused.refusal.of_operands:
        refusal = refused.refusal
        plan = refused.call.plan
    elif passed is None:
        plan, rests_on_operands = plan_for(
            operands, problem, request, engine, limit, may_inspect=not no_product
        )
    else:
        plan = for_problem(passed, problem, engine, limit, request.return_report)
    decision_seconds = time.perf_counter() - started

    # Without a product, alpha A B is zero.
    stack = problem.shape
    if epilogue.c is not None:
        c = np.broadcast_to(epilogue.c, shapes.result).reshape(stack)
        epilogue = epilogue._replace(c=c)
    if no_product:
        zeros = np.zeros(stack, dtype, like=operands.arrays[0])
        values = epilogue.without_product(zeros)
        outcome = Outcome(values, 0.0, 0)
        is_final = epilogue.c is None or values.size == 0
        unused_plan = replace(plan, reason=no_product)
        report = report_on(unused_plan, outcome, engine, decision_seconds, is_final)
        log_decision(problem, report)
        return values.reshape(shapes.result), report

    # The product.
    check_strict(plan)
    lowering = engine.lowering(plan)
    takes_own_dtypes = lowering is not None and lowering.takes_narrow
    stack_dtype = None if takes_own_dtypes and operands.are_floats else dtype
    left, right = operands.stacks(stack_dtype)
    splits = (
        usable_split(operands.a, "left", shapes.left, plan, lowering),
        usable_split(operands.b, "right", shapes.right, plan, lowering),
    )
    view = library.out_view(out, stack, *operands.arrays)
    seconds = expected_seconds(plan) if library.on_host else 0.0
    announce(problem, plan.scheme, seconds)
    signature = Signature(left, right, shapes.result, view, shift, epilogue, splits)
    if refusal is not None:
        key = None  # an executable that rejects these operands is already kept
        final_plan, outcome = continue_after(refusal, plan, signature, engine, limit)
    else:
        executable = lowered(plan, signature, engine, limit)
        final_plan, outcome = run(plan, executable, signature, engine, limit)

    # T = A B is the result, or it is rounded once more.
    is_final = epilogue.idle
    report = report_on(final_plan, outcome, engine, decision_seconds, is_final)
    if plan.alternatives and is_strict():
        check_strict(final_plan, report.scheme)
        key = None
    elif key is not None:
        # Kept for later calls, unless its blocks follow from the memory that is free
        # now, or a device writes to a copy of `out`.
        is_steady = plan.is_whole or limit == steady(limit)
        writes_directly = library.on_host or (view is None) == (out is None)
        if is_steady and writes_directly:
            stacks = operands.stack_functions(left, right, stack_dtype)
            kept_call = KeptCall(
                plan,
                executable,
                engine,
                library,
                stacks,
                is_final,
                seconds,
                limit,
                splits,
                request.out_dtype,
            )
            _keep(key, kept_call, signature, rests_on_operands)
    log_decision(problem, report)
    if outcome.values is view:
        return None, report
    return outcome.values, report


def plan_for(
    operands: Operands,
    problem: Problem,
    request: Request,
    engine: Engine,
    limit: int,
    *,
    may_inspect: bool,
) -> tuple[Plan, bool]:
    """The plan of a product, and True if it depends on the values of these operands.

    The values are read if the plan needs them and `may_inspect` is True.
    """

    def plan_or_need(evidence_by_need: EvidenceByNeed) -> Plan | Need:
        return make(
            problem,
            request.accuracy,
            request.scheme,
            engine,
            limit,
            evidence_by_need if may_inspect else None,
            request.return_report,
        )

    stacks = partial(operands.stacks, problem.dtype)
    return planned(plan_or_need, problem, stacks, engine, limit)


@quiet
def rounded_once(
    operands: Operands,
    request: Request,
    rounding: Rounding,
    *,
    c: Array | None = None,
    shift: int = 0,
    key: Hashable = None,
) -> tuple[Outcome, Report] | None:
    """2**shift (+-A B + s C) by a rounding of exact sums, with a report.

    The plan is the one for correct rounding. On a GPU its launches round the sum: they
    use residues that hold the exact product, or sums in words. On a CPU sums in three
    words do, and may leave entries uncertified. Returns None if there is neither, or if
    a plan, a workspace or a prepared operand requires products.

    c has the dtype and the shape of the stack of results. The executable of the engine
    is kept under `key`, for calls of the same kind.
    """
    problem = operands.problem()
    is_default = request.plan is None and request.workspace is None
    if not is_default or operands.are_prepared or not problem.multiplications:
        return None
    library = operands.library
    engine = engine_for(request.engine, library.name, library.device)
    by_kernels = has_kernels(engine)
    if not (by_kernels or library.on_host):
        return None

    # A scheme with sums in three words inspects no operands for its plan.
    started = time.perf_counter()
    limit = workspace_limit(problem, None, engine)
    plan, rests_on_operands = plan_for(
        operands, problem, request, engine, limit, may_inspect=by_kernels
    )
    plan = replace(plan, rounding=rounding)
    decision_seconds = time.perf_counter() - started
    lowering = engine.lowering(plan)
    if by_kernels:
        is_exact = plan.bound == 0.0 and plan.verification is Verification.A_PRIORI
        if lowering is None or not is_exact:
            return None
    seconds = expected_seconds(plan) if library.on_host else 0.0
    announce(problem, plan.scheme, seconds)
    plan = replace(plan, reason="; ".join([plan.reason, *rounding.notes]))

    # The engine's executable, otherwise the sums of the scheme.
    left, right = operands.stacks(operands.dtype)
    epilogue = PLAIN if c is None else Epilogue(1.0, 1.0, c)
    signature = Signature(
        left, right, operands.shapes.result, shift=shift, epilogue=epilogue
    )
    outcome: Outcome | Refusal = NOT_FINITE
    executable = None if lowering is None else lowering.lower(signature)
    if executable is not None:
        outcome = outcome_of(executable, signature)
    if isinstance(outcome, Refusal):
        if by_kernels:
            return None
        outcome = outcome_of(SumsInSteps(plan, signature, engine), signature)
        if isinstance(outcome, Refusal):
            return None
    elif executable and key is not None and (plan.is_whole or limit == steady(limit)):
        stacks = operands.stack_functions(left, right, operands.dtype)
        kept_call = KeptCall(
            plan,
            executable,
            engine,
            library,
            stacks,
            True,
            seconds,
            limit,
            out_dtype=request.out_dtype,
        )
        _keep(key, kept_call, signature, rests_on_operands)
    return outcome, report_on(plan, outcome, engine, decision_seconds)


@quiet
def product_plus(
    operands: Operands,
    addend: Term,
    request: Request,
    shift: int,
    key: Hashable = None,
    sign: int = 1,
) -> tuple[Array, Report]:
    """2**shift (sign A B + s C), rounded once, in the result's shape.

    Exact sums settle all entries on a GPU, and nearly all on a CPU. A longer product
    computes the rows and columns of the other entries, or all entries if there are no
    such sums: see `augmented`.
    """
    shapes = operands.shapes
    c = np.broadcast_to(addend.c, shapes.result).reshape(shapes.stack)
    mantissa, exponent = math.frexp(addend.s)
    rounding = Rounding(
        has_addend=True,
        c_exponent=exponent - 1,
        c_sign=1 if mantissa > 0 else -1,
        sign=sign,
    )
    at_once = rounded_once(operands, request, rounding, c=c, shift=shift, key=key)
    if at_once is not None:
        outcome, report = at_once
        certified = outcome.certified
        if certified is None or certified.all():
            return outcome.values, report
        values = outcome.values.reshape(shapes.stack)
        certified = certified.reshape(shapes.stack)
        request = by_slices(request)

    from hifigemm.running.augmented import Term, sum_with_product

    # Without exact sums, a longer product for all entries.
    def multiply(x: Array, y: Array) -> tuple[Array, Report]:
        longer = replace(operands, a=x, b=y)
        values, report = product(longer, request, shift=shift)
        return cast(Array, values), report

    left, right = operands.stacks(operands.dtype)
    if sign < 0:
        left = -left
    if at_once is None:
        addend = Term(c, addend.s)
        values, report = sum_with_product(left, right, [addend], multiply)
        return values.reshape(shapes.result), report

    # Otherwise for the rows and columns of the uncertified entries.
    certified = cast(Array, certified)
    block, rows, cols = open_block(certified)
    part = Term(c[block], addend.s)
    others, second = sum_with_product(
        left[:, rows], right[:, :, cols], [part], multiply
    )
    values[block] = np.where(certified[block], values[block], others)
    return values.reshape(shapes.result), with_others(report, second, certified, block)


def by_slices(request: Request) -> Request:
    """The request for entries that sums in three words leave open: do not try these or
    shorter sums again.
    """
    from hifigemm.schemes.ozaki1 import SLICES

    return replace(request, accuracy="correct", scheme=SLICES)


def with_others(
    report: Report,
    second: Report,
    certified: Array,
    block: tuple[slice | Array, ...],
) -> Report:
    """The report of sums, with the products that computed a block again for its
    uncertified entries.
    """
    others = counted(int(np.count_nonzero(~certified)), "entry", "entries")
    share = certified[block].size / certified.size
    return report.with_product(second, share, f"{others} by {second.scheme}")


def deliver(
    result: Array | None,
    report: Report,
    library: Library,
    out: object,
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
    values = out
    if out is None:
        values = library.from_memory(memory_of(cast(Array, result)))
    return (values, report) if return_report else values


def passed_plan(operands: Operands, request: Request, problem: Problem) -> Plan | None:
    """The plan that the caller passed or an operand was prepared for; None without one.

    Raises PlanError: a plan for another product, or together with other options.
    """
    plans = operands.plans(request.plan)
    if not plans:
        for x in (operands.a, operands.b):
            if isinstance(x, Prepared):
                _check_plan_fits(x.plan, problem)
        return None
    plan = plans[0]
    if any(other.split_key != plan.split_key for other in plans):
        schemes = ", ".join(str(other.scheme) for other in plans)
        raise PlanError(f"operands and plan are of different plans: {schemes}")
    options = request.accuracy_and_scheme
    if options:
        raise PlanError(
            f"the plan has its own accuracy ({plan.target}) and scheme ({plan.scheme}); "
            f"leave {options} out, or leave the plan out"
        )
    request.check_engine(plan)
    _check_plan_fits(plan, problem)
    return plan


def _check_plan_fits(plan: Plan, problem: Problem) -> None:
    """Raise PlanError unless the plan is for products of this k and dtype."""
    if plan.problem.k != problem.k or plan.problem.dtype != problem.dtype:
        raise PlanError(f"the plan is for {plan.problem}; the operands are {problem}")


def _keep(
    key: Hashable, call: KeptCall, signature: Signature, rests_on_operands: bool
) -> None:
    """Keep a call for later ones of its kind.

    If its plan depends on the operands, later calls inspect their operands first, or
    nothing is kept.
    """
    engine = call.engine
    if rests_on_operands:
        lowering = engine.lowering(call.plan)
        inspecting = None
        if lowering is not None:
            inspecting = lowering.inspecting(signature, call.executable)
        if inspecting is None:
            return
        call.executable = inspecting
    keep_by_engine(key, call, engine)
