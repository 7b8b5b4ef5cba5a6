"""The last row of each experiment on a CPU is that of its file in results/."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments import (
    accumulation,
    forward_errors,
    graded_lu,
    last_bit,
    mantissa,
    moduli,
    ozaki_modes,
    reproducibility,
    residuals,
    sparse_slices,
    underflow,
    weak_fp64,
)
from hifigemm.base.formats import FORMATS, FP64
from plots.drawings import read_rows

ROOT = Path(__file__).parents[2]
U = FP64.u


def committed(experiment):
    """The rows of an experiment's file."""
    return read_rows(ROOT / "results" / f"{experiment.__name__.split('.')[-1]}.csv")


def text(value):
    """A value as the file has it."""
    return str(value.item() if isinstance(value, np.generic) else value)


def assert_same(found, row, tolerances=()):
    """Each column is the same; those with a tolerance differ by so much at most."""
    tolerances = dict(tolerances)
    for name, value in found.items():
        if name in tolerances:
            assert abs(value - float(row[name])) <= tolerances[name], name
        else:
            assert text(value) == row[name], name


def sums_in_float64(a, b):
    """How far norm(C - R) / norm(R) may move with R, the product in float64: whatever
    the order of its sums, it errs by at most k u |A||B|.
    """
    a, b = (x.astype(np.float64) for x in (a, b))
    sizes = np.linalg.norm(np.abs(a) @ np.abs(b)) / np.linalg.norm(a @ b)
    return 2 * a.shape[1] * U * sizes


def only(experiment, name, monkeypatch, *keys):
    """Leave these of the experiment's ways, the last one by default."""
    ways = getattr(experiment, name)
    keys = keys or list(ways)[-1:]
    monkeypatch.setattr(experiment, name, {key: ways[key] for key in keys})


RESIDUALS = [
    ("uniform on (-1, 1)", "corrected FP16, rows and columns scaled, blocks of 64"),
    ("exponents in (-100, -35)", "FP32, one sum in order of k"),
    *(
        pytest.param(inputs, method, marks=pytest.mark.slow)
        for inputs, _ in residuals.inputs()
        for method in residuals.METHODS
    ),
]


@pytest.mark.parametrize(("inputs", "method"), RESIDUALS)
def test_residuals_at_the_last_length(inputs, method, monkeypatch):
    """k = 65536, where "auto" may cut k, and a named scheme does not."""
    draw = dict(residuals.inputs())[inputs]
    only(residuals, "METHODS", monkeypatch, method)
    k = max(residuals.LENGTHS)
    row = next(
        row
        for row in committed(residuals)
        if (row["inputs"], row["k"], row["method"]) == (inputs, str(k), method)
    )
    block = int(row["rows_and_columns"])
    (found,) = residuals.measure(inputs, draw, block, k)
    operands = draw(np.random.default_rng([residuals.SEED, k]), block, k)
    assert_same(found, row, {"residual": sums_in_float64(*operands)})


@pytest.mark.parametrize(
    ("experiment", "name"), [(accumulation, "UNITS"), (last_bit, "METHODS")]
)
def test_sums_of_one_length(experiment, name, monkeypatch):
    only(experiment, name, monkeypatch)
    row = committed(experiment)[-1]
    (found,) = experiment.measure(row["inputs"], int(row["k"]), 64)
    # The operands are positive: |A||B| = |A B|.
    assert_same(found, row, {"residual": 2 * int(row["k"]) * U})


