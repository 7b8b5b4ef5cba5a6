"""Plans as launches of a GPU over named memory, with a decision record beside the
result.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hifigemm.base.store import once
from hifigemm.engines.cuda.required_bits import (
    NO_LIMIT,
    inner_inspection_of,
    required_bits_of,
)
from hifigemm.engines.device_array import (
    check_not_capturing,
    count_change,
    unwrap,
    wrap,
)
from hifigemm.engines.device_ops import TORCH_DTYPES
from hifigemm.kernels.endings.mirror import mirror
from hifigemm.kernels.products.epilogue import combine_in_place
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.host_word import HostWords
from hifigemm.kernels.runtime.launch import Scalar, scalar
from hifigemm.kernels.runtime.launch_list import LaunchList, facts_of, raw_stream
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.vectors.scaled_along_k import layout_of_copy
from hifigemm.model.engine import Lowering
from hifigemm.model.executable import (
    CHECK_FAILED,
    NO_SPLITS,
    UNSEEN,
    Executable,
    Outcome,
    RecordedDecision,
    Refusal,
    Signature,
    Splits,
    certify,
)
from hifigemm.model.plan import Blocking, Evidence, Plan, Verification
from hifigemm.model.problem import Block
from hifigemm.numerics.bits import Array
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.numerics.integer_sums import NEAREST

_INNER_INSPECTION = "scaled along k"
"""What is kept of operands that are scaled along k goes by this word and their bits."""
_DECISIONS = 64
"""Decisions of one request whose executables are kept; the oldest makes room."""
_PAUSE = 16
"""Calls without a check after one that has refused operands with the bits of those before."""
_NARROW = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Finding(Enum):
    """What a check finds: whether the launches have served their operands, and whether a
    plan for these takes fewer products.
    """

    SERVED = 0
    WASTEFUL = 1  # served, at more than the price of a plan for the operands
    REFUSED = 2  # nothing was written


class Arguments(NamedTuple):
    """What launches take: memory in this order, then numbers.

    The memory is that of tensors; of buffers that stand for tensors while launches are
    recorded. None is for what a call does without.
    """

    # operands (batch or 1, ...) and the product T = 2**shift A B
    a: Any
    b: Any
    out: Any
    record: Any = None  # int64 words in which the device notes what it found
    c: Any = None
    second: Any = None  # the other array of a pair or an enclosure
    combined: Any = None  # where a launch of its own writes alpha T + beta C
    # (planes, exponents) of prepared operands
    left: tuple[Any, Any] | None = None
    right: tuple[Any, Any] | None = None
    host_word: Any = None  # where the host gets a number before the product is there
    shift: int = 0
    # numbers or `Scalar`s, where the launches of the plan apply them; else 1 and 0
    alpha: float | Scalar = 1.0
    beta: float | Scalar = 0.0

    @property
    def prepared(self) -> tuple[tuple[Any, Any] | None, tuple[Any, Any] | None]:
        """Planes and exponents of both operands."""
        return self.left, self.right

    def facts(self) -> Hashable:
        """What launches rest on: they serve all arguments with the same facts."""
        single = self.a, self.b, self.out, self.record, self.c
        left = self.left or (None, None)
        right = self.right or (None, None)
        behind = self.second, self.combined, *left, *right, self.host_word
        memory = *single, *behind
        return self.shift, *(None if x is None else facts_of(x) for x in memory)

    def in_list(self, launches: LaunchList) -> Arguments:
        """The same with buffers of a launch list instead of tensors; it clears the
        record.
        """

        def operand(x: Any) -> Any:
            return None if x is None else launches.operand(x)

        def operands(pair: tuple[Any, Any] | None) -> Any:
            return None if pair is None else tuple(map(operand, pair))

        record = self.record
        return self._replace(
            a=operand(self.a),
            b=operand(self.b),
            out=operand(self.out),
            record=None if record is None else launches.operand(record, is_zero=True),
            c=operand(self.c),
            second=operand(self.second),
            combined=operand(self.combined),
            left=operands(self.left),
            right=operands(self.right),
            host_word=operand(self.host_word),
        )


def layout(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A contiguous tensor that is not there."""
    return torch.empty(shape, dtype=dtype, device="meta")


