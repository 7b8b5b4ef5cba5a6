"""Run a plan on stacks of arrays: by the engine's executable, or block by block in the
steps of its scheme, with escalation and special values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hifigemm.base.exceptions import AccuracyError
from hifigemm.engines.arrays import as_array, memory_of
from hifigemm.engines.host import HostExecutable
from hifigemm.model.accuracy import NO_PROMISE, NOTHING_STATED
from hifigemm.model.engine import SCALED_ALONG_K, Engine, Lowering, has_kernels
from hifigemm.model.executable import (
    NO_SPLITS,
    NOT_FINITE,
    OTHER_MODE,
    Executable,
    Outcome,
    Refusal,
    Signature,
    Splits,
)
from hifigemm.model.plan import Evidence, Plan, Split, Verification
from hifigemm.model.problem import Block, Problem, counted
from hifigemm.numerics.bits import Array, real_components
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.numerics.special import clean, fill_nonfinite, nonfinite_vectors
from hifigemm.numerics.subnormals import is_ieee
from hifigemm.numerics.symmetric import mirror
from hifigemm.operands.operands import Prepared
from hifigemm.running.auto import EvidenceByNeed, Need
from hifigemm.running.planner import fitted, with_evidence
from hifigemm.schemes import Scheme

if TYPE_CHECKING:
    from hifigemm.numerics.scaling import Scale

quiet = np.errstate(all="ignore")
"""Suppress NumPy's floating-point warnings: intermediate underflow, overflow and NaN
are expected.
"""
_IEEE_NOTE = "Inf and NaN as IEEE arithmetic in any order puts them"


@dataclass(frozen=True)
class _BlockOperand:
    """One operand, a stack (batch or 1, rows, columns), and the matrices and vectors in
    use.
    """

    side: str  # "left" or "right"
    x: Array
    stack: Array | None = None  # indices of the matrices; None for all
    # indices of the rows (left) or columns (right); None for all
    vectors: Array | None = None
    split: Split | None = None  # of the whole operand, if it was prepared
    scale: Scale | None = None  # of the whole operand, if the scheme has scales

    def take(self, batch: slice = slice(None), vectors: slice = slice(None)) -> Array:
        """Some of the matrices and vectors in use, as an array."""
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
            return self.split if plan.is_whole else self.split.take(batch, vectors)
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
    splits: Splits = NO_SPLITS,
    out: Array | None = None,
) -> tuple[Plan, Outcome]:
    """alpha (2**shift A B) + beta C of stacks by the plan, for any operands, in `out`
    if it is given.

    Returns the plan that finally ran, and its outcome. Nothing waits for a device
    unless entries must be certified.
    """
    shape = plan.problem.shape
    signature = Signature(a, b, shape, out, shift, epilogue, splits)
    executable = lowered(plan, signature, engine, workspace)
    plan, outcome = run(plan, executable, signature, engine, workspace)
    if out is not None and outcome.values is not out:
        out[...] = outcome.values
        outcome = outcome._replace(values=out)
    return plan, outcome


def planned(
    make: Callable[[EvidenceByNeed], Plan | Need],
    problem: Problem,
    stacks: Callable[[], tuple[Array, Array]],
    engine: Engine,
    workspace: int,
) -> tuple[Plan, bool]:
    """The plan of a planner, and True if it depends on the operands. Inspects the
    operands as the planner needs.
    """
    evidence_by_need: dict[Need, Evidence | None] = {}
    while isinstance(plan := make(evidence_by_need), Need):
        scheme, target = plan
        evidence_by_need[plan] = scheme.evidence(
            problem, target, *stacks(), engine, workspace
        )
    rests_on_operands = any(evidence_by_need.values())
    return plan, rests_on_operands


def lowered(
    plan: Plan, signature: Signature, engine: Engine, workspace: int
) -> Executable:
    """The plan for operands of one layout: the engine's executable, otherwise step by
    step.
    """
    lowering = engine.lowering(plan)
    executable = None if lowering is None else lowering.lower(signature)
    return executable or InSteps(plan, signature, engine, workspace)


def run(
    plan: Plan,
    executable: Executable,
    signature: Signature,
    engine: Engine,
    workspace: int,
) -> tuple[Plan, Outcome]:
    """The outcome for the arrays of a signature, and the plan that finally ran."""
    outcome = outcome_of(executable, signature)
    if isinstance(outcome, Refusal):
        return continue_after(outcome, plan, signature, engine, workspace)
    return plan, outcome


def outcome_of(executable: Executable, signature: Signature) -> Outcome | Refusal:
    """The outcome of an executable for the arrays of a signature, as arrays of their
    kind.
    """
    c = signature.epilogue.c
    out = signature.out
    outcome = executable(
        memory_of(signature.left),
        memory_of(signature.right),
        None if out is None else memory_of(out),
        None if c is None else memory_of(c),
        signature.epilogue.alpha,
        signature.epilogue.beta,
        signature.splits,
    )
    if isinstance(outcome, Refusal):
        return outcome
    is_written = out is not None and outcome.values is memory_of(out)
    values = out if is_written else as_array(outcome.values)
    second = None if outcome.second is None else as_array(outcome.second)
    return outcome._replace(values=values, second=second)


def continue_after(
    refusal: Refusal,
    plan: Plan,
    signature: Signature,
    engine: Engine,
    workspace: int,
) -> tuple[Plan, Outcome]:
    """The outcome for operands that an executable of this plan has rejected: by a finer
    plan, or by the steps of the scheme, which separate Inf and NaN and escalate
    entries.
    """
    # Prepared splits belong to the plan that was not enough.
    signature = signature._replace(splits=NO_SPLITS)
    # A plan with evidence computes the whole product again; so does a plan after a
    # native product that "auto" chose.
    is_chosen_native = (
        plan.scheme.is_native
        and plan.asked is None
        and has_kernels(engine)
        and not signature.shift
    )
    if refusal.evidence is not None or is_chosen_native:
        make = partial(with_evidence, plan, refusal.evidence, engine, workspace)
        finer, _ = planned(make, plan.problem, lambda: signature[:2], engine, workspace)
        executable = lowered(finer, signature, engine, workspace)
        return run(finer, executable, signature, engine, workspace)
    if refusal is not NOT_FINITE:
        plan = fitted(plan, workspace, engine, in_steps=True)
    steps = InSteps(plan, signature, engine, workspace, refusal)
    return run(plan, steps, signature, engine, workspace)


class InSteps:
    """A plan that runs step by step, in blocks; see `Executable`.

    A `refusal` is why the engine's executable did not compute this product.
    """

    def __init__(
        self,
        plan: Plan,
        signature: Signature,
        engine: Engine,
        workspace: int,
        refusal: Refusal | None = None,
    ) -> None:
        self.plan = plan
        self._engine = engine
        self._workspace = workspace
        self._shape = signature.shape
        self._left_shape = signature.left.shape
        self._right_shape = signature.right.shape
        self._shift = signature.shift
        self._is_idle = signature.epilogue.idle
        # Uncertified entries may end in an error; `out` must be unchanged then.
        is_refusable = plan.verification is Verification.ENTRYWISE
        self._writes_to_out = (
            self._is_idle and signature.out is not None and not is_refusable
        )
        self._refusal = refusal

    @quiet
    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        c: Any = None,
        alpha: complex = 1.0,
        beta: complex = 0.0,
        splits: Splits = NO_SPLITS,
    ) -> Outcome | Refusal:
        """See `Executable`."""
        if not is_ieee():
            return OTHER_MODE
        plan = self.plan
        engine = self._engine
        stack_shape = plan.problem.shape
        target = None
        if self._writes_to_out and out is not None:
            target = as_array(out).reshape(stack_shape)
        outcome = in_steps(
            plan,
            as_array(a).reshape(self._left_shape),
            as_array(b).reshape(self._right_shape),
            engine,
            self._workspace,
            self._shift,
            splits,
            target,
            self._refusal,
        )
        values = outcome.values
        if plan.problem.mirror:
            engine.override(mirror)(values, plan.problem.mirror == "C")
        if not self._is_idle:
            addend = None if c is None else as_array(c).reshape(stack_shape)
            values = Epilogue(alpha, beta, addend).apply(values)
        if target is not None and values is target:
            return outcome._replace(values=out)
        return outcome._replace(values=memory_of(values.reshape(self._shape)))


class SumsInSteps(HostExecutable):
    """The plan's rounding of 2**shift (+-A B + s C) by the sums of its scheme; entries
    may stay open. It rejects Inf and NaN in A and B.
    """

    def __init__(self, plan: Plan, signature: Signature, engine: Engine) -> None:
        super().__init__(plan, signature)
        self._engine = engine

    @quiet
    def multiply(self, a: Array, b: Array, c: Array | None) -> Outcome | Refusal:
        """Also rejects s C with bits below the smallest float64."""
        plan = self.plan
        rounding = plan.rounding
        dtype = plan.problem.dtype
        if rounding.sign < 0:
            a = -a

        # s C in real components; Inf and NaN are added at the end.
        scaled = None
        s = rounding.c_sign * 2.0**rounding.c_exponent
        if c is not None:
            components = real_components(c)
            is_finite = np.isfinite(components)
            addend = np.where(is_finite, components, 0).astype(np.float64)
            scaled = addend * s
            restored = np.ldexp(scaled, -rounding.c_exponent)
            if not (restored == addend * rounding.c_sign).all():
                return Refusal("s C has bits below the smallest float64")
        kind = rounding.kind
        shift = self.shift
        sums = plan.scheme.rounded_sums(plan, self._engine, a, b, scaled, shift, kind)
        if sums is None:
            return NOT_FINITE
        values = sums.first
        if c is not None:
            with_special = values + components * values.dtype.type(s)
            values = np.where(is_finite, values, with_special)
        second = None if sums.second is None else sums.second.view(dtype)
        values = values.view(dtype)
        certified = _certified_entries(sums.certified, values)
        notes = (sums.reason,)
        return Outcome(values, 0.0, sums.num_products, notes, None, second, certified)


def _certified_entries(certified: Array, values: Array) -> Array:
    """True for the entries of `values` all of whose real components are certified."""
    if values.dtype.kind != "c":
        return certified
    return np.asarray(certified.reshape(*values.shape, 2).all(axis=-1))


def in_steps(
    plan: Plan,
    a: Array,
    b: Array,
    engine: Engine,
    workspace: int,
    shift: int = 0,
    splits: Splits = NO_SPLITS,
    out: Array | None = None,
    refusal: Refusal | None = None,
) -> Outcome:
    """2**shift A B block by block, in `out` where that is given; Inf and NaN are filled
    in at the end.

    A native product propagates Inf and NaN, so its operands are inspected only if the
    result is not finite. If an executable rejected nothing but Inf and NaN, it
    multiplies the operands without them.
    """
    if plan.scheme.is_native and refusal is None:
        native = _native(plan, a, b, engine, shift)
        if native is not None:
            return native

    # Rows and columns with Inf and NaN are zeros for now. Sums of others may overflow
    # too, but sums are faster.
    x = a
    y = b
    has_nonfinite = False
    if not np.isfinite(a.sum() + b.sum()):
        rows = nonfinite_vectors(a, 2)
        cols = nonfinite_vectors(b, 1)
        has_nonfinite = bool(rows.any() or cols.any())
        x = clean(a) if rows.any() else a
        y = clean(b) if cols.any() else b

    # The finite product, by an executable that rejects nothing else, or in blocks.
    if refusal is NOT_FINITE:
        _, outcome = execute(plan, x, y, engine, workspace, shift)
    else:
        filled = rows | cols if has_nonfinite else None
        outcome = _of_finite(plan, x, y, engine, workspace, shift, splits, filled, out)
    if not has_nonfinite:
        return outcome
    fill_nonfinite(outcome.values, a, b, rows, cols)
    return outcome._replace(notes=(*outcome.notes, _IEEE_NOTE))


def _of_finite(
    plan: Plan,
    a: Array,
    b: Array,
    engine: Engine,
    workspace: int,
    shift: int,
    splits: Splits,
    filled: Array | None,
    out: Array | None,
) -> Outcome:
    """2**shift A B of finite stacks; `filled` and `out` are those of `_run`."""
    # A D and D**-1 B instead of A and B, unless they were split before.
    notes: tuple[str, ...] = ()
    d = None
    if splits == NO_SPLITS:
        d = plan.scheme.inner_exponents(plan, a, b, engine)
    if d is not None:
        from hifigemm.numerics.inner_scaling import scaled_along_k

        a = scaled_along_k(a, d, 2)
        b = scaled_along_k(b, d, 1)
        is_told = plan.evidence is not None and plan.evidence.inner
        if not is_told:
            notes = (SCALED_ALONG_K,)
    left = _BlockOperand("left", a, split=splits[0])
    right = _BlockOperand("right", b, split=splits[1])
    outcome = _run(plan, left, right, engine, workspace, shift, filled, out)
    return outcome._replace(notes=notes + outcome.notes)


def split_of(plan: Plan, x: Array, side: str, engine: Engine) -> Any:
    """The reusable split of an operand for products by this plan; None if products take
    the operand itself, because its scales depend on the other one or for other reasons.
    """
    split = splitting(plan, x, side, engine)
    return None if split is None else split(x)


def lowering_of_prepared(plan: Plan, engine: Engine) -> Lowering | None:
    """The engine's executable for products of a prepared operand. A device that
    computes a bound for a report takes the operand itself.
    """
    states_nothing = plan.target == NO_PROMISE and has_kernels(engine)
    if states_nothing:
        plan = replace(plan, target=NOTHING_STATED)
    return engine.lowering(plan)


def splitting(
    plan: Plan, x: Array, side: str, engine: Engine
) -> Callable[[Array], Any] | None:
    """`split_of` as a function of operands laid out as x; None for plans whose products
    take the operand alone.
    """
    lowering = lowering_of_prepared(plan, engine)
    if lowering is not None:
        return lowering.preparing(x, side)
    scheme = plan.scheme
    if scheme.is_native or plan.alternatives:
        return None
    if scheme.scales(plan, None, None, engine) is None:
        return None
    return partial(_split_in_steps, plan, side, engine)


def _split_in_steps(plan: Plan, side: str, engine: Engine, x: Array) -> Any:
    """The split of an operand by the plain functions of its scheme."""
    # Inf and NaN count as zeros.
    if not np.isfinite(x).all():
        x = clean(x)
    is_left = side == "left"
    a, b = (x, None) if is_left else (None, x)
    row_scale, col_scale = plan.scheme.scales(plan, a, b, engine) or (None, None)
    scale = row_scale if is_left else col_scale
    return plan.scheme.split(plan, x, side, scale, engine)


def usable_split(
    x: Array | Prepared,
    side: str,
    shape: tuple[int, int, int],
    plan: Plan,
    lowering: Lowering | None,
) -> Any:
    """The split of a prepared operand, if this plan takes it and its layout fits the
    product; otherwise None.
    """
    if not isinstance(x, Prepared) or x.split is None:
        return None
    if lowering is not None:
        serves = lowering.takes(x.split, side)
    else:
        # The bound of a report needs no other split.
        own = x.plan
        is_same = own.scheme == plan.scheme and own.evidence == plan.evidence
        serves = isinstance(x.split, Split) and is_same
    num_vectors = shape[1] if side == "left" else shape[2]
    is_as_long = len(x.split.planes) == shape[0]
    is_as_wide = x.split.vectors == num_vectors
    return x.split if serves and is_as_long and is_as_wide else None


def _native(
    plan: Plan, a: Array, b: Array, engine: Engine, shift: int
) -> Outcome | None:
    """The native product; None if one of its entries is not certified."""
    left = plan.scheme.split(plan, a, "left", None, engine)
    right = plan.scheme.split(plan, b, "right", None, engine)
    product = plan.scheme.multiply(plan, left, right, engine, shift)
    if product.certified is not None and not product.certified.all():
        return None
    return Outcome(product.values, product.bound, 1)


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
    """The product, block by block; a finer plan computes uncertified entries again.

    Entries that are `filled` afterwards need no certificate.
    """
    scheme = plan.scheme
    problem = plan.problem
    left, right = _split_together(plan, left, right, engine)
    left, right = _scaled(plan, left, right, engine)
    values = out
    if values is None:
        values = np.empty(problem.shape, problem.dtype, like=left.x)
    largest_bound = 0.0
    num_products = 0.0

    # Blocks of one column follow each other, so its split is computed once.
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
            # Certified entries keep the promise; the others are computed again.
            if not scheme.is_native:
                bound = min(bound, plan.target.r)
        largest_bound = max(largest_bound, bound)
        share = product.values.size / values.size
        num_products += product.num_products * share
    # Splits are large: their memory is for the escalation.
    del left_part, right_part

    outcome = Outcome(values, largest_bound, num_products)
    if not uncertified_blocks:
        return outcome
    uncertified = np.zeros(values.shape, bool, like=values)
    for block, entries in uncertified_blocks:
        uncertified[block] = entries
    if filled is not None:
        uncertified &= ~filled
    if not uncertified.any():
        return outcome
    second = _escalated(plan, left, right, engine, workspace, shift, uncertified)
    share = second.values.size / values.size

    # Certified entries keep their values. If nothing is promised, a finite component
    # next to one that overflowed keeps its value too.
    index = _vectors_with_any(uncertified)
    kept = values[index]
    merged = np.where(uncertified[index], second.values, kept)
    if plan.verification is Verification.NONE and problem.is_complex:
        components = real_components(kept)
        finite = np.isfinite(components)
        merged = np.where(finite, components, real_components(merged)).view(kept.dtype)
    values[index] = merged
    return outcome._replace(
        bound=max(outcome.bound, second.bound),
        num_products=num_products + second.num_products * share,
        notes=second.notes,
    )


def _split_together(
    plan: Plan, left: _BlockOperand, right: _BlockOperand, engine: Engine
) -> tuple[_BlockOperand, _BlockOperand]:
    """Both operands with their splits, if one pass over small operands computes both."""
    if not plan.is_whole or left.split is not None or right.split is not None:
        return left, right
    splits = plan.scheme.split_together(plan, left.take(), right.take(), engine)
    if splits is None:
        return left, right
    return replace(left, split=splits[0]), replace(right, split=splits[1])


def _scaled(
    plan: Plan, left: _BlockOperand, right: _BlockOperand, engine: Engine
) -> tuple[_BlockOperand, _BlockOperand]:
    """Both operands with their scales, if the scheme has any; a prepared split needs
    none.
    """
    # A scheme without scales needs no copies of the operands.
    are_split = left.split is not None and right.split is not None
    if are_split or type(plan.scheme).scales is Scheme.scales:
        return left, right
    a = None if left.split is not None else left.take()
    b = None if right.split is not None else right.take()
    row_scale, col_scale = plan.scheme.scales(plan, a, b, engine) or (None, None)
    return replace(left, scale=row_scale), replace(right, scale=col_scale)


def _vectors_with_any(entries: Array) -> tuple[Array, ...]:
    """The index of the matrices, rows and columns that hold any of these entries."""
    axes = ((1, 2), (0, 2), (0, 1))
    return np.ix_(*(np.flatnonzero(entries.any(axis=axis)) for axis in axes))


def _escalated(
    plan: Plan,
    left: _BlockOperand,
    right: _BlockOperand,
    engine: Engine,
    workspace: int,
    shift: int,
    uncertified: Array,
) -> Outcome:
    """The matrices, rows and columns with uncertified entries, by a finer plan."""
    num_entries = int(np.count_nonzero(uncertified))
    index = _vectors_with_any(uncertified)
    stack, rows, cols = (x.reshape(-1) for x in index)
    problem = replace(plan.problem, batch=len(stack), m=len(rows), n=len(cols))
    finer = plan.scheme.escalate(plan, problem, engine)
    if finer is None:
        raise AccuracyError(
            f"{plan.scheme} does not meet {plan.target} in {num_entries} of {uncertified.size} entries of "
            f"{plan.problem}"
        )
    finer = fitted(finer, workspace, engine)
    smaller_left = left.pick(stack, rows)
    smaller_right = right.pick(stack, cols)

    # A CPU's executable leaves no entry open; GPU executables are for whole products.
    lowering = None if has_kernels(engine) else engine.lowering(finer)
    if lowering is None:
        second = _run(finer, smaller_left, smaller_right, engine, workspace, shift)
    else:
        arrays = smaller_left.take(), smaller_right.take()
        _, second = execute(finer, *arrays, engine, workspace, shift)
    entries = counted(num_entries, "entry", "entries")
    notes = (f"{entries} escalated by {finer.scheme}", *second.notes)
    return second._replace(notes=notes)
