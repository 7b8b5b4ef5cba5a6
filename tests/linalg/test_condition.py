"""Bounds of the condition, against exact characteristic polynomials."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flint")

from experiments.spectra import MATRICES, Spectrum, rectangular
from hifigemm import linalg


@pytest.mark.parametrize("family", MATRICES)
def test_no_condition_is_missed(family):
    for seed in range(12):
        a = rectangular(family, np.random.default_rng([8, seed]))
        c = linalg.cond(a)
        assert not Spectrum(a, is_singular=True).condition_misses(c.lower, c.upper)


@pytest.mark.parametrize("power", [0, 8, 16, 24, 32, 40])
def test_bounds_are_close(power):
    rng = np.random.default_rng(power)
    u, _ = np.linalg.qr(rng.standard_normal((6, 4)))
    v, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    a = (u * np.geomspace(1.0, 2.0**-power, 4)) @ v
    c = linalg.cond(a)
    assert c.upper - c.lower <= 1e-14 * c.lower


def test_matrices_without_full_rank_have_no_upper_bound():
    rng = np.random.default_rng(5)
    a = rng.integers(-9, 10, (7, 3)) @ rng.integers(-9, 10, (3, 6)).astype(float)
    c = linalg.cond(a)
    assert c.upper == np.inf
    assert c.lower > 1e14
    assert linalg.cond(np.zeros((2, 3))) == linalg.Condition(1.0, np.inf)


def test_stacks_fail_matrix_by_matrix():
    a = np.stack([np.eye(2), np.full((2, 2), np.inf), np.diag([1.0, 5.0])])
    with pytest.raises(linalg.VerificationError, match="1 of 3") as error:
        linalg.cond(a)
    assert error.value.solution.lower[0] == 1.0
    assert np.isnan(error.value.solution.upper[1])
    with pytest.raises(linalg.VerificationError, match="Inf or NaN"):
        linalg.cond(a[1])


def test_conditions_of_stacks_are_arrays_of_numpy():
    a = np.stack([np.eye(2), np.diag([1.0, 2.0**-40]), np.ones((2, 2))])
    c = linalg.cond(a)
    assert (c.lower[:2] <= [1.0, 2.0**40]).all()
    assert (c.upper[:2] >= [1.0, 2.0**40]).all()
    assert (c.upper[:2] <= [1.0 + 1e-14, 2.0**40 + 1.0]).all()
    assert c.upper[2] == np.inf


def test_conditions_beyond_the_range_have_a_finite_lower_bound():
    a = np.diag([2.0**1000, 2.0**-1000])
    c = linalg.cond(a)
    assert c.lower <= np.finfo(float).max
    assert c.upper == np.inf


def test_conditions_of_nothing_are_not_defined():
    with pytest.raises(np.linalg.LinAlgError, match=r"\(0, 3\)"):
        linalg.cond(np.ones((0, 3)))
