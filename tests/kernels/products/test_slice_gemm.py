"""Sums of products of slices in floating point: exact integers, whatever the tile."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hifigemm.kernels.products import slice_gemm
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.runtime.tiles import Tile
from hifigemm.kernels.vectors.slices import Slices, k_pitch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORMATS = [
    torch.float16,
    torch.float64,
    # The interpreter has no products of BF16.
    pytest.param(torch.bfloat16, marks=pytest.mark.gpu),
]


def slices(digits, dtype, beta, pitch):
    """Slices (batch, vectors, count, k) of NumPy as the kernels take them."""
    padded = np.zeros((*digits.shape[:3], pitch))
    padded[..., : digits.shape[3]] = digits
    planes = torch.from_numpy(padded).to(DEVICE, dtype)
    return Slices(planes, torch.zeros(digits.shape[:2], dtype=torch.int32), beta)


def check(left, right, dtype, beta, **options):
    k, count = left.shape[3], left.shape[2]
    made = run_recorded(
        slice_gemm.diagonals,
        slices(left, dtype, beta, k_pitch(k)),
        slices(right[:, :, ::-1], dtype, beta, k_pitch(k)),
        k,
        **options,
    )
    x, y = left.astype(np.int64), right.astype(np.int64)
    for part in range(count):
        s = count - 1 - part
        want = sum(x[:, :, p] @ y[:, :, s - p].swapaxes(1, 2) for p in range(s + 1))
        got = sum(
            piece[:, part].to(torch.int64) for piece in made if part < piece.shape[1]
        )
        n = right.shape[1]
        np.testing.assert_array_equal(got[..., :n].cpu().numpy(), want)


def bits_of(dtype, k):
    """The widest slices whose products are exact."""
    most = {torch.float16: 12, torch.bfloat16: 9, torch.float64: 22}[dtype]
    block = {torch.float16: 1024, torch.bfloat16: 256, torch.float64: 2048}[dtype]
    total = 53 if dtype is torch.float64 else 24
    return max(
        b for b in range(2, most + 1) if min(k, block) * 4 ** (b - 1) <= 2**total
    )


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("k", [1, 16, 127, 129, 300, 2200])
def test_sums_are_exact_where_digits_are_largest(k, dtype):
    beta = bits_of(dtype, k)
    h = 2 ** (beta - 1)
    rng = np.random.default_rng(k)
    largest = np.full((1, 2, 3, k), -h)
    check(largest, largest, dtype, beta)
    mixed = rng.integers(-h, h + 1, (1, 5, 3, k))
    check(mixed, largest, dtype, beta)


@pytest.mark.parametrize("dtype", FORMATS)
def test_long_diagonals_are_cut_where_integers_are_full(dtype, monkeypatch):
    own = slice_gemm.windows
    monkeypatch.setattr(slice_gemm, "windows", lambda *given: (own(*given)[0], 384))
    rng = np.random.default_rng(1)
    left, right = (rng.integers(-8, 9, (1, v, 4, 300)) for v in (3, 5))
    check(left, right, dtype, 4)


def test_integers_of_32_bits_hold_the_longest_sum():
    for k in (1, 100, 128, 4096):
        for beta in (8, 9, 11):
            _, limit = slice_gemm.windows(torch.float16, beta, k)
            assert limit % 128 == 0
            terms = limit // 128 * min(k, 128)
            assert terms * 4 ** (beta - 1) < 2**31


@pytest.mark.parametrize("dtype", FORMATS)
def test_tiles_and_stacks(dtype):
    rng = np.random.default_rng(2)
    left, right = (
        rng.integers(-9, 10, (2, 40, 2, 70)),
        rng.integers(-9, 10, (1, 37, 2, 70)),
    )
    for tile in (
        None,
        Tile("triton", 32, 16, 64, 2, 4, 1),
        Tile("triton", 16, 64, 32, 2, 4, 3),
    ):
        check(left, right, dtype, 5, config=tile)
        check(right, left, dtype, 5, config=tile)
