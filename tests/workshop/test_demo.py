from __future__ import annotations

import csv
import json
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.cli import main
from hifigemm.workshop import demo

PNG = b"\x89PNG\r\n\x1a\n"
needs_matplotlib = pytest.mark.skipif(
    find_spec("matplotlib") is None, reason="needs matplotlib"
)


def run(folder, *argv):
    return main(["demo", "--output", str(folder / "demo.png"), *argv])


def read_rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    assert run(folder, "--size", "24") == 0
    return folder


@pytest.fixture
def undrawn(monkeypatch):
    """No picture, as without matplotlib."""
    monkeypatch.setattr(demo, "find_spec", lambda name: None)


def test_every_scheme_is_held_against_every_problem(small):
    rows = read_rows(small / "demo.csv")
    assert (
        len({(row["problem"], row["scheme"]) for row in rows})
        == len(rows)
        == 4 * len(demo.SCHEMES)
    )
    assert all(row["promise_kept"] == "True" for row in rows)
    assert all(float(row["error"]) <= float(row["guaranteed"]) for row in rows)
    correct = [row for row in rows if "correct" in row["scheme"]]
    assert all(float(row["share_correct"]) == 1.0 for row in correct)
    assert all(float(row["relative_error"]) <= 2.0**-53 for row in correct)
    assert all(
        float(row["share_correct"]) < 1.0 for row in rows if row["scheme"] == "native"
    )
    assert "numpy" in json.loads((small / "demo.env.json").read_text())


@needs_matplotlib
def test_picture_is_drawn(small):
    assert (small / "demo.png").read_bytes().startswith(PNG)


@pytest.mark.usefixtures("undrawn")
def test_table_has_a_line_for_each_scheme(tmp_path, capsys):
    assert run(tmp_path, "--size", "3", "--seed", "5") == 0
    out, _ = capsys.readouterr()
    for scheme in demo.SCHEMES:
        assert sum(f"  {scheme}  " in line for line in out.splitlines()) == 4
    assert str(tmp_path / "demo.csv") in out
    assert max(map(len, out.splitlines())) <= 140


@pytest.mark.usefixtures("undrawn")
def test_without_matplotlib_the_rest_is_done(tmp_path, capsys):
    assert run(tmp_path, "--size", "3") == 0
    assert "picture: none, matplotlib is not installed" in capsys.readouterr().out
    assert (tmp_path / "demo.csv").exists()
    assert not (tmp_path / "demo.png").exists()


@pytest.mark.usefixtures("undrawn")
def test_without_flint_the_numbers_are_the_same(small, tmp_path, monkeypatch):
    monkeypatch.setattr("hifigemm.testing.exact.find_spec", lambda name: None)
    assert run(tmp_path, "--size", "24") == 0
    for row, other in zip(
        read_rows(small / "demo.csv"), read_rows(tmp_path / "demo.csv"), strict=True
    ):
        assert {key: row[key] for key in row if "time" not in key} == {
            key: other[key] for key in row if "time" not in key
        }


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"bound": 0.0}, "breaks the reported bound"),
        ({"correct": True}, "are not correctly rounded"),
    ],
)
def test_report_that_promises_too_much_is_found_out(
    tmp_path, capsys, monkeypatch, change, text
):
    matmul = hg.matmul

    def boast(a, b, **options):
        result, report = matmul(a, b, **options)
        return result, report.changed(
            lambda d: replace(d, **change)
        ) if report.native else report

    monkeypatch.setattr(hg, "matmul", boast)
    assert run(tmp_path, "--size", "8") == 1
    assert text in capsys.readouterr().err
    assert (tmp_path / "demo.csv").exists()


@pytest.mark.usefixtures("undrawn")
def test_wrong_result_under_a_correct_report_is_found_out(
    tmp_path, capsys, monkeypatch
):
    matmul = hg.matmul

    def spoil(a, b, **options):
        result, report = matmul(a, b, **options)
        result[0, 0] = np.nextafter(result[0, 0], np.inf)
        return result, report

    monkeypatch.setattr(hg, "matmul", spoil)
    assert run(tmp_path, "--size", "8") == 1
    assert "are not correctly rounded" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_correct_without_the_reports_word_is_found_out(tmp_path, capsys, monkeypatch):
    matmul = hg.matmul
    monkeypatch.setattr(
        hg, "matmul", lambda a, b, accuracy=None, **options: matmul(a, b, **options)
    )
    assert run(tmp_path, "--size", "8") == 1
    assert (
        "does not say that the result is correctly rounded" in capsys.readouterr().err
    )


def test_impossible_outputs_and_sizes_are_refused(tmp_path, fails):
    fails(["demo", "-o", tmp_path / "demo.txt"], 2, ".png, .svg, .pdf")
    fails(["demo", "-o", tmp_path / "missing" / "demo.png"], 2, "no folder")
    (tmp_path / "demo.csv").mkdir()
    fails(["demo", "-o", tmp_path / "demo.png"], 2, "not a regular file")
    for option in ("--size=0", "--size=many", "--seed=-1"):
        fails(["demo", option], 2, "is not an integer from")


@pytest.mark.slow
def test_full_demo_keeps_every_promise(tmp_path):
    assert run(tmp_path) == 0
