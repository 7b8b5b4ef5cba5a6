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

from hifigemm.accuracy import CORRECT, Target
from hifigemm.augmented import sum_with_product
from hifigemm.engine import Engine, Outcome
from hifigemm.engines import engine_for
from hifigemm.exceptions import PlanError
from hifigemm.executor import execute, in_steps
from hifigemm.libraries import Library
from hifigemm.numerics.bits import Array
from hifigemm.numerics.bounds import are_ordinary
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.numerics.rounded_sums import Addend, rounded_sums
from hifigemm.numerics.subnormals import is_ieee
from hifigemm.numerics.three_words import Words, num_products, open_block, rounded
from hifigemm.operands import Operands, Prepared, usable_split
from hifigemm.plan import Decision, Evidence, Plan, Report
from hifigemm.planner import (
    check_strict,
    for_problem,
    make,
    steady,
    workspace_limit,
)
from hifigemm.problem import Problem, counted
from hifigemm.programs import keep, kept
from hifigemm.request import Request
from hifigemm.schemes import Native, Scheme
from hifigemm.schemes.auto import as_scheme
from hifigemm.schemes.double_double import SLICES, DoubleDouble
from hifigemm.schemes.ozaki2 import Ozaki2
from hifigemm.settings import decision_log, is_strict

_PRODUCTS_OF_A_SUM = 3
"""Products of residues that take as long as A B - C, or a pair, takes by products."""
_STEPS_OF_A_SUM = 1e-3
"""Seconds that the host takes for the steps between these products."""

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
    idle: str = "",
    out: Any = None,
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
    idle
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

    # The plan: one that was passed, or the planner's.
    passed = passed_plan(operands, request, problem)
    engine_name = request.engine if passed is None else passed.engine
    engine = engine_for(engine_name, library.name, library.device)
    limit = workspace_limit(problem, request.workspace, engine)
    if not problem.multiplications:
        idle = "a dimension is 0: nothing to multiply"
    started = time.perf_counter()
    if passed is None:
        plan = plan_for(operands, problem, request, engine, limit, may_look=not idle)
    else:
        plan = for_problem(passed, problem, engine, limit, request.return_report)
    decision_seconds = time.perf_counter() - started

    # Without a product, alpha A B is zero.
    stack = problem.batch, problem.m, problem.n
    if epilogue.c is not None:
        c = np.broadcast_to(epilogue.c, shapes.result).reshape(stack)
        epilogue = replace(epilogue, c=c)
    if idle:
        zeros = np.zeros(stack, dtype, like=operands.arrays[0])
        values = epilogue.without_product(zeros)
        outcome = Outcome(values, 0.0, 0)
        report = _report(replace(plan, reason=idle), outcome, engine, decision_seconds)
        _log(problem, report)
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
    plan, outcome = execute(
        planned, left, right, engine, limit, shift, epilogue, splits, view
    )

    # Later calls of this kind repeat it, unless it rests on the memory that is free.
    rests_on_call = plan is planned and (plan.is_whole or limit == steady(limit))
    if key is not None and rests_on_call and (view is None) == (out is None):
        _keep(key, plan, engine, operands, limit, (left, right), view)

    report = _report(plan, outcome, engine, decision_seconds)
    if plan.alternatives and is_strict():
        check_strict(plan, report.scheme)
    _log(problem, report)
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
    may_look: bool,
) -> Plan:
    """The plan of a product, kept for later products of this kind.

    The operands are only looked at where `may_look` and the plan rests on them. Such a
    plan holds for no other operands, so that it is not kept.
    """
    # The type tells 1 from True and 1.0, which are equal.
    policy = type(request.accuracy), request.accuracy, request.scheme
    call = *policy, request.return_report, is_strict(), may_look
    key = "plan", problem, limit, *call, engine
    plan: Plan | None = kept(key)
    if plan is not None:
        return plan

    rests_on_operands = False

    def look(scheme: Scheme, target: Target) -> Evidence | None:
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
        look if may_look else None,
        request.return_report,
    )
    if not rests_on_operands:
        keep(key, plan, (engine.name, engine.device))
    return plan


