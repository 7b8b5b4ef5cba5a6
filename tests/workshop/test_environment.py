import csv
import json
import subprocess

import numpy as np

from hifigemm.workshop.environment import environment, write_csv


def test_environment_says_what_decides_bits_and_times():
    found = environment(device="none")
    assert json.loads(json.dumps(found)) == found
    assert found["numpy"] == np.__version__
    assert found["device"] == "none"
    assert found["cores"] >= 1
    assert all(found[key] for key in ("python", "blas", "system", "cpu", "date"))


def test_commit_is_that_of_the_checkout_and_marks_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment()["commit"] is None
    (tmp_path / "file").write_text("1")
    identity = [
        "-c",
        "user.name=n",
        "-c",
        "user.email=e@example.org",
        "-c",
        "commit.gpgsign=false",
    ]
    for command in (
        ["init", "-q"],
        ["add", "file"],
        [*identity, "commit", "-q", "-m", "one"],
    ):
        subprocess.run(["git", *command], check=True, capture_output=True)
    commit = environment()["commit"]
    assert len(commit) == 40
    (tmp_path / "file").write_text("2")
    assert environment()["commit"] == commit + "+"


def test_csv_gives_floats_back_exactly_and_names_every_column(tmp_path):
    path = tmp_path / "new" / "errors.csv"
    rows = [
        {"n": np.int64(3), "error": 0.1 + 0.2},
        {"n": 4, "error": np.float32(0.1), "note": "a, b"},
    ]
    write_csv(path, rows, seed=7)
    with path.open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [float(row["error"]) for row in read] == [0.1 + 0.2, float(np.float32(0.1))]
    assert [(row["n"], row["note"]) for row in read] == [("3", ""), ("4", "a, b")]
    described = json.loads((tmp_path / "new" / "errors.env.json").read_text())
    assert described["seed"] == 7
    assert described["numpy"] == np.__version__
