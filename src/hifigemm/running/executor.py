"""A plan carried out on stacks of arrays: programs, or blocks step by step, with
escalation and special values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hifigemm.base.exceptions import AccuracyError
from hifigemm.model.accuracy import Target
from hifigemm.model.engine import SCALED_ALONG_K, Engine, Outcome, Splits, has_kernels
from hifigemm.model.plan import Evidence, Plan, Split, Verification
from hifigemm.model.problem import Block, counted
from hifigemm.numerics.bits import Array
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.numerics.special import clean, fill_nonfinite, nonfinite_vectors
from hifigemm.numerics.symmetric import mirror
from hifigemm.running.planner import fitted, with_evidence
from hifigemm.schemes import Scheme

if TYPE_CHECKING:
    from hifigemm.numerics.scaling import Scale


@dataclass(frozen=True)
class _BlockOperand:
    """One operand, a stack (batch or 1, rows, columns), and which of its matrices and
    vectors take part.
    """

    side: str  # "left" or "right"
    x: Array
    stack: Array | None = None  # indices of the matrices; None for all
    # indices of the rows (left) or columns (right); None for all
    vectors: Array | None = None
    split: Split | None = None  # of the whole operand, if it was prepared
    scale: Scale | None = None  # of the whole operand, if the scheme has scales

    def take(self, batch: slice = slice(None), vectors: slice = slice(None)) -> Array:
        """Some of the matrices and vectors that take part, as an array."""
        is_left = self.side == "left"
        if self.stack is None or self.vectors is None:
            x = self.x[batch] if len(self.x) > 1 else self.x
            return x[:, vectors] if is_left else x[:, :, vectors]
        stack = self.stack[batch] if len(self.x) > 1 else np.zeros(1, np.intp)
        matrices = stack[:, None]
        indices = self.vectors[vectors]
        if is_left:
            return self.x[matrices, indices]
        return np.swapaxes(self.x[matrices, :, indices], 1, 2)

    def part(self, plan: Plan, engine: Engine, batch: slice, vectors: slice) -> Split:
        """The split of the rows or columns of a block."""
        if self.split is not None:
            return self.split.take(batch, vectors)
        x = self.take(batch, vectors)
        scale = self.scale
        if scale is not None and not plan.is_whole:
            scale = scale.take(batch, vectors)
        return plan.scheme.split(plan, x, self.side, scale, engine)

    def pick(self, stack: Array, vectors: Array) -> _BlockOperand:
        """The same operand with fewer matrices and vectors."""
        stack = stack if self.stack is None else self.stack[stack]
        vectors = vectors if self.vectors is None else self.vectors[vectors]
        return _BlockOperand(self.side, self.x, stack, vectors)


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
        is_entrywise = plan.verification is Verification.ENTRYWISE
        if not is_entrywise or outcome.certificate is None:
            return plan, outcome
        certificate = outcome.certificate()
        if certificate.holds:
            return plan, replace(outcome, bound=certificate.bound)
        # The bound does not hold. A plan with evidence makes the whole product again;
        # so it does after a native product that "auto" chose.
        is_chosen_native = (
            plan.scheme.is_native
            and plan.asked is None
            and has_kernels(engine)
            and not shift
        )
        if certificate.evidence is not None or is_chosen_native:
            problem = plan.problem

            def inspect(scheme: Scheme, target: Target) -> Evidence | None:
                return scheme.evidence(problem, target, a, b, engine, workspace)

            finer = with_evidence(
                plan, certificate.evidence, engine, workspace, inspect
            )
            return execute(
                finer, a, b, engine, workspace, shift, epilogue, (None, None), out
            )
        plan = fitted(plan, workspace, engine, in_steps=True)

    # Step by step: the product, the other triangle, then alpha and beta.
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
    if plan.scheme.is_native:
        native = _native(plan, a, b, engine, shift)
        if native is not None:
            return native

    # Rows and columns with Inf and NaN are zeros meanwhile.
    rows = nonfinite_vectors(a, 2)
    cols = nonfinite_vectors(b, 1)
    has_nonfinite = bool(rows.any() or cols.any())
    x = clean(a) if rows.any() else a
    y = clean(b) if cols.any() else b

    # A D and D**-1 B in the place of A and B, unless they were split before.
    notes = []
    d = None
    if splits == (None, None):
        d = plan.scheme.inner_exponents(plan, x, y, engine)
    if d is not None:
        from hifigemm.numerics.inner_scaling import scaled_along_k

        x = scaled_along_k(x, d, 2)
        y = scaled_along_k(y, d, 1)
        is_told = plan.evidence is not None and plan.evidence.inner
        if not is_told:
            notes.append(SCALED_ALONG_K)
    left = _BlockOperand("left", x, split=splits[0])
    right = _BlockOperand("right", y, split=splits[1])

    filled = rows | cols if has_nonfinite else None
    outcome = _run(plan, left, right, engine, workspace, shift, filled, out)
    outcome.notes[:0] = notes
    if has_nonfinite:
        fill_nonfinite(outcome.values, a, b, rows, cols)
        outcome.notes.append("Inf and NaN as IEEE arithmetic in any order puts them")
    return outcome


def whole_split(plan: Plan, x: Array, side: str, engine: Engine) -> Split:
    """The split of a whole operand whose split does not depend on the other one.

    Inf and NaN count as zeros. Their vectors are the fact `marked` of the split, by
    which kernels fill in their results.
    """
    marked = None
    if not np.isfinite(x).all():
        marked = nonfinite_vectors(x, 2 if side == "left" else 1)
        x = clean(x)
    is_left = side == "left"
    a, b = (x, None) if is_left else (None, x)
    row_scale, col_scale = plan.scheme.scales(plan, a, b, engine) or (None, None)
    scale = row_scale if is_left else col_scale
    split = plan.scheme.split(plan, x, side, scale, engine)
    if marked is None:
        return split
    return replace(split, facts=split.facts | {"marked": marked})


def _native(
    plan: Plan, a: Array, b: Array, engine: Engine, shift: int
) -> Outcome | None:
    """The native product; None if one of its entries is not certified."""
    left = plan.scheme.split(plan, a, "left", None, engine)
    right = plan.scheme.split(plan, b, "right", None, engine)
    product = plan.scheme.multiply(plan, left, right, engine, shift)
    if product.certified is not None and not product.certified.all():
        return None
    return Outcome(product.values, product.bound, 1, [])


def _run(
    plan: Plan,
    left: _BlockOperand,
    right: _BlockOperand,
    engine: Engine,
    workspace: int,
    shift: int,
    filled: Array | None = None,
    out: Array | None = None,
) -> Outcome:
    """The product, block by block, and once more by a finer plan where entries are not
    certified.

    Entries that are `filled` in afterwards need no certificate.
    """
    scheme = plan.scheme
    problem = plan.problem
    left, right = _scaled(plan, left, right, engine)
    shape = problem.batch, problem.m, problem.n
    values = np.empty(shape, problem.dtype, like=left.x) if out is None else out
    outcome = Outcome(values, 0.0, 0, [])

    # Blocks of one column follow each other, so that its split is made once.
    uncertified_blocks: list[tuple[Block, Array]] = []
    left_block = None
    right_block = None
    for block in plan.blocks():
        if right_block != (block.batch, block.cols):
            right_block = (block.batch, block.cols)
            right_part = right.part(plan, engine, block.batch, block.cols)
        if left_block != (block.batch, block.rows):
            left_block = (block.batch, block.rows)
            left_part = left.part(plan, engine, block.batch, block.rows)
        product = scheme.multiply(plan, left_part, right_part, engine, shift)
        values[block] = product.values
        bound = product.bound
        if product.certified is not None and not product.certified.all():
            uncertified_blocks.append((block, ~product.certified))
            # Certified entries keep the promise, and the others are made again.
            if not scheme.is_native:
                bound = min(bound, plan.target.r)
        outcome.bound = max(outcome.bound, bound)
        share = product.values.size / values.size
        outcome.num_products += product.num_products * share
    # Splits are large: their memory is for the escalation.
    del left_part, right_part

    if uncertified_blocks:
        uncertified = np.zeros(values.shape, bool, like=values)
        for block, entries in uncertified_blocks:
            uncertified[block] = entries
        if filled is not None:
            uncertified &= ~filled
        if not uncertified.any():
            return outcome
        _escalate(plan, left, right, engine, workspace, shift, outcome, uncertified)
    return outcome


def _scaled(
    plan: Plan, left: _BlockOperand, right: _BlockOperand, engine: Engine
) -> tuple[_BlockOperand, _BlockOperand]:
    """Both operands with their scales, where the scheme has any; a prepared split needs
    none.
    """
    # A scheme without scales needs no copies of the operands.
    if type(plan.scheme).scales is Scheme.scales:
        return left, right
    a = None if left.split is not None else left.take()
    b = None if right.split is not None else right.take()
    row_scale, col_scale = plan.scheme.scales(plan, a, b, engine) or (None, None)
    return replace(left, scale=row_scale), replace(right, scale=col_scale)


def _escalate(
    plan: Plan,
    left: _BlockOperand,
    right: _BlockOperand,
    engine: Engine,
    workspace: int,
    shift: int,
    outcome: Outcome,
    uncertified: Array,
) -> None:
    """Recompute the uncertified entries by a finer plan, on the matrices, rows and
    columns that hold any.
    """
    num_entries = int(np.count_nonzero(uncertified))
    stack = np.flatnonzero(uncertified.any(axis=(1, 2)))
    rows = np.flatnonzero(uncertified.any(axis=(0, 2)))
    cols = np.flatnonzero(uncertified.any(axis=(0, 1)))
    problem = replace(plan.problem, batch=len(stack), m=len(rows), n=len(cols))
    finer = plan.scheme.escalate(plan, problem, engine)
    if finer is None:
        raise AccuracyError(
            f"{plan.scheme} does not keep {plan.target} for {num_entries} of {uncertified.size} entries of "
            f"{plan.problem}"
        )
    finer = fitted(finer, workspace, engine)
    smaller_left = left.pick(stack, rows)
    smaller_right = right.pick(stack, cols)

    # A CPU's program leaves no entry; those of GPUs are for whole products.
    program = None if has_kernels(engine) else engine.compile(finer)
    if program is None:
        second = _run(finer, smaller_left, smaller_right, engine, workspace, shift)
    else:
        arrays = smaller_left.take(), smaller_right.take()
        second = program(*arrays, shift, PLAIN, (None, None), None)

    # Certified entries keep their values.
    values = outcome.values
    block = np.ix_(stack, rows, cols)
    values[block] = np.where(uncertified[block], second.values, values[block])
    outcome.num_products += second.num_products * second.values.size / values.size
    outcome.bound = max(outcome.bound, second.bound)
    entries = counted(num_entries, "entry", "entries")
    outcome.notes.append(f"{entries} escalated by {finer.scheme}")
    outcome.notes.extend(second.notes)
