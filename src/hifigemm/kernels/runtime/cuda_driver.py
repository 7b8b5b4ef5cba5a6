"""Compiled kernels loaded and launched by the CUDA driver, past Triton's JIT.

A call through the JIT binds, specialises and hashes its arguments anew: 24 to 45 us on
the host of an H200. What the JIT compiles is public: the machine code (`asm["cubin"]`),
its metadata and the types of its arguments. The driver's C interface is public and
stable. So this module loads the machine code itself, writes the arguments where the
driver reads them, and launches by `cuLaunchKernelEx`; it depends on no launcher of
Triton or PyTorch, which move with every version.

What it knows of Triton, for which `entry_of` looks and
tests/kernels/runtime/test_cuda_driver.py asks each version:

- The parameters of a kernel are its run-time arguments in their order, those of tuples
  one by one. Arguments that the JIT took for constants ("constexpr" in the signature:
  None, and integers that equal 1) are none.
- A tensor map is followed by the shape and the strides of its matrix.
- Two addresses of scratch memory come last; they are zero for kernels that need none.

Where the parameters of a loaded kernel have other sizes, `entry_of` returns None, and
the JIT launches the kernel.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import compress
from typing import Any, NamedTuple

import torch

_FORMATS = {
    "i1": "b",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "u1": "B",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "fp32": "f",
    "fp64": "d",
}
"""The format of `struct` for each type of a signature; addresses and tensor maps are
apart.
"""

_ADDRESS = "Q"
_NUM_SCRATCH = 2
"""Addresses of scratch memory behind the arguments."""

_MAP_BYTES = 128
"""Of a CUtensorMap."""
_MAP_ALIGNMENT = 64
_MAP_TAIL = struct.Struct("=iiqq")
"""Rows, columns and both strides of the matrix, which Triton passes behind its tensor
map.
"""
_TENSOR_MAP = f"{_MAP_BYTES + _MAP_TAIL.size}s"

_MAP_TYPES = {
    # CU_TENSOR_MAP_DATA_TYPE_UINT8: maps move bytes, whatever their sign
    torch.int8: 0,
    torch.float16: 6,
    torch.float32: 7,
    torch.bfloat16: 9,
}
"""CUtensorMapDataType of each dtype."""
_PROMOTION_128B = 2
"""CU_TENSOR_MAP_L2_PROMOTION_L2_128B, as Triton takes it."""

_CONFIG = struct.Struct("=7I4xQQI4x")
"""CUlaunchConfig: grid, block, bytes of shared memory, stream, address and number of
attributes.
"""
_WARP = 32
_STATIC_SHARED = 48 * 1024
"""Bytes of shared memory that a kernel gets without asking for more."""
_MAX_DYNAMIC_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""

_INVALID_CONTEXT = 201
"""CUDA_ERROR_INVALID_CONTEXT: this thread has not used CUDA yet."""


class DriverError(RuntimeError):
    """The CUDA driver refused a call."""


@cache
def driver_library() -> Any:
    """The driver's library, with the types of the functions that are called here."""
    library = ctypes.CDLL("libcuda.so.1")
    address, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    types: dict[str, list[Any]] = {
        "cuLaunchKernelEx": [address] * 4,
        "cuModuleLoadData": [address, text],
        "cuModuleGetFunction": [address, address, text],
        "cuFuncSetAttribute": [address, number, number],
        "cuFuncGetParamInfo": [address, ctypes.c_size_t, address, address],
        "cuTensorMapEncodeTiled": [
            address,
            number,
            ctypes.c_uint32,
            *[address] * 5,
            *[number] * 4,
        ],
        "cuGetErrorString": [number, address],
        "cuCtxSetCurrent": [address],
        "cuCtxPushCurrent_v2": [address],
        "cuCtxPopCurrent_v2": [address],
        "cuDevicePrimaryCtxRetain": [address, number],
        "cuMemcpy2DAsync_v2": [address, address],
        "cuStreamBatchMemOp_v2": [address, ctypes.c_uint, address, ctypes.c_uint],
    }
    for name, arguments in types.items():
        # cuFuncGetParamInfo is as old as CUDA 12.4
        function = getattr(library, name, None)
        if function is not None:
            function.argtypes = arguments
            function.restype = number
    return library


