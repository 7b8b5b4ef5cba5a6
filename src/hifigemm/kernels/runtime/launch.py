"""Launches of Triton and Gluon kernels that cost the host a few microseconds.

The call of a `Launch` becomes a step of the `LaunchList` of its buffers, and the list
launches. It goes to the compiled kernel of each variant by the CUDA driver
(cuda_driver.py) with the current stream. Where that way is closed, every launch is a
plain JIT call: in the interpreter, on AMD, while a profiler has hooks in Triton, and,
with a warning, where a version of Triton or PyTorch is not as cuda_driver.py expects it.
"""

# The kernel is untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from hifigemm.base.exceptions import PlanError
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.cuda_driver import (
    Entry,
    MapForm,
    entry_of,
    map_forms_of,
    tensor_map_bytes,
)

_GLUON_SERIES = ("3.6", "3.7", "3.8", "3.9")
"""Triton versions whose Gluon compiles the kernels for Hopper; its interface changes
from version to version.
"""
_OPTIONS = {"enable_fp_fusion": True}
"""Options of kernels that say nothing else: Triton 3.10 fuses no products with sums
unless it is told to.
"""
_INT32 = 1 << 31
_CLEARED = 1024
"""Entries that a program clears."""


class Address:
    """A device address with a dtype: what a kernel needs of a tensor, made faster than
    a view of one.

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
    """A matrix in device memory as TMA sees it; made by `tensor_map`, passed to a
    `Launch` like a buffer.

    Attributes
    ----------
    place : int or Buffer
        The address, or the buffer at whose start the matrix lies.
    shape : tuple
        dtype, rows, columns, pitch and block, as `tensor_map` takes them.
    """

    __slots__ = ("_host", "_packed", "place", "shape")

    def __init__(self, place: int | Buffer, shape: tuple[Any, ...]) -> None:
        self.place = place
        self.shape = shape
        self._host: Any = None
        self._packed: bytes | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What kernels are specialised for: dtype and block."""
        return self.shape[0], self.shape[-1]

    @property
    def host(self) -> Any:
        """The descriptor that Triton's JIT takes."""
        if self._host is None:
            from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

            dtype, rows, columns, pitch, block = self.shape
            address = 1 << 20 if isinstance(self.place, Buffer) else self.place
            described = (
                Address(address, dtype),
                [rows, columns],
                [pitch, 1],
                list(block),
            )
            self._host = TensorDescriptor(*described, shared_layout(block, dtype))
        return self._host

    def packed(self) -> bytes | None:
        """The map as kernels read it; None in a buffer, and while no kernel that takes
        one like it is compiled.
        """
        if self._packed is None:
            form = _MAP_FORMS.get(self.key)
            if form is None or isinstance(self.place, Buffer):
                return None
            dtype, rows, columns, pitch, _ = self.shape
            device = torch._C._cuda_getDevice()
            self._packed = tensor_map_bytes(
                self.place, dtype, (rows, columns), pitch, form, device
            )
        return self._packed


@cache
def shared_layout(block: tuple[int, int], dtype: torch.dtype) -> Any:
    """Gluon's default for blocks that TMA moves and wgmma reads."""
    from triton.experimental.gluon import language as gl

    element = getattr(gl, str(dtype).removeprefix("torch."))
    return gl.NVMMASharedLayout.get_default_for(list(block), element)


def tensor_map(
    x: Buffer,
    rows: int,
    columns: int,
    pitch: int,
    block: tuple[int, int],
    *,
    start: int = 0,
) -> TensorMap:
    """The (rows, columns) matrix `start` elements behind the first one of a buffer.

    It is moved in blocks, and its rows are `pitch` elements apart. The shared-memory
    layout is Gluon's default for the block. Reads beyond the matrix give zeros, writes
    there are dropped. The address and the pitch in bytes must be multiples of 16.
    """
    return TensorMap(x.behind(start), (x.dtype, rows, columns, pitch, block))


@lru_cache(maxsize=1024)
def map_at(address: int, shape: tuple[Any, ...]) -> TensorMap:
    """The tensor map of an address; equal calls share one."""
    return TensorMap(address, shape)


class Scalar(int):
    """A float64 that a launch list is given anew in each run, as the bits of one value.

    `index` is its place among the scalars of the list. Kernels take such integers
    with `do_not_specialize`, as INT64 by their annotation: the bits of 0.0 alone would
    be of INT32.
    """

    index: int


