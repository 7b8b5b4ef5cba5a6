"""The error ratio on a Hopper GPU: its quotients round as divisions do, and large
products take it.

The kernel itself is in Gluon, which the interpreter does not run; the tests of
`error_ratio` compare it with the plain one on a GPU.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from hifigemm.kernels.products import error_ratio
from hifigemm.kernels.runtime.tiles import ProductShape, gpu_of, tile_for

DEVICE = torch.device("cuda", 0)


def fused(x, y, z):
    """x y + z, rounded once."""
    return float(Fraction(x) * Fraction(y) + Fraction(z))


def test_quotients_round_as_divisions_do():
    """error_ratio_hopper._quotient from inverses of 19 bits: random ones, small
    divisors, and next to the middle.
    """
    rng = np.random.default_rng(6)
    divisors = [
        1,
        2,
        3,
        2**31,
        2**32 - 1,
        *(int(d) for d in rng.integers(1, 2**32, 300, dtype=np.int64)),
    ]
    for d in divisors:
        middle = Fraction(2 * int(rng.integers(2**52, 2**53)) + 1, 2**53) * d
        for x in (
            float(middle),
            np.nextafter(float(middle), np.inf),
            float(rng.uniform(1.0, 2.0**60)),
            1.0,
            0.0,
        ):
            inverse = (1.0 / d) * (1.0 + float(rng.uniform(-1, 1)) * 2.0**-19)
            error = fused(-float(d), inverse, 1.0)
            inverse = fused(inverse, fused(error, error, error), inverse)
            quotient = float(x) * inverse
            assert fused(fused(-float(d), quotient, x), inverse, quotient) == x / d


@pytest.mark.gpu
def test_large_shapes_take_the_kernel_for_hopper():
    gpu = gpu_of(DEVICE)
    if gpu.capability == (9, 0):
        assert error_ratio.hopper_module("error_ratio_hopper", DEVICE) is not None
        assert tile_for(ProductShape(4096, 4096, 4096, 1), gpu).kernel == "hopper"
