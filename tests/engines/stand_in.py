"""The engine of a GPU like an H200 where there may be none: Triton's interpreter then runs its kernels on the CPU."""

from __future__ import annotations

import torch

from hifigemm.engine import Memory
from hifigemm.engines.cuda.engine import CudaEngine
from hifigemm.engines.rates import H200
from hifigemm.numerics.tensor_core import H100

__all__ = ["DEVICE", "StandIn"]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class StandIn(CudaEngine):
    """A CudaEngine that asks no driver for anything."""

    costs = H200
    device = "stand-in"
    model = H100
    memory = Memory(block_entries=2**22, workspace_factor=2)

    def __init__(self):
        super().__init__(torch.device(DEVICE))