def unread(dtype: torch.dtype) -> Any:
    """An argument for a pointer that a kernel does not follow in this launch.

    None would be a constant, and another compiled kernel. The interpreter takes
    tensors only.
    """
    if triton.knobs.runtime.interpret:
        return torch.zeros(1, dtype=dtype)
    return Address(0, dtype)


def scalar(index: int) -> Scalar:
    """A scalar of a launch list."""
    stand_in = Scalar(float64_bits(1.5))
    stand_in.index = index
    return stand_in


class Strided(NamedTuple):
    """A stack of matrices as an argument of a kernel.

    A kernel that is compiled once for all strides names the record in
    `do_not_specialize`.
    """

    entries: Any
    batch: int
    row: int
    column: int

    @property
    def transposed(self) -> Strided:
        """The transposed matrices."""
        return self._replace(row=self.column, column=self.row)


def float64_bits(x: float | Scalar) -> int:
    """A float64 as an integer argument, as floats reach a kernel in FP32."""
    if isinstance(x, Scalar):
        return x
    return int(struct.unpack("q", struct.pack("d", x))[0])


def uploaded(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Constants on a device, for the streams of all later launches.

    They go by a stream of their own, so that no launch waits for the work of another.
    While a graph is captured, nothing can be copied from the host.
    """
    if device.type != "cuda":
        return x.to(device)
    if torch.cuda.is_current_stream_capturing():
        raise PlanError(
            "while a graph is captured, constants cannot be copied to the GPU: call the "
            "product once before, with the scheme, shapes and dtype of the capture"
        )
    stream = torch.cuda.Stream(device)
    copied = torch.cuda.Event()
    with torch.cuda.stream(stream):
        constants = x.to(device, non_blocking=True)
        copied.record(stream)
    copied.synchronize()
    return constants


def real_view(x: Any) -> Any:
    """A complex buffer as real numbers, re and im along a last axis.

    Real ones, and None, are returned as they are.
    """
    return x.real_view() if x is not None and x.is_complex() else x


def operand_arguments(operands: tuple[Any, Any]) -> list[Any]:
    """Both operands, each with its three strides, as kernels take them.

    The stride along a stack of one matrix is 0.
    """
    return [argument for x in operands for argument in strided(x)]


def flat(arguments: Iterable[Any]) -> Iterator[Any]:
    """The arguments of a launch, with those of tuples one by one."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from argument
        else:
            yield argument


def buffers_of(x: Any) -> Iterator[Buffer]:
    """The buffers of an argument or a result, in tuples and lists of any depth."""
    if isinstance(x, Buffer):
        yield x
    elif type(x) is TensorMap:
        yield from buffers_of(x.place)
    elif isinstance(x, (tuple, list)):
        for part in x:
            yield from buffers_of(part)


def with_parts(x: Any, parts: Iterable[Any]) -> Any:
    """A tuple, named tuple or list of other parts."""
    return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)


def strided(x: Any) -> Strided:
    """A buffer of three dimensions and its three strides; None and zeros for None.

    The stride along a stack of one matrix is 0. Complex entries are seen as real
    numbers, while strides count entries.
    """
    if x is None:
        return Strided(None, 0, 0, 0)
    batch, row, column = x.stride()
    return Strided(real_view(x), batch if x.shape[0] > 1 else 0, row, column)


_MAP_FORMS: dict[tuple[Any, ...], MapForm] = {}
"""How the compiler wants the tensor map of a (dtype, block), as seen in the first
kernel that took one.
"""


_entered: list[str] = []
"""Names of the kernels that were compiled, or loaded from a cache on disk."""


def num_kernels() -> int:
    """Kernels that were compiled or loaded in this process."""
    return len(_entered)


@cache
def enters_directly() -> bool:
    """True if compiled kernels can be entered past Triton's JIT."""
    if torch.version.cuda is None:
        return False
    pieces = ("_cuda_getDevice", "_cuda_getCurrentRawStream")
    missing = [name for name in pieces if not hasattr(torch._C, name)]
    if missing and torch.cuda.is_available():
        warn_of_slow_launches(f"torch._C has no {' and no '.join(missing)}")
    return not missing


@cache
def warn_of_slow_launches(reason: str) -> None:
    """Warn, once for each reason, that launches go through the JIT."""
    warnings.warn(
        f"Triton {triton.__version__} with PyTorch {torch.__version__}: kernels are launched by Triton's JIT, which "
        f"costs the host 24 to 45 us a launch, 0.4 to 0.8 ms a small product ({reason}). hifigemm.info() names the "
        "versions that were tested",
        RuntimeWarning,
        stacklevel=2,
    )