def blocks_of(plan: Plan, out: Buffer) -> Iterator[Block]:
    """The blocks of a plan for the launches of `out`; what a launch of a block wants
    cleared is gone with that block.

    Blocks above the diagonal of a result that is mirrored are left out.
    """
    blocks = (
        x
        for x in plan.blocks()
        if not (plan.problem.mirror and x.rows.stop <= x.cols.start)
    )
    for index, block in enumerate(blocks):
        if index:
            out.launches.reuse_zeros()
        yield block


def is_triangle(plan: Plan, block: Block) -> bool:
    """Whether only what lies on and below the diagonal of a block is made."""
    return bool(plan.problem.mirror) and block.rows == block.cols


@dataclass(frozen=True)
class CudaLowering(Lowering):
    """How a plan is carried out by launches; see `hifigemm.model.engine.Lowering`.

    Each scheme derives its own from this one.
    """

    plan: Plan
    device: torch.device

    @property
    def record_words(self) -> int:
        """Length of the decision record; 0 where the device decides nothing."""
        return 0

    @property
    def may_refuse(self) -> bool:
        """Whether the record may say that entries are not certified, for which calls
        wait.
        """
        is_certified = self.plan.verification is Verification.ENTRYWISE
        return is_certified and self.record_words > 0

    @property
    def is_checked(self) -> bool:
        """True if the launches find out whether the plan serves their operands, and tell
        the host. The product is not written otherwise.
        """
        return False

    @property
    def checked_reason(self) -> str:
        """The reason of a plan that a check has found to serve."""
        raise NotImplementedError

    def finding(self, number: int) -> Finding:
        """The finding that the number for the host stands for."""
        raise NotImplementedError

    def checked(self, signature: Signature) -> CudaLowering | None:
        """The same with such a check, for other operands than the plan was made for;
        None where there is none.
        """
        return None

    @property
    def applies_scalars(self) -> bool:
        """Whether the plan's launches apply moderate alpha and beta; else one does that
        comes behind them.
        """
        return False

    @property
    def rounds(self) -> bool:
        """Whether they round as `Plan.rounding` says."""
        return False

    @property
    def has_contiguous_rows(self) -> bool:
        """Whether they write to results with contiguous rows only."""
        return False

    def record(self, plan: Plan, given: Arguments) -> None:
        """Add the launches of a plan, this one or that of a block of it."""
        raise NotImplementedError

    def decision(self, words: Sequence[int]) -> RecordedDecision:
        """What the words of a record say."""
        raise NotImplementedError

    def bytes_outside(self, batch: int, rows: int, cols: int) -> int:
        """Scratch bytes beside those of the launches for such a block, where the result
        is cut into several.
        """
        return 0

    @property
    def evidence_key(self) -> Hashable:
        """None for an error ratio, for vectors that are treated apart, and for plans
        that are certified: other operands may be looked at with another result.
        """
        evidence = self.plan.evidence
        is_certified = self.plan.verification is Verification.ENTRYWISE
        if evidence is None or (is_certified and self.plan.asked is None):
            return None
        if evidence.outliers is not None or evidence.separate is not None:
            return None
        if evidence.inner and evidence.required_bits is not None:
            return _INNER_INSPECTION, evidence.required_bits
        return evidence.num_slices or evidence.required_bits

    def inspection(
        self, left: Tensor, right: Tensor, splits: Splits
    ) -> Callable[[Tensor, Tensor, Splits], Hashable]:
        """The required bits of both."""
        bits_of = required_bits_of(left, right, NO_LIMIT)
        return lambda a, b, splits: bits_of(a, b)

    def nbytes(self, batch: int, rows: int, cols: int) -> int:
        """Size of the workspace of contiguous operands."""
        key = "nbytes", self.plan, self.device, batch, rows, cols
        return once(key, partial(self._nbytes, batch, rows, cols), self.device)

    def _nbytes(self, batch: int, rows: int, cols: int) -> int:
        """The size for the fullest block of this shape."""
        p = self.plan.problem
        # Blocks below the diagonal are no triangles.
        is_whole = (rows, cols) == (p.m, p.n)
        mirror = p.mirror if is_whole else ""
        problem = replace(p, batch=batch, m=rows, n=cols, mirror=mirror)
        in_halves = self.in_halves(batch, rows, cols)
        blocking = Blocking((batch, rows, cols), in_halves=in_halves)
        plan = replace(self.plan, problem=problem, blocking=blocking)
        if plan.evidence is not None:
            fullest = {
                name: vectors.of_fullest_block(rows, cols)
                for name in ("outliers", "separate")
                if (vectors := getattr(plan.evidence, name)) is not None
            }
            plan = replace(plan, evidence=replace(plan.evidence, **fullest))

        # The launches for contiguous tensors that are not there.
        dtype = TORCH_DTYPES[problem.dtype]
        operand_dtype = dtype
        if problem.narrow and self.takes_narrow:
            operand_dtype = _NARROW[problem.narrow.name]
        arguments = Arguments(
            layout((batch, rows, problem.k), operand_dtype),
            layout((batch, problem.k, cols), operand_dtype),
            layout((batch, rows, cols), dtype),
            self.layout_of_record(),
        )
        scratch = self.recorded(plan, arguments).finish().nbytes
        if self.multiplies_copies:
            # of whole operands, for later calls
            entry_bytes = 16 if p.is_complex else 8
            scratch += entry_bytes * p.batch * (p.m + p.n) * p.k
        if (batch, rows, cols) == (p.batch, p.m, p.n):
            return scratch
        return scratch + self.bytes_outside(batch, rows, cols)

    def lower(self, signature: Signature) -> Launches:
        """The launches for tensors of this layout."""
        return Launches(self, signature)

    @property
    def multiplies_copies(self) -> bool:
        """True if later calls multiply A D and D**-1 B, which the look at their bits has
        made.
        """
        evidence = self.plan.evidence
        return evidence is not None and evidence.inner and not self.record_words

    def of_copies(self) -> CudaLowering:
        """The lowering for A D and D**-1 B instead of A and B."""
        scheme: Any = self.plan.scheme
        evidence = self.plan.evidence or Evidence()
        plan = replace(
            self.plan,
            scheme=replace(scheme, scaling="fast"),
            evidence=replace(evidence, inner=False),
        )
        return replace(self, plan=plan)

    def inspecting(
        self, signature: Signature, executable: Executable
    ) -> Executable | None:
        """None for evidence that one look at other operands does not see again."""
        if self.evidence_key is None:
            return None
        return ByEvidence(self, signature, executable)

    def combines(self, epilogue: Epilogue) -> bool:
        """Whether the launches apply these scalars, in a step of their own if need be."""
        if epilogue.idle or self.has_rounding:
            return True
        is_real = not self.plan.problem.is_complex
        return epilogue.is_moderate and (self.applies_scalars or is_real)

    @property
    def has_rounding(self) -> bool:
        """True if the plan has a rounding of its own, by which C is added too."""
        return self.plan.rounding != NEAREST

    def adds_a_step(self, epilogue: Epilogue) -> bool:
        """Whether a step behind all others applies scalars that the launches apply."""
        return not (epilogue.idle or self.applies_scalars or self.has_rounding)

    def writes_to(self, out: Tensor) -> bool:
        """Whether the launches write to a result that is laid out as this one."""
        return not self.has_contiguous_rows or out.stride(2) == 1 or out.shape[2] == 1

    @property
    def takes_narrow(self) -> bool:
        """For words of two operands of one narrow dtype."""
        return self.plan.problem.narrow is not None and bool(self.plan.alternatives)

    def layout_of_record(self) -> Tensor | None:
        """None where the device decides nothing."""
        words = self.record_words
        return layout((words,), torch.int64) if words else None

    def read(self, record: Tensor, stream: int | None = None) -> RecordedDecision:
        """What the record says; waits for the current stream, or for the device if
        another stream made the product.
        """
        check_not_capturing()
        if stream is not None and stream != raw_stream(record.device):
            torch.cuda.synchronize(record.device)
        return self.decision(record.tolist())

    def launches(self, arguments: Arguments, *, has_scalars: bool) -> LaunchList:
        """The compiled launches for arguments laid out as these, kept for later ones."""

        def compiled() -> LaunchList:
            recorded = self.recorded(self.plan, arguments, has_scalars=has_scalars)
            return recorded.finish().compile()

        key = "launches", self.plan, self.device, arguments.facts(), has_scalars
        return once(key, compiled, self.device)

    def recorded(
        self, plan: Plan, arguments: Arguments, *, has_scalars: bool = False
    ) -> LaunchList:
        """The launches of a plan, for arguments laid out as these and all scalars."""
        launches = LaunchList(self.device)
        given = arguments.in_list(launches)
        alpha: float | Scalar = 1.0
        beta: float | Scalar = 0.0
        if has_scalars:
            alpha = scalar(0)
            beta = 0.0 if given.c is None else scalar(1)
        if given.combined is None:
            self.record(plan, given._replace(alpha=alpha, beta=beta))
        else:
            self.record(plan, given._replace(c=None))

        # Launches behind those of the plan.
        if plan.problem.mirror:
            mirror(given.out, plan.problem.mirror == "C")
        if given.combined is not None:
            combine_in_place(given.out, alpha, beta, given.c, given.combined)
        return launches


