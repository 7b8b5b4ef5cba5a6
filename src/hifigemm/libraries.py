"""Whose arrays come in: NumPy and CuPy arrays, PyTorch tensors and JAX arrays. What
comes in goes out.

Inside, everything is an array with NumPy's interface. A CPU tensor or JAX array is seen
as the NumPy array of its memory, a CUDA tensor through `engines.device_array`, which
carries NumPy's operations out on the device, an array of CuPy or JAX on a GPU as the
tensor of its memory. Nothing is copied between devices or libraries.
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
"""Stands for a dtype that NumPy does not have. Arrays on a device can have it, and be
converted to float32.
"""


@dataclass(frozen=True)
class Library:
    """An array library and a device of it."""

    name: str  # "numpy", "torch", "cupy" or "jax"
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
        """A context in which kernels go to this device and torch multiplies in the
        formats that it is given.

        For arrays of CuPy they go to its current stream, so that no stream waits for
        another one.
        Where arrays of JAX lie on a GPU, its end waits for what was launched.
        """
        if self.name == "numpy" or (self.name == "jax" and self.on_host):
            return nullcontext()
        import torch

        context = ExitStack()
        context.enter_context(
            torch.autocast(self.device.partition(":")[0], enabled=False)
        )
        if not self.on_host:
            context.enter_context(torch.cuda.device(self.device))
        if self.name == "cupy":
            context.enter_context(torch.cuda.stream(_stream_of_cupy(self.device)))
        # XLA does not know torch's stream, and uses the memory of dropped operands
        # again
        if self.name == "jax":
            context.callback(lambda: torch.cuda.current_stream().synchronize())
        return context

    def owns(self, x: Any) -> bool:
        """Whether x is an array of this library on this device."""
        return _library(x, "x") == self

    def asarray(self, x: Any, name: str) -> Array:
        """An array of this library with NumPy's interface, which shares its memory.

        Only bfloat16 on the CPU is copied, to float32, and arrays of CuPy with strides
        that PyTorch does not have.

        Raises TypeError: tensors that `check_tensor` refuses, dtypes that NumPy does
        not have, what `array_like.as_array` refuses, subclasses of CuPy's array.
        ValueError: `out` with such strides.
        """
        if self.name == "numpy":
            array: Array = as_array(x, name)
            return array
        if not self.owns(x):
            raise TypeError(
                f"{name} is a {type(x).__name__}; expected an array of {self}"
            )
        if self.name == "jax":
            if self.on_host:
                return as_array(np.asarray(x), name)
            import torch

            x = torch.utils.dlpack.from_dlpack(x)
        if self.name == "cupy":
            x = _tensor_of_cupy(x, name, self.device)
        check_tensor(x, name)
        x = x.resolve_conj().resolve_neg()
        brief = str(x.dtype) == "torch.bfloat16"
        if brief and name == "out":
            raise TypeError(
                f"out has dtype {x.dtype}; the result has dtype float32 or more"
            )
        if self.on_host:
            try:
                array = (x.float() if brief else x).numpy()
            except TypeError as error:
                raise TypeError(
                    f"{name} is a tensor of {x.dtype}, which NumPy does not have"
                ) from error
            return array
        from hifigemm.engines.device_array import DeviceArray, wrap

        on_device: Any = DeviceArray(x.detach(), BFLOAT16) if brief else wrap(x)
        return on_device

    def out_view(
        self, out: Any, stack: tuple[int, ...], *operands: Array
    ) -> Array | None:
        """`out` as a stack of this shape for kernels to write to; None where that takes
        a copy or an operand is near.

        Host arrays are filled at the end.
        """
        if out is None or self.on_host:
            return None
        from hifigemm.engines.device_array import unwrap, wrap

        target = unwrap(self.asarray(out, "out"))
        first, last = _extent(target)
        if any(
            first < end and start < last
            for start, end in (_extent(unwrap(x)) for x in operands)
        ):
            return None
        try:
            view: Array = wrap(target.view(stack))
        except RuntimeError:
            return None
        return view

    def note_change(self, x: Any) -> None:
        """Count a change of a tensor that its library did not see."""
        if self.name == "torch" and not x.is_inference():
            import torch

            torch.autograd.graph.increment_version(x)

    def to_native(self, x: Array) -> Any:
        """An array of this library from what `asarray` or a product made; a product of
        vectors is a scalar in NumPy.
        """
        if self.name == "numpy":
            return x[()] if x.ndim == 0 else x
        if self.name == "jax":
            return self._to_jax(x)
        if self.on_host:
            import torch

            return torch.from_numpy(np.ascontiguousarray(x)).reshape(x.shape)
        from hifigemm.engines.device_array import unwrap

        return (
            _cupy_of_tensor(unwrap(x), x.strides, x.dtype)
            if self.name == "cupy"
            else unwrap(x)
        )

    def _to_jax(self, x: Array) -> Any:
        import jax

        if jax.dtypes.canonicalize_dtype(x.dtype) != x.dtype:
            raise TypeError(
                f"the result has dtype {x.dtype}, which JAX has with jax_enable_x64 only"
            )
        if self.on_host:
            config: Any = jax.config
            default = config.jax_default_device or jax.devices()[0]
            return jax.device_put(
                x, None if self.place == default else self.place, may_alias=True
            )
        from hifigemm.engines.device_array import unwrap

        with self.active():
            return jax.dlpack.from_dlpack(unwrap(x))


NUMPY = Library("numpy", "cpu")


def library_of(*operands: tuple[str, Any]) -> Library:
    """The library and device that all the named operands have in common; None and what
    NumPy converts do not count.

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
        raise error(
            f"operands of different libraries or devices: {places}; nothing is copied, move one of them"
        )
    return libraries[0] if libraries else NUMPY


