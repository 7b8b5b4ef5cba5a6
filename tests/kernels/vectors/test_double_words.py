"""FP32 words of float64 operands on the device, and the sums of their products."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.base.formats import FP16, FP32
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.vectors.double_words import double_sums, split_doubles
from hifigemm.kernels.vectors.vector_tiles import NOT_FINITE
from hifigemm.numerics.bits import largest_exponent, scale_by_power
from hifigemm.numerics.words import Splitting

double_sums = partial(run_recorded, double_sums)
split_doubles = partial(run_recorded, split_doubles)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOP = 100
pytestmark = pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value) encountered:RuntimeWarning"
)


def operands(rng, batch, m, k, n):
    """Two stacks with exponents from the least to the largest, and zeros."""
    a, b = rng.uniform(-1, 1, (batch, m, k)), rng.uniform(-1, 1, (1, k, n))
    a *= np.ldexp(1.0, rng.integers(-1040, 1023, (batch, m, 1)))
    b = np.ldexp(b, rng.integers(-200, 40, (1, k, n)))
    a[:, :, ::7] = 0.0
    a[0, 0] = 0.0
    a[0, -1] = 5e-324
    b[0, :, 0] = np.ldexp(1.0, np.arange(k) % 2000 - 1000)
    return a, b


@pytest.mark.parametrize("rounding", ["nearest", "zero"])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (5, 40, 9), (3, 9000, 17)])
def test_words_are_those_of_the_plain_split(rounding, scaled, m, k, n):
    a, b = operands(np.random.default_rng([m, k]), 2, m, k, n)
    splitting = Splitting(FP32, 2, rounding)
    x = torch.from_numpy(a).to(DEVICE)
    # columns of a row-major operand, and rows of one that is stored by columns
    y = torch.from_numpy(np.ascontiguousarray(b.swapaxes(1, 2))).to(DEVICE)
    pair = split_doubles(
        ((x, 2), (y.transpose(1, 2), 1)), splitting, TOP if scaled else None
    )
    for words, operand, axis in zip(pair, (a, b), (2, 1), strict=True):
        unit = np.zeros_like(largest_exponent(operand, axis))
        if scaled:
            unit = largest_exponent(operand, axis) - TOP
        with np.errstate(under="ignore"):
            want, _ = splitting.split(scale_by_power(operand, -unit))
        got = words.planes.cpu().numpy()
        np.testing.assert_array_equal(got, np.stack(want).astype(np.float64))
        exponents = words.exponents.cpu().numpy()
        np.testing.assert_array_equal(exponents, unit.squeeze(axis))


@pytest.mark.parametrize("shift", [0, 3, -900])
def test_sums_are_scaled_and_rounded_as_by_the_twin(shift):
    """Results overflow, are subnormal and vanish; Inf and NaN come from the operands."""
    rng = np.random.default_rng(5)
    batch, m, k, n, count = 2, 21, 6, 150, 3
    a, b = np.ones((batch, m, k)), np.ones((1, k, n))
    a[1, 4, 2], b[0, 3, 140] = np.inf, np.nan
    a[0, 3] = 1e300  # no float32
    x, y = (torch.from_numpy(z).to(DEVICE) for z in (a, b))
    left, right = split_doubles(((x, 2), (y, 1)), Splitting(FP32, 2), TOP)
    products = rng.uniform(-1, 1, (count, batch, m, n)) * 2.0**190
    products[:, 0, 0, 0] = 0.0
    rows = rng.integers(-1100, 900, (batch, m)).astype(np.int32)
    cols = rng.integers(-1100, 900, (1, n)).astype(np.int32)
    marked_rows = left.exponents.cpu().numpy() == NOT_FINITE.value
    marked_cols = right.exponents.cpu().numpy() == NOT_FINITE.value
    assert (marked_rows.sum(), marked_cols.sum()) == (1, 1)
    rows[marked_rows], cols[marked_cols] = NOT_FINITE.value, NOT_FINITE.value
    left.exponents.copy_(torch.from_numpy(rows))
    right.exponents.copy_(torch.from_numpy(cols))
    out = torch.full((n, m, batch), 7.0, dtype=torch.float64, device=DEVICE)
    view = out.permute(2, 1, 0)
    double_sums(torch.from_numpy(products).to(DEVICE), left, right, view, (x, y), shift)
    got = view.cpu().numpy()

    sums = products[0]
    for product in products[1:]:
        sums = product + sums
    e = rows[:, :, None].astype(np.int64) + cols[:, None, :] + shift
    want = np.empty_like(sums)
    with np.errstate(over="ignore", under="ignore"):
        for index in np.ndindex(sums.shape):
            entry = np.array(sums[index] + 0.0)
            want[index] = scale_by_power(entry, np.array(e[index]))
    with np.errstate(invalid="ignore"):
        exact = a @ b
    marked = marked_rows[:, :, None] | marked_cols[:, None, :]
    want[marked] = np.where(np.isfinite(exact), k, exact)[marked]
    np.testing.assert_array_equal(got, want)
    assert not np.signbit(got[0, 0, 0])


def test_other_words_raise():
    x = torch.ones((1, 2, 2), dtype=torch.float64, device=DEVICE)
    for splitting in (Splitting(FP32, 2, "nearest-away"), Splitting(FP16, 2)):
        with pytest.raises(ValueError, match="no words of float64 operands"):
            split_doubles(((x, 2), (x, 1)), splitting, TOP)
