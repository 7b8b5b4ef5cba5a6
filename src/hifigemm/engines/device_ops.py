"""Tensors behind device arrays: dtypes, conversions, and a function of torch for each
universal function of NumPy in use.

Operands are tensors of the loop dtype that NumPy resolves, so torch promotes nothing by
itself. Each function rounds as NumPy's does: one IEEE operation for each entry, no
fused multiply-add, no libm but frexp, and hypot, which may differ in its last bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hifigemm.engines.library_product import library_matmul
from hifigemm.numerics.bits import DType

TORCH_DTYPES: dict[DType, Any] = {
    np.dtype(np.bool_): torch.bool,
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.int8): torch.int8,
    np.dtype(np.int16): torch.int16,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.uint64): torch.int64,
    np.dtype(np.float16): torch.float16,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.complex64): torch.complex64,
    np.dtype(np.complex128): torch.complex128,
}
"""Tensors behind arrays. Bits of uint64 are kept as int64, for which torch has shifts
on every device.
"""

_BOOL = np.dtype(np.bool_)
_FLOAT64 = np.dtype(np.float64)

NUMPY_DTYPES = {t: d for d, t in TORCH_DTYPES.items() if d != np.uint64}

HOST_LIMIT = 4096
"""Largest number of entries of a host array that is moved to the device: tables and
indices, never operands.
"""


def _right_shift_unsigned(x: Tensor, count: Tensor) -> Tensor:
    """x >> count with zeros moved in, which is 0 from 64 on."""
    count = torch.where((count < 0) | (count > 64), 64, count)
    shifted = torch.bitwise_right_shift(x, count)
    # torch moves in the sign of int64, and shifts left by 64 to 0.
    signs = torch.bitwise_left_shift(-1, 64 - count)
    return shifted & ~signs


def _sign(x: Tensor) -> Tensor:
    """-1, 0, 1 or NaN; torch.sign makes NaN 0."""
    return torch.where(torch.isnan(x), x, torch.sign(x))


def _sqrt(x: Tensor) -> Tensor:
    """The square root, rounded once. On the CPU that of torch, which is MKL's, is not."""
    if x.is_cuda:
        return torch.sqrt(x)
    return torch.from_numpy(np.asarray(np.sqrt(x.numpy())))


def _ldexp(x: Tensor, exponents: Tensor) -> Tensor:
    """x 2**exponents in float64, rounded once; torch.ldexp overflows on its way."""
    mantissa, exponent = torch.frexp(x)
    # From +-1200 on every mantissa has overflowed or vanished
    total = (exponent + exponents.clamp(-5000, 5000)).clamp(-1200, 1200)
    half = total >> 1
    return mantissa * _power_of_two(half) * _power_of_two(total - half)


def _power_of_two(exponents: Tensor) -> Tensor:
    """2.0**exponents from -1022 to 1023."""
    return ((exponents.to(torch.int64) + 1023) << 52).view(torch.float64)


def _matmul(x: Tensor, y: Tensor) -> Tensor:
    """The product, of FP32 matrices in FP64, which keeps TF32 out whatever torch is set
    to.
    """
    return library_matmul(x.to(torch.float64), y.to(torch.float64)).to(x.dtype)


_SAME = (
    "absolute",
    "add",
    "bitwise_and",
    "bitwise_or",
    "ceil",
    "copysign",
    "divide",
    "floor",
    "frexp",
    "greater",
    "greater_equal",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "logical_not",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "nextafter",
    "not_equal",
    "square",
    "subtract",
    "trunc",
)
"""Functions of the same name in both."""
_FUNCTIONS: dict[np.ufunc, Callable[..., Any]] = {
    getattr(np, name): getattr(torch, name) for name in _SAME
} | {
    np.equal: torch.eq,
    np.floor_divide: partial(torch.div, rounding_mode="floor"),
    np.invert: torch.bitwise_not,
    np.hypot: torch.hypot,
    np.ldexp: _ldexp,
    np.left_shift: torch.bitwise_left_shift,
    np.matmul: _matmul,
    np.right_shift: torch.bitwise_right_shift,
    np.rint: torch.round,
    np.sign: _sign,
    np.sqrt: _sqrt,
}

