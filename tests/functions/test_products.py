"""The products behind one call: options, and reports that bound the whole."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hifigemm as hg
import hifigemm.numpy as hnp
from hifigemm.base.store import forget
from hifigemm.functions.arrangement import Contraction
from hifigemm.functions.products import BlocksReport, Chain, ChainReport, Products
from tests.kinds_of_calls import as_first_call, kept_call

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
            lambda: hnp.einsum("ij,jk,kl,lm", a, a, a, a, accuracy=accuracy),
            "4 operands takes 3.*the 2 intermediate.*Longer chains",
        ),
        (lambda: hnp.matrix_power(a, 7, accuracy=accuracy), "the power 7 takes 4"),
        (lambda: hnp.matrix_power(a, 4, accuracy=accuracy), "the power 4 takes 2"),
        (
            lambda: hnp.multi_dot([a] * 3, accuracy=accuracy, scheme="ozaki1"),
            "with the default scheme, and multi_dot of 3 arrays takes 2",
        ),
        (
            lambda: hnp.congruence(a, a, accuracy=accuracy, engine="numpy"),
            "a congruence takes 2",
        ),
    ):
        with pytest.raises(hg.PlanError, match=words):
            call()
    for power, value in (
        (2, hnp.multi_dot([a, a], accuracy=accuracy)),
        (2, hnp.einsum("ij,jk", a, a, accuracy=accuracy)),
        (2, hnp.matrix_power(a, 2, accuracy=accuracy)),
        (3, hnp.multi_dot([a, a, a], accuracy=accuracy)),
        (3, hnp.einsum("ij,jk,kl", a, a, a, accuracy=accuracy)),
        (3, hnp.matrix_power(a, 3, accuracy=accuracy)),
        (3, hnp.congruence(a, a, accuracy=accuracy)),
    ):
        np.testing.assert_array_equal(value, 2 ** (power - 1) * a)


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


@st.composite
def chains(draw):
    """Roundoffs and uses of the products of a chain."""
    count = draw(st.integers(2, 8))
    roundoff = st.sampled_from([0.0, 2.0**-53, 2.0**-24])
    roundoffs = draw(st.lists(roundoff, min_size=count, max_size=count))
    uses = draw(st.lists(st.integers(1, 99), min_size=count - 1, max_size=count - 1))
    # dtypes promote, so that the last product has the least of the roundoffs.
    roundoffs[-1] = min((u for u in roundoffs if u), default=0.0)
    return Chain("this", tuple(roundoffs), (*uses, 1))


@given(chain=chains(), factor=st.floats(1.0, 1e12), near=st.booleans())
def test_a_share_is_kept_by_the_whole_chain(chain, factor, near):
    if not chain.rounds_between:
        return
    u = chain.roundoffs[-1]

    def excess(s):
        """(1 + s + u_1)**uses_1 ... - 1 - u, exactly; exact products err by nothing."""
        growth = Fraction(1)
        for u_i, n in zip(chain.roundoffs, chain.uses, strict=True):
            growth *= (1 + Fraction(u_i) + (Fraction(s) if u_i else 0)) ** n
        return growth - 1 - Fraction(u)

    least = excess(0.0)
    assert abs(Fraction(chain.least) - least) <= Fraction(2.0**-40) * (least + 1)
    r = chain.least * (1 + 1e-9) if near else chain.least * (factor + 1e-9)
    if r >= 1:
        return
    share = chain.share(r)
    assert share > 0
    assert excess(share) <= r
    # A share is as large as it can be, but for terms of second order.
    if not near and r < 1e-3:
        assert excess(share) >= r * 0.99
    assert chain.share(chain.least * (1 - 1e-9)) == 0.0


def test_chains_that_round_nothing_in_between_keep_every_accuracy():
    assert not Chain("this", (0.0, 0.0), (1, 1)).rounds_between
    assert not Chain("this", (0.0, 2.0**-53), (1, 1)).rounds_between
    assert Chain("this", (2.0**-53, 0.0), (1, 1)).rounds_between
    a = np.array([[3, 1], [1, 2]])
    x = np.random.default_rng(0).standard_normal((2, 9))
    for accuracy in ("correct", 1e-25, hg.Relative(1e-12)):
        assert hnp.matrix_power(a, 5, accuracy=accuracy).tolist() == [
            [450, 275],
            [275, 175],
        ]
        found = hnp.multi_dot([a[:1], a, x], accuracy=accuracy)
        want = hnp.matmul(a[:1] @ a, x, accuracy=accuracy)
        np.testing.assert_array_equal(found, want)


def test_a_chain_of_more_factors_than_floats_count_raises():
    with pytest.raises(hg.PlanError, match="may add up to inf times"):
        hnp.matrix_power(np.eye(2), 10**400, accuracy=1e-3)
    assert Chain("this", (2.0**-53,) * 2, (10**400, 1)).least == math.inf


MIXED = (
    ("float64",) * 3,
    ("float32",) * 4,
    ("float32", "float32", "float64", "float64"),
    ("float64", "float32", "float32", "complex64"),
    ("float16", "float16", "float64"),
    ("int8", "int8", "float32", "float64"),
    ("complex128", "float64", "complex128"),
)


@pytest.mark.parametrize("dtypes", MIXED, ids="-".join)
@pytest.mark.parametrize("exponent", [-3, -6, -7, -9, -14, -15.5, -16, -20, -25])
def test_a_number_is_kept_by_the_chain_or_raises_with_the_least(dtypes, exponent):
    rng = np.random.default_rng(len(dtypes))
    accuracy = 10.0**exponent
    arrays = []
    for i, dtype in enumerate(dtypes):
        x = rng.standard_normal((3 + i % 2, 4 - i % 2)) * 2.0 ** rng.integers(-9, 9)
        x = x * 5 if dtype == "int8" else x
        arrays.append(np.clip(x, -9, 9).astype(dtype))
    subscripts = ",".join("abcdef"[i : i + 2] for i in range(len(arrays)))
    for call in (
        lambda r: hnp.multi_dot(arrays, accuracy=r, return_report=True),
        lambda r: hnp.einsum(subscripts, *arrays, accuracy=r, return_report=True),
    ):
        try:
            value, report = call(accuracy)
        except hg.PlanError as error:
            # What is advised is taken, and the least is more than what was asked.
            words = str(error)
            least = float(re.search(r"add up to (\S+) times", words)[1])
            advised = float(re.search(r"Ask for (\S+) or more", words)[1])
            assert accuracy < least * 1.01
            value, report = call(advised)
            accuracy_kept = advised
        else:
            accuracy_kept = accuracy
        u = float(np.finfo(value.dtype).eps) / 2
        assert report.bound <= accuracy_kept + u


# Repeated calls.

REPEATED = {
    "matmul": (hnp.matmul, ((3, 4), (4, 5))),
    "dot": (hnp.dot, ((3, 4), (2, 4, 5))),
    "dot of vectors": (hnp.dot, ((4,), (4,))),
    "inner": (hnp.inner, ((3, 4), (5, 4))),
    "outer": (hnp.outer, ((3, 2), (5,))),
    "vdot": (hnp.vdot, ((3, 2), (6,))),
    "vecdot": (hnp.vecdot, ((3, 4), (2, 3, 4))),
    "vecdot, axis 0": (lambda a, b, **o: hnp.vecdot(a, b, axis=0, **o), ((4, 3),) * 2),
    "matvec": (hnp.matvec, ((2, 3, 4), (4,))),
    "vecmat": (hnp.vecmat, ((3,), (3, 4))),
    "tensordot": (hnp.tensordot, ((2, 3, 4), (3, 4, 5))),
    "tensordot, axes": (
        lambda a, b, **o: hnp.tensordot(a, b, ([0, -1], [1, 0]), **o),
        ((2, 3, 4), (4, 2)),
    ),
    "einsum": (lambda *x, **o: hnp.einsum("ij,kj->ki", *x, **o), ((3, 4), (5, 4))),
    "einsum of stacks": (
        lambda *x, **o: hnp.einsum("bij,bjk->bik", *x, **o),
        ((2, 3, 4), (2, 4, 5)),
    ),
    "einsum of lists": (
        lambda a, b, **o: hnp.einsum(a, [0, 1], b, [1, 2], **o),
        ((3, 4), (4, 5)),
    ),
    "sum of the diagonal": (lambda a, **o: hnp.einsum("ii->", a, **o), ((4, 4),)),
    "syrk": (hnp.syrk, ((3, 4),)),
    "herk": (hnp.herk, ((3, 4),)),
    "power 2": (lambda a, **o: hnp.matrix_power(a, 2, **o), ((4, 4),)),
}
CHAINS = {
    "einsum of three": (
        lambda *x, **o: hnp.einsum("ij,jk,kl->il", *x, **o),
        ((3, 4), (4, 5), (5, 2)),
    ),
    "einsum in a given order": (
        lambda *x, **o: hnp.einsum(
            "ij,jk,kl->il", *x, optimize=["einsum_path", (0, 1), (0, 1)], **o
        ),
        ((3, 4), (4, 5), (5, 2)),
    ),
    "sums beforehand": (
        lambda *x, **o: hnp.einsum("ij,jk->k", *x, **o),
        ((20, 3), (3, 40)),
    ),
    "multi_dot": (lambda *x, **o: hnp.multi_dot(x, **o), ((3, 4), (4, 5), (5, 2))),
    "power 5": (lambda a, **o: hnp.matrix_power(a, 5, **o), ((4, 4),)),
}
CASES = [
    *((*case, {}) for case in (REPEATED | CHAINS).items()),
    *((*case, {"accuracy": "correct"}) for case in REPEATED.items()),
]


def operands_of(shapes, seed, dtype=np.float64):
    rng = np.random.default_rng([seed, *shapes[0]])
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def refuse(*_, **__):
    raise AssertionError("a repeated call has this from the call before")


@pytest.mark.parametrize(
    "library", ["numpy", pytest.param("torch", marks=pytest.mark.torch)]
)
@pytest.mark.parametrize(
    ("case", "options"), [x[1:] for x in CASES], ids=[x[0] for x in CASES]
)
def test_a_repeated_call_neither_plans_nor_looks_at_shapes(
    case, options, library, monkeypatch, request, assert_same_bits
):
    function, shapes = case

    def call(seed):
        given = operands_of(shapes, seed)
        if library == "torch":
            torch = request.getfixturevalue("torch")
            given = [torch.from_numpy(x) for x in given]
        return function(*given, **options)

    want = as_first_call(call, 1)
    forget()
    call(0)
    for name in (
        "hifigemm.running.products.admit",
        "hifigemm.functions.einsum.parse",
        "hifigemm.functions.chains.best_cuts",
    ):
        monkeypatch.setattr(name, refuse)
    monkeypatch.setattr(Contraction, "of", refuse)
    assert_same_bits(call(1), want)


def test_functions_that_are_one_product_of_matrices_run_what_matmul_has_kept(
    assert_same_bits,
):
    forget()
    a, b = operands_of(((3, 4), (4, 5)), 0)
    want = hg.matmul(a, b)
    call = kept_call()
    for found in (
        hnp.dot(a, b),
        hnp.inner(a, b.T),
        hnp.tensordot(a, b, 1),
        hnp.einsum("ij,jk->ik", a, b),
        hnp.einsum("ij,jk->ki", a, b).T,
        hnp.multi_dot([a, b]),
    ):
        assert_same_bits(found, want)
    assert kept_call() is call
