"""The engine of a GPU like an H100 where there may be none: Triton's interpreter then runs its kernels on the CPU."""

from __future__ import annotations

import torch

from hifigemm.engines import host_copy
from hifigemm.engines.torch_engine import CudaEngine
from hifigemm.numerics.tensor_core import H100

__all__ = ["DEVICE", "StandIn", "let_copies_arrive"]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class StandIn(CudaEngine):
    """A CudaEngine that asks no driver for anything; without costs, "auto" takes the native product."""

    costs = None
    device = "stand-in"
    model = H100
    least_workspace = 2**28

    def free_memory(self):
        return None

    def __init__(self):
        super().__init__(torch.device(DEVICE))


class _Arrived(host_copy.HostCopy):
    """A copy from the host to the host."""

    __slots__ = ()

    def __init__(self, free):
        self._free = free

    def start(self, source):
        self._bytes = source.clone().numpy()

    def wait(self, dtype):
        self._free.append(self)
        return self._bytes.view(dtype).tolist()


def let_copies_arrive(monkeypatch):
    """Copies to the host are made at once, and no stream is captured, which PyTorch for CPUs cannot tell."""
    monkeypatch.setattr(host_copy, "HostCopy", _Arrived)
    monkeypatch.setattr(host_copy, "_free", {-1: []})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