@cache
def knows_gluon() -> bool:
    """True if the kernels for Hopper are known to compile with this Triton; without
    them products take longer.
    """
    is_known = triton.__version__.rpartition(".")[0] in _GLUON_SERIES
    if not is_known:
        warnings.warn(
            f"Triton {triton.__version__}: the kernels for Hopper are known to compile with "
            f"{', '.join(_GLUON_SERIES)}; plain ones take their place, and products take about a third longer",
            RuntimeWarning,
            stacklevel=2,
        )
    return is_known


def is_hooked() -> bool:
    """True if a profiler wants to see the launches."""
    runtime = triton.knobs.runtime
    return bool(runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls)


class Launch:
    """A kernel with its compiled variants.

    Call it as ``launch(grid, *arguments, **constants)``: the grid is a tuple of one to
    three integers; run-time arguments are positional: buffers of one launch list, whose
    step the launch becomes, tensors of constants, which the list keeps, `Address`,
    `TensorMap`, integers, floats (FP32 in the kernel), None, and tuples of these without
    a `TensorMap`; constexpr parameters and options (num_warps, ...) are keywords.

    Variants differ by what Triton specialises: dtypes, pointers that are multiples of
    16, integers that equal 1 or are multiples of 16, and whether integers are INT32 or
    INT64. Integers that change from call to call belong into `do_not_specialize` of the
    kernel, as do tuples of them, which Triton's JIT would specialise all the same. Those
    that may exceed INT32 get a type as their annotation, or a record that says that they
    `are_wide`.

    Parameters
    ----------
    kernel : triton.jit or gluon.jit function
        Its constexpr parameters come last.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._variants: dict[tuple[Any, ...], Entry | None] = {}
        parameters = getattr(kernel, "params", None)
        self._direct = parameters is not None and enters_directly()
        self.is_gluon = self._direct and bool(kernel.is_gluon())
        if parameters is None or not self._direct:
            return
        constant = [p.is_constexpr for p in parameters]
        if constant != sorted(constant):
            raise ValueError(f"{kernel.__name__}: constexpr parameters must come last")
        self._traits = _traits_of(parameters)

    def __call__(
        self, grid: tuple[int, ...], *arguments: Any, **constants: Any
    ) -> None:
        """Add the launch to the list of the first buffer."""
        first = next(buffers_of(arguments), None)
        if first is None:
            raise TypeError(
                f"{self.kernel.__name__}: no buffer of a launch list among the "
                "arguments; `run_recorded` takes tensors"
            )
        first.launches.add(self, grid, arguments, constants)

    def compile(self, arguments: tuple[Any, ...], constants: dict[str, Any]) -> Any:
        """The compiled kernel for some arguments, without a launch; needs no CUDA
        context in the thread.
        """
        traits = _traits_of(self.kernel.params)
        plain = [
            _for_jit(x if is_specialised else _without_numbers(x))
            for x, (is_specialised, _) in zip(arguments, traits, strict=True)
        ]
        return self.kernel.warmup(*plain, grid=(1,), **{**_OPTIONS, **constants})

    def entry(
        self, arguments: tuple[Any, ...], constants: dict[str, Any]
    ) -> Entry | None:
        """The direct entry of the variant for some arguments, compiled without a
        launch; None where there is none.
        """
        if not self._direct:
            return None
        device = torch._C._cuda_getDevice()
        variant = self._variant(device, arguments, constants)
        if variant not in self._variants:
            self._variants[variant] = _entry(
                self.compile(arguments, constants), arguments, device
            )
            _entered.append(self.kernel.__name__)
        return self._variants[variant]

    def new_variant(
        self, arguments: tuple[Any, ...], constants: dict[str, Any]
    ) -> tuple[Any, ...] | None:
        """The kernel and the variant for some arguments; None where that was compiled,
        and without direct entries.
        """
        if not self._direct:
            return None
        variant = self._variant(torch._C._cuda_getDevice(), arguments, constants)
        return None if variant in self._variants else (self, *variant)

    def call_jit(
        self,
        grid: tuple[int, ...],
        arguments: tuple[Any, ...],
        constants: dict[str, Any],
    ) -> Any:
        """A plain JIT call, which compiles what is new and returns the compiled
        kernel.
        """
        plain = [_for_jit(x) for x in arguments]
        return self.kernel[grid](*plain, **{**_OPTIONS, **constants})

    def _variant(
        self, device: int, arguments: tuple[Any, ...], constants: dict[str, Any]
    ) -> tuple[Any, ...]:
        """The variant that the arguments ask for."""
        key: list[Any] = [device, *constants.items()]
        _specialise(arguments, self._traits, key)
        return tuple(key)


def _for_jit(argument: Any) -> Any:
    """An argument as Triton's JIT takes it."""
    kind = type(argument)
    if kind is TensorMap:
        return argument.host
    return int(argument) if kind is Scalar else argument