def check(code: int, what: str) -> None:
    """Raise DriverError where the driver returned an error."""
    if code:
        text = ctypes.c_char_p()
        driver_library().cuGetErrorString(code, ctypes.byref(text))
        reason = "unknown error" if text.value is None else text.value.decode()
        raise DriverError(f"{what}: CUDA error {code}, {reason}")


@cache
def _primary_context(device: int) -> int:
    """The context of a device that the CUDA runtime uses, and with it PyTorch; it is
    held from then on.
    """
    context = ctypes.c_void_p()
    check(
        driver_library().cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        f"context of device {device}",
    )
    if context.value is None:
        raise DriverError(f"device {device} has no context")
    return context.value


def _make_current(device: int) -> None:
    """Give this thread the context of a device, as a thread that has not used CUDA
    before has none.
    """
    check(
        driver_library().cuCtxSetCurrent(_primary_context(device)),
        f"context of device {device}",
    )


def argument_types(signature: Sequence[Any]) -> Iterator[str | None]:
    """The types of the arguments of a kernel, those of tuples one by one; None for
    constants.
    """
    for entry in signature:
        if isinstance(entry, (tuple, list)):
            yield from argument_types(entry)
        elif entry == "constexpr":
            yield None
        else:
            yield entry


@dataclass(frozen=True)
class Parameters:
    """Where the driver reads the parameters of a kernel.

    Attributes
    ----------
    is_passed : tuple of bool
        For each argument, those of tuples one by one: False where the compiler took it
        for a constant.
    layout : struct.Struct
        Packs the arguments that are passed.
    offsets : tuple of int
        Bytes from the start of the packed arguments to each parameter; a tensor map
        counts as five.
    sizes : tuple of int
        Bytes of each parameter.
    """

    is_passed: tuple[bool, ...]
    layout: struct.Struct
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, types: Sequence[str | None]) -> Parameters:
        """The layout of arguments of these types, with the addresses of scratch memory
        behind them.
        """
        formats, offsets, sizes, end = ["="], [], [], 0

        def append(text: str, alignment: int, parts: Sequence[int]) -> None:
            nonlocal end
            padding = -end % alignment
            formats.append(f"{padding}x{text}")
            end += padding
            for size in parts:
                offsets.append(end)
                sizes.append(size)
                end += size

        for kind in types:
            if kind is None:
                continue
            if kind.startswith("tensordesc"):
                append(_TENSOR_MAP, _MAP_ALIGNMENT, (_MAP_BYTES, 4, 4, 8, 8))
            else:
                text = _ADDRESS if kind.startswith("*") else _FORMATS[kind]
                size = struct.calcsize(text)
                append(text, size, (size,))
        for _ in range(_NUM_SCRATCH):
            append("8x", 8, (8,))
        is_passed = tuple(kind is not None for kind in types)
        return cls(
            is_passed, struct.Struct("".join(formats)), tuple(offsets), tuple(sizes)
        )

    @cached_property
    def pointers(self) -> struct.Struct:
        """Packs the addresses of the parameters."""
        return struct.Struct(f"={len(self.offsets)}Q")

    @cached_property
    def memory(self) -> Any:
        """The type of the memory of a launch: the configuration, the addresses of the
        parameters, the parameters.
        """
        head = _CONFIG.size + self.pointers.size
        return ctypes.c_char * (head + self.layout.size + _MAP_ALIGNMENT)


