"""Exact INT8 products, sums of slices over diagonals, and other epilogues equal the
integer products of NumPy.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from hifigemm.kernels.products import int8_product
from hifigemm.kernels.runtime.recording import run_recorded
from tests.kernels.residue_products import DEVICE, HOPPER, TILES, product

exact_int8_gemm = partial(run_recorded, int8_product.exact_int8_gemm)

PLAIN = [tile for tile in TILES if tile.kernel == "triton"]


@triton.jit
def store_halves(sums, tile_origin, m, n, target, numbers):
    """An epilogue that is not in the library: half of each sum in FP32."""
    address, stored = int8_product.entries_in_results(
        sums, tile_origin, target, numbers
    )
    tl.store(address, sums.to(tl.float32) * 0.5, mask=stored)


def halves(a, b, *, tile):
    """a b.T / 2 of INT8 stacks (1, 1, m, k) and (1, 1, n, k)."""
    m, n, k = a.shape[2], b.shape[2], a.shape[3]
    out = a.launches.empty((1, 1, m, n), torch.float32)
    int8_product.launch(
        int8_product.Int8Product(m, n, k, parts=1, planes=1),
        int8_product.planes_of(a),
        int8_product.planes_of(b),
        tile,
        store_halves,
        int8_product.results_of(out),
        (m,),
    )
    return out


def random_words(seed, *shape):
    words = np.random.default_rng(seed).integers(-128, 128, shape, dtype=np.int8)
    return torch.from_numpy(words).to(DEVICE)


@pytest.mark.parametrize("tile", PLAIN, ids=str)
@pytest.mark.parametrize("order", ["nn", "nt", "tn", "tt"])
def test_exact_products_of_any_strides(tile, order):
    rng = np.random.default_rng(1)
    m, n, k = 45, 37, 150
    a = torch.from_numpy(rng.integers(-128, 128, (2, m, k), dtype=np.int8)).to(DEVICE)
    b = torch.from_numpy(rng.integers(-128, 128, (1, k, n), dtype=np.int8)).to(DEVICE)
    a = a.mT.contiguous().mT if order[0] == "t" else a
    b = b.mT.contiguous().mT if order[1] == "t" else b
    found = exact_int8_gemm(a, b, config=tile)
    assert (found.dtype, found.shape) == (torch.int32, (2, m, n))
    assert np.array_equal(found.cpu().numpy(), product(a, b.mT))


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 1), (3, 5, 7), (64, 1, 33), (1, 130, 200), (0, 3, 4), (3, 4, 0)],
)
def test_exact_products_of_any_shape(m, n, k):
    rng = np.random.default_rng([m, n, k])
    a = torch.from_numpy(rng.integers(-128, 128, (3, 2 * m, k + 3), dtype=np.int8)).to(
        DEVICE
    )[:, ::2, 2 : k + 2]
    b = torch.from_numpy(rng.integers(-128, 128, (3, k, 2 * n + 1), dtype=np.int8)).to(
        DEVICE
    )[:, :, 1::2]
    assert np.array_equal(exact_int8_gemm(a, b).cpu().numpy(), product(a, b.mT))


@pytest.mark.parametrize("tile", [PLAIN[0], PLAIN[-1]], ids=str)
def test_a_new_epilogue_changes_no_kernel(tile):
    a, b = random_words(1, 1, 1, 45, 150), random_words(2, 1, 1, 37, 150)
    found = run_recorded(halves, a, b, tile=tile)
    assert found.dtype is torch.float32
    assert np.array_equal(found[0].cpu().numpy(), product(a[0], b[0]) / 2)


@pytest.mark.parametrize("tile", [PLAIN[-1], *HOPPER], ids=str)
@pytest.mark.parametrize("k_block", [256, 384, int8_product.K_BLOCK])
def test_diagonals_are_sums_of_products_of_slices(tile, k_block):
    """Four slices of 128 terms; k_block cuts the longest diagonals into pieces."""
    a, b = random_words(3, 2, 45, 4, 128), random_words(4, 1, 37, 4, 128)
    pieces = run_recorded(int8_product.diagonals, a, b, k_block=k_block, config=tile)
    assert len(pieces) == -(-4 * 128 // k_block)
    for l in range(4):
        # The slices on the right lie in reverse order.
        wanted = sum(product(a[:, :, p], b[:, :, p + l]) for p in range(4 - l))
        parts = [x[:, l, :45, :37].cpu() for x in pieces if x.shape[1] > l]
        assert np.array_equal(sum(parts).numpy(), wanted)
