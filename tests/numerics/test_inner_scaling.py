"""Powers of two between A and B: the same product, flat vectors, normal numbers, and
moduli that suffice as without the pattern.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.engines import engine_for
from hifigemm.numerics import inner_scaling
from hifigemm.numerics.error_ratio import error_ratio
from hifigemm.numerics.inner_scaling import (
    NO_EXPONENT,
    WIDE_GAP,
    closes,
    entry_exponents,
    inner_exponents,
    sampled_gap,
    scaled_along_k,
)
from hifigemm.numerics.scaling import required_bits
from hifigemm.schemes.moduli_counts import exact_count
from hifigemm.schemes.scheme import int8_product

DTYPES = ("float32", "float64", "complex64", "complex128")
BLOCK = 100
"""Entries of a block: several blocks in each operand."""


def pair(seed=0, m=12, k=60, n=10, span=0, dtype="float64"):
    """Normal operands, columns and rows graded against each other over `span` bits."""
    rng = np.random.default_rng(seed)
    d = rng.permutation(np.round(np.linspace(-span / 2, span / 2, k))).astype(int)
    a = np.ldexp(rng.standard_normal((1, m, k)), d)
    b = np.ldexp(rng.standard_normal((1, k, n)), -d[:, None])
    if dtype.startswith("complex"):
        a = a + 1j * np.ldexp(rng.standard_normal((1, m, k)), d)
        b = b + 1j * np.ldexp(rng.standard_normal((1, k, n)), -d[:, None])
    return a.astype(dtype), b.astype(dtype)


def ratio_of(a, b):
    return error_ratio(a, b, int8_product(engine_for("numpy")), 2**14, 2**14)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_product_is_the_same(dtype):
    a, b = pair(span=40, dtype=dtype)
    d = inner_exponents(a, b, BLOCK)
    assert np.ptp(d) > 30
    x, y = scaled_along_k(a, d, 2), scaled_along_k(b, d, 1)
    for i, j, h in ((0, 0, 0), (3, 5, 17), (11, 9, 59)):
        for part in (np.real, np.imag):
            left, right = part(a[0, i, h]), part(b[0, h, j])
            scaled = part(x[0, i, h]), part(y[0, h, j])
            exact = Fraction(float(left)) * Fraction(float(right))
            assert Fraction(float(scaled[0])) * Fraction(float(scaled[1])) == exact


@pytest.mark.parametrize("span", [20, 60, 200, 600, 1000, 1800])
@pytest.mark.parametrize("grading", [0, 100])
def test_opposite_gradings_go(span, grading):
    a, b = pair()
    rng = np.random.default_rng(1)
    x, y = pair(span=span)
    rows = rng.integers(-grading, grading + 1, (12, 1))
    columns = rng.integers(-grading, grading + 1, (1, 10))
    x, y = np.ldexp(x, rows), np.ldexp(y, columns)
    gap = sampled_gap(x, y)
    d = inner_exponents(x, y, BLOCK)
    assert gap >= max(WIDE_GAP, span // 2)
    assert closes(gap, sampled_gap(x, y, d))
    x, y = scaled_along_k(x, d, 2), scaled_along_k(y, d, 1)
    assert ratio_of(x, y) <= 8 * ratio_of(a, b)
    plain = exact_count(False, *required_bits(a, b, 10**6, BLOCK))
    assert exact_count(False, *required_bits(x, y, 10**6, BLOCK)) <= plain + 1


def test_data_of_one_size_ask_for_nothing():
    for seed in range(20):
        assert sampled_gap(*pair(seed)) < WIDE_GAP


def test_one_flat_operand_suffices():
    a, b = pair(span=60)
    a[:, ::2] = np.ldexp(pair(3, span=0)[0], 0)[:, ::2]  # half of the rows are flat
    d = inner_exponents(a, b, BLOCK)
    spread = entry_exponents(scaled_along_k(b, d, 1)).max(axis=2)
    assert np.ptp(spread) <= 4 < np.ptp(entry_exponents(b).max(axis=2))
    assert closes(sampled_gap(a, b), sampled_gap(a, b, d))


@pytest.mark.parametrize("span", [60, 1000, 2000])
@pytest.mark.parametrize("flat", ["left", "right"])
def test_a_flat_operand_shares_the_span_with_the_other_one(span, flat):
    """Exponents of 2,000 bits leave no room for d from 0 to its span."""
    a, b = pair()
    x, y = pair(span=span)
    rng = np.random.default_rng(1)
    wild = a if flat == "right" else b
    spread = np.round(6 * rng.standard_normal(wild.shape)).astype(int)
    if flat == "right":
        a, x = np.ldexp(a, spread), np.ldexp(x, spread)
    else:
        b, y = np.ldexp(b, spread), np.ldexp(y, spread)
    d = inner_exponents(x, y, BLOCK)
    assert abs(d).max() <= span // 2 + 20
    assert sampled_gap(x, y, d) <= sampled_gap(a, b) + 5


@pytest.mark.parametrize("huge", [0, 400])
@pytest.mark.parametrize("span", [60, 1000])
def test_entries_that_meet_zeros_alone_do_not_stand_out(span, huge):
    a, b = pair()
    x, y = pair(span=span)
    for left, right in ((a, b), (x, y)):
        left[:, :, [3, 30]] = 0
        right[:, [4, 40]] = 0
    x[:, :, 40] = np.ldexp(x[:, :, 40], huge)
    y[:, 30] = np.ldexp(y[:, 30], huge)
    gap = sampled_gap(x, y)
    d = inner_exponents(x, y, BLOCK)
    assert closes(gap, sampled_gap(x, y, d))
    x, y = scaled_along_k(x, d, 2), scaled_along_k(y, d, 1)
    # S and T are those of vectors whose largest entries are the huge ones.
    loss = 4 * 60**1.5 if huge else 8
    assert ratio_of(x, y) <= loss * ratio_of(a, b)
    plain = exact_count(False, *required_bits(a, b, 10**6, BLOCK))
    assert exact_count(False, *required_bits(x, y, 10**6, BLOCK)) <= plain + 1


def test_d_is_dropped_where_an_entry_would_be_subnormal():
    """A subnormal entry may become normal, and no entry subnormal."""
    x, y = pair(span=1000)
    factors = inner_exponents(x, y, BLOCK)
    x[0, 3, factors.argmax()] = 2.0**-1074
    assert inner_exponents(x, y, BLOCK).any()
    x[0, 3, factors.argmin()] = 2.0**-1074
    assert not inner_exponents(x, y, BLOCK).any()


@given(st.integers(0, 2**32 - 1))
def test_vectors_do_not_grow_and_entries_stay_normal(seed):
    rng = np.random.default_rng(seed)
    least, most = np.sort(rng.integers(-1100, 1020, 2))
    a, b = (
        np.ldexp(rng.uniform(-1, 1, shape), rng.integers(least, most + 1, shape))
        for shape in ((2, 5, 9), (1, 9, 4))
    )
    a[rng.random(a.shape) < 0.2] = 0
    b[rng.random(b.shape) < 0.2] = 0
    a[rng.random(a.shape) < 0.02] = np.inf
    d = inner_exponents(a, b, BLOCK)
    for x, axis in ((a, 2), (b, 1)):
        before = entry_exponents(x)
        with np.errstate(all="ignore"):
            scaled = scaled_along_k(x, d, axis)
        after = entry_exponents(scaled)
        assert (after.max(axis=axis) <= before.max(axis=axis)).all()
        factor = d if axis == 2 else -d[:, None]
        has_entry = before > NO_EXPONENT
        np.testing.assert_array_equal(after[has_entry], (before + factor)[has_entry])
        if d.any():
            assert after[has_entry].min() >= inner_scaling._LEAST_NORMAL


def test_a_product_of_a_matrix_and_its_transpose_stays():
    a, _ = pair(span=60)
    d = inner_exponents(a, a.swapaxes(1, 2), BLOCK)
    assert not d.any()


def test_blocks_and_stacks():
    a, b = pair(span=60)
    d = inner_exponents(a, b, BLOCK)
    np.testing.assert_array_equal(inner_exponents(a, b, 10**6), d)
    stack = np.concatenate([a, a[:, ::-1], np.ldexp(a, 50)])
    np.testing.assert_array_equal(inner_exponents(stack, b, BLOCK), d)


def test_zeros_inf_and_nan_have_no_exponent():
    a, b = pair(span=60)
    d = inner_exponents(a, b, BLOCK)
    rows = np.zeros((1, 3, 60))
    rows[0, 0] = np.inf
    rows[0, 1] = np.nan
    np.testing.assert_array_equal(
        inner_exponents(np.concatenate([a, rows], axis=1), b, BLOCK), d
    )
    assert sampled_gap(np.zeros_like(a), b) == 0
    z = np.array([[[1 + np.inf * 1j, 0.5j, -4.0, 0.0]]])
    assert entry_exponents(z).tolist() == [[[NO_EXPONENT, 0, 3, NO_EXPONENT]]]
