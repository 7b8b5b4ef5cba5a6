"""Subscripts of einsum become the labels that NumPy takes them for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hifigemm.numpy as hnp
from hifigemm.functions.subscripts import as_text, parse


@pytest.mark.parametrize("shape", [(0, 1), (1, 0), (1, 3), (3, 1)])
@pytest.mark.parametrize("subscripts", ["aa->a", "aa->"])
def test_diagonals_need_equal_lengths(subscripts, shape):
    """numpy.einsum reads what is not there for "aa->a" and (0, 1), and refuses all the
    others.
    """
    with pytest.raises(ValueError, match=f"lengths {shape[0]} and {shape[1]}"):
        hnp.einsum(subscripts, np.ones(shape))


def by_definition(labels, result, operands):
    """The sum over all values of all labels, an entry of the result at a time."""
    lengths = {}
    for own, x in zip(labels, operands, strict=True):
        for label, length in zip(own, x.shape, strict=True):
            lengths[label] = length if lengths.get(label, 1) == 1 else lengths[label]
    out = np.zeros([lengths[label] for label in result], np.int64)
    names = list(lengths)
    for index in np.ndindex(*lengths.values()):
        at = dict(zip(names, index, strict=True))
        term = 1
        for own, x in zip(labels, operands, strict=True):
            place = [
                at[label] if n > 1 else 0 for label, n in zip(own, x.shape, strict=True)
            ]
            term *= int(x[tuple(place)])
        out[tuple(at[label] for label in result)] += term
    return out


@st.composite
def calls(draw):
    """Subscripts with ellipses, with an output or without, and integers for them."""
    lengths = dict(zip("aBcdE", draw(st.permutations([1, 2, 2, 3, 3])), strict=True))
    dots = draw(st.lists(st.integers(1, 2), max_size=2))
    terms, operands = [], []
    for seed in range(draw(st.integers(1, 3))):
        letters = draw(st.text("aBcdE", max_size=3))
        shape = [lengths[x] for x in letters]
        if draw(st.booleans()):
            at = draw(st.integers(0, len(letters)))
            count = draw(st.integers(0, len(dots)))
            own = [n if draw(st.booleans()) else 1 for n in dots[len(dots) - count :]]
            letters = letters[:at] + "..." + letters[at:]
            shape[at:at] = own
        terms.append(letters)
        operands.append(np.random.default_rng(seed).integers(-4, 5, shape))
    text = ",".join(terms)
    if draw(st.booleans()):
        used = sorted(set(text) - {".", ","})
        output = "".join(draw(st.permutations(used)))[: draw(st.integers(0, 4))]
        text += "->" + ("..." if "..." in text else "") + output
    return text, operands


@given(calls())
def test_labels_mean_what_numpy_takes_the_subscripts_for(call):
    text, operands = call
    labels, result = parse(text, [x.shape for x in operands])
    want = np.einsum(text, *operands)
    np.testing.assert_array_equal(by_definition(labels, result, operands), want)


@given(st.lists(st.lists(st.integers(0, 51), max_size=3), min_size=1, max_size=3))
def test_lists_of_numbers_mean_what_numpy_takes_them_for(sublists):
    operands = [
        np.random.default_rng(i).integers(-4, 5, [2] * len(own))
        for i, own in enumerate(sublists)
    ]
    given = [x for pair in zip(operands, sublists, strict=True) for x in pair]
    text = as_text(sublists, len(operands))
    labels, result = parse(text, [x.shape for x in operands])
    want = np.einsum(*given)
    np.testing.assert_array_equal(by_definition(labels, result, operands), want)


def test_letters_without_an_output_come_in_the_order_of_numpy():
    labels, result = parse("bA,Az", [(2, 3), (3, 4)])
    assert labels == [("b", "A"), ("A", "z")]
    assert result == ("b", "z")
    assert parse("zB", [(1, 1)])[1] == ("B", "z")


def test_axes_of_an_ellipsis_end_together():
    labels, result = parse("...i,j...", [(5, 6, 2), (3, 6)])
    assert labels == [(-2, -1, "i"), ("j", -1)]
    assert result == (-2, -1, "i", "j")


@pytest.mark.parametrize(
    ("subscripts", "shapes", "error", "words"),
    [
        ("ij,jk", [(2, 3)], ValueError, "2 terms, for 1 operands"),
        ("ij", [(2,)], ValueError, "2 labels, its operand 1 axes"),
        ("i", [(2, 3)], ValueError, "1 labels, its operand 2 axes"),
        ("i->ii", [(2,)], ValueError, "the output has 'i' 2 times"),
        ("i->j", [(2,)], ValueError, "no operand has the label 'j'"),
        ("...->", [(2, 3)], ValueError, "lacks the ellipsis, of 2 axes"),
        ("i,i", [(2,), (3,)], ValueError, "length 3 in operand 1, 2 before"),
        ("i;", [(2,)], ValueError, "';' is not a label"),
        ([[0, 52]], [(2, 2)], ValueError, "52 is not within 0 to 51"),
        ([[True]], [(2,)], TypeError, "True is not a label"),
        (["ij"], [(2, 2)], TypeError, "'ij' is not a list of labels"),
    ],
)
def test_what_does_not_fit_is_named(subscripts, shapes, error, words):
    with pytest.raises(error, match=words):
        parse(as_text(subscripts, len(shapes)), shapes)
