"""Products of three factors, rounded once."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hifigemm as hg
import hifigemm.numpy as hnp
from hifigemm.engines import core
from hifigemm.functions import three_factors
from hifigemm.functions.three_factors import (
    ThreeFactors,
    chain_of_three,
    product_of_three,
)
from tests.exact_values import same_bits
from tests.fuzz.three_factors import rounded_product

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)


def random(shape, dtype=np.float64, seed=0):
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape) * np.exp(4 * rng.standard_normal(shape))
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


numbers = st.one_of(
    st.floats(-10, 10, width=64),
    st.integers(-3, 3).map(float),
    st.floats(allow_nan=False, allow_infinity=False),
)


@st.composite
def factors(draw):
    """Three matrices that fit, of any finite numbers."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=4, max_size=4))
    matrices = []
    for m, n in pairwise(sizes):
        entries = draw(st.lists(numbers, min_size=m * n, max_size=m * n))
        matrices.append(np.array(entries).reshape(m, n))
    return matrices


@given(matrices=factors(), dtype=st.sampled_from([np.float32, np.float64]))
def test_results_are_the_exact_values_rounded_once(matrices, dtype):
    with np.errstate(over="ignore"):
        matrices = [
            np.nan_to_num(x.astype(dtype), posinf=1.0, neginf=1.0) for x in matrices
        ]
    value = hnp.multi_dot(matrices, accuracy="correct")
    assert same_bits(value, rounded_product(*matrices))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_larger_product_is_rounded_once(dtype):
    a, b, c = (random(s, dtype) for s in ((20, 37), (37, 150), (150, 9)))
    value, report = hnp.multi_dot([a, b, c], accuracy="correct", return_report=True)
    assert report.correct
    assert report.bound == 0.0
    assert str(report).startswith(f"ThreeFactorsReport: {value.size} entries")
    rows = [0, 11]
    assert same_bits(value[rows], rounded_product(a[rows], b, c))


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_the_order(dtype):
    a, b, c = (random(s, dtype) for s in ((3, 40), (40, 2), (2, 30)))
    from_left, _ = product_of_three(ThreeFactors(a, b, c))
    from_right, _ = product_of_three(ThreeFactors(c.mT, b.mT, a.mT, None, True))
    assert same_bits(from_left, from_right)
    assert same_bits(from_left, hnp.multi_dot([a, b, c], accuracy="correct"))
    for path in ((0, 1), (1, 2), (0, 2)):
        value = hnp.einsum(
            "ij,jk,kl->il",
            a,
            b,
            c,
            accuracy="correct",
            optimize=["einsum_path", path, (0, 1)],
        )
        assert same_bits(from_left, value), path


@pytest.mark.skipif(core.loaded()[0] is None, reason="the core is not built")
@pytest.mark.parametrize("is_second", [False, True])
def test_sums_in_two_words_count_what_they_err_by(monkeypatch, is_second):
    # Just below a tie, and above it with a last term that pairs leave out
    monkeypatch.setattr(three_factors, "_FEW_TERMS", 0)
    share = {3: 2.0**-70, 1: 0.0}
    monkeypatch.setattr(core, "error_of_close_sums", share.__getitem__)

    def without_last_term(x, y):
        high = x[..., :1] @ y[..., :1, :]
        low = x[..., 1:2] @ y[..., 1:2, :] if x.shape[2] > 1 else 0.0 * high
        return high, low

    monkeypatch.setattr(core, "close_pair", without_last_term)
    row = np.array([[1.0, 2.0**-53 * (1.0 - 2.0**-20), 2.0**-71]])
    column = np.array([[1.0 + 2.0**-52], [1.0], [1.0]])
    one = np.eye(1)
    factors = (
        ThreeFactors(one, row, column) if is_second else ThreeFactors(row, column, one)
    )
    value, report = product_of_three(factors)
    assert report.in_more_words == 1
    assert value.tolist() == [[1.0 + 2.0**-51]]


