"""Correct sums with any scalars, from pairs that a device has made."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.running.scaled_sums import SumOfPair
from tests.engines.stand_in import DEVICE, on_host


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_sums_have_the_bits_of_the_host(
    as_on_gpu, assert_same_bits, monkeypatch, dtype
):
    rng = np.random.default_rng(1)

    def entries(*shape):
        x = rng.standard_normal(shape)
        if dtype == "complex128":
            x = x + 1j * rng.standard_normal(shape)
        return x.astype(dtype)

    a, b, c = entries(5, 6), entries(6, 4), entries(5, 4)
    on_device = [torch.from_numpy(x).to(DEVICE) for x in (a, b, c)]
    scalars = (3.0, 0.7), (2.5, -0.1), (2.9, 1.0)
    of_host = [
        hg.gemm(a, b, c, alpha=alpha, beta=beta, accuracy="correct")
        for alpha, beta in scalars
    ]
    settled = []
    own = SumOfPair.sums

    def sums(self, *arguments, **options):
        result = own(self, *arguments, **options)
        settled.append(result is not None)
        return result

    monkeypatch.setattr(SumOfPair, "sums", sums)
    for (alpha, beta), want in zip(scalars, of_host, strict=True):
        got = hg.gemm(*on_device, alpha=alpha, beta=beta, accuracy="correct")
        assert_same_bits(on_host(got), want)
    assert settled == 3 * [True]
