"""Seven products of halves have the residues of the plain product."""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.numerics.residues import moduli_set
from hifigemm.numerics.strassen import (
    NUM_PRODUCTS,
    TERMS,
    VECTORS,
    block_sums,
    half_of,
    joined_products,
)


def residues_of(rng, count, vectors, k):
    return rng.integers(-128, 128, (1, count, vectors, k)).astype(np.int8)


@pytest.mark.parametrize(
    ("m", "n", "k"), [(128, 128, 256), (65, 70, 144), (190, 129, 400)]
)
def test_seven_products_have_the_residues_of_one(m, n, k):
    rng = np.random.default_rng(m)
    moduli = moduli_set(5, False).moduli
    p = np.array(moduli)[:, None, None]
    a, b = residues_of(rng, 5, m, k), residues_of(rng, 5, n, k)
    half_m, half_n, half_k = half_of(m, VECTORS), half_of(n, VECTORS), half_of(k, TERMS)
    s = block_sums(a, moduli, half_m, half_k, is_right=False)
    t = block_sums(b, moduli, half_n, half_k, is_right=True)

    def blocks(x, half):
        whole = np.zeros((1, 5, 2 * half, 2 * half_k), np.int8)
        whole[:, :, : x.shape[2], : x.shape[3]] = x
        return [
            whole[:, :, v : v + half, h : h + half_k]
            for v in (0, half)
            for h in (0, half_k)
        ]

    (a11, a12, _, a22), (b11, b21, _, b22) = blocks(a, half_m), blocks(b, half_n)
    left = [a11, a12, s[:, 3], a22, *s[:, :3].swapaxes(0, 1)]
    right = [b11, b21, b22, t[:, 3], *t[:, :3].swapaxes(0, 1)]
    assert len(left) == NUM_PRODUCTS
    pairs = zip(left, right, strict=True)
    products = np.stack(
        [(x.astype(int) @ y.astype(int).swapaxes(2, 3) + p // 2) % p for x, y in pairs],
        axis=1,
    )
    found = joined_products((products - p // 2).astype(np.int8), moduli, m, n)
    assert not ((found - a.astype(int) @ b.astype(int).swapaxes(2, 3)) % p).any()
