"""Products modulo p_l against Python integers: planes of operands, their products, and what follows from these."""

from __future__ import annotations

import numpy as np
import pytest
from hifigemm.schemes.residue_products import (
    multiply_planes,
    num_planes,
    product_residues,
    residue_bytes,
    round_integers,
    rounded_integers,
    scaled_residues,
)

from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.formats import FP64
from hifigemm.numerics.residues import moduli_set
from hifigemm.numerics.scaling import Scale


class CheckedEngine(NumpyEngine):
    """Residues are INT8 with -128 among them."""

    def exact_product(self, spec, a, b, max_a, max_b):
        assert (max_a, max_b) == (128, 128)
        return super().exact_product(spec, a, b, max_a, max_b)


def operand(rng, shape, bits, is_complex):
    """Integers of so many bits, real planes of few, with their Python integers (re, im)."""
    planes = [rng.integers(-(2**53), 2**53, shape).astype(float) * 2.0 ** max(bits - 53, 0) for _ in range(2)]
    if not is_complex:
        return planes[0], [np.vectorize(int, [object])(planes[0])]
    planes[0] = rng.integers(-5, 6, shape).astype(float)
    return planes[0] + 1j * planes[1], [np.vectorize(int, [object])(part) for part in planes]


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("count", [2, 9, 24])
@pytest.mark.parametrize("part", [1, 20, 10**4])
@pytest.mark.parametrize("stacks", [(2, 2), (1, 2), (2, 1)])
def test_residues_of_a_product_are_those_of_its_integers(is_complex, count, part, stacks):
    rng, moduli = np.random.default_rng(count), moduli_set(count, is_complex)
    (a, left), (b, right) = (
        operand(rng, (z, *shape), 80, is_complex) for z, shape in zip(stacks, ((5, 6), (6, 4)), strict=True)
    )
    s, t = (
        Scale(np.full(shape, -3), np.ones(shape, bool), axis, 80)
        for shape, axis in (((len(a), 5, 1), 2), ((len(b), 1, 4), 1))
    )
    planes = [scaled_residues(x * 8, scale, moduli, part) for x, scale in ((a, s), (b, t))]
    assert planes[0].shape == (stacks[0], num_planes(moduli, is_complex), 5, 6)
    assert planes[1].shape == (stacks[1], num_planes(moduli, is_complex), 4, 6)
    found = product_residues(multiply_planes(*planes, moduli, CheckedEngine()), moduli)
    exact = np.matmul(left[0], right[0])
    if is_complex:
        real, imag = exact - np.matmul(left[1], right[1]), np.matmul(left[0], right[1]) + np.matmul(left[1], right[0])
        exact = np.stack([real, imag], axis=3).reshape(2, 5, 8)
    for l, p in enumerate(moduli.moduli):
        assert not ((found[:, l].astype(object) - exact) % p).any()


def test_rounded_integers_are_the_values_of_those_that_are_judged():
    rng, moduli = np.random.default_rng(1), moduli_set(5, True)
    products = rng.integers(-50, 50, (2, num_planes(moduli, True), 3, 4)).astype(np.int8)
    units = rng.integers(-9, 9, (2, 3, 1)), rng.integers(-9, 9, (2, 1, 8))
    judged = round_integers(product_residues(products, moduli), *units, 7, moduli, FP64, 5)
    np.testing.assert_array_equal(rounded_integers(products, *units, 7, moduli, FP64, 100), judged.values)


def test_bytes_of_residues_are_padded_as_kernels_want_them():
    for rows, cols, k, padded in (
        (1, 1, 1, (128, 128, 256)),
        (128, 256, 128, (128, 128, 256)),
        (129, 257, 129, (256, 256, 512)),
    ):
        depth, height, width = padded
        operands = (rows + cols) * depth
        assert residue_bytes(rows, cols, k, 7) == 7 * (operands + height * width)
        assert residue_bytes(rows, cols, 10**6, 7) == 7 * ((rows + cols) * 1000064 + height * width)
        assert residue_bytes(rows, cols, k, 7, 2) == 7 * operands + max(7 * height * width, 2 * operands)
