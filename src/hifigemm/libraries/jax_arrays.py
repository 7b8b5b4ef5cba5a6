"""JAX: arrays of the CPU are arrays of NumPy, those of a GPU tensors of PyTorch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hifigemm.base.transforms import belongs_to_jax
from hifigemm.engines.arrays import as_array as as_array_of_device
from hifigemm.libraries.array_like import as_array
from hifigemm.libraries.library import check_torch
from hifigemm.libraries.numpy_arrays import as_ml_dtype
from hifigemm.libraries.torch_tensors import TensorLibrary, array_of_tensor
from hifigemm.numerics.bits import Array


@dataclass(frozen=True)
class JaxLibrary(TensorLibrary):
    """JAX."""

    name: ClassVar[str] = "jax"
    place: Any = None  # the device as JAX knows it, of which a CPU can be several

    def __str__(self) -> str:
        return super().__str__() if self.place is None else f"jax on {self.place}"

    def active(self) -> AbstractContextManager[object]:
        """As for tensors; on a GPU the end of the context waits for the kernels, as XLA
        does not know torch's stream: it would reuse the memory of operands that are
        dropped while kernels still read them.
        """
        if self.on_host:
            return nullcontext()
        import torch

        context = self._exit_stack()
        context.callback(lambda: torch.cuda.current_stream().synchronize())
        return context

    def owns(self, x: object) -> bool:
        """True for arrays of JAX on this device."""
        return belongs_to_jax(x) and library_of_jax(x, "x") == self

    def asarray(self, x: object, name: str) -> Array:
        """As in `Library`; arrays on a GPU pass through DLPack."""
        self.check_owned(x, name)
        if self.on_host:
            array: Array = as_array(np.asarray(x), name)
            return array
        import torch

        tensor = torch.utils.dlpack.from_dlpack(x)
        return array_of_tensor(tensor, name, on_host=False)

    def from_memory(self, x: Any) -> Any:
        """The array of JAX with the entries of x, in its memory where possible."""
        import jax

        dtype = as_array_of_device(x).dtype
        if dtype.kind == "V" and self.on_host:
            x = as_ml_dtype(x)
            dtype = x.dtype
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise TypeError(
                f"the result has dtype {dtype}, which JAX has with jax_enable_x64 only"
            )
        if self.on_host:
            config: Any = jax.config
            default = config.jax_default_device or jax.devices()[0]
            device = None if self.place == default else self.place
            return jax.device_put(x, device, may_alias=True)
        with self.active():
            return jax.dlpack.from_dlpack(x)

    def fill(self, x: Any, values: Any) -> None:
        """Arrays of JAX are never written to."""
        raise TypeError("an array of JAX cannot be written to")


def library_of_jax(x: Any, name: str) -> JaxLibrary:
    """JAX and the device of an array."""
    import jax

    if isinstance(x, jax.core.Tracer):
        raise TypeError(
            f"{name} is traced by JAX ({x.aval.str_short()}), which follows only products of JAX arrays: use the "
            "functions of hifigemm.jax, and call make_plan and prepare outside the program"
        )
    devices = x.devices()
    if len(devices) > 1:
        raise ValueError(
            f"{name} is spread over {len(devices)} devices: multiply it inside jax.jit or jax.shard_map"
        )
    (place,) = devices
    if place.platform == "cpu":
        return JaxLibrary("cpu", place)
    if place.platform != "gpu":
        raise TypeError(f"{name} is an array on {place}: expected the CPU or a GPU")
    check_torch(f"{name} is an array on {place}")
    return JaxLibrary(f"cuda:{x.__dlpack_device__()[1]}", place)
