"""NumPy's functions of device arrays, with the arguments that the plain maths
passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any

import numpy as np
import torch

from hifigemm.engines.device_ops import TORCH_DTYPES, as_number, as_tensor, kind_of

DeviceArray = Any
"""A device_array.DeviceArray."""


def _array(
    like: DeviceArray,
    x: DeviceArray,
    dtype: Any = None,
    order: str = "C",
    ndmin: int = 0,
) -> DeviceArray:
    y = (
        x.copy()
        if dtype is None or x.dtype == dtype
        else _ascontiguousarray(like, x, dtype).reshape(x.shape)
    )
    return y.reshape((1,) * (ndmin - y.ndim) + y.shape)


def _ascontiguousarray(
    like: DeviceArray, x: DeviceArray, dtype: Any = None
) -> DeviceArray:
    y = x if dtype is None else x.astype(dtype, copy=False)
    return type(like)(y.tensor.contiguous(), y.dtype).reshape(y.shape or (1,))


def _empty(like: DeviceArray, shape: Any, dtype: Any = np.float64) -> DeviceArray:
    dtype = np.dtype(dtype)
    return type(like)(
        torch.empty(shape, dtype=TORCH_DTYPES[dtype], device=like.tensor.device), dtype
    )


def _full(
    like: DeviceArray, shape: Any, value: Any, dtype: Any = None, **defaults: Any
) -> DeviceArray:
    made = _empty(like, shape, np.asarray(value).dtype if dtype is None else dtype)
    made.tensor.fill_(as_number(value, made.dtype))
    return made


def _integers(like: DeviceArray, tensor: Any) -> DeviceArray:
    return type(like)(tensor, np.dtype(np.int64))


LIKE: dict[Callable[..., Any], Callable[..., DeviceArray]] = {
    np.arange: lambda like, stop: _integers(
        like, torch.arange(stop, device=like.tensor.device)
    ),
    np.array: _array,
    np.ascontiguousarray: _ascontiguousarray,
    np.empty: _empty,
    np.full: _full,
    np.ones: lambda like, shape, dtype=np.float64, **defaults: _full(
        like, shape, 1, dtype
    ),
    np.zeros: lambda like, shape, dtype=np.float64: _full(like, shape, 0, dtype),
}
"""What makes arrays, with the array given as ``like=`` in front; NumPy adds its
defaults of order and device.
"""


def _same(x: DeviceArray, tensor: Any) -> DeviceArray:
    return type(x)(tensor, x.dtype)


def _of_tensor(function: Callable[..., Any]) -> Callable[..., DeviceArray]:
    """A function of a tensor that keeps the dtype, of an array."""
    return lambda x, *args: _same(x, function(x.tensor, *args))


def _of_tensors(function: Callable[..., Any]) -> Callable[..., DeviceArray]:
    """A function that joins tensors, of arrays."""

    def join(arrays: Sequence[DeviceArray], axis: int = 0) -> DeviceArray:
        dtype = np.result_type(*(x.dtype for x in arrays))
        return type(arrays[0])(
            function([x.astype(dtype, copy=False).tensor for x in arrays], axis), dtype
        )

    return join


def _method(name: str) -> Callable[..., DeviceArray]:
    """A function that is a method as well."""
    return lambda x, **options: methodcaller(name, **options)(x)


def _where(condition: DeviceArray, x: Any, y: Any) -> DeviceArray:
    kinds = [v if isinstance(kind_of(v), type) else kind_of(v) for v in (x, y)]
    dtype, device = np.result_type(*kinds), condition.tensor.device
    chosen = torch.where(
        condition.tensor, *(as_tensor(v, dtype, device) for v in (x, y))
    )
    return type(condition)(chosen, dtype)


def _copyto(target: DeviceArray, source: Any, where: DeviceArray) -> None:
    target[...] = _where(where, source, target).astype(target.dtype, copy=False)


def _ix(*indices: DeviceArray) -> tuple[DeviceArray, ...]:
    axes = range(len(indices))
    return tuple(
        x.reshape([-1 if i == axis else 1 for i in axes])
        for axis, x in enumerate(indices)
    )


FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    **{getattr(np, name): _method(name) for name in ("all", "max", "min", "sum")},
    **{
        getattr(np, name): _of_tensor(getattr(torch, name))
        for name in ("broadcast_to", "moveaxis", "ones_like", "swapaxes", "zeros_like")
    },
    np.clip: lambda x, low, high: np.minimum(np.maximum(x, low), high),
    np.concatenate: _of_tensors(torch.cat),
    np.copyto: _copyto,
    np.count_nonzero: lambda x: int(torch.count_nonzero(x.tensor)),
    np.expand_dims: _of_tensor(torch.unsqueeze),
    np.flatnonzero: lambda x: _integers(
        x, torch.nonzero(x.tensor.reshape(-1)).reshape(-1)
    ),
    np.ix_: _ix,
    np.repeat: lambda x, many, axis: _same(x, x.tensor.repeat_interleave(many, axis)),
    np.stack: _of_tensors(torch.stack),
    np.take: lambda x, indices, axis: _same(
        x, torch.cat([x.tensor.narrow(axis, i, 1) for i in indices], axis)
    ),
    np.where: _where,
}
