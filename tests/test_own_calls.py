"""Counts of the library's own calls: of functions of one package, in a fresh process for
each kind of call.
"""

from __future__ import annotations

import csv

import pytest

from tools import own_calls


def test_calls_count_functions_of_the_package_alone(tmp_path):
    path = tmp_path / "p" / "a.py"
    text = "class Inner:\n    pass\ndef f():\n    return [g(), g(), sorted([2, 1])]\ndef g():\n    return 1\n"
    space: dict = {}
    exec(compile(text, str(path), "exec"), space)
    assert own_calls.calls_of(space["f"], tmp_path / "p") == (3, 1)
    assert own_calls.calls_of(space["f"], tmp_path / "other") == (0, 0)
    assert own_calls.calls_of(
        lambda: exec(compile(text, str(path), "exec"), {}), tmp_path / "p"
    ) == (0, 0)


def test_names_of_kinds_differ():
    names = [name for kind in own_calls.KINDS for name in kind()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", [own_calls.PLAIN, "prepared"])
def test_a_repeated_call_takes_no_more_than_the_first(name):
    counts = own_calls.counts_of(name)
    assert counts["call"] == name
    assert 0 < counts["repeated_files"] <= counts["first_files"]
    assert 0 < counts["repeated_calls"] <= counts["first_calls"]
    assert counts["first_files"] <= counts["imported_files"]


def test_counts_are_the_same_in_each_process():
    assert own_calls.counts_of(own_calls.PLAIN) == own_calls.counts_of(own_calls.PLAIN)


def test_script_writes_a_line_for_each_kind(tmp_path, capsys):
    path = tmp_path / "calls.csv"
    name = 'result="pair"'
    assert own_calls.main(["--names", name, "--output", str(path)]) == 0
    with path.open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row["call"] == name
    assert int(row["first_calls"]) >= int(row["repeated_calls"]) > 0
    assert path.with_suffix(".env.json").exists()
    assert name in capsys.readouterr().out
