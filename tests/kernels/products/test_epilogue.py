"""alpha T + beta C in a kernel: the bits of numerics.epilogue.combine."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.kernels.products.epilogue import combine_in_place
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.numerics.epilogue import combine

combine_in_place = partial(run_recorded, combine_in_place)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LARGEST = np.finfo(float).max
HARD = [
    0.0,
    -0.0,
    5e-324,
    2.0**-1022,
    2.0**-960,
    1 / 3,
    1.0,
    2.0**966,
    2.0**995,
    2.0**996,
    2.0**997,
    1e305,
    LARGEST,
]


def numbers(rng, shape, dtype):
    """Entries in all ranges, many of them so large that halves, products or sums
    overflow.
    """
    x = np.ldexp(
        rng.uniform(1, 2, shape),
        rng.choice([-1074, -1000, -960, 0, 960, 990, 996, 1000, 1023], shape),
    )
    hard = rng.choice([*HARD, np.inf, np.nan], shape)
    x = np.where(rng.random(shape) < 0.4, hard, x) * rng.choice([-1.0, 1.0], shape)
    with np.errstate(over="ignore"):
        return x.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("alpha", "beta"),
    [
        (1.0, 1.0),
        (1.0, -1.0),
        (2.0**30, -(2.0**-30)),
        (2.0**-30, 2.0**30),
        (1 / 3, 0.7),
        (2 - 2.0**-52, 1e9 / 3),
        (3.0, 0.0),
    ],
)
def test_entries_of_all_ranges_have_the_bits_of_the_plain_function(
    assert_same_bits, alpha, beta, dtype
):
    rng = np.random.default_rng(3)
    t, c = (numbers(rng, (2, 33, 47), dtype) for _ in range(2))
    near = rng.random(t.shape) < 0.3  # sums that cancel
    with np.errstate(all="ignore"):
        c = np.where(near & (beta != 0), (-alpha * t / (beta or 1.0)).astype(dtype), c)
    addend = c if beta else None
    found = torch.from_numpy(t.copy()).to(DEVICE)
    with np.errstate(all="ignore"):  # the interpreter computes with NumPy
        combine_in_place(
            found,
            alpha,
            beta,
            None if addend is None else torch.from_numpy(c).to(DEVICE),
        )
    x, y = found.cpu().numpy(), combine(t, alpha, addend, beta)
    assert np.isnan(y).any()
    np.testing.assert_array_equal(np.isnan(x), np.isnan(y))
    assert_same_bits(np.where(np.isnan(x), 0, x), np.where(np.isnan(y), 0, y))
