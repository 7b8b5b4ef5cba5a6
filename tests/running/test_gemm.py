"""alpha A B + beta C of untracked arrays, and numbers as scalars."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.running.gemm import as_scalar, gemm_of_numbers


@pytest.mark.parametrize("beta", [0.0, 1.0, 0.1])
def test_sums_are_those_of_gemm(make_pair, assert_same_bits, beta):
    a, b = make_pair("cancelling", 4, 9, 5)
    c = np.ones((4, 5))
    for accuracy in (None, 1e-12, "correct"):
        found = gemm_of_numbers(a, b, c, accuracy, alpha=-1.0, beta=beta)
        want = hg.gemm(a, b, c, alpha=-1.0, beta=beta, accuracy=accuracy)
        assert_same_bits(found, want)


@pytest.mark.parametrize(
    "x", [2, True, 0.5, np.float32(0.25), np.array(3.0), Fraction(1, 4), 1 + 0j]
)
def test_real_numbers_become_floats(x):
    found = as_scalar(x, "alpha")
    assert type(found) is float
    assert found == x


def test_complex_numbers_stay_and_nan_is_a_number():
    assert as_scalar(np.complex64(1 + 2j), "alpha") == 1 + 2j
    assert math.isnan(as_scalar(math.nan, "alpha"))


@pytest.mark.parametrize(
    ("x", "error"),
    [
        ("1", TypeError),
        (np.ones(2), TypeError),
        (None, TypeError),
        (10**400, ValueError),
        (2**53 + 1, ValueError),
    ],
)
def test_what_is_no_number_of_float64_is_refused(x, error):
    with pytest.raises(error, match="beta"):
        as_scalar(x, "beta")
