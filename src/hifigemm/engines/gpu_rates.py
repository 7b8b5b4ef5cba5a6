"""Rates of a GPU from its properties: those of a board that was measured, else those of
its architecture.

No kernel runs and no file is read, so that "auto" takes the same in every process. A
board that was never measured is taken to reach the same share of its peak rates as an
H200, at all sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from hifigemm.engines.rates import H200, Rates
from hifigemm.kernels.runtime.tiles import integer_unit


@dataclass(frozen=True)
class GpuProperties:
    """Properties of a GPU from which its rates follow. The capability (0, 0) stands for
    GPUs that are not NVIDIA's.
    """

    name: str
    capability: tuple[int, int]
    num_sms: int
    clock: float = 0.0  # hertz; 0 where the driver does not say
    memory_clock: float = 0.0  # the same
    memory_bus_width: int = 0  # bits; 0 where the driver does not say

    @property
    def memory_rate(self) -> float:
        """Bytes a second, two transfers a clock."""
        return 2 * self.memory_clock * self.memory_bus_width / 8


@dataclass(frozen=True)
class _Architecture:
    """Operations per clock and SM, where a multiplication with an addition counts as
    two.

    The clock in hertz and the bytes a second and SM are those of one board, for drivers
    that do not say them.
    """

    fp64: int
    fp64_lanes: int  # FP64 instructions outside the tensor cores
    fp32: int
    int8: int
    fp16: int
    clock: float
    memory_rate: float


_ARCHITECTURES = {
    # V100; INT8 without tensor cores
    (7, 0): _Architecture(64, 32, 128, 512, 1024, 1.53e9, 0.9e12 / 80),
    (7, 5): _Architecture(4, 2, 128, 2048, 1024, 1.59e9, 0.32e12 / 40),  # T4
    (8, 0): _Architecture(128, 32, 128, 4096, 2048, 1.41e9, 1.555e12 / 108),  # A100
    (8, 6): _Architecture(4, 2, 256, 2048, 1024, 1.74e9, 0.696e12 / 84),  # A40
    (8, 9): _Architecture(4, 2, 256, 2048, 1024, 2.52e9, 0.864e12 / 142),  # L40S
    (9, 0): _Architecture(256, 64, 256, 8192, 4096, 1.98e9, 3.35e12 / 132),  # H100 SXM
    (10, 0): _Architecture(128, 64, 256, 16384, 8192, 1.965e9, 8e12 / 148),  # B200
    (10, 3): _Architecture(4, 2, 256, 512, 8192, 1.92e9, 8e12 / 148),  # B300
    # RTX PRO 6000 Blackwell
    (12, 0): _Architecture(4, 2, 256, 2048, 1024, 2.617e9, 1.792e12 / 188),
}
"""By compute capability; FP64 by tensor cores where they are faster.

From the throughput table of the CUDA C++ Programming Guide (FP64 and FP32) and, for
tensor cores, from NVIDIA's whitepapers of these architectures and datasheets of the
boards that are named, without sparsity: operations a second over SMs and boost clock.
GeForce boards of 7.5, 8.6, 8.9 and 12.0 add FP16 products in FP32 at half that rate,
which no property tells; from 8.6 on words are no quicker there than FP32 either way.
"""
_HOPPER = (9, 0)
_H200_SMS = 132
_H200_CLOCK = 1.98e9
"""Hertz, as the driver of the H200 that was measured says."""
_H200_MEMORY_RATE = 2 * 3.201e9 * 6144 / 8
"""Bytes a second, by the memory clock and the bus width of that H200."""
_MEASURED = {(_HOPPER, _H200_SMS): H200}
"""By capability and number of SMs. The H100 SXM has the units of the H200 and another
memory.
"""
_PLAIN_INT8 = 0.84
"""Rate of the plain INT8 kernel over that of the Hopper kernel, measured on an H200:
1146 to 1194 against 1387 TOP/s at n = 4096 and 8192.
"""
_FP16_INTEGERS = 0.23
"""Rate of INT8 products on FP16 units over that of the Hopper kernel on INT8 units, by
the plain kernel on an H200: 332 against 1432 TOP/s at n = 8192.
"""
_PLAIN_WORDS = 0.7
"""The same for products of words, by the estimate of `tiles.TILES`."""


def rates_of(gpu: GpuProperties) -> Rates:
    """Rates of a GPU: measured ones if there are any, else those of its architecture.

    An architecture without a row counts as the closest older one, and as the oldest if
    there is none.
    """
    measured = _MEASURED.get((gpu.capability, gpu.num_sms))
    if measured is not None:
        memory_rate = gpu.memory_rate or _H200_MEMORY_RATE
        return replace(
            measured,
            gpu=gpu.name,
            bandwidth=H200.bandwidth * memory_rate / _H200_MEMORY_RATE,
        )

    # Peak rates relative to those of an H200.
    older = [x for x in _ARCHITECTURES if x <= gpu.capability]
    row = _ARCHITECTURES[max(older, default=min(_ARCHITECTURES))]
    hopper = _ARCHITECTURES[_HOPPER]
    clock = gpu.clock or row.clock
    cycles = gpu.num_sms * clock / (_H200_SMS * _H200_CLOCK)
    fp64 = cycles * row.fp64 / hopper.fp64
    fp32 = cycles * row.fp32 / hopper.fp32
    int8 = cycles * row.int8 / hopper.int8
    words = cycles * row.fp16 / hopper.fp16
    if integer_unit(gpu.capability) == "fp16":
        int8 = _FP16_INTEGERS * words
    elif gpu.capability != _HOPPER:
        int8 = _PLAIN_INT8 * int8
    if gpu.capability != _HOPPER:
        words = _PLAIN_WORDS * words
    memory_rate = gpu.memory_rate or row.memory_rate * gpu.num_sms
    capability = ".".join(map(str, gpu.capability))
    return replace(
        H200,
        gpu=gpu.name,
        native_fp64=tuple(fp64 * rate for rate in H200.native_fp64),
        native_fp32=tuple(fp32 * rate for rate in H200.native_fp32),
        fp64_instructions=cycles
        * row.fp64_lanes
        / hopper.fp64_lanes
        * H200.fp64_instructions,
        int8=int8 * H200.int8,
        bandwidth=H200.bandwidth * memory_rate / _H200_MEMORY_RATE,
        words=words * H200.words,
        num_sms=gpu.num_sms,
        source=f"{gpu.num_sms} SMs of capability {capability} at {clock / 1e9:.3g} GHz, "
        "scaled from an H200",
    )


@lru_cache
def gpu_properties(device: Any) -> GpuProperties:
    """The properties of a torch device."""
    import torch

    # PyTorch with CUDA 13 asks the driver for the clocks of the current device.
    with torch.cuda.device(device):
        properties = torch.cuda.get_device_properties(device)
        # In kilohertz.
        clock = 1e3 * getattr(properties, "clock_rate", 0)
        memory_clock = 1e3 * getattr(properties, "memory_clock_rate", 0)
    capability = int(properties.major), int(properties.minor)
    if torch.version.hip:
        capability = 0, 0
    return GpuProperties(
        name=str(properties.name),
        capability=capability,
        num_sms=int(properties.multi_processor_count),
        clock=clock,
        memory_clock=memory_clock,
        memory_bus_width=int(getattr(properties, "memory_bus_width", 0)),
    )
