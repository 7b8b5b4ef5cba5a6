from __future__ import annotations

import math

import numpy as np
import pytest

from experiments.sigma import sigma_num_slices, sigma_slice
from hifigemm.testing.matrices import phi_matrix


@pytest.mark.parametrize("k", [30, 100, 7168])
def test_slices_sum_back_and_their_products_are_exact(k):
    x = phi_matrix(np.random.default_rng(k), (3, k), 1.0)
    rest, total = x, np.zeros_like(x)
    while rest.any():
        last = sigma_slice(rest)
        for row in last:
            integers = np.ldexp(row, 200 - np.frexp(abs(row).max(initial=1e-300))[1])
            integers = [int(value) for value in integers]
            unit = math.gcd(*integers) or 1
            assert k * (max(map(abs, integers)) // unit) ** 2 <= 2**24
        rest, total = rest - last, total + last
    np.testing.assert_array_equal(total, x)


def test_published_count():
    """[MOOI20], figure 5: 11 slices for FP64 accuracy at n = 7168, phi = 0.1."""
    rng = np.random.default_rng(1)
    a, b = phi_matrix(rng, (64, 7168), 0.1), phi_matrix(rng, (7168, 64), 0.1)
    assert sigma_num_slices(a, b, 2.0**-53) == 11


def test_operands_that_end_need_no_more():
    assert sigma_num_slices(np.ones((2, 5)), np.full((5, 2), -3.0), 2.0**-53) == 1
    assert sigma_num_slices(np.zeros((2, 5)), np.zeros((5, 2)), 2.0**-53) == 1
