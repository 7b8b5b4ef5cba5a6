"""Products of magnitudes, by NumPy and by the compiled core: no term passes more
roundings than there are terms.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hifigemm.engines import core
from hifigemm.linalg.upward import above, gamma
from hifigemm.numerics.bits import LEAST
from hifigemm.numerics.magnitudes import magnitude_product, thin_product
from tests.linalg.worst_arithmetic import exact_matmul, fractions
from tests.linalg.worst_arithmetic import moduli as exact_moduli

VERSIONS = [magnitude_product]
if core.loaded()[0]:
    VERSIONS.append(core.override(magnitude_product))
versions = pytest.mark.parametrize("product", VERSIONS)


def layouts(a):
    """The same matrix with rows in memory, with columns, and with neither."""
    yield a
    yield np.asfortranarray(a)
    yield np.repeat(np.repeat(a, 2, axis=0), 3, axis=1)[::2, ::3]


@versions
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 5, 2), (7, 8, 1), (9, 33, 4), (0, 3, 1), (3, 0, 2)]
)
def test_products_of_integers_are_exact(product, shape):
    m, n, k = shape
    rng = np.random.default_rng(n)
    a = rng.integers(-(2**20), 2**20, (m, n)).astype(float)
    v = rng.integers(0, 2**20, (n, k)).astype(float)
    for layout in layouts(a):
        for columns in (v, np.asfortranarray(v)):
            np.testing.assert_array_equal(product(layout, columns), np.abs(a) @ v)
            np.testing.assert_array_equal(thin_product(layout, columns), a @ v)


@versions
@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 40])
def test_bounds_of_products_lie_above_the_exact_ones(product, n):
    # n roundings and n of the least numbers are what users of the product count
    rng = np.random.default_rng(n)
    for lowest in (-20, -600):
        powers = rng.integers(lowest, 20, (6, n))
        a = np.ldexp(rng.standard_normal((6, n)), powers)
        v = np.ldexp(rng.random((n, 2)), rng.integers(lowest, 20, (n, 2)))
        exact = exact_matmul(exact_moduli(fractions(a)), fractions(v))
        for layout in layouts(a):
            got = product(layout, v)
            bound = above(got, n, n * LEAST)
            for i, j in np.ndindex(got.shape):
                assert Fraction(float(bound[i, j])) >= exact[i][j]
                room = Fraction(gamma(n)) * exact[i][j] + n * Fraction(LEAST)
                assert abs(Fraction(float(got[i, j])) - exact[i][j]) <= room


@versions
def test_inf_and_nan_are_seen(product):
    a = np.array([[1.0, np.inf], [np.nan, 2.0], [3.0, 4.0]])
    for layout in layouts(a):
        got = product(layout, np.ones((2, 1)))
        np.testing.assert_array_equal(got, [[np.inf], [np.nan], [7.0]])
