"""The only maker of plans: what was asked, what the engine offers, and what was seen of
the operands.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from hifigemm.accuracy import NO_PROMISE, NOTHING_STATED, Accuracy, resolve
from hifigemm.engine import Engine
from hifigemm.exceptions import AccuracyError, PlanError
from hifigemm.formats import FP64
from hifigemm.numerics.blocking import entries_within
from hifigemm.numerics.scaling import balance
from hifigemm.plan import Blocking, Evidence, Plan, Verification
from hifigemm.problem import Problem
from hifigemm.schemes import Native, Scheme
from hifigemm.schemes.auto import (
    Look,
    as_scheme,
    by_operands,
    chosen_native,
    on_device,
    scheme_for,
    words_by_exponents,
)
from hifigemm.schemes.double_double import DoubleDouble
from hifigemm.schemes.word_scheme import WordScheme
from hifigemm.settings import is_strict

_LARGE = 2**26
"""Bytes of operands and result below which no scheme takes more than about a GiB, so
that nobody looks at what is free; and the least that the free memory leaves a limit.
"""


class DefaultWorkspace(int):
    """Bytes to stay within that nobody asked for, so that one entry may take more; no
    equal of a limit that was.

    The smaller of what problem and engine say, which is `steady`, and of what the free
    memory allows, where it was looked at.
    """

    steady: int

    def __new__(cls, nbytes: int, free: int | None = None) -> DefaultWorkspace:
        """The smaller of the two."""
        self = super().__new__(cls, nbytes if free is None else min(nbytes, free))
        self.steady = nbytes
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DefaultWorkspace) and (int(self), self.steady) == (
            int(other),
            other.steady,
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((DefaultWorkspace, int(self), self.steady))


def steady(workspace: int) -> int:
    """The limit whatever memory is free, for what must not depend on that: bits that
    follow blocks, a choice.
    """
    return (
        DefaultWorkspace(workspace.steady)
        if isinstance(workspace, DefaultWorkspace)
        else workspace
    )


def workspace_limit(problem: Problem, workspace: int | None, engine: Engine) -> int:
    """Bytes to stay within: what was asked, or the engine's multiple of operands and
    result, or more for small ones.

    What nobody asked for leaves room: half of the memory that is free, once the result
    and a copy of each operand have taken theirs, as a look at the free memory is no
    promise and other threads multiply too. Two places are kept of that number, so that
    what is kept for a limit is found again.
    """
    if workspace is not None:
        return int(workspace)
    p, memory = problem, engine.memory
    nbytes = p.batch * (p.m * p.k + p.k * p.n + p.m * p.n) * p.dtype.itemsize
    limit = max(memory.least_workspace, memory.workspace_factor * nbytes)
    free = memory.free() if nbytes >= _LARGE else None
    if free is None:
        return DefaultWorkspace(limit)
    room = max((free - nbytes) // 2, _LARGE)
    return DefaultWorkspace(
        limit, room >> room.bit_length() - 3 << room.bit_length() - 3
    )


def make(
    problem: Problem,
    accuracy: Accuracy,
    scheme: str | Scheme,
    engine: Engine,
    workspace: int,
    look: Look | None,
    states_bound: bool = True,
) -> Plan:
    """The plan for a problem under the accuracy and scheme that were asked.

    `look` is called where the plan rests on the operands, which waits for a device;
    None: they are not read. `states_bound`: where nothing is promised, the bound is
    worked out for a report.
    """
    target, asked = resolve(accuracy, problem.fmt, problem.k), as_scheme(scheme)
    if asked is None:
        words = words_by_exponents(problem, target, engine, steady(workspace))
        if words is not None:
            return words
        chosen = scheme_for(problem, target, engine)
        if isinstance(chosen, Native):
            return fitted(
                chosen_native(chosen, problem, target, engine), workspace, engine
            )
    else:
        chosen = asked
        if chosen.explicit and accuracy is None:
            target = NO_PROMISE if states_bound else NOTHING_STATED
        if isinstance(chosen, Native) and not chosen.keeps(problem, target):
            if target.relative is not None:
                raise AccuracyError(
                    f"{chosen} promises no relative error: its sums are rounded; asked: {target}"
                )
            raise AccuracyError(
                f"the native product of {problem} errs by up to {chosen.bound(problem):.3g} |A||B|; asked: {target}"
            )
    plan = None if is_strict() else on_device(chosen, problem, target, engine, asked)
    if plan is None and asked is None and engine.costs is not None:
        plan = by_operands(problem, target, engine, engine.costs, look)
    if plan is None:
        plan = chosen.plan(
            problem, target, engine, look and look(chosen, target), asked
        )
    return fitted(plan, workspace, engine)


def with_evidence(
    plan: Plan,
    evidence: Evidence | None,
    engine: Engine,
    workspace: int,
    look: Look | None = None,
) -> Plan:
    """The plan after one whose bound the evidence did not certify; `look` says what
    else the operands tell.
    """
    problem, target = plan.problem, plan.target
    if plan.asked is None and engine.costs is not None:
        ratio = None if evidence is None else evidence.error_ratio
        finer = by_operands(problem, target, engine, engine.costs, look, ratio)
    else:
        scheme = plan.asked or scheme_for(problem, target, engine)
        finer = scheme.plan(problem, target, engine, evidence, plan.asked)
    return fitted(finer, workspace, engine)


def reusable(plan: Plan, engine: Engine, workspace: int) -> Plan:
    """The plan for any operands of its problem: what was seen of some operands holds
    for no others.

    Its counts stay, and the balance between the operands: they are a good guess for
    operands of the same kind.
    """
    if plan.evidence is None:
        return plan
    if isinstance(plan.scheme, DoubleDouble):
        return replace(plan, evidence=None)
    bits, evidence = plan.evidence.required_bits, None
    by_ratio = (
        plan.asked is None and engine.costs is not None and not plan.target.by_entry
    )
    if (
        bits is not None
        and not by_ratio
        and balance(bits, plan.scheme.count, plan.problem.is_complex)
    ):
        evidence = Evidence(required_bits=bits)
    verification = (
        Verification.ENTRYWISE if math.isfinite(plan.target.r) else Verification.NONE
    )
    plan = replace(
        plan,
        verification=verification,
        bound=plan.target.r,
        evidence=evidence,
        alternatives=(),
    )
    return fitted(plan, workspace, engine)


def for_problem(
    given: Plan, problem: Problem, engine: Engine, workspace: int, states_bound: bool
) -> Plan:
    """A plan that was passed, for another problem of the same k and dtype."""
    if given.alternatives and given.asked is None and problem.fmt is not FP64:
        words = words_by_exponents(
            problem, given.target, engine, steady(workspace), given
        )
        return words or fitted(
            chosen_native(Native(), problem, given.target, engine), workspace, engine
        )
    if isinstance(given.scheme, Native):
        if given.asked is None:
            plan = chosen_native(given.scheme, problem, given.target, engine)
        else:
            plan = given.scheme.plan(problem, given.target, engine, None, given.asked)
        return fitted(plan, workspace, engine)
    return _for_problem(given, problem, engine, workspace, states_bound)


@lru_cache(maxsize=256)
def _for_problem(
    given: Plan, problem: Problem, engine: Engine, workspace: int, states_bound: bool
) -> Plan:
    plan = given
    if plan.target == NO_PROMISE and not states_bound:
        plan = replace(plan, target=NOTHING_STATED)
    if plan.verification is Verification.ON_DEVICE and engine.compile(plan) is None:
        plan = replace(
            plan,
            verification=Verification.ENTRYWISE,
            bound=plan.target.r,
            alternatives=(),
        )
    if (
        plan == given
        and problem == given.problem
        and isinstance(workspace, DefaultWorkspace)
    ):
        return given
    return fitted(replace(plan, problem=problem), workspace, engine)


def check_strict(plan: Plan, taken: Scheme | None = None) -> None:
    """Raise AccuracyError where strict mode refuses the native product that the library
    chose.

    `taken` is the scheme that a device has chosen, once that is known.
    """
    if not is_strict():
        return
    native = plan.scheme if taken is None else taken
    if not isinstance(native, Native) or plan.asked == native:
        return
    # A library has its own way with over- and underflow, unless entries are certified.
    if plan.bound > plan.target.r or plan.verification in (
        Verification.A_PRIORI,
        Verification.ON_DEVICE,
    ):
        raise AccuracyError(
            f"strict mode: {plan.problem} for {plan.target} would fall back to {native} ({plan.reason}); "
            "force this scheme to allow it, or another one"
        )


def fitted(
    plan: Plan, workspace: int, engine: Engine, *, in_steps: bool = False
) -> Plan:
    """The plan with the largest blocks that take at most `workspace` bytes; the stack
    is cut first.

    One entry is always made where nobody asked for a limit. A library may add the terms
    of a smaller block in another order, so blocks of rounded products do not follow the
    free memory. `in_steps`: the program is not to be used.

    Raises PlanError: not even one entry fits.
    """
    p, program = plan.problem, None if in_steps else engine.compile(plan)
    if isinstance(plan.scheme, WordScheme):
        workspace = steady(workspace)
    entries = entries_within(workspace, engine.memory.block_entries)
    plan = replace(plan, blocking=Blocking((p.batch, p.m, p.n), 0, entries))
    if not p.multiplications:
        return plan
    if program is None:
        scheme: Scheme = plan.scheme

        def need(batch: int, rows: int, cols: int) -> int:
            return scheme.nbytes(plan, batch, rows, cols)

    else:
        need = program.nbytes
    batch, rows, cols = p.batch, p.m, p.n
    while (nbytes := need(batch, rows, cols)) > workspace:
        if batch > 1:
            batch = -(-batch // 2)
        elif rows == cols == 1:
            if isinstance(workspace, DefaultWorkspace):
                break
            raise PlanError(
                f"workspace of {workspace} bytes is too small: one entry of {p} by {plan.scheme} takes {nbytes}"
            )
        elif rows >= cols:
            rows = -(-rows // 2)
            cols = rows if p.mirror else cols
        else:
            cols = -(-cols // 2)
    in_halves = program is not None and program.in_halves(batch, rows, cols)
    return replace(
        plan, blocking=Blocking((batch, rows, cols), nbytes, entries, in_halves)
    )
