"""The products behind one call: options, and reports that bound the whole."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hifigemm as hg
import hifigemm.numpy as hnp
from hifigemm.functions.products import BlocksReport, ChainReport, Products

CALLS_WITHOUT_PRODUCTS = {
    "einsum": lambda **options: hnp.einsum("ij->ji", np.ones((2, 2)), **options),
    "power 0": lambda **options: hnp.matrix_power(np.ones((2, 2)), 0, **options),
    "power 1": lambda **options: hnp.matrix_power(np.ones((2, 2)), 1, **options),
    "empty": lambda **options: hnp.dot(np.ones((0, 2)), np.ones((2, 2)), **options),
    "integers": lambda **options: hnp.dot(
        np.ones((1, 2), int), np.ones((2, 2), int), **options
    ),
}


@pytest.mark.parametrize(
    "call", CALLS_WITHOUT_PRODUCTS.values(), ids=CALLS_WITHOUT_PRODUCTS
)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accuracy", "fp65"),
        ("accuracy", -1.0),
        ("scheme", "ozaki3"),
        ("engine", "abacus"),
        ("engine", 3),
    ]
    + [("workspace", x) for x in ("all", 0, True)],
)
def test_options_are_checked_where_no_product_is_made(call, name, value):
    with pytest.raises(hg.PlanError, match=rf"{name}={value!r}"):
        call(**{name: value})


@pytest.mark.parametrize(
    "accuracy", ["correct", 0.0, hg.Relative(1e-12), hg.Relative(1.2e-16)], ids=str
)
def test_a_correct_or_relative_chain_is_refused_with_its_number_of_products(accuracy):
    a = np.ones((2, 2))
    for call, words in (
        (
            lambda: hnp.multi_dot([a] * 4, accuracy=accuracy),
            "multi_dot of 4 arrays takes 3",
        ),
        (
            lambda: hnp.einsum("ij,jk,kl", a, a, a, accuracy=accuracy),
            "3 operands takes 2.*the 1 intermediate",
        ),
        (lambda: hnp.matrix_power(a, 7, accuracy=accuracy), "the power 7 takes 4"),
        (lambda: hnp.matrix_power(a, 3, accuracy=accuracy), "the power 3 takes 2"),
    ):
        with pytest.raises(hg.PlanError, match=words):
            call()
    for value in (
        hnp.multi_dot([a, a], accuracy=accuracy),
        hnp.einsum("ij,jk", a, a, accuracy=accuracy),
        hnp.matrix_power(a, 2, accuracy=accuracy),
    ):
        np.testing.assert_array_equal(value, 2 * a)


def test_an_array_is_no_accuracy():
    with pytest.raises(
        hg.PlanError, match=r"accuracy=array\(\[1\., 2\.\]\): expected None, a number"
    ):
        hnp.multi_dot([np.eye(2)] * 3, accuracy=np.array([1.0, 2.0]))


def report_of(bound):
    """What a chain reads of a report."""
    return SimpleNamespace(bound=bound)


factors = st.tuples(
    st.floats(0.0, 1e3), st.sampled_from([0.0, 2.0**-53, 2.0**-24]), st.integers(0, 9)
)


@given(st.lists(factors, max_size=5))
def test_the_bound_of_a_chain_is_the_product_of_its_factors_or_a_little_more(chain):
    bounds, roundoffs, uses = zip(*chain, strict=True) if chain else ((), (), ())
    exact = Fraction(1)
    for bound, u, n in chain:
        exact *= (1 + Fraction(bound) + Fraction(u)) ** n
    report = ChainReport(tuple(map(report_of, bounds)), roundoffs, uses)
    if not chain:
        assert report.bound == 0.0
    assert Fraction(report.bound) >= exact - 1
    # each of the logarithms, and their sum, errs by a few units of the last place
    assert Fraction(report.bound) <= (exact - 1) + exact * Fraction(1, 2**40)


def test_a_large_bound_of_a_chain_is_not_rounded_below_its_factors():
    """Where the sum of logarithms is large, so is its error in the exponential."""
    report = ChainReport((report_of(56.0), report_of(57.0)), (0.0, 0.0), (2, 5))
    assert Fraction(report.bound) >= 57**2 * 58**5 - 1


def test_a_bound_beyond_all_numbers_is_infinite():
    assert ChainReport((report_of(1e300),), (0.0,), (9,)).bound == math.inf
    assert ChainReport((report_of(math.inf),), (0.0,), (1,)).bound == math.inf


def test_blocks_keep_the_largest_bound_and_are_correct_where_all_are():
    a, b = np.ones((3, 4)), np.ones((4, 2))
    reports = [
        hg.matmul(a, b, accuracy=accuracy, return_report=True)[1]
        for accuracy in ("correct", 1e-3)
    ]
    both = BlocksReport(tuple(reports))
    assert both.bound == max(x.bound for x in reports)
    assert both.correct == all(x.correct for x in reports)
    assert BlocksReport((reports[0],) * 2).correct
    lines = str(both).splitlines()
    assert lines[0].startswith("BlocksReport: 2 blocks")
    assert [line.split()[0] for line in lines[1:]] == ["0", "1"]


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_a_product_with_the_transpose_is_mirrored(dtype, conjugate):
    rng = np.random.default_rng(1)
    a = rng.standard_normal((5, 7)).astype(dtype)
    if dtype == np.complex128:
        a += 1j * rng.standard_normal((5, 7))
    b = a.conj().T if conjugate else a.T
    products = Products("correct", "auto", None, None, return_report=True)
    value = products.with_transpose(a, b, conjugate)
    whole = hg.matmul(a, b, accuracy="correct")
    np.testing.assert_array_equal(np.tril(value), np.tril(whole))
    np.testing.assert_array_equal(value, value.conj().T if conjugate else value.T)
    assert products.count == len(products.reports) == len(products.roundoffs) == 1
    assert products.roundoffs == [2.0**-53]


def test_one_product_has_its_own_report_and_several_have_one_together():
    a = np.eye(3)
    products = Products(None, "auto", None, None, return_report=True)
    first = products(a, a)
    _, report = products.chain(first, None)
    assert report is products.reports[0]
    second = products(first, a)
    _, report = products.chain(second, None, [2, 1])
    assert isinstance(report, ChainReport)
    assert report.uses == (2, 1)
    _, report = products.blocks(second, None)
    assert isinstance(report, BlocksReport)


def test_a_value_that_shares_memory_with_out_is_written_whole():
    memory = np.arange(6.0)
    products = Products(None, "auto", None, None, return_report=False)
    value, out = memory[:4].reshape(2, 2), memory[2:].reshape(2, 2)
    want = value.copy()
    assert products.blocks(value, out) is out
    np.testing.assert_array_equal(out, want)


def test_without_a_report_none_is_kept():
    products = Products("correct", "auto", None, None, return_report=False)
    value = products(np.ones((1, 3)), np.ones((3, 1)))
    assert value == 3.0
    assert (products.count, products.reports) == (1, [])
    number = products.chain(np.array(3.0), None)
    assert isinstance(number, np.float64)
