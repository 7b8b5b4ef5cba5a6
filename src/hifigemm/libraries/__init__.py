"""The libraries of operands: NumPy, PyTorch, CuPy and JAX. The result is an array of the
same one.

Behind the door everything is an array with NumPy's interface. A CPU tensor or JAX array
becomes the NumPy array of its memory, a CUDA tensor an `engines.device_array`, which
carries NumPy's operations out on the device, an array of CuPy or JAX on a GPU the
tensor of its memory. Nothing is copied between devices or libraries.

Each library has a module with a class of its own, in which the methods of `Library`
have the same names.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from hifigemm.base.transforms import belongs_to_jax
from hifigemm.libraries.array_like import BFLOAT16, kind_of
from hifigemm.libraries.library import AnyArray, Library
from hifigemm.libraries.numpy_arrays import NUMPY, NumpyLibrary
from hifigemm.libraries.torch_tensors import TorchLibrary, library_of_tensor

__all__ = [
    "BFLOAT16",
    "NUMPY",
    "AnyArray",
    "Library",
    "NumpyLibrary",
    "TorchLibrary",
    "library_of",
]


def library_of(*operands: tuple[str, object]) -> Library:
    """The library and device that all the named operands have in common; None and what
    NumPy converts do not count.

    Raises TypeError, ValueError: operands of different libraries or devices.
    """
    by_name: dict[str, Library] = {}
    for name, x in operands:
        if x is None:
            continue
        library = _library(x, name)
        if library is not None:
            by_name[name] = library
    libraries = list(by_name.values())
    if not libraries:
        return NUMPY
    first = libraries[0]
    if all([x is first or x == first for x in libraries]):  # noqa: C419 torch.compile
        return first
    places = ", ".join(f"{name} is of {x}" for name, x in by_name.items())
    error = TypeError if len({x.name for x in libraries}) > 1 else ValueError
    raise error(
        f"operands of different libraries or devices: {places}; move one of them, the library copies nothing"
    )


def _library(x: Any, name: str) -> Library | None:
    """The library of an array or a prepared operand; None for what is no array but may
    become one, such as a list.
    """
    # torch.compile does not trace `np.ndarray | np.generic`.
    if isinstance(x, (np.ndarray, np.generic)):
        return NUMPY
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return library_of_tensor(x, name)
    if belongs_to_jax(x):
        from hifigemm.libraries.jax_arrays import library_of_jax

        return library_of_jax(x, name)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        from hifigemm.libraries.cupy_arrays import library_of_cupy

        return library_of_cupy(x, name)
    if hasattr(x, "__dlpack__"):
        raise TypeError(
            f"{name} is a {kind_of(x)}: expected an array of NumPy, CuPy or JAX, or a tensor of PyTorch; convert it "
            "with from_dlpack"
        )
    # Prepared operands know their library.
    library = getattr(x, "library", None)
    return library if isinstance(library, Library) else None
