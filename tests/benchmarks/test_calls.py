"""Rows of calls: every one is there, checked, and of the checkout that it names."""

from __future__ import annotations

import csv
import json
from collections import Counter

import numpy as np
import pytest

from benchmarks import calls
from benchmarks.calls import Case
from hifigemm.workshop.measuring.arrays import Arrays, Workload
from hifigemm.workshop.measuring.checks import native_bound


def test_a_gpu_has_a_row_for_each_call_and_size():
    cases = calls.cases_of("cuda", calls.SIZES["cuda"])
    assert len(set(cases)) == len(cases)
    modes = Counter(case.mode for case in cases)
    assert modes == {"eager": 5 * 11, "graph": 2 * 7, "host": 2 * 11}
    assert {case.call for case in cases if case.mode == "graph"} == set(calls.CAPTURED)


def test_a_cpu_has_one_mode():
    assert {case.mode for case in calls.cases_of("cpu", (4,))} == {"eager"}


@pytest.mark.parametrize("dtype", calls.CALLS)
def test_calls_are_checked(dtype):
    load = Workload(9, 9, 9, dtype=dtype)
    found = calls.checked_calls(Arrays(), load, calls.CALLS[dtype])
    a, b = Arrays().operands(load, 0)
    # Both products may be off by as much as rounded sums can be.
    limit = 3 * native_bound(load) * (np.abs(a) @ np.abs(b))
    for call in found.values():
        assert (np.abs(call() - a @ b) <= limit).all()


def test_a_wrong_result_is_not_timed(monkeypatch):
    monkeypatch.setattr(calls.hg, "matmul", lambda a, b, **_: a @ b + 1)
    with pytest.raises(RuntimeError, match=r"float64, .*default: 81 entries"):
        calls.checked_calls(Arrays(), Workload(9, 9, 9), ["default"])


def test_rows_hold_least_and_median_of_processes():
    case = Case("float64", 8, "default")
    (row,) = calls.rows_of({case: {"before": [4.0, 2.0, 9.0], "after": [1.0, 5.0, 3]}})
    assert row == {
        "dtype": "float64",
        "n": 8,
        "call": "default",
        "mode": "eager",
        "before_us": 2.0,
        "after_us": 1.0,
        "before_median_us": 4.0,
        "after_median_us": 3.0,
        "ratio": 0.5,
    }


def test_two_trees_are_measured_in_turns(tmp_path, capsys):
    path = tmp_path / "calls.csv"
    options = ["--device", "cpu", "--sizes", "2", "--processes", "1"]
    options += ["--against", str(calls.ROOT), "--output", str(path)]
    assert calls.main(options) == 0
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    cases = calls.cases_of("cpu", (2,))
    assert [row["call"] for row in rows] == [case.call for case in cases]
    assert all(float(row["before_us"]) > 0 < float(row["after_us"]) for row in rows)
    facts = json.loads(path.with_suffix(".env.json").read_text(encoding="utf-8"))
    assert facts["core before"] == facts["core after"]
    assert "commit before" in facts
    assert "process 1 of 1: before" in capsys.readouterr().out


def test_a_library_from_elsewhere_is_an_error(tmp_path, monkeypatch):
    version = {"library": "/elsewhere/hifigemm/__init__.py", "core": "none"}
    monkeypatch.setattr(calls, "lines_of", lambda *_, **__: [version, {}])
    with pytest.raises(RuntimeError, match="/elsewhere"):
        calls.measure({"after": tmp_path}, "cpu", (2,), 1)


def test_a_folder_that_is_no_checkout_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        calls.main(["--against", str(tmp_path)])
    assert "no src/hifigemm" in capsys.readouterr().err
