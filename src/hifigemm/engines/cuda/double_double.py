"""Sums of products in words on a GPU: every entry is rounded once, for any operands.

The host looks at nothing and waits for nothing. Slices of blocks are none: a block
reads its rows and columns as they lie there.
"""

from __future__ import annotations

from typing import Any

from hifigemm.engines.cuda.program import Arguments, Steps, blocks_of
from hifigemm.engines.kernels.rounded_sums import rounded_sums
from hifigemm.plan import Plan
from hifigemm.problem import Block


def steps(plan: Plan) -> Steps:
    """The launches of any plan of real operands."""
    return Steps(_write, rounds=True)


def _write(plan: Plan, given: Arguments) -> None:
    for block in blocks_of(plan, given.out):
        left, right = block.operands(given.a, given.b)
        form = rounding_of(plan, given, block)
        rounded_sums(left, right, given.out[block.entries], shift=given.shift, **form)


def rounding_of(plan: Plan, given: Arguments, block: Block) -> dict[str, Any]:
    """What `rounded_sums` is to make of the sums of a block."""
    rounding = plan.rounding
    form: dict[str, Any] = {"result": rounding.result}
    if rounding.has_two_parts:
        form["second"] = given.second[block.entries]
    if rounding.has_addend:
        form["c"] = given.c[block.entries]
        form["c_exponent"] = rounding.c_exponent
        form["c_sign"] = rounding.c_sign
    return form
