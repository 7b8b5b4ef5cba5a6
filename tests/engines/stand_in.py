"""The engine of a GPU like an H200 where there may be none: Triton's interpreter then
runs its kernels on the CPU.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch

from hifigemm import libraries
from hifigemm.engines import engine_for
from hifigemm.engines.cuda.engine import CudaEngine
from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.engines.rates import H200
from hifigemm.model.engine import MemoryLimits
from hifigemm.model.executable import Signature
from hifigemm.model.problem import Problem
from hifigemm.numerics.epilogue import PLAIN
from hifigemm.numerics.tensor_core import H100
from hifigemm.running import admission, integers, plans, road, scaled_sums
from tests.planning import make

__all__ = [
    "DEVICE",
    "StandIn",
    "arrays",
    "lowered",
    "on_host",
    "planned",
    "take_as_device",
]

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"


class StandIn(CudaEngine):
    """A CudaEngine that asks no driver for anything."""

    costs = H200
    device = "stand-in"
    model = H100
    memory = MemoryLimits(block_entries=2**22, workspace_factor=2)

    def __init__(self):
        super().__init__(torch.device(DEVICE))


def arrays(*given):
    """Arrays of NumPy as the engine takes them."""
    return [wrap(torch.from_numpy(np.ascontiguousarray(x)).to(DEVICE)) for x in given]


def on_host(x):
    """An array of the engine, or a tensor, as one of NumPy."""
    return (x if isinstance(x, torch.Tensor) else unwrap(x)).cpu().numpy()


def lowered(lowering, a, b, shape, out=None, shift=0, epilogue=PLAIN):
    """The executable for arrays of the engine that are laid out as these."""
    return lowering.lower(Signature(a, b, shape, out, shift, epilogue))


def take_as_device(engine, monkeypatch):
    """Let public functions give tensors of the CPU to this engine, as they give those
    of a GPU to its engine.
    """
    if DEVICE == "cpu":
        monkeypatch.setattr(
            libraries.TorchLibrary, "on_host", property(lambda self: False)
        )
        monkeypatch.setattr(
            libraries.TorchLibrary, "active", lambda self: nullcontext()
        )

    def own(name, library, device):
        return (
            engine
            if (name or library) == "torch"
            else engine_for(name, library, device)
        )

    for module in (admission, integers, plans, road, scaled_sums):
        monkeypatch.setattr(module, "engine_for", own)


def planned(
    scheme, a, b, engine, accuracy=None, *, states_bound=False, workspace=2**28
):
    """The plan for two stacks, of NumPy or of the engine; `scheme` may be "auto"."""
    problem = Problem(
        max(len(a), len(b)), a.shape[1], b.shape[2], a.shape[2], np.dtype(a.dtype)
    )

    def look(chosen, target):
        return chosen.evidence(problem, target, a, b, engine, workspace)

    return make(problem, accuracy, scheme, engine, workspace, look, states_bound)
