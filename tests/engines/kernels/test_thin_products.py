"""Products with few columns: every entry of the kernel is that of its plain twin for
integers, and within the bound of its roundings for other numbers.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from hifigemm.engines.kernels.thin_products import thin_product
from hifigemm.linalg.upward import gamma
from hifigemm.numerics import magnitudes
from tests.linalg.worst_arithmetic import exact_matmul, fractions
from tests.linalg.worst_arithmetic import moduli as exact_moduli

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TWINS = {False: magnitudes.thin_product, True: magnitudes.magnitude_product}
SHAPES = [(1, 1, 1), (3, 5, 2), (16, 64, 1), (17, 65, 3), (40, 130, 4), (5, 0, 2)]


def by_kernel(a, v, of_magnitudes):
    """The kernel's product as an array of NumPy."""
    tensors = (torch.from_numpy(x).to(DEVICE) for x in (a, v))
    return thin_product(*tensors, of_magnitudes=of_magnitudes).cpu().numpy()


@pytest.mark.parametrize("of_magnitudes", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_integers_have_the_bits_of_the_twin(shape, of_magnitudes):
    m, n, k = shape
    rng = np.random.default_rng(m)
    a = rng.integers(-(2**20), 2**20, (m, n)).astype(float)
    v = rng.integers(0, 2**20, (n, k)).astype(float)
    want = TWINS[of_magnitudes](a, v)
    for layout in (a, np.asfortranarray(a), np.repeat(a, 2, axis=1)[:, ::2]):
        np.testing.assert_array_equal(by_kernel(layout, v, of_magnitudes), want)


@pytest.mark.parametrize("of_magnitudes", [False, True])
def test_terms_pass_no_more_roundings_than_there_are(of_magnitudes):
    rng = np.random.default_rng(0)
    a = np.ldexp(rng.standard_normal((20, 70)), rng.integers(-30, 30, (20, 70)))
    v = rng.random((70, 2))
    got = fractions(by_kernel(a, v, of_magnitudes))
    left = exact_moduli(fractions(a)) if of_magnitudes else fractions(a)
    exact = exact_matmul(left, fractions(v))
    sizes = exact_matmul(exact_moduli(fractions(a)), fractions(v))
    for i, j in np.ndindex(20, 2):
        assert abs(got[i][j] - exact[i][j]) <= Fraction(gamma(70)) * sizes[i][j]


def test_inf_and_nan_spread_as_in_any_sum():
    a = np.array([[1.0, np.inf], [np.nan, 2.0], [3.0, 4.0]])
    product = by_kernel(a, np.ones((2, 1)), True)
    np.testing.assert_array_equal(product, [[np.inf], [np.nan], [7.0]])


def test_more_columns_are_refused():
    with pytest.raises(ValueError, match="5 columns"):
        by_kernel(np.ones((2, 2)), np.ones((2, 5)), False)
