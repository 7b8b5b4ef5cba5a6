from __future__ import annotations

import csv

import numpy as np
import pytest

from hifigemm.cli import main
from hifigemm.workshop.plots import DRAWINGS, find_drawing

HEADERS = {
    "mantissa": "format,high,low,expected_length,sampled_length,sampling_error,share_23,share_22",
    "underflow": "exponent,rounding,shift,event,formula,counted,sampled",
}
LINES = {
    "mantissa": [
        "fp16,nearest,nearest,22.75,22.7,0.1,0.75,0.25",
        "bf16,zero,zero,22.25,22.2,0.1,0.5,0.5",
    ],
    "underflow": [
        "-3,nearest,0,zero,0.5,0.5,0.5",
        "0,zero,11,subnormal or zero,0.1,0.1,0.1",
    ],
}


def write(path, name):
    path.write_text("\n".join([HEADERS[name], *LINES[name]]) + "\n", encoding="utf-8")
    return path


def test_picture_lies_beside_the_file_unless_told(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    data = write(tmp_path / "renamed.csv", "mantissa")
    assert main(["plot", str(data)]) == 0
    assert (tmp_path / "renamed.png").read_bytes().startswith(b"\x89PNG")
    data = write(data, "underflow")
    assert main(["plot", str(data), "-o", str(tmp_path / "other.svg")]) == 0
    assert b"<svg" in (tmp_path / "other.svg").read_bytes()
    assert capsys.readouterr().out.splitlines() == [
        str(tmp_path / "renamed.png"),
        str(tmp_path / "other.svg"),
    ]


def test_files_of_the_demo_are_known(tmp_path):
    pytest.importorskip("matplotlib")
    with (tmp_path / "demo.csv").open("w", newline="") as file:
        columns = [
            "problem",
            "scheme",
            "error",
            "guaranteed",
            "relative_error",
            "share_correct",
        ]
        csv.writer(file).writerows(
            [columns, ["phi = 1", "native", 1e-16, 1e-14, 1e-12, 0.5]]
        )
    assert main(["plot", str(tmp_path / "demo.csv")]) == 0
    assert (tmp_path / "demo.png").exists()


def test_what_cannot_be_drawn_is_said(tmp_path, fails):
    pytest.importorskip("matplotlib")
    fails(["plot", tmp_path / "missing.csv"], 2, "cannot be read")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    fails(["plot", tmp_path / "other.csv"], 2, "no picture for these columns: a, b")
    (tmp_path / "empty.csv").write_text("")
    fails(["plot", tmp_path / "empty.csv"], 2, "no rows")
    np.save(tmp_path / "array.npy", np.ones(3))
    fails(["plot", tmp_path / "array.npy"], 2, "not a CSV file")
    data = write(tmp_path / "x.csv", "underflow")
    fails(["plot", data, "-o", tmp_path / "x.txt"], 2, "a picture ends in")
    fails(["plot", data, "-o", tmp_path / "nowhere" / "x.png"], 2, "no folder")
    data.write_text(data.read_text().replace("0.5,0.5,0.5", "0.5,many,0.5"))
    fails(["plot", data], 2, "does not hold what its column says")
    data.write_text(data.read_text().replace("counted", "guessed"))
    fails(["plot", data], 2, "no column 'counted'")
    assert not (tmp_path / "x.png").exists()


def test_experiments_are_told_apart_by_columns():
    for name, drawing in DRAWINGS.items():
        row = dict.fromkeys(drawing.columns.split(), "0") | (
            dict([drawing.marks]) if drawing.marks else {}
        )
        assert find_drawing([row]) == name
    assert find_drawing([]) is None
