"""Tensors that NumPy code computes with: a thin array around a torch tensor.

NumPy hands its universal functions and most of its other functions over to arguments
that implement `__array_ufunc__` (NEP 13) and `__array_function__` (NEP 18), and makes
arrays like them with ``like=`` (NEP 35). So the plain maths of `numerics` and `schemes`
runs on a GPU as it stands, with the same bits. Dtypes of results are those of NumPy.

The tables of `device_ops` and `device_functions` hold what there is; all else raises
TypeError. Nothing moves to the host silently: only `item`, `bool`, `int`, `float`,
`count_nonzero`, `flatnonzero` and picking by a mask wait for the device, and
`np.asarray` raises TypeError. Scalars and small host arrays are moved to the device,
larger ones are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from types import EllipsisType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin

from hifigemm.engines.device_functions import FUNCTIONS, LIKE
from hifigemm.engines.device_ops import (
    NEEDS_DEVICE_SCALARS,
    NUMPY_DTYPES,
    TORCH_DTYPES,
    as_number,
    as_tensor,
    kind_of,
    loop,
    torch_function,
)
from hifigemm.exceptions import PlanError

Tensor = Any
DType = np.dtype[Any]

_BOOL, _UINT64 = np.dtype(bool), np.dtype(np.uint64)
_PART = 2**20
"""Entries whose extremes along an outer axis are found at a time: PyTorch takes sixteen
bytes for each on a GPU.
"""


def wrap(tensor: Tensor) -> Any:
    """The array of a tensor, sharing its memory unless its conjugation or sign is still
    to be applied.
    """
    if tensor.dtype not in NUMPY_DTYPES:
        raise TypeError(
            f"no array for tensors of {tensor.dtype}; expected {', '.join(map(str, NUMPY_DTYPES))}"
        )
    return DeviceArray(
        tensor.detach().resolve_conj().resolve_neg(), NUMPY_DTYPES[tensor.dtype]
    )


def unwrap(x: Any) -> Tensor:
    """The tensor of an array, sharing its memory."""
    if not isinstance(x, DeviceArray):
        raise TypeError(f"expected a DeviceArray, got {type(x).__name__}")
    return x.tensor


def check_not_capturing() -> None:
    """Raise PlanError while the current stream is captured: nothing can be read back
    then.
    """
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise PlanError(
            "while a graph is captured, nothing can be read back: look at the report after a replay, ask for a "
            "level, or give num_moduli"
        )


class DeviceArray(NDArrayOperatorsMixin):
    """A torch tensor with the interface of a NumPy array, as far as the plain maths
    needs it.

    Differences: reductions to a single number and indices of a single entry give arrays
    without axes; a conversion of float64 to float16 rounds to float32 on the way.

    The dtype is that of the tensor, or uint64 for bits kept as int64.
    """

    __slots__ = ("dtype", "tensor")

    def __init__(self, tensor: Tensor, dtype: DType) -> None:
        self.tensor = tensor
        self.dtype = dtype

    # Shape and layout

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return int(self.tensor.ndim)

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(self.tensor.numel())

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one entry to the next, along each axis."""
        return tuple(
            stride * self.tensor.element_size() for stride in self.tensor.stride()
        )

    @property
    def flags(self) -> SimpleNamespace:
        """`writeable`: no entry stands for several ones, as in broadcast views."""
        strides = zip(self.tensor.shape, self.tensor.stride())
        return SimpleNamespace(
            writeable=all(stride or length < 2 for length, stride in strides)
        )

    @property
    def real(self) -> DeviceArray:
        """View of the real parts."""
        return _plain(self.tensor.real)

    @property
    def imag(self) -> DeviceArray:
        """View of the imaginary parts; complex arrays only."""
        return _plain(self.tensor.imag)

    @property
    def T(self) -> DeviceArray:
        """View with the axes in reverse order."""
        return self.transpose(range(self.ndim)[::-1])

    def conj(self) -> DeviceArray:
        """Complex conjugates, a new array."""
        return DeviceArray(torch.conj_physical(self.tensor), self.dtype)

    def reshape(self, *shape: Any) -> DeviceArray:
        """A view where possible, else a copy."""
        return DeviceArray(self.tensor.reshape(*shape), self.dtype)

    def ravel(self) -> DeviceArray:
        """One axis; a view where possible."""
        return self.reshape(-1)

    def transpose(self, axes: Sequence[int]) -> DeviceArray:
        """View with the axes in another order."""
        return DeviceArray(self.tensor.permute(*axes), self.dtype)

    def view(self, dtype: Any) -> DeviceArray:
        """The same bits as another dtype; sizes may differ where the last axis is
        contiguous.
        """
        dtype, x = np.dtype(dtype), self.tensor
        if dtype.itemsize != self.dtype.itemsize and x.is_contiguous():
            # torch asks for strides of axes of length 1, which may be anything.
            shape = *x.shape[:-1], x.shape[-1] * self.dtype.itemsize // dtype.itemsize
            return DeviceArray(x.flatten().view(TORCH_DTYPES[dtype]).view(shape), dtype)
        return DeviceArray(x.view(TORCH_DTYPES[dtype]), dtype)

    def copy(self) -> DeviceArray:
        """A contiguous copy."""
        return DeviceArray(
            self.tensor.clone(memory_format=torch.contiguous_format), self.dtype
        )

    def __neg__(self) -> DeviceArray:
        return DeviceArray(torch.neg(self.tensor), self.dtype)

    def astype(self, dtype: Any, copy: bool = True) -> DeviceArray:
        """Entries converted; without `copy`, the array itself where it has the
        dtype.
        """
        dtype = np.dtype(dtype)
        if dtype == self.dtype and not copy:
            return self
        if _UINT64 in (dtype, self.dtype) and not {dtype, self.dtype} <= {
            _UINT64,
            np.dtype(np.int64),
        }:
            raise TypeError(f"no conversion of {self.dtype} to {dtype} on a device")
        return DeviceArray(self.tensor.to(TORCH_DTYPES[dtype], copy=copy), dtype)

    # Entries

    def __len__(self) -> int:
        return len(self.tensor)

    def __iter__(self) -> Iterator[DeviceArray]:
        return (DeviceArray(row, self.dtype) for row in self.tensor)

    def __getitem__(self, key: Any) -> DeviceArray:
        return DeviceArray(self.tensor[self._index(key)], self.dtype)

    def __setitem__(self, key: Any, value: Any) -> None:
        index = self._index(key)
        if not any(isinstance(i, torch.Tensor) for i in index):
            self._write(self.tensor[index], value)
        elif len(index) == 1 and index[0].dtype == torch.bool:
            mask = index[0].reshape(index[0].shape + (1,) * (self.ndim - index[0].ndim))
            self.tensor.masked_fill_(mask, as_number(value, self.dtype))
        else:
            self.tensor[index] = as_tensor(value, self.dtype, self.tensor.device)

    def _index(self, key: Any) -> tuple[Any, ...]:
        return tuple(
            self._position(k) for k in (key if isinstance(key, tuple) else (key,))
        )

    def _position(self, key: Any) -> Any:
        if key is None or isinstance(key, (slice, int, EllipsisType)):
            return key
        if isinstance(key, np.integer):
            return int(key)
        return as_tensor(key, key.dtype, self.tensor.device)

    def _write(self, place: Tensor, value: Any) -> None:
        """Write to a view of this array; ``x[i] += y`` ends with x[i] written to
        itself, which is left out.
        """
        if not isinstance(value, DeviceArray) and np.ndim(value) == 0:
            place.fill_(as_number(value, self.dtype))
            return
        if not isinstance(value, DeviceArray) or _UINT64 in (self.dtype, value.dtype):
            value = DeviceArray(as_tensor(value, self.dtype, place.device), self.dtype)
        given, taken = (
            (x.data_ptr(), x.shape, x.stride(), x.dtype) for x in (value.tensor, place)
        )
        if given != taken:
            place.copy_(value.tensor)

    # Values on the host

    def item(self) -> Any:
        """The only entry as a Python number; waits for the device."""
        value = self.tensor.item()
        return value % 2**64 if self.dtype == _UINT64 else value

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise TypeError(
            f"an array on {self.tensor.device} does not become a NumPy array by itself; make host arrays that meet it "
            "with like=, or copy the tensor"
        )

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, {self.dtype}, {self.tensor.device})"

    # Reductions

    def sum(
        self, axis: Any = None, dtype: Any = None, keepdims: bool = False
    ) -> DeviceArray:
        """Sums along axes; bool and integers in int64 by default."""
        if dtype is None:
            dtype = np.int64 if self.dtype.kind in "bi" else self.dtype
        dtype = np.dtype(dtype)
        axes = self._axes(axis)
        return DeviceArray(
            self.tensor.sum(axes, keepdim=keepdims, dtype=TORCH_DTYPES[dtype]), dtype
        )

    def any(self, axis: Any = None, keepdims: bool = False) -> DeviceArray:
        """Whether any entry is true."""
        return DeviceArray(
            torch.any(self.tensor, self._axes(axis), keepdim=keepdims), _BOOL
        )

    def all(self, axis: Any = None, keepdims: bool = False) -> DeviceArray:
        """Whether all entries are true."""
        return DeviceArray(
            torch.all(self.tensor, self._axes(axis), keepdim=keepdims), _BOOL
        )

    def max(
        self,
        axis: Any = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
    ) -> DeviceArray:
        """Largest entries along axes; NaN where there is one."""
        return self._extreme(torch.amax, torch.maximum, axis, keepdims, initial, where)

    def min(
        self,
        axis: Any = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
    ) -> DeviceArray:
        """Smallest entries along axes; NaN where there is one."""
        return self._extreme(torch.amin, torch.minimum, axis, keepdims, initial, where)

    def _axes(self, axis: Any) -> tuple[int, ...]:
        if self.dtype == _UINT64:
            raise TypeError("no reductions of uint64 on a device")
        if axis is None:
            return tuple(range(self.ndim))
        return axis if isinstance(axis, tuple) else (axis,)

    def _extreme(
        self,
        extreme: Any,
        either: Any,
        axis: Any,
        keepdims: bool,
        initial: Any,
        where: Any,
    ) -> DeviceArray:
        axes, x = self._axes(axis), self.tensor
        first = (
            () if initial is None else (x.new_full((), as_number(initial, self.dtype)),)
        )
        if where is not None:
            x = torch.where(where.tensor, x, *first)
        if first and x.numel() == 0:
            return DeviceArray(
                first[0].expand(torch.any(x, axes, keepdim=keepdims).shape).clone(),
                self.dtype,
            )
        parts = (
            (x,)
            if x.ndim - 1 in axes
            else x.split(max(_PART * x.shape[axes[0]] // max(x.numel(), 1), 1), axes[0])
        )
        return DeviceArray(
            reduce(either, (extreme(y, axes, keepdim=keepdims) for y in parts), *first),
            self.dtype,
        )

    # Protocols

    def __array_ufunc__(
        self,
        ufunc: np.ufunc,
        method: str,
        *inputs: Any,
        out: tuple[Any, ...] = (),
        where: Any = True,
    ) -> Any:
        """NEP 13: calls of universal functions, also behind operators. Without `where`,
        results go to `out` whole.
        """
        if (
            method != "__call__"
            or not all(isinstance(x, DeviceArray) for x in out)
            or (where is not True and not out)
        ):
            return NotImplemented
        given = [kind_of(x) for x in inputs]
        dtypes = loop(
            ufunc, (*given, *(x.dtype for x in out), *[None] * (ufunc.nout - len(out)))
        )
        function = torch_function(ufunc, dtypes[: ufunc.nin])
        if function is None:
            return NotImplemented
        device = next(
            x.tensor.device for x in (*inputs, *out) if isinstance(x, DeviceArray)
        )
        on_host = ufunc not in NEEDS_DEVICE_SCALARS
        done = function(
            *(
                as_tensor(x, dtype, device, host_scalars=on_host)
                for x, dtype in zip(inputs, dtypes)
            )
        )
        if ufunc.nout > 1:
            return tuple(
                DeviceArray(y, dtype) for y, dtype in zip(done, dtypes[ufunc.nin :])
            )
        result = DeviceArray(done, dtypes[-1])
        if not out:
            return result
        (target,) = out
        target[...] = (
            result if where is True else FUNCTIONS[np.where](where, result, target)
        )
        return target

    def __array_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """NEP 18, and NEP 35 for arrays made like this one."""
        if func in LIKE:
            return LIKE[func](self, *args, **kwargs)
        return FUNCTIONS[func](*args, **kwargs) if func in FUNCTIONS else NotImplemented


def _plain(tensor: Tensor) -> DeviceArray:
    return DeviceArray(tensor, NUMPY_DTYPES[tensor.dtype])
