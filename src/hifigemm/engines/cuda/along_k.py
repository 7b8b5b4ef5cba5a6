"""Scaling along k in launch lists: the exponents of a plan, the operands that they make,
and the memory that both take.

Exponents rest on all of A and B, whatever blocks the result is cut into: the launches
that choose them come before those of the first block, see
kernels/vectors/inner_scaling.py. Then the operands of each block are copied, see
kernels/vectors/scaled_along_k.py, and whatever reads the copies takes them for ordinary
ones.
"""

from __future__ import annotations

from typing import Any

from hifigemm.engines.cuda.lowering import Arguments
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import Predicate
from hifigemm.kernels.runtime.launch_list import ALIGNMENT
from hifigemm.kernels.vectors.inner_scaling import (
    VECTOR_BYTES,
    gaining_exponents,
)
from hifigemm.kernels.vectors.scaled_along_k import scaled_along_k
from hifigemm.model.plan import Plan

Sides = tuple[tuple[Buffer, int], ...]
"""One or two operands, each with the axis of k."""


def exponents_of(
    plan: Plan, given: Arguments, mark: Buffer | None = None
) -> Any | None:
    """Exponents by which A and B are scaled along k, zeros where they gain nothing.

    None for plans that do not scale so. `mark` is that of `gaining_exponents`.
    """
    if not plan.scheme.scales_along_k:
        return None
    return gaining_exponents(given.a, given.b, mark)


def scaled(
    sides: Sides,
    exponents: Buffer | None,
    predicate: Predicate | None = None,
    *,
    neighbours: int = 1,
) -> Sides:
    """A D and D**-1 B of operands of a block, or these where there are no exponents.

    `predicate` and `neighbours` are those of `scaled_along_k`.
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
