"""Scaling along k in launch lists: the exponents of a plan, the operands that they make,
and the memory that both take.

Exponents rest on all of A and B, whatever blocks the result is cut into: the launches of
kernels/vectors/inner_scaling.py choose them before the first block begins. Those of
kernels/vectors/scaled_along_k.py copy the operands of each block. All later launches
read the copies as ordinary operands.
"""

from __future__ import annotations

from hifigemm.engines.cuda.lowering import Arguments
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import Predicate
from hifigemm.kernels.runtime.launch_list import ALIGNMENT
from hifigemm.kernels.vectors.inner_scaling import VECTOR_BYTES, gaining_exponents
from hifigemm.kernels.vectors.scaled_along_k import scaled_along_k
from hifigemm.model.plan import Plan

Exponents = Buffer | None
"""d, by which A and B are scaled along k; None where they are not."""
Sides = tuple[tuple[Buffer, int], ...]
"""One or two operands, each with the axis of k."""


def exponents_of(plan: Plan, given: Arguments, mark: Buffer | None = None) -> Exponents:
    """The exponents of a plan that scales along k, zeros where the operands gain nothing.

    See `gaining_exponents` for `mark`.
    """
    if not plan.scheme.scales_along_k:
        return None
    return gaining_exponents(given.a, given.b, mark)


def scaled(
    sides: Sides,
    exponents: Exponents,
    predicate: Predicate | None = None,
    *,
    neighbours: int = 1,
) -> Sides:
    """A D and D**-1 B of the operands of a block; the operands without exponents.

    See `scaled_along_k` for `predicate` and `neighbours`.
    """
    if exponents is None:
        return sides
    copies = scaled_along_k(sides, exponents, predicate, neighbours=neighbours)
    return tuple((copy, axis) for copy, (_, axis) in zip(copies, sides, strict=True))


def bytes_outside(plan: Plan, batch: int, rows: int, cols: int) -> int:
    """Bytes by which scaling along k takes more where the result is cut into blocks.

    It looks at whole operands, with a few numbers for each vector, and its exponents
    lie beside the scratch memory of all blocks. Copies of operands lie where products of
    a block are afterwards.
    """
    p = plan.problem
    vectors = p.batch * (p.m + p.n)
    others = vectors - batch * (rows + cols)
    return VECTOR_BYTES * others + 4 * p.k + 4 * ALIGNMENT
