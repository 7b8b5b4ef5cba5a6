"""What can be used here, as `engines` and `info` tell it."""

from __future__ import annotations

import os

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base.tested_versions import TESTED
from hifigemm.engines import engine_for
from hifigemm.engines.information import Info


def test_engines_and_info():
    assert "numpy" in hg.engines()
    text = str(hg.info())
    for part in ("hifigemm", hg.__version__, np.__version__, "numpy", "fp64"):
        assert part in text
    assert (
        hg.matmul(np.ones((2, 2)), np.ones((2, 2)), engine="numpy", return_report=True)[
            1
        ].engine
        == "numpy"
    )


def test_info_names_the_range():
    text = str(hg.info())
    for library, versions in TESTED.items():
        assert f"{library} {versions.oldest} to {versions.newest}" in text


def test_info_says_how_kernels_are_launched():
    torch = pytest.importorskip("torch")
    triton = pytest.importorskip("triton")
    way = (
        "kernels are launched by the CUDA driver"
        if torch.cuda.is_available()
        else "without a GPU"
    )
    assert f"triton     {triton.__version__}, {way}" in str(hg.info())


def test_info_tells_each_engine_with_its_device_and_products():
    info = hg.info()
    assert list(info.engines) == hg.engines()
    for name, text in info.engines.items():
        engine = engine_for(name)
        assert text.startswith(f"{engine.device}: exact products of ")
        assert sorted(engine.products) == text.partition(" products of ")[2].split(", ")


def test_info_tells_versions_and_cores():
    versions = hg.info().versions
    assert versions["hifigemm"] == hg.__version__
    assert versions["numpy"].startswith(f"{np.__version__} with ")
    assert versions["cores"] == str(os.cpu_count())
    assert ("torch" in versions) == ("torch" in hg.engines())


@pytest.mark.parametrize("gpus", [(), ("H200: 1 PFLOPS", "  tile of FP16")])
def test_info_prints_a_line_for_each_thing(gpus):
    info = Info({"hifigemm": "1.2.3"}, {"numpy": "cpu: exact products of fp64"}, gpus)
    assert str(info).splitlines() == [
        "hifigemm   1.2.3",
        "engines",
        "  numpy            cpu: exact products of fp64",
        *(["GPUs", *gpus] if gpus else []),
    ]
