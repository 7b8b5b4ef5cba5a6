"""Whose arrays come in: NumPy arrays, PyTorch tensors and JAX arrays on the CPU or a GPU. What comes in goes out.

Inside, everything is an array with NumPy's interface. A CPU tensor or JAX array is seen as the NumPy array of its
memory, a CUDA tensor through `engines.device_array`, which carries NumPy's operations out on the device, a JAX array on
a GPU as the tensor of its memory. Nothing is copied between devices or libraries.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from hifigemm.array_like import as_array, kind_of
from hifigemm.numerics.bits import Array
from hifigemm.transforms import belongs_to_jax, check_tensor

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
"""Stands for a dtype that NumPy does not have. Arrays on a device can have it, and be converted to float32."""


@dataclass(frozen=True)
class Library:
    """An array library and a device of it."""

    name: str  # "numpy", "torch" or "jax"
    device: str  # "cpu", or as PyTorch names it, such as "cuda:0"
    place: Any = None  # the device as JAX knows it, of which a CPU can be several

    def __str__(self) -> str:
        if self.place is not None:
            return f"{self.name} on {self.place}"
        return self.name if self.device == "cpu" else f"{self.name} on {self.device}"

    @property
    def on_host(self) -> bool:
        """Whether arrays lie in the memory of the CPU."""
        return self.device == "cpu"

    def active(self) -> AbstractContextManager[Any]:
        """A context in which kernels go to this device and torch multiplies in the formats that it is given.

        Where arrays of JAX lie on a GPU, its end waits for what was launched.
        """
        if self.name == "numpy" or (self.name == "jax" and self.on_host):
            return nullcontext()
        import torch

        context = ExitStack()
        context.enter_context(torch.autocast(self.device.partition(":")[0], enabled=False))
        if not self.on_host:
            context.enter_context(torch.cuda.device(self.device))
        if self.name == "jax":  # XLA does not know torch's stream, and uses the memory of dropped operands again
            context.callback(lambda: torch.cuda.current_stream().synchronize())
        return context

    def owns(self, x: Any) -> bool:
        """Whether x is an array of this library on this device."""
        return _library(x, "x") == self

    def asarray(self, x: Any, name: str) -> Array:
        """An array of this library with NumPy's interface; shares its memory, but for bfloat16 on the CPU (float32).

        Raises TypeError: tensors that `check_tensor` refuses, dtypes that NumPy does not have, what
        `array_like.as_array` refuses.
        """
        if self.name == "numpy":
            array: Array = as_array(x, name)
            return array
        if not self.owns(x):
            raise TypeError(f"{name} is a {type(x).__name__}; expected an array of {self}")
        if self.name == "jax":
            if self.on_host:
                return as_array(np.asarray(x), name)
            import torch

            x = torch.utils.dlpack.from_dlpack(x)
        check_tensor(x, name)
        x = x.resolve_conj().resolve_neg()
        brief = str(x.dtype) == "torch.bfloat16"
        if brief and name == "out":
            raise TypeError(f"out has dtype {x.dtype}; the result has dtype float32 or more")
        if self.on_host:
            try:
                array = (x.float() if brief else x).numpy()
            except TypeError as error:
                raise TypeError(f"{name} is a tensor of {x.dtype}, which NumPy does not have") from error
            return array
        from hifigemm.engines.device_array import DeviceArray, wrap

        on_device: Any = DeviceArray(x.detach(), BFLOAT16) if brief else wrap(x)
        return on_device

    def out_view(self, out: Any, stack: tuple[int, ...], *operands: Array) -> Array | None:
        """`out` as a stack of this shape for kernels to write to; None where that takes a copy or an operand is near.

        Host arrays are filled at the end.
        """
        if out is None or self.on_host:
            return None
        from hifigemm.engines.device_array import unwrap

        first, last = _extent(out)
        if any(first < end and start < last for start, end in (_extent(unwrap(x)) for x in operands)):
            return None
        try:
            return self.asarray(out.view(stack), "out")
        except RuntimeError:
            return None

    def note_change(self, x: Any) -> None:
        """Count a change of a tensor that its library did not see."""
        if self.name == "torch" and not x.is_inference():
            import torch

            torch.autograd.graph.increment_version(x)

    def to_native(self, x: Array) -> Any:
        """An array of this library from what `asarray` or a product made; a product of vectors is a scalar in NumPy."""
        if self.name == "numpy":
            return x[()] if x.ndim == 0 else x
        if self.name == "jax":
            return self._to_jax(x)
        if self.on_host:
            import torch

            return torch.from_numpy(np.ascontiguousarray(x)).reshape(x.shape)
        from hifigemm.engines.device_array import unwrap

        return unwrap(x)

    def _to_jax(self, x: Array) -> Any:
        import jax

        if jax.dtypes.canonicalize_dtype(x.dtype) != x.dtype:
            raise TypeError(f"the result has dtype {x.dtype}, which JAX has with jax_enable_x64 only")
        if self.on_host:
            config: Any = jax.config
            default = config.jax_default_device or jax.devices()[0]
            return jax.device_put(x, None if self.place == default else self.place, may_alias=True)
        from hifigemm.engines.device_array import unwrap

        with self.active():
            return jax.dlpack.from_dlpack(unwrap(x))


NUMPY = Library("numpy", "cpu")


def library_of(*operands: tuple[str, Any]) -> Library:
    """The library and device that all the named operands have in common; None and what NumPy converts do not count.

    Raises TypeError, ValueError: operands of different libraries or devices.
    """
    found: dict[str, Library] = {}
    for name, x in operands:
        own = getattr(x, "library", None)
        library = own if isinstance(own, Library) else _library(x, name)
        if library is not None:
            found[name] = library
    libraries = list(dict.fromkeys(found.values()))
    if len(libraries) > 1:
        places = ", ".join(f"{name} is of {library}" for name, library in found.items())
        error = TypeError if len({x.name for x in libraries}) > 1 else ValueError
        raise error(f"operands of different libraries or devices: {places}; nothing is copied, move one of them")
    return libraries[0] if libraries else NUMPY


def _library(x: Any, name: str) -> Library | None:
    """The library of an array; None for what is no array but may become one, such as a list."""
    if isinstance(x, np.ndarray | np.generic):
        return NUMPY
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        if x.device.type not in ("cpu", "cuda"):
            raise TypeError(f"{name} is a tensor on {x.device}: expected the CPU or a CUDA device")
        return Library("torch", str(x.device))
    if belongs_to_jax(x):
        return _library_of_jax(x, name)
    if hasattr(x, "__dlpack__"):
        raise TypeError(
            f"{name} is a {kind_of(x)}: NumPy and JAX arrays and PyTorch tensors are multiplied; convert it with "
            "from_dlpack"
        )
    return None


def _library_of_jax(x: Any, name: str) -> Library:
    """JAX and the device of an array."""
    import jax

    if isinstance(x, jax.core.Tracer):
        raise TypeError(
            f"{name} is traced by JAX ({x.aval.str_short()}), which follows products of JAX arrays alone: "
            "hifigemm.jax takes arrays of NumPy beside it, and make_plan, prepare and prepared operands have no tracers"
        )
    devices = x.devices()
    if len(devices) > 1:
        raise ValueError(f"{name} is spread over {len(devices)} devices: multiply it inside jax.jit or jax.shard_map")
    (place,) = devices
    if place.platform == "cpu":
        return Library("jax", "cpu", place)
    if place.platform != "gpu":
        raise TypeError(f"{name} is an array on {place}: expected the CPU or a GPU")
    if find_spec("torch") is None:
        raise TypeError(f"{name} is an array on {place}, which is multiplied as a tensor of PyTorch: install torch")
    return Library("jax", f"cuda:{x.__dlpack_device__()[1]}", place)


def _extent(x: Any) -> tuple[int, int]:
    """Addresses of the first byte and behind the last one of a tensor."""
    spread = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1
    return x.data_ptr(), x.data_ptr() + spread * x.element_size()
