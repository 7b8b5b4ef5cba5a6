"""Ozaki scheme I with a fixed number of INT8 slices on a GPU: one launch cuts both
operands, one multiplies and rounds.

The number comes from the caller, or from the estimate of the modes "dp" and "sp". The
bits are those of the scheme's own steps. No step of a product waits for the device.
Slices of prepared operands are made anew.
"""

from __future__ import annotations

from typing import Any

from hifigemm.engines.cuda.program import Arguments, Steps, blocks_of
from hifigemm.engines.kernels.slice_product import slice_product
from hifigemm.engines.kernels.slices import slice_operands
from hifigemm.formats import INT8
from hifigemm.numerics.bounds import slice_bits_for
from hifigemm.numerics.slicing import words_of_diagonals
from hifigemm.plan import Plan


def steps(plan: Plan) -> Steps | None:
    """The launches of a fixed count whose sums fit in INT32 and in two words of 64
    bits; None for all else.
    """
    p, scheme = plan.problem, plan.scheme
    if (
        plan.certifies
        or not scheme.explicit
        or plan.words.operand is not INT8
        or p.is_complex
    ):
        return None
    return (
        None
        if words_of_diagonals(p.k, scheme.count, _slice_bits(plan)) is None
        else Steps(_write)
    )


def _slice_bits(plan: Plan) -> int:
    spec = plan.words
    return slice_bits_for(
        plan.problem.terms, spec.k_block, spec.accumulator_max, spec.max_digit
    )


def _write(plan: Plan, given: Arguments) -> None:
    for block in blocks_of(plan, given.out):
        x, y = block.operands(given.a, given.b)
        own, other = sliced(plan, x, y)
        slice_product(
            own,
            other,
            given.out[block.entries],
            plan.problem.k,
            shift=given.shift,
            operands=(x, y),
        )


def sliced(plan: Plan, left: Any, right: Any) -> Any:
    """The slices of both operands."""
    return slice_operands(((left, 2), (right, 1)), plan.scheme.count, _slice_bits(plan))