def _report(
    plan: Plan, outcome: Outcome, engine: Engine, decision_seconds: float
) -> Report:
    """What was done; where a device decides, what it found is read when somebody
    looks.
    """
    planned = (plan.scheme, outcome.num_products, outcome.bound, plan.k_block)
    certificate = outcome.certificate
    reasons = [plan.reason, *outcome.notes]

    def decide() -> Decision:
        scheme, products, bound, k_block = planned
        if certificate is not None:
            found = certificate()
            scheme = found.scheme
            products = found.num_products
            bound = found.bound
            k_block = found.k_block
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
def exact_sums(
    operands: Operands, request: Request, c: Array | None = None, shift: int = 0
) -> tuple[Words, Report] | None:
    """2**shift (A B + C) in three words with a report, c in real components; None where
    the request or the operands leave that to products.
    """
    problem = operands.problem()
    is_default = request.plan is None and request.workspace is None
    if not (is_default and problem.multiplications and operands.library.on_host):
        return None
    if operands.are_prepared:
        return None

    # A scheme that has such sums looks at no operands for its plan.
    started = time.perf_counter()
    library = operands.library
    engine = engine_for(request.engine, library.name, library.device)
    limit = workspace_limit(problem, None, engine)
    plan = plan_for(operands, problem, request, engine, limit, may_look=False)
    seconds = time.perf_counter() - started
    words = plan.scheme.exact_sums(plan, *operands.stacks(operands.dtype), c, shift)
    if words is None:
        return None
    reason = "operands in five parts, whose sums in three words are rounded once"
    outcome = Outcome(words.hi, 0.0, num_products(problem.is_complex))
    return words, _report(replace(plan, reason=reason), outcome, engine, seconds)


@quiet
def sums_of_terms(
    operands: Operands,
    request: Request,
    *,
    result: str = "array",
    c: Array | None = None,
    s: float = 1.0,
    shift: int = 0,
) -> tuple[tuple[Array, Array | None], Report] | None:
    """2**shift (A B + s C) rounded once, with a second array for a pair or an
    enclosure, by the kernels of a GPU that add the terms one by one, and a report.

    None where there are no such kernels, and where products of residues are quicker.
    """
    problem = operands.problem()
    is_default = request.plan is None and request.workspace is None
    if not (is_default and problem.multiplications) or operands.are_prepared:
        return None
    library = operands.library
    engine = engine_for(request.engine, library.name, library.device)
    costs = engine.costs
    scheme = DoubleDouble()
    if costs is None or not scheme.adds_terms(problem, engine):
        return None

    # The product, and another one of A B - C, take longer for small operands. What
    # large ones take depends on their exponents.
    started = time.perf_counter()
    target = CORRECT
    seconds = costs.sum_seconds(problem, result != "array")
    expected = Ozaki2().expected_products(problem, target)
    by_residues = _PRODUCTS_OF_A_SUM * costs.residue_seconds(problem, expected, True)
    if seconds > by_residues + _STEPS_OF_A_SUM:
        limit = workspace_limit(problem, None, engine)
        chosen = plan_for(operands, problem, request, engine, limit, may_look=True)
        if not isinstance(chosen.scheme, DoubleDouble):
            return None
    elif as_scheme(request.scheme) not in (None, scheme):
        return None
    plan = scheme.plan(problem, target, engine, None, None)
    decision_seconds = time.perf_counter() - started

    addend = None
    if c is not None:
        mantissa, exponent = math.frexp(s)
        addend = Addend(c, exponent - 1, 1 if mantissa > 0 else -1)
        plan = replace(plan, reason=f"{plan.reason}; C among the terms")
    left, right = operands.stacks(operands.dtype)
    options: dict[str, Any] = {"shift": shift, "addend": addend, "result": result}
    parts = engine.override(rounded_sums)(left, right, problem.fmt, **options)
    outcome = Outcome(parts[0], 0.0, 1)
    return parts, _report(plan, outcome, engine, decision_seconds)


