"""Engine "torch": CPU tensors through the maths of the NumPy engine, CUDA tensors on
their device.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from hifigemm.engines.float32_precision import float32_precision, rounds_float32
from hifigemm.engines.gpu_rates import gpu_properties, rates_of
from hifigemm.engines.host import NativeOnHost
from hifigemm.engines.library_product import library_matmul
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.kernels.runtime.tiles import gpu_of, summary
from hifigemm.model.engine import Engine
from hifigemm.model.executable import (
    NO_SPLITS,
    NOT_ORDINARY,
    OTHER_MODE,
    Outcome,
    Refusal,
    Splits,
)
from hifigemm.numerics.bits import Array, real_components
from hifigemm.numerics.subnormals import is_ieee, others_may_differ

_SINGLE = (torch.float32, torch.complex64)


class NativeOfTensors(NativeOnHost):
    """PyTorch's own product, of tensors as they are; see `NativeOnHost`."""

    takes_tensors = True

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        c: Any = None,
        alpha: complex = 1.0,
        beta: complex = 0.0,
        splits: Splits = NO_SPLITS,
    ) -> Outcome | Refusal:
        """See `Executable`."""
        are_arrays = isinstance(a, np.ndarray)
        if are_arrays or not (self._is_plain and a.ndim == 2 == b.ndim):
            if not are_arrays:
                a, b = a.numpy(), b.numpy()
                c = None if c is None else c.numpy()
            return super().__call__(a, b, out, c, alpha, beta)
        if not is_ieee():
            return OTHER_MODE
        product = native_product_of(a, b)
        components = real_components(product.numpy())
        if not self._keeps_bound(components, a.numpy(), b.numpy()):
            return NOT_ORDINARY
        return Outcome(product, self._bound, 1.0)


class TorchEngine(NumpyEngine):
    """CPU tensors: NumPy's engine with PyTorch's native product."""

    name = "torch"
    native_executable = NativeOfTensors

    def native_product(self, a: Array, b: Array) -> Array:
        """torch.matmul of matrices or stacks in IEEE arithmetic, of a stack of one as
        the matrix that it is; see numerics.subnormals.
        """
        if others_may_differ(a, b):
            return super().native_product(a, b)
        x, y = (torch.from_numpy(_writable(x)) for x in (a, b))
        if x.ndim == 3 and len(x) == len(y) == 1:
            return native_product_of(x[0], y[0]).numpy()[None]
        return native_product_of(x, y).numpy()


def native_product_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """torch.matmul of tensors of the CPU in IEEE arithmetic."""
    # Where nothing is rounded, threads multiply side by side: `float32_precision` holds
    # a lock.
    is_rounded = x.dtype in _SINGLE and rounds_float32("mkldnn")
    with float32_precision("mkldnn", "ieee") if is_rounded else nullcontext():
        return library_matmul(x, y)


def _writable(x: Array) -> Array:
    """The array, or a copy where torch.from_numpy would not take it: with negative
    strides, or read-only, though nothing is written.
    """
    is_taken = x.flags.writeable and min(x.strides, default=0) >= 0
    return x if is_taken else x.copy()


@lru_cache
def torch_engine(device: str) -> Engine:
    """The engine of a device, "cpu" or as PyTorch names it."""
    if device == "cpu":
        return TorchEngine()
    from hifigemm.engines.cuda.engine import CudaEngine

    return CudaEngine(torch.device(device))


def describe_triton() -> str:
    """The version of Triton, and the way in which it launches kernels here."""
    if find_spec("triton") is None:
        return (
            "not installed: CUDA tensors are multiplied step by step, without kernels"
        )
    import triton

    from hifigemm.kernels.runtime.launch import enters_directly

    if not torch.cuda.is_available():
        return f"{triton.__version__}, without a GPU"
    launcher = "Triton's JIT, 24 to 45 us a launch"
    if enters_directly():
        launcher = "the CUDA driver"
    return f"{triton.__version__}, kernels are launched by {launcher}"


def describe_gpus() -> tuple[str, tuple[str, ...]]:
    """The version of PyTorch, and the rates and the tiles of large products of each
    GPU.
    """
    lines: list[str] = []
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for i in range(num_gpus):
        device = torch.device("cuda", i)
        lines.append(str(rates_of(gpu_properties(device))))
        lines += [f"  tile of {line}" for line in summary(gpu_of(device))]
    return torch.__version__, tuple(lines)