class Launches:
    """The launches of a plan for tensors of one layout; see `Executable`."""

    def __init__(self, lowering: CudaLowering, signature: Signature) -> None:
        plan = lowering.plan
        epilogue = signature.epilogue
        problem = plan.problem
        self.plan = plan
        self._lowering = lowering
        self._device = lowering.device
        self._shape = signature.shape
        self._stack_shape = problem.shape
        self._dtype = TORCH_DTYPES[problem.dtype]
        # The launches apply alpha and beta, or the host does so behind them.
        self._is_combined_later = not lowering.combines(epilogue)
        applied = PLAIN if self._is_combined_later else epilogue
        self._has_scalars = not (applied.idle or lowering.has_rounding)
        self._adds_a_step = lowering.adds_a_step(applied)
        self._has_two_parts = plan.rounding.has_two_parts
        self._certifies = lowering.may_refuse
        # What a certificate may refuse is not written to `out`, nor what a check may
        # refuse by launches behind the product.
        self._keeps_out = self._certifies or lowering.is_checked
        out = None if signature.out is None else unwrap(signature.out)
        self._writes_to_out = (
            out is not None
            and not self._certifies
            and not (lowering.is_checked and problem.mirror)
            and epilogue.c is None
            and not (self._is_combined_later or self._adds_a_step)
            and lowering.writes_to(out)
        )
        left, right = map(_planes_of, signature.splits)
        self._record_words = lowering.record_words
        self._is_checked = lowering.is_checked
        self._host_words = HostWords(self._device)
        self._bound = plan.bound
        self._num_products: float = plan.num_products
        self._notes: tuple[str, ...] = ()
        outliers = None if plan.evidence is None else plan.evidence.outliers
        if outliers is not None:
            self._num_products = outliers.num_products(problem, plan.num_products)
            self._notes = (str(outliers),)
        new = layout(self._stack_shape, self._dtype)
        product = out if self._writes_to_out else new
        arguments = Arguments(
            a=unwrap(signature.left),
            b=unwrap(signature.right),
            out=product,
            record=lowering.layout_of_record(),
            c=None if applied.c is None else unwrap(applied.c),
            second=product if self._has_two_parts else None,
            combined=new if self._adds_a_step else None,
            left=left,
            right=right,
            host_word=layout((1,), torch.int64) if lowering.is_checked else None,
            shift=signature.shift,
        )
        self._launches = lowering.launches(arguments, has_scalars=self._has_scalars)

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
        """See `Executable`; nothing waits for the device unless the plan is certified
        entry by entry, or checked.
        """
        device = self._device
        product = out
        if not (self._writes_to_out and out is not None):
            product = torch.empty(self._shape, dtype=self._dtype, device=device)
        # The last step reads C, which may be `out`, entry by entry before it writes
        # there. Where the product may be refused, C is wanted again.
        result = product
        if self._adds_a_step and out is not None and not self._keeps_out:
            result = out if _is_plain(out) else product

        # In the order of `Arguments`.
        memory = [a, b, product]
        decision = None
        if self._record_words:
            # The launches clear it.
            record = torch.empty(self._record_words, dtype=torch.int64, device=device)
            memory.append(record)
            stream = raw_stream(device) if record.is_cuda else None
            decision = partial(self._lowering.read, record, stream)
        if c is not None and not self._is_combined_later:
            memory.append(c)
        second = None
        if self._has_two_parts:
            second = torch.empty_like(product)
            memory.append(second)
        if self._adds_a_step:
            memory.append(result)
        for split in splits:
            memory.extend(_planes_of(split) or ())
        scalars = (alpha.real, beta.real) if self._has_scalars else ()
        is_wasteful = False
        if not self._is_checked:
            self._launches(*memory, scalars=scalars)
        else:
            check_not_capturing()
            number = self._host_words.number_from(
                lambda word: self._launches(*memory, word, scalars=scalars)
            )
            finding = self._lowering.finding(number)
            if finding is Finding.REFUSED:
                return CHECK_FAILED
            is_wasteful = finding is Finding.WASTEFUL

        outcome = Outcome(
            result,
            self._bound,
            self._num_products,
            self._notes,
            decision,
            second,
            is_wasteful=is_wasteful,
        )
        if self._certifies:
            certified = certify(outcome, self.plan)
            if isinstance(certified, Refusal):
                return certified
            outcome = certified
        if self._is_combined_later:
            third = None if c is None else wrap(c.reshape(self._stack_shape))
            epilogue = Epilogue(alpha, beta, third)
            combine(product.view(self._stack_shape), epilogue)
        if result is out:
            count_change(out)
        return outcome


