"""How a run of the tests is divided: into parts, and among GPUs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests import conftest


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_test_is_in_one_part(count):
    items = [SimpleNamespace(nodeid=f"tests/test_a.py::test[{i}]") for i in range(999)]
    parts = [(number + 1, count) for number in range(count)]
    sizes = []
    for item in items:
        assert sum(conftest._is_of_part(item, part) for part in parts) == 1
    for part in parts:
        sizes.append(sum(conftest._is_of_part(item, part) for item in items))
    assert min(sizes) > 0.8 * 999 / count


def test_a_run_collects_its_part():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--part=2/3"]
    run = subprocess.run(
        [*command, "tests/base/test_formats.py"], capture_output=True, text=True
    )
    names = [line for line in run.stdout.splitlines() if "::" in line]
    assert names, run.stdout + run.stderr
    assert all(
        conftest._is_of_part(SimpleNamespace(nodeid=name), (2, 3)) for name in names
    )
    selected, total = map(int, re.search(r"(\d+)/(\d+) tests", run.stdout).groups())
    assert len(names) == selected < total


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_parts_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match=text):
        conftest._part(text)


@pytest.mark.parametrize(
    ("gpus", "expression", "wanted"),
    [
        ("0,1,2", "gpu", ["0", "1", "2", "0"]),
        ("5,GPU-7", "gpu and not multigpu", ["5", "GPU-7", "5", "GPU-7"]),
        ("3", "gpu", ["3"] * 4),
        ("0,1", "multigpu", ["0,1"] * 4),
        ("", "gpu", [""] * 4),
    ],
)
def test_processes_take_turns_on_the_gpus(monkeypatch, gpus, expression, wanted):
    config = SimpleNamespace(option=SimpleNamespace(markexpr=expression))
    chosen = []
    for number in range(4):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{number}")
        conftest._choose_gpu(config)
        chosen.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert chosen == wanted
    # A run in one process sees all of them.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.delenv("PYTEST_XDIST_WORKER")
    conftest._choose_gpu(config)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == gpus