@pytest.mark.parametrize("n", [256, pytest.param(8192, marks=pytest.mark.slow)])
def test_forward_errors_of_three_products(n, monkeypatch):
    """3x TF32 for the means of two uniforms of [VLVJ23]."""
    only(forward_errors, "TENSOR_CORE", monkeypatch, "3x TF32")
    monkeypatch.setattr(
        forward_errors,
        "double_products",
        lambda a, b: {"DGEMM": a @ b, "3x TF64": a @ b},
    )
    found = {row["curve"]: row for row in forward_errors.measure(n, 256)}
    row = next(
        row
        for row in committed(forward_errors)
        if (row["curve"], row["n"], row["source"]) == ("3x TF32", str(n), "computed")
    )
    # Norms of |A||B| are at most the products of the operands' norms.
    tolerances = {f"norm_{name}": 2 * n * U for name in ("1", "2", "inf")}
    assert_same(found["3x TF32"], row, tolerances)


def test_two_words():
    row = committed(mantissa)[-1]
    fmt = FORMATS[row["format"]]
    assert_same(mantissa.measure(fmt, row["high"], row["low"], 1_000_000), row)


def test_underflow():
    row = committed(underflow)[-1]
    found = underflow.measure(
        int(row["exponent"]), row["rounding"], int(row["shift"]), int(row["samples"])
    )
    assert_same(found[-1], row)


def test_graded_lu(monkeypatch):
    """The products are rounded correctly; the order of all other sums is that of this
    computer's NumPy, worth a unit roundoff.
    """
    only(graded_lu, "WAYS", monkeypatch)
    row = committed(graded_lu)[-1]
    (found,) = graded_lu.measure(int(row["n"]), int(row["span"]))
    assert_same(found, row, {"backward_error": 1.0})


def test_a_correct_product_has_the_digest_of_the_file(monkeypatch):
    only(reproducibility, "METHODS", monkeypatch)
    row = committed(reproducibility)[-1]
    monkeypatch.setattr(
        reproducibility,
        "ways",
        lambda multiply, a, b: [(row["way"], multiply(b.T, a.T).T)],
    )
    (found,) = reproducibility.measure(reproducibility.SHAPE)
    assert_same(found, row)


def test_moduli_at_the_widest_exponents():
    """All counts and ways to scale; the native product is that of a BLAS."""
    rows = committed(moduli)[-41:]
    for found, row in zip(moduli.measure(4.0, 1024, 64)[1:], rows[1:], strict=True):
        assert_same(found, row)


def test_zeros_of_slices(monkeypatch):
    only(sparse_slices, "WAYS", monkeypatch)
    row = committed(sparse_slices)[-1]
    found = sparse_slices.measure(float(row["phi"]), int(row["k"]))
    assert_same(found[-1], row)


@pytest.mark.parametrize("n", [512, pytest.param(7168, marks=pytest.mark.slow)])
def test_modes_of_slices_at_the_last_phi(n, monkeypatch):
    """Counts of slices and products, and the promise, of the correct modes."""
    only(ozaki_modes, "WAYS", monkeypatch, *list(ozaki_modes.WAYS)[-2:])
    rows = {(r["phi"], r["n"], r["way"]): r for r in committed(ozaki_modes)}
    for found in ozaki_modes.measure(2.0, n, 256):
        assert_same(found, rows["2.0", str(n), found["way"]])


def test_predictions_for_cards_with_few_fp64_units():
    predicted = list(weak_fp64.predictions(weak_fp64.CARDS[-1]))[-1]
    row = committed(weak_fp64)[-1]
    for name, value in predicted.items():
        assert row[name] == ("" if value is None else text(value))


NAMES = [
    path.stem
    for path in sorted((ROOT / "experiments").glob("*.py"))
    if "ArgumentParser" in path.read_text("utf-8")
]


@pytest.mark.parametrize("name", NAMES)
def test_help_has_the_whole_first_sentence(name, monkeypatch, capsys):
    try:
        experiment = importlib.import_module(f"experiments.{name}")
    except ModuleNotFoundError as error:
        pytest.skip(f"needs {error.name}")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit):
        experiment.main()
    summary = (experiment.__doc__ or "").split("\n\n")[0]
    # argparse breaks lines behind hyphens too.
    assert "".join(summary.split()) in "".join(capsys.readouterr().out.split())
