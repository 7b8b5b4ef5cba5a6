"""Products of slices where one operand has few vectors: the bits of `slice_product` by
the launches for all shapes.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.kernels.products import few_vectors
from hifigemm.kernels.products.slice_product import slice_product
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.runtime.tiles import Tile
from hifigemm.kernels.vectors.slices import slice_operands

slice_product = partial(run_recorded, slice_product)
slice_operands = partial(run_recorded, slice_operands)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PLAIN = Tile("triton", 32, 32, 64, 2, 4)
pytestmark = pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value) encountered:RuntimeWarning"
)


def both_ways(left, right, count, *, shift=0, by_columns=False):
    """A product by the kernel of few vectors, and by those of all shapes."""
    slices = slice_operands(((left, 2), (right, 1)), count, 8)
    batch = max(len(left), len(right))
    m, n = left.shape[1], right.shape[2]
    results = []
    for config in (None, PLAIN):
        shape = (batch, n, m) if by_columns else (batch, m, n)
        out = torch.full(shape, torch.nan, device=DEVICE)
        out = out.mT if by_columns else out
        slice_product(
            *slices, out, left.shape[2], (left, right), shift=shift, config=config
        )
        results.append(out.cpu().numpy())
    return results


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ((1, 300, 70), 3),
        ((70, 128, 1), 4),
        ((33, 5, 20), 2),
        pytest.param((64, 140, 65), 3, marks=pytest.mark.slow),
        pytest.param((66, 260, 17), 1, marks=pytest.mark.slow),
    ],
)
def test_bits_are_those_of_other_launches(shape, count, make_pair, assert_same_bits):
    for family in ("phi_1", "cancelling", "full_range"):
        left, right = (
            torch.from_numpy(x)[None].to(DEVICE)
            for x in make_pair(family, 7, shape[1], max(shape), np.float32)
        )
        left, right = left[:, : shape[0]], right[:, :, : shape[2]]
        for by_columns in (False, True):
            few, all_shapes = both_ways(left, right, count, by_columns=by_columns)
            assert_same_bits(few, all_shapes)


@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_stacks_special_values_and_shifts(count, make_pair, assert_same_bits):
    x, y = make_pair("phi_1", 8, 40, 34, np.float32)
    left = torch.from_numpy(np.stack([x[:3], 2 * x[3:6]])).to(DEVICE)
    right = torch.from_numpy(np.stack([y, y[::-1].copy()])).to(DEVICE)
    left[1, 2, 7] = torch.inf
    right[0, 5, 33] = torch.nan
    right[1, 39, 0] = -torch.inf
    for a, b in ((left, right), (left[:1], right), (right.mT, left[1:].mT)):
        for shift in (0, -140):
            few, all_shapes = both_ways(a, b, count, shift=shift)
            assert np.isnan(few).any()
            np.testing.assert_array_equal(few, all_shapes)
            assert_same_bits(np.nan_to_num(few), np.nan_to_num(all_shapes))


def test_long_sums_and_many_vectors_take_other_launches():
    x = torch.zeros((1, 65, 128), device=DEVICE)
    for rows, terms, count, is_served in (
        (64, 128, 4, True),
        (65, 128, 4, False),
        (64, 128, 5, False),
        (1, 2**17, 1, False),
        (1, 43_520, 3, True),
        (1, 43_776, 3, False),
    ):
        a = torch.empty((1, rows, count, terms), dtype=torch.int8, device="meta")
        b = torch.empty((1, 65, count, terms), dtype=torch.int8, device="meta")
        slices = (few_vectors.Slices(y, None, 8) for y in (a, b))
        assert few_vectors.serves(*slices, x) == is_served
