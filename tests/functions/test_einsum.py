"""einsum: NumPy's shapes and dtypes, the promise of matmul, exact results."""

from __future__ import annotations

import math
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hifigemm as hg
import hifigemm.numpy as hnp
from hifigemm.functions.arrangement import MOST_COPIES
from hifigemm.functions.products import Products
from hifigemm.testing.reference import meets_promise
from tests.functions.cancelling import exact_einsum, hostile

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)

CASES = (
    ("ij,jk->ik", (3, 7), (7, 4)),
    ("ij,jk->ki", (3, 7), (7, 4)),
    ("ij,jk", (3, 7), (7, 4)),
    ("ba,b", (3, 4), (3,)),
    ("bij,bjk->bik", (2, 3, 5), (2, 5, 4)),
    ("bij,bij->b", (2, 3, 5), (2, 3, 5)),
    ("i,j->ij", (4,), (5,)),
    ("i,i->i", (6,), (6,)),
    (",ij->ji", (), (3, 4)),
    ("ii,ij->j", (4, 4), (4, 5)),
    ("iij,jkk->ik", (3, 3, 4), (4, 2, 2)),
    ("ijk,k->", (3, 4, 5), (5,)),
    ("ij,k->", (2, 2), (2,)),
    ("ij,j->", (3, 4), (4,)),
    ("...ij,...jk", (2, 3, 4), (4, 5)),
    ("...ij,...jk->k...i", (2, 3, 4), (1, 4, 5)),
    ("i...,i...->...", (3, 2, 4), (3, 4)),
    ("ij,jk->ik", (3, 1), (4, 5)),
    ("ij,ij->i", (3, 4), (1, 4)),
    ("ij,jk->ik", (3, 0), (0, 4)),
    ("ij,jk->ik", (0, 3), (3, 4)),
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("subscripts", "left", "right"), CASES)
def test_einsum_of_two_has_the_shape_and_dtype_of_numpy(subscripts, left, right, dtype):
    rng = np.random.default_rng(1)
    # exact in any order
    a, b = (rng.integers(-8, 9, s).astype(dtype) for s in (left, right))
    expected = np.einsum(subscripts, a, b)
    for accuracy in (None, 1e-3):
        made = hnp.einsum(subscripts, a, b, accuracy=accuracy)
        assert (made.dtype, np.shape(made)) == (expected.dtype, np.shape(expected))
        np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize(("subscripts", "left", "right"), CASES)
def test_einsum_of_two_is_correctly_rounded(subscripts, left, right):
    rng = np.random.default_rng(2)
    a, b = hostile(rng, left, np.float64), hostile(rng, right, np.float64)
    made, report = hnp.einsum(subscripts, a, b, accuracy="correct", return_report=True)
    assert report.correct
    np.testing.assert_array_equal(made, exact_einsum(subscripts, a, b))


@pytest.mark.parametrize(
    ("subscripts", "shape"),
    [("ij->", (5, 7)), ("ijk->j", (3, 4, 5)), ("ii", (6, 6)), ("iij->j", (4, 4, 3))],
)
def test_sums_of_one_operand_are_correctly_rounded(subscripts, shape):
    a = hostile(np.random.default_rng(3), shape, np.float64)
    np.testing.assert_array_equal(
        hnp.einsum(subscripts, a, accuracy="correct"), exact_einsum(subscripts, a)
    )


def test_nothing_summed_is_a_view():
    a = np.arange(9.0).reshape(3, 3)
    made, report = hnp.einsum("ii->i", a, accuracy="correct", return_report=True)
    assert np.shares_memory(made, a)
    assert (report.reports, report.bound) == ((), 0.0)
    assert np.shares_memory(hnp.einsum("ij->ji", a), a)


