from __future__ import annotations

import pytest

from hifigemm.workshop.measuring.ceilings import (
    busy_remark,
    measured_ceilings,
    peak_rates,
    shown_rate,
)
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


@pytest.mark.parametrize("unit", ["fp64", "fp32"])
@pytest.mark.parametrize(("n", "device"), [(128, "cpu"), (900, "cpu"), (1024, "cuda")])
@pytest.mark.parametrize("plain", [1e9, 4e10, 6e13])
def test_a_native_product_far_below_the_plain_rate_says_that_the_machine_is_busy(
    unit, n, device, plain
):
    ceilings = {"copy": 1e10, "fp64": plain, "fp32": plain}
    row = {"case": "native", "m": n, "n": n, "k": n, "unit": unit}
    for share, is_busy in ((1 / 5.1, True), (1 / 4.9, False), (1.0, False)):
        rate = plain * share
        text = busy_remark(row | {"burst_tflops": rate * 1e-12}, ceilings, device)
        assert text.startswith("this machine is busy") == is_busy
        if is_busy:
            assert shown_rate(rate) in text
            assert shown_rate(plain) in text
            assert "repeat" in text

    # Schemes, small products and those without a time say nothing of the machine.
    slow = row | {"burst_tflops": plain * 1e-15}
    for other in (
        slow | {"case": "ozaki2:14"},
        slow | {"k": 100},
        slow | {"burst_tflops": ""},
    ):
        assert busy_remark(other, ceilings, device) == ""


@pytest.mark.parametrize(
    ("rate", "name", "text"),
    [
        (1.04e10, "copy", "10.4 GB/s"),
        (4.01e10, "fp64", "40.1 GFLOP/s"),
        (3.3e12, "copy", "3.3 TB/s"),
        (6.7e13, "fp32", "67 TFLOP/s"),
        (5.24e7, "fp64", "52.4 MFLOP/s"),
    ],
)
def test_rates_have_units_that_fit(rate, name, text):
    assert shown_rate(rate, name) == text
