"""Tiles of small matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.launch import Launch
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.systems.tiles import (
    all_hold,
    along_columns,
    in_scale,
    pivot_of,
    row_of,
    tile_of,
    times,
    with_rows_exchanged,
)
from hifigemm.numerics.equilibration import stack_in_scale

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_ROWS = 4


@triton.jit
def _tile_kernel(a, out, SYSTEMS: tl.constexpr, N: tl.constexpr):
    """What functions of tiles make of matrices, one plane each."""
    system = tl.arange(0, SYSTEMS)[:, None, None]
    rows = tl.arange(0, N)[None, :, None]
    columns = tl.arange(0, N)[None, None, :]
    place = (system * N + rows) * N + columns
    plane = SYSTEMS * N * N
    matrix = tl.load(a + place)
    scaled, of_rows, of_columns = in_scale(matrix)
    tl.store(out + place, scaled)
    tl.store(out + plane + place, of_rows * of_columns)
    pivot = pivot_of(tl.sum(tl.where(columns == 1, matrix, 0.0), 2, True), rows, 1)
    exchanged = with_rows_exchanged(matrix, rows == pivot, rows == 1)
    tl.store(out + 2 * plane + place, exchanged)
    first_row = row_of(matrix, rows == 0)
    product = times(matrix, along_columns(times(matrix, first_row)))
    are_positive = all_hold(matrix > 0.0)
    tl.store(out + 3 * plane + place, product + tl.zeros_like(matrix))
    tl.store(out + 4 * plane + place, (are_positive & (matrix != 0.0)).to(tl.float64))


_launch = Launch(_tile_kernel)


def _planes(a):
    count, n, _ = a.shape
    out = a.launches.empty((5, count, n, n), torch.float64)
    _launch((1,), a, out, SYSTEMS=count, N=n, num_warps=1)
    return out


def test_functions_of_tiles_are_those_of_arrays():
    rng = np.random.default_rng(3)
    a = np.ldexp(
        rng.standard_normal((4, _ROWS, _ROWS)), rng.integers(-9, 9, (4, _ROWS, 1))
    )
    a[1] = np.abs(a[1]) + 1.0
    a[2, 3] = 0.0
    a[3, 0, 1] = 2.0**60  # above the rows in which a pivot is looked for
    scaled, units, exchanged, product, are_positive = (
        run_recorded(_planes, torch.from_numpy(a).to(DEVICE)).cpu().numpy()
    )
    wanted, _, _, _ = stack_in_scale(a, a[:, :, :0])
    assert (scaled == wanted).all()
    assert (scaled * units == a).all()
    for matrix, found in zip(a, exchanged):
        pivot = 1 + np.abs(matrix[1:, 1]).argmax()
        order = np.arange(_ROWS)
        order[[1, pivot]] = pivot, 1
        assert (found == matrix[order]).all()
    first_images = (a * a[:, :1]).sum(axis=2)
    want = (a * first_images[:, None]).sum(axis=2)
    np.testing.assert_allclose(product[:, :, 0], want, rtol=1e-12, atol=1e-12)
    assert (are_positive[1] == 1.0).all()
    assert (are_positive[[0, 2, 3]] == 0.0).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_pivots_are_numbers():
    a = np.zeros((1, 4, 4))
    a[0, :, 1] = [9.0, np.nan, -2.0, 1.0]
    _, _, exchanged, _, _ = run_recorded(_planes, torch.from_numpy(a).to(DEVICE))
    column = exchanged[0, :, 1].cpu().numpy()
    assert column.tolist()[1] == -2.0


@pytest.mark.parametrize("n", range(1, 33))
def test_tiles_hold_a_matrix_of_each_system(n):
    tile = tile_of(n)
    assert n <= tile.rows < 2 * n or n == tile.rows == 1
    entries = tile.systems * tile.rows**2 / (32 * tile.warps)
    assert entries <= 8
    assert tile.warps == 1 or tile.systems == 1
