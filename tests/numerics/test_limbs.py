"""Limbs against Python integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.numerics.limbs import LIMB_BITS, carry, limbs_from_sums, num_limbs


def integer(limbs, i=0):
    return sum(int(limb[i]) << (LIMB_BITS * j) for j, limb in enumerate(limbs))


@given(
    st.lists(
        st.tuples(st.integers(-(2**62) + 1, 2**62 - 1), st.integers(0, 900)),
        min_size=1,
        max_size=12,
    ),
)
def test_limbs_of_shifted_sums_hold_the_integer(terms):
    sums = np.array([[total] for total, _ in terms], np.int64)
    shifts = [shift for _, shift in terms]
    exact = sum(total << shift for total, shift in terms)
    count = max(num_limbs(exact.bit_length()), max(shifts) // LIMB_BITS + 1)
    limbs = limbs_from_sums(sums, shifts, count)
    assert limbs.shape == (count, 1)
    carry(limbs)
    assert integer(limbs) == exact
    assert all(0 <= limb[0] < 2**LIMB_BITS for limb in limbs[:-1])
    assert (limbs[-1, 0] < 0) == (exact < 0)


@given(st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=6))
def test_carry_keeps_the_value_and_normalises(values):
    limbs = np.array([[v] for v in [*values, 0]], np.int64)
    before = integer(limbs)
    carry(limbs)
    assert integer(limbs) == before
    assert all(0 <= limb[0] < 2**LIMB_BITS for limb in limbs[:-1])


@pytest.mark.parametrize("bits", [1, 30, 31, 32, 33, 63, 64, 65, 96])
@pytest.mark.parametrize("sign", [1, -1])
def test_num_limbs_holds_the_largest_integer_with_its_sign(bits, sign):
    value = sign * (2**bits - 1)
    count = num_limbs(bits)
    limbs = np.array(
        [[(value >> (32 * j)) & (2**32 - 1)] for j in range(count - 1)]
        + [[value >> (32 * (count - 1))]]
    )
    assert abs(int(limbs[-1, 0])) < 2**32
    assert integer(limbs) == value


def test_num_limbs_keeps_a_bit_for_the_sign():
    assert [num_limbs(bits) for bits in (0, 31, 32, 63, 64)] == [1, 1, 2, 2, 3]
