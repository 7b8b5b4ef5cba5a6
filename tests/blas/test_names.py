"""The names that the libraries export: those of routines that are served in full."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.blas.conftest import LIBRARY, LIBRARY_FOR_WHEELS
from tests.blas.routines import INTERFACES, REDUCTIONS, ROUTINES, names

pytestmark = pytest.mark.skipif(shutil.which("nm") is None, reason="there is no nm")


def symbols(path, *options):
    """Names in the dynamic symbol table of a library, without versions."""
    command = ["nm", "-D", *options, str(path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].split("@")[0] for line in lines.splitlines()}


def test_the_library_exports_the_names_of_routines_and_nothing_else():
    expected = {name for interface in INTERFACES for name in names(interface)}
    assert symbols(LIBRARY, "--defined-only") == expected


def test_the_library_for_wheels_exports_their_names_alone():
    expected = {
        name
        for interface in INTERFACES
        if interface.is_of_wheels
        for name in names(interface)
    }
    assert symbols(LIBRARY_FOR_WHEELS, "--defined-only") == expected


def test_the_library_calls_no_blas_and_no_python():
    needed = symbols(LIBRARY, "--undefined-only")
    handlers = {"xerbla_", "xerbla_64_", "cblas_xerbla", "cblas_xerbla64_"}
    assert {name for name in needed if "xerbla" in name} == handlers
    assert not [name for name in needed if name.startswith(("Py", "_Py", "GOMP"))]
    assert not needed & symbols(LIBRARY, "--defined-only")


def served_routines():
    """Names of routines with their types: dgemm, zdotu."""
    return {p + name for name, (types, _) in ROUTINES.items() for p in types} | set(
        REDUCTIONS
    )


@pytest.mark.parametrize("package", ["numpy", "scipy"])
def test_every_name_of_a_served_routine_that_a_wheel_binds_is_exported(package):
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    bound = set()
    for extension in Path(spec.origin).parent.rglob("*.so"):
        bound |= symbols(extension, "--undefined-only")
    pattern = re.compile(r"scipy_(?:cblas_)?([a-z0-9]+?)(?:_sub)?(?:64_|_64_|_)?")
    served = served_routines()
    of_routines = set()
    for name in bound:
        match = pattern.fullmatch(name)
        if match and match[1] in served:
            of_routines.add(name)
    if not of_routines:
        pytest.skip(f"this {package} binds no BLAS under names of the wheels")
    exported = symbols(LIBRARY_FOR_WHEELS, "--defined-only")
    assert of_routines <= exported, f"new names: {sorted(of_routines - exported)}"
