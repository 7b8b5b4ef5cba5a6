"""From the operands of a product to its result and report: plan, execute, deliver.

`product` is the whole way. It leaves a function for calls of the same kind, which
`programs` keeps; they skip it.
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
from hifigemm.base.settings import announce, decision_log, is_strict, logs_decisions
from hifigemm.base.store import keep, kept
from hifigemm.engines import engine_for
from hifigemm.engines.core import expected_seconds
from hifigemm.engines.host_calls import is_as_passed, replayed_on_host
from hifigemm.libraries import Library
from hifigemm.model.accuracy import Target
from hifigemm.model.engine import (
    Call,
    Engine,
    Outcome,
    Repeated,
    has_kernels,
    report_of,
)
from hifigemm.model.plan import Choice, Decision, Evidence, Plan, Report, Verification
from hifigemm.model.problem import Problem, counted
from hifigemm.numerics.bits import Array
from hifigemm.numerics.bounds import are_ordinary
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.numerics.integer_sums import NEAREST, Rounding
from hifigemm.numerics.subnormals import is_ieee
from hifigemm.numerics.three_words import open_block
from hifigemm.operands.operands import Operands, Prepared, usable_split
from hifigemm.running.executor import execute, in_steps
from hifigemm.running.planner import (
    check_strict,
    for_problem,
    make,
    steady,
    workspace_limit,
)
from hifigemm.running.request import Request
from hifigemm.schemes import Native, Scheme

if TYPE_CHECKING:
    from hifigemm.running.augmented import Term

quiet = np.errstate(all="ignore")
"""Underflow, overflow and NaN are part of the work here, whatever the caller's settings
are.
"""


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
) -> tuple[Array | None, Report]:
    """alpha (2**shift A B) + beta C in the result's shape, with its report.

    This is the flow of the library.

    Parameters
    ----------
    operands, request
        What is multiplied, and what is asked of the product.
    shift, epilogue
        The power of two of alpha, the rest of it, beta and C.
    no_product
        Why A and B are not read; "" where they are.
    out
        An array of the operands' library. No result is returned where it was written
        there; it may have to be copied there still.
    mirror
        See `Problem`.
    key
        What `programs` keeps the product under, for calls of the same kind.
    """
    library = operands.library
    dtype = operands.dtype
    shapes = operands.shapes
    problem = operands.problem(mirror)

    # The plan: one that the caller or a prepared operand brings, or the planner's.
    passed = passed_plan(operands, request, problem)
    engine_name = request.engine if passed is None else passed.engine
    engine = engine_for(engine_name, library.name, library.device)
    limit = workspace_limit(problem, request.workspace, engine)
    if not problem.multiplications:
        no_product = "a dimension is 0: nothing to multiply"
    started = time.perf_counter()
    if passed is None:
        plan = plan_for(
            operands, problem, request, engine, limit, may_inspect=not no_product
        )
    else:
        plan = for_problem(passed, problem, engine, limit, request.return_report)
    decision_seconds = time.perf_counter() - started

    # Without a product, alpha A B is zero.
    stack = problem.batch, problem.m, problem.n
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
    is_narrow = bool(plan.alternatives) and problem.narrow is not None
    left, right = operands.stacks(None if is_narrow else dtype)
    splits = (
        usable_split(operands.a, "left", shapes.left),
        usable_split(operands.b, "right", shapes.right),
    )
    view = library.out_view(out, stack, *operands.arrays)
    planned = plan
    if library.on_host:
        announce(f"{problem}: {plan.scheme}", expected_seconds(plan))
    plan, outcome = execute(
        planned, left, right, engine, limit, shift, epilogue, splits, view
    )

    # T = A B is the result, or it is rounded once more.
    is_final = epilogue.idle

    # Later calls of this kind repeat it, unless it was escalated as a whole, or its
    # blocks follow from the memory that is free now, or a device writes to a copy of
    # `out`.
    is_as_planned = plan is planned and (plan.is_whole or limit == steady(limit))
    writes_directly = library.on_host or (view is None) == (out is None)
    if key is not None and is_as_planned and writes_directly:
        add_report = None
        if request.return_report:
            add_report = partial(_with_report, plan, engine, is_final)
        call = Call(
            operands.arrays,
            (left, right),
            shapes.result,
            out=view,
            shift=shift,
            epilogue=epilogue,
            deliver=add_report,
        )
        _keep(key, plan, engine, library, limit, call)

    report = report_on(plan, outcome, engine, decision_seconds, is_final)
    if plan.alternatives and is_strict():
        check_strict(plan, report.scheme)
    log_decision(problem, report)
    if outcome.values is view:
        return None, report
    return outcome.values.reshape(shapes.result), report


def plan_for(
    operands: Operands,
    problem: Problem,
    request: Request,
    engine: Engine,
    limit: int,
    *,
    may_inspect: bool,
) -> Plan:
    """The plan of a product, kept for later products of this kind.

    The operands are read if the plan depends on them and `may_inspect` is True. Such a
    plan holds for no other operands, so that it is not kept.
    """
    # The type tells 1 from True and 1.0, which are equal.
    policy = type(request.accuracy), request.accuracy, request.scheme
    call = *policy, request.return_report, is_strict(), may_inspect
    key = "plan", problem, limit, *call, engine
    plan: Plan | None = kept(key)
    if plan is not None:
        return plan

    rests_on_operands = False

    def inspect(scheme: Scheme, target: Target) -> Evidence | None:
        nonlocal rests_on_operands
        stacks = operands.stacks(problem.dtype)
        evidence = scheme.evidence(problem, target, *stacks, engine, limit)
        rests_on_operands = rests_on_operands or evidence is not None
        return evidence

    plan = make(
        problem,
        request.accuracy,
        request.scheme,
        engine,
        limit,
        inspect if may_inspect else None,
        request.return_report,
    )
    if not rests_on_operands:
        keep(key, plan, (engine.name, engine.device))
    return plan


def _with_report(
    plan: Plan, engine: Engine, is_final: bool, outcome: Outcome
) -> tuple[Any, Report]:
    """The values of a product that was repeated, and a report: nothing was decided."""
    return outcome.values, report_on(plan, outcome, engine, 0.0, is_final)


def report_on(
    plan: Plan,
    outcome: Outcome,
    engine: Engine,
    decision_seconds: float,
    is_final: bool = True,
) -> Report:
    """The report of an outcome. Where a device decides, its record is read when
    somebody looks at the report.

    Where alpha and beta are applied to the product, the result is not final: the bound
    then has room for the rounding of A B, of which that of the sum is the second.
    """
    # Functions must not hold the outcome, and with it the memory of its values.
    scheme: Choice = plan.scheme
    num_products = outcome.num_products
    bound = outcome.bound
    k_block = plan.k_block
    certificate = outcome.certificate
    reasons = [plan.reason, *outcome.notes]

    def decide() -> Decision:
        nonlocal scheme, num_products, bound, k_block
        if certificate is not None:
            record = certificate()
            scheme = record.scheme
            num_products = record.num_products
            bound = record.bound
            k_block = record.k_block
            if plan.alternatives:
                reasons.append(f"{scheme} taken")
            reasons.extend(record.notes)
        is_correct = bound == 0.0 and is_final
        if not is_final:
            reasons.append("alpha, beta applied")
            bound += 2.0 * plan.problem.fmt.u
        return Decision(
            scheme=scheme,
            num_products=math.ceil(num_products - 1e-9),
            bound=bound,
            correct=is_correct,
            k_block=k_block,
            native=scheme.is_native and num_products > 0,
            reason="; ".join(reasons),
            relative=plan.target.relative,
        )

    return report_of(engine, decide, plan.workspace, decision_seconds)


def log_decision(problem: Problem, report: Report) -> None:
    """Write a line for the decision, if a log takes it; that waits for a device that
    decides.
    """
    if logs_decisions():
        log = decision_log()
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

    The plan is that of correct rounding. On a GPU its program rounds so: it takes
    residues that hold the exact product, or sums in words. On a CPU these are sums in
    three words, where entries may stay that are not certified. None where there is
    neither, and where a plan, a workspace or a prepared operand asks for products.

    c is of the dtype and the shape of the stack of results. `key` is what `programs`
    keeps the plan's program under, for calls of the same kind.
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

    # A scheme that has sums in three words looks at no operands for its plan.
    started = time.perf_counter()
    limit = workspace_limit(problem, None, engine)
    plan = plan_for(operands, problem, request, engine, limit, may_inspect=by_kernels)
    plan = replace(plan, rounding=rounding)
    decision_seconds = time.perf_counter() - started

    stacks = operands.stacks(operands.dtype)
    make = _by_program if by_kernels else _by_three_words
    if library.on_host:
        announce(f"{problem}: {plan.scheme}", expected_seconds(plan))
    rounded = make(plan, engine, stacks, c, shift)
    if rounded is None:
        return None
    outcome, reason = rounded
    if rounding.has_addend:
        reason = f"{reason}; C among the terms"
    plan = replace(plan, reason=reason)

    # Later calls of this kind repeat it, unless it rests on the memory that is free.
    if key is not None and (plan.is_whole or limit == steady(limit)):
        add_report = None
        if request.return_report:
            add_report = partial(_with_report, plan, engine, True)
        call = Call(
            operands.arrays,
            stacks,
            operands.shapes.result,
            shift=shift,
            epilogue=PLAIN if c is None else Epilogue(1.0, 1.0, c),
            deliver=add_report,
        )
        _keep(key, plan, engine, library, limit, call)
    return outcome, report_on(plan, outcome, engine, decision_seconds)


def _by_program(
    plan: Plan,
    engine: Engine,
    stacks: tuple[Array, Array],
    c: Array | None,
    shift: int,
) -> tuple[Outcome, str] | None:
    """The outcome of the plan's program and the reason of the plan; None where no
    program makes the plan's rounding of exact sums.
    """
    if plan.bound != 0.0 or plan.verification is not Verification.A_PRIORI:
        return None
    program = engine.compile(plan)
    if program is None:
        return None
    epilogue = PLAIN if c is None else Epilogue(1.0, 1.0, c)
    outcome = program(*stacks, shift, epilogue, (None, None), None)
    reason = plan.reason
    if plan.rounding.has_two_parts:
        reason = f"{reason}; both arrays of one product"
    return outcome, reason


def _by_three_words(
    plan: Plan,
    engine: Engine,
    stacks: tuple[Array, Array],
    c: Array | None,
    shift: int,
) -> tuple[Outcome, str] | None:
    """The outcome of the scheme's sums in three words, and what they are; None where
    the scheme has none, or s C has bits below the smallest float64.
    """
    rounding = plan.rounding
    dtype = plan.problem.dtype
    left, right = stacks
    if rounding.sign < 0:
        left = -left

    # s C in real components, of which Inf and NaN are added at the end.
    scaled = None
    s = rounding.c_sign * 2.0**rounding.c_exponent
    if c is not None:
        components = np.ascontiguousarray(c).view(c.real.dtype)
        is_finite = np.isfinite(components)
        addend = np.where(is_finite, components, 0).astype(np.float64)
        scaled = addend * s
        is_exact = np.ldexp(scaled, -rounding.c_exponent) == addend * rounding.c_sign
        if not is_exact.all():
            return None
    kind = rounding.kind
    sums = plan.scheme.rounded_sums(plan, engine, left, right, scaled, shift, kind)
    if sums is None:
        return None
    values = sums.first
    if c is not None:
        values = np.where(is_finite, values, values + components * values.dtype.type(s))
    outcome = Outcome(values.view(dtype), 0.0, sums.num_products)
    if sums.second is not None:
        outcome.second = sums.second.view(dtype)
    outcome.certified = _certified_entries(sums.certified, outcome.values)
    return outcome, sums.reason


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

    Exact sums settle all entries on a GPU and nearly all on a CPU. The rows and columns
    of the others, and all of them elsewhere, are those of a longer product: see
    `augmented`.
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
        values = outcome.values
        certified = outcome.certified
        if certified is None or certified.all():
            return values.reshape(shapes.result), report
        request = by_slices(request)

    from hifigemm.running.augmented import Term, sum_with_product

    # A longer product, for all entries where no sums were made at once.
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

    # Else for the rows and columns of the entries that are not certified.
    certified = cast(Array, certified)
    block, rows, cols = open_block(certified)
    part = Term(c[block], addend.s)
    others, second = sum_with_product(
        left[:, rows], right[:, :, cols], [part], multiply
    )
    values[block] = np.where(certified[block], values[block], others)
    return values.reshape(shapes.result), with_others(report, second, certified, block)


def _certified_entries(certified: Array, values: Array) -> Array:
    """True for the entries of `values` all of whose real components are certified."""
    if values.dtype.kind != "c":
        return certified
    return np.asarray(certified.reshape(*values.shape, 2).all(axis=-1))


def by_slices(request: Request) -> Request:
    """The request for entries that sums in three words leave: neither these nor shorter
    sums are tried again.
    """
    from hifigemm.schemes.ozaki1 import SLICES

    return replace(request, accuracy="correct", scheme=SLICES)


def with_others(
    report: Report,
    second: Report,
    certified: Array,
    block: tuple[slice | Array, ...],
) -> Report:
    """The report of sums, with the products by which a block was made again for its
    entries that were not certified.
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
    values = library.to_native(cast(Array, result)) if out is None else out
    return (values, report) if return_report else values


