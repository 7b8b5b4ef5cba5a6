"""L U = P A, and its residual against fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hifigemm.engines import core
from hifigemm.linalg import arrays, factors
from hifigemm.linalg.factors import pivoted_factors, residual_of_factors
from tests.linalg.worst_arithmetic import exact_matmul, fractions


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("n", [0, 1, 12, 64, 65, 150])
def test_factors_are_triangular_and_a_permutation(n, dtype):
    a = np.random.default_rng(n).standard_normal((n, n)).astype(dtype)
    if n > 3:
        a[:, 3] = 0.0
    lower, upper, order = pivoted_factors(a)
    assert sorted(order.tolist()) == list(range(n))
    assert (np.triu(lower, 1) == 0.0).all()
    assert (np.diagonal(lower) == 1.0).all()
    assert (np.tril(upper, -1) == 0.0).all()
    assert (np.abs(lower) <= 1.0).all()
    gaps = np.abs(a[order] - lower @ upper)
    assert gaps.max(initial=0.0) <= 12 * n * 2.0**-53 * np.abs(a).max(initial=0.0)


def test_the_operand_stays_as_it_is():
    a = np.random.default_rng(0).standard_normal((5, 5))
    before = a.copy()
    pivoted_factors(a)
    pivoted_factors(a.T)
    np.testing.assert_array_equal(a, before)


def assert_close(lower, upper, a, gaps, errors):
    """|F - (A - L U)| <= 2 u |F| + e in every entry."""
    product = exact_matmul(fractions(lower), fractions(upper))
    values = fractions(a)
    for i, j in np.ndindex(a.shape):
        exact = values[i][j] - product[i][j]
        found = Fraction(gaps[i, j])
        allowed = abs(found) / 2**52 + Fraction(errors[i, j])
        assert abs(found - exact) <= allowed


@pytest.mark.parametrize("narrow", [3, 128])
@pytest.mark.parametrize("spread", [0, 40, 300])
def test_the_residual_holds_in_fractions(monkeypatch, narrow, spread):
    monkeypatch.setattr(factors, "_NARROW", narrow)
    rng = np.random.default_rng(spread)
    for n in (1, 4, 17):
        a = rng.standard_normal((n, n))
        a = np.ldexp(a, rng.integers(-spread, spread + 1, (n, n)))
        lower, upper, order = pivoted_factors(a)
        gaps, errors = residual_of_factors(lower, upper, a[order])
        assert_close(lower, upper, a[order], gaps, errors)


@pytest.mark.skipif(core.loaded()[0] is None, reason="the core is not built")
def test_the_residual_counts_what_close_sums_err_by(monkeypatch):
    # As far off as their promise allows, in the direction of each strip
    monkeypatch.setattr(factors, "_NARROW", 2)
    rng = np.random.default_rng(2)
    a = rng.standard_normal((9, 9))
    lower, upper, order = pivoted_factors(a)
    promise = 2.0**-30

    def worst_residual(a, x, b):
        q = arrays.correct_residual(a, x, b)
        norms = np.sqrt((a * a).sum(axis=1, keepdims=True))
        norms = norms * np.sqrt((x * x).sum(axis=0, keepdims=True))
        return q + promise * norms * (1.0 - 2.0**-20), promise

    monkeypatch.setattr(factors, "close_sums", worst_residual)
    gaps, errors = residual_of_factors(lower, upper, a[order])
    assert_close(lower, upper, a[order], gaps, errors)
    assert errors.max() <= 100 * promise
