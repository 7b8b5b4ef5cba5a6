"""Ozaki scheme I with a fixed number of slices, or rounded correctly, on a GPU: one
launch cuts both operands, one multiplies the slices, one rounds. In the mode "correct"
another one completes the entries that are not certain.

A fixed number of slices takes operands of float16 and bfloat16 as they are, and slices
of real operands that were prepared.

The number comes from the caller, or from the estimate of the modes "dp" and "sp". The
bits are those of the scheme's own steps. No step of a product waits for the device.
Complex operands are embedded first, and
their result is written as a real matrix of twice as many columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hifigemm.base.formats import BF16, FP16, FP32, FP64, INT8, Format
from hifigemm.engines.cuda.lowering import Arguments, CudaLowering, blocks_of
from hifigemm.engines.cuda.slice_counts import Count, num_slices_of
from hifigemm.engines.device_array import unwrap
from hifigemm.kernels.endings.slice_rounding import needed_slices, round_correctly
from hifigemm.kernels.products.slice_product import slice_product, sums_of
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.launch_list import LaunchList
from hifigemm.kernels.runtime.recording import recorded
from hifigemm.kernels.vectors.embedding import as_real
from hifigemm.kernels.vectors.slices import (
    MAX_BITS,
    MAX_BITS_SINGLE,
    MAX_COUNT,
    Slices,
    slice_operands,
)
from hifigemm.model.executable import RecordedDecision, Splits
from hifigemm.model.plan import Plan, Verification
from hifigemm.model.problem import Block
from hifigemm.numerics.bits import Array
from hifigemm.numerics.bounds import slice_bits_for
from hifigemm.numerics.slicing import num_pairs, words_of_diagonals

_DTYPES: dict[Format, torch.dtype] = {
    INT8: torch.int8,
    FP16: torch.float16,
    BF16: torch.bfloat16,
    FP64: torch.float64,
}
"""In which slices are stored; slices of other formats go step by step."""


@dataclass(frozen=True, eq=False)
class PreparedSlices:
    """Slices of an operand that was prepared."""

    planes: Tensor  # (batch, vectors, slices, pitch), see `Slices`
    exponents: Tensor  # int32 (batch, vectors)
    beta: int  # bits of a slice

    @property
    def count(self) -> int:
        """Number of slices."""
        return int(self.planes.shape[2])

    @property
    def vectors(self) -> int:
        """Number of rows or columns."""
        return int(self.planes.shape[1])


def lowering(plan: Plan, device: torch.device) -> CudaLowering | None:
    """The launches of a fixed count whose sums two words of 64 bits hold, and of
    correct rounding; None for all else, and for operands that are scaled along k.
    """
    p, scheme = plan.problem, plan.scheme
    dtype = _DTYPES.get(plan.spec.operand)
    if dtype is None or scheme.scales_along_k:
        return None
    beta = _slice_bits(plan)
    widest = MAX_BITS[dtype]
    if p.fmt is FP32:
        widest = min(widest, MAX_BITS_SINGLE)
    if beta > widest or scheme.count > MAX_COUNT:
        return None
    if plan.verification is Verification.ENTRYWISE and plan.target.correct:
        return _RoundedSlices(plan, device)
    if plan.certifies or not scheme.explicit:
        return None
    if words_of_diagonals(p.terms, scheme.count, beta) is None:
        return None
    return _FixedSlices(plan, device)


class _Slices(CudaLowering):
    """Launches for slices of both operands."""

    @property
    def has_contiguous_rows(self) -> bool:
        """Whether rows are written as rows of real entries."""
        return self.plan.problem.is_complex


class _FixedSlices(_Slices):
    """Launches of a fixed number of slices."""

    def inspection(
        self, left: Tensor, right: Tensor, splits: Splits
    ) -> Callable[[Tensor, Tensor, Splits], Count]:
        """The estimate of the modes "dp" and "sp"; complex operands take a longer
        look, and an estimate reads float32 or float64.
        """
        if self.plan.problem.is_complex:
            return lambda a, b, splits: None
        u = self.plan.scheme.level.u
        count_of = num_slices_of(left, right, _slice_bits(self.plan), u)
        return lambda a, b, splits: count_of(a, b)

    @property
    def takes_narrow(self) -> bool:
        """True unless an estimate reads the operands first."""
        return self.plan.problem.fmt is FP32 and self.plan.evidence is None

    def preparing(self, x: Array, side: str) -> Callable[[Array], Any] | None:
        """It makes the slices of all vectors of a real operand."""
        if self.plan.problem.is_complex:
            return None
        plan = self.plan
        operand = ((unwrap(x), 1 if side == "right" else 2),)
        launches = recorded(slice_operands, operand, *_format_of_slices(plan))
        return partial(_prepared_slices, launches)

    def takes(self, split: Any, side: str) -> bool:
        """True if there are as many slices, of the same format."""
        if not isinstance(split, PreparedSlices):
            return False
        format_of_split = split.count, split.beta, split.planes.dtype
        return format_of_split == _format_of_slices(self.plan)

    def record(self, plan: Plan, given: Arguments) -> None:
        """Block by block."""
        for block in blocks_of(plan, given.out):
            operands = block.operands(given.a, given.b)
            x, y, out = as_real(*operands, given.out[block.entries])
            left, right = _slices_of(plan, block, given, (x, y))
            slice_product(
                left,
                right,
                out,
                plan.problem.terms,
                shift=given.shift,
                operands=(x, y),
            )


class _RoundedSlices(_Slices):
    """Launches that round correctly, whatever the operands."""

    @property
    def record_words(self) -> int:
        """One, for the largest number of needed slices of both sides."""
        return 1

    @property
    def may_refuse(self) -> bool:
        """False: every entry is completed."""
        return False

    def decision(self, words: Sequence[int]) -> RecordedDecision:
        """INT8 slices beyond the ends of the operands are multiplied as well, though
        they are zeros.
        """
        plan = self.plan
        num_products = plan.num_products
        if plan.spec.operand is not INT8:
            left, right = np.array(words, np.int64).view(np.int32).tolist()
            pairs = num_pairs(plan.scheme.count, left, right)
            num_products = pairs * (4 if plan.problem.is_complex else 1)
        return RecordedDecision(True, plan.scheme, 0.0, num_products, plan.k_block)

    def record(self, plan: Plan, given: Arguments) -> None:
        """Block by block."""
        record = cast(Buffer, given.record)
        ends = record.view(torch.int32)
        for block in blocks_of(plan, given.out):
            operands = block.operands(given.a, given.b)
            x, y, out = as_real(*operands, given.out[block.entries])
            left, right = sliced(plan, x, y)
            needed = needed_slices(x, y, (left, right), ends)
            round_correctly(
                sums_of(left, right, plan.problem.terms, ends=ends),
                (left, right),
                needed,
                out,
                shift=given.shift,
                operands=(x, y),
            )


def _slice_bits(plan: Plan) -> int:
    spec = plan.spec
    return slice_bits_for(
        plan.problem.terms, spec.k_block, spec.accumulator_max, spec.max_digit
    )


def _format_of_slices(plan: Plan) -> tuple[int, int, torch.dtype]:
    """How many there are, their bits, and the dtype that holds them."""
    return plan.scheme.count, _slice_bits(plan), _DTYPES[plan.spec.operand]


def sliced(plan: Plan, left: Buffer, right: Buffer) -> list[Slices]:
    """The slices of both operands."""
    return slice_operands(((left, 2), (right, 1)), *_format_of_slices(plan))


def _prepared_slices(launches: LaunchList, x: Array) -> PreparedSlices:
    """Slices of an operand, by launches for its layout."""
    (slices,) = launches(unwrap(x))
    return PreparedSlices(*slices)


def _slices_of(
    plan: Plan, block: Block, given: Arguments, operands: tuple[Buffer, Buffer]
) -> list[Slices]:
    """Slices of both operands of a block: those that were prepared, and all others by
    one launch.
    """
    beta = _slice_bits(plan)
    slices: list[Slices] = []
    missing = []
    places = block.places(given.a, given.b)
    for x, axis, place, split in zip(
        operands, (2, 1), places, given.prepared, strict=True
    ):
        # Kernels do not take a part of the vectors of each matrix of a stack.
        is_part = split is not None and x.shape[3 - axis] < split[0].shape[1]
        if split is None or (is_part and len(split[0]) > 1):
            missing.append((x, axis))
            continue
        planes, exponents = (y[place[0], place[-1]] for y in split)
        slices.append(Slices(planes, exponents, beta))
    if not missing:
        return slices
    new_slices = slice_operands(missing, *_format_of_slices(plan))
    lacks_left = missing[0][1] == 2
    return new_slices + slices if lacks_left else slices + new_slices
