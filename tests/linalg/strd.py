"""The sets for linear regression of NIST's Statistical Reference Datasets, in decimals."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "data"
_DEGREES = {"Pontius": 2, "Filip": 10} | {f"Wampler{i}": 5 for i in range(1, 6)}
"""Of the sets that are polynomials of one predictor."""


def _lines(name):
    lines = (_FOLDER / name).read_text().splitlines()
    return [line.split(",") for line in lines if not line.startswith("#")]


SETS = {name: values for name, *values in _lines("nist_strd_certified.csv")}
"""The certified coefficients, as they are printed."""


def regression(name):
    """The rows of the matrix and the responses in fractions."""
    rows = []
    responses = []
    for of_set, response, *predictors in _lines("nist_strd.csv"):
        if of_set != name:
            continue
        values = [Fraction(x) for x in predictors]
        if name in _DEGREES:
            values = [values[0] ** k for k in range(1, _DEGREES[name] + 1)]
        if not name.startswith("NoInt"):
            values = [Fraction(1), *values]
        rows.append(values)
        responses.append(Fraction(response))
    return rows, responses


def has_certified_digits(x, certified, radius=0):
    """True if a number within a radius of x rounds to a decimal of 15 digits."""
    decimal = Decimal(certified)
    unit = Fraction(10) ** (decimal.adjusted() - 14)
    return abs(Fraction(x) - Fraction(decimal)) <= unit / 2 + Fraction(radius)
