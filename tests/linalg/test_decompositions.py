"""Residuals and Gram matrices with their bounds, against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from hifigemm.linalg import decompositions
from hifigemm.linalg.decompositions import gram, residual
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


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("noise", [0.0, 1e-9, 1e-3])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (4, 4), (7, 3)])
def test_residuals_are_within_their_error(m, n, noise, is_complex):
    a = drawn(0, m, n, is_complex)
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    s = s * (1.0 + noise)
    found = residual(a, vh.conj().T, u, s.reshape(1, -1))
    left = exact_matmul(real_form(a), real_form(vh.conj().T))
    scales = np.diag(s) if not is_complex else np.diag(s).astype(complex)
    right = exact_matmul(real_form(u), real_form(scales))
    exact = [[x - y for x, y in zip(row, other)] for row, other in zip(left, right)]
    _, total = distance(found.matrix, exact)
    assert total <= Fraction(found.error) ** 2
    # Much less than the residual of a solver
    assert found.error <= 1e-29 + 1e-14 * noise
    _, size = distance(0.0 * found.matrix, exact)
    spectral = np.linalg.norm(found.matrix, 2)
    assert spectral <= found.norm * (1.0 + 1e-10)
    assert float(size) <= n * found.norm**2 * (1.0 + 1e-10)


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


@pytest.mark.parametrize("x", [np.full((2, 2), np.nan), 9.0 * np.eye(2)])
def test_vectors_that_are_of_no_use_have_an_infinite_norm(x):
    assert not gram(x).norm < np.inf
