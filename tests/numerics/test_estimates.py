"""Magnitudes bound |A||B| from both sides; the published estimate does not depend on orders of summation."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.numerics.bits import largest_exponent
from hifigemm.numerics.estimates import (
    MAGNITUDE_BITS_DOWN,
    MAGNITUDE_BITS_UP,
    magnitudes_down,
    magnitudes_up,
    nonzeros,
    published_num_slices,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(FINITE, min_size=1, max_size=6))
def test_magnitudes_bound_each_entry_from_both_sides(xs):
    x = np.array([xs])
    e = largest_exponent(x, 1)
    up, down = magnitudes_up(x, e)[0], magnitudes_down(x, e)[0]
    assert up.dtype == down.dtype == np.int8
    for value, high, low in zip(xs, up.tolist(), down.tolist(), strict=True):
        scaled = Fraction(abs(value)) / Fraction(2) ** int(e[0, 0])
        assert 0 <= low <= scaled * 2**MAGNITUDE_BITS_DOWN < low + 1
        assert high - 1 < scaled * 2**MAGNITUDE_BITS_UP <= high <= 64


@given(st.lists(FINITE, min_size=1, max_size=6))
def test_nonzeros_counts_subnormals_and_no_zeros(xs):
    assert nonzeros(np.array(xs)).tolist() == [int(x != 0) for x in xs]


@pytest.mark.parametrize("beta", [1, 7, 11])
@pytest.mark.parametrize("u", [2.0**-24, 2.0**-53])
def test_the_published_count_grows_with_the_range(make_pair, beta, u):
    pairs = [make_pair(name, 12, 30, 10) for name in ("phi_0.1", "phi_2", "phi_8")]
    counts = [published_num_slices(a[None], b[None], beta, u) for a, b in pairs]
    assert [count for count, _ in counts] == sorted(count for count, _ in counts)
    assert not any(ended for _, ended in counts)


@pytest.mark.parametrize("beta", [1, 7, 27])
def test_the_published_count_says_where_short_operands_end(make_pair, beta):
    a, b = make_pair("integers", 5, 4, 3)
    count, ended = published_num_slices(a[None], b[None], beta, 2.0**-53)
    assert ended
    assert count >= 1 + 2 * (2 // beta)  # integers up to 3 have two bits


def test_the_published_count_does_not_depend_on_the_order_of_rows_and_terms(make_pair):
    rng = np.random.default_rng(10)
    a, b = make_pair("phi_2", 300, 40, 20)
    count = published_num_slices(a[None], b[None], 7, 2.0**-53)
    rows, inner, cols = rng.permutation(300), rng.permutation(40), rng.permutation(20)
    assert published_num_slices(a[rows][:, inner][None], b[inner][:, cols][None], 7, 2.0**-53) == count
    assert published_num_slices(np.asfortranarray(a)[None], b[None], 7, 2.0**-53) == count


@pytest.mark.parametrize("shift", [-1000, -500, 500, 900])
def test_the_published_count_does_not_depend_on_common_scales(make_pair, shift):
    a, b = make_pair("phi_1", 12, 30, 10)
    count = published_num_slices(a[None], b[None], 7, 2.0**-53)
    assert published_num_slices(np.ldexp(a, shift)[None], b[None], 7, 2.0**-53) == count
    assert published_num_slices(a[None], np.ldexp(b, shift)[None], 7, 2.0**-53) == count


def test_the_published_count_leaves_its_operands_alone(make_pair):
    a, b = make_pair("phi_1", 12, 30, 10)
    before = a.copy(), b.copy()
    published_num_slices(a[None], b[None], 7, 2.0**-53)
    np.testing.assert_array_equal(a, before[0])
    np.testing.assert_array_equal(b, before[1])