class PreparedLaunch:
    """A launch with all that it needs; it can be made any number of times, in several
    threads too.
    """

    __slots__ = ("_arguments", "_entry", "_launch", "_memory")

    def __init__(
        self,
        entry: Entry,
        grid: tuple[int, int, int],
        stream: int,
        values: Sequence[Any],
    ) -> None:
        parameters = entry.parameters
        memory = parameters.memory()
        start = ctypes.addressof(memory)
        # The parameters lie behind the configuration and their addresses, aligned for
        # tensor maps.
        head = _CONFIG.size + parameters.pointers.size
        head += -(start + head) % _MAP_ALIGNMENT
        _CONFIG.pack_into(
            memory, 0, *grid, entry.num_threads, 1, 1, entry.shared, stream, 0, 0
        )
        addresses = [start + head + offset for offset in parameters.offsets]
        parameters.pointers.pack_into(memory, _CONFIG.size, *addresses)
        parameters.layout.pack_into(
            memory, head, *compress(values, parameters.is_passed)
        )
        self._memory = memory
        self._entry = entry
        self._arguments = start, entry.function, start + _CONFIG.size, None
        self._launch = driver_library().cuLaunchKernelEx

    def __call__(self) -> None:
        """Launch on the stream that was given."""
        code = self._launch(*self._arguments)
        if code:
            self._launch_again(code)

    def _launch_again(self, code: int) -> None:
        """Launch where only the context of the thread was missing; raise DriverError
        for all else.
        """
        entry = self._entry
        if code == _INVALID_CONTEXT:
            _make_current(entry.device)
            code = self._launch(*self._arguments)
        check(
            code,
            f"launch of {entry.name} with {entry.num_threads} threads and {entry.shared} bytes",
        )


class Entry(NamedTuple):
    """A kernel that is loaded on a device.

    `prepared(grid, stream, values)` is a launch of it, where `values` holds its
    run-time arguments one by one: addresses as integers, tensor maps as
    `tensor_map_bytes`.
    """

    name: str
    device: int
    function: int
    num_threads: int
    shared: int
    parameters: Parameters

    def prepared(
        self, grid: tuple[int, int, int], stream: int, values: Sequence[Any]
    ) -> PreparedLaunch:
        """A launch of the kernel."""
        return PreparedLaunch(self, grid, stream, values)


def entry_of(compiled: Any, device: int) -> Entry | None:
    """What Triton's JIT compiled, loaded on a device; None where it is not as this
    module expects it.

    Raises DriverError: the driver cannot load it.
    """
    parameters = parameters_of(compiled)
    if parameters is None:
        return None
    metadata = compiled.metadata
    driver, context = driver_library(), _primary_context(device)
    module, function, popped = (ctypes.c_void_p() for _ in range(3))
    check(driver.cuCtxPushCurrent_v2(context), f"context of device {device}")
    try:
        loaded = driver.cuModuleLoadData(ctypes.byref(module), compiled.asm["cubin"])
        check(loaded, f"machine code of {metadata.name}")
        code = driver.cuModuleGetFunction(
            ctypes.byref(function), module, metadata.name.encode()
        )
        check(code, f"kernel {metadata.name}")
        if metadata.shared > _STATIC_SHARED:
            code = driver.cuFuncSetAttribute(
                function, _MAX_DYNAMIC_SHARED, metadata.shared
            )
            check(code, f"{metadata.shared} bytes of shared memory for {metadata.name}")
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(popped))
    if function.value is None or _sizes_of(function.value) not in (
        None,
        parameters.sizes,
    ):
        return None
    num_threads = _WARP * metadata.num_warps
    return Entry(
        metadata.name, device, function.value, num_threads, metadata.shared, parameters
    )


def parameters_of(compiled: Any) -> Parameters | None:
    """The parameters of a compiled kernel; None where it is not as this module expects
    it.
    """
    try:
        metadata = compiled.metadata
        special = metadata.launch_cooperative_grid, metadata.launch_pdl
        scratch = metadata.global_scratch_size, metadata.profile_scratch_size
        if any(special) or any(scratch) or metadata.num_ctas != 1:
            return None
        types = tuple(argument_types(tuple(compiled.src.signature.values())))
        num_maps = sum(
            kind is not None and kind.startswith("tensordesc") for kind in types
        )
        # Without metadata of maps the compiler made addresses of them.
        if num_maps != len(map_forms_of(compiled)):
            return None
        return Parameters.of(types)
    except (AttributeError, KeyError, TypeError):
        return None


