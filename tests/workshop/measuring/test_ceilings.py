from __future__ import annotations

from hifigemm.workshop.measuring.ceilings import measured_ceilings, peak_rates
from tests.workshop.measuring.stand_ins import ARRAYS, METHOD, Steps


def test_ceilings_are_work_over_time(monkeypatch):
    monkeypatch.setattr("hifigemm.workshop.measuring.ceilings._SIZE", {"cpu": 4})
    monkeypatch.setattr(
        "hifigemm.workshop.measuring.ceilings._COPY_BYTES", {"cpu": 800}
    )
    found = measured_ceilings(ARRAYS, Steps(), METHOD)
    assert found == {"copy": 1600.0, "fp64": 128.0, "fp32": 128.0}


def test_peaks_are_found_in_the_name_of_the_device():
    assert peak_rates("NVIDIA H200")["int8"] == 1979e12
    assert peak_rates("abacus") == {}
