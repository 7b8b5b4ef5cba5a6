"""NumPy: operands are taken as they are."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from hifigemm.libraries.array_like import as_array
from hifigemm.libraries.library import Library
from hifigemm.numerics.bits import Array


class NumpyLibrary(Library):
    """NumPy, which converts what is no array, such as a list."""

    name: ClassVar[str] = "numpy"

    def owns(self, x: object) -> bool:
        """True for arrays and scalars of NumPy."""
        return isinstance(x, (np.ndarray, np.generic))

    # As in `Library`; what is no array is converted as NumPy does.
    asarray = staticmethod(as_array)

    def from_memory(self, x: Array) -> Any:
        """The array itself, a scalar for one without axes."""
        if x.dtype.kind == "V":
            x = as_ml_dtype(x)
        return x if x.ndim else x[()]

    def fill(self, x: Any, values: Array) -> None:
        """As in `Library`; the values are broadcast."""
        x[...] = self.from_memory(values)


def as_ml_dtype(x: Array) -> Any:
    """An array of `array_like.BFLOAT16` in the bfloat16 of ml_dtypes.

    Raises TypeError: ml_dtypes is not installed.
    """
    try:
        ml_dtypes = import_module("ml_dtypes")
    except ImportError as error:
        raise TypeError(
            "NumPy has no bfloat16 without ml_dtypes: pip install ml_dtypes"
        ) from error
    return x.view(ml_dtypes.bfloat16)


NUMPY = NumpyLibrary()
