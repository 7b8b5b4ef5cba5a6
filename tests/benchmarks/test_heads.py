"""Heads, skinny products and Newton-Schulz iterations: every way runs, and its error is
that of its arithmetic.
"""

from __future__ import annotations

import csv

import pytest

torch = pytest.importorskip("torch")

from benchmarks import heads  # noqa: E402

U32, U8 = 2.0**-24, 2.0**-8


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Rows of all parts at small shapes."""
    monkeypatch.setattr(heads, "TURNS", 2)
    monkeypatch.setattr(heads, "BURST_SECONDS", 0.0)
    path = tmp_path / "heads.csv"
    assert heads.main(["--device", "cpu", "--small", "--output", str(path)]) == 0
    assert path.with_suffix(".env.json").exists()
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_errors_are_those_of_the_arithmetic(rows):
    """A product errs by (k + 1) u |A||B| in any order [Hig02, Sec. 3.1], a correctly
    rounded one by u |AB|. TF32 and BF16 round operands or results to 8 bits at least.
    1e-6 + u is below (k + 1) u for k = 32.
    """
    products = [row for row in rows if row["part"] != "muon"]
    assert {row["part"] for row in rows} == set(heads.PARTS)
    for row in products:
        assert float(row["least"]) > 0
        k = int(row["k"])
        if "correct" in row["way"]:
            most = U32
        elif "tf32" in row["way"] or "bf16" in row["way"]:
            most = 3 * U8 + (k + 1) * U32
        else:
            most = (k + 1) * U32
        assert float(row["error"]) <= most, row


def test_newton_schulz_maps_singular_values_by_its_polynomial():
    """Where all singular values are one, the result is a multiple of the matrix.

    A step multiplies errors by the derivative a + 3 b s^2 + 5 c s^4 of the polynomial
    at most, in magnitudes, below 50 for s <= 1.21, and adds errors below 200 u.
    """
    first, second, third = heads.MUON
    generator = torch.Generator().manual_seed(0)
    for m, n in ((16, 16), (24, 16), (16, 24)):
        square = torch.randn(m, n, dtype=torch.float64, generator=generator)
        u, _, v = torch.linalg.svd(square, full_matrices=False)
        value = 16**-0.5
        for _ in range(5):
            value = first * value + second * value**3 + third * value**5
            assert value <= 1.21
        distance = heads.newton_schulz(u @ v) - value * (u @ v)
        assert torch.linalg.norm(distance) <= 50**5 * 200 * 2.0**-53


def test_ways_of_muon_differ_by_their_arithmetic(rows):
    errors = {
        row["way"]: float(row["error"])
        for row in rows
        if row["part"] == "muon" and row["m"] == "24"
    }
    assert errors["torch, ieee"] < 1e-3 < errors["torch, bf16"]
    assert errors["hg, correct"] < 1e-3


def test_unknown_parts_are_named(capsys):
    with pytest.raises(SystemExit):
        heads.parse(["--parts", "head,tail"])
    assert "no part tail" in capsys.readouterr().err