@given(data=st.data())
def test_random_contractions(data):
    lengths = dict(
        zip("abcde", data.draw(st.lists(st.integers(0, 3), min_size=5, max_size=5)))
    )
    terms = [
        data.draw(st.text("abcde", max_size=4))
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    used = sorted(set("".join(terms)))
    output = data.draw(st.permutations(used))[: data.draw(st.integers(0, len(used)))]
    subscripts = ",".join(terms) + "->" + "".join(output)
    operands = [
        np.arange(
            math.prod(s := tuple(lengths[x] for x in term)), dtype=np.float64
        ).reshape(s)
        - 2
        for term in terms
    ]
    expected = np.einsum(subscripts, *operands)
    made, report = hnp.einsum(subscripts, *operands, return_report=True)
    assert np.shape(made) == np.shape(expected)
    np.testing.assert_array_equal(made, expected)
    assert report.bound < 1e-11


def test_labels_of_one_operand_alone():
    """Within the limit of copies they are summed in one product, beyond it by a product
    with ones before.
    """
    rng = np.random.default_rng(7)
    a, b = hostile(rng, (8, 9), np.float64), hostile(rng, (9, 40), np.float64)
    small, large = b[:, :1], b
    _, report = hnp.einsum("ij,jk->k", a, small, accuracy="correct", return_report=True)
    assert report.correct
    with pytest.raises(
        hg.PlanError,
        match=r"one product.* 8 x 1 entries .* copies of 2880 entries .* of 472",
    ):
        hnp.einsum("ij,jk->k", a, large, accuracy="correct")
    with pytest.raises(
        hg.PlanError, match=r"Relative\(r=1e-12\) is promised for one product"
    ):
        hnp.einsum("ij,jk->k", a, large, accuracy=hg.Relative(1e-12))
    assert MOST_COPIES * (8 * 9 + 9 * 40 + 40) < 8 * 9 * 40
    made, report = hnp.einsum("ij,jk->k", a, large, accuracy=2e-16, return_report=True)
    assert len(report.reports) == 2
    assert report.bound <= 2e-16 + 2.0**-53
    with pytest.raises(hg.PlanError, match="accuracy=1e-17: a sum over 8 x 1"):
        hnp.einsum("ij,jk->k", a, large, accuracy=1e-17)
    # |A||B| of the sum over i and j
    assert meets_promise(
        made[None], a.reshape(1, -1), np.tile(b, (8, 1)), report.bound
    ).all()


def test_labels_of_one_operand_are_summed_in_the_dtype_of_the_result():
    """Whether a product with ones sums them first or not."""
    b = np.ones((300, 40))
    for rows in (3, 200):
        for a, value in (
            (np.ones((rows, 300), bool), 1),
            (np.full((rows, 300), 200, np.uint8), 200),
        ):
            c, report = hnp.einsum("ij,jk->k", a, b, accuracy=1e-12, return_report=True)
            np.testing.assert_allclose(c, np.full(40, 300.0 * rows * value), rtol=1e-12)
            assert report.bound < 1e-12
    rng = np.random.default_rng(3)
    a = rng.random((200, 300), np.float32)
    want = hnp.einsum("ij,jk->k", a.astype(np.float64), b)
    np.testing.assert_allclose(
        hnp.einsum("ij,jk->k", a, b, accuracy=1e-12), want, rtol=1e-12
    )


def test_chains_of_several_dtypes_are_in_the_one_that_they_promote_to():
    x, u, t = np.array([1.0, 2.0, 3.0]), np.full(3, 200, np.uint8), np.ones(3, bool)
    for first in (t, u, x.astype(np.float32)):
        np.testing.assert_array_equal(
            hnp.einsum("i,j,k->k", first, first, x),
            np.einsum("i,j,k->k", first, first, x),
        )
    large = np.full((1, 1), 3e38, np.float32)
    assert (
        hnp.einsum("ij,jk,kl->il", large, large, np.eye(1))[0, 0]
        == np.float64(large[0, 0]) ** 2
    )
    with pytest.raises(ValueError, match="not exact in float64"):
        hnp.einsum("i,j,k->k", np.array([2**53 + 1]), x, x)


def test_nothing_to_sum_is_zero_however_long_it_is():
    for options in ({}, {"accuracy": "correct"}):
        assert hnp.einsum("ij->i", np.ones((0, 9)), **options).shape == (0,)
        assert hnp.einsum("ij,k->i", np.ones((0, 9)), np.ones(9), **options).shape == (
            0,
        )
        np.testing.assert_array_equal(
            hnp.einsum("ij->i", np.ones((9, 0)), **options), np.zeros(9)
        )


def test_orders_that_are_equal_keys_stay_what_they_are():
    a, b, c = np.ones((2, 3)), np.ones((3, 4)), np.ones((4, 5))
    want = np.full((2, 5), 12.0)
    path = ["einsum_path", (1, 2), (0, 1)]
    for optimize in (True, False, "optimal", ("greedy", 100), path, tuple(path)):
        for _ in range(2):
            found = hnp.einsum("ij,jk,kl->il", a, b, c, optimize=optimize)
            np.testing.assert_array_equal(found, want)
    # NumPy takes no numbers for orders.
    for optimize in (1, 0):
        with pytest.raises(TypeError):
            hnp.einsum("ij,jk,kl->il", a, b, c, optimize=optimize)


@pytest.fixture
def made(monkeypatch):
    """Of each product the shapes of its operands, and how many of the results before are
    still held.
    """
    products = []
    results = []
    multiply = Products.__call__

    def observed(self, a, b, arranged=None):
        products.append(((a.shape, b.shape), sum(x() is not None for x in results)))
        value = multiply(self, a, b, arranged)
        results.append(weakref.ref(value))
        return value

    monkeypatch.setattr(Products, "__call__", observed)
    return products


def test_an_order_that_is_a_list_is_followed(made):
    a, b, c = np.ones((2, 3)), np.ones((3, 4)), np.ones((4, 5))
    for path in ((0, 1), (0, 1)), ((1, 2), (0, 1)):
        for _ in range(2):
            hnp.einsum("ij,jk,kl->il", a, b, c, optimize=["einsum_path", *path])
    from_left = [((2, 3), (3, 4)), ((5, 4), (4, 2))]
    from_right = [((3, 4), (4, 5)), ((2, 3), (3, 5))]
    assert [shapes for shapes, _ in made] == from_left * 2 + from_right * 2


@pytest.mark.parametrize(
    ("path", "num_held"),
    [
        # Each product is the last term, and taken next.
        ([(0, 1), (0, 4), (0, 3), (0, 2), (0, 1)], [0, 1, 1, 1, 1]),
        # Products of operands, then of these products.
        ([(0, 1)] * 5, [0, 1, 2, 3, 2]),
    ],
)
def test_intermediate_results_are_dropped_once_they_are_multiplied(
    path, num_held, made
):
    operands = [np.ones((4, 4)) for _ in range(6)]
    for _ in range(2):
        made.clear()
        hnp.einsum("ab,bc,cd,de,ef,fg->ag", *operands, optimize=["einsum_path", *path])
        assert [held for _, held in made] == num_held
