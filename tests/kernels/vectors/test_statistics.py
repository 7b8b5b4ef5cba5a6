"""Exponents and lowest bits of entries are those of the definition, and the tiles of an
operand hold each of its entries once.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.launch import Strided
from hifigemm.kernels.vectors import statistics
from hifigemm.numerics import scaling

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COUNT = 256


def hard_numbers(dtype=np.float64):
    """Positive numbers of all exponents: powers of two and what lies next to them."""
    rng = np.random.default_rng(1)
    limits = np.finfo(dtype)
    lowest = limits.minexp - limits.nmant
    powers = np.ldexp(dtype(1), rng.integers(lowest, limits.maxexp, 80))
    around = [powers, np.nextafter(powers, dtype(0)), np.nextafter(powers, limits.max)]
    ends = [
        limits.max,
        limits.smallest_subnormal,
        2 * limits.smallest_subnormal,
        limits.tiny,
        np.nextafter(limits.tiny, dtype(0)),
    ]
    numbers = np.concatenate([*around, ends])
    numbers = np.where(numbers > 0, numbers, dtype(1))
    ones = np.ones(COUNT - len(numbers))
    return np.concatenate([numbers, ones]).astype(dtype)


@triton.jit
def _store_exponents(x, exponents, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    bits = statistics.magnitude_bits(tl.load(x + i))
    tl.store(exponents + i, statistics.exponent_of(bits))
    tl.store(exponents + SIZE + i, statistics.exponent_or(bits, 7))


@triton.jit
def _store_bits(x, out, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    value = tl.load(x + i)
    power = statistics.lowest_power(value)
    tl.store(out + i, statistics.exponent_of(power) - 1)
    tl.store(out + SIZE + i, statistics.lowest_bit(value, 7))
    tl.store(out + 2 * SIZE + i, statistics.biased_exponent(value))


def integers_of(kernel, x, rows):
    """What a kernel writes of numbers, row after row."""
    out = torch.empty((rows, len(x)), dtype=torch.int32, device=DEVICE)
    with np.errstate(all="ignore"):
        kernel[(1,)](torch.from_numpy(x).to(DEVICE), out, len(x))
    return out.tolist()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exponents_are_those_of_the_definition(dtype, sign):
    x = hard_numbers(dtype)
    exponents, same = integers_of(_store_exponents, x * dtype(sign), 2)
    assert exponents == same
    for value, e in zip(x.tolist(), exponents, strict=True):
        assert Fraction(2) ** (e - 1) <= Fraction(value) < Fraction(2) ** e


@pytest.mark.parametrize("sign", [1, -1])
def test_lowest_bits_are_those_of_the_definition(sign):
    x = hard_numbers()
    lowest, same, biased = integers_of(_store_bits, x * sign, 3)
    assert lowest == same
    for value, low, e in zip(x.tolist(), lowest, biased, strict=True):
        units = Fraction(value) / Fraction(2) ** low
        assert units.denominator == 1
        assert units.numerator % 2 == 1
        assert e == max(math.frexp(value)[1] + 1022, 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zeros_and_what_is_not_finite_have_exponents_beyond_all_others(dtype):
    x = np.ones(4, dtype)
    x[:3] = 0.0, np.inf, np.nan
    exponents, with_zero = integers_of(_store_exponents, x, 2)
    limits = np.finfo(dtype)
    assert exponents[0] < limits.minexp - limits.nmant
    assert exponents[1:] == [limits.maxexp + 1] * 2 + [1]
    assert with_zero == [7, *exponents[1:]]
    assert statistics.INFINITE.value == scaling.INFINITE


def test_zeros_have_a_lowest_bit_above_all_others():
    x = np.array([0.0, -0.0, 1.0, 2.0])
    lowest, with_zero, biased = integers_of(_store_bits, x, 3)
    assert lowest == [statistics.NO_LOWEST.value] * 2 + [0, 1]
    assert with_zero == [7, 7, 0, 1]
    assert biased == [0, 0, 1023, 1024]


@triton.jit
def _copy(x, strides, out, counts, vectors, k, V: tl.constexpr, K: tl.constexpr):
    operand = Strided(x, strides[0], strides[1], strides[2])
    entries, inside, z, v, h = statistics.tile_of_vectors(
        operand, tl.program_id(0), vectors, k, tl.cdiv(k, K), V, K
    )
    places = ((z * vectors + v) * k)[:, None] + h[None, :]
    tl.store(out + places, tl.load(entries, mask=inside), mask=inside)
    tl.atomic_add(counts + places, 1, mask=inside)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 9, 19), (3, 8, 16)])
def test_tiles_hold_each_entry_once(shape):
    batch, vectors, k = shape
    x = torch.randn((batch, k, vectors), device=DEVICE).mT
    out = torch.zeros(shape, device=DEVICE)
    counts = torch.zeros(shape, dtype=torch.int32, device=DEVICE)
    tiles = batch * -(-vectors // 4) * -(-k // 8)
    _copy[(tiles,)](x, x.stride(), out, counts, vectors, k, 4, 8)
    assert torch.equal(out, x)
    assert (counts == 1).all()
