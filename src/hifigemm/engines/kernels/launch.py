"""Launches of Triton and Gluon kernels that cost the host a few microseconds.

A call through Triton's JIT binds, specialises and hashes its arguments anew: 24 to 45 us on the host of an H200, more
than a small product takes on the device. A `Launch` does that once for each variant of a kernel; later calls go to the
compiled kernel's own C entry with the current stream. Where Triton is not the version whose entry is known, in the
interpreter, on AMD, and while a profiler has hooks in Triton, every call is a plain JIT call; a `Replay` that was
recorded before goes past such hooks.
"""

from __future__ import annotations

import inspect
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

import torch
import triton

__all__ = [
    "Address",
    "BoundLaunch",
    "Launch",
    "Recorder",
    "Replay",
    "TensorMap",
    "empty",
    "enters_directly",
    "float64_bits",
    "mark",
    "operand_arguments",
    "recording",
    "shared_layout",
    "spoil_recording",
    "tensor_map",
]

_KNOWN_SERIES = ("3.6",)
"""Triton versions whose compiled kernels are entered directly."""
_INT32 = 1 << 31
_BOUND_LIMIT = 16
"""Sets of addresses for which a `Replay` keeps the arguments of its launches; a head and a tail have each their own."""


class Address:
    """A device address with a dtype: what a kernel needs of a tensor, made faster than a view of one.

    The interpreter takes tensors only.
    """

    __slots__ = ("address", "dtype")

    def __init__(self, address: int, dtype: torch.dtype) -> None:
        self.address = address
        self.dtype = dtype

    def data_ptr(self) -> int:
        """The address."""
        return self.address


class TensorMap:
    """A matrix in device memory as TMA sees it; made by `tensor_map`, passed to a `Launch` like a tensor."""

    __slots__ = ("host", "key", "packed", "parameters")

    def __init__(self, host: Any, key: tuple[Any, ...], parameters: tuple[Any, ...]) -> None:
        self.host = host
        self.key = key
        self.parameters = parameters
        self.packed: list[Any] | None = None


@cache
def shared_layout(block: tuple[int, int], dtype: torch.dtype) -> Any:
    """Gluon's default for blocks that TMA moves and wgmma reads."""
    from triton.experimental.gluon import language as gl

    element = getattr(gl, str(dtype).removeprefix("torch."))
    return gl.NVMMASharedLayout.get_default_for(list(block), element)


@lru_cache(maxsize=1024)
def tensor_map(
    address: int,
    dtype: torch.dtype,
    rows: int,
    columns: int,
    pitch: int,
    block: tuple[int, int],
    plain: bool = False,
) -> TensorMap:
    """The (rows, columns) matrix at an address, rows `pitch` elements apart, moved in blocks; equal calls share one.

    The shared-memory layout is Gluon's default for the block, or with `plain`, for kernels in plain Triton, what the
    compiler chooses. Reads beyond the matrix give zeros, writes there are dropped. The address and the pitch in bytes
    must be multiples of 16.
    """
    described = Address(address, dtype), [rows, columns], [pitch, 1], list(block)
    host: Any
    if plain:
        from triton.tools.tensor_descriptor import TensorDescriptor

        host = TensorDescriptor(*described)
    else:
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

        host = GluonDescriptor(*described, shared_layout(block, dtype))
    return TensorMap(host, (dtype, block, plain), (address, dtype, rows, columns, pitch, block, plain))


def float64_bits(x: float) -> int:
    """A float64 as an integer argument, as floats reach a kernel in FP32."""
    return int(struct.unpack("q", struct.pack("d", x))[0])


def operand_arguments(operands: tuple[torch.Tensor, torch.Tensor] | None) -> list[Any]:
    """The arguments of a kernel for both operands: each with its three strides, 0 along a stack of one."""
    if operands is None:
        return [None, 0, 0, 0] * 2
    arguments: list[Any] = []
    for x in operands:
        stack, *rest = x.stride()
        arguments += [x, stack if x.shape[0] > 1 else 0, *rest]
    return arguments


