"""Sums of products in words on a GPU: every entry is rounded once, for any operands.

The host looks at nothing and waits for nothing. Slices of blocks are none: a block
reads its rows and columns as they lie there.
"""

from __future__ import annotations

from hifigemm.engines.cuda.lowering import Arguments, CudaLowering, blocks_of
from hifigemm.kernels.endings.rounding import Targets
from hifigemm.kernels.sums.rounded_sums import rounded_sums
from hifigemm.model.plan import Plan


class RoundedSums(CudaLowering):
    """Launches of any plan of real operands."""

    @property
    def rounds(self) -> bool:
        """True."""
        return True

    def record(self, plan: Plan, given: Arguments) -> None:
        """Block by block."""
        for block in blocks_of(plan, given.out):
            left, right = block.operands(given.a, given.b)
            entries = block.entries
            targets = Targets(
                out=given.out[entries],
                rounding=plan.rounding,
                c=None if given.c is None else given.c[entries],
                second=None if given.second is None else given.second[entries],
            )
            rounded_sums(left, right, targets, shift=given.shift)
