"""PyTorch: tensors of the CPU are arrays of NumPy, those of a GPU device arrays."""

from __future__ import annotations

import math
import sys
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hifigemm.base.transforms import check_tensor
from hifigemm.libraries.array_like import BFLOAT16
from hifigemm.libraries.library import Library
from hifigemm.numerics.bits import Array

if TYPE_CHECKING:
    from torch import Tensor


class TensorLibrary(Library):
    """A library whose arrays are multiplied as tensors of PyTorch."""

    def active(self) -> AbstractContextManager[object]:
        """A context in which kernels run on this device, and torch multiplies in the
        formats of its operands.
        """
        return self._exit_stack()

    def _exit_stack(self) -> ExitStack:
        import torch

        context = ExitStack()
        context.enter_context(
            torch.autocast(self.device.partition(":")[0], enabled=False)
        )
        if not self.on_host:
            context.enter_context(torch.cuda.device(self.device))
        return context

    def out_view(
        self, out: Tensor | None, stack: tuple[int, ...], *operands: Array
    ) -> Array | None:
        """As in `Library`."""
        if out is None or self.on_host:
            return None
        from hifigemm.engines.device_array import unwrap, wrap

        target = unwrap(self.asarray(out, "out"))
        start, end = extent(target)
        for x in operands:
            start_of_x, end_of_x = extent(unwrap(x))
            if start < end_of_x and start_of_x < end:
                return None
        try:
            view: Array = wrap(target.view(stack))
        except RuntimeError:
            return None
        return view


class TorchLibrary(TensorLibrary):
    """PyTorch."""

    name: ClassVar[str] = "torch"

    def owns(self, x: object) -> bool:
        """True for tensors on this device."""
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(x, torch.Tensor):
            return False
        return x.is_cpu if self.on_host else str(x.device) == self.device

    def asarray(self, x: Any, name: str) -> Array:
        """As in `Library`; only bfloat16 on the CPU is copied, to float32."""
        self.check_owned(x, name)
        return array_of_tensor(x, name, self.on_host)

    def note_change(self, x: Tensor) -> None:
        """Count the change of a tensor, as derivatives check it."""
        from hifigemm.engines.device_array import count_change

        count_change(x)

    def from_memory(self, x: Any) -> Tensor:
        """The tensor in the memory of an array of NumPy, of a copy where it is not
        contiguous.

        """
        if not isinstance(x, np.ndarray):
            tensor: Tensor = x
            return tensor
        import torch

        if x.dtype == BFLOAT16:
            bits = torch.from_numpy(np.ascontiguousarray(x).view(np.int16))
            return bits.view(torch.bfloat16).reshape(x.shape)
        if x.flags.c_contiguous and math.gcd(*x.strides) % x.itemsize == 0:
            return torch.from_numpy(x)
        # An axis of length one may have any stride in NumPy, but PyTorch takes multiples of
        # the size of an entry alone: one dimension has no such axis.
        return torch.from_numpy(np.ascontiguousarray(x).reshape(-1)).view(x.shape)

    def fill(self, x: Tensor, values: Any) -> None:
        """As in `Library`."""
        tensor = self.from_memory(values)
        x.copy_(tensor if tensor.shape == x.shape else tensor.view(x.shape))


TORCH_ON_HOST = TorchLibrary()


def library_of_tensor(x: Tensor, name: str) -> TorchLibrary:
    """PyTorch on the device of a tensor."""
    if x.is_cpu:
        return TORCH_ON_HOST
    if x.device.type not in ("cpu", "cuda"):
        raise TypeError(
            f"{name} is a tensor on {x.device}: expected the CPU or a CUDA device"
        )
    return TorchLibrary(str(x.device))


def array_of_tensor(x: Tensor, name: str, on_host: bool) -> Array:
    """The array with NumPy's interface in the memory of a tensor."""
    check_tensor(x, name)
    x = x.resolve_conj().resolve_neg()
    is_bfloat16 = str(x.dtype) == "torch.bfloat16"
    if on_host:
        if is_bfloat16 and name == "out":
            # It is written to in place.
            import torch

            bits: Array = x.view(torch.int16).numpy()
            return bits.view(BFLOAT16)
        try:
            array: Array = (x.float() if is_bfloat16 else x).numpy()
        except TypeError as error:
            raise TypeError(
                f"{name} is a tensor of {x.dtype}, which NumPy does not have"
            ) from error
        return array
    return device_array(x)


def device_array(x: Tensor) -> Any:
    """The array with NumPy's interface of a tensor of a device, of bfloat16 too."""
    from hifigemm.engines.device_array import DeviceArray, wrap

    if str(x.dtype) == "torch.bfloat16":
        return DeviceArray(x.detach(), BFLOAT16)
    return wrap(x)


def as_bfloat16(x: Array) -> Any:
    """An array of float32 in bfloat16, rounded to nearest on a device; all numbers of a
    NumPy array must be bfloat16 values already.
    """
    if isinstance(x, np.ndarray):
        upper_halves = np.ascontiguousarray(x).view(np.uint32) >> 16
        return upper_halves.astype(np.uint16).view(BFLOAT16).reshape(x.shape)
    import torch

    from hifigemm.engines.device_array import DeviceArray, unwrap

    return DeviceArray(unwrap(x).to(torch.bfloat16), BFLOAT16)


def extent(x: Tensor) -> tuple[int, int]:
    """Addresses of the first byte of a tensor and of the byte behind the last one."""
    axes = zip(x.shape, x.stride(), strict=True)
    num_entries = sum((n - 1) * stride for n, stride in axes) + 1
    start = x.data_ptr()
    return start, start + num_entries * x.element_size()
