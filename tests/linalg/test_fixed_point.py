"""Inverses by X = R B + G X: the bound of the last step, and what it is made of."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from experiments.systems import exact_parts, misses
from hifigemm import linalg
from hifigemm.engines import core
from hifigemm.linalg import fixed_point, refinement, solution
from hifigemm.linalg.certificate import prove
from hifigemm.linalg.fixed_point import is_inverse
from hifigemm.linalg.scaling import ScaledSystem
from hifigemm.linalg.upward import UNIT
from tests.linalg.worst_arithmetic import (
    exact_matmul,
    fractions,
    worst_matmul,
)

N = 5


@pytest.mark.parametrize(
    ("b", "expected"),
    [
        (np.eye(4), True),
        (np.diag([0.5, 4.0, 1.0, 2.0]), True),
        (np.diag([0.5, 3.0, 1.0, 2.0]), False),
        (np.diag([0.5, -1.0, 1.0, 2.0]), False),
        (np.diag([0.5, 0.0, 1.0, 2.0]), False),
        (np.diag([0.5, 4.0, 1.0, 2.0]).astype(complex), True),
        (np.diag([0.5, 4.0, 1.0j, 2.0]), False),
        (np.eye(4)[::-1], False),
        (np.eye(4)[:, :3], False),
        (np.triu(np.ones((4, 4))), False),
    ],
)
def test_right_sides_of_an_inverse_are_a_diagonal_of_powers_of_two(b, expected):
    system = ScaledSystem(np.eye(4), b, np.zeros(b.shape, int))
    assert is_inverse(system) is expected


def gap_of_positive_numbers(seed, scale):
    """G for R = I / 2: no entry of G or of the solution is negative, so all errors may
    have one direction.
    """
    rng = np.random.default_rng(seed)
    return np.rint(rng.uniform(0.2, 1.0, (N, N)) * 2.0**20) * 2.0**-20 * scale


def first_step(monkeypatch, q, second=None, errors=0.0, b=None):
    """The step for R = I / 2 where I - R A is known to be Q + Q2 up to such errors."""
    b = np.eye(N) if b is None else b
    second = np.zeros((N, N)) if second is None else second
    gap = [q, second], np.full((N, N), errors)
    monkeypatch.setattr(fixed_point, "close_gap", lambda *_: gap)
    monkeypatch.setattr(refinement, "is_ill_conditioned", lambda _: True)
    system = ScaledSystem(2.0 * np.eye(N), b, np.zeros((N, N), int))
    found = refinement._first_of_inverse(system, prove(system.a, 0.5 * np.eye(N)))
    return None if found is None else found[0]


def largest_share(step, gap):
    """The largest error of the step over its bound, with G in fractions."""
    start = fractions(0.5 * np.eye(N))
    exact = start
    for _ in range(30):
        change = exact_matmul(gap, exact)
        exact = [[x + y for x, y in zip(*rows)] for rows in zip(start, change)]
    x, left = fractions(step.x), fractions(step.left)
    return max(
        abs(exact[i][j] - x[i][j] - left[i][j]) / Fraction(step.error[i, j])
        for i, j in np.ndindex(N, N)
    )


@pytest.mark.parametrize("seed", range(5))
def test_errors_of_the_gap_are_counted(monkeypatch, seed):
    q = gap_of_positive_numbers(seed, 2.0**-12)
    gap = fractions(q + 2.0**-30)
    step = first_step(monkeypatch, q, errors=2.0**-30)
    assert 0.15 < largest_share(step, gap) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_close_sums_of_the_first_product_are_counted(monkeypatch, seed):
    q = gap_of_positive_numbers(seed, 2.0**-12)
    promise = 2.0**-30

    def worst(a, b):
        norms = np.linalg.norm(a[0], axis=1)[:, None] * np.linalg.norm(b[0], axis=0)
        high = a[0] @ b[0] - promise * norms * (1.0 - 2.0**-20)
        return high[None], np.zeros((1, N, N))

    monkeypatch.setattr(core, "close_pair", worst)
    monkeypatch.setattr(core, "error_of_close_sums", lambda *_: promise)
    step = first_step(monkeypatch, q)
    assert 0.05 < largest_share(step, fractions(q)) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_native_products_that_follow_are_counted(monkeypatch, seed):
    monkeypatch.setattr(fixed_point, "matmul", worst_matmul)
    q = gap_of_positive_numbers(seed, 2.0**-12)
    step = first_step(monkeypatch, q)
    assert 0.1 < largest_share(step, fractions(q)) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_what_is_left_of_the_error_is_counted(monkeypatch, seed):
    monkeypatch.setattr(fixed_point, "_products", lambda *_: 0)
    q = gap_of_positive_numbers(seed, 2.0**-12)
    step = first_step(monkeypatch, q)
    assert 0.1 < largest_share(step, fractions(q)) <= 1


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("scale", [2.0**-9, 2.0**-14, 2.0**-30])
def test_sums_of_two_words_keep_their_bound(monkeypatch, seed, scale):
    rng = np.random.default_rng(seed)
    q = scale * rng.uniform(-0.2, 0.2, (N, N))
    second = UNIT * q * rng.uniform(-0.5, 0.5, (N, N))
    gap = [
        [x + y for x, y in zip(*rows)] for rows in zip(fractions(q), fractions(second))
    ]
    step = first_step(monkeypatch, q, second)
    assert largest_share(step, gap) <= 1


def test_a_gap_that_is_too_large_is_left_to_refinement(monkeypatch):
    q = gap_of_positive_numbers(1, 2.0**-4)
    assert first_step(monkeypatch, q) is None


FAMILIES = {
    "ordinary": lambda rng, n: rng.standard_normal((n, n)),
    "condition 1e10": lambda rng, n: (
        np.linalg.qr(rng.standard_normal((n, n)))[0]
        * np.logspace(0.0, -10.0, n)
        @ np.linalg.qr(rng.standard_normal((n, n)))[0]
    ),
    "upper triangle": lambda rng, n: (
        np.triu(rng.standard_normal((n, n)), 1) + 9 * np.eye(n)
    ),
    "complex triangle": lambda rng, n: (
        np.triu(rng.standard_normal((n, n)), 1) * (1.0 + 2.0j) + 9.0 * np.eye(n)
    ),
    "lower triangle": lambda rng, n: (
        np.tril(rng.standard_normal((n, n)), -1) + 9 * np.eye(n)
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("accuracy", [None, "correct"])
def test_inverses_are_enclosed(monkeypatch, family, accuracy):
    pytest.importorskip("flint")
    monkeypatch.setattr(solution, "MOST_SMALL", 0)
    a = FAMILIES[family](np.random.default_rng(7), 24)
    found = linalg.solve(a, np.eye(24), accuracy=accuracy)
    assert not misses(found.x, found.radius, exact_parts(a, np.eye(24)))
    shares = found.radius[found.x != 0.0] / np.spacing(np.abs(found.x[found.x != 0.0]))
    assert np.median(shares) < 0.3
    if "triangle" in family:
        is_zero = a == 0.0
        assert not found.x[is_zero].any()
        assert found.radius[is_zero].max() < 1e-300


@pytest.mark.parametrize("seed", [0, 36, 42, 56, 57])
def test_known_zeros_say_nothing_of_other_entries(monkeypatch, seed):
    # What refinement computes in the places of zeros belongs to the bounds of all others
    pytest.importorskip("flint")
    monkeypatch.setattr(solution, "MOST_SMALL", 0)
    rng = np.random.default_rng(seed)
    exponents = np.linspace(0.0, rng.uniform(6.0, 17.0), 33)
    factors = [np.linalg.qr(rng.standard_normal((33, 33)))[0] for _ in range(2)]
    a = np.triu(factors[0] * 10.0**-exponents @ factors[1])
    place = 11 + seed % 5
    a[place] = a[:, place] = 0.0
    a[place, place] = 4.0
    found = linalg.inv(a)
    assert not misses(found.x, found.radius, exact_parts(a, np.eye(33)))


def test_inverses_of_well_conditioned_matrices_take_residuals(monkeypatch):
    monkeypatch.setattr(fixed_point, "close_gap", None)
    a = FAMILIES["ordinary"](np.random.default_rng(3), 80)
    assert linalg.inv(a, return_report=True)[1].condition < 1e6


def test_one_accurate_product_replaces_residuals(monkeypatch):
    if core.loaded()[0] is None:
        pytest.skip("no compiled core")

    def refuse(*_):
        raise AssertionError("a residual was made")

    monkeypatch.setattr(refinement, "residual", refuse)
    a = FAMILIES["condition 1e10"](np.random.default_rng(3), 80)
    _, report = linalg.inv(a, return_report=True)
    assert report.steps == 1
    assert report.condition > 1e9


def test_a_start_that_underflows_is_not_exact(monkeypatch):
    # X0 = R B has lost an entry of 2^-1075, so no solution is known to be exact
    q = np.zeros((N, N))
    q[:3, :3] = gap_of_positive_numbers(1, 2.0**-12)[:3, :3]
    assert first_step(monkeypatch, q).is_zero.tolist() == [[False] * 3 + [True] * 2]
    tiny = np.diag([1.0, 1.0, 1.0, 1.0, 2.0**-1074])
    step = first_step(monkeypatch, q, b=tiny)
    assert step.is_zero.tolist() == [[False] * 3 + [True, False]]


def test_parts_that_are_known_exactly_have_no_radius(monkeypatch):
    if core.loaded()[0] is None:
        pytest.skip("no compiled core")
    a = np.random.default_rng(2).standard_normal((80, 80))
    a[:40, 40:] = a[40:, :40] = 0.0
    a[:, 5] = a[5] = 0.0
    a[5, 5] = 0.25
    found = linalg.inv(a)
    assert found.x[5, 5] == 4.0
    assert not found.radius[:, 5].any()
    assert found.radius[:40, 6].any()
