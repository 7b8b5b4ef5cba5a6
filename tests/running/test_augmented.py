"""A B + s C as one product: what C puts into the sum where it is not finite."""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("beta", [1.0, -1.0, -(2.0**-30), 4.0])
def test_infinities_of_the_addend_take_the_sign_of_its_factor(dtype, beta):
    a, b = np.ones((2, 3), dtype), np.ones((3, 3), dtype)
    c = np.array([[np.inf, -np.inf, 1.0], [np.nan, 2.0, -np.inf]], dtype)
    found, report = hg.gemm(a, b, c, beta=beta, accuracy="correct", return_report=True)
    assert "C among the terms" in report.reason
    sign = np.sign(beta)
    want = [
        [sign * np.inf, -sign * np.inf, 3 + beta],
        [np.nan, 3 + 2 * beta, -sign * np.inf],
    ]
    np.testing.assert_array_equal(found.real, np.array(want, found.real.dtype))


def test_an_infinite_addend_meets_an_infinity_of_its_own_sign():
    # The product overflows: inf + inf is inf, inf - inf is NaN.
    a = np.full((1, 2), 2.0**1000)
    b = np.full((2, 1), 2.0**1000)
    c = np.array([[np.inf]])
    assert hg.gemm(a, b, c, beta=1.0, accuracy="correct") == np.inf
    assert np.isnan(hg.gemm(a, b, c, beta=-1.0, accuracy="correct"))
