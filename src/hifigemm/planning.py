"""From options to a plan: what was asked, what was passed, what was prepared."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Integral
from typing import Any

from hifigemm.accuracy import NO_PROMISE, NOTHING_STATED, Accuracy, Target, resolve
from hifigemm.engine import Engine
from hifigemm.exceptions import AccuracyError, PlanError
from hifigemm.formats import FP64
from hifigemm.numerics.bits import Array
from hifigemm.plan import DefaultWorkspace, Plan, Prepared, Problem, Split, steady
from hifigemm.schemes import Native, Scheme
from hifigemm.select import as_scheme, check_forced, choose, choose_words, settle, stand_in, words_plan
from hifigemm.settings import is_strict

__all__ = [
    "Options",
    "check_plan",
    "check_strict",
    "check_unwaiting",
    "fitted",
    "given_plan",
    "known_plan",
    "may_be_kept",
    "own_stack",
    "plan_for",
    "second_plan",
    "unwaiting_plan",
    "usable_split",
    "workspace_limit",
]


_LARGE = 2**26
"""Bytes of operands and result below which no scheme takes more than about a GiB, so that nobody looks at what is free;
and the least that the free memory leaves a limit."""


@dataclass(frozen=True)
class Options:
    """The keyword arguments that `matmul` and `gemm` share.

    Attributes
    ----------
    key : hashable, optional
        What `shortcuts` keeps the product under.
    ratio : float, optional
        The error ratio of the operands, for which a hopeful plan is known not to suffice.
    sync : bool
        The host may wait for the device.
    """

    accuracy: Accuracy
    scheme: str | Scheme
    engine: str | None
    plan: Plan | None
    workspace: int | None
    return_report: bool
    key: Hashable = None
    ratio: float | None = None
    sync: bool = True

    def __post_init__(self) -> None:
        if not (self.engine is None or isinstance(self.engine, str)):
            raise PlanError(f"engine={self.engine!r}: expected a name from hifigemm.engines(), or None")
        if self.plan is not None:
            check_plan(self.plan)
        resolve(self.accuracy, FP64, 1)
        as_scheme(self.scheme)


def check_plan(plan: Any) -> None:
    """Raise PlanError unless this is a plan."""
    if not isinstance(plan, Plan):
        raise PlanError(f"plan is a {type(plan).__name__}; expected one from make_plan")


def own_stack(x: Array, side: str, problem: Problem) -> Array:
    """An operand as the stack that a product under this problem makes of it."""
    if side == "right":
        return x.reshape((-1, *x.shape[-2:])) if x.ndim > 1 else x.reshape(1, -1, 1)
    if problem.batch == 1 or x.ndim < 3:
        return x.reshape(1, math.prod(x.shape[:-1]), x.shape[-1])
    return x.reshape((-1, *x.shape[-2:]))


def known_plan(given: Plan | None, problem: Problem, options: Options, engine: Engine, workspace: int) -> Plan | None:
    """The plan that takes no look at the operands: the one that was given, or of words that the device chooses."""
    if given is None:
        free = as_scheme(options.scheme) is None
        target = resolve(options.accuracy, problem.fmt, problem.k)
        return choose_words(problem, target, engine, steady(workspace)) if free else None
    if given.choices:
        again = words_plan(problem, given.target, engine, steady(workspace))
        return again or stand_in(Native(), problem, given.target, engine)
    if (
        isinstance(given.scheme, Native) and engine.whole_product(given) is not None
    ):  # says what a plan of a CPU does not
        return replace(given.scheme.planned(problem, given.target, engine), fallback=given.fallback)
    states_bound = options.return_report and options.sync
    return fitted(given, problem, workspace, engine.fused, states_bound)


def plan_for(
    problem: Problem,
    a: Array,
    b: Array,
    accuracy: Accuracy,
    scheme: str | Scheme,
    states_bound: bool,
    engine: Engine,
    workspace: int,
) -> Plan:
    """The plan for operands (batch or 1, m, k) and (batch or 1, k, n) under the accuracy and scheme that were asked.

    `states_bound`: where nothing is promised, the bound is worked out.
    """
    target = resolve(accuracy, problem.fmt, problem.k)
    chosen = as_scheme(scheme)
    if chosen is None:
        chosen = choose(problem, target, engine)
        if isinstance(chosen, Native):
            return stand_in(chosen, problem, target, engine)
        plan = chosen.plan(problem, a, b, target, engine, workspace)
        return settle(replace(plan, free=True), engine)
    if chosen.explicit and accuracy is None:
        target = NO_PROMISE if states_bound else NOTHING_STATED
    check_forced(chosen, problem, target)
    return chosen.plan(problem, a, b, target, engine, workspace)


def unwaiting_plan(problem: Problem, a: Array, b: Array, options: Options, engine: Engine, workspace: int) -> Plan:
    """The plan of an engine with a device for sync=False: a and b are not looked at, no bound is worked out.

    Raises
    ------
    PlanError
        What was asked rests on a look at the operands.
    """
    target = resolve(options.accuracy, problem.fmt, problem.k)
    scheme = as_scheme(options.scheme) or choose(problem, target, engine)
    plan = scheme.gated_plan(problem, target, engine, steady(workspace))  # which is not carried out in blocks
    if plan is not None:
        return plan
    if scheme.reads_operands:
        raise _refused(scheme, problem, target)
    return plan_for(problem, a, b, options.accuracy, options.scheme, False, engine, workspace)


def check_unwaiting(plan: Plan, engine: Engine) -> None:
    """Raise PlanError unless the engine carries the plan out without anything read back."""
    whole = plan.choices or engine.whole_product(plan) is not None
    if plan.hopeful or not whole:
        raise _refused(plan.scheme, plan.problem, plan.target, plan.gated)


def _refused(scheme: Scheme, problem: Problem, target: Target, lacks_room: bool = False) -> PlanError:
    why = f"{scheme} for {problem} and {target} rests on what is seen of the operands"
    what = "give a scheme with a count, such as Ozaki2(num_moduli=..., scaling='fast'), and no accuracy"
    if lacks_room:
        why, what = f"{scheme} for {problem} does not fit in the workspace whole", "give a larger workspace"
    return PlanError(f"sync=False reads nothing back, but {why}: {what}, or sync=True")


def check_strict(plan: Plan) -> None:
    """Raise AccuracyError where strict mode refuses the native product that the library chose."""
    if plan.gated and is_strict():
        raise AccuracyError(
            f"strict mode: {plan.problem} for {plan.target} might fall back to an FP64 product, and with sync=False "
            f"nobody would know ({plan.reason}); give num_moduli, or sync=True"
        )
    if plan.fallback and is_strict():
        raise AccuracyError(
            f"strict mode: {plan.problem} for {plan.target} would fall back to {plan.scheme} ({plan.reason}); "
            "force this scheme to allow it, or another one"
        )


def second_plan(plan: Plan, ratio: float, a: Array, b: Array, engine: Engine, workspace: int) -> Plan:
    """The plan after a hopeful one for operands (batch or 1, m, k) and (batch or 1, k, n) with this error ratio."""
    plan = plan.scheme.replan(plan, ratio, a, b, engine, workspace)
    return settle(plan, engine) if plan.free else plan


@lru_cache(maxsize=256)
def fitted(plan: Plan, problem: Problem, workspace: int, fused: bool, states_bound: bool) -> Plan:
    """A plan that was passed, for this problem; in other blocks where the workspace is limited or they may grow."""
    is_limited = not isinstance(workspace, DefaultWorkspace)
    if plan.fused and not fused:
        plan = replace(plan, fused=False, promised=False, hopeful=False)
        is_limited = True
    says_less = plan.target == NO_PROMISE and not states_bound
    if says_less:
        plan = replace(plan, target=NOTHING_STATED)
    fits = plan.problem == problem and not is_limited and not (says_less and plan.fused)
    return plan if fits else plan.scheme.fit(plan, problem, workspace)


def workspace_limit(problem: Problem, workspace: int | None, engine: Engine) -> int:
    """Bytes to stay within: what was asked, or the engine's multiple of operands and result, or more for small ones.

    What nobody asked for leaves room: half of the memory that is free, once the result and a copy of each operand have
    taken theirs, as a look at the free memory is no promise and other threads multiply too. Two places are kept of
    that number, so that what is kept for a limit is found again.
    """
    if workspace is not None:
        if isinstance(workspace, bool) or not isinstance(workspace, Integral) or workspace <= 0:
            raise PlanError(f"workspace={workspace!r}: expected a positive whole number of bytes")
        return int(workspace)
    p = problem
    nbytes = p.batch * (p.m * p.k + p.k * p.n + p.m * p.n) * p.dtype.itemsize
    limit = max(engine.least_workspace, engine.workspace_factor * nbytes)
    free = engine.free_memory() if nbytes >= _LARGE else None
    if free is None:
        return DefaultWorkspace(limit)
    room = max((free - nbytes) // 2, _LARGE)
    return DefaultWorkspace(limit, room >> room.bit_length() - 3 << room.bit_length() - 3)


def may_be_kept(plan: Plan, workspace: int) -> bool:
    """Whether calls of this kind may repeat the plan for another memory."""
    if not isinstance(workspace, DefaultWorkspace):
        return not plan.hopeful  # what is repeated holds magnitudes beside products
    return plan.is_whole or workspace == steady(workspace)


def given_plan(a: Array | Prepared, b: Array | Prepared, options: Options, problem: Problem) -> Plan | None:
    """The plan that was passed or that a prepared operand was made for; None where there is none."""
    plans = [p for p in (options.plan, *(x.plan for x in (a, b) if isinstance(x, Prepared))) if p is not None]
    if not plans:
        return None
    for x, side in ((a, "left"), (b, "right")):
        if isinstance(x, Prepared) and x.side != side:
            raise PlanError(f"an operand prepared for the {x.side} stands on the {side}")
    plan = plans[0]
    if any(p.layout != plan.layout for p in plans):
        raise PlanError(f"operands and plan are of different plans: {', '.join(str(p.scheme) for p in plans)}")
    if options.accuracy is not None or options.scheme != "auto":
        raise PlanError("a plan has its own accuracy and scheme; give either the plan or accuracy and scheme")
    if options.engine not in (None, plan.engine):
        raise PlanError(f"engine={options.engine!r} differs from the plan's engine {plan.engine!r}")
    if plan.problem.k != problem.k or plan.problem.dtype != problem.dtype:
        raise PlanError(f"the plan is for {plan.problem}; the operands are {problem}")
    return plan


def usable_split(x: Array | Prepared, side: str, shape: tuple[int, int, int]) -> Split | None:
    """The split of a prepared operand, where it is laid out as this product needs it."""
    if not isinstance(x, Prepared) or x.split is None:
        return None
    vectors = shape[1] if side == "left" else shape[2]
    return x.split if (x.split.planes.shape[0], x.split.vectors) == (shape[0], vectors) else None
