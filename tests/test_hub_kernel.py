"""The package in the layout of the Hub's kernels, loaded from a folder."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import hifigemm as hg
from tools.hub_kernel import VARIANTS, lay_out

LOAD = """
import importlib.util, json, sys
from pathlib import Path
site, variant = sys.argv[1:]
sys.path.append(site)
name = json.loads((Path(variant) / "metadata.json").read_text())["id"]
spec = importlib.util.spec_from_file_location(name, Path(variant) / "__init__.py")
kernel = sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel)
import hifigemm
import numpy as np
assert Path(hifigemm.__file__).is_relative_to(variant), hifigemm.__file__
print(kernel.matmul(np.array([[2.0**60, 1.0, -(2.0**60)]]), np.ones((3, 1)), accuracy="correct"))
"""


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    """The folders of all variants, from a wheel of this package."""
    folder = tmp_path_factory.mktemp("hub")
    wheel = folder / "hifigemm-0.1.0-py3-none-any.whl"
    package = Path(hg.__file__).parent
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in package.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, Path("hifigemm") / path.relative_to(package))
        metadata = (
            "Name: hifigemm\nVersion: 0.1.0\nLicense-Expression: MIT\n\nVersion: 9\n"
        )
        archive.writestr("hifigemm-0.1.0.dist-info/METADATA", metadata)
    return lay_out(wheel, folder / "kernel")


def test_a_variant_is_loaded_without_an_installation(variants, tmp_path):
    # What Python finds here is NumPy alone.
    source = Path(np.__file__).parent
    for name in ("numpy", "numpy.libs"):
        if (source.parent / name).exists():
            (tmp_path / name).symlink_to(source.parent / name)
    for variant in variants:
        command = [sys.executable, "-I", "-S", "-c", LOAD, str(tmp_path), str(variant)]
        process = subprocess.run(command, capture_output=True, text=True)
        assert process.stdout == "[[1.]]\n", process.stderr


def test_metadata_say_what_the_loader_asks_for(variants):
    for variant, (name, backend) in zip(variants, VARIANTS.items(), strict=True):
        assert variant.name == name
        metadata = json.loads((variant / "metadata.json").read_text())
        assert metadata["backend"] == {"type": backend}
        assert metadata["license"] == "MIT"
        assert metadata["id"] == f"_hifigemm_{backend}_0_1_0"


@pytest.mark.torch
def test_the_loader_of_the_hub_takes_the_folder(variants):
    kernels = pytest.importorskip("kernels")
    kernel = kernels.get_local_kernel(variants[0].parents[1], backend="cpu")
    assert kernel.matmul is importlib.import_module("hifigemm").matmul
