"""Rayleigh quotients in the coordinates of a basis, against exact fractions."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

flint = pytest.importorskip("flint")

from hifigemm.linalg import (  # noqa: E402
    decompositions,
    eigenvalues,
    separated,
    singular_values,
)
from hifigemm.linalg.separated import distance_below, neighbours  # noqa: E402

SHARE = 2.0**-20


def rational(x):
    """A real matrix of fractions."""
    rows = [[Fraction(v) for v in row] for row in np.asarray(x, float).tolist()]
    entries = [flint.fmpq(v.numerator, v.denominator) for row in rows for v in row]
    return flint.fmpq_mat(len(rows), len(rows[0]), entries)


def identity(n):
    return rational(np.eye(n))


def inner(x, y):
    return (x.transpose() * y)[0, 0]


@pytest.fixture
def coordinates(monkeypatch):
    """W of the last call, as it is in memory; NumPy does not warn, as in a public call."""
    captured = {}
    bounded = separated._bounded

    def capture(pencil, w, *others):
        captured["w"] = w
        return bounded(pencil, w, *others)

    monkeypatch.setattr(separated, "_bounded", capture)
    with np.errstate(all="ignore"):
        yield captured


@pytest.fixture(params=[0, 1, -1, "in turns"])
def products(request, monkeypatch):
    """Products as they are, or that err by all that they may."""
    if request.param == 0:
        return
    calls = 0

    def worst(a, b):
        nonlocal calls
        calls += 1
        direction = (-1) ** calls if request.param == "in turns" else request.param
        return a @ b + direction * SHARE * (np.abs(a) @ np.abs(b))

    for module in (decompositions, eigenvalues, singular_values, separated):
        monkeypatch.setattr(module, "matmul", worst)
    for module in (decompositions, eigenvalues, singular_values):
        monkeypatch.setattr(module, "share_of_product", lambda *_: 1.001 * SHARE)


def check(pencil, quotients, w, basis, operator, mu):
    """theta and q of each column are within their bounds; mu is None for s^H s."""
    n = len(w)
    for i in range(n):
        y = rational(basis) * (
            rational(np.eye(n)[:, i : i + 1] + 0.0) + rational(w[:, i : i + 1])
        )
        length = inner(y, y)
        theta = inner(y, operator * y) / length
        estimate = rational([[quotients.shifts[i]]])[0, 0]
        estimate += rational([[quotients.corrections[i]]])[0, 0]
        bound = rational([[quotients.errors[i]]])[0, 0]
        assert abs(theta - estimate) <= bound

        s = operator * y - theta * y
        weighted = s
        if mu is not None:
            shift = rational([[mu[i]]])[0, 0] ** 2
            weighted = (operator + shift * identity(n)).solve(s)
        defect = inner(s, weighted) / length
        assert defect <= rational([[quotients.defects[i]]])[0, 0]


def off(rng, residual, size):
    """A residual that errs by as much as it says."""
    error = size * rng.standard_normal(residual.matrix.shape)
    matrix = residual.matrix + error
    size = np.linalg.norm(matrix) * 1.001
    bound = residual.error + np.linalg.norm(error) * 1.001
    return replace(residual, matrix=matrix, size=size, error=bound)


def gram_off(rng, gram, size):
    """A Gram matrix that does."""
    error = size * rng.standard_normal(gram.gap.shape)
    error = np.tril(error) + np.tril(error, -1).T
    gap = gram.gap + error
    bound = np.linalg.norm(error) * 1.001
    return replace(
        gram,
        gap=gap,
        norm=gram.norm + bound,
        size=np.linalg.norm(gap) * 1.001,
        error=gram.error + bound,
        entry_error=gram.entry_error + np.abs(error).max() * 1.001,
    )


@pytest.mark.parametrize("size", [1e-9, 1e-5])
@pytest.mark.parametrize("least", [0.7, 1e-3, 0.0])
@pytest.mark.parametrize("seed", range(8))
def test_errors_of_residuals_and_gram_matrices_count(coordinates, seed, least, size):
    for n in (1, 2, 4):
        rng = np.random.default_rng([n, seed])
        q, _ = np.linalg.qr(rng.standard_normal((n, n)))
        a = (q * np.linspace(0.5, 0.5 * least, n)) @ q.T
        a = np.tril(a) + np.tril(a, -1).T
        separated_ones = np.ones((1, n), bool)
        for of_residual, of_gram in ((size, 0.0), (0.0, size)):
            d, x = np.linalg.eigh(a)
            d = d.reshape(1, -1)
            residual = off(rng, decompositions.residual(a, x, x, d), of_residual)
            gram = gram_off(rng, decompositions.gram(x), of_gram)
            pencil = eigenvalues._pencil(x, d, residual, gram)
            quotients = separated.separated_quotients(pencil, separated_ones)
            check(pencil, quotients, coordinates["w"], x, rational(a), None)

            u, s, vh = np.linalg.svd(a)
            v = vh.T
            s = s.reshape(1, -1)
            residual = off(rng, decompositions.residual(a, v, u, s), of_residual)
            grams = [decompositions.gram(z) for z in (u, v)]
            grams = [gram_off(rng, gram, of_gram) for gram in grams]
            pencil = singular_values._pencil(s, u, residual, *grams)
            quotients = separated.separated_quotients(pencil, separated_ones)
            square = rational(a).transpose() * rational(a)
            mu = pencil.least_weights[0]
            check(pencil, quotients, coordinates["w"], v, square, mu)


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("noise", [1e-12, 1e-6, 1e-2])
@pytest.mark.parametrize("least", [1.0, 1e-3, 1e-12])
def test_quotients_of_hermitian_matrices(
    monkeypatch, coordinates, products, least, noise, steps
):
    monkeypatch.setattr(separated, "STEPS", steps)
    for n in (1, 2, 5):
        rng = np.random.default_rng([n, steps])
        q, _ = np.linalg.qr(rng.standard_normal((n, n)))
        a = (q * np.geomspace(0.5, 0.5 * least, n)) @ q.T
        a = np.tril(a) + np.tril(a, -1).T
        d, x = np.linalg.eigh(a)
        d = d * (1.0 + noise * rng.standard_normal(n))
        x = x + noise * rng.standard_normal((n, n))
        d = d.reshape(1, -1)
        residual = decompositions.residual(a, x, x, d)
        pencil = eigenvalues._pencil(x, d, residual, decompositions.gram(x))
        quotients = separated.separated_quotients(pencil, np.ones((1, n), bool))
        check(pencil, quotients, coordinates["w"], x, rational(a), None)


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("noise", [1e-12, 1e-6, 1e-3])
@pytest.mark.parametrize("least", [1.0, 1e-3, 1e-12, 0.0])
def test_quotients_of_gram_matrices(
    monkeypatch, coordinates, products, least, noise, steps
):
    monkeypatch.setattr(separated, "STEPS", steps)
    for m, n in ((1, 1), (3, 2), (5, 5)):
        rng = np.random.default_rng([m, steps])
        u, _ = np.linalg.qr(rng.standard_normal((m, n)))
        v, _ = np.linalg.qr(rng.standard_normal((n, n)))
        a = (u * np.linspace(0.5, 0.5 * least, n)) @ v.T
        u, s, vh = np.linalg.svd(a, full_matrices=False)
        s = np.abs(s * (1.0 + noise * rng.standard_normal(n))).reshape(1, -1)
        u = u + noise * rng.standard_normal((m, n))
        v = vh.T + noise * rng.standard_normal((n, n))
        residual = decompositions.residual(a, v, u, s)
        grams = decompositions.gram(u), decompositions.gram(v)
        pencil = singular_values._pencil(s, u, residual, *grams)
        quotients = separated.separated_quotients(pencil, np.ones((1, n), bool))
        operator = rational(a).transpose() * rational(a)
        mu = pencil.least_weights[0]
        check(pencil, quotients, coordinates["w"], v, operator, mu)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("least", [0.7, 1e-3, 1e-6])
def test_shifts_need_not_be_close_to_the_quotients(
    monkeypatch, coordinates, least, seed
):
    rng = np.random.default_rng([11, seed])
    n = 4
    q, _ = np.linalg.qr(rng.standard_normal((n, n)))
    a = (q * np.geomspace(0.5, 0.5 * least, n)) @ q.T
    u, s, vh = np.linalg.svd(a)
    v = vh.T
    s = s.reshape(1, -1)
    factors = 1.0 + 1e-3 * rng.standard_normal(n)
    monkeypatch.setattr(separated, "_shifts", lambda pencil, _: pencil.values * factors)
    residual = decompositions.residual(a, v, u, s)
    grams = decompositions.gram(u), decompositions.gram(v)
    pencil = singular_values._pencil(s, u, residual, *grams)
    quotients = separated.separated_quotients(pencil, np.ones((1, n), bool))
    operator = rational(a).transpose() * rational(a)
    mu = pencil.least_weights[0]
    check(pencil, quotients, coordinates["w"], v, operator, mu)


def test_neighbours_are_those_of_intervals_that_do_not_touch():
    lower = np.array([0.0, 1.0, 2.0, 2.5])
    upper = np.array([0.5, 1.5, 2.5, 3.0])
    is_separated, below, beyond = neighbours(lower, upper)
    assert is_separated.tolist() == [True, True, False, False]
    assert below.tolist() == [-np.inf, 0.5, 1.5, 2.5]
    assert beyond.tolist() == [1.0, 2.0, 2.5, np.inf]


def test_distances_are_no_more_than_the_exact_ones():
    rng = np.random.default_rng(0)
    a = rng.standard_normal(500)
    b = a - 10.0 ** rng.uniform(-16, 1, 500)
    c = (a - b) * rng.uniform(0.0, 1.2, 500)
    distances = distance_below(a, b, c)
    for bound, *numbers in zip(distances, a, b, c):
        x, y, z = map(Fraction, numbers)
        assert bound <= 0 or Fraction(bound) <= x - y - z
    assert (distances > 0.0).sum() > 300
    assert distance_below(np.inf, 1.0, 1.0) == np.inf
