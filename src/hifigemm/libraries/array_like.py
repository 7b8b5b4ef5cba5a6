"""Arrays of what NumPy reads without a loss.

What would be rounded, or would lose a mask, a unit or labels, raises an error.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from hifigemm.numerics.bits import Array

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
"""Stands for a dtype that NumPy does not have. Arrays on a device can have it, and be
converted to float32; on the host those that receive results, and results.
"""

_NUMBERS = frozenset((bool, float, complex))
_FLAT = (str, bytes, bytearray, memoryview, range)
"""Sequences without sequences in them."""
_OF_MATRICES = "flint.", "mpmath."
"""Packages whose matrices have a method `tolist`."""
_HOOKS = (
    "__array_finalize__",
    "__array_function__",
    "__array_ufunc__",
    "__array_wrap__",
)
"""Methods by which a subclass of ndarray keeps more than numbers with its arrays."""
_LOSSES = {
    "astropy": ("the unit", "its .value, and multiply the units yourself"),
    "pandas": ("the labels of rows and columns", "its .to_numpy()"),
    "pint": ("the unit", "its .magnitude, and multiply the units yourself"),
    "unyt": ("the unit", "its .value, and multiply the units yourself"),
    "xarray": ("the names and coordinates of its axes", "its .to_numpy()"),
}
"""What arrays of a package have beyond their numbers, and what to pass instead."""


def as_array(x: object, name: str) -> Array:
    """x as a plain array of NumPy, sharing its memory where there is any; bfloat16 of
    ml_dtypes in float32.

    An array of foreign byte order becomes one of the machine's, so that a dtype is
    equal to its namesake from here on; `out` alone is written to as it is.

    Raises TypeError: classes of arrays that are more than their numbers, arrays of
    other libraries in a list, what NumPy cannot read. ValueError: ragged lists, and
    integers of a list that would be rounded because other entries are no integers.
    """
    array = x if type(x) is np.ndarray else _converted(x, name)
    if array.dtype.kind == "V" and array.dtype.name == "bfloat16":
        if name == "out":
            # It is written to in place.
            return array.view(BFLOAT16)
        with np.errstate(all="ignore"):
            return array.astype(np.float32)
    if not array.dtype.isnative and name != "out":
        return array.astype(array.dtype.newbyteorder("="))
    return array


def holds_python_integers(x: object) -> bool:
    """True for an integer of Python and for sequences with one in them, at any depth.

    NumPy makes an array of them whose products wrap around, as theirs never do.
    """
    from array import array as c_array

    entries = [x]
    while entries:
        y = entries.pop()
        if isinstance(y, bool | c_array):
            # Arrays of C have the integers of a dtype.
            continue
        if isinstance(y, int | range):
            return True
        if isinstance(y, Sequence) and not isinstance(y, _FLAT):
            entries.extend(y)
    return False


def shown(x: object) -> str:
    """A short text of x for a message."""
    try:
        return reprlib.repr(x)
    except Exception:  # a whole number of more digits than Python prints, say
        return "what cannot be shown"


def kind_of(x: object) -> str:
    """The class of x with its module, for a message."""
    kind = type(x)
    if kind.__module__ == "builtins":
        return kind.__name__
    return f"{kind.__module__}.{kind.__name__}"


def _converted(x: object, name: str) -> Array:
    """The array that NumPy makes of x; errors as of `as_array`."""
    if hasattr(x, "tolist") and type(x).__module__.startswith(_OF_MATRICES):
        return _of_matrix(x)
    inexact, integers = _check_entries(x, name)
    try:
        array = np.asarray(x, object if integers is Integral else None)
        if integers is int and array.dtype.kind == "f":
            # NumPy makes float64 of 2**63 beside 1.
            array = np.asarray(x, object)
    except ValueError as error:
        raise ValueError(
            f"{name} is a {kind_of(x)} that cannot be converted to an array: {error}"
        ) from error
    except MemoryError:
        raise
    except Exception as error:
        raise TypeError(
            f"{name} is a {kind_of(x)}, which NumPy does not read: {error}"
        ) from error
    if inexact is not None and array.dtype.kind in "fc":
        raise ValueError(
            f"{name} holds the integer {inexact}, which would be rounded to {array.dtype}"
        )
    return array


def _of_matrix(x: Any) -> Array:
    """An array of the entries of a matrix, of which NumPy makes a vector."""
    rows, cols = (x.nrows(), x.ncols()) if hasattr(x, "nrows") else (x.rows, x.cols)
    return np.array(x.tolist(), object).reshape(rows, cols)


def _check_entries(x: object, name: str) -> tuple[int | None, type | None]:
    """An integer that float64 does not hold, None without one; and the class of the
    integers: `int` if all entries are those of Python, `Integral` if some are of
    another class that is not NumPy's, which NumPy would round.

    Raises TypeError: an object, at any depth of a sequence, that would lose something.
    """
    inexact = None
    has_python_integers = False
    has_other_integers = False
    has_other_entries = False
    seen = set()
    entries = [x]
    while entries:
        y = entries.pop()
        if type(y) is int:
            has_python_integers = True
            if not _is_exact(y):
                inexact = y
            continue
        if isinstance(y, Sequence) and not isinstance(y, _FLAT):
            if id(y) not in seen:
                seen.add(id(y))
                entries.extend(y)
            continue
        has_other_entries = True
        if type(y) in _NUMBERS:
            continue
        if isinstance(y, Integral):
            if not _is_exact(int(y)):
                inexact = int(y)
            has_other_integers |= not isinstance(y, int | np.integer)
        elif not isinstance(y, np.generic):
            _check_class(y, name, "is" if y is x else "holds")
            if y is not x and isinstance(y, np.ndarray) and y.dtype.kind in "iu":
                entries.extend(y.ravel().tolist())
    if has_other_integers:
        return inexact, Integral
    return inexact, int if has_python_integers and not has_other_entries else None


def _is_exact(value: int) -> bool:
    """True if float64 holds an integer."""
    return abs(value) <= 2**53 or (abs(value) < 2**64 and int(float(value)) == value)


def _check_class(x: object, name: str, verb: str) -> None:
    """Raise TypeError for what would lose more than its class as an array."""
    kind = type(x)
    what = f"{name} {verb} a {kind_of(x)}"
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{name} {verb} a masked array, whose mask would be lost; pass its .filled(0), "
            "or its .data if no entry is masked"
        )
    package = kind.__module__.partition(".")[0]
    if package in _LOSSES:
        loss, remedy = _LOSSES[package]
        raise TypeError(f"{what}, and {loss} would be lost; pass {remedy}")
    if isinstance(x, np.matrix):
        raise TypeError(
            f"{what}, whose class would be lost, for which * is a product of matrices; "
            "pass np.asarray of it"
        )
    if isinstance(x, np.ndarray):
        has_hook = any(
            getattr(kind, hook) is not getattr(np.ndarray, hook) for hook in _HOOKS
        )
        if has_hook and kind is not np.memmap:
            raise TypeError(
                f"{what}, and what its class adds to the numbers would be lost; pass np.asarray of it"
            )
    elif hasattr(kind, "__dlpack__"):
        raise TypeError(
            f"{what}; arrays of other libraries are not taken out of a sequence, stack them first"
        )
    elif hasattr(kind, "toarray"):
        raise TypeError(f"{what}, which is not dense; pass .toarray() of it")
    elif hasattr(kind, "__array_ufunc__"):
        raise TypeError(
            f"{what}, which has products of its own, with labels or units; pass np.asarray of it"
        )
