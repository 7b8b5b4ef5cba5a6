"""The ratio behind counts of moduli, against exact sums, and the counts that follow
from it.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from hifigemm.numerics.error_ratio import (
    _least_range,
    count_for_ratio,
    error_bound,
    error_ratio,
    largest_ratio,
    least_norm,
)
from hifigemm.numerics.residues import MAX_MODULI, moduli_set


class Watched:
    """An exact product of INT8 magnitudes that keeps the shapes of its results and the
    bounds of its entries.
    """

    def __init__(self):
        self.seen = []

    def __call__(self, a, b, max_a, max_b):
        assert a.dtype == b.dtype == np.int8
        assert max_a >= abs(a).max()
        assert max_b >= abs(b).max()
        self.seen.append((max(len(a), len(b)), a.shape[1], b.shape[2], (max_a, max_b)))
        return a.astype(np.int64) @ b.astype(np.int64)


def exact_ratio(a, b):
    """max (||A_i|| sum|B_j| + ||B_j|| sum|A_i|) / |A||B| over all real components of A
    B, norms in float64.
    """
    rows = [
        [[abs(Fraction(float(x))) for x in row] for row in part]
        for part in (a.real, a.imag)
    ]
    cols = [
        [[abs(Fraction(float(x))) for x in column] for column in part.T]
        for part in (b.real, b.imag)
    ]
    worst = 0.0
    for i, j in np.ndindex(a.shape[0], b.shape[1]):
        left, right = (
            [part[at] for part in parts] for parts, at in ((rows, i), (cols, j))
        )
        above = Fraction(np.linalg.norm(a[i])) * sum(map(sum, right))
        above += Fraction(np.linalg.norm(b[:, j])) * sum(map(sum, left))
        for order in (right, right[::-1])[: 1 + np.iscomplexobj(a)]:
            sizes = sum(
                x * y
                for part, other in zip(left, order)
                for x, y in zip(part, other, strict=True)
            )
            worst = max(
                worst, float(above / sizes) if sizes else (np.inf if above else 0.0)
            )
    return worst


@pytest.mark.parametrize(
    "family",
    ["uniform", "phi_0.1", "phi_1", "integers", "sparse", "empty_rows_and_columns"],
)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_ratio_is_not_below_the_exact_one(make_pair, family, dtype):
    a, b = make_pair(family, 6, 40, 7, dtype)
    found = error_ratio(a[None], b[None], Watched(), 16384, 10)
    exact = exact_ratio(a, b)
    assert found >= exact * (1 - 1e-12)
    if np.isfinite(found):
        assert found <= 1.5 * exact


def test_zeros_have_no_ratio_and_what_may_be_zero_has_an_infinite_one():
    def ratio(a, b):
        return error_ratio(np.array([a]), np.array([b]), Watched(), 16384, 10)

    assert ratio([[0.0, 0.0]], [[0.0], [0.0]]) == 0.0
    assert ratio([[0.0, 0.0]], [[1.0], [1.0]]) == 0.0
    assert ratio([[1.0, 0.0]], [[0.0], [1.0]]) == np.inf
    assert ratio([[1.0, 0.0], [1.0, 1.0]], [[1.0], [0.0]]) == 2 + 2**0.5
    assert ratio([[1.0, 2.0**-6]], [[2.0**-6], [1.0]]) < np.inf
    assert ratio([[1.0, 2.0**-7]], [[2.0**-7], [1.0]]) == np.inf


@pytest.mark.parametrize("special", [np.inf, np.nan])
def test_vectors_with_special_values_have_no_ratio(special):
    # What is left of the second column would have an infinite one.
    a, b = np.array([[[1.0, 0.0]]]), np.array([[[1.0, special], [1.0, 1.0]]])
    usual = error_ratio(a, b[:, :, :1], Watched(), 16384, 10)
    assert usual < np.inf
    assert error_ratio(a, b, Watched(), 16384, 10) == usual
    turned = np.swapaxes(b, 1, 2), np.swapaxes(a, 1, 2)
    assert error_ratio(*turned, Watched(), 16384, 10) == usual


def test_ratio_looks_at_so_many_terms_as_int32_holds():
    terms = 2**17
    a, b = np.zeros((1, 1, terms + 1)), np.ones((1, terms + 1, 1))
    a[0, 0, terms] = 1.0
    assert error_ratio(a, b, Watched(), 2**18, 10) == np.inf
    a[0, 0, terms - 1 :] = 1.0, 0.0
    assert error_ratio(a, b, Watched(), 2**18, 10) < np.inf


@pytest.mark.parametrize(
    ("entries", "rows"),
    [(1, [1] * 5), (3 * 2 * 7, [2, 2, 1]), (3 * 2 * 7 + 6, [2, 2, 1]), (999, [5])],
)
@pytest.mark.parametrize("stacks", [(3, 1), (1, 3), (3, 3)])
def test_ratio_is_found_for_so_many_entries_at_a_time(entries, rows, stacks):
    exact = Watched()
    a, b = np.ones((stacks[0], 5, 4)), np.ones((stacks[1], 4, 7))
    found = error_ratio(a, b, exact, 16384, entries)
    assert exact.seen == [(3, m, 7, (127, 127)) for m in rows]
    assert found == error_ratio(a[:1], b[:1], exact, 16384, 1)


def test_ratio_does_not_depend_on_parts_nor_on_vectors_with_special_values(make_pair):
    a, b = make_pair("phi_1", 30, 50, 20)
    a, b = np.stack([a, 2 * a[::-1]]), b[None].copy()
    want = error_ratio(a, b[:, :, 1:], Watched(), 16384, 10**6)
    b[0, 3, 0] = np.inf
    assert want == error_ratio(a, b, Watched(), 64, 1)


def moduli_ranges(is_complex=False):
    """(number of moduli, half_range) for each number."""
    return [
        (count, moduli_set(count, is_complex).half_range)
        for count in range(2, MAX_MODULI + 1)
    ]


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("k", [1, 60, 5000])
@pytest.mark.parametrize("r", [2.0**-51, 1e-10, 1e-30])
def test_the_largest_ratio_parts_counts_that_keep_a_target_from_those_that_do_not(
    k, r, is_complex
):
    for count, half_range in moduli_ranges(is_complex)[::4]:
        largest = largest_ratio(k, r, half_range)
        if largest < 0:
            assert (count_for_ratio(k, r, 0.0, is_complex) or 50) > count
            continue
        assert count_for_ratio(k, r, largest, is_complex) <= count
        assert count_for_ratio(k, r, largest / 3, is_complex) <= count
        for ratio in (np.nextafter(largest, np.inf), 2 * largest, np.inf):
            assert (count_for_ratio(k, r, ratio, is_complex) or 50) > count


def test_too_few_moduli_are_enough_for_no_ratio():
    assert largest_ratio(60, 1e-10, moduli_set(2, False).half_range) == -math.inf


@pytest.mark.parametrize("terms", [1, 60, 2**17, 2**31])
def test_enough_range_leaves_room_for_products_of_two_roundings(terms):
    # With T**2 = half_range an entry errs by at most ratio (1 + terms / (2 T)) / T
    # |A||B|; scales may be 2**-50 larger.
    for r in (2.0**-10, 1e-7, 2.0**-51, 1e-30):
        for ratio in (1.0, 2.0**12, 3e5, 1e20):
            norm = math.isqrt(_least_range(terms, r, ratio))
            assert norm**2 == _least_range(terms, r, ratio)
            assert terms * 2**19 == least_norm(terms) <= norm
            wanted = (
                Fraction(ratio)
                / Fraction(r)
                * (1 + Fraction(terms, 2 * norm))
                * (1 + Fraction(2) ** -49)
            )
            assert wanted <= norm
            assert norm <= max(wanted * (1 + Fraction(2) ** -18) + 1, terms * 2**19)
        assert _least_range(terms, r, np.inf) is None
        assert count_for_ratio(terms, r, np.inf, False) is None


def test_the_norm_from_which_enough_is_told_is_never_undercut():
    assert _least_range(5, 1.0, 0.0) == (5 * 2**19) ** 2


@pytest.mark.parametrize("terms", [1, 60, 2**17])
def test_the_bound_of_a_count_is_the_largest_error_of_its_roundings(terms):
    for _, half_range in moduli_ranges()[::5]:
        norm = math.isqrt(half_range)
        for ratio in (1.0, 2.0**12, 1e20):
            bound = error_bound(terms, ratio, half_range)
            if norm < least_norm(terms):
                assert bound == math.inf
                continue
            exact = (
                Fraction(ratio)
                / norm
                * (1 + Fraction(terms, 2 * norm))
                * (1 + Fraction(2) ** -49)
            )
            assert exact <= bound <= exact * (1 + Fraction(2) ** -17)
        assert error_bound(terms, math.inf, half_range) == math.inf
