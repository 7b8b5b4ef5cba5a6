"""What every library of operands can do: `Library`, and what its classes share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, Protocol

from hifigemm.engines.arrays import memory_of
from hifigemm.numerics.bits import Array


class AnyArray(Protocol):
    """An array of NumPy, PyTorch, CuPy or JAX: what all of them have."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""

    @property
    def ndim(self) -> int:
        """Number of axes."""

    @property
    def dtype(self) -> Any:
        """The dtype, which is of another class in PyTorch."""

    @property
    def mT(self) -> AnyArray:
        """A view with the last two axes swapped."""

    def __getitem__(self, key: Any, /) -> AnyArray:
        """A view of some entries."""

    def reshape(self, shape: tuple[int, ...], /) -> AnyArray:
        """The same entries in another shape, a view where possible."""

    def diagonal(self, offset: int, axis1: int, axis2: int, /) -> AnyArray:
        """A view of the entries with equal indices on two axes."""

    def conj(self) -> AnyArray:
        """The array with its imaginary parts negated."""


@dataclass(frozen=True)
class Library(ABC):
    """An array library and a device of it."""

    name: ClassVar[str]  # "numpy", "torch", "cupy" or "jax"
    device: str = "cpu"  # or as PyTorch names it, such as "cuda:0"

    def __str__(self) -> str:
        return self.name if self.on_host else f"{self.name} on {self.device}"

    @property
    def on_host(self) -> bool:
        """True if arrays lie in the memory of the CPU."""
        return self.device == "cpu"

    def active(self) -> AbstractContextManager[object]:
        """A context in which kernels run on this device, in this library's order."""
        return nullcontext()

    @abstractmethod
    def owns(self, x: object) -> bool:
        """True if x is an array of this library on this device."""

    @abstractmethod
    def asarray(self, x: object, name: str) -> Array:
        """An array of this library with NumPy's interface, which shares its memory.

        Raises TypeError: arrays of others, dtypes that NumPy does not have, what
        `array_like.as_array` and `transforms.check_tensor` refuse.
        """

    def out_view(
        self, out: Any, stack: tuple[int, ...], *operands: Array
    ) -> Array | None:
        """`out` as a stack of this shape, to which kernels write directly.

        None on the host, where results are copied at the end; where the stack would be
        a copy; and where the memory of an operand overlaps that of `out`.
        """
        return None

    def note_change(self, x: Any) -> None:  # noqa: B027
        """Count the change of an array, where the library wants to know of it."""

    @abstractmethod
    def from_memory(self, x: Any) -> Any:
        """The array of this library of what an executable gives: an array of NumPy on a
        host, a tensor on a device. A product of vectors is a scalar in NumPy.
        """

    def to_native(self, x: Array) -> Any:
        """The array of this library behind an array with NumPy's interface."""
        return self.from_memory(memory_of(x))

    @abstractmethod
    def fill(self, x: Any, values: Any) -> None:
        """Copy what an executable gives to an array of this library."""

    def check_owned(self, x: object, name: str) -> None:
        """Raise TypeError where x is no array of this library on this device."""
        if not self.owns(x):
            raise TypeError(
                f"{name} is a {type(x).__name__}; expected an array of {self}"
            )


def check_torch(what: str) -> None:
    """Raise TypeError where PyTorch is missing, or knows no GPU."""
    what += ", which is multiplied as a tensor of PyTorch"
    if find_spec("torch") is None:
        raise TypeError(f"{what}: install torch")
    import torch

    if not torch.backends.cuda.is_built():
        raise TypeError(f"{what}, and torch {torch.__version__} was built without CUDA")
