from __future__ import annotations

import itertools
import sys
import threading
import types

import pytest

from hifigemm.workshop.measuring import power
from hifigemm.workshop.measuring.power import (
    Readings,
    Sample,
    driver_version,
    open_meter,
    recording,
    summarize,
)


def test_power_is_the_slope_of_the_energy_counter():
    samples = [
        Sample(t, joules=1000 + 256 * t, watts=1.0) for t in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    assert summarize(samples, 0.0, 1.0).watts == 256.0


def test_a_counter_that_moves_in_steps_gives_the_power_between_the_steps():
    samples = [Sample(t / 64, joules=512 * (t // 8) / 8) for t in range(64)]
    # Counter and line differ by at most a step of 64 J; the slope of such a deviation
    # over n equidistant samples is at most the step times sum |x - mean| / sum
    # (x - mean)^2, which is below 6 / 2 steps over the length of 1 s.
    assert abs(summarize(samples, 0.0, 1.0).watts - 512) <= 3 * 64


def test_stated_power_counts_where_there_is_no_counter():
    samples = [
        Sample(float(t), watts=w, sm_clock_mhz=c)
        for t, w, c in ((0, 100, 1980), (1, 200, 1600), (2, 300, 1590))
    ]
    assert summarize(samples, 0.0, 2.0) == Readings(200.0, 1600.0, None)


def test_only_samples_of_the_span_count():
    samples = [
        Sample(float(t), watts=float(t), temperature_c=float(t)) for t in range(10)
    ]
    assert summarize(samples, 3.0, 5.0) == Readings(4.0, None, 5.0)
    assert summarize(samples, 20.0, 30.0) == Readings()


def test_meters_are_read_until_the_block_ends(monkeypatch):
    often, threads = threading.Event(), threading.active_count()
    seconds = itertools.count()

    def meter():
        now = next(seconds)
        if now == 3:
            often.set()
        return Sample(now, watts=5.0)

    monkeypatch.setattr(power, "INTERVAL", 1e-3)
    with recording(meter) as samples:
        assert often.wait(10)
    assert threading.active_count() == threads
    assert summarize(samples, 0.0, 3.0) == Readings(watts=5.0)
    with recording(None) as samples:
        pass
    assert samples == []


def test_without_the_package_there_is_no_meter(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_meter() is None
    assert driver_version() is None


@pytest.fixture
def nvml(monkeypatch):
    """A stand-in for pynvml whose device does not tell its temperature."""
    module = types.ModuleType("pynvml")
    module.NVMLError = type("NVMLError", (Exception,), {"__module__": "pynvml"})

    def unsupported(*arguments):
        raise module.NVMLError("not supported")

    def by_uuid(uuid):
        return uuid if uuid == "GPU-1" else unsupported()

    functions = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": by_uuid,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetTotalEnergyConsumption": lambda device: 7000,
        "nvmlDeviceGetPowerUsage": lambda device: 650_000,
        "nvmlDeviceGetClockInfo": lambda device, kind: 1755,
        "nvmlDeviceGetTemperature": unsupported,
        "nvmlSystemGetDriverVersion": lambda: "580.1",
        "NVML_CLOCK_SM": 1,
        "NVML_TEMPERATURE_GPU": 0,
    }
    for name, value in functions.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def test_readings_are_in_joules_and_watts_and_empty_where_unsupported(nvml):
    sample = open_meter("GPU-1")()
    assert (sample.joules, sample.watts, sample.sm_clock_mhz, sample.temperature_c) == (
        7.0,
        650.0,
        1755.0,
        None,
    )
    assert open_meter("GPU-2") is None
    assert driver_version() == "580.1"