class _Entry:
    """A compiled kernel reduced to the arguments of its C entry; see `make_launcher` of Triton's NVIDIA driver."""

    __slots__ = ("function", "head", "launch")

    def __init__(self, compiled: Any) -> None:
        launcher = compiled.run
        if launcher.global_scratch_size or launcher.profile_scratch_size:
            raise AttributeError("kernels with scratch memory take Triton's own launcher")
        launch = launcher.launch
        if inspect.isfunction(launch):
            launch = inspect.getclosurevars(launch).nonlocals["launcher"]
        self.launch = launch
        self.function = compiled.function
        no_scratch, no_hooks = (None, None), (None, None, None)
        self.head = (
            *(launcher.launch_cooperative_grid, launcher.launch_pdl, *no_scratch),
            *(compiled.packed_metadata, *no_hooks),
        )


_MAP_METADATA: dict[tuple[Any, ...], Any] = {}
"""How the compiler wants the tensor map of a (dtype, block, plain), as seen in the first kernel that took one."""


@cache
def enters_directly() -> bool:
    """Whether compiled kernels of this Triton can be entered without its JIT."""
    known = triton.__version__.rpartition(".")[0] in _KNOWN_SERIES
    pieces = ("_cuda_getDevice", "_cuda_getCurrentRawStream")
    return known and torch.version.hip is None and all(hasattr(torch._C, name) for name in pieces)


def _is_hooked() -> bool:
    """Whether a profiler wants to see the launches."""
    runtime = triton.knobs.runtime
    return bool(runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls)


class Launch:
    """A kernel with its compiled variants.

    Call it as ``launch(grid, *arguments, **constants)``: the grid is a tuple of one to three integers; run-time
    arguments are positional: tensors, `Address`, `TensorMap`, integers, floats (FP32 in the kernel), None; constexpr
    parameters and options (num_warps, ...) are keywords. It runs on torch's current device and stream; tensors must lie
    on that device, which is not checked. The first call of a variant compiles and belongs before a graph capture; later
    ones are safe in a capture and in threads.

    Variants differ by what Triton specialises: dtypes, pointers that are multiples of 16, integers that equal 1 or are
    multiples of 16. Integers that change from call to call belong into `do_not_specialize` of the kernel.

    Parameters
    ----------
    kernel : triton.jit or gluon.jit function
        Its constexpr parameters come last.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._variants: dict[tuple[Any, ...], _Entry | None] = {}
        parameters = getattr(kernel, "params", None)
        self._direct = parameters is not None and enters_directly()
        if parameters is None or not self._direct:
            return
        constant = [p.is_constexpr for p in parameters]
        if constant != sorted(constant):
            raise ValueError(f"{kernel.__name__}: constexpr parameters must come last")
        self._specialised = tuple(not p.do_not_specialize for p in parameters if not p.is_constexpr)
        self._padding = (None,) * sum(constant)

    def __call__(self, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        """Launch the kernel, or compile and launch it where this variant is new."""
        if not self._direct or _is_hooked():
            self._compile(grid, arguments, constants)
            spoil_recording()
            return
        device = torch._C._cuda_getDevice()
        variant, values = self._bind(device, arguments, constants)
        entry = self._variants.get(variant)
        if entry is None:
            compiled = self._compile(grid, arguments, constants)
            spoil_recording()
            if variant not in self._variants:
                self._variants[variant] = self._entry(compiled, arguments)
            return
        x, y, z = (*grid, 1, 1)[:3]
        stream = torch._C._cuda_getCurrentRawStream(device)
        entry.launch(x, y, z, stream, entry.function, *entry.head, *values, *self._padding)
        if _state.recorder is not None:
            _state.recorder.add(entry, (x, y, z), arguments, [*entry.head, *values, *self._padding])

    def bind(self, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> BoundLaunch:
        """A launch that can be repeated with the same arguments at the cost of the C entry alone."""
        return BoundLaunch(self, grid, arguments, constants)

    def _bind(
        self, device: int, arguments: tuple[Any, ...], constants: dict[str, Any]
    ) -> tuple[tuple[Any, ...], list[Any]]:
        """The variant that the arguments ask for, and what the C entry takes for them."""
        values: list[Any] = []
        key: list[Any] = [device, *constants.items()]
        for argument, specialised in zip(arguments, self._specialised, strict=True):
            kind = type(argument)
            if kind is int:
                values.append(argument)
                key.append(-_INT32 <= argument < _INT32)
                if specialised:
                    key.append(1 if argument == 1 else 16 * (argument & 15 == 0))
            elif kind is torch.Tensor or kind is Address:
                address = argument.data_ptr()
                values.append(address)
                key += (argument.dtype, address & 15 == 0)
            elif kind is TensorMap:
                values += argument.packed or _pack(argument)
                key.append(argument.key)
            else:
                values.append(argument)
                key.append(None if argument is None else kind)
        return tuple(key), values

    def _compile(self, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]) -> Any:
        """A plain JIT call, which compiles what is new and returns the compiled kernel."""
        plain = [a.host if type(a) is TensorMap else a for a in arguments]
        return self.kernel[grid](*plain, **constants)

    def _entry(self, compiled: Any, arguments: tuple[Any, ...]) -> _Entry | None:
        """The direct entry of a compiled kernel, or None where it is not as expected or must not be used."""
        plain = (int, float, bool, type(None), torch.Tensor, Address, TensorMap)
        if not all(type(a) in plain for a in arguments):
            return None
        try:
            maps = [a for a in arguments if type(a) is TensorMap]
            if maps:
                for argument, metadata in zip(maps, compiled.metadata.tensordesc_meta, strict=True):
                    if _MAP_METADATA.setdefault(argument.key, metadata) != metadata:
                        return None
            return _Entry(compiled)
        except (AttributeError, KeyError, TypeError, ValueError):
            return None


class BoundLaunch:
    """A launch with all its arguments, made by `Launch.bind`; tensors are held as addresses where that is possible.

    Attributes
    ----------
    repeatable : bool
        Whether it holds addresses only, so that keeping it keeps no memory alive.
    """

    __slots__ = ("_arguments", "_constants", "_device", "_entry", "_grid", "_launch", "_tail", "repeatable")

    def __init__(
        self, launch: Launch, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]
    ) -> None:
        self.repeatable = launch._direct
        if self.repeatable:
            arguments = tuple(Address(a.data_ptr(), a.dtype) if isinstance(a, torch.Tensor) else a for a in arguments)
        self._launch, self._grid, self._arguments, self._constants = launch, grid, arguments, constants
        self._entry: _Entry | None = None

    def __call__(self) -> None:
        """Launch on torch's current stream of the device that was current in the first call."""
        entry = self._entry
        if entry is None or _is_hooked() or _state.recorder is not None:
            self._launch(self._grid, *self._arguments, **self._constants)
            if self.repeatable:
                self._resolve()
            return
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        entry.launch(*self._grid, stream, entry.function, *self._tail)

    def _resolve(self) -> None:
        """Find the compiled variant once the first call has made it."""
        device = torch._C._cuda_getDevice()
        variant, values = self._launch._bind(device, self._arguments, self._constants)
        entry = self._launch._variants.get(variant)
        if entry is not None:
            self._grid = (*self._grid, 1, 1)[:3]
            self._device, self._tail = device, (*entry.head, *values, *self._launch._padding)
            self._entry = entry


