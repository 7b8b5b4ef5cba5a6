"""Power, clocks and temperature of an NVIDIA GPU, sampled through NVML while something
runs on it.

NVML needs the package nvidia-ml-py; without it, or without a GPU that it knows, every
reading is None.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

INTERVAL = 0.02
"""Seconds between samples: a fifth of the time between two steps of the energy counter
of an H200.
"""


@dataclass(frozen=True)
class Sample:
    """What the device said at a time (seconds of the host); None where it does not say
    it.
    """

    seconds: float
    joules: float | None = None
    watts: float | None = None
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True)
class Readings:
    """Mean power, median SM clock and largest temperature over a span of time; None
    where nothing is known.
    """

    watts: float | None = None
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None


Meter = Callable[[], Sample]
"""Reads the device once."""


def _nvml() -> Any:
    """NVML, initialised; None without nvidia-ml-py or without a driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def open_meter(uuid: str | None = None) -> Meter | None:
    """A meter of the GPU with this UUID, or of the first one; None without nvidia-ml-py
    or without such a GPU.
    """
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        device = (
            nvml.nvmlDeviceGetHandleByUUID(uuid)
            if uuid
            else nvml.nvmlDeviceGetHandleByIndex(0)
        )
    except nvml.NVMLError:
        return None

    def ask(
        query: Callable[..., Any], *arguments: Any, unit: float = 1.0
    ) -> float | None:
        try:
            return float(query(device, *arguments)) * unit
        except nvml.NVMLError:
            return None

    def read() -> Sample:
        return Sample(
            time.perf_counter(),
            ask(nvml.nvmlDeviceGetTotalEnergyConsumption, unit=1e-3),
            ask(nvml.nvmlDeviceGetPowerUsage, unit=1e-3),
            ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        )

    return read


def driver_version() -> str | None:
    """Version of the NVIDIA driver, None where NVML does not know."""
    nvml = _nvml()
    return None if nvml is None else str(nvml.nvmlSystemGetDriverVersion())


@contextmanager
def recording(meter: Meter | None) -> Iterator[list[Sample]]:
    """The samples that a thread of its own reads of the meter until the block ends."""
    samples: list[Sample] = []
    if meter is None:
        yield samples
        return
    ended = threading.Event()

    def record() -> None:
        while not samples or not ended.wait(INTERVAL):
            samples.append(meter())

    thread = threading.Thread(target=record, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def summarize(samples: Sequence[Sample], start: float, end: float) -> Readings:
    """Readings over the samples from start to end.

    The power is the slope of the energy counter, fitted by least squares because the
    counter moves in steps; without a counter it is the mean of what the device states.
    """
    within = [sample for sample in samples if start <= sample.seconds <= end]

    def values_of(name: str) -> list[float]:
        values = [getattr(sample, name) for sample in within]
        return [value for value in values if value is not None]

    # Watts as stated, or better by the energy counter.
    stated = values_of("watts")
    watts = float(np.mean(stated)) if stated else None
    energy = []
    for sample in within:
        if sample.joules is not None:
            energy.append((sample.seconds, sample.joules))
    if len({seconds for seconds, _ in energy}) >= 3:
        # The line through the points, whose slope is sum x y / sum x x.
        points = np.array(energy)
        x, y = (points - points.mean(axis=0)).T
        watts = float(x @ y / (x @ x))
    clocks = values_of("sm_clock_mhz")
    sm_clock = float(np.median(clocks)) if clocks else None
    return Readings(watts, sm_clock, max(values_of("temperature_c"), default=None))
