"""LU of graded matrices by products of this library: what the experiment claims."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import graded_lu


def test_factors_multiply_back():
    """Dividing by a power of two and subtracting short integers is exact."""
    lower = np.tril(np.arange(1600).reshape(40, 40) % 5 - 2.0, -1) + np.eye(40)
    upper = np.triu(np.arange(1600).reshape(40, 40) % 7 - 3.0, 1) + 2.0 * np.eye(40)
    factors = lower @ upper
    graded_lu.factor(factors, np.matmul)
    assert np.array_equal(np.tril(factors, -1) + np.eye(40), lower)
    assert np.array_equal(np.triu(factors), upper)


def test_the_error_of_exact_factors_is_none():
    a = np.diag([4.0, 2.0, 1.0])
    assert graded_lu.backward_error(a, a) == 0
    a[2, 2] += 2.0**-50
    assert graded_lu.backward_error(a, np.diag([4.0, 2.0, 1.0])) == 8


def test_grading_is_that_of_the_diagonal():
    rng = np.random.default_rng(1)
    a = graded_lu.graded_matrix(rng, 8, 60)
    exponents = np.frexp(np.diag(a))[1]
    assert exponents[0] - exponents[-1] == 120
    assert np.all(np.diff(exponents) < 0)


@pytest.mark.parametrize("way", ["native", "default", "residues, promised", "correct"])
def test_promises_keep_the_backward_error_small(way):
    """Substitution adds at most n u |L||U|, the products 4 u at this n."""
    a = graded_lu.graded_matrix(np.random.default_rng(2), 64, 60)
    factors = a.copy()
    graded_lu.factor(factors, graded_lu.WAYS[way])
    assert graded_lu.backward_error(a, factors) < 64 + 4
