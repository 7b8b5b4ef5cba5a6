"""The largest entries of |A||B| in rows and columns, from the magnitudes themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hifigemm.kernels.products.largest_sums import largest_sums
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.vectors.upper_magnitudes import upper_magnitudes
from hifigemm.numerics.estimates import MAGNITUDE_TERMS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def sums_of(left, right):
    """Magnitudes of both operands, or of one on both sides, and their largest sums."""
    sides = [(left, 2)] if right is None else [(left, 2), (right, 1)]
    magnitudes = upper_magnitudes(tuple(sides))
    return magnitudes.entries, largest_sums(magnitudes)


def by_numpy(entries, width):
    """The largest sums of rows, and of columns, of magnitudes (batch, vectors, width kp)."""
    a, b = (
        np.stack(np.split(x.cpu().numpy().astype(np.int64), width, axis=2))
        for x in (entries[0], entries[-1])
    )
    batch = max(a.shape[1], b.shape[1])
    products = []
    for other in (b, b[::-1])[:width]:
        parts = zip(a, other, strict=True)
        products.append(sum(x @ y.swapaxes(1, 2) for x, y in parts))
    largest = np.max(products, axis=0)
    largest = np.broadcast_to(largest, (batch, *largest.shape[1:]))
    rows = largest.max(axis=2)
    columns = largest.max(axis=1)
    # A stack of one meets all matrices of the other one.
    rows = rows.max(axis=0, keepdims=True) if a.shape[1] == 1 else rows
    columns = columns.max(axis=0, keepdims=True) if b.shape[1] == 1 else columns
    return rows.ravel(), columns.ravel()


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize(
    ("shape", "batch"),
    [((70, 130, 9), (1, 1)), ((3, 1, 200), (2, 2)), ((40, 300, 33), (1, 3))],
    ids=str,
)
def test_sums_are_those_of_the_magnitudes(dtype, shape, batch):
    m, k, n = shape
    rng = np.random.default_rng([m, k, n])
    a, b = rng.standard_normal((batch[0], m, k)), rng.standard_normal((batch[1], k, n))
    if dtype == "complex64":
        a, b = a + 1j * rng.standard_normal(a.shape), b - 1j * rng.random(b.shape)
    width = 2 if dtype == "complex64" else 1
    x, y = (torch.from_numpy(z.astype(dtype)).to(DEVICE) for z in (a, b))
    entries, sums = run_recorded(sums_of, x, y)
    want = np.concatenate(by_numpy(entries, width))
    np.testing.assert_array_equal(sums.cpu().numpy(), want)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_one_operand_has_the_sums_of_rows_and_columns_alike(dtype):
    rng = np.random.default_rng(3)
    a = rng.standard_normal((2, 300, 20))
    if dtype == "complex128":
        a = a + 1j * rng.standard_normal(a.shape)
    entries, sums = run_recorded(sums_of, torch.from_numpy(a).to(DEVICE), None)
    rows, columns = by_numpy(entries, 2 if dtype == "complex128" else 1)
    np.testing.assert_array_equal(rows, columns)
    np.testing.assert_array_equal(sums.cpu().numpy(), rows)


def test_the_largest_magnitudes_of_the_longest_sum_fit():
    assert 2 * MAGNITUDE_TERMS * 64 * 64 < 2**31
    k = 300
    one = torch.ones((1, 1, k), dtype=torch.float64) * (1 - 2.0**-50)
    x = torch.complex(one, one).to(DEVICE)
    _, sums = run_recorded(sums_of, x, x.swapaxes(1, 2))
    assert sums.tolist() == [2 * k * 64 * 64] * 2
