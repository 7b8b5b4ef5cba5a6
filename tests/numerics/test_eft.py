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


def test_products_of_entries_next_to_powers_of_two_are_cut_into_halves_of_26_bits():
    """There a factor of 2**27 or its neighbours would leave 27 bits in a half, and 54 in a product."""
    rng = np.random.default_rng(1)
    tails = rng.integers(0, 2**30, 4000) >> rng.integers(0, 30, 4000)
    x = np.concatenate([1 + tails * 2.0**-52, 2 - 2 * tails * 2.0**-53, 1 + tails * 2.0**-27])
    y = rng.permuted(x) * rng.choice([-1.0, 1.0], len(x))
    p, e = two_product(x, y)
    for values in zip(x.tolist(), y.tolist(), p.tolist(), e.tolist(), strict=True):
        a, b, c, d = map(Fraction, values)
        assert c + d == a * b