def _sizes_of(function: int) -> tuple[int, ...] | None:
    """Bytes of each parameter of a loaded kernel; None where the driver cannot tell."""
    ask = getattr(driver_library(), "cuFuncGetParamInfo", None)
    if ask is None:
        return None
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    sizes: list[int] = []
    while ask(function, len(sizes), ctypes.byref(offset), ctypes.byref(size)) == 0:
        sizes.append(size.value)
    return tuple(sizes)


def sizes_in_ptx(ptx: str) -> tuple[int, ...]:
    """Bytes of each parameter of the kernel in a text of PTX: what the driver reads,
    known without a GPU.
    """
    head = re.search(r"\.entry[^(]*\(([^)]*)\)", ptx)
    if head is None:
        raise ValueError("no kernel in this text")
    sizes = []
    for line in re.findall(r"\.param[^,]*", head.group(1)):
        count = re.search(r"\[(\d+)\]", line)
        bits = re.search(r"\.[busf](\d+)\b", line)
        if bits is None:
            raise ValueError(f"parameter without a type: {line}")
        sizes.append(int(bits.group(1)) // 8 * (int(count.group(1)) if count else 1))
    return tuple(sizes)


class MapForm(NamedTuple):
    """How a compiled kernel wants a tensor map: the block that is moved at a time, and
    its swizzle in shared memory.
    """

    block: tuple[int, ...]
    swizzle: int


def map_forms_of(compiled: Any) -> list[MapForm]:
    """The forms of the tensor maps of a compiled kernel, in the order of its
    arguments.
    """
    forms = []
    for metadata in compiled.metadata.tensordesc_meta or ():
        forms.append(MapForm(tuple(metadata["block_size"]), metadata["swizzle"]))
    return forms


def tensor_map_bytes(
    address: int,
    dtype: torch.dtype,
    shape: tuple[int, int],
    pitch: int,
    form: MapForm,
    device: int,
) -> bytes:
    """What a kernel reads for a matrix in device memory that TMA moves: the encoded
    map, its shape and strides.

    Rows are `pitch` elements apart. Reads beyond the matrix give zeros. Raises
    DriverError: the driver cannot encode it, as for an address or a pitch that is no
    multiple of 16 bytes.
    """
    memory = (ctypes.c_char * (_MAP_BYTES + _MAP_ALIGNMENT))()
    start = -ctypes.addressof(memory) % _MAP_ALIGNMENT
    rows, columns = shape
    # The driver counts axes from the innermost one, and the strides of all others in
    # bytes.
    sizes = (ctypes.c_uint64 * 2)(columns, rows)
    strides = (ctypes.c_uint64 * 1)(pitch * dtype.itemsize)
    box = (ctypes.c_uint32 * 2)(*reversed(form.block))
    steps = (ctypes.c_uint32 * 2)(1, 1)
    encode = driver_library().cuTensorMapEncodeTiled
    target = ctypes.addressof(memory) + start
    arguments = (
        target,
        _MAP_TYPES[dtype],
        2,
        address,
        sizes,
        strides,
        box,
        steps,
        0,
        form.swizzle,
        _PROMOTION_128B,
        0,
    )
    code = encode(*arguments)
    if code == _INVALID_CONTEXT:
        _make_current(device)
        code = encode(*arguments)
    check(
        code,
        f"tensor map of {shape} {dtype} at {address:#x}, rows {pitch} apart, in {form}",
    )
    return memory.raw[start : start + _MAP_BYTES] + _MAP_TAIL.pack(
        rows, columns, pitch, 1
    )
