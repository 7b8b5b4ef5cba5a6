"""Norms of blocks of vectors, which several GPUs join: the numbers of the plain
maths.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hifigemm.kernels.vectors.block_norms import block_norms, lowest_bits
from hifigemm.numerics import scaling

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FAMILIES = [
    "uniform",
    "full_range",
    "subnormal",
    "sparse",
    "zeros",
    "integers",
    "empty_rows_and_columns",
    "largest",
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_numbers_are_those_of_the_plain_maths(make_pair, family, dtype):
    for m, k, n in ((5, 600, 7), (17, 256, 3), (1, 1, 1)):
        for x, axis in zip(make_pair(family, m, k, n, dtype), (2, 1), strict=True):
            on_device = torch.from_numpy(x[None]).to(DEVICE)
            with np.errstate(all="ignore"):
                want = scaling.block_norms(x[None], axis, 16384)
                lowest = scaling.lowest_bits(x[None], axis, 16384)
                found, low = block_norms(on_device, axis), lowest_bits(on_device, axis)
            for one, other in zip(found, want, strict=True):
                np.testing.assert_array_equal(one.cpu().numpy(), other)
            np.testing.assert_array_equal(low.cpu().numpy(), lowest)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_vectors_with_inf_or_nan_are_marked(dtype, bad):
    x = np.ones((1, 5, 700), dtype)
    x[0, 1, 300] = bad
    x[0, 2, 256:512] = bad  # all of a block
    x[0, 3] = bad
    with np.errstate(all="ignore"):
        want = scaling.block_norms(x, 2, 16384)[1].max(axis=2)
        found = block_norms(torch.from_numpy(x).to(DEVICE), 2)[1].amax(2)
    assert found.tolist() == want.tolist()
    bad_vectors = [False, True, True, True, False]
    assert (found == scaling.INFINITE).tolist() == [bad_vectors]
