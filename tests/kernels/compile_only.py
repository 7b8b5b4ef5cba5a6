"""A plugin of pytest that compiles the kernels of tests for a GPU that is not there.

Usage: python -m pytest -p tests.kernels.compile_only --compile-for 90 tests/kernels tests/engines/cuda

Tests with Triton's interpreter see the shapes at the edges, and not whether a kernel
compiles for them. With this plugin the launches of a test are compiled instead of run. The
test then counts as skipped, or fails with the names of the kernels that do not compile.
Only launches before the first result are compiled, as no result exists. Tests that end
otherwise show nothing here and are skipped, too; a run that compiles nothing fails.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "0"

import pytest
import triton

from hifigemm.kernels.runtime import launch_list
from tests.kernels.compiled import DEVICE, pretend


def pytest_addoption(parser):
    parser.addoption("--compile-for", type=int, default=90, metavar="ARCH")


def pytest_configure(config):
    pretend(config.getoption("compile_for"))


class _DoesNotCompile(AssertionError):
    """Names the kernels of a test that do not compile."""


def _compile(self, *tensors, scalars=()):
    """Compile a launch list instead of running it."""
    failures = []
    for step in self._steps:
        if step.kernel is None:
            continue
        try:
            step.kernel.compile(step.arguments, step.constants)
        except Exception as error:
            name = step.kernel.kernel.__name__
            failures.append(f"{name}: {error.__cause__ or error}\n{step.constants}")
    _end(failures)


def _compile_directly(self, *arguments, grid, warmup, **options):
    """Compile a kernel of a test instead of running it by Triton's JIT."""
    if warmup:
        return _run(self, *arguments, grid=grid, warmup=True, **options)
    failures = []
    try:
        _run(self, *arguments, grid=(1,), warmup=True, **options)
    except Exception as error:
        failures.append(f"{self.__name__}: {error.__cause__ or error}")
    return _end(failures)


_ended = []
"""Failures of each list of launches that was compiled."""


def _end(failures):
    """End the test."""
    _ended.append(failures)
    if failures:
        raise _DoesNotCompile("\n".join(failures))
    pytest.skip("compiled")


_run = triton.runtime.jit.JITFunction.run
triton.runtime.jit.JITFunction.run = _compile_directly
_make = launch_list.LaunchList.__init__
launch_list.LaunchList.__init__ = lambda self, device: _make(self, DEVICE)
launch_list.LaunchList.compile = lambda self: self
launch_list.LaunchList.__call__ = _compile


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    error = call.excinfo
    if report.failed and not isinstance(error.value, _DoesNotCompile):
        report.outcome = "skipped"
        line = f"ended otherwise: {type(error.value).__name__}"
        report.longrepr = (str(item.path), 0, line)


def pytest_sessionfinish(session):
    if session.testscollected and not _ended:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
