"""CuPy: arrays are multiplied as the tensors of PyTorch in their memory."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hifigemm.engines.arrays import as_array
from hifigemm.libraries.array_like import BFLOAT16, kind_of
from hifigemm.libraries.library import check_torch
from hifigemm.libraries.torch_tensors import (
    TensorLibrary,
    array_of_tensor,
    extent,
)
from hifigemm.numerics.bits import Array, DType

if TYPE_CHECKING:
    from torch import Tensor
    from torch.cuda import Stream


class CupyLibrary(TensorLibrary):
    """CuPy."""

    name: ClassVar[str] = "cupy"

    def active(self) -> AbstractContextManager[object]:
        """As for tensors; kernels go to CuPy's current stream, so that no stream waits
        for another one.
        """
        import torch

        context = self._exit_stack()
        context.enter_context(torch.cuda.stream(_stream(self.device)))
        return context

    def owns(self, x: object) -> bool:
        """True for arrays of CuPy on this device."""
        cupy = sys.modules["cupy"]
        return isinstance(x, cupy.ndarray) and f"cuda:{x.device.id}" == self.device

    def asarray(self, x: object, name: str) -> Array:
        """As in `Library`; arrays with strides that PyTorch does not have are copied.

        Raises TypeError: subclasses of CuPy's array. ValueError: `out` with such
        strides.
        """
        self.check_owned(x, name)
        return array_of_tensor(_tensor(x, name, self.device), name, on_host=False)

    def from_memory(self, x: Tensor) -> Any:
        """The array of CuPy in the memory of the tensor."""
        from hifigemm.engines.device_ops import NUMPY_DTYPES

        strides = tuple(step * x.element_size() for step in x.stride())
        return _array(x, strides, NUMPY_DTYPES.get(x.dtype, BFLOAT16))

    def fill(self, x: Any, values: Tensor) -> None:
        """As in `Library`."""
        target: Any = self.asarray(x, "out")
        target[...] = as_array(values).reshape(x.shape)


def library_of_cupy(x: Any, name: str) -> CupyLibrary:
    """CuPy on the device of an array."""
    device = f"cuda:{x.device.id}"
    check_torch(f"{name} is an array of CuPy on {device}")
    return CupyLibrary(device)


def _tensor(x: Any, name: str, device: str) -> Tensor:
    """The tensor in the memory of an array of CuPy, or of a copy of it on CuPy's
    current stream.
    """
    import cupy
    import torch

    if type(x) is not cupy.ndarray:
        raise TypeError(
            f"{name} is a {kind_of(x)}, and what its class adds would be lost: pass {name}.view(cupy.ndarray)"
        )
    if any(stride < 0 or stride % x.itemsize for stride in x.strides):
        if name == "out":
            raise ValueError(
                f"out has strides {x.strides} and entries of {x.itemsize} bytes; PyTorch, which writes them, takes "
                "only strides that are not negative and multiples of an entry: pass another array and copy it"
            )
        with x.device:
            x = cupy.ascontiguousarray(x)
    # `__cuda_array_interface__` has no name for bfloat16.
    if x.dtype.name == "bfloat16":
        return torch.as_tensor(x.view(np.int16), device=device).view(torch.bfloat16)
    return torch.as_tensor(x, device=device)


def _array(x: Tensor, strides: tuple[int, ...], dtype: DType) -> Any:
    """The array of CuPy in the memory of a tensor.

    It keeps the tensor alive, as the memory is that of PyTorch's allocator.
    """
    import cupy

    start, end = extent(x)
    nbytes = max(end - start, 0)
    memory = cupy.cuda.UnownedMemory(start, nbytes, x, x.device.index or 0)
    pointer = cupy.cuda.MemoryPointer(memory, 0)
    return cupy.ndarray(tuple(x.shape), dtype, pointer, strides)


def _stream(device: str) -> Stream:
    """CuPy's current stream of a device, as PyTorch knows it."""
    import cupy
    import torch

    address = cupy.cuda.get_current_stream(torch.device(device).index).ptr
    # Both stand for the default stream. ExternalStream would make a new one of 0.
    if address in (0, 1):
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(address, device)
