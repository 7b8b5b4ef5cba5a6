"""Rates of GPUs: a function of their properties, of nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hifigemm.engines.gpu_rates import GpuProperties, gpu_properties, rates_of
from hifigemm.engines.rates import H200, Rates
from hifigemm.model.problem import Problem

BOARDS = {
    "v100": GpuProperties("Tesla V100-SXM2-16GB", (7, 0), 80, 1.53e9, 0.877e9, 4096),
    "t4": GpuProperties("Tesla T4", (7, 5), 40, 1.59e9, 5.001e9, 256),
    "a100": GpuProperties("NVIDIA A100-SXM4-40GB", (8, 0), 108, 1.41e9, 1.215e9, 5120),
    "a40": GpuProperties("NVIDIA A40", (8, 6), 84, 1.74e9, 7.251e9, 384),
    "l40s": GpuProperties("NVIDIA L40S", (8, 9), 142, 2.52e9, 9.001e9, 384),
    "h100": GpuProperties("NVIDIA H100 80GB HBM3", (9, 0), 132, 1.98e9, 2.619e9, 5120),
    "h100-pcie": GpuProperties("NVIDIA H100 PCIe", (9, 0), 114, 1.755e9, 1.593e9, 5120),
    "h200": GpuProperties("NVIDIA H200", (9, 0), 132, 1.98e9, 3.201e9, 6144),
    "b200": GpuProperties("NVIDIA B200", (10, 0), 148, 1.965e9, 3.996e9, 8192),
    "b300": GpuProperties("NVIDIA B300", (10, 3), 148, 1.92e9, 3.996e9, 8192),
    "pro6000": GpuProperties(
        "NVIDIA RTX PRO 6000 Blackwell", (12, 0), 188, 2.617e9, 14.001e9, 512
    ),
}
PEAKS = {
    "v100": (7.8e12, 15.7e12, 62e12, 125e12, 0.9e12),
    "t4": (0.254e12, 8.1e12, 130e12, 65e12, 0.32e12),
    "a100": (19.5e12, 19.5e12, 624e12, 312e12, 1.555e12),
    "a40": (0.584e12, 37.4e12, 299e12, 149.7e12, 0.696e12),
    "l40s": (1.431e12, 91.6e12, 733e12, 362e12, 0.864e12),
    "b200": (37e12, 75e12, 4500e12, 2250e12, 8e12),
    "b300": (1.2e12, 75e12, 1233e12, 2250e12, 8e12),
    "pro6000": (1.97e12, 126e12, 1007e12, 503.8e12, 1.792e12),
}
"""Dense FP64, FP32, INT8 and FP16 operations and bytes a second by the datasheets of
the boards; of a B300 the INT8 that make residues as quickly as its FP16 units.
"""


def figures(rates):
    return (
        rates.native_fp64[-1],
        rates.native_fp32[-1],
        rates.int8,
        rates.words,
        rates.bandwidth,
    )


def cube(n, dtype="float64"):
    return Problem(1, n, n, n, np.dtype(dtype))


def test_an_h200_has_what_was_measured_on_one():
    assert rates_of(BOARDS["h200"]) == H200


def test_an_h100_is_an_h200_with_another_memory():
    found = rates_of(BOARDS["h100"])
    assert found == replace(
        H200, gpu="NVIDIA H100 80GB HBM3", bandwidth=found.bandwidth
    )
    assert found.bandwidth == pytest.approx(4.3e12 * (2.619 * 5120) / (3.201 * 6144))


@pytest.mark.parametrize("board", PEAKS)
def test_other_boards_reach_the_share_of_their_units_that_an_h200_reaches(board):
    """Datasheets are rounded, and some take a clock for tensor cores that is up to 6 %
    below the driver's.
    """
    rates, peaks = rates_of(BOARDS[board]), PEAKS[board]
    cycles = 132 * 1.98e9  # of an H200
    units = (256 * cycles, 256 * cycles, 8192 * cycles, 4096 * cycles, 4.917e12)
    kernels = (1.0, 1.0, 0.84, 0.7, 1.0)  # plain ones over those for Hopper
    for found, known, peak, unit, kernel in zip(
        figures(rates), figures(H200), peaks, units, kernels, strict=True
    ):
        assert found / known == pytest.approx(kernel * peak / unit, rel=0.06)
    assert (rates.gpu, rates.num_sms) == (BOARDS[board].name, BOARDS[board].num_sms)


@pytest.mark.parametrize("board", BOARDS)
def test_small_sizes_fall_off_as_on_an_h200(board):
    found = rates_of(BOARDS[board])
    for name in ("native_fp64", "native_fp32"):
        curve, known = getattr(found, name), getattr(H200, name)
        for rate, other in zip(curve, known, strict=True):
            assert rate / curve[-1] == pytest.approx(other / known[-1], rel=1e-12)


def test_rates_grow_with_sms_clock_and_memory():
    gpu = BOARDS["a100"]
    base = rates_of(gpu)
    for more in (replace(gpu, num_sms=216), replace(gpu, clock=2.82e9)):
        twice = rates_of(more)
        for name in ("int8", "words"):
            assert getattr(twice, name) == pytest.approx(2 * getattr(base, name))
        assert twice.native_fp64[-1] == pytest.approx(2 * base.native_fp64[-1])
        assert twice.bandwidth == base.bandwidth
    assert rates_of(replace(gpu, memory_clock=2.43e9)).bandwidth == pytest.approx(
        2 * base.bandwidth
    )


@pytest.mark.parametrize(
    ("capability", "older"),
    [
        ((8, 7), (8, 6)),
        ((9, 1), (9, 0)),
        ((10, 1), (10, 0)),
        ((11, 0), (10, 3)),
        ((12, 1), (12, 0)),
        ((99, 9), (12, 0)),
        ((6, 1), (7, 0)),
        ((0, 0), (7, 0)),
    ],
)
def test_unknown_architectures_count_as_the_closest_older_one(capability, older):
    unknown, known = (
        rates_of(GpuProperties("NVIDIA Nothing", x, 50, 1e9, 1e9, 1024))
        for x in (capability, older)
    )
    shares = (
        "native_fp64",
        "native_fp32",
        "bandwidth",
        "launch",
        "odd_fp64",
        "num_sms",
    )
    assert [getattr(unknown, x) for x in shares] == [getattr(known, x) for x in shares]
    kernels = 0.84 if older == (9, 0) else 1.0  # those for Hopper run on 9.0 alone
    assert unknown.int8 == pytest.approx(kernels * known.int8)


@pytest.mark.parametrize("board", PEAKS)
def test_what_a_driver_does_not_say_is_that_of_the_board_in_the_table(board):
    gpu = BOARDS[board]
    bare = rates_of(GpuProperties(gpu.name, gpu.capability, gpu.num_sms))
    for found, known in zip(figures(bare), figures(rates_of(gpu)), strict=True):
        # datasheets round the bytes a second of a memory
        assert found == pytest.approx(known, rel=0.03)


@pytest.mark.parametrize(
    ("board", "dtype", "pays"),
    [
        ("a100", "float64", True),
        ("h100", "float64", True),
        ("b200", "float64", True),
        ("v100", "float64", False),
        ("h100", "float32", True),
        ("a100", "float32", True),
        ("b200", "float32", True),
        ("l40s", "float32", False),
        ("pro6000", "float32", False),
    ],
)
def test_low_precision_pays_where_its_units_are_many_times_faster(board, dtype, pays):
    rates, problem = rates_of(BOARDS[board]), cube(8192, dtype)
    native = rates.native_seconds(problem)
    own = (
        rates.residue_seconds(problem, 15, True) / 0.9
        if dtype == "float64"
        else 1.5 * rates.word_seconds(problem)
    )
    assert (own < native) == pays


def test_the_page_on_hardware_has_the_predictions_of_the_model():
    root = Path(__file__).parents[2]
    table = subprocess.run(
        [sys.executable, root / "tools" / "hardware.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert table.stdout.count("\n") == 12
    assert table.stdout in (root / "docs" / "hardware.md").read_text(encoding="utf-8")


def test_rates_print_where_they_come_from():
    assert "measured on an H200 of 700 W" in str(rates_of(BOARDS["h100"]))
    assert "108 SMs of capability 8.0 at 1.41 GHz, scaled from an H200" in str(
        rates_of(BOARDS["a100"])
    )


SHOWN = """
import sys
from hifigemm.engines.gpu_rates import GpuProperties, rates_of
print([rates_of(GpuProperties("NVIDIA A40", x, 84, 1.74e9, 7.251e9, 384)) for x in ((8, 6), (9, 0), (7, 0))])
assert not {"torch", "triton"} & set(sys.modules)
"""


def test_processes_with_different_homes_have_the_same_rates(tmp_path):
    """No timing enters either: nothing of torch is imported."""
    shown = []
    for name in ("one", "other"):
        home = tmp_path / name
        for folder in (
            ".cache/hifigemm",
            "Library/Caches/hifigemm",
            "AppData/Local/hifigemm",
            "hifigemm",
        ):
            (home / folder).mkdir(parents=True)
            (home / folder / "rates.json").write_text("{}")
        variables = dict.fromkeys(
            ("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA", "USERPROFILE"), str(home)
        )
        before = sorted(home.rglob("*"))
        done = subprocess.run(
            [sys.executable, "-c", SHOWN],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | variables,
        )
        assert sorted(home.rglob("*")) == before
        shown.append(done.stdout)
    assert shown[0] == shown[1]


@pytest.mark.parametrize("hip", [None, "6.4"])
def test_properties_are_what_pytorch_says(monkeypatch, hip):
    torch = pytest.importorskip("torch")
    said = SimpleNamespace(
        name="NVIDIA H200",
        major=9,
        minor=0,
        multi_processor_count=132,
        clock_rate=1980000,
        memory_clock_rate=3201000,
    )
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: said)
    monkeypatch.setattr(torch.version, "hip", hip)
    gpu_properties.cache_clear()
    try:
        found = gpu_properties(torch.device("cuda", 0))
    finally:
        gpu_properties.cache_clear()
    capability = (9, 0) if hip is None else (0, 0)
    assert found == replace(BOARDS["h200"], capability=capability, memory_bus_width=0)
    assert isinstance(rates_of(found), Rates)


@pytest.mark.gpu
class TestOnGpu:
    def test_properties_of_this_gpu_give_rates(self):
        torch = pytest.importorskip("torch")
        gpu = gpu_properties(torch.device("cuda", torch.cuda.current_device()))
        assert gpu.name == torch.cuda.get_device_name()
        assert min(gpu.num_sms, gpu.clock, gpu.memory_rate) > 0
        assert rates_of(gpu).bandwidth > 0
