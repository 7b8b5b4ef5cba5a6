"""Products of three and more operands: their order, the bound of the whole, what is
refused.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hifigemm as hg
import hifigemm.numpy as hnp
from hifigemm.functions.chains import best_cuts

FULL = hg.Ozaki2(num_moduli=5, scaling="fast")
"""A scheme whose results differ from the exact ones far above the last place."""


def fractions(x):
    return np.array([Fraction(float(y)) for y in x.ravel()], object).reshape(x.shape)


def keeps(made, matrices, bound):
    """Whether |C - exact| <= bound |A||B||C|... in every entry, evaluated exactly."""
    exact, size = fractions(matrices[0]), abs(fractions(matrices[0]))
    for x in matrices[1:]:
        exact, size = exact @ fractions(x), size @ abs(fractions(x))
    return bool((abs(fractions(made) - exact) <= Fraction(bound) * size).all())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accuracy": 1e-9},
        {"accuracy": "fp32", "scheme": "ozaki1"},
        {"scheme": FULL},
    ],
)
def test_the_bound_of_a_chain_holds(options):
    rng = np.random.default_rng(0)
    matrices = [
        rng.standard_normal(s) * np.exp(rng.standard_normal(s))
        for s in ((4, 9), (9, 3), (3, 8), (8, 5))
    ]
    for made, report in (
        hnp.multi_dot(matrices, **options, return_report=True),
        hnp.einsum("ab,bc,cd,de->ae", *matrices, **options, return_report=True),
    ):
        assert len(report.reports) == 3
        terms = [r.bound + u for r, u in zip(report.reports, report.roundoffs)]
        exact = np.prod([1 + Fraction(x) for x in terms]) - 1
        assert exact <= Fraction(report.bound) <= exact * Fraction(1 + 1e-12)
        assert keeps(made, matrices, report.bound)
        assert "3 products" in str(report)
    square = matrices[0][:, :4]
    for n in range(2, 9):
        made, report = hnp.matrix_power(square, n, **options, return_report=True)
        assert keeps(made, [square] * n, report.bound + (2.0**-53 if n == 2 else 0.0))


@given(n=st.integers(1, 40))
def test_powers_count_what_enters_more_than_once(n):
    a = np.array([[1.0, 1.0], [1.0, 0.0]])
    made, report = hnp.matrix_power(a, n, accuracy=1e-3, return_report=True)
    np.testing.assert_array_equal(made, np.linalg.matrix_power(a, n))
    if n > 2:
        assert len(report.reports) == n.bit_length() + n.bit_count() - 2
        # as many roundings as there are in n - 1 products, in any order
        assert sum(report.uses) == n - 1


def test_powers_of_stacks_and_the_first_two():
    a = np.arange(8.0).reshape(2, 2, 2)
    for n in range(4):
        np.testing.assert_array_equal(
            hnp.matrix_power(a, n), np.linalg.matrix_power(a, n)
        )
    assert not np.shares_memory(hnp.matrix_power(a, 1), a)
    assert hnp.matrix_power(a, 2, accuracy="correct", return_report=True)[1].correct
    assert hnp.matrix_power(a.astype(np.int16), 3).dtype == np.int16


@given(sizes=st.lists(st.integers(1, 9), min_size=3, max_size=8))
def test_the_order_of_multi_dot_is_the_cheapest(sizes):
    def cheapest(i, j):
        costs = (
            cheapest(i, k) + cheapest(k + 1, j) + sizes[i] * sizes[k + 1] * sizes[j + 1]
            for k in range(i, j)
        )
        return min(costs, default=0)

    def taken(i, j):
        if i == j:
            return 0
        k = cuts[i, j]
        return taken(i, k) + taken(k + 1, j) + sizes[i] * sizes[k + 1] * sizes[j + 1]

    cuts, last = best_cuts(sizes), len(sizes) - 2
    assert taken(0, last) == cheapest(0, last)
    matrices = [np.arange(1.0, 1 + m * n).reshape(m, n) % 3 for m, n in pairwise(sizes)]
    np.testing.assert_array_equal(
        hnp.multi_dot(matrices), np.linalg.multi_dot(matrices)
    )


def test_vectors_at_the_ends_and_out():
    v, a, b, w = np.ones(2), np.ones((2, 3)), np.ones((3, 4)), np.ones(4)
    for matrices in ([v, a, b, w], [v, a, b], [a, b, w], [v, v], [a, b]):
        expected, made = np.linalg.multi_dot(matrices), hnp.multi_dot(matrices)
        assert np.shape(made) == np.shape(expected)
        np.testing.assert_array_equal(made, expected)
    out = np.empty((2, 4))
    assert hnp.multi_dot([a, b], out=out, accuracy="correct") is out


def test_orders_of_einsum():
    operands = [np.arange(6.0).reshape(s) for s in ((2, 3), (3, 2), (2, 3))]
    expected = np.einsum("ij,jk,kl", *operands)
    for optimize in (
        False,
        True,
        "greedy",
        "optimal",
        ["einsum_path", (1, 2), (0, 1)],
        ["einsum_path", (0, 1, 2)],
    ):
        np.testing.assert_array_equal(
            hnp.einsum("ij,jk,kl", *operands, optimize=optimize), expected
        )


def test_a_chain_may_lose_all_digits_of_an_entry_which_its_bound_by_magnitudes_allows():
    x = np.array([[1.0, 2.0**-60]])
    y = np.array([[1.0, 1.0], [1.0, 0.0]])
    z = np.array([[1.0], [-1.0]])
    path = ["einsum_path", (0, 1), (0, 1)]
    value, report = hnp.einsum(
        "ij,jk,kl->il", x, y, z, accuracy=1e-17, optimize=path, return_report=True
    )
    exact, magnitudes = 2.0**-60, 2 + 2.0**-60
    assert value[0, 0] == 0.0
    assert exact <= report.bound * magnitudes
    with pytest.raises(
        hg.PlanError, match=r"Relative\(r=1e-12\) is promised for one product"
    ):
        hnp.einsum("ij,jk,kl->il", x, y, z, accuracy=hg.Relative(1e-12), optimize=path)


def test_errors_have_numbers():
    a = np.ones((2, 3))
    with pytest.raises(ValueError, match="at least two arrays, 1 given"):
        hnp.multi_dot([a])
    with pytest.raises(
        np.linalg.LinAlgError,
        match=r"array 1 of 3 has 1 axes, its shape is \(3,\); expected 2",
    ):
        hnp.multi_dot([a, np.ones(3), a])
    with pytest.raises(
        ValueError,
        match=r"array 0 has shape \(2, 3\), array 1 has shape \(2, 3\): 3 != 2",
    ):
        hnp.multi_dot([a, a])
    with pytest.raises(np.linalg.LinAlgError, match=r"shape \(2, 3\); expected square"):
        hnp.matrix_power(a, 2)
    with pytest.raises(ValueError, match="n = -2: an inverse is no product"):
        hnp.matrix_power(np.eye(2), -2)
    with pytest.raises(TypeError):
        hnp.matrix_power(np.eye(2), 1.5)
