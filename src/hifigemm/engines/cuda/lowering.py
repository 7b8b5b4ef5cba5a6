"""Plans as launches of a GPU over named memory, with a decision record beside the
result.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

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
from hifigemm.kernels.runtime.buffers import Buffer, contiguous_strides
from hifigemm.kernels.runtime.launch import Scalar, scalar
from hifigemm.kernels.runtime.launch_list import LaunchList, facts_of, raw_stream
from hifigemm.kernels.vectors.inner_scaling import padded_length
from hifigemm.model.executable import (
    UNSEEN,
    Executable,
    Outcome,
    RecordedDecision,
    Refusal,
    Signature,
    certify,
)
from hifigemm.model.plan import Blocking, Evidence, Plan, Verification
from hifigemm.model.problem import Block
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.numerics.integer_sums import NEAREST

PreparedPlanes = tuple[tuple[Tensor, Tensor] | None, tuple[Tensor, Tensor] | None]
"""Planes and exponents of prepared operands; None for operands that are not."""
_INNER_INSPECTION = "scaled along k"
"""What is kept of operands that are scaled along k goes by this word and their bits."""
_DECISIONS = 64
"""Decisions of one request whose executables are kept; the oldest makes room."""
_NARROW = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Arguments:
    """What a program is written for: buffers of the operands (batch or 1, ...), and
    scalars.
    """

    a: Buffer
    b: Buffer
    out: Buffer
    record: Buffer | None  # int64 words in which the device notes what it found
    shift: int = 0  # the product is multiplied by 2**shift before its rounding
    # `alpha`, `beta`: where a program applies them itself; else 1 and 0
    alpha: float | Scalar = 1.0
    beta: float | Scalar = 0.0
    c: Buffer | None = None
    prepared_planes: tuple[Any, Any] = (None, None)  # of prepared operands
    second: Buffer | None = None  # the other array of a pair or an enclosure
    # by which the operands are scaled along k, where that is known already
    inner: Buffer | None = None


@dataclass(frozen=True)
class Steps:
    """How the launches of a plan are written, and what its record says."""

    # adds the launches for a plan and `Arguments`
    write: Callable[[Plan, Arguments], None]
    record: int = 0  # words of the decision record; 0 where nothing is decided
    # what the words of a record say
    certify: Callable[[Sequence[int]], RecordedDecision] | None = None
    # the launches apply moderate scalars themselves; else a step behind them does
    combines: bool = False
    rounds: bool = False  # they round as `Plan.rounding` says
    # the launches write to results with contiguous rows only
    contiguous_rows: bool = False
    # (planes, exponents) of the split of a prepared operand
    prepared_planes: Callable[[Any], tuple[Tensor, Tensor]] | None = None
    # scratch bytes beside those of a program for such a block, where the result is cut
    # into several: of matrices, rows and columns
    outside: Callable[[int, int, int], int] | None = None
    # see `hifigemm.model.engine.Lowering.in_halves`
    in_halves: Callable[[int, int, int], bool] | None = None
    # what the plan rests on of operands laid out as two tensors, by one wait: none
    # where that is no more than the bits of their integers
    inspect: (
        Callable[[Plan, Tensor, Tensor], Callable[[Tensor, Tensor], Any]] | None
    ) = None


def blocks_of(plan: Plan, out: Buffer) -> Iterator[Block]:
    """The blocks of a plan for the program of `out`; what a launch of a block wants
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
class _TensorLayout:
    """What a program wants to know of a tensor that is not there."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def stride(self) -> tuple[int, ...]:
        """That of a contiguous tensor."""
        return contiguous_strides(self.shape)

    def data_ptr(self) -> int:
        """An aligned address."""
        return 0


class _Tensors(NamedTuple):
    """The tensors of a call in the order in which a program takes them, or their
    layouts; None for those that it does without.
    """

    a: Any
    b: Any
    product: Any  # where the product is written
    record: Any = None  # words in which the device notes what it found
    c: Any = None
    second: Any = None  # the other array of a pair or an enclosure
    combined: Any = None  # where a step of its own writes alpha A B + beta C
    inner: Any = None  # exponents along k that are known already


class CudaLowering:
    """How a plan is carried out by launches; see `hifigemm.model.engine.Lowering`."""

    def __init__(self, plan: Plan, steps: Steps, device: torch.device) -> None:
        self.plan = plan
        self.steps = steps
        self.device = device

    def in_halves(self, batch: int, rows: int, cols: int) -> bool:
        """Whether such a block takes the products of numerics/strassen.py."""
        return self.steps.in_halves is not None and self.steps.in_halves(
            batch, rows, cols
        )

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

        # The program of contiguous tensors that are not there.
        dtype = TORCH_DTYPES[problem.dtype]
        operand_dtype = dtype
        if problem.narrow and plan.alternatives:
            operand_dtype = _NARROW[problem.narrow.name]
        tensors = _Tensors(
            _TensorLayout((batch, rows, problem.k), operand_dtype),
            _TensorLayout((batch, problem.k, cols), operand_dtype),
            _TensorLayout((batch, rows, cols), dtype),
            self.record_layout(),
        )
        program = self._built(plan, tensors, (None, None), 0, PLAIN).finish()
        if self.steps.outside is None or (batch, rows, cols) == (p.batch, p.m, p.n):
            return program.nbytes
        return program.nbytes + self.steps.outside(batch, rows, cols)

    def lower(self, signature: Signature) -> Launches:
        """The launches for tensors of this layout."""
        return Launches(self, signature)

    def inspecting(
        self, signature: Signature, executable: Executable
    ) -> Executable | None:
        """None for evidence that one look at other operands does not see again: their
        error ratio, and vectors that are treated apart.
        """
        evidence = self.plan.evidence
        if evidence is None or _evidence_key(evidence) is None:
            return None
        if self.plan.verification is Verification.ENTRYWISE and self.plan.asked is None:
            return None  # other operands may be looked at with another result
        return ByEvidence(self, signature, executable)

    @property
    def rounds(self) -> bool:
        """True if the plan has a rounding of its own, by which C is added too."""
        return self.plan.rounding != NEAREST

    def combines(self, epilogue: Epilogue) -> bool:
        """Whether the launches apply these scalars, in a step of their own if need be."""
        if epilogue.idle or self.rounds:
            return True
        is_real = not self.plan.problem.is_complex
        return epilogue.is_moderate and (self.steps.combines or is_real)

    def adds_a_step(self, epilogue: Epilogue) -> bool:
        """Whether a step behind all others applies scalars that the launches apply."""
        return not (epilogue.idle or self.steps.combines or self.rounds)

    def writes_to(self, out: Tensor) -> bool:
        """Whether the launches write to a result that is laid out as this one."""
        return not self.steps.contiguous_rows or out.stride(2) == 1 or out.shape[2] == 1

    def record_layout(self) -> _TensorLayout | None:
        """That of the record; None where the device decides nothing."""
        words = self.steps.record
        return _TensorLayout((words,), torch.int64) if words else None

    def decision(self, record: Tensor, stream: int | None = None) -> RecordedDecision:
        """What the record says; waits for the current stream, or for the device if
        another stream made the product.
        """
        check_not_capturing()
        if stream is not None and stream != raw_stream(record.device):
            torch.cuda.synchronize(record.device)
        certify: Any = self.steps.certify
        found: RecordedDecision = certify(record.tolist())
        return found

    def program(
        self,
        tensors: _Tensors,
        prepared_planes: PreparedPlanes,
        shift: int,
        epilogue: Epilogue,
    ) -> LaunchList:
        """The program of tensors of this layout, kept for the next ones."""
        facts = tuple(None if x is None else facts_of(x) for x in tensors)
        planes = tuple(
            None if pair is None else tuple((x.shape, x.stride()) for x in pair)
            for pair in prepared_planes
        )

        def make() -> LaunchList:
            program = self._built(self.plan, tensors, prepared_planes, shift, epilogue)
            return program.finish().compile()

        key = "program", self.plan, self.device, facts, planes, shift, epilogue.idle
        return once(key, make, self.device)

    def _built(
        self,
        plan: Plan,
        tensors: _Tensors,
        prepared_planes: PreparedPlanes,
        shift: int,
        epilogue: Epilogue,
    ) -> LaunchList:
        """The launches of a plan, written down for tensors of this layout."""
        program = LaunchList(self.device)

        def operand(x: Any, *, is_zero: bool = False) -> Any:
            return None if x is None else program.operand(x, is_zero=is_zero)

        # Operands come in the order in which the program takes them.
        buffers = _Tensors(
            a=operand(tensors.a),
            b=operand(tensors.b),
            product=operand(tensors.product),
            record=operand(tensors.record, is_zero=True),
            c=operand(tensors.c),
            second=operand(tensors.second),
            combined=operand(tensors.combined),
            inner=operand(tensors.inner),
        )
        left, right = (
            None
            if pair is None
            else (program.operand(pair[0]), program.operand(pair[1]))
            for pair in prepared_planes
        )

        # Programs of all scalars are the same, but for what has none.
        has_scalars = not epilogue.idle and plan.rounding == NEAREST
        alpha = scalar(0) if has_scalars else 1.0
        beta = scalar(1) if has_scalars and buffers.c is not None else 0.0
        arguments = Arguments(
            buffers.a,
            buffers.b,
            buffers.product,
            buffers.record,
            shift,
            prepared_planes=(left, right),
            second=buffers.second,
            inner=buffers.inner,
        )
        if buffers.combined is None:
            arguments = replace(arguments, alpha=alpha, beta=beta, c=buffers.c)
        self.steps.write(plan, arguments)

        # Steps behind those of the plan.
        product = cast(Buffer, buffers.product)
        if plan.problem.mirror:
            mirror(product, plan.problem.mirror == "C")
        if buffers.combined is not None:
            combine_in_place(product, alpha, beta, buffers.c, buffers.combined)
        return program


class Launches:
    """The launches of a plan for tensors of one layout; see `Executable`.

    With `takes_exponents` a call brings those by which the operands are scaled along k.
    """

    def __init__(
        self,
        lowering: CudaLowering,
        signature: Signature,
        *,
        takes_exponents: bool = False,
    ) -> None:
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
        self._has_scalars = not applied.idle
        self._adds_a_step = lowering.adds_a_step(applied)
        self._has_two_parts = plan.rounding.has_two_parts
        self._takes_exponents = takes_exponents
        self._certifies = (
            plan.verification is Verification.ENTRYWISE
            and lowering.steps.certify is not None
        )
        # What a certificate may refuse is not written to `out`.
        out = None if signature.out is None else unwrap(signature.out)
        self._writes_to_out = (
            out is not None
            and not self._certifies
            and epilogue.c is None
            and not (self._is_combined_later or self._adds_a_step)
            and lowering.writes_to(out)
        )
        planes_of = lowering.steps.prepared_planes
        left, right = (
            None if split is None or planes_of is None else planes_of(split)
            for split in signature.splits
        )
        self._planes = [x for pair in (left, right) if pair is not None for x in pair]
        self._record_words = lowering.steps.record
        self._bound = plan.bound
        self._num_products: float = plan.num_products
        self._notes: tuple[str, ...] = ()
        outliers = None if plan.evidence is None else plan.evidence.outliers
        if outliers is not None:
            self._num_products = outliers.num_products(problem, plan.num_products)
            self._notes = (str(outliers),)
        new = _TensorLayout(self._stack_shape, self._dtype)
        product = out if self._writes_to_out else new
        inner = _TensorLayout((padded_length(problem.k),), torch.int32)
        layouts = _Tensors(
            a=unwrap(signature.left),
            b=unwrap(signature.right),
            product=product,
            record=lowering.record_layout(),
            c=None if applied.c is None else unwrap(applied.c),
            second=product if self._has_two_parts else None,
            combined=new if self._adds_a_step else None,
            inner=inner if takes_exponents else None,
        )
        self._program = lowering.program(
            layouts, (left, right), signature.shift, applied
        )

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        c: Any = None,
        alpha: complex = 1.0,
        beta: complex = 0.0,
        *,
        exponents: Tensor | None = None,
    ) -> Outcome | Refusal:
        """See `Executable`; nothing waits for the device unless the plan is certified
        entry by entry.
        """
        device = self._device
        product = out
        if not (self._writes_to_out and out is not None):
            product = torch.empty(self._shape, dtype=self._dtype, device=device)
        # The last step reads C, which may be `out`, entry by entry before it writes
        # there. Where a certificate may refuse the product, C is wanted again.
        result = product
        if self._adds_a_step and out is not None and not self._certifies:
            result = out if _is_plain(out) else product

        # In the order of `_Tensors`.
        memory = [a, b, product]
        decision = None
        if self._record_words:
            # The launches clear it.
            record = torch.empty(self._record_words, dtype=torch.int64, device=device)
            memory.append(record)
            stream = raw_stream(device) if record.is_cuda else None
            decision = partial(self._lowering.decision, record, stream)
        if c is not None and not self._is_combined_later:
            memory.append(c)
        second = None
        if self._has_two_parts:
            second = torch.empty_like(product)
            memory.append(second)
        if self._adds_a_step:
            memory.append(result)
        if self._takes_exponents:
            memory.append(exponents)
        memory.extend(self._planes)
        scalars = (alpha.real, beta.real) if self._has_scalars else ()
        self._program(*memory, scalars=scalars)

        made = Outcome(
            result, self._bound, self._num_products, self._notes, decision, second
        )
        outcome = certify(made, self._lowering.plan) if self._certifies else made
        if isinstance(outcome, Refusal):
            return outcome
        if self._is_combined_later:
            third = None if c is None else wrap(c.reshape(self._stack_shape))
            epilogue = Epilogue(alpha, beta, third)
            combine(product.view(self._stack_shape), epilogue)
        if result is out:
            count_change(out)
        return outcome


class ByEvidence:
    """The executables of one request by what one look at the operands sees; it refuses
    those of which nothing was seen yet. See `Executable`.
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
        kind = signature.shape, signature.shift, epilogue.idle, plan.rounding
        asked = plan.problem, plan.asked, plan.target, plan.block_shape
        key = "by evidence", *asked, lowering.device, layout, kind
        self._table: dict[Hashable, Any] = once(key, dict, lowering.device)
        if evidence.inner and not lowering.steps.record:
            # The look gives the exponents along.
            executable = Launches(lowering, signature, takes_exponents=True)
        if len(self._table) >= _DECISIONS:
            oldest = next((x for x in self._table if x != _INNER_INSPECTION), None)
            self._table.pop(oldest, None)
        self._table[_evidence_key(evidence)] = executable
        self._inspect = (
            required_bits_of(*operands, NO_LIMIT)
            if lowering.steps.inspect is None
            else lowering.steps.inspect(plan, *operands)
        )
        if evidence.inner:
            self._table[_INNER_INSPECTION] = inner_inspection_of(*operands, NO_LIMIT)

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        c: Any = None,
        alpha: complex = 1.0,
        beta: complex = 0.0,
    ) -> Outcome | Refusal:
        """The product by the executable for what the operands ask for."""
        table = self._table
        exponents = None
        executable = table.get(self._inspect(a, b))
        if executable is None and _INNER_INSPECTION in table:
            bits, exponents = table[_INNER_INSPECTION](a, b)
            executable = table.get((_INNER_INSPECTION, bits))
        if executable is None:
            return UNSEEN
        others = out, c, alpha, beta
        outcome: Outcome | Refusal
        if exponents is None:
            outcome = executable(a, b, *others)
        else:
            outcome = executable(a, b, *others, exponents=exponents)
        if isinstance(outcome, Refusal):
            # The plan of these operands is another one.
            return outcome._replace(of_operands=False)
        return outcome._replace(plan=executable.plan)


def _is_plain(x: Tensor) -> bool:
    """True for contiguous entries behind an aligned address, to which the combination
    with C writes.
    """
    return bool(x.is_contiguous()) and x.data_ptr() % 16 == 0


def _evidence_key(evidence: Evidence) -> Hashable:
    """What one look sees of other operands again; None where that takes more, as their
    error ratio does.
    """
    if evidence.outliers is not None or evidence.separate is not None:
        return None
    if evidence.inner and evidence.required_bits is not None:
        return _INNER_INSPECTION, evidence.required_bits
    return evidence.num_slices or evidence.required_bits


def combine(t: Tensor, epilogue: Epilogue) -> None:
    """alpha t + beta C in the memory of t, by a kernel where it takes such scalars."""
    if epilogue.is_moderate and not t.is_complex():
        c: Any = None if epilogue.c is None else unwrap(epilogue.c)
        combine_in_place(t, epilogue.alpha.real, epilogue.beta.real, c)
    else:
        epilogue.apply(wrap(t))
