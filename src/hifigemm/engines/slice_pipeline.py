"""Ozaki scheme I with a fixed number of INT8 slices on a GPU: one launch cuts both operands, one multiplies and rounds.

The bits are those of the scheme's own steps. No step waits for the device. Slices of prepared operands are made anew.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from hifigemm.engine import WholeProduct
from hifigemm.engines.device_array import unwrap
from hifigemm.engines.kernels.slice_product import slice_product
from hifigemm.engines.kernels.slices import Slices, slice_operands
from hifigemm.engines.outputs import combined, output_for
from hifigemm.numerics.bits import Array
from hifigemm.numerics.epilogue import Epilogue
from hifigemm.plan import Plan, Split

__all__ = ["stages", "whole_product"]

Tensor = Any


def whole_product(plan: Plan) -> WholeProduct | None:
    """All of a plan whose sums the kernels hold, where nothing is judged."""
    return partial(_whole, plan) if plan.scheme.name == "ozaki1" and plan.fused and not plan.certifies else None


def _whole(
    plan: Plan,
    a: Array,
    b: Array,
    shift: int,
    epilogue: Epilogue,
    splits: tuple[Split | None, Split | None],
    target: Array | None,
) -> Array:
    p, left, right = plan.problem, unwrap(a), unwrap(b)
    out = output_for(p, left.device, epilogue, target)
    for where in plan.blocks():
        x, y = where.operands(left, right)
        own, other = _sliced(plan, x, y)
        slice_product(own, other, out[where.entries], p.k, shift=shift, operands=(x, y))
        del own, other  # room for those of the next block
    return combined(out, p, epilogue, target)


def _sliced(plan: Plan, left: Tensor, right: Tensor) -> tuple[Slices, Slices]:
    scheme: Any = plan.scheme
    first, second = slice_operands(((left, 2), (right, 1)), scheme.count, plan.slice_bits)
    return first, second


def stages(plan: Plan, a: Array, b: Array) -> list[tuple[str, Any, float, float]]:
    """The launches of a whole product: name, call, bytes that must move, operations of the plan's product."""
    p, left, right = plan.problem, unwrap(a), unwrap(b)
    own, other = _sliced(plan, left, right)
    out = torch.empty((p.batch, p.m, p.n), dtype=left.dtype, device=left.device)
    operands, result, size = p.batch * (p.m * p.k + p.k * p.n), p.batch * p.m * p.n, p.dtype.itemsize
    count = own.planes.shape[2]
    return [
        ("slices", lambda: _sliced(plan, left, right), (size + count) * operands, 0.0),
        (
            "INT8 products, rounding",
            lambda: slice_product(own, other, out, p.k, operands=(left, right)),
            count * operands + size * result,
            2.0 * p.multiplications * plan.num_products,
        ),
    ]
