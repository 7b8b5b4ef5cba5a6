from __future__ import annotations

import csv

import numpy as np
import pytest

import hifigemm as hg
from benchmarks import stages
from benchmarks.stages import Stage, stage_rows
from hifigemm.workshop.measuring.timing import Method
from tests.workshop.measuring.stand_ins import METHOD, Steps


def test_stages_stand_beside_their_floors():
    parts = [
        Stage("bytes", lambda: None, nbytes=100.0, operations=10.0),
        Stage("operations", lambda: None, nbytes=1.0, operations=800.0),
        Stage("nothing", lambda: None),
    ]
    clock = Steps()
    found = stage_rows(parts, clock, METHOD, {"int8": 1600.0}, copy_rate=400.0)
    assert clock.bare == [stage.run for stage in parts]
    assert [row["floor_microseconds"] for row in found] == [250_000.0, 500_000.0, 0.0]
    assert [row["ratio_to_floor"] for row in found] == [4.0, 2.0, ""]


def test_the_last_stage_ends_with_the_product(make_pair, assert_same_bits):
    a, b = make_pair("phi_1", 7, 20, 5)
    scheme = hg.Ozaki2(num_moduli=14, scaling="fast")
    *_, last = stages.stages(a, b, scheme)
    (values,) = last.run().values
    assert_same_bits(values, hg.matmul(a, b, scheme=scheme))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_script_writes_a_line_for_each_stage(tmp_path, monkeypatch, capsys, dtype):
    short = Method(pause=0.0, warm=0, calls=(1, 1), bursts=1, sustained=0.0)
    monkeypatch.setattr(stages, "METHOD", short)
    monkeypatch.setattr("benchmarks.common.cuda_is_usable", lambda: False)
    monkeypatch.setattr("hifigemm.workshop.measuring.ceilings._SIZE", {"cpu": 16})
    monkeypatch.setattr(
        "hifigemm.workshop.measuring.ceilings._COPY_BYTES", {"cpu": 1 << 12}
    )
    path = tmp_path / "stages.csv"
    options = ["--sizes", "8,16", "--dtype", dtype, "--output", str(path)]
    assert stages.main(options) == 0
    with path.open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    names = ["residues of A", "residues of B", "products, reconstruction"]
    assert [row["stage"] for row in found] == 4 * names
    assert [row["n"] for row in found] == 6 * ["8"] + 6 * ["16"]
    assert all(float(row["microseconds"]) > 0 for row in found)
    assert "products, reconstruction" in capsys.readouterr().out


def test_products_in_blocks_have_no_stages(monkeypatch):
    monkeypatch.setattr(stages, "workspace_limit", lambda *_: 20000)
    a = np.ones((60, 40))
    assert stages.stages(a, a.T, hg.Ozaki2(num_moduli=14, scaling="fast")) == []
