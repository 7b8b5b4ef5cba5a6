"""Plans of products: from an accuracy or a scheme, the engine, and where they matter the
operands.

The planner reads no operands: where a plan rests on them it says which evidence it
needs, `executor.planned` inspects them, and asks again. No other module makes plans for
the road.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from hifigemm.base.exceptions import AccuracyError, PlanError
from hifigemm.base.formats import FP64
from hifigemm.base.settings import is_strict
from hifigemm.model.accuracy import (
    NO_PROMISE,
    NOTHING_STATED,
    Accuracy,
    Invariant,
    resolve,
)
from hifigemm.model.engine import Engine
from hifigemm.model.plan import Blocking, Evidence, Plan, Verification
from hifigemm.model.problem import Problem
from hifigemm.numerics.blocking import entries_within
from hifigemm.running.auto import (
    EvidenceByNeed,
    Need,
    by_operands,
    chosen_native,
    on_device,
    scheme_for,
    words_by_exponents,
)
from hifigemm.schemes import Native, Scheme, as_scheme

_LARGE = 2**26
"""Bytes of operands and result. Below, no scheme takes more than about a GiB, so that
the free memory is not asked for. No limit that follows from the free memory is smaller.
"""


class DefaultWorkspace(int):
    """A limit in bytes that follows from problem and engine, and from the free memory
    if that leaves less. A product of one entry may exceed it.
    """

    steady: int
    """The limit without regard to the free memory."""

    def __new__(cls, nbytes: int, free: int | None = None) -> DefaultWorkspace:
        """The smaller of the two."""
        self = super().__new__(cls, nbytes if free is None else min(nbytes, free))
        self.steady = nbytes
        return self


def steady(workspace: int) -> int:
    """The limit without regard to the free memory, which must decide no bit and no
    choice of a scheme.
    """
    return workspace.steady if isinstance(workspace, DefaultWorkspace) else workspace


def workspace_limit(problem: Problem, workspace: int | None, engine: Engine) -> int:
    """Bytes to stay within: those that were asked for, or the engine's multiple of
    operands and result, or more for small ones.

    A default limit is no more than half of the memory that is free
    besides the result and a copy of each operand: other threads multiply too, and the
    free memory may shrink at any time.
    """
    if workspace is not None:
        return int(workspace)
    memory = engine.memory
    nbytes = problem.nbytes
    limit = max(memory.least_workspace, memory.workspace_factor * nbytes)
    free = memory.free() if nbytes >= _LARGE else None
    if free is None:
        return DefaultWorkspace(limit)
    room = max((free - nbytes) // 2, _LARGE)
    # Rounded down to three significant bits, so that few plans follow from it.
    shift = room.bit_length() - 3
    return DefaultWorkspace(limit, room >> shift << shift)


def may_lack_memory(problem: Problem, workspace: int) -> bool:
    """True for a product that is so large that its default limit, if it has that one,
    follows from the memory that is free.
    """
    return isinstance(workspace, DefaultWorkspace) and problem.nbytes >= _LARGE


def make(
    problem: Problem,
    accuracy: Accuracy,
    scheme: str | Scheme,
    engine: Engine,
    workspace: int,
    evidence_by_need: EvidenceByNeed | None,
    states_bound: bool = True,
) -> Plan | Need:
    """The plan for a problem under the accuracy and scheme that were asked, or the
    evidence that it needs of the operands beyond `evidence_by_need`.

    Without `evidence_by_need` the operands are not read. `states_bound`: where nothing
    is promised, the bound is worked out for a report.
    """
    target = resolve(accuracy, problem.fmt, problem.k)
    asked = as_scheme(scheme)
    if asked is None:
        # "auto": words or the native product, if they keep the target.
        words = words_by_exponents(problem, target, engine, steady(workspace))
        if words is not None:
            return words
        chosen = scheme_for(problem, target, engine)
        if chosen.is_native:
            return fitted(
                chosen_native(chosen, problem, target, engine), workspace, engine
            )
    else:
        chosen = asked
        if chosen.explicit and accuracy in (None, Invariant()):
            target = NO_PROMISE if states_bound else NOTHING_STATED
        chosen.check_keeps(problem, target)

    # A choice that the device makes, a choice by the operands, or the scheme's own plan.
    plan: Plan | Need | None = None
    if not is_strict():
        plan = on_device(chosen, problem, target, engine, asked)
    is_by_norms = target.normwise is not None
    if plan is None and asked is None and engine.costs is not None and not is_by_norms:
        plan = by_operands(problem, target, engine, engine.costs, evidence_by_need)
    if plan is None:
        evidence = None
        if evidence_by_need is not None and chosen.needs_evidence(
            problem, target, engine
        ):
            need = Need(chosen, target)
            if need not in evidence_by_need:
                return need
            evidence = evidence_by_need[need]
        plan = chosen.plan(problem, target, engine, evidence, asked)
    return plan if isinstance(plan, Need) else fitted(plan, workspace, engine)


def with_evidence(
    plan: Plan,
    evidence: Evidence | None,
    engine: Engine,
    workspace: int,
    evidence_by_need: EvidenceByNeed | None = None,
) -> Plan | Need:
    """A finer plan after one whose bound did not hold for the operands, or what it needs
    to know of these beyond the evidence.
    """
    problem = plan.problem
    target = plan.target
    if plan.asked is None and engine.costs is not None:
        ratio = None if evidence is None else evidence.error_ratio
        finer = by_operands(
            problem, target, engine, engine.costs, evidence_by_need, ratio
        )
    else:
        scheme = plan.asked or scheme_for(problem, target, engine)
        finer = scheme.plan(problem, target, engine, evidence, plan.asked)
    return finer if isinstance(finer, Need) else fitted(finer, workspace, engine)


def reusable(plan: Plan, engine: Engine, workspace: int) -> Plan:
    """The plan without the evidence of the operands that it was made for.

    Its counts stay, and the balance between the operands: they are a good guess for
    operands of the same kind.
    """
    if plan.evidence is None:
        return plan
    if not plan.scheme.rests_on_evidence:
        return replace(plan, evidence=None)

    # The balance follows from the required bits.
    bits = plan.evidence.required_bits
    evidence = None
    by_ratio = (
        plan.asked is None and engine.costs is not None and not plan.target.by_entry
    )
    if bits is not None and not by_ratio:
        count = plan.scheme.count
        from hifigemm.numerics.scaling import balance

        if balance(bits, count, plan.problem.is_complex):
            evidence = Evidence(required_bits=bits)

    # Nothing is known of other operands, so that their entries are certified.
    verification = Verification.NONE
    if math.isfinite(plan.target.r):
        verification = Verification.ENTRYWISE
    plan = replace(
        plan,
        verification=verification,
        bound=plan.target.r,
        evidence=evidence,
        alternatives=(),
    )
    return fitted(plan, workspace, engine)


def for_problem(
    passed: Plan, problem: Problem, engine: Engine, workspace: int, states_bound: bool
) -> Plan:
    """A plan that was passed, for another problem of the same k and dtype."""
    target = passed.target
    if passed.alternatives and passed.asked is None and problem.fmt is not FP64:
        # The format of words is chosen anew, as it depends on the size of the problem.
        limit = steady(workspace)
        words = words_by_exponents(problem, target, engine, limit, passed)
        if words is not None:
            return words
        native = chosen_native(Native(), problem, target, engine)
        return fitted(native, workspace, engine)
    if passed.scheme.is_native:
        if passed.asked is None:
            plan = chosen_native(passed.scheme, problem, target, engine)
        else:
            plan = passed.scheme.plan(problem, target, engine, None, passed.asked)
        return fitted(plan, workspace, engine)
    return _with_problem(passed, problem, engine, workspace, states_bound)


@lru_cache(maxsize=256, typed=True)
def _with_problem(
    passed: Plan, problem: Problem, engine: Engine, workspace: int, states_bound: bool
) -> Plan:
    """The same scheme and counts for another problem."""
    plan = passed
    if plan.target == NO_PROMISE and not states_bound:
        plan = replace(plan, target=NOTHING_STATED)
    if plan.verification is Verification.ON_DEVICE and engine.lowering(plan) is None:
        plan = replace(
            plan,
            verification=Verification.ENTRYWISE,
            bound=plan.target.r,
            alternatives=(),
        )
    if (
        plan == passed
        and problem == passed.problem
        and isinstance(workspace, DefaultWorkspace)
    ):
        return passed
    return fitted(replace(plan, problem=problem), workspace, engine)


def check_strict(plan: Plan, final_scheme: Scheme | None = None) -> None:
    """Raise AccuracyError where strict mode refuses the native product that the library
    chose.

    `final_scheme` is the scheme that a device has chosen, once that is known.
    """
    if not is_strict():
        return
    scheme: Any = plan.scheme if final_scheme is None else final_scheme
    if not scheme.is_native or plan.asked == scheme:
        return
    # Without certified entries, over- and underflow in a library go unnoticed.
    unseen = Verification.A_PRIORI, Verification.ON_DEVICE
    if plan.bound > plan.target.r or plan.verification in unseen:
        bound = scheme.bound(plan.problem)
        fault = f"at worst {plan.problem.terms} u = {bound:.3g} |A||B|"
        if bound <= plan.target.r:
            fault = "whose over- and underflow nothing would notice"
        # Times of other schemes are worth their words; that there is none is not.
        other_schemes = plan.reason.rpartition("; ")[2]
        if " ms" in other_schemes:
            fault += f" ({other_schemes})"
        raise AccuracyError(
            f"strict mode: {plan.problem} for {plan.target} would fall back to {scheme}, {fault}; "
            'scheme="native" allows it, accuracy="correct" avoids it'
        )


def fitted(
    plan: Plan, workspace: int, engine: Engine, *, in_steps: bool = False
) -> Plan:
    """The plan with the largest blocks that take at most `workspace` bytes.

    The stack is cut first, then the longer side of the result. Without a limit that
    was asked for, a block of one entry may take more. `in_steps` is for plans
    that are carried out step by step.

    Raises PlanError: not even one entry fits.
    """
    p = plan.problem
    has_default = isinstance(workspace, DefaultWorkspace)
    if plan.scheme.bits_follow_blocks:
        workspace = steady(workspace)
    entries = entries_within(workspace, engine.memory.block_entries)
    blocking = Blocking((p.batch, p.m, p.n), 0, entries)
    if plan.scheme.is_native or not p.multiplications:
        # A library has a workspace of its own.
        return replace(plan, blocking=blocking)
    lowering = None if in_steps else engine.lowering(plan)
    need: Callable[[int, int, int], int]
    if lowering is None:
        need = partial(plan.scheme.nbytes, replace(plan, blocking=blocking))
    else:
        need = lowering.nbytes
    batch = p.batch
    rows = p.m
    cols = p.n
    while (nbytes := need(batch, rows, cols)) > workspace:
        if batch > 1:
            batch = -(-batch // 2)
        elif rows == cols == 1:
            if has_default:
                break
            raise PlanError(
                f"workspace of {workspace} bytes is too small: one entry of {p} by {plan.scheme} takes {nbytes}"
            )
        elif rows >= cols:
            rows = -(-rows // 2)
            cols = rows if p.mirror else cols
        else:
            cols = -(-cols // 2)
    in_halves = lowering is not None and lowering.in_halves(batch, rows, cols)
    return replace(
        plan, blocking=Blocking((batch, rows, cols), nbytes, entries, in_halves)
    )
