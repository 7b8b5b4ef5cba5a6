"""Scaling by powers of two loses no bit, whatever the exponents."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hifigemm.linalg import scaling
from hifigemm.linalg.scaling import (
    equilibration,
    matching,
    scaled_system,
    weighted_system,
)
from hifigemm.numerics.bits import LEAST

FLOATS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, LEAST, -3 * LEAST, 2.0**-1022, 1.7e308, 1.0, -(2.0**600)]),
)


def powers_between(scaled, original):
    """exponents e with scaled = original 2^e exactly, None for zeros; raises
    AssertionError where there is none.
    """
    powers = np.empty(scaled.shape, object)
    for i, j in np.ndindex(scaled.shape):
        if original[i, j] == 0.0:
            assert scaled[i, j] == 0.0
            continue
        ratio = Fraction(float(scaled[i, j])) / Fraction(float(original[i, j]))
        assert ratio > 0
        top, bottom = ratio.numerator, ratio.denominator
        assert top & (top - 1) == 0
        assert bottom & (bottom - 1) == 0
        powers[i, j] = top.bit_length() - bottom.bit_length()
    return powers


def assert_same_system(a, b, system):
    """Row i of both, column j of A and side k of b have powers that fit together."""
    of_a = powers_between(system.a, a)
    of_b = powers_between(system.b, b)
    exponents = np.broadcast_to(system.exponents, b.shape)
    for i, j, k in np.ndindex(len(a), len(a), b.shape[1]):
        if of_a[i, j] is not None and of_b[i, k] is not None:
            # row + column of A less row + side of b is the exponent of x
            assert of_a[i, j] - of_b[i, k] == exponents[j, k]


@settings(max_examples=200, deadline=None)
@given(st.lists(FLOATS, min_size=16, max_size=16))
def test_no_bit_is_lost(entries):
    a = np.array(entries[:9]).reshape(3, 3)
    b = np.array(entries[9:15]).reshape(3, 2)
    assert_same_system(a, b, scaled_system(a, b))


@settings(max_examples=100, deadline=None)
@given(st.lists(FLOATS, min_size=12, max_size=12))
def test_no_bit_is_lost_by_a_matching(entries):
    a = np.array(entries[:9]).reshape(3, 3)
    b = np.array(entries[9:]).reshape(3, 1)
    assert_same_system(a, b, scaled_system(a, b, matching))


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7])
def test_a_matching_is_that_of_the_largest_product(n):
    rng = np.random.default_rng(n)
    for _ in range(20):
        sizes = rng.integers(-200, 200, (n, n))
        rows, columns = matching(sizes)
        assert (sizes + rows + columns <= 0).all()
        # The dual variables add up to the best assignment, which bounds all others
        best = max(
            sum(sizes[i, j] for i, j in enumerate(order))
            for order in permutations(range(n))
        )
        assert rows.sum() + columns.sum() == -best


def largest_columns(sizes, order):
    """The largest t <= 0 with s of a matching along a permutation: row i to order[i]."""
    n = len(sizes)
    columns = np.zeros(n, np.int64)
    for _ in range(n):
        # s + t is -size along the permutation, and at most -size elsewhere.
        rows = [-sizes[i, order[i]] - columns[order[i]] for i in range(n)]
        for i in range(n):
            columns = np.minimum(columns, -sizes[i] - rows[i])
    return columns


@pytest.mark.parametrize("entries", [1, 2**22])
@pytest.mark.parametrize("spread", [1, 3, 200])
def test_a_matching_is_the_one_with_the_largest_columns(monkeypatch, entries, spread):
    """So it depends neither on the order of the search nor on how much is done at once."""
    monkeypatch.setattr(scaling, "_ENTRIES", entries)
    rng = np.random.default_rng(spread)
    for n in (1, 2, 3, 4, 5, 6) * 5:
        sizes = rng.integers(-spread, spread + 1, (n, n))
        sizes[rng.random((n, n)) < 0.2] = scaling._ZERO
        rows, columns = matching(sizes)
        order = max(permutations(range(n)), key=lambda p: sum(sizes[range(n), list(p)]))
        np.testing.assert_array_equal(columns[0], largest_columns(sizes, order))
        along = sizes[range(n), list(order)]
        np.testing.assert_array_equal(rows[:, 0] + columns[0, list(order)], -along)


@pytest.mark.parametrize("n", [40, 90])
def test_rows_and_columns_in_any_units_are_matched(n):
    rng = np.random.default_rng(n)
    noise = rng.integers(-10, 1, (n, n))
    noise[np.arange(n), rng.permutation(n)] = 0
    units = rng.integers(-300, 300, (n, 1)) + rng.integers(-300, 300, (1, n))
    rows, columns = matching(noise + units)
    scaled = noise + units + rows + columns
    assert scaled.max() == 0
    assert rows.sum() + columns.sum() == -units.diagonal().sum()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(FLOATS, min_size=12, max_size=12),
    st.lists(st.floats(LEAST, 1e300), min_size=3, max_size=3),
)
def test_no_bit_is_lost_by_weights(entries, weights):
    a = np.array(entries[:9]).reshape(3, 3)
    b = np.array(entries[9:]).reshape(3, 1)
    first = scaled_system(a, b, matching)
    again = weighted_system(first, np.array(weights)[:, None])
    assert_same_system(a, b, again)
    determinants = [matrix_determinant(x) for x in (a, again.a)]
    shift = Fraction(2) ** int(again.determinant_exponent)
    assert determinants[0] * shift == determinants[1]


def test_a_matrix_with_zeros_on_every_permutation_is_left_as_it_is():
    a = np.diag([0.0, 0.0, 3.0])
    b = np.array([[0.0], [1.0], [1.0]])
    system = scaled_system(a, b, matching)
    assert_same_system(a, b, system)
    assert np.array_equal(system.b, b)


def matrix_determinant(a):
    """det A of three rows as a fraction."""
    x, y, z = ([Fraction(float(entry)) for entry in row] for row in a)
    minors = [
        y[(j + 1) % 3] * z[(j + 2) % 3] - y[(j + 2) % 3] * z[(j + 1) % 3]
        for j in range(3)
    ]
    return sum(first * minor for first, minor in zip(x, minors))


def test_equilibration_brings_all_largest_exponents_to_zero():
    sizes = np.random.default_rng(0).integers(-200, 200, (6, 6))
    rows, columns = equilibration(sizes)
    scaled = sizes + rows + columns
    assert (scaled.max(axis=0) == 0).all()
    assert (scaled.max(axis=1) == 0).all()


def test_largest_entries_of_a_graded_system_lie_between_a_half_and_one():
    rng = np.random.default_rng(0)
    rows = rng.integers(-150, 151, (12, 1))
    columns = rng.integers(-150, 151, 12)
    a = np.ldexp(rng.standard_normal((12, 12)), rows + columns)
    system = scaled_system(a, np.ldexp(rng.standard_normal((12, 1)), rows))
    for largest in (
        np.abs(system.a).max(axis=0),
        np.abs(system.a).max(axis=1),
        np.abs(system.b).max(axis=0),
    ):
        assert (largest < 1.0).all()
        assert (largest >= 0.5).all()


def test_complex_systems_are_scaled_by_their_larger_components():
    a = np.array([[1e200 + 1e100j, 1j * 1e250], [3.0, 1e-50j]])
    b = np.array([[1e300j], [2e-300]])
    system = scaled_system(a, b)
    assert_same_system(a.real, b.real, _part(system, "real"))
    assert_same_system(a.imag, b.imag, _part(system, "imag"))
    assert np.abs(system.a).max() < 2.0


def _part(system, name):
    kind = type(system)
    return kind(getattr(system.a, name), getattr(system.b, name), system.exponents)


@pytest.mark.parametrize("power", [-1070, -1000, 0, 900])
def test_restored_radius_covers_the_rounding_of_small_solutions(power):
    a = np.array([[1.0]])
    b = np.array([[2.0**power]])
    system = scaled_system(a, b)
    x = np.array([[np.nextafter(0.75, 1.0)]])
    radius = np.array([[2.0**-60 + 2.0**-110]])
    restored, bound = system.restored(x, radius)
    factor = Fraction(2) ** int(system.exponents[0, 0])
    error = abs(Fraction(restored[0, 0]) - Fraction(x[0, 0]) * factor)
    assert Fraction(bound[0, 0]) >= error + Fraction(radius[0, 0]) * factor
    if power == 0:
        assert error == 0
        assert Fraction(bound[0, 0]) == Fraction(radius[0, 0]) * factor
