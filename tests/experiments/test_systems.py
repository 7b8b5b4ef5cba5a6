"""The judge of solutions sees what it is there to see."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flint")

import hifigemm.linalg as verified
from experiments.linalg_enclosures import (
    Counts,
    condition,
    is_beyond_range,
    is_nearest,
    median,
    wrong,
)
from experiments.linalg_full_rank import Judge
from experiments.linalg_least_squares import exact_products
from experiments.systems import (
    FAMILIES,
    exact_parts,
    exact_solution,
    misses,
)
from hifigemm.linalg import VerifiedSolution
from tests.linalg.exact_least_squares import exact_lstsq


def test_solutions_are_exact():
    a = np.array([[3.0, 1.0], [0.0, 7.0]])
    assert exact_solution(a, np.array([[1.0], [1.0]])) == [
        [Fraction(2, 7)],
        [Fraction(1, 7)],
    ]
    assert exact_solution(np.ones((2, 2)), np.ones((2, 1))) is None


def test_complex_solutions_have_two_parts():
    parts = exact_parts(np.array([[1.0 + 1.0j]]), np.array([[2.0 + 0.0j]]))
    assert parts == [[[Fraction(1)]], [[Fraction(-1)]]]


def test_radii_that_are_too_small_are_misses():
    parts = [[[Fraction(1, 3)], [Fraction(1, 4)]]]
    x = np.array([[1 / 3], [0.25]])
    error = np.nextafter(float(abs(Fraction(1 / 3) - Fraction(1, 3))), 1.0)
    assert misses(x, np.array([[error], [0.0]]), parts) == []
    assert misses(x, np.array([[0.9 * error], [0.0]]), parts) == [(0, 0)]
    assert misses(x + 1e-9, np.array([[1e-10], [1e-8]]), parts) == [(0, 0)]
    turned = x + 1j * x
    both = [parts[0], parts[0]]
    assert misses(turned, np.array([[1.5 * error], [0.0]]), both) == []
    assert misses(turned, np.array([[1.4 * error], [0.0]]), both) == [(0, 0)]


def test_nearest_numbers_and_ties():
    tie = 1 + Fraction(1, 2**53)
    above = np.nextafter(1.0, 2.0)
    assert is_nearest(1.0, tie, np.float64)
    assert not is_nearest(above, tie, np.float64)
    assert is_nearest(above, tie + Fraction(1, 2**200), np.float64)
    assert wrong(np.array([[above]]), [[[tie]]]) == 1


def test_solutions_beyond_the_range_are_known_as_such():
    assert is_beyond_range([[[Fraction(2) ** 1024]]], np.dtype(float))
    assert not is_beyond_range([[[Fraction(2) ** 1023]]], np.dtype(float))


@pytest.mark.parametrize("family", FAMILIES)
def test_families_draw_finite_systems(family):
    for seed in range(5):
        a, b = FAMILIES[family](np.random.default_rng(seed))
        assert np.isfinite(a).all()
        assert np.isfinite(b).all()
        assert a.shape[-1] == a.shape[-2] == b.shape[-2]


def test_singular_systems_are_counted():
    counts = Counts()
    counts.add(np.ones((2, 2)), np.ones((2, 1)), also_correct=True)
    counts.add(np.eye(2), np.ones((2, 1)), also_correct=False)
    row = counts.row()
    assert (row["systems"], row["singular"], row["refused"]) == (2, 1, 1)
    assert (row["missed"], row["proven singular"], row["needless"]) == (0, 0, 0)
    assert (row["correct"], row["refused correct"]) == (1, 1)


def test_misses_and_false_proofs_are_counted(monkeypatch):
    def solve(a, b, accuracy=None, return_report=False):
        report = SimpleNamespace(words=1)
        solution = VerifiedSolution(np.full(b.shape, 0.5), np.full(b.shape, 0.1))
        return (solution, report) if return_report else solution

    monkeypatch.setattr(verified, "solve", solve)
    counts = Counts()
    counts.add(np.eye(2), np.array([[0.5], [0.75]]), also_correct=True)
    counts.add(np.ones((2, 2)), np.ones((2, 1)), also_correct=False)
    row = counts.row()
    assert (row["missed"], row["rounded wrongly"], row["proven singular"]) == (2, 1, 1)


def test_needless_refusals_are_counted_by_their_condition(monkeypatch):
    def refuse(*_, **options):
        raise verified.VerificationError("as if")

    monkeypatch.setattr(verified, "solve", refuse)
    counts = Counts()
    counts.add(np.diag([1.0, 2.0**-300]), np.ones((2, 1)), also_correct=False)
    row = counts.row()
    assert (row["refused"], row["needless"]) == (1, 1)
    assert row["largest needless condition"] == 1.0


def test_pieces_add_up():
    counts = Counts()
    for n in (1, 2):
        counts.add(np.eye(n), np.ones((n, 1)), also_correct=False)
    total = Counts()
    for _ in range(2):
        total.merge(json.loads(json.dumps(counts.piece())))
    assert total.row()["systems"] == 4
    assert total.row()["median radius in ulp"] == 0.0


def test_a_median_counts_each_number_as_often_as_it_came():
    assert median(Counter({1.0: 3, 7.0: 1, 0.5: 1})) == 1.0
    assert median(Counter({1.0: 1, 7.0: 4})) == 7.0
    assert median(Counter()) == ""


@pytest.mark.parametrize("size", [1, 3, 7])
def test_conditions_are_those_of_definition(size):
    a = np.random.default_rng(size).standard_normal((size, size))
    scaled = np.abs(np.linalg.inv(a)) @ np.abs(a)
    # Scaling by rows changes nothing, and by columns little for these
    assert 0.1 < condition(a) / scaled.sum(axis=1).max() < 10.0


def test_products_for_least_squares_are_exact():
    rng = np.random.default_rng(0)
    x = np.ldexp(rng.standard_normal((9, 3)), rng.integers(-40, 3, (9, 3)))
    y = rng.standard_normal((9, 2))
    product = exact_products(x, y)
    for i, j in np.ndindex(3, 2):
        exact = sum(Fraction(v) * Fraction(w) for v, w in zip(x[:, i], y[:, j]))
        assert product[i, j] == exact


def test_judge_of_full_rank_is_exact():
    rng = np.random.default_rng(0)
    a = np.ldexp(rng.standard_normal((7, 3)), rng.integers(-40, 3, (1, 3)))
    judge = Judge(a)
    for b, find in ((a[:, :2] ** 2, judge.least_squares), (a[:3], judge.least_norm)):
        is_wide = len(b) == 3
        assert find(b) == exact_lstsq(a.T if is_wide else a, b)[0]
    assert judge.has_full_rank
    assert not Judge(a[:, [0, 1, 0]]).has_full_rank

    # Orthogonal columns, of which a condition in norms of Frobenius is n
    assert abs(Judge(np.diag([1.0, 2.0, 64.0])).condition() - 3.0) < 1e-12
