"""Calls of the BLAS by ctypes, under each of its names."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

DTYPES = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
REALS = {"s": np.float32, "d": np.float64, "c": np.float32, "z": np.float64}

# Letters: a flag, a size, *a scalar, %a real scalar, and a matrix or a vector.
ROUTINES = {
    "gemm": ("sdcz", "transa transb m n k *alpha A lda B ldb *beta C ldc"),
    "gemmt": ("sdcz", "uplo transa transb n k *alpha A lda B ldb *beta C ldc"),
    "symm": ("sdcz", "side uplo m n *alpha A lda B ldb *beta C ldc"),
    "hemm": ("cz", "side uplo m n *alpha A lda B ldb *beta C ldc"),
    "syrk": ("sdcz", "uplo trans n k *alpha A lda *beta C ldc"),
    "herk": ("cz", "uplo trans n k %alpha A lda %beta C ldc"),
    "syr2k": ("sdcz", "uplo trans n k *alpha A lda B ldb *beta C ldc"),
    "her2k": ("cz", "uplo trans n k *alpha A lda B ldb %beta C ldc"),
    "trmm": ("sdcz", "side uplo transa diag m n *alpha A lda B ldb"),
    "gemv": ("sdcz", "trans m n *alpha A lda X incx *beta Y incy"),
    "symv": ("sdcz", "uplo n *alpha A lda X incx *beta Y incy"),
    "hemv": ("cz", "uplo n *alpha A lda X incx *beta Y incy"),
    "trmv": ("sdcz", "uplo trans diag n A lda X incx"),
    "ger": ("sd", "m n *alpha X incx Y incy A lda"),
    "geru": ("cz", "m n *alpha X incx Y incy A lda"),
    "gerc": ("cz", "m n *alpha X incx Y incy A lda"),
}
"""Types and arguments of the routines that return nothing, in Fortran's order."""

REDUCTIONS = {
    **{f"{p}dot": p for p in "sd"},
    **{f"{p}dot{u}": p for p in "cz" for u in "uc"},
    "dsdot": "s",
    "sdsdot": "s",
    **{"sasum": "s", "dasum": "d", "scasum": "c", "dzasum": "z"},
    **{"snrm2": "s", "dnrm2": "d", "scnrm2": "c", "dznrm2": "z"},
    **{f"i{p}amax": p for p in "sdcz"},
}
"""Types of the vectors of the functions that return a number."""

ONLY_IN_FORTRAN = ("csymv", "zsymv")
"""Names of LAPACK, which CBLAS does not have."""

COMPLEX_DOTS = ("cdotu", "cdotc", "zdotu", "zdotc")
"""Functions of which Fortran's plain names are not exported: compilers do not agree on
where their result is.
"""

_FLAGS = {"N": 111, "T": 112, "C": 113}
_TRIANGLES = {"U": 121, "L": 122}
_DIAGONALS = {"N": 131, "U": 132}
_SIDES = {"L": 141, "R": 142}


class Interface(NamedTuple):
    """A family of names."""

    is_c: bool
    bits: int
    is_of_wheels: bool

    def symbol(self, name: str) -> str:
        """The name of a routine in the library."""
        prefix = "scipy_" if self.is_of_wheels else ""
        if self.is_c:
            return f"{prefix}cblas_{name}{'64_' if self.bits == 64 else ''}"
        return f"{prefix}{name}{'_64_' if self.bits == 64 else '_'}"

    def integer(self, value: int) -> Any:
        """An integer as it is passed."""
        kind = ctypes.c_int64 if self.bits == 64 else ctypes.c_int32
        return kind(value) if self.is_c else ctypes.byref(kind(value))


INTERFACES = [
    Interface(is_c, bits, is_of_wheels)
    for is_c in (False, True)
    for bits in (32, 64)
    for is_of_wheels in (False, True)
]


def is_exported(interface: Interface, name: str) -> bool:
    """True if a function has a name in an interface."""
    is_plain = not (interface.is_c or interface.is_of_wheels or interface.bits == 64)
    return not (is_plain and name in COMPLEX_DOTS)


