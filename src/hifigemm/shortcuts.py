"""Products that were planned before, repeated for other tensors of a GPU without planning anew.

A small product takes a GPU less time than planning takes the host. Where a plan depends on no data, the first call of a
kind leaves a function behind, and later calls with the same options, shapes, strides, dtypes, alignment and device go
straight to it. It launches what the plan launches: the bits are the same.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Hashable
from typing import Any

from hifigemm.accuracy import Accuracy
from hifigemm.engine import Engine, RepeatedProduct
from hifigemm.numerics.bits import Array
from hifigemm.plan import Plan

__all__ = ["find", "keep", "key_of"]

log = logging.getLogger("hifigemm")

_LARGEST = 2**37
"""Multiplications above which the host is ahead of the device anyway."""
_LIMIT = 1024
_kept: dict[Hashable, tuple[RepeatedProduct, str]] = {}
_refused: set[Hashable] = set()


def key_of(
    a: Any, b: Any, out: Any, accuracy: Accuracy, scheme: Any, engine: str | None, workspace: int | None
) -> Hashable:
    """What two calls must share; None where calls of this kind are not kept."""
    torch = sys.modules.get("torch")
    if torch is None or type(a) is not torch.Tensor or not a.is_cuda or torch.is_autocast_enabled():
        return None
    tensors = (a, b) if out is None else (a, b, out)
    if not all(_is_plain(torch, x, a) for x in tensors) or a.device.index != torch.cuda.current_device():
        return None
    at, bt, target = a.data_ptr(), b.data_ptr(), None
    if out is not None:
        if out.untyped_storage().data_ptr() in (a.untyped_storage().data_ptr(), b.untyped_storage().data_ptr()):
            return None
        target = out.shape, out.stride(), out.data_ptr() & 15
    return (
        *(a.shape, a.stride(), a.dtype, at & 15, b.shape, b.stride(), b.dtype, bt & 15, a.device, at == bt),
        *(target, type(accuracy), accuracy, scheme, engine, type(workspace), workspace),
    )


def _is_plain(torch: Any, x: Any, first: Any) -> bool:
    """Whether x is a dense tensor like the first one whose memory is what it says."""
    if type(x) is not torch.Tensor or x.device != first.device or x.dtype is not first.dtype:
        return False
    return x.layout is torch.strided and not (x.requires_grad or x.is_conj() or x.is_neg())


def find(key: Hashable) -> RepeatedProduct | None:
    """What an earlier call of this kind has left."""
    try:
        kept = _kept.get(key)
    except TypeError:  # an option that cannot be hashed, which is refused later
        return None
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
    rests_on_data = plan.free or plan.promised or plan.exact
    if rests_on_data or p.batch * p.m * p.n * p.k > _LARGEST or key in _refused:
        return
    repeated = engine.repeated_product(plan, operands, stacks, result_shape, out)
    if max(len(_kept), len(_refused)) >= _LIMIT:
        _kept.clear()
        _refused.clear()
    if repeated is None:
        _refused.add(key)
    else:
        _kept[key] = repeated, f"{p}: {plan.scheme}, {plan.reason}"