def _without_numbers(argument: Any) -> Any:
    """A tuple with integers of which Triton sees the type alone; others unchanged."""
    if not isinstance(argument, tuple):
        return argument
    are_wide = getattr(argument, "are_wide", False)
    parts = []
    for x in argument:
        if isinstance(x, int):
            # Triton looks for 1, for multiples of 16, and for what INT32 holds.
            is_narrow = -_INT32 <= x < _INT32 and not are_wide
            x = 3 if is_narrow else 2 * _INT32 + 3
        parts.append(x)
    return with_parts(argument, parts)


class _Traits(NamedTuple):
    """What the compiled kernel owes to a parameter."""

    is_specialised: bool  # integers are known to equal 1 or to be multiples of 16
    is_typed: bool  # the type of an integer does not depend on its value


def _traits_of(parameters: Iterable[Any]) -> tuple[_Traits, ...]:
    """The traits of the run-time parameters of a kernel."""
    return tuple(
        _Traits(not p.do_not_specialize, bool(p.annotation_type))
        for p in parameters
        if not p.is_constexpr
    )


def _specialise(
    arguments: Sequence[Any], traits: Sequence[_Traits], key: list[Any]
) -> None:
    """Append what kernels are specialised for to `key`, for the arguments of tuples one
    by one.
    """
    for argument, (is_specialised, is_typed) in zip(arguments, traits, strict=True):
        kind = type(argument)
        if kind is int or kind is Scalar:
            if not is_typed:
                key.append(-_INT32 <= argument < _INT32)
            if is_specialised:
                key.append(1 if argument == 1 else 16 * (argument & 15 == 0))
        elif kind is torch.Tensor or kind is Address or kind is Buffer:
            key.append(argument.dtype)
            key.append(argument.data_ptr() & 15 == 0)
        elif argument is None:
            key.append(None)
        elif isinstance(argument, tuple):
            length = len(argument)
            key.append(length)
            are_wide = not is_specialised and getattr(argument, "are_wide", False)
            of_parts = _Traits(is_specialised, are_wide)
            _specialise(argument, (of_parts,) * length, key)
        elif kind is TensorMap:
            key.append(argument.key)
        else:
            key.append(kind)


def _entry(compiled: Any, arguments: tuple[Any, ...], device: int) -> Entry | None:
    """The direct entry of a compiled kernel on a device, or None where the JIT has to
    launch it.
    """
    numbers = (int, float, bool, Scalar, type(None))
    places = (torch.Tensor, Address, Buffer, TensorMap)
    if not all(type(a) in (*numbers, *places) for a in flat(arguments)):
        return None
    entry = entry_of(compiled, device)
    if entry is None:
        warn_of_slow_launches(
            "compiled kernels are not as they were with the versions that were tested"
        )
        return None
    maps = [argument for argument in arguments if type(argument) is TensorMap]
    for argument, form in zip(maps, map_forms_of(compiled), strict=True):
        if _MAP_FORMS.setdefault(argument.key, form) != form:
            return None
    return entry


@triton.jit(do_not_specialize=["count", "second_count"])
def _clear_kernel(out, count, second, second_count, SIZE: tl.constexpr):
    """Zeros in two places; it has no twin. A tile is SIZE entries of each place."""
    # Programs count the tiles of the longer one of both.
    index = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + index, 0, mask=index < count)
    tl.store(second + index, 0, mask=index < second_count)


_clear = Launch(_clear_kernel)


def clear(x: Any, y: Any) -> None:
    """Write zeros to two contiguous int32 buffers."""
    count = max(x.numel(), y.numel())
    if count:
        _clear(
            (-(-count // _CLEARED),),
            x,
            x.numel(),
            y,
            y.numel(),
            SIZE=_CLEARED,
            num_warps=4,
        )
