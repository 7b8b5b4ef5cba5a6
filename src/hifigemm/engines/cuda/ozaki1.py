"""Ozaki scheme I with a fixed number of slices, or rounded correctly, on a GPU: one
launch cuts both operands, one multiplies the slices, one rounds. In the mode "correct"
another one completes the entries that are not certain.

The number comes from the caller, or from the estimate of the modes "dp" and "sp". The
bits are those of the scheme's own steps. No step of a product waits for the device.
Slices of prepared operands are made anew. Complex operands are embedded first, and
their result is written as a real matrix of twice as many columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from hifigemm.base.formats import BF16, FP16, FP32, FP64, INT8, Format
from hifigemm.engines.cuda.lowering import Arguments, CudaLowering, blocks_of
from hifigemm.engines.cuda.slice_counts import Count, num_slices_of
from hifigemm.kernels.endings.slice_rounding import needed_slices, round_correctly
from hifigemm.kernels.products.slice_product import slice_product, sums_of
from hifigemm.kernels.runtime.buffers import Buffer
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
from hifigemm.numerics.bounds import slice_bits_for
from hifigemm.numerics.slicing import num_pairs, words_of_diagonals

_DTYPES: dict[Format, torch.dtype] = {
    INT8: torch.int8,
    FP16: torch.float16,
    BF16: torch.bfloat16,
    FP64: torch.float64,
}
"""In which slices are stored; slices of other formats go step by step."""


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
        look.
        """
        if self.plan.problem.is_complex:
            return lambda a, b, splits: None
        u = self.plan.scheme.level.u
        count_of = num_slices_of(left, right, _slice_bits(self.plan), u)
        return lambda a, b, splits: count_of(a, b)

    def record(self, plan: Plan, given: Arguments) -> None:
        """Block by block."""
        for block in blocks_of(plan, given.out):
            operands = block.operands(given.a, given.b)
            x, y, out = as_real(*operands, given.out[block.entries])
            left, right = sliced(plan, x, y)
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


def sliced(plan: Plan, left: Buffer, right: Buffer) -> list[Slices]:
    """The slices of both operands."""
    return slice_operands(
        ((left, 2), (right, 1)),
        plan.scheme.count,
        _slice_bits(plan),
        _DTYPES[plan.spec.operand],
    )
