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
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin
from torch import Tensor

from hifigemm.base.exceptions import PlanError
from hifigemm.engines.device_functions import FUNCTIONS, LIKE
from hifigemm.engines.device_ops import (
    NEEDS_DEVICE_SCALARS,
    NUMPY_DTYPES,
    TORCH_DTYPES,
    as_number,
    as_tensor,
    function_and_dtypes,
    kind_of,
)
from hifigemm.numerics.bits import DType

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

Axes = int | tuple[int, ...] | None
"""Axes of a reduction; None for all."""

_BOOL = np.dtype(bool)
_FLOAT64 = np.dtype(np.float64)
_UINT64 = np.dtype(np.uint64)
_PART = 2**20
"""Entries whose extremes along an outer axis are computed at a time: PyTorch takes
sixteen bytes for each on a GPU.
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


def count_change(x: torch.Tensor) -> None:
    """Count a change of a tensor that PyTorch did not see, for its derivatives."""
    if not x.is_inference():
        torch.autograd.graph.increment_version(x)


def check_not_capturing() -> None:
    """Raise PlanError while the current stream is captured: nothing can be read back
    then.
    """
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise PlanError(
            "nothing can be read back while a CUDA graph is captured: read the report after a replay, ask for a level, "
            "or set num_moduli"
        )


def _operator(name: str, *kinds: type) -> Any:
    """The operator of this name. Two arrays of float64, or one and a number of these kinds,
    go to PyTorch at once, which takes a fifth of the time of NumPy's rules.
    """
    by_numpy = getattr(NDArrayOperatorsMixin, name)
    by_torch = getattr(Tensor, name)

    def apply(self: DeviceArray, other: Any) -> Any:
        if self.dtype == _FLOAT64:
            if type(other) is DeviceArray and other.dtype == _FLOAT64:
                return DeviceArray(by_torch(self.tensor, other.tensor), _FLOAT64)
            if type(other) in kinds:
                return DeviceArray(by_torch(self.tensor, other), _FLOAT64)
        return by_numpy(self, other)

    return apply


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

    def view(self, dtype: DTypeLike) -> DeviceArray:
        """The same bits as another dtype; sizes may differ where the last axis is
        contiguous.
        """
        dtype = np.dtype(dtype)
        x = self.tensor
        if dtype.itemsize != self.dtype.itemsize and x.is_contiguous():
            # torch asks for strides of axes of length 1, which may be anything.
            *outer, length = x.shape
            length = length * self.dtype.itemsize // dtype.itemsize
            flat = x.flatten().view(TORCH_DTYPES[dtype])
            return DeviceArray(flat.view((*outer, length)), dtype)
        return DeviceArray(x.view(TORCH_DTYPES[dtype]), dtype)

    def copy(self) -> DeviceArray:
        """A contiguous copy."""
        return DeviceArray(
            self.tensor.clone(memory_format=torch.contiguous_format), self.dtype
        )

    __add__ = _operator("__add__", float)
    __radd__ = _operator("__radd__", float)
    __sub__ = _operator("__sub__", float)
    __rsub__ = _operator("__rsub__", float)
    __mul__ = _operator("__mul__", float)
    __rmul__ = _operator("__rmul__", float)
    __truediv__ = _operator("__truediv__")  # PyTorch multiplies by 1 / number

    def __neg__(self) -> DeviceArray:
        return DeviceArray(torch.neg(self.tensor), self.dtype)

    def astype(self, dtype: DTypeLike, copy: bool = True) -> DeviceArray:
        """Entries converted; without `copy`, the array itself where it has the
        dtype.
        """
        dtype = np.dtype(dtype)
        if dtype == self.dtype and not copy:
            return self
        dtypes = {dtype, self.dtype}
        if _UINT64 in dtypes and not dtypes <= {_UINT64, np.dtype(np.int64)}:
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
            # A mask of the first axes holds for all entries behind them.
            (mask,) = index
            mask = mask.reshape(mask.shape + (1,) * (self.ndim - mask.ndim))
            self.tensor.masked_fill_(mask, as_number(value, self.dtype))
        else:
            self.tensor[index] = as_tensor(value, self.dtype, self.tensor.device)

    def _index(self, key: Any) -> tuple[Any, ...]:
        """An index of NumPy as torch takes it."""
        keys = key if isinstance(key, tuple) else (key,)
        return tuple(map(self._index_of_axis, keys))

    def _index_of_axis(self, key: Any) -> Any:
        """One part of an index: arrays become tensors, all else stays."""
        if key is None or isinstance(key, (slice, int, EllipsisType)):
            return key
        if isinstance(key, np.integer):
            return int(key)
        return as_tensor(key, key.dtype, self.tensor.device)

    def _write(self, view: Tensor, value: Any) -> None:
        """Write to a view of this array."""
        if not isinstance(value, DeviceArray) and np.ndim(value) == 0:
            view.fill_(as_number(value, self.dtype))
            return
        if not isinstance(value, DeviceArray) or _UINT64 in (self.dtype, value.dtype):
            value = DeviceArray(as_tensor(value, self.dtype, view.device), self.dtype)
        # ``x[i] += y`` ends with x[i] written to itself.
        if _location(value.tensor) != _location(view):
            view.copy_(value.tensor)

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

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> NoReturn:
        raise TypeError(
            f"cannot convert an array on {self.tensor.device} to NumPy implicitly; copy the tensor, or create the host "
            "array with like="
        )

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, {self.dtype}, {self.tensor.device})"

    # Reductions

    def sum(
        self, axis: Axes = None, dtype: DTypeLike | None = None, keepdims: bool = False
    ) -> DeviceArray:
        """Sums along axes; bool and integers in int64 by default."""
        if dtype is None:
            dtype = np.int64 if self.dtype.kind in "bi" else self.dtype
        dtype = np.dtype(dtype)
        axes = self._axes(axis)
        return DeviceArray(
            self.tensor.sum(axes, keepdim=keepdims, dtype=TORCH_DTYPES[dtype]), dtype
        )

    def any(self, axis: Axes = None, keepdims: bool = False) -> DeviceArray:
        """True where any entry along the axes is true."""
        return DeviceArray(
            torch.any(self.tensor, self._axes(axis), keepdim=keepdims), _BOOL
        )

    def all(self, axis: Axes = None, keepdims: bool = False) -> DeviceArray:
        """True where all entries along the axes are true."""
        return DeviceArray(
            torch.all(self.tensor, self._axes(axis), keepdim=keepdims), _BOOL
        )

    def max(
        self,
        axis: Axes = None,
        keepdims: bool = False,
        initial: complex | None = None,
        where: DeviceArray | None = None,
    ) -> DeviceArray:
        """Largest entries along axes; NaN where there is one."""
        return self._extreme(torch.amax, torch.maximum, axis, keepdims, initial, where)

    def min(
        self,
        axis: Axes = None,
        keepdims: bool = False,
        initial: complex | None = None,
        where: DeviceArray | None = None,
    ) -> DeviceArray:
        """Smallest entries along axes; NaN where there is one."""
        return self._extreme(torch.amin, torch.minimum, axis, keepdims, initial, where)

    def _axes(self, axis: Axes) -> tuple[int, ...]:
        """The axes of a reduction as a tuple; None stands for all."""
        if self.dtype == _UINT64:
            raise TypeError("no reductions of uint64 on a device")
        if axis is None:
            return tuple(range(self.ndim))
        return axis if isinstance(axis, tuple) else (axis,)

    def _extreme(
        self,
        extreme: Callable[..., Tensor],
        either: Callable[[Tensor, Tensor], Tensor],
        axis: Axes,
        keepdims: bool,
        initial: complex | None,
        where: DeviceArray | None,
    ) -> DeviceArray:
        """Extremes along axes, `either` of those of two parts; `initial` counts as an
        entry, and stands for entries without `where`.
        """
        axes = self._axes(axis)
        x = self.tensor
        start = None
        if initial is not None:
            start = x.new_full((), as_number(initial, self.dtype))
        if where is not None:
            x = torch.where(where.tensor, x, start)
        if start is not None and x.numel() == 0:
            shape = torch.any(x, axes, keepdim=keepdims).shape
            return DeviceArray(start.expand(shape).clone(), self.dtype)

        # Part by part along an outer axis, for the memory that PyTorch takes.
        parts = (x,)
        if x.numel() > _PART and x.ndim - 1 not in axes:
            length = _PART * x.shape[axes[0]] // x.numel()
            parts = x.split(max(length, 1), axes[0])
        extremes = [extreme(part, axes, keepdim=keepdims) for part in parts]
        if start is not None:
            extremes.insert(0, start)
        return DeviceArray(reduce(either, extremes), self.dtype)

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
        if method != "__call__" or not all(isinstance(x, DeviceArray) for x in out):
            return NotImplemented
        if where is not True and not out:
            return NotImplemented

        # The function of torch for the dtypes in which NumPy computes.
        kinds = [kind_of(x) for x in (*inputs, *out)]
        kinds += [None] * (ufunc.nout - len(out))
        function, dtypes = function_and_dtypes(ufunc, tuple(kinds))
        if function is None:
            return NotImplemented

        device = self.tensor.device
        on_host = ufunc not in NEEDS_DEVICE_SCALARS
        tensors = [
            as_tensor(x, dtype, device, host_scalars=on_host)
            for x, dtype in zip(inputs, dtypes)
        ]
        values = function(*tensors)
        if ufunc.nout > 1:
            pairs = zip(values, dtypes[ufunc.nin :])
            return tuple(DeviceArray(y, dtype) for y, dtype in pairs)

        result = DeviceArray(values, dtypes[-1])
        if not out:
            return result
        (target,) = out
        if where is not True:
            result = FUNCTIONS[np.where](where, result, target)
        target[...] = result
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
        if func in FUNCTIONS:
            return FUNCTIONS[func](*args, **kwargs)
        return NotImplemented


def _location(x: Tensor) -> tuple[object, ...]:
    """The memory of a tensor: two with the same location are the same entries."""
    return x.data_ptr(), x.shape, x.stride(), x.dtype


def _plain(tensor: Tensor) -> DeviceArray:
    """The array of a tensor whose dtype NumPy has."""
    return DeviceArray(tensor, NUMPY_DTYPES[tensor.dtype])
