"""A plan carried out on stacks of arrays: programs, or blocks step by step, with
escalation and special values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hifigemm.accuracy import Target
from hifigemm.engine import Engine, Outcome, Splits
from hifigemm.exceptions import AccuracyError
from hifigemm.numerics.bits import Array
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.numerics.scaling import Scale
from hifigemm.numerics.special import clean, fill_nonfinite, nonfinite_vectors
from hifigemm.numerics.symmetric import mirror
from hifigemm.plan import Evidence, Plan, Split, Verification
from hifigemm.planner import fitted, with_evidence
from hifigemm.problem import Block, counted
from hifigemm.schemes import Native, Scheme


@dataclass(frozen=True)
class _Side:
    """One operand, a stack (batch or 1, rows, columns), and which of its matrices and
    vectors take part.
    """

    side: str
    x: Array
    stack: Array | None = None  # indices of the matrices; None for all
    # indices of the rows (left) or columns (right); None for all
    vectors: Array | None = None
    split: Split | None = None  # of the whole operand, where it is at hand
    scale: Scale | None = None  # the same

    def take(self, batch: slice = slice(None), vectors: slice = slice(None)) -> Array:
        """Some of the matrices and vectors that take part, as an array."""
        left = self.side == "left"
        if self.stack is None or self.vectors is None:
            x = self.x[batch] if len(self.x) > 1 else self.x
            return x[:, vectors] if left else x[:, :, vectors]
        stack = self.stack[batch] if len(self.x) > 1 else np.zeros(1, np.intp)
        where = (stack[:, None], self.vectors[vectors])
        return (
            self.x[where] if left else np.swapaxes(self.x[where[0], :, where[1]], 1, 2)
        )

    def part(self, plan: Plan, engine: Engine, batch: slice, vectors: slice) -> Split:
        """The split of the rows or columns of a block."""
        if self.split is not None:
            return self.split.take(batch, vectors)
        x, scale = self.take(batch, vectors), self.scale
        if scale is not None and not plan.is_whole:
            scale = scale.take(batch, vectors)
        return plan.scheme.split(plan, x, self.side, scale, engine)

    def pick(self, stack: Array, vectors: Array) -> _Side:
        """The same operand with fewer matrices and vectors."""
        stack = stack if self.stack is None else self.stack[stack]
        vectors = vectors if self.vectors is None else self.vectors[vectors]
        return _Side(self.side, self.x, stack, vectors)


def execute(
    plan: Plan,
    a: Array,
    b: Array,
    engine: Engine,
    workspace: int,
    shift: int = 0,
    epilogue: Epilogue = PLAIN,
    splits: Splits = (None, None),
    out: Array | None = None,
) -> tuple[Plan, Outcome]:
    """alpha (2**shift A B) + beta C by the plan, for any operands; in `out` where it
    can be written there directly.

    Returns the plan that was carried out in the end, and what came of it. Nothing waits
    for a device unless entries have to be certified.
    """
    program = engine.compile(plan)
    if program is not None:
        outcome = program(a, b, shift, epilogue, splits, out)
        if (
            plan.verification is not Verification.ENTRYWISE
            or outcome.certificate is None
        ):
            return plan, outcome
        found = outcome.certificate()
        if found.holds:
            return plan, replace(outcome, bound=found.bound)
        # What the library chose goes on by residues, without steps of its own.
        is_chosen_native = (
            isinstance(plan.scheme, Native)
            and plan.asked is None
            and engine.costs is not None
            and not shift
        )
        if found.evidence is not None or is_chosen_native:
            problem = plan.problem

            def look(scheme: Scheme, target: Target) -> Evidence | None:
                return scheme.evidence(problem, target, a, b, engine, workspace)

            finer = with_evidence(plan, found.evidence, engine, workspace, look)
            return execute(
                finer, a, b, engine, workspace, shift, epilogue, (None, None), out
            )
        plan = fitted(plan, workspace, engine, in_steps=True)
    outcome = in_steps(
        plan, a, b, engine, workspace, shift, splits, out if epilogue.idle else None
    )
    if plan.problem.mirror:
        engine.override(mirror)(outcome.values, plan.problem.mirror == "C")
    outcome.values = epilogue.apply(outcome.values)
    return plan, outcome


def in_steps(
    plan: Plan,
    a: Array,
    b: Array,
    engine: Engine,
    workspace: int,
    shift: int = 0,
    splits: Splits = (None, None),
    out: Array | None = None,
) -> Outcome:
    """2**shift A B without a program, in `out` where blocks make it; Inf and NaN are
    filled in at the end.

    A native product carries them through by itself, so its operands are looked at only
    where the result is not finite.
    """
    if isinstance(plan.scheme, Native):
        first = _native(plan, a, b, engine, shift)
        if first is not None:
            return first
    rows, cols = nonfinite_vectors(a, 2), nonfinite_vectors(b, 1)
    left = _Side("left", clean(a) if rows.any() else a, split=splits[0])
    right = _Side("right", clean(b) if cols.any() else b, split=splits[1])
    if left.x is a and right.x is b:
        return _run(plan, left, right, engine, workspace, shift, out=out)
    outcome = _run(plan, left, right, engine, workspace, shift, rows | cols, out)
    fill_nonfinite(outcome.values, a, b, rows, cols)
    outcome.notes.append("Inf and NaN as IEEE arithmetic in any order puts them")
    return outcome


def whole_split(plan: Plan, x: Array, side: str, engine: Engine) -> Split:
    """The split of a whole operand whose split does not depend on the other one.

    Inf and NaN count as zeros; the fact `marked` tells the vectors that hold any to
    kernels that fill their results in.
    """
    marked = (
        None
        if np.isfinite(x).all()
        else nonfinite_vectors(x, 2 if side == "left" else 1)
    )
    x = x if marked is None else clean(x)
    scales = plan.scheme.scales(
        plan, *((x, None) if side == "left" else (None, x)), engine
    )
    split = plan.scheme.split(plan, x, side, scales[side == "right"], engine)
    return (
        split
        if marked is None
        else replace(split, facts=split.facts | {"marked": marked})
    )


def _native(
    plan: Plan, a: Array, b: Array, engine: Engine, shift: int
) -> Outcome | None:
    """The native product, or None where an entry of it needs a second look."""
    left, right = (
        plan.scheme.split(plan, x, side, None, engine)
        for x, side in ((a, "left"), (b, "right"))
    )
    done = plan.scheme.multiply(plan, left, right, engine, shift)
    return (
        Outcome(done.values, done.bound, 1, [])
        if done.certified is None or done.certified.all()
        else None
    )


def _run(
    plan: Plan,
    left: _Side,
    right: _Side,
    engine: Engine,
    workspace: int,
    shift: int,
    filled: Array | None = None,
    out: Array | None = None,
) -> Outcome:
    """Block by block, then again with a finer plan for the entries whose promise is not
    kept yet.

    Nothing is asked of those that are `filled` in afterwards.
    """
    scheme, problem = plan.scheme, plan.problem
    left, right = _scaled(plan, left, right, engine)
    shape = problem.batch, problem.m, problem.n
    values = np.empty(shape, problem.dtype, like=left.x) if out is None else out
    open_: list[tuple[Block, Array]] = []
    outcome = Outcome(values, 0.0, 0, [])
    at_left = at_right = None
    for block in plan.blocks():
        if at_right != (block.batch, block.cols):
            at_right = (block.batch, block.cols)
            right_part = right.part(plan, engine, block.batch, block.cols)
        if at_left != (block.batch, block.rows):
            at_left = (block.batch, block.rows)
            left_part = left.part(plan, engine, block.batch, block.rows)
        done = scheme.multiply(plan, left_part, right_part, engine, shift)
        values[block] = done.values
        bound = done.bound
        if done.certified is not None and not done.certified.all():
            open_.append((block, ~done.certified))
            # what is certified keeps the promise, whatever holds for all
            if not isinstance(scheme, Native):
                bound = min(bound, plan.target.r)
        outcome.bound = max(outcome.bound, bound)
        outcome.num_products += done.num_products * done.values.size / values.size
    del left_part, right_part
    if open_:
        uncertified = np.zeros(values.shape, bool, like=values)
        for block, entries in open_:
            uncertified[block] = entries
        if filled is not None:
            uncertified &= ~filled
        if not uncertified.any():
            return outcome
        _escalate(plan, left, right, engine, workspace, shift, outcome, uncertified)
    return outcome


def _scaled(
    plan: Plan, left: _Side, right: _Side, engine: Engine
) -> tuple[_Side, _Side]:
    """Both operands with their scales, where the scheme has any; a split that is at
    hand needs none.
    """
    if type(plan.scheme).scales is Scheme.scales:  # no scales, so no copies of operands
        return left, right
    a = None if left.split is not None else left.take()
    b = None if right.split is not None else right.take()
    s, t = plan.scheme.scales(plan, a, b, engine) or (None, None)
    return replace(left, scale=s), replace(right, scale=t)


def _escalate(
    plan: Plan,
    left: _Side,
    right: _Side,
    engine: Engine,
    workspace: int,
    shift: int,
    outcome: Outcome,
    open_: Array,
) -> None:
    """Recompute the open entries with a finer plan, on the rows and columns that hold
    any.
    """
    z, i, j = (
        np.flatnonzero(open_.any(axis=axes)) for axes in ((1, 2), (0, 2), (0, 1))
    )
    problem = replace(plan.problem, batch=len(z), m=len(i), n=len(j))
    finer = plan.scheme.escalate(plan, problem, engine)
    if finer is None:
        raise AccuracyError(
            f"{plan.scheme} does not keep {plan.target} for {np.count_nonzero(open_)} of {open_.size} entries of "
            f"{plan.problem}"
        )
    finer = fitted(finer, workspace, engine)
    rows = left.pick(z, i)
    cols = right.pick(z, j)
    # A CPU's program leaves no entry; those of GPUs are for whole products.
    program = engine.compile(finer) if engine.costs is None else None
    if program is None:
        sub = _run(finer, rows, cols, engine, workspace, shift)
    else:
        sub = program(rows.take(), cols.take(), shift, PLAIN, (None, None), None)
    where = np.ix_(z, i, j)
    outcome.values[where] = np.where(open_[where], sub.values, outcome.values[where])
    outcome.num_products += sub.num_products * sub.values.size / outcome.values.size
    outcome.bound = max(outcome.bound, sub.bound)
    outcome.notes.append(
        f"{counted(int(np.count_nonzero(open_)), 'entry', 'entries')} escalated by {finer.scheme}"
    )
    outcome.notes.extend(sub.notes)
