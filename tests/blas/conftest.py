from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hifigemm as hg

LIBRARY = Path(hg.__file__).with_name("libhifigemm_blas.so")
LIBRARY_FOR_WHEELS = Path(hg.__file__).with_name("libhifigemm_blas_wheels.so")


def pytest_collection_modifyitems(items):
    """Without the library there is nothing to test."""
    if LIBRARY.exists():
        return
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.skip(reason=f"{LIBRARY} is not built"))


@pytest.fixture(scope="session")
def library():
    """The library with all names."""
    return ctypes.CDLL(str(LIBRARY))


@pytest.fixture
def program(tmp_path):
    """program(source): a program in C that is linked with the library."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")

    def build(source):
        (tmp_path / "program.c").write_text(source)
        command = [compiler, "program.c", str(LIBRARY), "-lm", "-o", "program"]
        subprocess.run(command, cwd=tmp_path, check=True)
        return tmp_path / "program"

    return build


def run_python(source, *options, **environment):
    """The output of a program of Python."""
    command = [sys.executable, *options, "-c", source]
    process = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    return process.stdout
