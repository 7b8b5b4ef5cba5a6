"""The cuBLAS of this process."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


@cache
def cublas() -> Any:
    """The library that torch has loaded, if it can emulate FP64 (from 13.0 update 2
    on); None otherwise.

    A newer one takes its place for torch too when LD_PRELOAD names libcublasLt and
    libcublas.
    """
    for name in ("libcublas.so.14", "libcublas.so.13"):
        library = shared_library(name)
        if hasattr(library, "cublasSetFixedPointEmulationMaxMantissaBitCount"):
            return library
    return None


def shared_library(name: str) -> Any:
    """The shared library that the dynamic linker finds by this name, or None."""
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def version_of_cublas() -> str | None:
    """The version of `cublas`, as 13.10.0; None without it."""
    library = cublas()
    if library is None:
        return None
    numbers = []
    for part in range(3):
        number = ctypes.c_int()
        library.cublasGetProperty(part, ctypes.byref(number))
        numbers.append(str(number.value))
    return ".".join(numbers)
