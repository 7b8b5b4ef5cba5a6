"""Predictions for cards with few FP64 units: the model, and the page that shows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments import weak_fp64
from experiments.weak_fp64 import (
    CARDS,
    MEASURED,
    predictions,
    seconds_of_modes,
    table,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.setattr(weak_fp64, "RESULTS", ROOT / "results")


@pytest.fixture
def row():
    rows = weak_fp64.read(weak_fp64.MODES)
    return next(row for row in rows if row["case"] == "ozaki1:fp16:dp")


@pytest.fixture
def own(row):
    return MEASURED[row["device"]]


def test_a_card_is_predicted_as_it_was_measured(row, own):
    found = seconds_of_modes(row, own)
    assert sum(found.values()) == pytest.approx(float(row["seconds_total"]))


def test_each_stage_follows_its_own_peak(row, own):
    plain = seconds_of_modes(row, own)
    slow_unit = seconds_of_modes(row, replace(own, fp16=own.fp16 / 2))
    assert slow_unit == plain | {"products": 2 * plain["products"]}
    slow_memory = seconds_of_modes(row, replace(own, memory=own.memory / 2))
    passes = {key: 2 * plain[key] for key in ("count", "slices", "sums", "passes")}
    assert slow_memory == plain | passes


def test_fp64_instructions_bound_a_pass_where_units_are_few(row, own):
    token = replace(own, fp64=1e9)
    found = seconds_of_modes(row, token)
    for stage, count in weak_fp64.fp64_instructions(row).items():
        assert found[stage] == 2 * count / 1e9


def test_the_page_has_the_predictions():
    rows = [line for card in CARDS for line in predictions(card)]
    page = (ROOT / "docs" / "hardware.md").read_text("utf-8")
    assert table(rows) in page
