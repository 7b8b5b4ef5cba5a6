"""Products modulo p_l against Python integers: planes of operands, their products, and
what follows from these.
"""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.base.formats import FP64
from hifigemm.numerics.residue_products import (
    crt,
    num_planes,
    product_residues,
    residue_gemm,
    round_integers,
    scaled_residues,
)
from hifigemm.numerics.residues import moduli_set
from hifigemm.numerics.scaling import Scale


def exact(a, b, max_a, max_b):
    """The product of INT8 words with -128 among them."""
    assert (a.dtype, b.dtype, max_a, max_b) == (np.int8, np.int8, 128, 128)
    return a.astype(np.int64) @ b.astype(np.int64)


def operand(rng, shape, bits, is_complex):
    """Integers of so many bits, real planes of few, with their Python integers (re,
    im).
    """
    planes = [
        rng.integers(-(2**53), 2**53, shape).astype(float) * 2.0 ** max(bits - 53, 0)
        for _ in range(2)
    ]
    if not is_complex:
        return planes[0], [np.vectorize(int, [object])(planes[0])]
    planes[0] = rng.integers(-5, 6, shape).astype(float)
    return planes[0] + 1j * planes[1], [
        np.vectorize(int, [object])(part) for part in planes
    ]


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("count", [2, 9, 24])
@pytest.mark.parametrize("part", [1, 20, 10**4])
@pytest.mark.parametrize("stacks", [(2, 2), (1, 2), (2, 1)])
def test_residues_of_a_product_are_those_of_its_integers(
    is_complex, count, part, stacks
):
    rng, moduli = np.random.default_rng(count), moduli_set(count, is_complex)
    (a, left), (b, right) = (
        operand(rng, (z, *shape), 80, is_complex)
        for z, shape in zip(stacks, ((5, 6), (6, 4)), strict=True)
    )
    s, t = (
        Scale(np.full(shape, -3), np.ones(shape, bool), axis, 80)
        for shape, axis in (((len(a), 5, 1), 2), ((len(b), 1, 4), 1))
    )
    planes = [
        scaled_residues(x * 8, scale, moduli, part) for x, scale in ((a, s), (b, t))
    ]
    assert planes[0].shape == (stacks[0], num_planes(moduli, is_complex), 5, 6)
    assert planes[1].shape == (stacks[1], num_planes(moduli, is_complex), 4, 6)
    found = product_residues(residue_gemm(*planes, moduli, exact), moduli)
    want = np.matmul(left[0], right[0])
    if is_complex:
        real = want - np.matmul(left[1], right[1])
        imag = np.matmul(left[0], right[1]) + np.matmul(left[1], right[0])
        want = np.stack([real, imag], axis=3).reshape(2, 5, 8)
    for l, p in enumerate(moduli.moduli):
        assert not ((found[:, l].astype(object) - want) % p).any()


def test_crt_gives_the_values_of_the_integers_that_are_certified():
    rng, moduli = np.random.default_rng(1), moduli_set(5, True)
    products = rng.integers(-50, 50, (2, num_planes(moduli, True), 3, 4)).astype(
        np.int8
    )
    units = rng.integers(-9, 9, (2, 3, 1)), rng.integers(-9, 9, (2, 1, 8))
    certified = round_integers(
        product_residues(products, moduli), *units, 7, moduli, FP64, 5
    )
    np.testing.assert_array_equal(
        crt(products, *units, 7, moduli, FP64, 100), certified.values
    )


@pytest.mark.parametrize("stacks", [(2, 2), (1, 2), (2, 1)])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 4), (2, 9000, 1), (130, 3, 130)])
def test_planes_are_multiplied_together_or_apart_with_the_same_residues(shape, stacks):
    rng, moduli, (m, k, n) = np.random.default_rng(3), moduli_set(7, False), shape
    left = rng.integers(-128, 128, (stacks[0], 7, m, k)).astype(np.int8)
    right = rng.integers(-128, 128, (stacks[1], 7, n, k)).astype(np.int8)
    found = residue_gemm(left, right, moduli, exact)
    assert found.shape == (2, 7, m, n)
    want = left.astype(object) @ np.swapaxes(right, 2, 3).astype(object)
    for q, p in enumerate(moduli.moduli):
        assert not ((found[:, q].astype(object) - want[:, q]) % p).any()
        assert (abs(found[:, q].astype(int)) <= p // 2).all()
