"""Plans as programs of a GPU: launches over named memory, and a decision record beside
the result.
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
from hifigemm.kernels.runtime.launch import Scalar, enters_directly, scalar
from hifigemm.kernels.runtime.program import Program, facts_of
from hifigemm.kernels.vectors.inner_scaling import padded_length
from hifigemm.model.engine import Call, Outcome, RecordedDecision, Repeated, Splits
from hifigemm.model.plan import Blocking, Evidence, Plan, Split, Verification
from hifigemm.model.problem import Block
from hifigemm.numerics.bits import Array
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.numerics.integer_sums import NEAREST

PreparedPlanes = tuple[tuple[Tensor, Tensor] | None, tuple[Tensor, Tensor] | None]
"""Planes and exponents of prepared operands; None for operands that are not."""
_INNER_INSPECTION = "scaled along k"
"""What is kept of operands that are scaled along k goes by this word and their bits."""
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
    # see `hifigemm.model.engine.Program.in_halves`
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
            out.program.reuse_zeros()
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

    def present(self) -> list[Any]:
        """Those that there are."""
        return [x for x in self if x is not None]


class CudaProgram:
    """The program of a plan on a GPU; see `hifigemm.model.engine.Program`."""

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
            self._record_layout(),
        )
        program = self._built(plan, tensors, (None, None), 0, PLAIN).finish()
        if self.steps.outside is None or (batch, rows, cols) == (p.batch, p.m, p.n):
            return program.nbytes
        return program.nbytes + self.steps.outside(batch, rows, cols)

    def __call__(
        self,
        a: Array,
        b: Array,
        shift: int,
        epilogue: Epilogue,
        splits: Splits,
        out: Array | None,
    ) -> Outcome:
        """The product; nothing waits for the device."""
        p = self.plan.problem
        left = unwrap(a)
        right = unwrap(b)

        # The launches apply alpha and beta, or the host does so behind them.
        applied = epilogue if self._combines(epilogue) else PLAIN
        is_combined_later = not epilogue.idle and applied is not epilogue

        # They write to `out`, or to a tensor of their own that is copied there.
        target = None if out is None else unwrap(out)
        writes_to_target = not is_combined_later and (
            target is not None and self._writes_to(target, applied)
        )
        product = target
        if not writes_to_target:
            shape = p.batch, p.m, p.n
            dtype = TORCH_DTYPES[p.dtype]
            product = torch.empty(shape, dtype=dtype, device=left.device)

        prepared_planes = (
            self._prepared_planes(splits[0]),
            self._prepared_planes(splits[1]),
        )
        record = self._record(left.device)
        tensors = _Tensors(
            left,
            right,
            product,
            record,
            c=None if applied.c is None else unwrap(applied.c),
            second=torch.empty_like(product) if self._has_two_parts else None,
            combined=product if self._adds_a_step(applied) else None,
        )
        self._run(tensors, prepared_planes, shift, applied)
        if is_combined_later:
            combine(product, epilogue)
        if target is not None and not writes_to_target:
            target.copy_(product)
        outcome = self._outcome(wrap(product) if out is None else out, record)
        outcome.second = None if tensors.second is None else wrap(tensors.second)
        return outcome

    def _prepared_planes(self, split: Split | None) -> tuple[Tensor, Tensor] | None:
        """Planes and exponents of a prepared operand, where the launches take them."""
        if split is None or self.steps.prepared_planes is None:
            return None
        return self.steps.prepared_planes(split)

    @property
    def _rounds(self) -> bool:
        """True if the plan has a rounding of its own, by which C is added too."""
        return self.plan.rounding != NEAREST

    @property
    def _has_two_parts(self) -> bool:
        return self.plan.rounding.has_two_parts

    def _outcome(self, values: Any, record: Any) -> Outcome:
        """What was done for values; where the device decided, the record tells."""
        certificate = None
        if self.steps.certify is not None:
            stream = (
                torch.cuda.current_stream(record.device) if record.is_cuda else None
            )
            certificate = partial(self._certificate, record, stream)
        num_products: float = self.plan.num_products
        notes = []
        outliers = None if self.plan.evidence is None else self.plan.evidence.outliers
        if outliers is not None:
            num_products = outliers.num_products(
                self.plan.problem, self.plan.num_products
            )
            notes = [str(outliers)]
        return Outcome(values, self.plan.bound, num_products, notes, certificate)

    def replayed(self, call: Call) -> Repeated | None:
        """See `hifigemm.model.engine.Program`; None where an operand was copied, or where
        launches cost more than a plan.
        """
        operands = [unwrap(x) for x in call.operands]
        left, right = (unwrap(x) for x in call.stacks)
        was_copied = (
            left.data_ptr() != operands[0].data_ptr()
            or right.data_ptr() != operands[1].data_ptr()
        )
        evidence = self.plan.evidence
        epilogue = call.epilogue
        if was_copied or not enters_directly() or not self._combines(epilogue):
            return None
        if call.out is not None and not self._writes_to(unwrap(call.out), epilogue):
            return None
        if evidence is not None and _evidence_key(evidence) is None:
            return None
        if self.plan.verification is Verification.ENTRYWISE and self.plan.asked is None:
            return None  # other operands may be looked at with another result

        # The program for results that are new, or laid out as `out`.
        adds_a_step = self._adds_a_step(epilogue)
        device = self.device
        problem = self.plan.problem
        dtype = TORCH_DTYPES[problem.dtype]
        new_layout = _TensorLayout((problem.batch, problem.m, problem.n), dtype)
        is_new = call.out is None or adds_a_step
        product_layout = new_layout if is_new else unwrap(call.out)
        addend = None if epilogue.c is None else unwrap(epilogue.c)
        record_layout = self._record_layout()
        # The look at operands that are scaled along k gives their exponents along.
        takes_exponents = (
            evidence is not None and evidence.inner and record_layout is None
        )
        inner_layout = None
        if takes_exponents:
            inner_layout = _TensorLayout((padded_length(problem.k),), torch.int32)
        layouts = _Tensors(
            left,
            right,
            product_layout,
            record_layout,
            c=addend,
            second=product_layout if self._has_two_parts else None,
            combined=new_layout if adds_a_step else None,
            inner=inner_layout,
        )
        program = self._program(layouts, (None, None), call.shift, epilogue)
        certifies = self.plan.certifies and self.steps.certify is not None

        def replay(
            x: Tensor,
            y: Tensor,
            target: Tensor,
            c: Tensor | None = None,
            alpha: float = 1.0,
            beta: float = 0.0,
            *,
            exponents: Tensor | None = None,
        ) -> Any:
            # C may be the target: it is read until the end.
            is_direct = target is not None and c is None and not adds_a_step
            product = target
            if not is_direct:
                product = torch.empty(call.shape, dtype=dtype, device=device)
            record = self._record(device)
            second = torch.empty_like(product) if self._has_two_parts else None
            result = product
            # The last step reads C entry by entry before it writes there; where a
            # certificate may refuse the product, C is wanted again.
            is_last_direct = adds_a_step and target is not None and not certifies
            if is_last_direct and _is_plain(target):
                result = target
            combined = result if adds_a_step else None
            inner = exponents if takes_exponents else None
            tensors = _Tensors(x, y, product, record, c, second, combined, inner)
            scalars = () if epilogue.idle else (alpha, beta)
            program(*tensors.present(), scalars=scalars)
            if certifies and not self._certificate(record).holds:
                return None
            if result is target:
                count_change(target)
            elif target is not None:
                result = target.copy_(result.view(target.shape))
            if second is not None:
                return result, second
            if call.deliver is None:
                return result
            return call.deliver(self._outcome(result, record))

        if evidence is None:
            return replay
        layout = tuple(
            None if x is None else facts_of(x)
            for x in (left, right, product_layout, addend)
        )
        kind = call.shift, epilogue.idle, call.deliver is None, self.plan.rounding
        return self._inspecting_first(replay, evidence, (left, right), (*layout, *kind))

    def _inspecting_first(
        self,
        replay: Repeated,
        evidence: Evidence,
        operands: tuple[Tensor, Tensor],
        kind: tuple[Hashable, ...],
    ) -> Repeated:
        """The product by what the operands ask for, where that was seen before; else
        None.
        """
        p = self.plan
        asked = p.problem, p.asked, p.target, p.block_shape
        key = "by evidence", *asked, self.device, kind
        table: dict[Hashable, Any] = once(key, dict, self.device)
        table[_evidence_key(evidence)] = replay
        inspect = (
            required_bits_of(*operands, NO_LIMIT)
            if self.steps.inspect is None
            else self.steps.inspect(p, *operands)
        )

        if evidence.inner:
            table[_INNER_INSPECTION] = inner_inspection_of(*operands, NO_LIMIT)

        def chosen(x: Tensor, y: Tensor, *others: object) -> Any:
            seen = table.get(inspect(x, y))
            if seen is not None:
                return seen(x, y, *others)
            if _INNER_INSPECTION not in table:
                return None
            bits, exponents = table[_INNER_INSPECTION](x, y)
            seen = table.get((_INNER_INSPECTION, bits))
            if seen is None:
                return None
            return seen(x, y, *others, exponents=exponents)

        return chosen

    def _combines(self, epilogue: Epilogue) -> bool:
        """Whether the launches apply these scalars, in a step of their own if need be."""
        if epilogue.idle or self._rounds:
            return True
        is_real = not self.plan.problem.is_complex
        return epilogue.is_moderate and (self.steps.combines or is_real)

    def _adds_a_step(self, epilogue: Epilogue) -> bool:
        """Whether a step behind all others applies scalars that the launches apply."""
        return not (epilogue.idle or self.steps.combines or self._rounds)

    def _writes_to(self, out: Tensor, epilogue: Epilogue) -> bool:
        """Whether the launches write to a result that is laid out as this one."""
        if self._adds_a_step(epilogue):
            return _is_plain(out)
        return not self.steps.contiguous_rows or out.stride(2) == 1 or out.shape[2] == 1

    def _record_layout(self) -> _TensorLayout | None:
        """That of the record; None where the device decides nothing."""
        words = self.steps.record
        return _TensorLayout((words,), torch.int64) if words else None

    def _record(self, device: torch.device) -> Tensor | None:
        """Memory for the record, which the program clears; None without one."""
        words = self.steps.record
        return torch.empty(words, dtype=torch.int64, device=device) if words else None

    def _certificate(
        self, record: Tensor, stream: torch.cuda.Stream | None = None
    ) -> RecordedDecision:
        """What the record says; waits for the current stream, or for the device if
        another stream made the product.
        """
        check_not_capturing()
        if stream is not None and stream != torch.cuda.current_stream(record.device):
            torch.cuda.synchronize(record.device)
        certify: Any = self.steps.certify
        found: RecordedDecision = certify(record.tolist())
        return found

    def _run(
        self,
        tensors: _Tensors,
        prepared_planes: PreparedPlanes,
        shift: int,
        epilogue: Epilogue,
    ) -> None:
        """Run the program of these tensors, which applies these scalars."""
        memory = tensors.present()
        for pair in prepared_planes:
            if pair is not None:
                memory.extend(pair)
        scalars: tuple[float, ...] = ()
        if not epilogue.idle:
            scalars = epilogue.alpha.real, epilogue.beta.real
        program = self._program(tensors, prepared_planes, shift, epilogue)
        program(*memory, scalars=scalars)

    def _program(
        self,
        tensors: _Tensors,
        prepared_planes: PreparedPlanes,
        shift: int,
        epilogue: Epilogue,
    ) -> Program:
        """The program of tensors of this layout, kept for the next ones."""
        facts = tuple(None if x is None else facts_of(x) for x in tensors)
        planes = tuple(
            None if pair is None else tuple((x.shape, x.stride()) for x in pair)
            for pair in prepared_planes
        )

        def make() -> Program:
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
    ) -> Program:
        """The launches of a plan, written down for tensors of this layout."""
        program = Program(self.device)

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
