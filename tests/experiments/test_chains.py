from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from experiments.chains import chained_product, fused_multiply_add
from hifigemm.base.formats import FP32
from hifigemm.numerics.tensor_core import TensorCoreModel, tensor_core_product
from hifigemm.testing.matrices import uniform


def rounded(value, dtype):
    """A Fraction rounded once."""
    if dtype == np.float64:
        # the division of Python integers rounds once
        return np.float64(value.numerator / value.denominator)
    low = np.float32(float(value))
    near = [
        np.nextafter(low, np.float32(-np.inf)),
        low,
        np.nextafter(low, np.float32(np.inf)),
    ]
    return min(
        near, key=lambda x: (abs(Fraction(float(x)) - value), x.view(np.int32) & 1)
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fused_multiply_add_rounds_once(dtype):
    rng = np.random.default_rng(1)
    x, y, z = (uniform(rng, (600,), dtype=dtype) for _ in range(3))
    short = np.ldexp(np.rint(8 * x), -3).astype(dtype)
    half = np.finfo(dtype).eps / 2
    cases = [
        (x, y, z),
        (x, y, -(x * y)),
        (short, short, short),
        (x, y, (z * half).astype(dtype)),
    ]
    cases += [
        (np.full_like(x, half), short, 1 + short / 8),
        (x, np.full_like(x, half), z),
    ]
    for p, q, r in cases:
        got = fused_multiply_add(p, q, r)
        want = [
            rounded(Fraction(float(i)) * Fraction(float(j)) + Fraction(float(k)), dtype)
            for i, j, k in zip(p, q, r)
        ]
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_chain_is_one_step_after_the_other(dtype):
    rng = np.random.default_rng(2)
    a, b, c = (uniform(rng, shape, dtype=dtype) for shape in ((3, 7), (7, 5), (3, 5)))
    for i, j in np.ndindex(3, 5):
        total = c[i, j]
        for h in range(7):
            total = rounded(
                Fraction(float(a[i, h])) * Fraction(float(b[h, j]))
                + Fraction(float(total)),
                dtype,
            )
        assert chained_product(a, b, c)[i, j] == total


def test_chain_of_singles_is_that_of_a_unit_that_adds_one_product_at_a_time():
    rng = np.random.default_rng(3)
    a, b = (uniform(rng, shape, dtype=np.float32) for shape in ((70, 40), (40, 9)))
    unit = TensorCoreModel("one", block=1, fraction_bits=48, rounding="nearest")
    np.testing.assert_array_equal(
        chained_product(a, b), tensor_core_product(a, b, fmt=FP32, model=unit)
    )


def test_exact_products_take_the_short_way_to_the_same_bits():
    rng = np.random.default_rng(4)
    a, b = (
        uniform(rng, shape, dtype=np.float32).astype(float)
        for shape in ((3, 50), (50, 4))
    )
    want = np.zeros((3, 4))
    for h in range(50):
        want = fused_multiply_add(a[:, h, None], b[h], want)
    np.testing.assert_array_equal(chained_product(a, b), want)


def test_mixed_dtypes_are_refused():
    with pytest.raises(TypeError, match="two float32 or two float64"):
        chained_product(np.ones((1, 1)), np.ones((1, 1), np.float32))
