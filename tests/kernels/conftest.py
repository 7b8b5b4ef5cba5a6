"""Tests of kernels, and of what compilers make of them: spills, instructions, waits.

Kernels are tested where there is torch and Triton, on the CPU too, where the
interpreter runs them: see tests/engines/conftest.py.

A sample of the kernels is compiled for three architectures; `sample` in compiled.py
says what it leaves out. With `--arch 90` (`make test-compiled ARCH=90`) all kernels are
compiled for that architecture.
"""

from importlib.util import find_spec

import pytest

from tests.engines.conftest import assert_equal, engine  # noqa: F401, fixtures
from tests.kernels.compilations import SAMPLED, SHARED, kept, printed

if find_spec("torch") is None or find_spec("triton") is None:
    collect_ignore_glob = ["*"]


def pytest_generate_tests(metafunc):
    if "compiled" not in metafunc.fixturenames:
        return
    chosen = metafunc.config.getoption("arch")
    for arch in chosen:
        if arch not in SHARED:
            raise pytest.UsageError(f"--arch {arch} is none of {[*SHARED]}")
    metafunc.parametrize("arch", chosen or SAMPLED)


def pytest_itemcollected(item):
    """All tests carry the marker `torch`, as even tiles are counted beside what triton
    compiles; those that take the fixture of that name carry `compiled`.
    """
    item.add_marker("torch")
    if "compiled" in item.fixturenames:
        item.add_marker("compiled")


@pytest.fixture
def is_whole(request):
    """True if all kernels are compiled, and not a sample."""
    return bool(request.config.getoption("arch"))


@pytest.fixture
def compiled(arch, is_whole):
    """compiled(family): the lines of compiled.py for the kernels of a family."""

    def find(family):
        if is_whole:
            found = kept(arch, family)
        else:
            found = [line for line in printed(arch) if line["family"] == family]
        assert found
        for line in found:
            assert line["shared"] <= SHARED[arch], line
            # The driver launches the kernel without Triton: see cuda_driver.py.
            assert line["enters directly"], line
        return found

    return find
