"""Whole products, and looks at operands, as recordings of their launches, repeated on other tensors without a plan."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from hifigemm.engine import RepeatedLook, RepeatedProduct, RequiredBits, WholeProduct
from hifigemm.engines.device_array import unwrap
from hifigemm.engines.host_copy import begin, check_not_capturing, send
from hifigemm.engines.kernels import required_bits
from hifigemm.engines.kernels.launch import Replay, enters_directly, recording
from hifigemm.engines.residue_pipeline import check_ratio
from hifigemm.numerics.bits import Array
from hifigemm.numerics.epilogue import PLAIN
from hifigemm.plan import Plan

__all__ = ["repeated", "repeated_look"]

Tensor = Any

_BESIDE_FROM = 2**31
"""Multiplications from which on the device has more to do than the host, which then has time for a second stream."""


def repeated(
    whole: WholeProduct,
    plan: Plan,
    operands: tuple[Array, Array],
    stacks: tuple[Array, Array],
    result_shape: tuple[int, ...],
    target: Array | None,
) -> RepeatedProduct | None:
    """The whole product of a plan as recorded launches; see `Engine.repeated_product`.

    None where it takes several blocks, where an operand was copied, or where a launch cannot be repeated, for want of
    memory say.
    """
    if _were_copied(operands, stacks) or not plan.is_whole:
        return None
    try:
        with recording() as recorder:
            out = unwrap(whole(*stacks, 0, PLAIN, (None, None), target))
    except torch.OutOfMemoryError:  # the result of the call that came before is still there
        return None
    if not recorder.complete:
        return None
    replay = Replay(recorder, [*map(unwrap, stacks), out])
    kind = _Hopeful if plan.hopeful else _Repeated
    return kind(plan, replay, result_shape, out)


def repeated_look(operands: tuple[Array, Array], stacks: tuple[Array, Array], most: int) -> RepeatedLook | None:
    """`numerics.scaling.required_bits` as recorded launches; see `Engine.repeated_look`."""
    if _were_copied(operands, stacks):
        return None
    left, right = map(unwrap, stacks)
    with recording() as recorder:
        send(required_bits.launch(left, right, most)).wait(np.int32)
    if not recorder.complete:
        return None
    replay, device = Replay(recorder, [left, right]), left.device
    is_large = max(len(left), len(right)) * left.shape[1] * left.shape[2] * right.shape[2] >= _BESIDE_FROM

    def again(x: Tensor, y: Tensor) -> Callable[[], RequiredBits]:
        check_not_capturing()
        found = begin(device.index)
        with found.beside(device.index) if is_large else nullcontext():
            workspace = torch.empty(replay.nbytes, dtype=torch.int8, device=device)
            replay(device.index, [x.data_ptr(), y.data_ptr(), workspace.data_ptr()])
            found.start(workspace[replay.marked])
        return lambda: required_bits.required_bits_from(found.wait(np.int32), most)

    return again


def _were_copied(operands: tuple[Array, Array], stacks: tuple[Array, Array]) -> bool:
    """Whether launches saw other addresses than those of the operands, or cannot be entered directly."""
    addresses = [[unwrap(x).data_ptr() for x in pair] for pair in (operands, stacks)]
    return addresses[0] != addresses[1] or not enters_directly()


class _Repeated:
    """Recorded launches of a whole product as a function of operands and a result like the recorded ones."""

    def __init__(self, plan: Plan, replay: Replay, shape: tuple[int, ...], out: Tensor) -> None:
        self._plan, self._replay, self._shape = plan, replay, shape
        self._dtype, self._device = out.dtype, out.device

    def __call__(self, x: Tensor, y: Tensor, target: Tensor | None) -> Tensor:
        """The product in `target` or a new tensor."""
        device = self._device
        made = torch.empty(self._shape, dtype=self._dtype, device=device) if target is None else target
        workspace = torch.empty(self._replay.nbytes, dtype=torch.int8, device=device)
        addresses = [x.data_ptr(), y.data_ptr(), made.data_ptr(), workspace.data_ptr()]
        self._launch(addresses, workspace)
        if target is not None and not target.is_inference():
            torch.autograd.graph.increment_version(target)
        return made

    def _launch(self, addresses: list[int], workspace: Tensor) -> None:
        self._replay(self._device.index, addresses)


class _Hopeful(_Repeated):
    """The launches of a hopeful plan; the host waits for the error ratio alone, which is found before the product."""

    def __init__(self, plan: Plan, replay: Replay, shape: tuple[int, ...], out: Tensor) -> None:
        super().__init__(plan, replay, shape, out)
        self._is_large = plan.problem.multiplications >= _BESIDE_FROM

    def _launch(self, addresses: list[int], workspace: Tensor) -> None:
        check_not_capturing()
        device = self._device.index
        self._replay.head(device, addresses)
        ratio = begin(device)
        with ratio.beside(device) if self._is_large else nullcontext():
            ratio.start(workspace[self._replay.marked])
        self._replay.tail(device, addresses)
        check_ratio(self._plan, ratio)
