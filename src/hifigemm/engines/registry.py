"""Which engines can be used now."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

from hifigemm.engine import Engine
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.engines.simulated import UNITS, SimulatedEngine
from hifigemm.exceptions import PlanError


@lru_cache
def _has_torch() -> bool:
    return find_spec("torch") is not None


def available() -> list[str]:
    """Names of the engines that can be used now."""
    return [
        "numpy",
        *(f"simulated-{name}" for name in UNITS),
        *(["torch"] if _has_torch() else []),
    ]


@lru_cache
def engine_for(name: str | None, library: str = "numpy", device: str = "cpu") -> Engine:
    """The engine of that name for operands of a library on a device; None takes the one
    of the library.

    Raises PlanError: a name that cannot be used here, or not on that device.
    """
    if name is None:
        name = {"cupy": "torch", "jax": "numpy" if device == "cpu" else "torch"}.get(
            library, library
        )
    if name == "torch" and _has_torch():
        from hifigemm.engines.torch_engine import torch_engine

        return torch_engine(device)
    if name not in available():
        hint = "; tensors on a GPU need no engine" if name in ("cuda", "gpu") else ""
        raise PlanError(
            f"engine={name!r} cannot be used here; usable now: {', '.join(available())}{hint}"
        )
    if device != "cpu":
        raise PlanError(
            f"engine={name!r} multiplies on the CPU; the operands are on {device}"
        )
    return (
        NumpyEngine()
        if name == "numpy"
        else SimulatedEngine(UNITS[name.removeprefix("simulated-")])
    )