_UNSIGNED: dict[np.ufunc, Callable[..., Any]] = {
    np.bitwise_and: torch.bitwise_and,
    np.bitwise_or: torch.bitwise_or,
    np.left_shift: torch.bitwise_left_shift,
    np.not_equal: torch.not_equal,
    np.right_shift: _right_shift_unsigned,
    np.subtract: torch.subtract,
}
"""Functions of uint64 kept as int64."""

NEEDS_DEVICE_SCALARS = frozenset(
    {np.divide, np.hypot, np.ldexp, np.matmul, np.nextafter}
)
"""Functions whose scalars go to the device. torch.divide would multiply by the
reciprocal of a scalar of the host; the others take none.
"""


@lru_cache(maxsize=1024)
def function_and_dtypes(
    ufunc: np.ufunc, dtypes: tuple[Any, ...]
) -> tuple[Callable[..., Any] | None, tuple[DType, ...]]:
    """The function of torch, None where there is none, and the dtypes in which NumPy
    computes: for the inputs, then for the outputs.

    `dtypes` holds a dtype for each array, a type (int, float, complex) for each Python
    scalar, which is weak, and None for each output that is not given. TypeError where
    the result does not go into an output of the same kind.
    """
    in_loop = ufunc.resolve_dtypes(dtypes)
    return torch_function(ufunc, in_loop[: ufunc.nin]), in_loop


def torch_function(
    ufunc: np.ufunc, dtypes: tuple[DType, ...]
) -> Callable[..., Any] | None:
    """The function for inputs of these dtypes; None where there is none."""
    functions = _UNSIGNED if np.dtype(np.uint64) in dtypes else _FUNCTIONS
    return functions.get(ufunc)


def kind_of(x: Any) -> Any:
    """The dtype of an array, or the type of a Python scalar, which promotes by its kind
    alone.
    """
    dtype = getattr(x, "dtype", None)
    if dtype is not None:
        return dtype
    return _BOOL if isinstance(x, bool) else type(x)


def as_number(x: Any, dtype: DType) -> Any:
    """A number of the host as torch takes it, rounded to the dtype; OverflowError for a
    Python integer beyond it.
    """
    value = np.asarray(x, dtype)
    if dtype == np.uint64:
        value = value.view(np.int64)
    return value.item()


def as_tensor(
    x: Any, dtype: DType, device: Any, *, host_scalars: bool = False
) -> Tensor:
    """A device array, a number or a small host array as a tensor on the device.

    With `host_scalars`, numbers stay on the host, from where torch passes them to a
    kernel by value.
    """
    tensor = getattr(x, "tensor", None)
    if tensor is not None:
        return tensor if x.dtype is dtype else x.astype(dtype, copy=False).tensor
    if host_scalars and type(x) is float and dtype is _FLOAT64:
        return torch.scalar_tensor(x, dtype=torch.float64)
    if np.ndim(x) == 0:
        if host_scalars:
            return torch.scalar_tensor(as_number(x, dtype), dtype=TORCH_DTYPES[dtype])
        return torch.full(
            (), as_number(x, dtype), dtype=TORCH_DTYPES[dtype], device=device
        )
    if x.size > HOST_LIMIT:
        raise TypeError(
            f"a host array of shape {x.shape} meets one on {device}: more than {HOST_LIMIT} entries are not copied "
            "implicitly; create it there with like="
        )
    x = x.astype(dtype, order="C")
    if dtype == np.uint64:
        x = x.view(np.int64)
    tensor = torch.tensor(x, dtype=TORCH_DTYPES[dtype])
    # The call returns after it has read pageable memory.
    return tensor.to(device, non_blocking=True)
