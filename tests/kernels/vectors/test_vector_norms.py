"""What is said of vectors on the device, number by number: exponents, magnitudes, sums
and scales are those of exact arithmetic.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from hifigemm.kernels.vectors import vector_norms as norms
from hifigemm.kernels.vectors.statistics import INFINITE
from hifigemm.numerics import scaling
from hifigemm.numerics.residues import moduli_set
from tests.kernels.vectors.test_statistics import hard_numbers

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COUNT = 256


def on_device(x):
    return torch.from_numpy(np.ascontiguousarray(x)).to(DEVICE)


def empty(dtype):
    return torch.empty(COUNT, dtype=dtype, device=DEVICE)


@triton.jit
def _store_magnitudes(
    x, e, out, UP: tl.constexpr, PTX: tl.constexpr, SIZE: tl.constexpr
):
    i = tl.arange(0, SIZE)
    first, second = norms.exponent_factors(tl.load(e + i), norms.NORM_BITS)
    tl.store(out + i, norms.magnitude(tl.load(x + i), first, second, UP, PTX))


@pytest.mark.parametrize("up", [True, False])
def test_magnitudes_are_rounded_in_the_direction_that_is_asked_for(up):
    """On a grid of 15 bits below the exponent of a block; tiny ones count 1 if up."""
    rng = np.random.default_rng(2)
    x = hard_numbers()
    below = rng.choice([0, 0, 1, 5, 30, 500, 3000], COUNT)
    e = np.frexp(x)[1] + below
    e = np.minimum(e, 1024).astype(np.int32)
    out = empty(torch.int32)
    with np.errstate(all="ignore"):
        _store_magnitudes[(1,)](
            on_device(x), on_device(e), out, up, DEVICE == "cuda", COUNT
        )
    for value, grid, found in zip(x, e.tolist(), out.tolist(), strict=True):
        exact = Fraction(float(value)) * Fraction(2) ** (15 - grid)
        assert found == (math.ceil(exact) if up else math.floor(exact))
        assert found <= 2**15


@triton.jit
def _store_joined(sums, own, whole, n, s, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    joined_n, joined_s = norms.joined_sizes(
        tl.load(sums + i), tl.load(own + i), tl.load(whole + i)
    )
    tl.store(n + i, joined_n)
    tl.store(s + i, joined_s)


def test_sums_of_blocks_are_rounded_up_on_the_grid_of_the_vector():
    rng = np.random.default_rng(3)
    squares = rng.integers(1, 2**39, COUNT)
    magnitudes = rng.integers(1, 2**24, COUNT)
    squares[:3], magnitudes[:3] = 2**39, 2**24  # 512 components of 2**15
    own = rng.integers(-1000, 1000, COUNT).astype(np.int32)
    down = rng.choice([0, 1, 7, 20, 45, 300], COUNT)
    words = [
        (n + (s << 40) + 2**63) % 2**64 - 2**63
        for n, s in zip(squares.tolist(), magnitudes.tolist(), strict=True)
    ]
    n, s = empty(torch.float64), empty(torch.float64)
    given = np.array(words, np.int64), own, (own + down).astype(np.int32)
    _store_joined[(1,)](*map(on_device, given), n, s, COUNT)
    found = zip(n.tolist(), s.tolist(), squares.tolist(), magnitudes.tolist(), down)
    for found_n, found_s, square, magnitude, d in found:
        assert found_n == math.ceil(Fraction(square, 4 ** int(d)))
        assert found_s == math.ceil(Fraction(magnitude, 2 ** int(d)))


@triton.jit
def _store_scales(squares, e, limits, s, nearest, BALANCE, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    exponent, rounds = norms.scale_of(
        tl.load(squares + i), tl.load(e + i), limits, BALANCE, norms.NORM_BITS
    )
    tl.store(s + i, exponent)
    tl.store(nearest + i, rounds)


@pytest.mark.parametrize("balance", [-7, 0, 9])
@pytest.mark.parametrize("count", [2, 5, 14, 33])
def test_scales_are_those_of_numerics(count, balance):
    rng = np.random.default_rng(count)
    moduli = moduli_set(count, False)
    squares = np.floor(2.0 ** rng.uniform(0, 53, COUNT))
    squares[:60] = 4.0 ** rng.integers(0, 26, 60)
    squares[60] = 0.0
    e = rng.integers(-1073, 1024, COUNT).astype(np.int32)
    e[61] = INFINITE.value
    shift = max(moduli.half_range.bit_length() - 53, 0)
    mantissa, power = math.frexp(moduli.half_range >> shift)
    limits = on_device(np.array([mantissa, power + shift, 0.0]))
    s, nearest = empty(torch.int32), empty(torch.int32)
    _store_scales[(1,)](
        on_device(squares), on_device(e), limits, s, nearest, balance, COUNT
    )
    exponent = np.where(squares == 0, 0, e).astype(np.int64)
    want = (
        scaling.scale_exponent(squares, exponent, scaling.NORM_BITS, moduli) + balance
    )
    rounds = want + exponent >= scaling.NORM_BITS
    want[61], rounds[61] = norms.NOT_FINITE.value, False
    np.testing.assert_array_equal(s.cpu().numpy(), want)
    np.testing.assert_array_equal(nearest.cpu().numpy(), rounds)
    for square, grid, found in zip(
        squares.tolist(), e.tolist(), s.tolist(), strict=True
    ):
        if square and grid != INFINITE.value:
            size = Fraction(square) * Fraction(4) ** (found - balance + grid - 15)
            assert size <= moduli.half_range < 4 * size


@triton.jit
def _count_places(counts, tiles_a, num_a, num_b, SPAN, VECTORS: tl.constexpr):
    index = tl.program_id(0)
    first, batch, start, count = norms.place(index, tiles_a, (num_a, num_b), VECTORS)
    side = tl.where(first, 0, 1)
    for v in range(0, VECTORS):
        inside = start + v < count
        at = counts + (side * 3 + batch) * SPAN + start + v
        tl.atomic_add(at, 1, mask=inside)


def test_every_vector_of_both_operands_has_a_place():
    num_a, num_b, batch_a, batch_b, size = 5, 9, 3, 2, 4
    tiles_a, tiles_b = batch_a * -(-num_a // size), batch_b * -(-num_b // size)
    counts = torch.zeros((2, 3, 16), dtype=torch.int32, device=DEVICE)
    _count_places[(tiles_a + tiles_b,)](counts, tiles_a, num_a, num_b, 16, size)
    want = np.zeros((2, 3, 16), int)
    want[0, :batch_a, :num_a] = 1
    want[1, :batch_b, :num_b] = 1
    np.testing.assert_array_equal(counts.cpu().numpy(), want)


def test_pieces_of_a_block_divide_it():
    for scattered in (False, True):
        for vector in (1, 2, 4, 8):
            form = norms.SizeForm(vector, 1, scattered)
            for piece in (form.piece_along_k, form.piece_across):
                assert norms.NORM_BLOCK.value % piece == 0
    assert norms.NORM_BLOCK.value == scaling.NORM_BLOCK
    assert norms.NORM_BITS.value == scaling.NORM_BITS
