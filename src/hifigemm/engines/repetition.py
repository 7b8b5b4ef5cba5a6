"""A whole product as a recording of its launches, repeated on other tensors without a plan."""

from __future__ import annotations

from typing import Any

import torch

from hifigemm.engine import RepeatedProduct, WholeProduct
from hifigemm.engines.device_array import unwrap
from hifigemm.engines.kernels.launch import Replay, enters_directly, recording
from hifigemm.numerics.bits import Array
from hifigemm.numerics.epilogue import PLAIN
from hifigemm.plan import Plan

__all__ = ["repeated"]

Tensor = Any


def repeated(
    whole: WholeProduct,
    plan: Plan,
    operands: tuple[Array, Array],
    stacks: tuple[Array, Array],
    result_shape: tuple[int, ...],
    target: Array | None,
) -> RepeatedProduct | None:
    """The whole product of a plan as recorded launches; see `Engine.repeated_product`.

    None where it takes several blocks, where an operand was copied, or where a launch cannot be repeated.
    """
    left, right = (unwrap(x) for x in stacks)
    if [x.data_ptr() for x in (left, right)] != [unwrap(x).data_ptr() for x in operands]:
        return None
    p = plan.problem
    if not enters_directly() or plan.block_shape != (p.batch, p.m, p.n):
        return None
    with recording() as recorder:
        out = unwrap(whole(*stacks, 0, PLAIN, (None, None), target))
    if not recorder.complete:
        return None
    replay, dtype, device = Replay(recorder, [left, right, out]), out.dtype, out.device

    def again(x: Tensor, y: Tensor, target: Tensor | None) -> Tensor:
        made = torch.empty(result_shape, dtype=dtype, device=device) if target is None else target
        workspace = torch.empty(replay.nbytes, dtype=torch.int8, device=device)
        replay(device.index, [x.data_ptr(), y.data_ptr(), made.data_ptr(), workspace.data_ptr()])
        return made

    return again
