"""The testers of the reference BLAS, as Debian's package libblas-test has them."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.blas.conftest import LIBRARY

FOLDER = Path("/usr/lib", str(sysconfig.get_config_var("MULTIARCH")), "blas")

pytestmark = pytest.mark.skipif(
    not (FOLDER / "xblat1s").exists(), reason="libblas-test is not installed"
)


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("p", "sdcz")
@pytest.mark.parametrize("interface", ["Fortran", "C"])
def test_testers_pass_with_the_library_in_front_of_theirs(
    tmp_path, p, level, interface
):
    name = f"xblat{level}{p}" if interface == "Fortran" else f"x{p}cblat{level}"
    data = f"{p}blat{level}.in" if interface == "Fortran" else f"{p}in{level}"
    source = FOLDER / data if level > 1 else Path(os.devnull)
    with source.open() as file:
        process = subprocess.run(
            [FOLDER / name],
            cwd=tmp_path,
            stdin=file,
            env=os.environ | {"LD_PRELOAD": str(LIBRARY)},
            capture_output=True,
            text=True,
            timeout=100,
        )
    files = [path.read_text() for path in sorted(tmp_path.iterdir())]
    output = process.stdout + "".join(files)
    assert process.returncode == 0, process.stderr
    assert "PASS" in output
    assert "FAIL" not in output
    assert "***" not in output
