"""Other packages that multiply more accurately than their units on a CUDA device, as
peers: cuBLAS's emulation of FP64, and GEMMul8.

Both are called as the functions of cuBLAS in a shared library. GEMMul8 has them in its
hook, `libgemmul8.so`, which is taken if the dynamic linker finds it: LD_LIBRARY_PATH
names its directory.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

from .arrays import Workload, cuda_is_usable
from .cublas import cublas, shared_library


class _Routines(NamedTuple):
    """What cuBLAS calls the products of a dtype."""

    letter: str
    scalar: Any  # the ctypes array of alpha and beta


_ROUTINES = {
    "float64": _Routines("D", ctypes.c_double * 1),
    "complex128": _Routines("Z", ctypes.c_double * 2),
    "float32": _Routines("S", ctypes.c_float * 1),
    "complex64": _Routines("C", ctypes.c_float * 2),
}
_DOUBLE = ("float64", "complex128")

_FP64_EMULATED_FIXEDPOINT_MATH = 8
_EAGER = 2
_DYNAMIC = 0
_FIXED = 1
_MANTISSA_BITS = 55
_MAX_DYNAMIC_BITS = 79
_BESIDE = 128 << 20
"""Bytes of workspace for anything else that a call of cuBLAS wants."""

_MODULI_OF_DOUBLE = 14, 15
_MODULI_OF_SINGLE = 7, 8
"""Numbers of moduli with which GEMMul8 errs about as much as a native product."""


@cache
def _gemmul8() -> Any:
    """The hook of GEMMul8, or None."""
    return shared_library("libgemmul8.so")


def _call(function: Any, *arguments: Any) -> None:
    status = function(*arguments)
    if status:
        raise RuntimeError(f"{function.__name__} returned status {status}")


class _Product:
    """The product of a library's BLAS for two operands and their result.

    Row-major C = A B is the column-major C^T = B^T A^T.
    """

    def __init__(self, library: Any, a: Any, b: Any, out: Any) -> None:
        self._tensors = b, a, out
        self._arguments: tuple[Any, ...]
        routines = _ROUTINES[str(a.dtype).removeprefix("torch.")]
        self.letter = routines.letter
        alpha = routines.scalar(1.0)
        beta = routines.scalar(0.0)
        m, k = a.shape[-2:]
        n = b.shape[-1]
        sizes = 0, 0, n, m, k
        left, right, result = (ctypes.c_void_p(x.data_ptr()) for x in self._tensors)
        if a.ndim == 2:
            self._function = getattr(library, f"cublas{self.letter}gemm_v2")
            self._arguments = *sizes, alpha, left, n, right, k, beta, result, n
            return
        name = f"cublas{self.letter}gemmStridedBatched"
        self._function = getattr(library, name)
        steps = [ctypes.c_longlong(x.stride(0)) for x in self._tensors]
        operands = alpha, left, n, steps[0], right, k, steps[1]
        self._arguments = *sizes, *operands, beta, result, n, steps[2], len(a)

    def __call__(self, handle: Any) -> None:
        """Write the product on the stream of a handle."""
        _call(self._function, handle, *self._arguments)


def _set_stream(handle: Any) -> None:
    """The current stream of torch."""
    import torch

    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    _call(cublas().cublasSetStream_v2, handle, stream)


def _new_handle() -> Any:
    handle = ctypes.c_void_p()
    _call(cublas().cublasCreate_v2, ctypes.byref(handle))
    return handle


@cache
def _emulating_handle(control: int) -> Any:
    """A handle that emulates with a fixed or a dynamic number of bits."""
    library = cublas()
    handle = _new_handle()
    _call(library.cublasSetMathMode, handle, _FP64_EMULATED_FIXEDPOINT_MATH)
    _call(library.cublasSetEmulationStrategy, handle, _EAGER)
    _call(library.cublasSetFixedPointEmulationMantissaControl, handle, control)
    if control == _FIXED:
        set_bits = library.cublasSetFixedPointEmulationMaxMantissaBitCount
        _call(set_bits, handle, _MANTISSA_BITS)
    return handle


def _prepare_cublas(control: int, a: Any, b: Any, out: Any) -> Callable[[], object]:
    """A product by cuBLAS's emulation, with a workspace that is large enough for it."""
    import torch

    handle = _emulating_handle(control)
    product = _Product(cublas(), a, b, out)
    m, k = a.shape[-2:]
    of_one = _workspace(m, b.shape[-1], k, a.is_complex(), control)
    size = math.prod(a.shape[:-2]) * of_one + _BESIDE
    workspace = torch.empty(size, dtype=torch.uint8, device=a.device)
    set_workspace = cublas().cublasSetWorkspace_v2
    space = ctypes.c_void_p(workspace.data_ptr()), ctypes.c_size_t(size)

    def run() -> None:
        _set_stream(handle)
        # Setting the stream resets the workspace to the library's own.
        _call(set_workspace, handle, *space)
        product(handle)

    return run


def _workspace(m: int, n: int, k: int, is_complex: bool, control: int) -> int:
    """Upper bound of what the emulation of one product wants, after the formula in
    cuBLAS's documentation.
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
    return int(1.25 * size)


@cache
def _plain_handle() -> Any:
    """The handle that GEMMul8 multiplies by."""
    return _new_handle()


def _prepare_gemmul8(
    num_moduli: int, is_fast: bool, a: Any, b: Any, out: Any
) -> Callable[[], object]:
    """A product by the hook, which reads its options of the environment in each call."""
    handle = _plain_handle()
    product = _Product(_gemmul8(), a, b, out)
    count = f"GEMMUL8_NUM_MOD_{product.letter}"
    mode = f"GEMMUL8_FASTMODE_{product.letter}"

    def run() -> None:
        _set_stream(handle)
        os.environ[count] = str(num_moduli)
        os.environ[mode] = str(int(is_fast))
        try:
            product(handle)
        finally:
            del os.environ[count], os.environ[mode]

    return run


def facts() -> list[tuple[str, Any, Any, Any]]:
    """The fields of a `Peer` for each of these packages."""
    fields = []
    controls = {"cublas-emulated": _FIXED, "cublas-emulated-dynamic": _DYNAMIC}
    for name, control in controls.items():
        prepare = partial(_prepare_cublas, control)
        fields.append((name, _cublas_is_usable, _cublas_supports, prepare))
    modes = {"fast": True, "accurate": False}
    for num_moduli in (*_MODULI_OF_SINGLE, *_MODULI_OF_DOUBLE):
        for mode, is_fast in modes.items():
            name = f"gemmul8-{num_moduli}-{mode}"
            supports = partial(_gemmul8_supports, num_moduli)
            prepare = partial(_prepare_gemmul8, num_moduli, is_fast)
            fields.append((name, _gemmul8_is_usable, supports, prepare))
    return fields


def _cublas_is_usable() -> bool:
    return cuda_is_usable() and cublas() is not None


def _cublas_supports(device: str, load: Workload) -> bool:
    return device.startswith("cuda") and load.dtype in _DOUBLE


def _gemmul8_is_usable() -> bool:
    return _cublas_is_usable() and _gemmul8() is not None


def _gemmul8_supports(num_moduli: int, device: str, load: Workload) -> bool:
    moduli = _MODULI_OF_DOUBLE if load.dtype in _DOUBLE else _MODULI_OF_SINGLE
    return device.startswith("cuda") and load.batch == 1 and num_moduli in moduli
