"""alpha A B + beta C of untracked arrays, and numbers as scalars."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base.store import forget
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


@pytest.mark.parametrize("accuracy", ["correct", 1e-16])
@pytest.mark.parametrize(
    "scalars", [(math.nan, 0.5), (1.3, math.inf), (-math.inf, 2.0)]
)
def test_a_sum_with_inf_or_nan_as_scalar_leaves_nothing_for_finite_ones(
    accuracy, scalars, assert_same_bits
):
    # Far from 1, so that no launch applies it, as Inf and NaN are.
    finite = {"alpha": 1.3, "beta": 2.0**40, "accuracy": accuracy}
    a, b, c = np.random.default_rng(3).standard_normal((3, 9, 9))
    c *= 2.0**-40
    forget()
    want = hg.gemm(a, b, c, **finite)
    forget()
    alpha, beta = scalars
    hg.gemm(a, b, c, alpha=alpha, beta=beta, accuracy=accuracy)
    assert_same_bits(hg.gemm(a, b, c, **finite), want)
