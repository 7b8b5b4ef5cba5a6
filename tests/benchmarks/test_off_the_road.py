"""Rows beside the plain call: every one can be made, and the least of the processes
counts.
"""

from __future__ import annotations

import csv

import numpy as np
import pytest

from benchmarks import off_the_road
from benchmarks.off_the_road import Row, least_of


def rows_that_are_quick():
    """Rows of NumPy, without large matrices and new processes."""
    rows = list(off_the_road.rows_of_vectors())
    rows += off_the_road.rows_of_small_matrices()
    rows += off_the_road.rows_of_prepared_arrays()
    rows += off_the_road.rows_of_gemm()
    rows += off_the_road.rows_of_narrow_results()
    rows += off_the_road.rows_of_functions()
    rows += off_the_road.rows_of_systems()
    return [row for row in rows if "1024" not in row.name]


def close(x, y):
    return np.allclose(np.asarray(x), np.asarray(y), rtol=1e-2, atol=1e-2)


@pytest.mark.slow
def test_names_differ():
    sizes = off_the_road.SIZES["cpu"]
    names = [row.name for row in off_the_road.rows("cpu", sizes)]
    assert len(set(names)) == len(names)


def test_rows_of_arrays_can_be_made():
    with np.errstate(all="ignore"):
        for row in rows_that_are_quick():
            plain, result = row.plain(), row.call()
            if row.beside == '"correct"':
                assert close(plain, result), row.name


def test_pairs_of_a_dot_are_made_of_the_correct_value():
    for row in off_the_road.rows_of_wide_exponents():
        if "dot" in row.name:
            high, _ = row.call()
            assert high == row.plain(), row.name


def test_rows_of_tensors_can_be_made():
    pytest.importorskip("torch")
    rows = [
        *off_the_road.rows_of_tensors("cpu", 6),
        *off_the_road.rows_of_layouts("cpu", 6),
        *off_the_road.rows_of_scopes("cpu", 6),
    ]
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        row.plain()
        row.call()


def test_rows_come_from_tables_and_torch_is_optional(monkeypatch):
    monkeypatch.setattr(off_the_road, "find_spec", lambda name: None)
    for name in ("vectors", "prepared_arrays", "wide_exponents", "systems", "import"):
        monkeypatch.setattr(off_the_road, f"rows_of_{name}", lambda: iter(()))
    names = [row.name for row in off_the_road.rows("cpu", (4,))]
    assert 'gemm(3, 1), n = 16, "correct"' in names
    assert not any(name.startswith("tensors") for name in names)


def test_the_least_of_the_processes_counts():
    line = {"name": "x", "beside": "y"}
    first = [line | {"plain_us": 2.0, "us": 9.0}, line | {"failed": "no memory"}]
    second = [line | {"plain_us": 4.0, "us": 6.0}, line | {"plain_us": 1.0, "us": 1.0}]
    assert least_of([first, second]) == [
        line | {"plain_us": 2.0, "us": 6.0, "ratio": 3.0},
        line | {"failed": "no memory"},
    ]


def test_a_call_that_fails_is_named(monkeypatch, capsys):
    def fails():
        raise RuntimeError("no such product\nand more")

    rows = [Row("x", "y", lambda: None, fails)]
    monkeypatch.setattr(off_the_road, "rows", lambda *_: rows)
    off_the_road.run_process("cpu", (4,), "")
    assert '"failed": "no such product"' in capsys.readouterr().out


def test_script_writes_a_line_for_each_row(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    name = "matrix by vector, n = 8"
    options = ["--names", name, "--sizes", "4", "--processes", "1"]
    assert off_the_road.main([*options, "--output", str(path)]) == 0
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [f"{name}, default", f'{name}, "correct"']
    assert all(float(row["us"]) > 0 < float(row["plain_us"]) for row in rows)
    assert path.with_suffix(".env.json").exists()
    assert name in capsys.readouterr().out
