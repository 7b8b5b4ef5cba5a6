"""Which engines can be used now."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hifigemm.engine import Engine
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.exceptions import PlanError

__all__ = ["available", "engine_for"]


_SIMULATED = ("v100", "a100", "h100", "b200", "ideal-nearest", "ideal-zero")


def _simulated(name: str) -> Engine:
    from hifigemm.engines.simulated import simulated_engine

    return simulated_engine(name)


def _registry() -> dict[str, Callable[[], Engine]]:
    return {"numpy": NumpyEngine} | {f"simulated-{name}": partial(_simulated, name) for name in _SIMULATED}


def available() -> list[str]:
    """Names of the engines that can be used now."""
    return list(_registry())


def engine_for(name: str | None) -> Engine:
    """The engine of that name; None takes the one of NumPy operands."""
    registry = _registry()
    if name is not None and name not in registry:
        raise PlanError(f"engine={name!r} cannot be used here; usable now: {', '.join(registry)}")
    return registry[name or "numpy"]()