def passed_plan(operands: Operands, request: Request, problem: Problem) -> Plan | None:
    """The plan that was passed or that an operand was prepared for; None without one.

    Raises PlanError: a plan for another product, or beside other options.
    """
    plans = operands.plans(request.plan)
    if not plans:
        return None
    for x, side in ((operands.a, "left"), (operands.b, "right")):
        if isinstance(x, Prepared) and x.side != side:
            raise PlanError(
                f"an operand prepared for the {x.side} stands on the {side}"
            )
    plan = plans[0]
    if any(other.split_key != plan.split_key for other in plans):
        schemes = ", ".join(str(other.scheme) for other in plans)
        raise PlanError(f"operands and plan are of different plans: {schemes}")
    given = [] if request.accuracy is None else ["accuracy="]
    if request.scheme != "auto":
        given.append("scheme=")
    if given and request.plan is not None:
        raise PlanError(
            f"the plan has its own accuracy ({plan.target}) and scheme ({plan.scheme}); "
            f"leave {' and '.join(given)} out, or leave the plan out"
        )
    if given:
        name = "a" if isinstance(operands.a, Prepared) else "b"
        raise PlanError(
            f"{name} was prepared with its own accuracy ({plan.target}) and scheme "
            f"({plan.scheme}); leave {' and '.join(given)} out, or prepare it again"
        )
    if request.engine not in (None, plan.engine):
        raise PlanError(
            f"engine={request.engine!r} differs from the plan's engine {plan.engine!r}"
        )
    if plan.problem.k != problem.k or plan.problem.dtype != problem.dtype:
        raise PlanError(f"the plan is for {plan.problem}; the operands are {problem}")
    return plan


