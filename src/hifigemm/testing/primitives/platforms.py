"""Libraries and devices on which primitives are tried, and the findings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hifigemm.numerics.bits import Array

COUNT = 150
_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, COUNT)
"""Around the lengths of SIMD registers, so that tails of all lengths occur."""


@dataclass(frozen=True)
class Finding:
    """The check of a primitive, and its first fault.

    Attributes
    ----------
    name, library : str
        The primitive, and its library.
    cases : int
        The number of entries compared.
    fault : str
        The first wrong entry, or "".
    used : bool
        True if the package uses the primitive in this way.
    """

    name: str
    library: str
    cases: int
    fault: str = ""
    used: bool = True

    def __str__(self) -> str:
        state = f"AT FAULT: {self.fault}" if self.fault else "ok"
        name = self.name if self.used else f"not used: {self.name}"
        entries = f"{self.cases:>7} entries"
        return f"{name:<40} {self.library:<28} {entries}  {state}"


@dataclass(frozen=True)
class Platform:
    """Where arrays lie: how they get there and back, and the strides and sizes that are
    tried.
    """

    library: str
    put: Callable[[Array], Any] = np.asarray
    fetch: Callable[[Any], Array] = np.asarray
    strides: tuple[int, ...] = (*range(-9, 0), *range(1, 17))
    sizes: tuple[int, ...] = _SIZES

    def spread(self, x: Array, stride: int) -> Any:
        """x with so many entries from one to the next along the last axis."""
        *outer, length = x.shape
        memory = np.zeros((*outer, length * abs(stride)), x.dtype)
        memory[..., ::stride] = x
        return self.put(memory)[..., ::stride]


def on_device(device: str) -> Platform:
    """A device of PyTorch; its arrays have no negative strides, and a launch for each
    case takes its time.
    """
    import torch

    from hifigemm.engines.device_array import unwrap, wrap

    def put(x: Array) -> Any:
        # PyTorch has few functions of uint64: its bits are kept as int64.
        host = x.view(np.int64) if x.dtype == np.uint64 else x
        return wrap(torch.from_numpy(host).to(device)).view(x.dtype)

    def fetch(x: Any) -> Array:
        host: Array = unwrap(x).cpu().numpy()
        return host.view(x.dtype)

    return Platform(
        f"PyTorch {torch.__version__} {device}",
        put,
        fetch,
        tuple(range(1, 17)),
        (1, 33, COUNT),
    )


def first_fault(results: Array, truth: list[Any]) -> str:
    """The position at which an array first differs from Python's numbers in value or
    sign, or ""; read without NumPy's functions.
    """
    values = results.tolist()
    if values == truth and _has_bits_of(results, truth):
        return ""
    for i, (x, y) in enumerate(zip(values, truth)):
        if x != y or math.copysign(1, x) != math.copysign(1, y):
            return f"entry {i} is {x!r}, not {y!r}"
    return ""


def _has_bits_of(results: Array, truth: list[Any]) -> bool:
    """True for integers, and for floats with the same bits, -0 and +0 being equal
    values.
    """
    if results.dtype.kind != "f":
        return True
    return results.tobytes() == np.array(truth, results.dtype).tobytes()