def names(interface: Interface) -> list[str]:
    """All symbols of an interface."""
    routines = [p + name for name, (types, _) in ROUTINES.items() for p in types]
    if interface.is_c:
        routines = [name for name in routines if name not in ONLY_IN_FORTRAN]
    reductions = [
        f"{name}_sub" if interface.is_c and name in COMPLEX_DOTS else name
        for name in REDUCTIONS
        if is_exported(interface, name)
    ]
    return [interface.symbol(name) for name in routines + reductions]


def call(
    library: ctypes.CDLL,
    interface: Interface,
    p: str,
    name: str,
    order: str,
    arguments: dict[str, Any],
) -> None:
    """Call a routine that returns nothing; matrices come as arrays that begin at their
    first entry.
    """
    passed: list[Any] = []
    if interface.is_c:
        passed.append(101 if order == "rows" else 102)
    for argument in ROUTINES[name][1].split():
        key = argument.lstrip("*%")
        value = arguments[key]
        if argument[0] in "*%":
            dtype = REALS[p] if argument[0] == "%" else DTYPES[p]
            passed.append(_scalar(interface, value, dtype))
        elif isinstance(value, str):
            passed.append(_flag(interface, key, value))
        elif isinstance(value, np.ndarray):
            passed.append(ctypes.c_void_p(value.ctypes.data))
        else:
            passed.append(interface.integer(value))
    function = getattr(library, interface.symbol(p + name))
    function.restype = None
    function(*passed)


def _scalar(interface: Interface, value: complex, dtype: Any) -> Any:
    if interface.is_c and dtype in (np.float32, np.float64):
        kind = ctypes.c_float if dtype is np.float32 else ctypes.c_double
        return kind(value.real)
    array = np.array([value if np.dtype(dtype).kind == "c" else value.real], dtype)
    pointer = ctypes.c_void_p(array.ctypes.data)
    pointer.array = array  # type: ignore[attr-defined]
    return pointer


def _flag(interface: Interface, key: str, value: str) -> Any:
    if not interface.is_c:
        return ctypes.c_char_p(value.encode())
    flags = {"uplo": _TRIANGLES, "diag": _DIAGONALS, "side": _SIDES}.get(key, _FLAGS)
    return ctypes.c_int(flags[value])


class _SingleComplex(ctypes.Structure):
    _fields_ = [("re", ctypes.c_float), ("im", ctypes.c_float)]


class _DoubleComplex(ctypes.Structure):
    _fields_ = [("re", ctypes.c_double), ("im", ctypes.c_double)]


def reduce(
    library: ctypes.CDLL,
    interface: Interface,
    name: str,
    n: int,
    vectors: list[tuple[np.ndarray, int]],
    addend: float = 0.0,
) -> Any:
    """The number that a function returns; vectors come as an array that begins at the
    first entry in memory, and an increment.
    """
    passed: list[Any] = [interface.integer(n)]
    if name == "sdsdot":
        passed.append(_scalar(interface, addend, np.float32))
    for array, increment in vectors:
        passed.append(ctypes.c_void_p(array.ctypes.data))
        passed.append(interface.integer(increment))
    is_complex = name in COMPLEX_DOTS
    kind = _DoubleComplex if name[0] == "z" else _SingleComplex
    if is_complex and interface.is_c:
        result = kind()
        getattr(library, interface.symbol(f"{name}_sub"))(*passed, ctypes.byref(result))
        return DTYPES[name[0]](complex(result.re, result.im))
    function = getattr(library, interface.symbol(name))
    if is_complex:
        function.restype = kind
        result = function(*passed)
        return DTYPES[name[0]](complex(result.re, result.im))
    if name.endswith("amax"):
        integer = ctypes.c_int64 if interface.bits == 64 else ctypes.c_int32
        function.restype = ctypes.c_size_t if interface.is_c else integer
        return function(*passed)
    is_single = name[0] == "s"
    function.restype = ctypes.c_float if is_single else ctypes.c_double
    return (np.float32 if is_single else np.float64)(function(*passed))
