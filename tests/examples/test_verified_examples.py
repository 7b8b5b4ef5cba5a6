"""The programs of examples/ that solve systems with proof: what they are there to
show.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture
def main(monkeypatch):
    """main(name): the function of that name of a program."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return lambda name: importlib.import_module(name).main


def test_numpy_has_no_digit_of_a_hilbert_system_and_the_proof_has_all(main):
    rows = main("hilbert_system")(["--size", "13"])
    assert rows[13][0] < 1.0
    assert min(proven for _, proven in rows.values()) >= 15.0


def test_coefficients_of_a_metric_are_enclosed_where_numpy_errs(main):
    rows = main("fitting_metric")([])
    assert all(row["radius"] <= 2.0**-52 for row in rows.values())
    assert all(row["error"] > row["radius"] for row in rows.values())
    assert rows[1.2]["error"] > 0.01


def test_a_process_whose_factor_fails_has_a_verified_mean(main):
    row = main("verified_gaussian_process")([])
    assert row["failed"] == 1.0
    assert row["definite"] == 0.0
    assert row["radius"] <= 1.0
    assert row["error"] < row["of jitter"]
