"""Power, clocks and temperature of an NVIDIA GPU, sampled through NVML while something runs on it.

NVML needs the package nvidia-ml-py; without it, or without a GPU that it knows, every reading is None.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

__all__ = ["Meter", "Readings", "Recorder", "Sample", "driver_version", "open_meter", "summarize"]

INTERVAL = 0.02
"""Seconds between samples: a fifth of the time between two steps of the energy counter of an H200."""


@dataclass(frozen=True)
class Sample:
    """What the device said at a time (seconds of the host); None where it does not say it."""

    seconds: float
    joules: float | None = None
    watts: float | None = None
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True)
class Readings:
    """Mean power, median SM clock and largest temperature over a span of time; None where nothing is known."""

    watts: float | None = None
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None


Meter = Callable[[], Sample]
"""Reads the device once."""


def open_meter(uuid: str | None = None) -> Meter | None:
    """A meter of the GPU with this UUID, or of the first one; None without nvidia-ml-py or without such a GPU."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else pynvml.nvmlDeviceGetHandleByIndex(0)
    except pynvml.NVMLError:
        return None

    def ask(query: Callable[..., Any], *arguments: Any, unit: float = 1.0) -> float | None:
        try:
            return float(query(device, *arguments)) * unit
        except pynvml.NVMLError:
            return None

    def read() -> Sample:
        return Sample(
            time.perf_counter(),
            ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, unit=1e-3),
            ask(pynvml.nvmlDeviceGetPowerUsage, unit=1e-3),
            ask(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
        )

    return read


def driver_version() -> str | None:
    """Version of the NVIDIA driver, None where NVML does not know."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception as error:
        if isinstance(error, ImportError) or type(error).__module__ == "pynvml":
            return None
        raise


class Recorder:
    """Reads a meter every few milliseconds in a thread of its own, between entering and leaving the context.

    Parameters
    ----------
    meter : Meter or None
        None records nothing.
    interval : float
        Seconds between samples.
    """

    def __init__(self, meter: Meter | None, interval: float = INTERVAL) -> None:
        self._meter, self._interval = meter, interval
        self._samples: list[Sample] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Recorder:
        if self._meter is not None:
            self._thread = threading.Thread(target=self._record, args=(self._meter,), daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def readings(self, start: float, end: float) -> Readings:
        """What was read between two times of the host's ``time.perf_counter``."""
        return summarize(self._samples, start, end)

    def _record(self, meter: Meter) -> None:
        while True:
            self._samples.append(meter())
            if self._ended.wait(self._interval):
                return


def summarize(samples: Sequence[Sample], start: float, end: float) -> Readings:
    """Readings over the samples from start to end.

    The power is the slope of the energy counter, fitted by least squares because the counter moves in steps; without a
    counter it is the mean of what the device states.
    """
    chosen = [sample for sample in samples if start <= sample.seconds <= end]
    energy = [(sample.seconds - start, sample.joules) for sample in chosen if sample.joules is not None]
    stated = _known(sample.watts for sample in chosen)
    clocks = _known(sample.sm_clock_mhz for sample in chosen)
    temperatures = _known(sample.temperature_c for sample in chosen)
    watts = float(np.mean(stated)) if stated else None
    if len({seconds for seconds, _ in energy}) >= 3:
        watts = _slope(np.array(energy))
    return Readings(watts, float(np.median(clocks)) if clocks else None, max(temperatures, default=None))


def _known(values: Any) -> list[float]:
    return [value for value in values if value is not None]


def _slope(points: Any) -> float:
    x, y = (points - points.mean(axis=0)).T
    return float(x @ y / (x @ x))
