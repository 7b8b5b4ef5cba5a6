"""The libraries of operands: NumPy, PyTorch, CuPy and JAX. The result is an array of the
same one.

Behind the door everything is an array with NumPy's interface. A CPU tensor or JAX array
becomes the NumPy array of its memory, a CUDA tensor an `engines.device_array`, which
carries NumPy's operations out on the device, an array of CuPy or JAX on a GPU the
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
        """True if arrays lie in the memory of the CPU."""
        return self.device == "cpu"

    def active(self) -> AbstractContextManager[Any]:
        """A context in which kernels run on this device, and torch multiplies in the
        formats of its operands.

        For arrays of CuPy kernels go to CuPy's current stream, so that no stream waits
        for another one. For arrays of JAX on a GPU the end of the context waits for the
        kernels.
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
        # XLA does not know torch's stream: it would reuse the memory of operands that
        # are dropped while kernels still read them.
        if self.name == "jax":
            context.callback(lambda: torch.cuda.current_stream().synchronize())
        return context

    def owns(self, x: Any) -> bool:
        """True if x is an array of this library on this device."""
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
        is_bfloat16 = str(x.dtype) == "torch.bfloat16"
        if is_bfloat16 and name == "out":
            raise TypeError(
                f"out has dtype {x.dtype}; the result has dtype float32 or more"
            )
        if self.on_host:
            try:
                array = (x.float() if is_bfloat16 else x).numpy()
            except TypeError as error:
                raise TypeError(
                    f"{name} is a tensor of {x.dtype}, which NumPy does not have"
                ) from error
            return array
        from hifigemm.engines.device_array import DeviceArray, wrap

        if not is_bfloat16:
            return wrap(x)
        on_device: Any = DeviceArray(x.detach(), BFLOAT16)
        return on_device

    def out_view(
        self, out: Any, stack: tuple[int, ...], *operands: Array
    ) -> Array | None:
        """`out` as a stack of this shape, to which kernels write directly.

        None on the host, where results are copied at the end; where the stack would be
        a copy; and where the memory of an operand overlaps that of `out`.
        """
        if out is None or self.on_host:
            return None
        from hifigemm.engines.device_array import unwrap, wrap

        target = unwrap(self.asarray(out, "out"))
        start, end = _extent(target)
        for x in operands:
            start_of_x, end_of_x = _extent(unwrap(x))
            if start < end_of_x and start_of_x < end:
                return None
        try:
            view: Array = wrap(target.view(stack))
        except RuntimeError:
            return None
        return view

    def note_change(self, x: Any) -> None:
        """Tell PyTorch that a tensor was written to, which derivatives check."""
        if self.name == "torch":
            from hifigemm.engines.device_array import count_change

            count_change(x)

    def to_native(self, x: Array) -> Any:
        """The array of this library behind an array with NumPy's interface; a product
        of vectors is a scalar in NumPy.
        """
        if self.name == "numpy":
            return x[()] if x.ndim == 0 else x
        if self.name == "jax":
            return self._to_jax(x)
        if self.on_host:
            import torch

            return torch.from_numpy(np.ascontiguousarray(x)).reshape(x.shape)
        from hifigemm.engines.device_array import unwrap

        tensor = unwrap(x)
        if self.name == "cupy":
            return _cupy_of_tensor(tensor, x.strides, x.dtype)
        return tensor

    def _to_jax(self, x: Array) -> Any:
        """The array of JAX with the entries of x, in its memory where possible."""
        import jax

        if jax.dtypes.canonicalize_dtype(x.dtype) != x.dtype:
            raise TypeError(
                f"the result has dtype {x.dtype}, which JAX has with jax_enable_x64 only"
            )
        if self.on_host:
            config: Any = jax.config
            default = config.jax_default_device or jax.devices()[0]
            device = None if self.place == default else self.place
            return jax.device_put(x, device, may_alias=True)
        from hifigemm.engines.device_array import unwrap

        with self.active():
            return jax.dlpack.from_dlpack(unwrap(x))


NUMPY = Library("numpy", "cpu")


def library_of(*operands: tuple[str, Any]) -> Library:
    """The library and device that all the named operands have in common; None and what
    NumPy converts do not count.

    Raises TypeError, ValueError: operands of different libraries or devices.
    """
    by_name: dict[str, Library] = {}
    for name, x in operands:
        # Prepared operands know their library.
        library = getattr(x, "library", None)
        if not isinstance(library, Library):
            library = _library(x, name)
        if library is not None:
            by_name[name] = library
    libraries = list(dict.fromkeys(by_name.values()))
    if len(libraries) > 1:
        places = ", ".join(f"{name} is of {x}" for name, x in by_name.items())
        error = TypeError if len({x.name for x in libraries}) > 1 else ValueError
        raise error(
            f"operands of different libraries or devices: {places}; nothing is copied, move one of them"
        )
    return libraries[0] if libraries else NUMPY


def _library(x: Any, name: str) -> Library | None:
    """The library of an array; None for what is no array but may become one, such as a
    list.
    """
    # torch.compile does not trace `np.ndarray | np.generic`.
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
    # `__cuda_array_interface__` has no name for bfloat16.
    if x.dtype.name == "bfloat16":
        return torch.as_tensor(x.view(np.int16), device=device).view(torch.bfloat16)
    return torch.as_tensor(x, device=device)


def _cupy_of_tensor(x: Any, strides: tuple[int, ...], dtype: Any) -> Any:
    """The array of CuPy in the memory of a tensor.

    It keeps the tensor alive, as the memory is that of PyTorch's allocator.
    """
    import cupy

    start, end = _extent(x)
    nbytes = max(end - start, 0)
    memory = cupy.cuda.UnownedMemory(start, nbytes, x, x.device.index or 0)
    pointer = cupy.cuda.MemoryPointer(memory, 0)
    return cupy.ndarray(tuple(x.shape), dtype, pointer, strides)


def _stream_of_cupy(device: str) -> Any:
    """CuPy's current stream of a device, as PyTorch knows it."""
    import cupy
    import torch

    address = cupy.cuda.get_current_stream(torch.device(device).index).ptr
    # Both stand for the default stream. ExternalStream would make a new one of 0.
    if address in (0, 1):
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(address, device)


def _extent(x: Any) -> tuple[int, int]:
    """Addresses of the first byte of a tensor and of the byte behind the last one."""
    axes = zip(x.shape, x.stride(), strict=True)
    num_entries = sum((n - 1) * stride for n, stride in axes) + 1
    start = x.data_ptr()
    return start, start + num_entries * x.element_size()
