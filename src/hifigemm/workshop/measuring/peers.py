"""Other implementations that a benchmark sets beside hifigemm, where they are
installed.

A peer is a function that prepares a product of two operands into a given result.
cuBLAS's emulation of FP64 is here, packages for CPUs are in `cpu_peers`; others join as
entry points of the group "hifigemm.peers" that name a `Peer`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any

from . import cpu_peers
from .arrays import Workload, cuda_is_usable


@dataclass(frozen=True)
class Peer:
    """One way to a product."""

    name: str
    available: Callable[[], bool]  # on this machine
    supports: Callable[[str, Workload], bool]  # a workload on a device
    # takes a, b, out; what it returns writes A B into out
    prepare: Callable[[Any, Any, Any], Callable[[], object]]


def peers() -> dict[str, Peer]:
    """All peers by name, whether they can be used here or not."""
    others: list[Peer] = [
        point.load() for point in entry_points(group="hifigemm.peers")
    ]
    return {peer.name: peer for peer in (*others, *_PEERS)}


def available(device: str, load: Workload) -> list[Peer]:
    """The peers that can multiply this here."""
    usable = []
    for peer in peers().values():
        if peer.available() and peer.supports(device, load):
            usable.append(peer)
    return usable


_FP64_EMULATED_FIXEDPOINT_MATH = 8
_EAGER = 2
_DYNAMIC = 0
_FIXED = 1
_MANTISSA_BITS = 55
_MAX_DYNAMIC_BITS = 79
_ROUTINES = {
    "float64": ("cublasDgemm_v2", ctypes.c_double * 1),
    "complex128": ("cublasZgemm_v2", ctypes.c_double * 2),
}


@cache
def _cublas() -> Any:
    """The library that torch has loaded, if it can emulate FP64 (from 13.0 update 2
    on); None otherwise.

    A newer one takes its place for torch too when LD_PRELOAD names libcublasLt and
    libcublas.
    """
    for name in ("libcublas.so.14", "libcublas.so.13"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if hasattr(library, "cublasSetFixedPointEmulationMaxMantissaBitCount"):
            return library
    return None


def _cublas_is_usable() -> bool:
    return cuda_is_usable() and _cublas() is not None


def _cublas_supports(device: str, load: Workload) -> bool:
    return device.startswith("cuda") and load.batch == 1 and load.dtype in _ROUTINES


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_cublas(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} returned status {status}")


@cache
def _handle(control: int) -> Any:
    """A handle that emulates with a fixed or a dynamic number of bits."""
    handle = ctypes.c_void_p()
    _call("cublasCreate_v2", ctypes.byref(handle))
    _call("cublasSetMathMode", handle, _FP64_EMULATED_FIXEDPOINT_MATH)
    _call("cublasSetEmulationStrategy", handle, _EAGER)
    _call("cublasSetFixedPointEmulationMantissaControl", handle, control)
    if control == _FIXED:
        _call("cublasSetFixedPointEmulationMaxMantissaBitCount", handle, _MANTISSA_BITS)
    return handle


def _prepare_cublas(control: int, a: Any, b: Any, out: Any) -> Callable[[], object]:
    """A product by a handle of its own, with as much workspace as the emulation may
    want.

    Row-major C = A B is the column-major C^T = B^T A^T.
    """
    import torch

    m, k = a.shape
    n = b.shape[1]
    handle = _handle(control)
    size = _workspace(m, n, k, a.is_complex(), control)
    workspace = torch.empty(size, dtype=torch.uint8, device=a.device)
    routine, scalar = _ROUTINES[str(a.dtype).removeprefix("torch.")]
    one = scalar(1.0)
    zero = scalar(0.0)
    left, right, result = (ctypes.c_void_p(x.data_ptr()) for x in (b, a, out))
    space = ctypes.c_void_p(workspace.data_ptr())
    nbytes = ctypes.c_size_t(size)

    def run() -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _call("cublasSetStream_v2", handle, stream)
        # Setting the stream resets the workspace to the library's own.
        _call("cublasSetWorkspace_v2", handle, space, nbytes)
        _call(routine, handle, 0, 0, n, m, k, one, left, n, right, k, zero, result, n)

    return run


def _workspace(m: int, n: int, k: int, is_complex: bool, control: int) -> int:
    """Upper bound of what the emulation wants, after the formula in cuBLAS's
    documentation.
    """

    def round_up(x: int, unit: int) -> int:
        return -(-x // unit) * unit

    # Slices of eight bits of each row of A and column of B, with a scale.
    width = 2 if is_complex else 1
    bits = _MANTISSA_BITS if control == _FIXED else _MAX_DYNAMIC_BITS
    slices = -(-(bits + 1) // 8)
    vectors = round_up(m, 1024) + round_up(n, 1024)
    size = vectors * (round_up(k, 128) * width * slices + 4 * width)
    if is_complex:
        size += 8 * m * n * width * width
    if control == _DYNAMIC:
        blocks = -(-k // 64)
        size = max(size, 4 * (m * blocks + n * blocks + m * n) * width)
    return int(1.25 * size) + (128 << 20)


def _emulation(name: str, control: int) -> Peer:
    """cuBLAS with a fixed or a dynamic number of bits."""
    prepare = partial(_prepare_cublas, control)
    return Peer(name, _cublas_is_usable, _cublas_supports, prepare)


_PEERS = [
    _emulation("cublas-emulated", _FIXED),
    _emulation("cublas-emulated-dynamic", _DYNAMIC),
    *(Peer(*fields) for fields in cpu_peers.facts()),
]
