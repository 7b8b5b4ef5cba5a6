"""Products that were planned before, repeated for other tensors of a GPU without planning anew.

A small product takes a GPU less time than planning takes the host. Where a plan depends on no data, the first call of a
kind leaves a function behind, and later calls with the same options, shapes, strides, dtypes, alignment and device go
straight to it. It launches what the plan launches: the bits are the same.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Hashable
from typing import Any

from hifigemm.accuracy import Accuracy
from hifigemm.engine import Engine
from hifigemm.numerics.bits import Array
from hifigemm.plan import Plan

__all__ = ["find", "keep", "key_of"]

log = logging.getLogger("hifigemm")

Repeated = Callable[[Any, Any, Any], Any]

_LARGEST = 2**37
"""Multiplications above which the host is ahead of the device anyway."""
_LIMIT = 1024
_kept: dict[Hashable, tuple[Repeated, str]] = {}


def key_of(
    a: Any, b: Any, out: Any, accuracy: Accuracy, scheme: Any, engine: str | None, workspace: int | None
) -> Hashable:
    """What two calls must share; None where calls of this kind are not kept."""
    torch = sys.modules.get("torch")
    if torch is None or type(a) is not torch.Tensor or type(b) is not torch.Tensor or not (a.is_cuda and b.is_cuda):
        return None
    if a.requires_grad or b.requires_grad or a.dtype is not b.dtype or a.device != b.device:
        return None
    if a.device.index != torch.cuda.current_device():
        return None
    at, bt, target = a.data_ptr(), b.data_ptr(), None
    if out is not None:
        if type(out) is not torch.Tensor or out.device != a.device or out.dtype is not a.dtype or out.requires_grad:
            return None
        if out.untyped_storage().data_ptr() in (a.untyped_storage().data_ptr(), b.untyped_storage().data_ptr()):
            return None
        target = out.shape, out.stride(), out.data_ptr() & 15
    return (
        *(a.shape, a.stride(), a.dtype, at & 15, b.shape, b.stride(), b.dtype, bt & 15, a.device, at == bt),
        *(target, accuracy, scheme, engine, workspace),
    )


def find(key: Hashable) -> Repeated | None:
    """What an earlier call of this kind has left."""
    kept = _kept.get(key)
    if kept is None:
        return None
    if log.isEnabledFor(logging.INFO):
        log.info("%s", kept[1])
    return kept[0]


def keep(
    key: Hashable,
    plan: Plan,
    engine: Engine,
    operands: tuple[Array, Array],
    stacks: tuple[Array, Array],
    result_shape: tuple[int, ...],
    out: Array | None,
) -> None:
    """Leave a function for calls of this kind, where the plan of this one allows it; see `Engine.repeated_product`."""
    p = plan.problem
    if p.batch * p.m * p.n * p.k > _LARGEST or plan.promised or plan.exact:
        return
    repeated = engine.repeated_product(plan, operands, stacks, result_shape, out)
    if repeated is not None:
        if len(_kept) >= _LIMIT:
            _kept.clear()
        _kept[key] = repeated, f"{p}: {plan.scheme}, {plan.reason}"
