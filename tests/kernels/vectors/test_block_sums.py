"""Sums of the blocks of residues: those of numerics/strassen.py modulo p."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.kernels.products.residue_gemm import constants_of, residue_constants
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.vectors import block_sums as module
from hifigemm.kernels.vectors.block_sums import block_sums
from hifigemm.numerics import strassen
from hifigemm.numerics.residues import complex_moduli, real_moduli

block_sums = partial(run_recorded, block_sums)

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
MODULI = sorted({*real_moduli(), *complex_moduli()})


@pytest.mark.parametrize("p", MODULI)
def test_pairs_of_float16_reduce_every_sum_of_four_residues(p):
    """The arithmetic of the PTX in NumPy: fused multiply-adds round exact values
    once.
    """
    inverse, minus_p = (
        np.array(x & 0xFFFF, np.uint16).view(np.float16) for x in constants_of(p)[6:]
    )
    s = np.arange(-512, 509)
    q = (s * float(inverse) + 1536.0).astype(np.float16).astype(float) - 1536.0
    r = q * float(minus_p) + (s + 1152)
    assert np.array_equal(r, r.astype(np.float16))
    byte = (
        ((r.astype(np.float16).view(np.uint16) & 0xFF) ^ 0x80)
        .astype(np.uint8)
        .view(np.int8)
    )
    assert not ((byte - s) % p).any()


@pytest.mark.parametrize("is_right", [False, True])
@pytest.mark.parametrize(("vectors", "k"), [(128, 256), (65, 144), (80, 4112)])
def test_sums_are_those_of_the_blocks(vectors, k, is_right, monkeypatch):
    if DEVICE.type == "cpu":  # every vector is a program of the interpreter
        monkeypatch.setattr(module, "VECTORS", 1)
        vectors //= 16
    rng, moduli = np.random.default_rng(vectors), (256, 255, 37)
    whole = rng.integers(-128, 128, (1, 4, vectors + 3, k + 16)).astype(np.int8)
    whole[0, 0] = rng.choice([-128, 127], whole.shape[2:])
    planes = torch.from_numpy(whole).to(DEVICE)[:, :3, :vectors, :k]
    found = (
        block_sums(planes, residue_constants(moduli, DEVICE), is_right=is_right)
        .cpu()
        .numpy()
    )
    half = strassen.half_of(vectors, module.VECTORS)
    half_k = strassen.half_of(k, strassen.TERMS)
    want = strassen.block_sums(
        whole[:, :3, :vectors, :k], moduli, half, half_k, is_right=is_right
    )
    assert found.shape == (1, 12, half, half_k)
    difference = found.reshape(want.shape).astype(int) - want
    assert not (difference % np.array(moduli)[:, None, None]).any()
