"""Residuals and Gram matrices with their bounds, against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from hifigemm import linalg
from hifigemm.engines import core
from hifigemm.linalg import arrays, decompositions
from hifigemm.linalg.decompositions import gram, residual, sharp_residual
from tests.linalg.worst_arithmetic import exact_matmul, fractions

SHARE = 2.0**-20
"""In the place of n u, so that it is seen."""


def real_form(x):
    """[Re -Im; Im Re] of a complex matrix; products are products of these."""
    if x.dtype.kind != "c":
        return fractions(x)
    return fractions(np.block([[x.real, -x.imag], [x.imag, x.real]]))


def distance(x, exact):
    """(largest modulus, Frobenius norm) of the entries by which x differs, upward."""
    m, n = x.shape
    copies = 2 if x.dtype.kind == "c" else 1
    computed = real_form(x)
    squares = [
        [
            sum(
                (computed[i + k * m][j] - exact[i + k * m][j]) ** 2
                for k in range(copies)
            )
            for j in range(n)
        ]
        for i in range(m)
    ]
    largest = max(max(row) for row in squares)
    total = sum(sum(row) for row in squares)
    return largest, total


def drawn(seed, m, n, is_complex):
    rng = np.random.default_rng([m, n, seed])
    x = rng.standard_normal((m, n))
    return x + 1j * rng.standard_normal((m, n)) if is_complex else x


@pytest.mark.parametrize("residual_of", [residual, sharp_residual])
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("noise", [0.0, 1e-9, 1e-3])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (4, 4), (7, 5)])
def test_residuals_are_within_their_error(
    monkeypatch, m, n, noise, is_complex, residual_of
):
    monkeypatch.setattr(decompositions, "_FEW_TERMS", 0)
    a = drawn(0, m, n, is_complex)
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    s = s * (1.0 + noise)
    found = residual_of(a, vh.conj().T, u, s.reshape(1, -1))
    left = exact_matmul(real_form(a), real_form(vh.conj().T))
    scales = np.diag(s) if not is_complex else np.diag(s).astype(complex)
    right = exact_matmul(real_form(u), real_form(scales))
    exact = [[x - y for x, y in zip(row, other)] for row, other in zip(left, right)]
    _, total = distance(found.matrix, exact)
    assert total <= Fraction(found.error) ** 2
    # Much less than the residual of a solver
    close = 0.0
    if residual_of is residual and not is_complex:
        close = core.error_of_close_sums(n) * np.linalg.norm(a) * np.sqrt(n)
    assert found.error <= 1.01 * close + 1e-29 + 1e-14 * noise
    _, size = distance(0.0 * found.matrix, exact)
    spectral = np.linalg.norm(found.matrix, 2)
    assert spectral <= found.norm * (1.0 + 1e-10)
    assert float(size) <= n * found.norm**2 * (1.0 + 1e-10)


@pytest.mark.parametrize("direction", [-1.0, 1.0])
def test_residuals_count_what_close_sums_err_by(monkeypatch, direction):
    a, x, y = (drawn(seed, 4, 4, False) for seed in range(3))
    d = np.abs(drawn(3, 1, 4, False))
    share = 2.0**-20
    monkeypatch.setattr(decompositions, "_FEW_TERMS", 0)

    def worst(a, x, b):
        norms = np.sqrt((a * a).sum(axis=1, keepdims=True)) * np.sqrt(
            (x * x).sum(axis=0)
        )
        return b - a @ x + direction * share * norms, share

    monkeypatch.setattr(decompositions, "close_sums", worst)
    found = residual(a, x, y, d)
    product = exact_matmul(fractions(a), fractions(x))
    other = exact_matmul(fractions(y), fractions(np.diag(d[0])))
    exact = [[p - q for p, q in zip(*rows)] for rows in zip(product, other)]
    _, total = distance(found.matrix, exact)
    assert 0.99 * found.error <= math.sqrt(total) <= found.error


@pytest.mark.skipif(core.loaded()[0] is None, reason="the core is not built")
def test_residuals_that_are_close_are_no_worse_than_they_have_to_be():
    a = drawn(0, 60, 60, False)
    a = a + a.T
    d, x = np.linalg.eigh(a)
    close = residual(a, x, x, d.reshape(1, -1))
    sharp = sharp_residual(a, x, x, d.reshape(1, -1))
    assert sharp.error < 0.01 * close.error
    assert close.is_enough_for(1e-6)
    assert not close.is_enough_for(1e-9)
    assert sharp.is_enough_for(1e-9)


@pytest.mark.skipif(core.loaded()[0] is None, reason="the core is not built")
def test_small_values_are_sharp_where_sums_are_only_close(monkeypatch):
    n = 60
    q, _ = np.linalg.qr(drawn(0, n, n, False))
    a = (q * np.geomspace(1.0, 1e-11, n)) @ q.T
    a = np.tril(a) + np.tril(a, -1).T
    for values_of in (linalg.eigvalsh, linalg.svdvals):
        found = values_of(a)
        with monkeypatch.context() as patched:
            patched.setattr(decompositions.Residual, "is_enough_for", lambda *_: True)
            close = values_of(a)
        least = np.argmin(np.abs(found.values))
        assert found.radius[least] < 0.1 * close.radius[least]


def test_products_on_the_grid_are_exact():
    rng = np.random.default_rng(0)
    x, _ = np.linalg.qr(rng.standard_normal((300, 200)))
    for coarse in (decompositions._on_grid(x), decompositions._on_grid(x * 1.2)):
        square = arrays.exact_square(coarse)
        integers = (coarse * 2.0**26).astype(np.int64)
        exact = integers.T @ integers
        np.testing.assert_array_equal(square * 2.0**52, exact)


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("noise", [0.0, 1e-9, 1e-3])
@pytest.mark.parametrize("direction", [0, 1, -1])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (4, 4), (7, 3)])
def test_gram_matrices_are_within_their_errors(
    monkeypatch, m, n, direction, noise, is_complex
):
    x, _ = np.linalg.qr(drawn(1, m, n, is_complex))
    x = x + noise * drawn(2, m, n, is_complex)
    if direction:
        # Products that err by all that they may
        def worst(a, b):
            return a @ b + direction * SHARE * (np.abs(a) @ np.abs(b))

        monkeypatch.setattr(decompositions, "matmul", worst)
        monkeypatch.setattr(
            decompositions, "share_of_product", lambda *_: 1.001 * SHARE
        )
    result = gram(x)
    exact = exact_matmul(real_form(x.conj().T), real_form(x))
    for i in range(len(exact)):
        exact[i][i] -= 1
    largest, total = distance(result.gap, exact)
    assert largest <= Fraction(result.entry_error) ** 2
    assert total <= Fraction(result.error) ** 2
    if direction and n > 1:
        # Without the term the bound would be below the error
        assert math.sqrt(total) >= 0.1 * result.error
    elif not direction:
        assert result.error <= 1e-21 + 1e-14 * noise

    # Of the exact matrix, of which [Re -Im; Im Re] has the same norm
    rows = [exact[i][: n * (2 if is_complex else 1)] for i in range(len(exact))]
    norm = np.linalg.norm(np.array(rows, float), 2)
    assert norm * (1.0 - 1e-9) <= result.norm <= 2 * n * (noise * 9 + 1e-6)


@pytest.mark.parametrize(
    "x", [np.full((2, 2), np.nan), 9.0 * np.eye(2), 1.3 * np.eye(2)]
)
def test_vectors_that_are_of_no_use_have_an_infinite_norm(x):
    assert not gram(x).norm < np.inf
