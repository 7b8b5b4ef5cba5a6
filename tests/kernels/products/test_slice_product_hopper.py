"""Products of a few slices in one launch on a Hopper: the bits of the launches for all
GPUs.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.kernels.products.slice_product import slice_product
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.runtime.tiles import Tile
from hifigemm.kernels.vectors.slices import slice_operands

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="no Hopper",
    ),
    pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning"),
]

slice_product = partial(run_recorded, slice_product)
slice_operands = partial(run_recorded, slice_operands)

HOPPER = (Tile("hopper", 128, 256, 128, 4, 4), Tile("hopper", 128, 128, 128, 6, 4))
PLAIN = Tile("triton", 64, 64, 128, 3, 4)


def products(left, right, count, tiles, shift=0):
    """The product of slices by each of the tiles."""
    slices = slice_operands(((left, 2), (right, 1)), count, 8)
    shape = max(len(left), len(right)), left.shape[1], right.shape[2]
    results = []
    for tile in tiles:
        out = torch.full(shape, torch.nan, device="cuda")
        slice_product(
            *slices, out, left.shape[2], (left, right), shift=shift, config=tile
        )
        results.append(out.cpu().numpy())
    return results


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(
    "shape", [(128, 128, 256), (300, 200, 700), (65, 1, 67), (1000, 2500, 129)]
)
def test_bits_are_those_of_two_launches(shape, count, make_pair, assert_same_bits):
    m, k, n = shape
    for family in ("phi_1", "cancelling", "full_range"):
        a, b = make_pair(family, 3, k, max(m, n), np.float32)
        left = torch.from_numpy(a)[None, :m].cuda()
        right = torch.from_numpy(b)[None, :, :n].cuda()
        expected, *rest = products(left, right, count, (PLAIN, *HOPPER))
        for product in rest:
            assert_same_bits(product, expected)


@pytest.mark.parametrize("count", [2, 3])
def test_longest_sums_of_the_largest_digits(count, assert_same_bits):
    """k at the end of INT32, all digits at the ends of their range."""
    k = 1023 // count * 128
    left = torch.full((1, 130, k), -128.0 - 0.5, device="cuda")
    right = torch.full((1, k, 260), 127.49, device="cuda")
    left[0, ::3] = -right[0, 0, 0]
    expected, *rest = products(left, right, count, (PLAIN, *HOPPER))
    for product in rest:
        assert_same_bits(product, expected)


def test_stacks_special_values_and_shifts(make_pair, assert_same_bits):
    x, y = make_pair("phi_1", 300, 200, 300, np.float32)
    left = torch.from_numpy(np.stack([x, 2 * x])).cuda()
    right = torch.from_numpy(np.stack([y, y[::-1].copy()])).cuda()
    left[1, 257, 7] = torch.inf
    right[0, 5, 299] = torch.nan
    right[1, 39, 0] = -torch.inf
    for a, b in ((left, right), (left[:1], right), (left, right[1:])):
        for shift in (0, -140, 130):
            expected, *rest = products(a, b, 3, (PLAIN, *HOPPER), shift)
            for product in rest:
                np.testing.assert_array_equal(product, expected)
                assert_same_bits(np.nan_to_num(product), np.nan_to_num(expected))