class _Decided(NamedTuple):
    """The executable for operands that one decision is made for, and its plan."""

    executable: Executable
    plan: Plan
    # whether it takes A D and D**-1 B instead of A and B
    takes_copies: bool
    # the same, which refuses other operands before it multiplies; None without a check
    checked: Executable | None
    checked_plan: Plan  # what reports of those say

    def is_of(self, splits: Splits) -> bool:
        """Whether prepared operands are those of the decision."""
        evidence = self.plan.evidence
        bits = None if evidence is None else evidence.required_bits
        return bits is not None and all(
            split is None or split.bits == own
            for split, own in zip(splits, bits, strict=True)
        )


class ByEvidence:
    """The executables of one request by what one look at the operands sees; it refuses
    those of which nothing was seen yet. See `Executable`.

    The operands of a call are mostly like those of the call before: its executable
    comes first where that can check them while it runs, so that nobody waits between
    the look and the product.
    """

    def __init__(
        self, lowering: CudaLowering, signature: Signature, executable: Executable
    ) -> None:
        plan = lowering.plan
        operands = unwrap(signature.left), unwrap(signature.right)
        evidence: Any = plan.evidence
        epilogue = signature.epilogue
        layout = tuple(
            None if x is None else facts_of(unwrap(x))
            for x in (signature.left, signature.right, signature.out, epilogue.c)
        )
        prepared = tuple(
            None if split is None else facts_of(split.planes)
            for split in signature.splits
        )
        kind = signature.shape, signature.shift, epilogue.idle, plan.rounding, prepared
        asked = plan.problem, plan.asked, plan.target, plan.block_shape
        key = "by evidence", *asked, lowering.device, layout, kind
        self._table: dict[Hashable, Any] = once(key, dict, lowering.device)
        if evidence.inner:
            self._table[_INNER_INSPECTION] = inner_inspection_of(*operands, NO_LIMIT)
        if lowering.multiplies_copies:
            left = _meta_copy(operands[0], 2)
            right = _meta_copy(operands[1], 1)
            of_copies = signature._replace(left=left, right=right)
            executable = lowering.of_copies().lower(of_copies)
        if len(self._table) >= _DECISIONS:
            oldest = next((x for x in self._table if x != _INNER_INSPECTION), None)
            self._table.pop(oldest, None)
        checking = lowering.checked(signature)
        checked, checked_plan = None, plan
        if checking is not None:
            checked = checking.lower(signature)
            reasons = checking.checked_reason, *plan.rounding.notes
            checked_plan = replace(plan, reason="; ".join(reasons))
        copies = lowering.multiplies_copies
        decided = _Decided(executable, plan, copies, checked, checked_plan)
        self._table[lowering.evidence_key] = decided
        self._latest = decided
        self._pause = 0  # calls that look at their operands before a check comes again
        self._inspect = lowering.inspection(*operands, signature.splits)

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
        """The product by the executable for what the operands ask for, or by the latest
        one where that serves them too.
        """
        latest = self._latest
        was_refused = False
        if self._pause:
            self._pause -= 1
        elif latest.checked is not None and latest.is_of(splits):
            outcome = latest.checked(a, b, out, c, alpha, beta, splits)
            if not isinstance(outcome, Refusal):
                self._pause = int(outcome.is_wasteful)
                return outcome._replace(plan=latest.checked_plan)
            was_refused = True

        table = self._table
        decided: _Decided | None = table.get(self._inspect(a, b, splits))
        if decided is None and _INNER_INSPECTION in table:
            bits, copies = table[_INNER_INSPECTION](a, b)
            decided = table.get((_INNER_INSPECTION, bits))
            if decided is not None and decided.takes_copies:
                a, b = copies
        if decided is None:
            return UNSEEN
        if was_refused and decided is latest:
            self._pause = _PAUSE  # the bits alone do not decide what the check finds
        self._latest = decided
        outcome = decided.executable(a, b, out, c, alpha, beta, splits)
        if isinstance(outcome, Refusal):
            # The plan of these operands is another one.
            return outcome._replace(of_operands=False)
        return outcome._replace(plan=decided.plan)


def _meta_copy(x: Tensor, axis: int) -> Array:
    """The copy of an operand that is scaled along k, which is not there."""
    shape, strides, dtype = layout_of_copy(x, axis)
    return wrap(torch.empty_strided(shape, strides, dtype=dtype, device="meta"))


def _planes_of(split: Any) -> tuple[Tensor, Tensor] | None:
    """Planes and exponents of a prepared operand."""
    return None if split is None else (split.planes, split.exponents)


def _is_plain(x: Tensor) -> bool:
    """True for contiguous entries behind an aligned address, to which the combination
    with C writes.
    """
    return bool(x.is_contiguous()) and x.data_ptr() % 16 == 0


def combine(t: Tensor, epilogue: Epilogue) -> None:
    """alpha t + beta C in the memory of t, by a kernel where it takes such scalars."""
    if epilogue.is_moderate and not t.is_complex():
        c: Any = None if epilogue.c is None else unwrap(epilogue.c)
        scalars = epilogue.alpha.real, epilogue.beta.real
        run_recorded(combine_in_place, t, scalar(0), scalar(1), c, scalars=scalars)
    else:
        epilogue.apply(wrap(t))
