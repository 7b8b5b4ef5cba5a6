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
    if dtype is None or x.dtype == dtype:
        y = x.copy()
    else:
        y = _ascontiguousarray(like, x, dtype).reshape(x.shape)
    return y.reshape((1,) * (ndmin - y.ndim) + y.shape)


def _ascontiguousarray(
    like: DeviceArray, x: DeviceArray, dtype: Any = None
) -> DeviceArray:
    y = x if dtype is None else x.astype(dtype, copy=False)
    return type(like)(y.tensor.contiguous(), y.dtype).reshape(y.shape or (1,))


def _empty(like: DeviceArray, shape: Any, dtype: Any = np.float64) -> DeviceArray:
    dtype = np.dtype(dtype)
    device = like.tensor.device
    tensor = torch.empty(shape, dtype=TORCH_DTYPES[dtype], device=device)
    return type(like)(tensor, dtype)


def _full(
    like: DeviceArray, shape: Any, value: Any, dtype: Any = None, **defaults: Any
) -> DeviceArray:
    if dtype is None:
        dtype = np.asarray(value).dtype
    array = _empty(like, shape, dtype)
    array.tensor.fill_(as_number(value, array.dtype))
    return array


def _integers(like: DeviceArray, tensor: Any) -> DeviceArray:
    """The array of a tensor of int64."""
    return type(like)(tensor, np.dtype(np.int64))


def _arange(like: DeviceArray, stop: int) -> DeviceArray:
    return _integers(like, torch.arange(stop, device=like.tensor.device))


def _ones(
    like: DeviceArray, shape: Any, dtype: Any = np.float64, **defaults: Any
) -> DeviceArray:
    return _full(like, shape, 1, dtype)


def _zeros(like: DeviceArray, shape: Any, dtype: Any = np.float64) -> DeviceArray:
    return _full(like, shape, 0, dtype)


LIKE: dict[Callable[..., Any], Callable[..., DeviceArray]] = {
    np.arange: _arange,
    np.array: _array,
    np.ascontiguousarray: _ascontiguousarray,
    np.empty: _empty,
    np.full: _full,
    np.ones: _ones,
    np.zeros: _zeros,
}
"""Functions that make arrays. The array behind ``like=`` is their first argument; NumPy
adds its defaults of order and device.
"""


def _same(x: DeviceArray, tensor: Any) -> DeviceArray:
    """The array of a tensor, with the dtype of x."""
    return type(x)(tensor, x.dtype)


def _of_tensor(function: Callable[..., Any]) -> Callable[..., DeviceArray]:
    """A function of arrays from a function of tensors that keeps the dtype."""
    return lambda x, *args: _same(x, function(x.tensor, *args))


def _of_tensors(function: Callable[..., Any]) -> Callable[..., DeviceArray]:
    """A function that joins arrays from a function that joins tensors."""

    def join(arrays: Sequence[DeviceArray], axis: int = 0) -> DeviceArray:
        dtype = np.result_type(*(x.dtype for x in arrays))
        tensors = [x.astype(dtype, copy=False).tensor for x in arrays]
        return type(arrays[0])(function(tensors, axis), dtype)

    return join


def _method(name: str) -> Callable[..., DeviceArray]:
    """The method of arrays of this name, as a function."""
    return lambda x, **options: methodcaller(name, **options)(x)


def _where(condition: DeviceArray, x: Any, y: Any) -> DeviceArray:
    # A scalar of Python promotes by its value, an array by its dtype.
    kinds = [v if isinstance(kind_of(v), type) else kind_of(v) for v in (x, y)]
    dtype = np.result_type(*kinds)
    device = condition.tensor.device
    x_tensor = as_tensor(x, dtype, device)
    y_tensor = as_tensor(y, dtype, device)
    chosen = torch.where(condition.tensor, x_tensor, y_tensor)
    return type(condition)(chosen, dtype)


def _copyto(target: DeviceArray, source: Any, where: DeviceArray) -> None:
    target[...] = _where(where, source, target).astype(target.dtype, copy=False)


def _ix(*indices: DeviceArray) -> tuple[DeviceArray, ...]:
    open_mesh = []
    for axis, x in enumerate(indices):
        shape = [1] * len(indices)
        shape[axis] = -1
        open_mesh.append(x.reshape(shape))
    return tuple(open_mesh)


def _clip(x: DeviceArray, low: Any, high: Any) -> DeviceArray:
    return np.minimum(np.maximum(x, low), high)


def _flatnonzero(x: DeviceArray) -> DeviceArray:
    indices = torch.nonzero(x.tensor.reshape(-1))
    return _integers(x, indices.reshape(-1))


def _repeat(x: DeviceArray, count: int, axis: int) -> DeviceArray:
    return _same(x, x.tensor.repeat_interleave(count, axis))


def _take(x: DeviceArray, indices: Sequence[int], axis: int) -> DeviceArray:
    slices = [x.tensor.narrow(axis, i, 1) for i in indices]
    return _same(x, torch.cat(slices, axis))


FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    **{getattr(np, name): _method(name) for name in ("all", "max", "min", "sum")},
    **{
        getattr(np, name): _of_tensor(getattr(torch, name))
        for name in ("broadcast_to", "moveaxis", "ones_like", "swapaxes", "zeros_like")
    },
    np.clip: _clip,
    np.concatenate: _of_tensors(torch.cat),
    np.copyto: _copyto,
    np.count_nonzero: lambda x: int(torch.count_nonzero(x.tensor)),
    np.expand_dims: _of_tensor(torch.unsqueeze),
    np.flatnonzero: _flatnonzero,
    np.ix_: _ix,
    np.repeat: _repeat,
    np.stack: _of_tensors(torch.stack),
    np.take: _take,
    np.where: _where,
}