def _pack(argument: TensorMap) -> list[Any]:
    """The arguments of the C entry for a tensor map: the encoded map, its shape and strides; [] while unknown."""
    metadata = _MAP_METADATA.get(argument.key)
    if metadata is None:
        return []
    from triton.backends.nvidia.driver import make_tensordesc_arg

    argument.packed = make_tensordesc_arg(argument.host, metadata)
    return argument.packed


class Recorder:
    """The launches made during `recording`, and the tensors that `empty` made for them.

    Attributes
    ----------
    marked : tuple or None
        How many launches there were when `mark` was called, and the tensor that it was called with.
    """

    def __init__(self) -> None:
        self.complete = True
        self.launches: list[tuple[_Entry, tuple[int, ...], tuple[Any, ...], list[Any]]] = []
        self.temporaries: list[torch.Tensor] = []
        self.marked: tuple[int, torch.Tensor] | None = None

    def add(self, entry: _Entry, grid: tuple[int, ...], arguments: tuple[Any, ...], tail: list[Any]) -> None:
        """Note a launch with what its C entry was given behind the function."""
        self.launches.append((entry, grid, arguments, tail))


class _State(threading.local):
    recorder: Recorder | None = None


_state = _State()


@contextmanager
def recording() -> Iterator[Recorder]:
    """Record the launches of this thread; `Recorder.complete` says whether all of them can be repeated."""
    before, recorder = _state.recorder, Recorder()
    _state.recorder = recorder
    try:
        yield recorder
    finally:
        _state.recorder = before


def spoil_recording() -> None:
    """What follows is no part of what could be repeated; without a recording nothing happens."""
    if _state.recorder is not None:
        _state.recorder.complete = False


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> torch.Tensor:
    """torch.empty for what is needed between launches."""
    made = torch.empty(shape, dtype=dtype, device=device)
    if _state.recorder is not None:
        _state.recorder.temporaries.append(made)
    return made


