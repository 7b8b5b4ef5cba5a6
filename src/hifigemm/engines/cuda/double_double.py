"""Sums of products in words on a GPU: every entry is rounded once, for any operands.

The host looks at nothing and waits for nothing. Slices of blocks are none: a block
reads its rows and columns as they lie there.
"""

from __future__ import annotations

from hifigemm.engines.cuda.program import Arguments, Steps, blocks_of
from hifigemm.engines.kernels.rounded_sums import rounded_sums
from hifigemm.plan import Plan


def steps(plan: Plan) -> Steps:
    """The launches of any plan of real operands."""
    return Steps(_write, rounds=True)


def _write(plan: Plan, given: Arguments) -> None:
    for block in blocks_of(plan, given.out):
        left, right = block.operands(given.a, given.b)
        entries = block.entries
        rounded_sums(
            left,
            right,
            given.out[entries],
            shift=given.shift,
            result=plan.rounding.result,
            second=None if given.second is None else given.second[entries],
            c=None if given.c is None else given.c[entries],
            c_exponent=plan.rounding.c_exponent,
            c_sign=plan.rounding.c_sign,
            sign=plan.rounding.sign,
        )
