"""The interface of an engine, and which engines can be used now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from hifigemm.exceptions import PlanError
from hifigemm.numerics.bits import Array
from hifigemm.plan import ProductSpec

__all__ = ["Engine", "available", "engine_for"]

F = TypeVar("F", bound=Callable[..., Any])


class Engine(Protocol):
    """A unit that multiplies matrices."""

    @property
    def name(self) -> str:
        """Name, as `engine_for` takes it."""

    @property
    def device(self) -> str:
        """Device on which the products are made."""

    @property
    def products(self) -> Mapping[str, ProductSpec]:
        """The exact products on offer, by name."""

    def exact_product(self, spec: ProductSpec, a: Array, b: Array, max_a: int, max_b: int) -> Array:
        """a @ b for integer matrices (batch, m, k), (batch, k, n) of magnitude at most max_a, max_b, without rounding.

        Raises
        ------
        InexactProductError
            Where k max_a max_b exceeds the accumulator: never rounds instead.
        """

    def native_product(self, a: Array, b: Array) -> Array:
        """a @ b as the library behind the engine computes it, in the dtype of the operands."""

    def override(self, function: F) -> F:
        """This engine's version of a function of numerics: same name, same bits; the function itself by default."""


def _registry() -> dict[str, Callable[[], Engine]]:
    from hifigemm.engines.numpy_engine import NumpyEngine

    return {"numpy": NumpyEngine}


def available() -> list[str]:
    """Names of the engines that can be used now."""
    return list(_registry())


def engine_for(name: str | None) -> Engine:
    """The engine of that name; None takes the one of NumPy operands."""
    registry = _registry()
    if name is not None and name not in registry:
        raise PlanError(f"engine={name!r} cannot be used here; usable now: {', '.join(registry)}")
    return registry[name or "numpy"]()
