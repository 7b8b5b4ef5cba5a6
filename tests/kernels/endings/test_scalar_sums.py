"""alpha T + beta C from a pair in a kernel: the bits of numerics.scalar_sums."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.base.formats import FP32, FP64
from hifigemm.kernels.endings.scalar_sums import rounded_sum_of_pair
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.numerics import scalar_sums

rounded_sum_of_pair = partial(run_recorded, rounded_sum_of_pair)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPE = (2, 33, 47)


def pairs(rng, family):
    """A pair and C of numbers of all ranges, or ordinary ones."""
    lowest, highest = {"ordinary": (-3, 3), "all": (-1074, 1023)}[family]
    exponents = rng.integers(lowest, highest, SHAPE)
    with np.errstate(all="ignore"):
        high = np.ldexp(rng.standard_normal(SHAPE), exponents)
        low = np.ldexp(rng.standard_normal(SHAPE), exponents - 55)
        c = np.ldexp(rng.standard_normal(SHAPE), rng.integers(lowest, highest, SHAPE))
    if family == "all":
        for x in (high, low, c):
            hard = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324], SHAPE)
            np.copyto(x, hard, where=rng.random(SHAPE) < 0.2)
    return high, low, c


def tensor(x):
    return torch.from_numpy(x.copy()).to(DEVICE)


@pytest.mark.parametrize("fmt", [FP32, FP64], ids=["float32", "float64"])
@pytest.mark.parametrize("has_addend", [False, True])
@pytest.mark.parametrize("family", ["ordinary", "all"])
def test_sums_have_the_bits_of_the_plain_function(
    assert_same_bits, family, has_addend, fmt
):
    rng = np.random.default_rng([5, has_addend])
    for alpha, beta in ((3.0, 0.7), (-0.1, 2.0**900), (1 / 3, 0.0), (2.0**60, 1.0)):
        high, low, c = pairs(rng, family)
        with np.errstate(all="ignore"):
            # Sums that cancel.
            near = -alpha * high / (beta or 1.0)
            np.copyto(c, near, where=rng.random(SHAPE) < 0.3)
        for has_all_bits in (False, True):
            lost = 0.0 if has_all_bits else scalar_sums.lost_bits(alpha)
            addend = c if has_addend and beta else None
            with np.errstate(all="ignore"):
                want, certified = scalar_sums.rounded_sum_of_pair(
                    high, low, alpha, addend, beta, fmt, has_all_bits
                )
                values, is_open = rounded_sum_of_pair(
                    tensor(high),
                    tensor(low),
                    alpha,
                    None if addend is None else tensor(addend),
                    beta,
                    lost,
                    fmt is FP32,
                )
            # What is not certain means nothing.
            got = values.cpu().numpy()
            assert_same_bits(got[certified], want[certified])
            assert bool(is_open) == (not certified.all())


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("place", [0, -1, None])
def test_one_entry_that_is_not_certain_is_seen(size, place):
    high = np.ones((1, 1, size))
    if place is not None:
        high[0, 0, place] = np.inf
    arguments = 3.0, None, 0.0, 0.0, False
    low = tensor(np.zeros((1, 1, size)))
    with np.errstate(all="ignore"):  # the interpreter computes with NumPy
        values, is_open = rounded_sum_of_pair(tensor(high), low, *arguments)
    assert bool(is_open) == (place is not None)
    assert np.array_equal(values.cpu().numpy() == 3.0, np.isfinite(high))