def _keep(
    key: Hashable,
    plan: Plan,
    engine: Engine,
    library: Library,
    limit: int,
    call: Call,
) -> None:
    """Leave a function of the operands for calls of this kind, for `keys.replay`.

    In strict mode none is left where a device may take the native product.
    """
    if plan.alternatives and is_strict():
        return
    program = engine.compile(plan)
    replayed = None
    if program is not None:
        replayed = program.replayed(call)
    elif library.on_host and plan.evidence is None and plan.rounding == NEAREST:
        replayed = _replayed_in_steps(plan, engine, limit, call)
    if replayed is not None:
        description = f"{plan.problem}: {plan.scheme}, {plan.reason}"
        seconds = expected_seconds(plan) if library.on_host else 0.0
        keep(key, (replayed, description, seconds), (engine.name, engine.device))


def _replayed_in_steps(
    plan: Plan, engine: Engine, limit: int, call: Call
) -> Repeated | None:
    """A function that carries the plan out on matrices of NumPy or tensors of the CPU;
    None for other operands.

    The function returns None where a call needs the whole road: in a thread with
    another rounding mode, and for native products with entries out of the ordinary.
    """
    has_matrices = all(x.ndim == 2 for x in call.operands)
    if plan.problem.mirror or not has_matrices or not is_as_passed(call, plan):
        return None

    @quiet
    def of_stacks(a: Array, b: Array, c: Array | None) -> Outcome | None:
        return in_steps(plan, a, b, engine, limit, call.shift) if is_ieee() else None

    of_any = replayed_on_host(of_stacks, call, plan)
    is_plain = call.deliver is None and call.epilogue.idle and not call.shift
    if plan.scheme != Native() or not is_plain:
        return of_any

    # Native products: a look at the result, and nothing else around them.
    terms = plan.problem.terms
    smallest_normal = 2.0**plan.problem.fmt.emin

    def of_arrays(a: Any, b: Any, out: Any) -> Any:
        if type(a) is not np.ndarray:
            return of_any(a, b, out)
        if not is_ieee():
            return None
        c = engine.native_product(a[None], b[None])
        if not are_ordinary(c, terms, smallest_normal):
            return None
        if out is None:
            return c[0]
        out[...] = c[0]
        return out

    if engine.name != "torch":
        return of_arrays
    from hifigemm.engines.torch_engine import native_product_of

    def of_tensors(a: Any, b: Any, out: Any) -> Any:
        if type(a) is np.ndarray:
            return of_arrays(a, b, out)
        if not is_ieee():
            return None
        c = native_product_of(a, b)
        if not are_ordinary(c.numpy()[None], terms, smallest_normal):
            return None
        return c if out is None else out.copy_(c)

    return of_tensors
