"""Zeros in slices: that planes are those of the schemes, and shares count right."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from experiments import sparse_slices
from hifigemm.numerics.residues import moduli_set
from hifigemm.testing.matrices import phi_matrix


@pytest.fixture
def x():
    return phi_matrix(np.random.default_rng(3), (64, 128), 1.0)


def test_slices_are_integers_of_eight_bits_that_sum_back(x):
    planes = list(islice(sparse_slices.slices(x), 24))
    unit = np.frexp(abs(x).max(axis=1, keepdims=True))[1] - 7
    # The grid of a row may be one bit coarser.
    sums = [
        sum(np.ldexp(plane, unit + more - 8 * p) for p, plane in enumerate(planes))
        for more in (0, 1)
    ]
    assert np.all((sums[0] == x).all(axis=1) | (sums[1] == x).all(axis=1))
    assert min(plane.min() for plane in planes) >= -128
    assert max(plane.max() for plane in planes) <= 127


def test_published_slices_sum_back(x):
    assert np.array_equal(sum(islice(sparse_slices.published_slices(x), 40)), x)


def test_residues_of_planes_are_short(x):
    planes = list(sparse_slices.residue_planes(x))
    moduli = moduli_set(sparse_slices.MODULI, False).moduli
    largest = [int(abs(plane.astype(int)).max()) for plane in planes]
    assert len(planes) == sparse_slices.MODULI
    assert all(x <= p // 2 for x, p in zip(largest, moduli, strict=True))


def test_shares_of_zeros():
    plane = np.ones((64, 128))
    plane[:, 64:] = 0
    plane[0, :2] = 0
    found = sparse_slices.shares(plane)
    assert found["zeros"] == (64 * 64 + 2) / (64 * 128)
    assert found["groups_with_two_zeros"] == (64 * 16 + 1) / (64 * 32)
    assert found["zero_tiles"] == 0.5


def test_terms_left_of_products_of_slices():
    assert sparse_slices.terms_left([0.0, 0.0]) == 1
    # (0, 0) keeps a quarter of its terms, (0, 1) and (1, 0) a half each.
    assert sparse_slices.terms_left([0.5, 0.0]) == pytest.approx((0.25 + 0.5 + 0.5) / 3)