def mark(tensor: torch.Tensor) -> None:
    """Note in a recording that the launches so far make this tensor, a part of a temporary, which the host wants."""
    if _state.recorder is not None:
        _state.recorder.marked = len(_state.recorder.launches), tensor


class Replay:
    """Recorded launches, repeated on other tensors of the same shapes, strides, dtypes and alignment.

    Parameters
    ----------
    recorder : Recorder
        A complete one.
    tensors : list of tensor
        Operands and result of the recorded call. Their addresses are replaced; those of temporaries lie in a workspace
        of `nbytes`; all others, such as tables of constants, stay.

    Attributes
    ----------
    marked : slice
        Bytes of the workspace that hold the marked tensor after `head`.
    """

    def __init__(self, recorder: Recorder, tensors: list[torch.Tensor]) -> None:
        self.nbytes = 0
        self._places: dict[int, tuple[int, int, int]] = {}
        for made in recorder.temporaries:
            size = -(-made.numel() * made.element_size() // 256) * 256
            self._places[made.data_ptr()] = (len(tensors), self.nbytes, size)
            self.nbytes += size
        self._tables = [x for launch in recorder.launches for x in launch[2] if type(x) is torch.Tensor]
        self._places |= {x.data_ptr(): (i, 0, 1) for i, x in enumerate(tensors)}
        self._launches = [self._moved(*launch) for launch in recorder.launches]
        self._bound: dict[tuple[Any, ...], list[tuple[Any, tuple[Any, ...]]]] = {}
        count, wanted = recorder.marked or (0, None)
        self._head, self._tail = self._launches[:count], self._launches[count:]
        self.marked = slice(0, 0)
        if wanted is not None:
            ((_, start),) = self._find(wanted.data_ptr())
            self.marked = slice(start, start + wanted.numel() * wanted.element_size())

    def _moved(self, entry: _Entry, grid: tuple[int, ...], arguments: tuple[Any, ...], tail: list[Any]) -> Any:
        """A launch with the places of its arguments that depend on an address."""
        at, slots, maps = len(entry.head), [], []
        for argument in arguments:
            if type(argument) is TensorMap:
                address, *rest = argument.parameters
                maps += [(at, *place, rest) for place in self._find(address)]
                at += len(argument.packed or _pack(argument))
            else:
                if type(argument) in (torch.Tensor, Address):
                    slots += [(at, *place) for place in self._find(argument.data_ptr())]
                at += 1
        return entry.launch, entry.function, grid, tail, slots, maps

    def _find(self, address: int) -> list[tuple[int, int]]:
        """The base that an address belongs to and how far behind it lies; [] where it belongs to none."""
        return [
            (base, offset + address - start)
            for start, (base, offset, size) in self._places.items()
            if start <= address < start + size
        ]

    def __call__(self, device: int, bases: list[int]) -> None:
        """Launch on the current stream; `bases` are the addresses of the tensors, and of a workspace of `nbytes`."""
        self._run(self._launches, device, bases)

    def head(self, device: int, bases: list[int]) -> None:
        """The launches before the mark."""
        self._run(self._head, device, bases)

    def tail(self, device: int, bases: list[int]) -> None:
        """The launches behind the mark."""
        self._run(self._tail, device, bases)

    def _run(self, launches: list[Any], device: int, bases: list[int]) -> None:
        stream = torch._C._cuda_getCurrentRawStream(device)
        key = (id(launches), stream, *bases)
        calls = self._bound.get(key)
        if calls is None:
            if len(self._bound) >= _BOUND_LIMIT:
                self._bound.clear()
            calls = self._bound[key] = [_bound(each, stream, bases) for each in launches]
        for launch, arguments in calls:
            launch(*arguments)


def _bound(moved: tuple[Any, ...], stream: int, bases: list[int]) -> tuple[Any, tuple[Any, ...]]:
    """The C entry of what `Replay._moved` made, and all that it is given on a stream for tensors at some addresses."""
    launch, function, grid, tail, slots, maps = moved
    arguments = tail.copy()
    for at, base, offset in slots:
        arguments[at] = bases[base] + offset
    for at, base, offset, rest in maps:
        made = tensor_map(bases[base] + offset, *rest)
        packed = made.packed or _pack(made)
        arguments[at : at + len(packed)] = packed
    return launch, (*grid, stream, function, *arguments)