@pytest.mark.parametrize("shape", [(3, 70, 80, 5), (70, 70, 70, 70)])
def test_products_of_many_terms_are_rounded_once(shape):
    m, k, h, n = shape
    rng = np.random.default_rng(4)
    normal = [rng.standard_normal(s) for s in ((m, k), (k, h), (h, n))]
    integers = [np.rint(0.5 * x) for x in normal]
    zeros = [np.where(rng.random(x.shape) < 0.9, 0.0, x) for x in normal]
    zeros[0][0] = 0.0
    for a, b, c in (normal, integers, zeros):
        value, report = hnp.multi_dot([a, b, c], accuracy="correct", return_report=True)
        assert report.by_integers == 0
        rows = [0, m - 1]
        assert same_bits(value[rows], rounded_product(a[rows], b, c))
    # Integers are numbers of float64 in between, and zeros are settled at once
    assert (
        hnp.multi_dot(integers, accuracy="correct", return_report=True)[1].in_more_words
        == 0
    )


def test_the_cheaper_order_is_taken():
    wide, tall = np.ones((2, 50)), np.ones((50, 2))
    assert not chain_of_three(wide, tall, wide).is_transposed
    assert chain_of_three(tall, wide, tall).is_transposed


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("ij,jk,kl->li", ((3, 4), (4, 5), (5, 2))),
        ("zij,zjk,zkl->zil", ((2, 3, 4), (2, 4, 5), (2, 5, 2))),
        ("zij,jk,zkl->lzi", ((2, 3, 4), (4, 5), (2, 5, 2))),
        ("ij,ij,j->i", ((3, 4), (3, 4), (4,))),
        ("i,ij,j->", ((3,), (3, 4), (4,))),
        ("iij,jk,kk->k", ((3, 3, 4), (4, 5), (5, 5))),
        ("ij,kl,jl->ik", ((3, 4), (2, 5), (4, 5))),
        ("abc,bd,ce->ade", ((2, 3, 4), (3, 2), (4, 3))),
    ],
)
def test_all_sums_over_three_operands_are_rounded_once(subscripts, shapes):
    rng = np.random.default_rng(1)
    # Integers of 30 bits: all sums are integers that NumPy adds exactly as objects.
    operands = [rng.integers(-(2**30), 2**30, shape) for shape in shapes]
    exact = np.einsum(subscripts, *[x.astype(object) for x in operands])
    value = hnp.einsum(
        subscripts, *[x.astype(float) for x in operands], accuracy="correct"
    )
    np.testing.assert_array_equal(value, np.asarray(exact).astype(float))


def test_stacks_of_powers():
    x = random((2, 3, 4, 4))
    value = hnp.matrix_power(x, 3, accuracy="correct")
    for index in np.ndindex(2, 3):
        assert same_bits(value[index], rounded_product(*[x[index]] * 3))


def test_vectors_at_the_ends():
    v, b, w = random((3,)), random((3, 4)), random((4,))
    value = hnp.multi_dot([v, b, w], accuracy="correct")
    assert isinstance(value, float)
    assert value == rounded_product(v[None], b, w[:, None])[0, 0]
    assert hnp.multi_dot([v, b, w[:, None]], accuracy="correct").shape == (1,)


def test_dtypes_promote_together():
    a, b, c = random((2, 3), np.float32), random((3, 4), np.float16), random((4, 2))
    value = hnp.multi_dot([a, b, c], accuracy="correct")
    assert same_bits(value, rounded_product(a, b, c))
    value = hnp.multi_dot(
        [a, b, a.astype(np.complex64)[:, :2].T.repeat(2, 0)[:4]], accuracy=0
    )
    assert value.dtype == np.complex64


@pytest.mark.parametrize("size", [0, 1])
def test_empty_sums_are_zeros(size):
    for sizes in ((2, 0, size, 3), (2, size, 0, 3), (0, 2, 2, size)):
        matrices = [np.ones(s) for s in pairwise(sizes)]
        value = hnp.multi_dot(matrices, accuracy="correct")
        assert same_bits(value, np.zeros((sizes[0], sizes[3])))


def test_integers_that_need_all_bits_are_settled_without_integers_of_python():
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-(2**50), 2**50, (8, 8)).astype(float) for _ in range(3))
    # D has ties and zeros: two equal rows of C with both signs.
    c[4:] = -c[:4]
    b[:, 4:] = b[:, :4]
    value, report = hnp.multi_dot([a, b, c], accuracy="correct", return_report=True)
    assert (value == 0).all()
    assert report.in_more_words == value.size
    assert report.by_integers == 0


