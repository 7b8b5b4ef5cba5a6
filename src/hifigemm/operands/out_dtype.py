"""The dtype that a caller asks for, and the last rounding to it.

For a wider dtype the operands are converted, so the product has it already. To a narrower
one the entries of the product are rounded. BFLOAT16 stands for bfloat16, which NumPy
does not have.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from hifigemm.base.formats import BF16, FP16, FP32, Format
from hifigemm.engines.arrays import is_on_host
from hifigemm.libraries import BFLOAT16
from hifigemm.libraries.torch_tensors import as_bfloat16
from hifigemm.numerics.bits import Array, DType
from hifigemm.numerics.rounding_formats import odd_in_float32, round_to_format
from hifigemm.operands.operands import name_of_dtype, result_dtype

_NAMES = "float16", "bfloat16", "float32", "float64", "complex64", "complex128"
_FORMATS = {"float16": FP16, "bfloat16": BF16, "float32": FP32, "complex64": FP32}
"""The formats that a product is rounded to again."""


def as_out_dtype(x: Any) -> DType | None:
    """The dtype of NumPy behind an `out_dtype`: a name, or a dtype of a library.

    Raises TypeError: not a dtype that results may have.
    """
    if x is None:
        return None
    name = str(x).removeprefix("torch.")
    if name not in _NAMES:
        try:
            name = np.dtype(x).name
        except TypeError:
            name = ""
    if name not in _NAMES:
        raise TypeError(f"out_dtype={x!r}: expected {', '.join(_NAMES)}")
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def dtype_of_product(dtype: DType, out_dtype: DType | None) -> DType:
    """The dtype in which a product of this dtype is made for an `out_dtype`.

    Raises TypeError: a real `out_dtype` for a complex product, and any for integers.
    """
    if out_dtype is None:
        return dtype
    name = name_of_dtype(out_dtype)
    if dtype.kind in "biuO":
        raise TypeError(
            f"out_dtype={name}, and the product of integers is {dtype}, which is not "
            "rounded: convert an operand"
        )
    if dtype.kind == "c" and out_dtype.kind != "c":
        raise TypeError(f"out_dtype={name} is real, and the product is {dtype}")
    return result_dtype(dtype, out_dtype)


def format_of(out_dtype: DType) -> Format:
    """The format of an `out_dtype` that is narrower than a product."""
    return _FORMATS[name_of_dtype(out_dtype)]


def rounded_to(x: Array, out_dtype: DType) -> Array:
    """Entries of a product rounded once to a narrower dtype."""
    fmt = format_of(out_dtype)
    if fmt is FP32:
        with np.errstate(all="ignore"):
            return x.astype(out_dtype)
    if not is_on_host(x):
        # Conversions of a device round float32 once, in one reading
        if x.dtype == np.float64:
            x = odd_in_float32(x)
        return cast(Array, as_bfloat16(x)) if fmt is BF16 else x.astype(out_dtype)
    # Each number of 16 bits is one of float32.
    values = round_to_format(x, fmt)
    if fmt is BF16:
        return cast(Array, as_bfloat16(values))
    return values.astype(out_dtype)
