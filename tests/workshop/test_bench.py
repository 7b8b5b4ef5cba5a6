from __future__ import annotations

import csv
import json

import pytest

import hifigemm as hg
from benchmarks import common, dgemm, sgemm
from hifigemm.cli import main
from hifigemm.workshop import bench

pytestmark = pytest.mark.usefixtures("short")


def run(*argv):
    return main(["bench", "--quick", *map(str, argv)])


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_table_and_file_have_a_line_for_each_case_and_size(tmp_path, capsys):
    path = tmp_path / "new" / "b.csv"
    assert run("--sizes", "16,24", "--schemes", "auto,ozaki2:15", "--csv", path) == 0
    out = capsys.readouterr().out
    assert "24 x 24 times 24 x 24, float64, phi0.5" in out
    found = read(path)
    assert [(row["case"], row["n"]) for row in found] == [
        (case, n) for n in ("16", "24") for case in ("native", "auto", "ozaki2:15")
    ]
    assert {row["status"] for row in found} == {"timed"}
    assert all(float(row["error"]) <= float(row["bound"]) + 2.0**-53 for row in found)
    assert all(
        float(row[name]) > 0
        for row in found
        for name in ("burst_tflops", "sustained_tflops", "ratio_to_native")
    )
    described = json.loads(path.with_suffix(".env.json").read_text())
    assert described["ceilings"].keys() == {"copy", "fp64", "fp32"}
    assert described["method"]["bursts"] == 1


def test_the_lines_below_the_tables_are_those_of_their_columns(capsys):
    assert run("--sizes", "8", "--schemes", "auto") == 0
    out = capsys.readouterr().out.splitlines()
    (head,) = (line for line in out if line.startswith("case "))
    columns = [x.strip() for x in head.split("  ") if x.strip()][2:]
    notes = out[-len(columns) :]
    assert [note.split("  ")[0] for note in notes] == columns
    assert "roof" not in columns
    assert "GFLOP/s" in notes[0]
    assert "T/s" not in out[0]
    assert out[0].count("GB/s") + out[0].count("MB/s") == 1


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_the_correctly_rounded_product_is_among_what_is_measured_by_default(
    dtype, capsys
):
    assert run("--sizes", "8", "--dtype", dtype) == 0
    assert "\nauto@correct  eager" in capsys.readouterr().out


def test_a_busy_machine_is_said_below_its_table(capsys, monkeypatch):
    monkeypatch.setattr("hifigemm.workshop.measuring.ceilings._LEAST_BUSY", {"cpu": 8})
    monkeypatch.setattr(
        bench, "measured_ceilings", lambda *_: {"copy": 1e9, "fp64": 1e15}
    )
    assert run("--sizes", "8", "--schemes", "auto") == 0
    assert "this machine is busy: the native product of 8 x 8 x 8 ran at" in (
        capsys.readouterr().out
    )


def test_shapes_stacks_families_and_dtypes(tmp_path):
    path = tmp_path / "b.csv"
    shapes = ("--shapes", "5,3,70", "1,4,9")
    assert (
        run(
            *shapes,
            "--batch",
            3,
            "--dtype",
            "complex64",
            "--family",
            "type2",
            "--csv",
            path,
        )
        == 0
    )
    found = read(path)
    assert {tuple(row[x] for x in ("m", "n", "k")) for row in found} == {
        ("5", "3", "70"),
        ("1", "4", "9"),
    }
    assert {(row["batch"], row["dtype"], row["family"]) for row in found} == {
        ("3", "complex64", "type2")
    }


def test_a_wrong_result_ends_with_code_1_and_has_no_time(tmp_path, capsys, monkeypatch):
    honest = hg.matmul

    def dishonest(a, b, **options):
        c = honest(a, b, **options)
        if options.get("out") is not None and options.get("scheme") != "auto":
            options["out"][-1, -1] += 1e-9
        return c

    monkeypatch.setattr(hg, "matmul", dishonest)
    path = tmp_path / "b.csv"
    assert run("--sizes", "20", "--schemes", "auto,ozaki2:15", "--csv", path) == 1
    out, err = capsys.readouterr()
    assert "ozaki2:15, eager: refused: an error of" in out
    assert "hifigemm: error: ozaki2:15, eager" in err
    native, auto, wrong = read(path)
    assert native["status"] == auto["status"] == "timed"
    assert wrong["status"].startswith("refused")
    assert (
        wrong["burst_seconds"]
        == wrong["sustained_tflops"]
        == wrong["ratio_to_native"]
        == ""
    )


def test_what_is_not_possible_is_said(capsys):
    assert run("--sizes", "8", "--schemes", "native@correct,cublas-emulated") == 0
    out = capsys.readouterr().out
    assert "native@correct, eager: failed: " in out
    assert (
        "cublas-emulated, eager: failed: cublas-emulated is not installed here" in out
    )


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--schemes", "strassen"], "no scheme 'strassen'"),
        (["--schemes", "ozaki2:14:15"], "no count or option of ozaki2"),
        (["--sizes", "0"], "not an integer from 1 to"),
        (["--shapes", "1,2"], "expected three sizes"),
        (["--sizes", "8", "--shapes", "8,8,8"], "not allowed with"),
        (["--family", "phi"], "no family 'phi'"),
        (["--dtype", "float16"], "invalid choice"),
    ],
)
def test_unknown_words_are_refused(fails, argv, text):
    fails(["bench", *argv], 2, text)


def test_options_without_their_device_are_refused(fails, tmp_path):
    fails(["bench", "--device", "cuda"], 2, "needs torch and a CUDA device")
    fails(["bench", "--mode", "graph"], 2, "CUDA graphs need --device cuda")
    (tmp_path / "file").write_text("")
    fails(["bench", "--csv", tmp_path / "file" / "b.csv"], 2, "cannot be written")


@pytest.mark.parametrize("script", [dgemm, pytest.param(sgemm, marks=pytest.mark.slow)])
def test_scripts_write_their_rows_as_they_come(
    script, short, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(common, "QUICK", short)
    monkeypatch.setattr(common, "cuda_is_usable", lambda: False)
    monkeypatch.setattr(sgemm, "LONG", 300)
    assert script.main(["--quick", "--sizes", "8"]) == 0
    [path] = (tmp_path / "results").glob(
        f"{script.__name__.split('.')[-1]}_cpu_????-??-??.csv"
    )
    found = read(path)
    assert {row["part"] for row in found} == set(script.PARTS)
    assert {row["case"] for row in found if row["part"] == "times"} >= {
        "native",
        "auto",
    }
    assert {row["status"] for row in found} <= {"timed", "checked"}
    assert all(row["error"] and row["normwise_error"] for row in found)
    assert all(
        bool(row["burst_seconds"]) == (row["status"] == "timed") for row in found
    )
    capsys.readouterr()
    assert (
        script.main(
            ["--quick", "--sizes", "6,8", "--parts", "times", "--output", "other.csv"]
        )
        == 0
    )
    assert {row["n"] for row in read(tmp_path / "other.csv")} == {"6", "8"}
    assert "auto" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        script.main(["--parts", "nothing"])
