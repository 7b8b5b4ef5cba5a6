"""Scaling along k in programs: the exponents of a plan, and the memory that they take.

They rest on all of A and B, whatever blocks the result is cut into: the launches that
choose them come before those of the first block; see kernels/inner_scaling.py.
"""

from __future__ import annotations

from typing import Any

from hifigemm.engines.cuda.lowering import Arguments
from hifigemm.kernels.runtime.launch_list import ALIGNMENT
from hifigemm.kernels.vectors.inner_scaling import (
    VECTOR_BYTES,
    gaining_exponents,
    padded_length,
)
from hifigemm.model.plan import Plan


def exponents_of(
    plan: Plan, given: Arguments, scratch_bytes: int, mark: Any = None
) -> Any | None:
    """Exponents by which A and B are scaled along k, zeros where they gain nothing.

    None for plans that do not scale so. `scratch_bytes` and `mark` are those of
    `gaining_exponents`.
    """
    if not plan.scheme.scales_along_k:
        return None
    if given.inner is not None:
        return given.inner
    return gaining_exponents(given.a, given.b, mark, scratch_bytes=scratch_bytes)


def bytes_outside(plan: Plan, batch: int, rows: int, cols: int) -> int:
    """Bytes by which scaling along k takes more where the result is cut into blocks.

    It looks at whole operands, with a few numbers for each vector, and its exponents
    lie beside the scratch memory of all blocks. The exponents of entries lie where
    residues or words of a block are afterwards.
    """
    p = plan.problem
    vectors = p.batch * (p.m + p.n)
    others = vectors - batch * (rows + cols)
    exponents = 4 * padded_length(p.k)
    return VECTOR_BYTES * others + exponents + 4 * ALIGNMENT
