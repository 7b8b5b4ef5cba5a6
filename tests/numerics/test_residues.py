"""Residue arithmetic against Python integers, for every number of moduli."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.numerics.limbs import carry
from hifigemm.numerics.residues import (
    MAX_MODULI,
    centred,
    complex_moduli,
    count_for_bits,
    count_for_range,
    moduli_set,
    real_moduli,
    reduce_centred,
    residues,
    square_root_of_minus_one,
)

COUNTS = range(2, MAX_MODULI + 1)


def integers(limbs):
    limbs = limbs.copy()
    carry(limbs)
    return [sum(int(x) << (32 * j) for j, x in enumerate(column)) for column in limbs.T]


@pytest.mark.parametrize("is_complex", [False, True])
def test_moduli_are_pairwise_coprime_and_of_eight_bits(is_complex):
    moduli = moduli_set(MAX_MODULI, is_complex).moduli
    assert len(moduli) == MAX_MODULI
    assert all(math.gcd(p, q) == 1 for i, p in enumerate(moduli) for q in moduli[:i])
    assert all(2 <= p <= 256 for p in moduli)
    assert math.prod(moduli).bit_length() > 340


def test_real_moduli_begin_as_published():
    assert real_moduli()[:12] == (
        256,
        255,
        253,
        251,
        247,
        241,
        239,
        233,
        229,
        227,
        223,
        217,
    )


def test_split_moduli_have_a_root_of_minus_one_and_come_first():
    chosen = moduli_set(MAX_MODULI, True)
    for p, j in zip(chosen.moduli, chosen.splits, strict=True):
        if j is not None:
            assert (j * j + 1) % p == 0
        else:
            assert p % 2 == 0 or all((x * x + 1) % p for x in range(p))
    assert None not in chosen.splits[:15]
    assert math.log2(math.prod(complex_moduli()[:15])) > 111


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_every_integer_within_half_range_is_reconstructed(count, is_complex):
    chosen = moduli_set(count, is_complex)
    rng = random.Random(count)
    half = chosen.half_range
    assert 2 * half < chosen.modulus_product
    values = [
        0,
        1,
        -1,
        half,
        -half,
        half - 1,
        1 - half,
        half // 2,
        *(rng.randint(-half, half) for _ in range(200)),
    ]
    values += [sign * 2**e for e in range(half.bit_length() - 1) for sign in (1, -1)]
    remainders = np.array(
        [[centred(v, p) for v in values] for p in chosen.moduli], np.int8
    )
    assert integers(chosen.reconstruct(remainders)) == values


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_half_range_leaves_a_millionth_of_the_product(count, is_complex):
    """The quotient of the reconstruction errs by less than 2**-36; kernels rely on
    2**-20 too.
    """
    chosen = moduli_set(count, is_complex)
    whole, half = chosen.modulus_product, chosen.half_range
    assert whole == math.prod(chosen.moduli)
    assert half == (whole - 1) // 2 - ((whole - 1) // 2 >> 20) - 1
    assert 2 * half * 2**20 <= whole * (2**20 - 1)
    assert chosen.limb_count == (whole.bit_length() + 1) // 32 + 1


@pytest.mark.parametrize("p", sorted({*real_moduli(), *complex_moduli()}))
def test_roots_of_minus_one_are_the_smallest_of_odd_moduli(p):
    roots = [j for j in range(1, p) if (j * j + 1) % p == 0]
    assert square_root_of_minus_one(p) == (roots[0] if roots and p % 2 else None)
    assert square_root_of_minus_one(2) is None


def test_complex_moduli_come_by_bits_for_a_product():
    moduli = complex_moduli()
    bits = [math.log2(p) / (2 if square_root_of_minus_one(p) else 3) for p in moduli]
    assert bits == sorted(bits, reverse=True)
    assert moduli[:5] == (241, 233, 229, 221, 205)
    taken = []
    for p in sorted(
        range(2, 257),
        key=lambda p: math.log2(p) / (2 if square_root_of_minus_one(p) else 3),
        reverse=True,
    ):
        if len(taken) < MAX_MODULI and all(math.gcd(p, q) == 1 for q in taken):
            taken.append(p)
    assert sorted(moduli) == sorted(taken)


def test_real_moduli_take_all_that_are_coprime_from_256_down():
    taken = []
    for p in range(256, 1, -1):
        if all(math.gcd(p, q) == 1 for q in taken):
            taken.append(p)
    assert real_moduli() == tuple(taken[:49])
    assert len(complex_moduli()) == MAX_MODULI == 49


def test_each_part_has_its_modulus():
    assert moduli_set(3, False).of_planes(3) == (256, 255, 253)
    assert moduli_set(20, False).splits == (None,) * 20
    mixed = moduli_set(MAX_MODULI, True)
    parts = [
        p
        for p, j in zip(mixed.moduli, mixed.splits, strict=True)
        for _ in range(2 if j else 3)
    ]
    assert mixed.of_planes(len(parts)) == tuple(parts)
    assert mixed.of_planes(MAX_MODULI) == mixed.moduli
    assert None in mixed.splits
    assert moduli_set(2, True).of_planes(4) == (241, 241, 233, 233)


@pytest.mark.parametrize("is_complex", [False, True])
def test_counts_are_the_smallest_with_the_range(is_complex):
    for count in COUNTS:
        half = moduli_set(count, is_complex).half_range
        assert count_for_range(half, is_complex) == count
        assert count_for_range(half + 1, is_complex) == (
            count + 1 if count < MAX_MODULI else None
        )
        assert count_for_bits(half.bit_length(), is_complex) <= count
    assert count_for_range(0, is_complex) == 2
    assert (
        count_for_bits(
            moduli_set(2, is_complex).half_range.bit_length() + 1, is_complex
        )
        == 3
    )


@given(st.integers(2, MAX_MODULI), st.booleans(), st.data())
def test_reconstruction_is_exact_for_any_integer(count, is_complex, data):
    chosen = moduli_set(count, is_complex)
    value = data.draw(st.integers(-chosen.half_range, chosen.half_range))
    remainders = np.array([[centred(value, p)] for p in chosen.moduli], np.int8)
    assert integers(chosen.reconstruct(remainders)) == [value]


@given(
    st.integers(-(10**30), 10**30),
    st.sampled_from(sorted({*real_moduli(), *complex_moduli()})),
)
def test_centred_residues_are_int8_and_congruent(value, p):
    r = centred(value, p)
    assert (value - r) % p == 0
    assert -p <= 2 * r < p
    assert -128 <= r <= 127


@pytest.mark.parametrize("p", sorted({*real_moduli(), *complex_moduli()}))
def test_reduction_of_floats_is_centred_for_every_modulus(p):
    rng = np.random.default_rng(p)
    edges = [
        s * v
        for v in (0, p // 2, p // 2 + 1, p - 1, p, 2**44 - 1, (2**44 // p) * p - p // 2)
        for s in (1, -1)
    ]
    near_ties = (
        rng.integers(0, 2**44 // p - 1, 500) * p + p // 2 + rng.integers(-1, 2, 500)
    )
    x = np.concatenate(
        [edges, near_ties, -near_ties, rng.integers(-(2**44) + 1, 2**44, 500)]
    )
    found = reduce_centred(x.astype(np.float64), p)
    assert found.tolist() == [float(centred(int(v), p)) for v in x]


@given(
    st.lists(
        st.tuples(st.integers(-(2**53), 2**53), st.integers(0, 290)),
        min_size=1,
        max_size=5,
    )
)
def test_residues_of_large_floats_are_exact(parts):
    values = [m << e for m, e in parts]
    x = np.array([float(v) for v in values])
    moduli = (*real_moduli()[:9], 29)
    before = x.copy()
    for block_entries in (1, 3 * len(x), 10**4):
        found = residues(x, moduli, block_entries)
        assert found.dtype == np.int8
        assert found.tolist() == [[centred(v, p) for v in values] for p in moduli]
        np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("is_complex", [False, True])
def test_counts_are_the_smallest_that_have_the_bits(is_complex):
    for bits in range(1, 340, 7):
        count = count_for_bits(bits, is_complex)
        assert moduli_set(count, is_complex).half_range.bit_length() >= bits
        assert (
            count == 2
            or moduli_set(count - 1, is_complex).half_range.bit_length() < bits
        )
    assert count_for_bits(10**4, is_complex) == MAX_MODULI


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("count", [2, 5, 14, MAX_MODULI])
def test_terms_are_floats_that_add_up_to_the_integer(count, is_complex):
    moduli = moduli_set(count, is_complex)
    half = moduli.half_range
    values = [0, 1, -1, half, -half, half // 3, -half // 1001]
    remainders = np.array(
        [[centred(v, p) for v in values] for p in moduli.moduli], np.int8
    )
    terms = moduli.terms(remainders)
    assert len(terms) <= 10
    sums = [sum(int(x) for x in column) for column in terms.T.tolist()]
    assert sums == values


@pytest.mark.parametrize("p", [29, 149, 255, 256])
def test_short_integers_are_reduced_in_float32(p):
    x = np.arange(-(2**21) + 1, 2**21, dtype=np.float32)
    found = reduce_centred(x, np.float32(p))
    assert found.dtype == np.float32
    whole = x.astype(np.int64)
    np.testing.assert_array_equal(found, (whole + p // 2) % p - p // 2)
