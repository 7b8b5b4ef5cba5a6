"""What kernels share: elementary functions to the bit, and orders in which each tile
comes once.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime import common

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def on_device(x):
    return torch.from_numpy(np.ascontiguousarray(x)).to(DEVICE)


@triton.jit
def _store_powers(e, double, single):
    i = tl.arange(0, 2048)
    exponents = tl.load(e + i)
    tl.store(double + i, common.power_of_two(exponents))
    low = tl.minimum(tl.maximum(exponents, -126), 127)
    tl.store(single + i, common.power_of_two_single(low))


def test_powers_of_two_are_exact():
    e = np.clip(np.arange(-1024, 1024), -1022, 1023).astype(np.int32)
    double = torch.empty(2048, dtype=torch.float64, device=DEVICE)
    single = torch.empty(2048, dtype=torch.float32, device=DEVICE)
    _store_powers[(1,)](on_device(e), double, single)
    np.testing.assert_array_equal(double.cpu().numpy(), np.ldexp(1.0, e))
    want = np.ldexp(np.float32(1), np.clip(e, -126, 127))
    np.testing.assert_array_equal(single.cpu().numpy(), want)


@triton.jit
def _store_signs(x, out):
    i = tl.arange(0, 8)
    tl.store(out + i, common.sign_of_finite(tl.load(x + i)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_signs_of_finite_entries_leave_inf_and_nan(dtype):
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.array([0, -0.0, tiny, -tiny, -3, np.inf, -np.inf, np.nan], dtype)
    out = torch.empty_like(on_device(x))
    _store_signs[(1,)](on_device(x), out)
    want = np.where(np.isfinite(x), np.sign(x), x)
    np.testing.assert_array_equal(out.cpu().numpy(), want)


@triton.jit
def _store_rounded(x, double, single):
    i = tl.arange(0, 16)
    value = tl.load(x + i)
    y = (value + common.ROUND_DOUBLE) - common.ROUND_DOUBLE
    tl.store(double + i, y)
    narrow = value.to(tl.float32)
    z = (narrow + common.ROUND_SINGLE) - common.ROUND_SINGLE
    tl.store(single + i, z)


def test_the_constants_of_rounding_round_to_nearest_even():
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0.49, 0.51, 2.0**21 - 0.5] * 2)
    double = torch.empty(16, dtype=torch.float64, device=DEVICE)
    single = torch.empty(16, dtype=torch.float32, device=DEVICE)
    _store_rounded[(1,)](on_device(x), double, single)
    np.testing.assert_array_equal(double.cpu().numpy(), np.rint(x))
    np.testing.assert_array_equal(single.cpu().numpy(), np.rint(x.astype(np.float32)))


@triton.jit
def _store_holds(predicate, out):
    holds = common.holds(predicate)
    i = tl.arange(0, 4)
    mask = common.as_mask(holds, i)
    tl.store(out + i, tl.zeros_like(i) + 1, mask=mask)


@pytest.mark.parametrize(
    ("number", "least", "most"),
    [
        (5, 5, 5),
        (5, 6, 9),
        (5, 0, 4),
        (2**40, 2**40, common.LARGEST),
        (-1, 0, common.LARGEST),
        (common.LARGEST, 0, common.LARGEST),
    ],
)
def test_a_predicate_holds_within_its_limits_alone(number, least, most):
    record = torch.tensor([number], dtype=torch.int64, device=DEVICE)
    out = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    _store_holds[(1,)](common.Predicate(record, least, most), out)
    assert out.tolist() == [int(least <= number <= most)] * 4


@triton.jit
def _count_tiles(counts, tiles_m, tiles_n, planes, GROUP: tl.constexpr):
    index = tl.program_id(0)
    plane, row, column = common.place_of(index, tiles_m, tiles_n, GROUP)
    tl.atomic_add(counts + (plane * tiles_m + row) * tiles_n + column, 1)


@pytest.mark.parametrize("group", [1, 3, 8])
@pytest.mark.parametrize(("tiles_m", "tiles_n"), [(1, 1), (5, 3), (8, 2), (2, 9)])
def test_every_tile_of_every_plane_comes_once(tiles_m, tiles_n, group):
    counts = torch.zeros((2, tiles_m, tiles_n), dtype=torch.int32, device=DEVICE)
    _count_tiles[(counts.numel(),)](counts, tiles_m, tiles_n, 2, group)
    assert (counts == 1).all()


@triton.jit
def _store_places(places, tiles_m, tiles_n, GROUP: tl.constexpr):
    index = tl.program_id(0)
    row, column = common.place_in_plane(index, tiles_m, tiles_n, GROUP)
    tl.store(places + 2 * index, row)
    tl.store(places + 2 * index + 1, column)


def test_tiles_go_down_a_group_of_rows_before_the_next_column():
    places = torch.zeros((15, 2), dtype=torch.int32, device=DEVICE)
    _store_places[(15,)](places, 5, 3, 2)
    want = [(top + i, j) for top in (0, 2) for j in range(3) for i in (0, 1)]
    want += [(4, j) for j in range(3)]
    assert list(map(tuple, places.tolist())) == want


@triton.jit
def _count_triangle(
    sizes,
    counts,
    m,
    n,
    WIDTH,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TRIANGLE: tl.constexpr,
):
    tiles_m, tiles_n = common.tiles_of(m, n, BLOCK_M, BLOCK_N, TRIANGLE)
    tl.store(sizes, tiles_m)
    tl.store(sizes + 1, tiles_n)
    for index in range(0, tiles_m * tiles_n):
        row, column = common.unfolded(
            index // tiles_n, index % tiles_n, m, BLOCK_M, BLOCK_N, TRIANGLE
        )
        at = counts + row * WIDTH + column
        tl.store(at, tl.load(at) + 1)


@pytest.mark.parametrize(("block_m", "block_n"), [(16, 16), (16, 32), (32, 16)])
@pytest.mark.parametrize("m", [1, 16, 33, 70, 97, 160])
def test_squares_of_a_lower_triangle_are_folded_into_a_rectangle(m, block_m, block_n):
    """Each tile comes once, and all tiles that reach the triangle are among them."""
    square = max(block_m, block_n)
    side = -(-m // square) * square
    counts = torch.zeros((side // block_m, side // block_n), dtype=torch.int32).to(
        DEVICE
    )
    sizes = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    width = counts.shape[1]
    _count_triangle[(1,)](sizes, counts, m, m, width, block_m, block_n, True)
    found = counts.cpu().numpy()
    for i, j in itertools.product(*map(range, found.shape)):
        in_square = (j * block_n) // square <= (i * block_m) // square
        assert found[i, j] == in_square
    squares = -(-m // square)
    share = (square // block_m) * (square // block_n)
    assert int(np.prod(sizes.tolist())) == squares * (squares + 1) // 2 * share


def test_without_a_triangle_tiles_cover_the_result():
    counts = torch.zeros((3, 4), dtype=torch.int32, device=DEVICE)
    sizes = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    _count_triangle[(1,)](sizes, counts, 33, 100, 4, 16, 32, False)
    assert sizes.tolist() == [3, 4]
    assert (counts == 1).all()
