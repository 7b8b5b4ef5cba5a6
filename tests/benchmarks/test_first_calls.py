"""Fifty first calls, and the kernels that they compile, counted without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import lru_cache

import pytest

from benchmarks import first_calls

MOST_KERNELS = 110
"""Of all calls: 109 of them here."""


@lru_cache
def kernels(names):
    """Lines of first_kernels.py for the calls whose names hold a part."""
    environment = {
        key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"
    }
    command = [sys.executable, "-m", "tests.benchmarks.first_kernels", "--names", names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_fifty_calls_differ():
    calls = first_calls.CALLS
    assert len({str(call) for call in calls}) == 50
    assert len({call.dtype for call in calls}) == 4
    assert len({call.n for call in calls}) == 5
    assert {call.layout for call in calls} == {"NN", "NT", "TN", "TT"}


def test_kernels_serve_all_layouts_and_predicates(torch):
    by_rows, by_columns = "float64 4096 NN", "float64 4096 TN"
    launched = kernels("float64 4096")
    ladder = [line for line in launched if by_rows in line["calls"]]
    # Rungs of the ladder run with a predicate, the first step without one.
    names = [line["kernel"] for line in ladder]
    # Of two and of three words.
    assert names.count("scaled_residues_kernel") == 2
    # Residues and error ratios: one kernel with two epilogues.
    assert names.count("int8_product_hopper_kernel") == 2
    # FP64 tensor cores are fed by loads whose layout is compiled in, and exponents
    # along k are found in tiles of each layout.
    new = [line["kernel"] for line in launched if line["calls"][0] == by_columns]
    assert new == ["vector_exponents_kernel", "inner_maxima_kernel", "_native_kernel"]


@pytest.mark.slow
def test_fifty_calls_launch_few_kernels(torch):
    assert len(kernels("")) <= MOST_KERNELS
