"""Which engines can be used now."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

from hifigemm.base.exceptions import PlanError
from hifigemm.base.transforms import opaque
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.model.engine import Engine

_SIMULATED = "simulated-"
_ON_CPU = (
    "numpy",
    *(
        _SIMULATED + unit
        for unit in ("v100", "a100", "h100", "b200", "ideal-nearest", "ideal-zero")
    ),
)
"""Names of the engines that multiply arrays of NumPy on the CPU: the units are those of
`simulated.UNITS`, which is loaded when one of them is asked for.
"""
_OF_LIBRARY = {"cupy": "torch", "jax": "torch"}
"""Names of the engines of libraries for operands on a GPU; others bear the name of the
library.
"""


@lru_cache
def _has_torch() -> bool:
    return find_spec("torch") is not None


def available() -> list[str]:
    """Names of the engines that can be used now."""
    torch = ["torch"] if _has_torch() else []
    return [*_ON_CPU, *torch]


@opaque
def engines() -> list[str]:
    """Names of the engines that can be used now.

    Examples
    --------
    >>> import hifigemm as hg
    >>> "numpy" in hg.engines()
    True
    """
    return available()


@lru_cache
def engine_for(name: str | None, library: str = "numpy", device: str = "cpu") -> Engine:
    """The engine of that name for operands of a library on a device; None takes the one
    of the library.

    Raises PlanError: a name that cannot be used here, or not on that device.
    """
    if name is None:
        is_jax_on_cpu = library == "jax" and device == "cpu"
        name = "numpy" if is_jax_on_cpu else _OF_LIBRARY.get(library, library)
    if name == "torch" and _has_torch():
        from hifigemm.engines.torch_engine import torch_engine

        return torch_engine(device)
    if name not in _ON_CPU:
        hint = "; tensors on a GPU need no engine" if name in ("cuda", "gpu") else ""
        raise PlanError(
            f"engine={name!r} cannot be used here; usable now: {', '.join(available())}{hint}"
        )
    if device != "cpu":
        raise PlanError(
            f"engine={name!r} multiplies on the CPU; the operands are on {device}"
        )
    if name == "numpy":
        return NumpyEngine()
    from hifigemm.engines.simulated import UNITS, SimulatedEngine

    return SimulatedEngine(UNITS[name.removeprefix(_SIMULATED)])
