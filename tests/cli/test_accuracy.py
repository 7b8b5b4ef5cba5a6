from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.cli import main
from hifigemm.testing.reference import componentwise_error, forward_errors


def lines_of(capsys):
    """Cells of the rows of the table, and everything that was printed."""
    out, err = capsys.readouterr()
    return (
        [
            line.split()
            for line in out.splitlines()
            if "  numpy  " in line or "  simulated-" in line
        ],
        out,
        err,
    )


def test_errors_are_those_of_the_judges(pair, capsys):
    a_file, b_file, a, b = pair
    assert (
        main(
            [
                "accuracy",
                a_file,
                b_file,
                "--schemes",
                "native,valero-lara-tf64x1,correct",
            ]
        )
        == 0
    )
    rows, out, _ = lines_of(capsys)
    assert [row[0] for row in rows] == ["native", "valero-lara-tf64x1", "correct"]
    c = hg.matmul(a, b, scheme=hg.Multiword("fp32", 1, 1, scale=False))
    assert rows[1][2] == f"{componentwise_error(c, a, b):.2e}"
    assert rows[1][3] == f"{forward_errors(c, a, b)['2']:.2e}"
    assert rows[2][4:6] == ["100", "%"]
    assert "7 x 5 times 5 x 3, float64" in out


def test_every_engine_gets_its_rows(tmp_path, capsys):
    rng = np.random.default_rng(1)
    for name, shape in (("a.npy", (4, 40)), ("b.npy", (40, 3))):
        np.save(tmp_path / name, rng.random(shape).astype(np.float32))
    files = [str(tmp_path / name) for name in ("a.npy", "b.npy")]
    assert main(["accuracy", *files, "--engines", "numpy,simulated-h100"]) == 0
    rows, out, _ = lines_of(capsys)
    assert [row[1] for row in rows] == ["numpy"] * 8 + ["simulated-h100"] * 8
    assert "float32" in out


def test_what_a_scheme_refuses_is_said(pair, capsys):
    a_file, b_file, _, _ = pair
    assert (
        main(
            [
                "accuracy",
                a_file,
                b_file,
                "--engines",
                "simulated-v100",
                "--schemes",
                "native,fasi-bf16",
            ]
        )
        == 0
    )
    rows, out, _ = lines_of(capsys)
    assert [row[0] for row in rows] == ["native"]
    assert "not possible: fasi-bf16 on simulated-v100" in out
    assert (
        main(
            [
                "accuracy",
                a_file,
                b_file,
                "--engines",
                "simulated-v100",
                "--schemes",
                "fasi-bf16",
            ]
        )
        == 1
    )


def test_broken_promise_ends_with_code_1(pair, capsys, monkeypatch):
    a_file, b_file, _, _ = pair
    honest = hg.matmul

    def dishonest(*args, **options):
        c, report = honest(*args, **options)
        return c * 1.25, report

    monkeypatch.setattr(hg, "matmul", dishonest)
    assert main(["accuracy", a_file, b_file, "--schemes", "ozaki2"]) == 1
    assert "breaks the bound" in capsys.readouterr().err


def test_operands_that_cannot_be_judged_are_refused(pair, tmp_path, fails):
    a_file = pair[0]
    for name, x in (
        ("inf.npy", np.full((5, 2), np.inf)),
        ("complex.npy", np.ones((5, 2), complex)),
        ("v.npy", np.ones(5)),
    ):
        np.save(tmp_path / name, x)
        text = "not finite" if name == "inf.npy" else "real matrices"
        fails(["accuracy", a_file, tmp_path / name], 2, text)
    fails(["accuracy", a_file, a_file], 2, "cannot be multiplied")


@pytest.mark.parametrize("option", ["--schemes", "--engines"])
def test_unknown_names_are_refused(pair, fails, option):
    fails(["accuracy", *pair[:2], option, "native,nonsense"], 2, "no ")


def test_empty_operands(tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.ones((3, 0)))
    np.save(tmp_path / "b.npy", np.ones((0, 2)))
    np.save(tmp_path / "c.npy", np.ones((0, 3)))
    files = [str(tmp_path / name) for name in ("a.npy", "b.npy", "c.npy")]
    assert main(["accuracy", files[0], files[1], "--schemes", "native,ozaki2"]) == 0
    assert main(["accuracy", files[2], files[0], "--schemes", "native,ozaki2"]) == 0
