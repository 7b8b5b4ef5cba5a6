"""Contractions by shapes alone: views where there are any, and kept for later calls."""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.base.store import forget
from hifigemm.functions.arrangement import (
    MOST_COPIES,
    Arrangement,
    Contraction,
    by_shapes,
)
from hifigemm.functions.products import Products


@pytest.fixture(autouse=True)
def nothing_kept():
    forget()
    yield
    forget()


def contraction(subscripts, *shapes):
    """The contraction of two operands of these shapes."""
    inputs, labels_out = subscripts.split("->")
    terms = inputs.split(",")
    lengths = [dict(zip(term, shape)) for term, shape in zip(terms, shapes)]
    return Contraction.of(*lengths, tuple(labels_out))


AS_THEY_ARE = Arrangement(None, None, None, None)


def test_matrices_and_stacks_are_multiplied_as_they_are():
    for subscripts, shapes in (
        ("ij,jk->ik", ((3, 4), (4, 5))),
        ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))),
    ):
        found = contraction(subscripts, *shapes)
        assert found.left == found.right == AS_THEY_ARE
        assert found.shape is found.order is None


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("ij,jk->ik", ((3, 4), (4, 5))),
        ("ij,kj->ki", ((3, 4), (5, 4))),
        ("bij,bkj->kbi", ((2, 3, 4), (2, 5, 4))),
        ("i,j->ij", ((3,), (4,))),
        ("xyk,k->yx", ((2, 3, 4), (4,))),
    ],
)
def test_stacks_are_views_of_the_operands(subscripts, shapes):
    found = contraction(subscripts, *shapes)
    for arrangement, shape in zip((found.left, found.right), shapes):
        x = np.arange(float(np.prod(shape))).reshape(shape)
        assert np.shares_memory(arrangement.apply(x), x)


@pytest.mark.parametrize(
    ("subscripts", "shapes", "num_products"),
    [
        ("ij,jk->ik", ((3, 4), (4, 5)), 1),
        # Lengths of 1 broadcast.
        ("ij,jk->ik", ((3, 1), (4, 5)), 1),
        ("ij,ij->i", ((3, 4), (1, 4)), 1),
        # Labels of one operand alone are summed with the others, or beforehand.
        ("ij,jk->k", ((2, 3), (3, 4)), 1),
        ("ij,jk->k", ((20, 3), (3, 40)), 2),
        ("ij,kl->jl", ((30, 9), (20, 40)), 3),
        ("ij,kl->jl", ((30, 1), (20, 1)), 3),
        ("xij,xkl->", ((1, 30, 9), (2, 20, 40)), 3),
    ],
)
def test_products_are_the_sums_of_numpy(subscripts, shapes, num_products):
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-8, 9, shape).astype(float) for shape in shapes)
    found = contraction(subscripts, *shapes)
    products = Products("correct", "auto", None, None, return_report=False)
    value = found.apply(products, a, b)
    np.testing.assert_array_equal(value, np.einsum(subscripts, a, b))
    assert products.count == found.num_products == num_products
    assert bool(found.why_several) == (num_products > 1)
    assert list(found.lengths_out.values()) == list(value.shape)


def test_labels_are_summed_beforehand_where_copies_take_more_than_they_may():
    def num_products(n):
        return contraction("ij,jk->k", (n, 9), (9, 40)).num_products

    # n copies of B, beside A, B and the result.
    largest = next(n for n in range(100) if num_products(n) > 1) - 1
    assert largest * 9 * 40 <= MOST_COPIES * (largest * 9 + 9 * 40 + 40)
    assert (largest + 1) * 9 * 40 > MOST_COPIES * ((largest + 1) * 9 + 9 * 40 + 40)


def test_what_follows_from_shapes_is_found_once():
    calls = []

    def total(shape, more):
        calls.append(shape)
        return sum(shape) + more

    assert [by_shapes(total, (2, 3), 1) for _ in range(3)] == [6, 6, 6]
    assert by_shapes(total, (2, 3), 2) == 7
    assert calls == [(2, 3), (2, 3)]


def test_lengths_without_a_hash_are_found_in_each_call():
    """As those are that PyTorch leaves open."""
    calls = []

    def total(shape):
        calls.append(shape)
        return sum(shape)

    assert [by_shapes(total, [2, 3]) for _ in range(2)] == [5, 5]
    assert len(calls) == 2


def test_errors_are_raised_in_each_call():
    def fail(shape):
        raise ValueError(f"{shape}")

    for _ in range(2):
        with pytest.raises(ValueError, match="3"):
            by_shapes(fail, (3,))
