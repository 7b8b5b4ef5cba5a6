"""What the device could do at best: datasheet peaks, and rates measured with library routines in the same run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .gpu_timing import Clock, Method, time_bursts

__all__ = ["measured_ceilings", "peak_rates"]

_PEAKS: dict[str, dict[str, float]] = {
    "H200": {"int8": 1979e12, "fp16": 989e12, "bf16": 989e12, "tf32": 495e12, "fp32": 67e12, "fp64": 67e12},
    "H100": {"int8": 1979e12, "fp16": 989e12, "bf16": 989e12, "tf32": 495e12, "fp32": 67e12, "fp64": 67e12},
    "A100": {"int8": 624e12, "fp16": 312e12, "bf16": 312e12, "tf32": 156e12, "fp32": 19.5e12, "fp64": 19.5e12},
}
"""Dense operations a second by the datasheets of the SXM boards, for what a device's name contains."""

_COPY_BYTES = {"cpu": 1 << 27, "cuda": 1 << 31}
_SIZE = {"cpu": 512, "cuda": 8192}


def peak_rates(device_name: str) -> dict[str, float]:
    """Operations a second by format; empty for a device that is not known."""
    return dict(next((rates for name, rates in _PEAKS.items() if name in device_name), {}))


def measured_ceilings(device: str, clock: Clock, method: Method) -> dict[str, float]:
    """Bytes a second of a copy (read plus write) and operations a second of products in bursts.

    Keys: copy, fp64, fp32; on CUDA also int8 and fp16.
    """
    kind = "cpu" if device == "cpu" else "cuda"
    make = _numpy_launches if kind == "cpu" else _torch_launches
    size, nbytes = _SIZE[kind], _COPY_BYTES[kind]
    rates = {}
    for name, prepare in make(size, nbytes).items():
        work = 2.0 * nbytes if name == "copy" else 2.0 * size**3
        rates[name] = work / time_bursts({name: prepare()}, clock, method)[name].median
    return rates


Preparation = Callable[[], Callable[[], object]]


def _numpy_launches(size: int, nbytes: int) -> dict[str, Preparation]:
    rng = np.random.default_rng(0)

    def copy() -> Callable[[], object]:
        source, target = rng.random(nbytes // 8), np.zeros(nbytes // 8)
        return lambda: np.copyto(target, source)

    def product(dtype: str) -> Callable[[], object]:
        a, b = (rng.random((size, size)).astype(dtype) - 0.5 for _ in range(2))
        c = np.empty_like(a)
        return lambda: np.matmul(a, b, out=c)

    return {"copy": copy, "fp64": lambda: product("float64"), "fp32": lambda: product("float32")}


def _torch_launches(size: int, nbytes: int) -> dict[str, Preparation]:
    import torch

    def copy() -> Callable[[], object]:
        source = torch.rand(nbytes // 8, dtype=torch.float64, device="cuda")
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    def product(dtype: Any) -> Callable[[], object]:
        a, b = (torch.randn(size, size, device="cuda", dtype=torch.float32).to(dtype) for _ in range(2))
        c = torch.empty_like(a)
        return lambda: torch.matmul(a, b, out=c)

    def int8() -> Callable[[], object]:
        a, b = (torch.randint(-128, 128, (size, size), dtype=torch.int8, device="cuda") for _ in range(2))
        # The library is fast where both operands are contiguous along k.
        transposed = b.t()
        return lambda: torch._int_mm(a, transposed)

    return {
        "copy": copy,
        "fp64": lambda: product(torch.float64),
        "fp32": lambda: product(torch.float32),
        "fp16": lambda: product(torch.float16),
        "int8": int8,
    }
