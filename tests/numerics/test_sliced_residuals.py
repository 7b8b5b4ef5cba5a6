"""Residuals in slices, compared with exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hifigemm.numerics import sliced_residuals as module
from hifigemm.numerics.bits import LEAST
from hifigemm.numerics.eft import two_sum
from hifigemm.numerics.sliced_residuals import (
    sliced,
    sliced_residual,
    sums_of_products,
)
from tests.linalg.worst_arithmetic import UNIT, exact_matmul, fractions, worst_matmul

SIZES = [1, 2, 3, 5, 8, 17, 32]


def exact_residual(a, b, x, low):
    """B - A (X + L) of one system in fractions."""
    words = [
        [p + q for p, q in zip(*rows)] for rows in zip(fractions(x), fractions(low))
    ]
    images = exact_matmul(fractions(a), words)
    return [[p - q for p, q in zip(*rows)] for rows in zip(fractions(b), images)]


def excesses(a, b, x, low, residual):
    """|exact - q| less the bound, of all entries of all systems."""
    for i in range(len(a)):
        exact = exact_residual(a[i], b[i], x[i], low[i])
        for row, column in np.ndindex(b.shape[1:]):
            q = Fraction(float(residual.q[i, row, column]))
            bound = UNIT * abs(q) + Fraction(float(residual.errors[i, row, column]))
            yield abs(exact[row][column] - q) - bound
            if residual.is_zero[i, 0, column]:
                assert exact[row][column] == 0


def second_word(rng, x):
    """A word of up to u |x|."""
    return two_sum(x, rng.uniform(-0.4, 0.4, x.shape) * np.spacing(np.abs(x)))[1]


def close_systems(rng, n, batch=4, k=2):
    """Entries below 1, and right sides for which x is the solution but for roundings."""
    a = rng.uniform(-1.0, 1.0, (batch, n, n))
    x = rng.uniform(-1.0, 1.0, (batch, n, k))
    return a, a @ x, x, second_word(rng, x)


def hostile_systems(rng, n):
    """Tiny entries beside large ones, the largest entries that are allowed, short numbers,
    zeros, and words that underflow in products.
    """
    a, b, x, low = close_systems(rng, n, batch=8)
    a[0] = 1.0 - 2.0**-53
    x[0] = 1.0
    low[0] = 2.0**-53
    a[1] = np.ldexp(a[1], -rng.integers(0, 399, a[1].shape))
    x[1] = np.ldexp(x[1], -rng.integers(0, 1000, x[1].shape))
    low[1] = 0.0
    a[2] = np.rint(4.0 * a[2]) / 8.0
    x[2] = np.rint(4.0 * x[2]) / 8.0
    low[2] = 0.0
    b[2] = a[2] @ x[2]
    x[3], low[3], b[3] = 0.0, 0.0, 0.0
    a[4] = 2.0**-399
    x[4] = LEAST
    low[4] = 0.0
    b[5] = 1e15
    x[6] = np.sign(x[6])
    low[6] = 2.0**-53 * np.sign(x[6])
    return a, b, x, low


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("draw", [close_systems, hostile_systems])
def test_no_error_is_larger_than_its_bound(draw, n):
    for seed in range(3):
        system = draw(np.random.default_rng([n, seed]), n)
        a, *others = system
        residual = sliced_residual(sliced(a), *others)
        assert max(excesses(*system, residual)) <= 0


@pytest.mark.parametrize("n", SIZES)
def test_residuals_of_solutions_have_twice_the_digits_of_float64(n):
    a, *others = close_systems(np.random.default_rng(n), n)
    residual = sliced_residual(sliced(a), *others)
    assert residual.errors.max() <= n * 2.0**-106
    assert np.abs(residual.q).max() > 2.0**-60


@pytest.mark.parametrize("n", SIZES)
def test_sums_that_are_called_exact_are(n):
    # Every entry and every slice as large as it may be, of one sign
    step = sliced(np.ones((1, n, n))).step
    of_matrix = np.array([1.0, step / 2.0, step**2 / 2.0])
    of_solution = np.array([1.0, step / 2.0, step**2])
    for i in range(3):
        products = np.repeat(of_matrix[i::-1] * of_solution[: i + 1], n)
        grid = step ** (i + 2)
        for order in (products, products[::-1]):
            partial = np.cumsum(order)
            assert (partial == np.rint(partial / grid) * grid).all()
            assert partial.max() <= 2.0**53 * grid


def test_slices_add_up_and_lie_on_their_grids():
    rng = np.random.default_rng(3)
    n = 4
    a = np.ldexp(rng.uniform(-1, 1, (50, n, n)), -rng.integers(0, 90, (50, n, n)))
    matrices = sliced(a)
    third, second, first = np.split(matrices.leading, 3, axis=2)
    last, left_by_two, left_by_one, all_digits = np.split(matrices.last, 4, axis=2)
    for power, part in enumerate((first, second, third)):
        units = part / matrices.step ** (power + 1)
        assert (units == np.rint(units)).all()
    assert (third + last == left_by_two).all()
    assert (second + left_by_two == left_by_one).all()
    assert (first + left_by_one == all_digits).all()
    assert (all_digits == -a).all()


def test_short_numbers_are_known_to_have_a_residual_of_zero():
    rng = np.random.default_rng(0)
    a = rng.integers(-9, 10, (20, 6, 6)) / 16.0
    x = rng.integers(-9, 10, (20, 6, 3)) / 16.0
    zeros = np.zeros_like(x)
    residual = sliced_residual(sliced(a), a @ x, x, zeros)
    assert residual.is_zero.all()
    # One bit far below is seen
    x[:, 2, 1] += 2.0**-45
    residual = sliced_residual(sliced(a), a @ np.rint(x * 16.0) / 16.0, x, zeros)
    assert (residual.is_zero == [True, False, True]).all()


def test_terms_that_vanish_are_no_zeros():
    # 2^-300 2^-900 is no float64 number
    a = np.full((1, 2, 2), 2.0**-300)
    a[0, 0, 0] = a[0, 1, 1] = 1.0
    x = np.array([[[0.0], [2.0**-900]]])
    b = np.array([[[0.0], [2.0**-900]]])
    residual = sliced_residual(sliced(a), b, x, np.zeros_like(x))
    assert (residual.q == 0.0).all()
    assert not residual.is_zero.any()
    assert residual.errors[0, 0, 0] > 0.0


def worst_last_sums(a, b):
    """The last sums, and sums of magnitudes, with the largest errors that are allowed,
    towards zero; all others are exact.
    """
    if a.shape[2] < 4 * a.shape[1]:
        return sums_of_products(a, b)
    return np.stack([worst_matmul(x, y) for x, y in zip(a, b)])


@pytest.mark.parametrize("n", [1, 3, 8])
def test_the_bound_holds_for_the_worst_sums(monkeypatch, n):
    monkeypatch.setattr(module, "sums_of_products", worst_last_sums)
    for draw in (close_systems, hostile_systems):
        system = draw(np.random.default_rng(n), n)
        a, *others = system
        residual = sliced_residual(sliced(a), *others)
        assert max(excesses(*system, residual)) <= 0


def test_the_roundings_of_the_last_sum_are_needed_in_the_bound(monkeypatch):
    monkeypatch.setattr(module, "sums_of_products", worst_last_sums)
    a, b, x, low = close_systems(np.random.default_rng(1), 8)
    a = 0.5 * np.eye(8) + a / 32.0
    b = a @ x
    matrices = sliced(a)
    for _ in range(3):
        low = low + np.linalg.solve(a, sliced_residual(matrices, b, x, low).q)
    residual = sliced_residual(matrices, b, x, low)
    assert max(excesses(a, b, x, low, residual)) <= 0
    matrices = matrices._replace(sizes=0.0 * matrices.sizes)
    residual = sliced_residual(matrices, b, x, low)
    assert max(excesses(a, b, x, low, residual)) > 0
