"""Residues to multiply, and their products against the integer products of PyTorch in
float64.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from hifigemm.kernels.products.residue_gemm import residue_constants, residue_gemm
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.runtime.tiles import gpu_of, valid_tiles

residue_gemm = partial(run_recorded, residue_gemm)

HAS_GPU = torch.cuda.is_available()


DEVICE = torch.device("cuda", 0) if HAS_GPU else torch.device("cpu")


_TILES = valid_tiles(gpu_of(DEVICE))
FP16 = [
    replace(tile, unit="fp16")
    for tile in _TILES
    if tile.kernel == "triton" and tile.block_m == tile.block_n and tile.block_k == 128
]
"""On the units of GPUs whose INT8 units are slow, which every GPU has."""
TILES = [*_TILES, *FP16]


HOPPER = [tile for tile in TILES if tile.kernel != "triton"]


def up(x, multiple):
    return -(-x // multiple) * multiple


def random_residues(rng, batch, planes, vectors, k, extreme=False):
    """int8 (batch, planes, vectors, k_pitch), zero beyond k; extreme: all -128."""
    x = np.zeros((batch, planes, vectors, up(k, 16)), np.int8)
    x[..., :k] = (
        -128 if extreme else rng.integers(-128, 128, (batch, planes, vectors, k))
    )
    return torch.from_numpy(x).to(DEVICE)


def empty_products(batch, planes, m, n):
    return torch.full(
        (batch, planes, up(m, 128), up(n, 256)), 77, dtype=torch.int8, device=DEVICE
    )


def product(x, y):
    """x y.T of integer stacks, exactly: int64 from products in float64 of sums below
    2**53.
    """
    wide = torch.matmul(x.double(), y.double().mT)
    return wide.cpu().numpy().astype(np.int64)


def check(left, right, moduli, out, m, n, **options):
    residue_gemm(left, right, residue_constants(moduli, DEVICE), out, **options)
    found = out[:, :, :m, :n].cpu().numpy().astype(np.int64)
    assert not ((found - product(left, right)) % np.array(moduli)[:, None, None]).any()
