"""Upper bounds of sums and products hold in the exact sense."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hifigemm.linalg.upward import UNIT, above, gamma, moduli
from hifigemm.numerics.bits import LEAST
from tests.linalg.worst_arithmetic import exact_matmul, fractions, worst_matmul


@pytest.mark.parametrize("roundings", [0, 1, 2, 50, 10**6, 10**12, 2**50])
def test_above_is_no_less_than_what_all_its_roundings_took(roundings):
    rng = np.random.default_rng(roundings)
    x = np.concatenate([rng.uniform(1.0, 2.0, 100), [1.0, np.nextafter(2.0, 0.0)]])
    taken = Fraction(roundings) * Fraction(UNIT)
    for value, bound in zip(x, above(x, roundings)):
        # (1 - u)^m >= 1 - m u, and for these m it is less than 1 / (1 + m u + (m u)^2)
        if roundings <= 10**6:
            assert Fraction(bound) * (1 - Fraction(UNIT)) ** min(
                roundings, 60
            ) >= Fraction(value)
        assert Fraction(bound) >= Fraction(value) * (1 + taken + taken**2)


def test_above_is_above_the_worst_sums():
    rng = np.random.default_rng(0)
    fell_short = 0
    for n in (1, 2, 3, 10, 30):
        a = rng.uniform(0.0, 1.0, (3, n))
        b = np.ldexp(rng.uniform(0.5, 1.0, (n, 3)), rng.integers(-60, 60, (n, 3)))
        exact = exact_matmul(fractions(a), fractions(b))
        computed = worst_matmul(a, b)
        bound = above(computed, n, n * LEAST)
        for i, j in np.ndindex(bound.shape):
            assert Fraction(bound[i, j]) >= exact[i][j]
            fell_short += Fraction(computed[i, j]) < exact[i][j]
    assert fell_short > 20, "the sums were not worst ones"


@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_products_that_vanish_are_bounded_by_the_smallest_number(n):
    a = np.full((1, n), 2.0**-538)
    b = np.full((n, 1), 0.99 * 2.0**-537)
    assert (a @ b)[0, 0] == 0.0
    exact = exact_matmul(fractions(a), fractions(b))[0][0]
    assert exact > 0
    assert Fraction(above(a @ b, n, n * LEAST)[0, 0]) >= exact


def test_above_holds_among_subnormal_numbers():
    x = np.arange(0, 200) * LEAST
    bound = above(x, 100, 3 * LEAST)
    for value, limit in zip(x, bound):
        least = Fraction(value) / (1 - Fraction(UNIT)) ** 100 + 3 * Fraction(LEAST)
        assert Fraction(limit) >= least


@pytest.mark.parametrize("n", [0, 1, 2, 3, 10, 1000, 10**6, 10**7])
def test_gamma_is_no_less_than_its_formula(n):
    nu = n * Fraction(UNIT)
    assert Fraction(gamma(n)) >= nu / (1 - nu)


def test_moduli_of_complex_numbers_are_upper_bounds():
    rng = np.random.default_rng(1)
    exponents = rng.integers(-1074, 1000, (2, 500))
    re, im = np.ldexp(rng.uniform(-1.0, 1.0, (2, 500)), exponents)
    close = np.ldexp(rng.uniform(-1.0, 1.0, 500), exponents[0])
    for z in (re + 1j * im, re + 1j * close, 1j * im):
        for value, bound in zip(z, moduli(z)):
            square = Fraction(value.real) ** 2 + Fraction(value.imag) ** 2
            assert Fraction(bound) ** 2 >= square


def test_moduli_of_real_numbers_are_exact():
    x = np.array([-3.0, 0.0, LEAST, -1e308])
    assert (moduli(x) == [3.0, 0.0, LEAST, 1e308]).all()