def test_exponents_of_the_whole_range_are_settled_by_integers():
    a = np.array([[2.0**1000, 2.0**-1000]])
    b = np.array([[2.0**1000, 1.0], [2.0**-1000, 1.0]])
    c = np.array([[2.0**-1000], [-(2.0**1000)]])
    value, report = hnp.multi_dot([a, b, c], accuracy="correct", return_report=True)
    assert report.by_integers == 1
    assert same_bits(value, rounded_product(a, b, c))


def test_intermediate_results_do_not_overflow():
    big = np.full((3, 3), 1e200)
    value, report = hnp.multi_dot(
        [big, big, 1e-300 * np.eye(3)], accuracy="correct", return_report=True
    )
    assert same_bits(value, rounded_product(big, big, 1e-300 * np.eye(3)))
    assert report.by_integers == 0
    assert np.isinf(hnp.multi_dot([big, big, big], accuracy="correct")).all()


def test_inf_and_nan_go_where_the_order_from_the_left_puts_them():
    a = np.array([[np.inf]])
    b = np.array([[1.0, 1.0]])
    c = np.array([[1.0], [-0.5]])
    # (A B) C = Inf - Inf, though A (B C) = Inf.
    value = hnp.multi_dot([a, b, c], accuracy="correct")
    assert np.isnan(value).all()
    tall = np.vstack([a, [[1.0]], [[0.0]]])
    value = hnp.multi_dot([tall, b, c], accuracy="correct")
    np.testing.assert_array_equal(value, [[np.nan], [0.5], [0.0]])


def test_every_request_beyond_the_roundings_in_between_is_kept():
    a, b, c = random((2, 3)), random((3, 4)), random((4, 2))
    expected = rounded_product(a, b, c)
    for accuracy in ("correct", 0, 0.0, 1e-16, 1e-40, hg.Relative(2.0**-53)):
        value = hnp.multi_dot([a, b, c], accuracy=accuracy)
        assert same_bits(value, expected), accuracy
    # Others are kept by a chain.
    report = hnp.multi_dot([a, b, c], accuracy=1e-15, return_report=True)[1]
    assert isinstance(report, hnp.ChainReport)


def test_relative_errors_below_the_rounding_raise():
    a = np.ones((2, 2))
    with pytest.raises(hg.PlanError, match=r"Relative\(1e-17\): rounding to fp64"):
        hnp.multi_dot([a, a, a], accuracy=hg.Relative(1e-17))


def test_out_and_workspace():
    a, b, c = random((2, 3)), random((3, 4)), random((4, 2))
    out = np.empty((2, 2))
    value = hnp.multi_dot([a, b, c], accuracy="correct", out=out, workspace=2**20)
    assert value is out
    assert same_bits(out, rounded_product(a, b, c))


def test_exact_fractions_are_taken_if_float64_holds_them():
    x = np.array([[Fraction(1, 4), Fraction(3)], [Fraction(5), Fraction(-7, 8)]])
    expected = (x @ x @ x).astype(float)
    np.testing.assert_array_equal(
        hnp.multi_dot([x, x, x], accuracy="correct"), expected
    )
    x[0, 0] = Fraction(1, 3)
    with pytest.raises(ValueError, match="no number of float64"):
        hnp.multi_dot([x, x, x], accuracy="correct")


@pytest.mark.torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_have_the_bits_of_arrays(torch, dtype):
    arrays = [random(s, dtype) for s in ((3, 40), (40, 2), (2, 30))]
    tensors = [torch.from_numpy(x) for x in arrays]
    for call in (
        lambda x: hnp.multi_dot(x, accuracy="correct"),
        lambda x: hnp.einsum("ij,jk,kl->li", *x, accuracy=hg.Relative(1e-6)),
        lambda x: hnp.matrix_power(x[0][:3, :3], 3, accuracy="correct"),
        lambda x: hnp.congruence(x[1], x[1] @ x[1].mT, accuracy="correct"),
    ):
        value = call(tensors)
        assert isinstance(value, torch.Tensor)
        assert same_bits(value.numpy(), np.ascontiguousarray(call(arrays)))


@pytest.mark.torch
def test_tensors_that_are_differentiated_are_refused(torch):
    x = torch.eye(3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(TypeError, match="requires a gradient, which would be lost"):
        hnp.multi_dot([x, x, x], accuracy="correct")
    value = hnp.multi_dot([x, x, x], accuracy=1e-15)
    assert value.requires_grad