@quiet
def product_plus(
    operands: Operands, c: Array, s: float, request: Request, shift: int
) -> tuple[Array, Report]:
    """2**shift (A B + s C), rounded once, in the result's shape.

    On a GPU terms are added one by one where that is quicker. Sums in three words
    settle nearly all entries on a CPU. The rows and columns of the
    others, and all of them elsewhere, are those of a longer product: see `augmented`.
    """
    shapes = operands.shapes
    addend = np.broadcast_to(c, shapes.result).reshape(shapes.stack)
    by_terms = sums_of_terms(operands, request, c=addend, s=s, shift=shift)
    if by_terms is not None:
        (values, _), report = by_terms
        return values.reshape(shapes.result), report
    settled = _settled_sums(operands, addend, s, request, shift)
    if settled is not None:
        values, is_certain, report = settled
        if is_certain.all():
            return values.reshape(shapes.result), report
        request = by_slices(request)

    def multiply(x: Array, y: Array) -> tuple[Array, Report]:
        augmented = replace(operands, a=x, b=y)
        values, report = product(augmented, request, shift=shift)
        return cast(Array, values), report

    left, right = operands.stacks(operands.dtype)
    if settled is None:
        values, report = sum_with_product(left, right, addend, s, multiply)
        return values.reshape(shapes.result), report
    block, rows, cols = open_block(is_certain)
    others, second = sum_with_product(
        left[:, rows], right[:, :, cols], addend[block], s, multiply
    )
    values[block] = np.where(is_certain[block], values[block], others)
    return values.reshape(shapes.result), with_others(report, second, is_certain, block)


def _settled_sums(
    operands: Operands, c: Array, s: float, request: Request, shift: int
) -> tuple[Array, Array, Report] | None:
    """2**shift (A B + s C) rounded once, where that is certain, and a report; None
    without sums in three words.
    """
    if not operands.library.on_host:
        return None
    components = np.ascontiguousarray(c).view(c.real.dtype)
    is_finite = np.isfinite(components)
    addend = np.where(is_finite, components, 0).astype(np.float64)
    scaled = addend * s
    if (np.ldexp(scaled, 1 - int(np.frexp(s)[1])) != addend * np.sign(s)).any():
        return None  # s C has bits below the smallest float64
    sums = exact_sums(operands, request, scaled, shift)
    if sums is None:
        return None
    words, report = sums
    values, is_certain = rounded(words, operands.problem().fmt)
    # Components of C that are Inf or NaN end where IEEE arithmetic puts them.
    values = np.where(is_finite, values, values + components * values.dtype.type(s))
    reason = f"{report.reason}; C among the terms"
    report = report.changed(lambda d: replace(d, reason=reason))
    return values.view(c.dtype), of_entries(is_certain, c), report


def of_entries(is_certain: Array, like: Array) -> Array:
    """True for the entries all of whose real components are certain."""
    if like.dtype.kind != "c":
        return is_certain
    return np.asarray(is_certain.reshape(*like.shape, 2).all(axis=-1))


def by_slices(request: Request) -> Request:
    """The request for entries that sums in three words leave: neither these nor shorter
    sums are tried again.
    """
    return replace(request, accuracy="correct", scheme=SLICES)


def with_others(
    report: Report, second: Report, is_certain: Array, block: Any
) -> Report:
    """The report of sums, with the products by which a block was made again."""
    open_ = counted(int(np.count_nonzero(~is_certain)), "entry", "entries")
    share = is_certain[block].size / is_certain.size
    return report.with_product(second, share, f"{open_} by {second.scheme}")


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
    if any(other.layout != plan.layout for other in plans):
        schemes = ", ".join(str(other.scheme) for other in plans)
        raise PlanError(f"operands and plan are of different plans: {schemes}")
    if request.accuracy is not None or request.scheme != "auto":
        raise PlanError(
            "a plan has its own accuracy and scheme; give either the plan or accuracy "
            "and scheme"
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
    operands: Operands,
    limit: int,
    stacks: tuple[Array, Array],
    out: Array | None,
) -> None:
    """Leave a function of the operands for calls of this kind."""
    if plan.alternatives and is_strict():
        return
    shape = operands.shapes.result
    program = engine.compile(plan)
    again = None
    if program is not None:
        again = program.repeated(operands.arrays, stacks, shape, out)
    elif operands.library.on_host and plan.evidence is None:
        again = _repeated_on_host(plan, engine, operands, limit)
    if again is not None:
        what = f"{plan.problem}: {plan.scheme}, {plan.reason}"
        keep(key, (again, what), (engine.name, engine.device))


def _repeated_on_host(
    plan: Plan, engine: Engine, operands: Operands, limit: int
) -> Any:
    """The plan carried out on matrices of NumPy or tensors of the CPU; a native product
    is only looked at.
    """
    problem = plan.problem
    if problem.mirror or any(
        x.ndim != 2 or x.dtype != problem.dtype for x in operands.arrays
    ):
        return None
    library = operands.library
    is_numpy = library.name == "numpy"
    shape = operands.shapes.result
    ordinary = problem.terms, 2.0**problem.fmt.emin

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