def _library(x: Any, name: str) -> Library | None:
    """The library of an array; None for what is no array but may become one, such as a
    list.
    """
    # torch.compile traces no union of classes of NumPy
    if isinstance(x, (np.ndarray, np.generic)):
        return NUMPY
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        if x.device.type not in ("cpu", "cuda"):
            raise TypeError(
                f"{name} is a tensor on {x.device}: expected the CPU or a CUDA device"
            )
        return Library("torch", str(x.device))
    if belongs_to_jax(x):
        return _library_of_jax(x, name)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        _check_torch(f"{name} is an array of CuPy on cuda:{x.device.id}")
        return Library("cupy", f"cuda:{x.device.id}")
    if hasattr(x, "__dlpack__"):
        raise TypeError(
            f"{name} is a {kind_of(x)}: NumPy, CuPy and JAX arrays and PyTorch tensors are multiplied; convert it with "
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
        raise ValueError(
            f"{name} is spread over {len(devices)} devices: multiply it inside jax.jit or jax.shard_map"
        )
    (place,) = devices
    if place.platform == "cpu":
        return Library("jax", "cpu", place)
    if place.platform != "gpu":
        raise TypeError(f"{name} is an array on {place}: expected the CPU or a GPU")
    _check_torch(f"{name} is an array on {place}")
    return Library("jax", f"cuda:{x.__dlpack_device__()[1]}", place)


def _check_torch(what: str) -> None:
    """Raise TypeError where PyTorch is missing, or knows no GPU."""
    what += ", which is multiplied as a tensor of PyTorch"
    if find_spec("torch") is None:
        raise TypeError(f"{what}: install torch")
    import torch

    if not torch.backends.cuda.is_built():
        raise TypeError(f"{what}, and torch {torch.__version__} was built without CUDA")


def _tensor_of_cupy(x: Any, name: str, device: str) -> Any:
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
                f"out has strides {x.strides} and entries of {x.itemsize} bytes, and PyTorch, which writes them, has "
                "no strides that are negative or no multiple of an entry: pass another array and copy it"
            )
        with x.device:
            x = cupy.ascontiguousarray(x)
    # for which the protocol of the conversion has no name
    if x.dtype.name == "bfloat16":
        return torch.as_tensor(x.view(np.int16), device=device).view(torch.bfloat16)
    return torch.as_tensor(x, device=device)


def _cupy_of_tensor(x: Any, strides: tuple[int, ...], dtype: Any) -> Any:
    """The array of CuPy in the memory of a tensor, which it keeps: PyTorch's allocator
    owns the memory.
    """
    import cupy

    first, last = _extent(x)
    memory = cupy.cuda.UnownedMemory(
        first, max(last - first, 0), x, x.device.index or 0
    )
    return cupy.ndarray(
        tuple(x.shape), dtype, cupy.cuda.MemoryPointer(memory, 0), strides
    )


def _stream_of_cupy(device: str) -> Any:
    """CuPy's current stream of a device, as PyTorch knows it."""
    import cupy
    import torch

    address = cupy.cuda.get_current_stream(torch.device(device).index).ptr
    # both stand for the default stream; of 0, ExternalStream would make a new one
    if address in (0, 1):
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(address, device)


def _extent(x: Any) -> tuple[int, int]:
    """Addresses of the first byte and behind the last one of a tensor."""
    spread = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1
    return x.data_ptr(), x.data_ptr() + spread * x.element_size()
