"""Tests of kernels, and of what compilers make of them: spills, instructions, waits.

Kernels are tested where there is torch and Triton, on the CPU too, where the
interpreter runs them: see tests/engines/conftest.py.

A sample of the kernels is compiled for three architectures; `sample` in compiled.py
says what it leaves out. With `--arch 90` (`make test-compiled ARCH=90`) all kernels are
compiled for that architecture.
"""

from importlib.util import find_spec

import pytest

from hifigemm.base import store
from tests.engines.conftest import assert_equal, engine, recordings  # noqa: F401, fixtures
from tests.kernels.compilations import SAMPLED, SHARED, kept, printed

if find_spec("torch") is None or find_spec("triton") is None:
    collect_ignore_glob = ["*"]


@pytest.fixture(autouse=True)
def forget_launches():
    """Launches are recorded anew in each test, as a test may change what they rest
    on.
    """
    store.forget()


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
            if not found:
                pytest.skip(f"the sample has nothing of {family} for sm_{arch}")
        assert found
        for line in found:
            assert line["shared"] <= SHARED[arch], line
            # The driver launches the kernel without Triton: see cuda_driver.py.
            assert line["enters directly"], line
            assert line["lost constants"] == 0, line
        return found

    return find


@pytest.fixture
def most_spills(arch):
    """most_spills(line, usual, measured): stores and loads of spilled words in the
    machine code of a line, at most.

    These are the usual ones of its kind. Exceptions are by name: `measured` has figures
    by case, release of Triton and architecture. One that is needed no longer fails, so
    that none is left behind.
    """
    import triton

    release = triton.__version__.rpartition(".")[0]

    def find(line, usual, measured):
        by_arch = measured.get(line["case"], {}).get(release, {})
        if arch not in by_arch:
            return usual
        assert line["spills"] > usual, f"no exception any more: {line}"
        return by_arch[arch]

    return find
