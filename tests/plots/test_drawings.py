from __future__ import annotations

import csv

import pytest

from hifigemm.cli import main
from hifigemm.workshop import bench
from plots import experiments
from plots.drawings import DRAWINGS, draw, find_drawing, read_rows

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


def drawn(monkeypatch, *files):
    """Run the script on these files."""
    monkeypatch.setattr("sys.argv", ["plots.experiments", *map(str, files)])
    experiments.main()


def test_pictures_lie_beside_their_files(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    files = [write(tmp_path / f"{name}-renamed.csv", name) for name in HEADERS]
    drawn(monkeypatch, *files)
    pictures = [file.with_suffix(".png") for file in files]
    assert capsys.readouterr().out.splitlines() == [str(path) for path in pictures]
    for path in pictures:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_files_of_no_experiment_are_named(tmp_path, monkeypatch):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit, match="the columns are those of no experiment"):
        drawn(monkeypatch, tmp_path / "other.csv")


def test_files_of_the_demo_are_known(tmp_path, monkeypatch):
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
    drawn(monkeypatch, tmp_path / "demo.csv")
    assert (tmp_path / "demo.png").exists()


def test_experiments_are_told_apart_by_columns():
    for name, drawing in DRAWINGS.items():
        row = dict.fromkeys(drawing.columns.split(), "0") | (
            dict([drawing.marks]) if drawing.marks else {}
        )
        assert find_drawing([row]) == name
    assert find_drawing([]) is None


@pytest.mark.usefixtures("short")
def test_figures_of_the_bench_are_drawn_under_the_highest_roof(tmp_path, monkeypatch):
    path = tmp_path / "b.csv"
    monkeypatch.setattr(bench, "peak_rates", lambda name: {"int8": 15e12, "fp64": 1e12})
    line = f"bench --quick --sizes 8,16 --schemes ozaki2:15,ozaki2:20 --csv {path}"
    assert main(line.split()) == 0
    found = read_rows(path)
    assert find_drawing(found) == "throughput"
    pytest.importorskip("matplotlib")
    figure = draw("throughput", found)
    assert [axes.get_ylim()[1] for axes in figure.axes] == [1.0, 1.0]
    assert all(len(axes.get_lines()) == 3 for axes in figure.axes)
