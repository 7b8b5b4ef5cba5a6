"""Error-free transformations are free of error."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.numerics.eft import two_product, two_sum


@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300))
def test_sum_and_error_are_the_exact_sum(x, y):
    s, e = two_sum(np.float64(x), np.float64(y))
    assert s == x + y
    assert Fraction(float(s)) + Fraction(float(e)) == Fraction(x) + Fraction(y)


SAFE = st.floats(1e-140, 1e140) | st.floats(-1e140, -1e-140) | st.just(0.0)


@given(SAFE, SAFE)
def test_product_and_error_are_the_exact_product(x, y):
    p, e = two_product(np.float64(x), np.float64(y))
    assert p == x * y
    assert Fraction(float(p)) + Fraction(float(e)) == Fraction(x) * Fraction(y)
