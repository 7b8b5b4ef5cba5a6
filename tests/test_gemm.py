"""alpha op(A) op(B) + beta C against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines import core
from hifigemm.testing.reference import correctly_rounded, exact_product
from tests.conftest import on_gpu
from tests.exact_values import rounded_sum

DTYPES = ("float32", "float64", "complex64", "complex128")
TRANSPOSES = {"N": lambda x: x, "T": np.transpose, "C": lambda x: np.conj(x).T}


def operands(make_pair, how_a, how_b, dtype, name="phi_2"):
    """a and b such that op(a) is 5 x 7 and op(b) is 7 x 4."""
    a, b = make_pair(name, 5, 7, 4, dtype)
    return (a if how_a == "N" else a.T.copy()), (b if how_b == "N" else b.T.copy())


@pytest.mark.parametrize("how_a", "NTC")
@pytest.mark.parametrize("how_b", "NTC")
@pytest.mark.parametrize("dtype", DTYPES)
def test_transposes_and_conjugates(make_pair, assert_same_bits, how_a, how_b, dtype):
    a, b = operands(make_pair, how_a, how_b, dtype)
    expected = correctly_rounded(TRANSPOSES[how_a](a), TRANSPOSES[how_b](b))
    for scheme in ("auto", "ozaki1", "ozaki2"):
        c = hg.gemm(
            a, b, trans_a=how_a, trans_b=how_b, accuracy="correct", scheme=scheme
        )
        assert_same_bits(c, expected)
    hg.gemm(a, b, trans_a=how_a, trans_b=how_b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_stacks_are_transposed_in_their_last_axes(make_pair, assert_same_bits, dtype):
    pairs = [make_pair("phi_1", 5, 7, 4, dtype, seed) for seed in range(3)]
    a, b = (np.stack(x) for x in zip(*pairs, strict=True))
    expected = correctly_rounded(np.conj(a), b)
    found = hg.gemm(
        a.swapaxes(1, 2), b.swapaxes(1, 2), trans_a="C", trans_b="T", accuracy="correct"
    )
    assert_same_bits(found, correctly_rounded(np.conj(a), b))
    assert found.shape == expected.shape


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "alpha", [2.0**e for e in (-1, 1, 7, -40, 100, -300, 600, 1000, -1022, -1074, 1023)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_a_power_of_two_scales_the_exact_product_before_its_rounding(
    make_pair, assert_same_bits, alpha, dtype
):
    for name in ("phi_2", "underflowing", "overflowing", "subnormal"):
        a, b = make_pair(name, 4, 7, 3, dtype)
        expected = exact_product(a, b)
        shift = int(np.log2(alpha))
        scaled = type(expected)(
            expected.real,
            expected.imag,
            expected.row_exponent + shift,
            expected.col_exponent,
        )
        for scheme in ("auto", hg.Ozaki1(), hg.Ozaki2()):
            try:
                c, report = hg.gemm(
                    a,
                    b,
                    alpha=alpha,
                    accuracy="correct",
                    scheme=scheme,
                    return_report=True,
                )
            except hg.AccuracyError:
                assert isinstance(scheme, hg.Ozaki2)
                continue
            assert_same_bits(c, scaled.round(dtype))
            assert report.correct


@pytest.mark.parametrize("alpha", [-1.0, -2.0, -(2.0**-40)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_a_negative_power_of_two_is_exact_too(
    make_pair, assert_same_bits, alpha, dtype
):
    for name in ("phi_2", "underflowing", "overflowing"):
        a, b = make_pair(name, 4, 7, 3, dtype)
        c, report = hg.gemm(a, b, alpha=alpha, accuracy="correct", return_report=True)
        assert report.correct
        assert_same_bits(c, hg.gemm(-a, b, alpha=-alpha, accuracy="correct"))


def test_an_exact_zero_is_positive_for_negative_alpha():
    c, report = hg.gemm(
        [[1.0, -1.0]],
        [[1.0], [1.0]],
        alpha=-1.0,
        accuracy="correct",
        return_report=True,
    )
    assert report.correct
    assert not np.signbit(c)


@pytest.mark.parametrize("r", [1e-6, 1e-12, 1e-18])
@pytest.mark.parametrize("alpha", [2.0**-30, 8.0])
def test_a_number_is_kept_with_a_power_of_two(make_pair, r, alpha):
    for dtype in ("float32", "float64"):
        for name in ("phi_8", "span_60", "cancelling"):
            a, b = make_pair(name, 4, 7, 3, dtype)
            c = hg.gemm(a, b, alpha=alpha, accuracy=r)
            assert_kept(c, a, b, alpha, r)


def assert_kept(c, a, b, alpha, r):
    exact = exact_product(a, b)
    size = exact_product(abs(a), abs(b))
    u = Fraction(float(np.finfo(c.dtype).eps)) / 2
    least = Fraction(float(np.finfo(c.dtype).smallest_subnormal)) / 2
    for i, j in np.ndindex(c.shape):
        value = exact.fraction(i, j)[0] * Fraction(alpha)
        allowed = Fraction(r) * size.fraction(i, j)[0] * Fraction(alpha) + max(
            u * abs(value), least
        )
        assert abs(Fraction(float(c[i, j])) - value) <= allowed


@pytest.mark.parametrize("alpha", [1.0, 3.0, -0.1, 1e-3, 2.0])
@pytest.mark.parametrize("beta", [1.0, -1.0, 0.3, 1e6, -2.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_default_keeps_the_bound_of_its_report_for_the_sum(
    make_pair, alpha, beta, dtype
):
    rng = np.random.default_rng(6)
    a, b = make_pair("phi_1", 4, 7, 3, dtype)
    t = correctly_rounded(a, b)
    for c in (
        rng.standard_normal((4, 3)).astype(dtype),
        (-alpha / beta * t).astype(dtype),
    ):
        found, report = hg.gemm(a, b, c, alpha=alpha, beta=beta, return_report=True)
        assert not report.correct
        assert_sum_kept(found, a, b, c, alpha, beta, report.bound)


@pytest.mark.parametrize("r", [1e-3, 1e-8, 1e-12, 1e-15, 3e-16, 1e-20, 1e-35])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_number_bounds_the_sum_however_much_it_cancels(make_pair, r, dtype):
    rng = np.random.default_rng(7)
    for name in ("phi_1", "cancelling", "span_60"):
        a, b = make_pair(name, 4, 7, 3, dtype)
        t = correctly_rounded(a, b)
        for alpha, beta in ((-1.0, 1.0), (3.0, -0.3), (0.1, 7.0), (2.0, 1 / 3)):
            near = (-alpha / beta * t).astype(dtype)
            far = rng.standard_normal((4, 3)).astype(dtype)
            for c in (near, far, None):
                scale = 0.0 if c is None else beta
                found, report = hg.gemm(
                    a, b, c, alpha=alpha, beta=scale, accuracy=r, return_report=True
                )
                assert report.bound <= r
                addend = np.zeros_like(t) if c is None else c
                assert_sum_kept(found, a, b, addend, alpha, scale, report.bound)


def assert_sum_kept(found, a, b, c, alpha, beta, r):
    """|found - exact| <= r (|alpha||A||B| + |beta||C|) + u |exact| in every entry."""
    exact = exact_product(a, b)
    size = exact_product(abs(a), abs(b))
    u = Fraction(float(np.finfo(found.dtype).eps)) / 2
    for i, j in np.ndindex(found.shape):
        addend = Fraction(beta) * Fraction(float(c[i, j]))
        value = Fraction(alpha) * exact.fraction(i, j)[0] + addend
        terms = abs(Fraction(alpha)) * size.fraction(i, j)[0] + abs(addend)
        error = abs(Fraction(float(found[i, j])) - value)
        assert error <= Fraction(r) * terms + u * abs(value)


@pytest.mark.parametrize("scheme", ["auto", "ozaki1", "ozaki2"])
@pytest.mark.parametrize("alpha", [1.0, 2.0, 3.0])
def test_c_is_not_read_when_beta_is_zero(make_pair, assert_same_bits, scheme, alpha):
    a, b = make_pair("phi_1", 4, 7, 3)
    expected = hg.gemm(a, b, alpha=alpha, scheme=scheme, accuracy="correct")
    for c in (np.full((4, 3), np.nan), np.full((9, 9), np.inf), "unread", None):
        assert_same_bits(
            hg.gemm(a, b, c, alpha=alpha, beta=0.0, scheme=scheme, accuracy="correct"),
            expected,
        )
    assert hg.gemm(a, b, np.full((4, 3), np.nan + 0j), beta=0).dtype == np.float64


def test_a_and_b_are_not_read_when_alpha_is_zero():
    a = np.full((4, 7), np.nan)
    b = np.full((7, 3), np.inf)
    c = np.arange(12.0).reshape(4, 3)
    for beta in (1.0, -2.0, 0.5):
        np.testing.assert_array_equal(hg.gemm(a, b, c, alpha=0.0, beta=beta), beta * c)
    result, report = hg.gemm(a, b, alpha=0.0, return_report=True)
    assert not result.any()
    assert report.num_products == 0
    np.testing.assert_array_equal(hg.gemm(a, b, c, alpha=0, beta=0), np.zeros((4, 3)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [1.0, 2.0, 3.0])
def test_an_empty_sum_gives_beta_c(dtype, alpha):
    a = np.ones((4, 0), dtype)
    b = np.ones((0, 3), dtype)
    c = np.arange(12).reshape(4, 3).astype(dtype)
    np.testing.assert_array_equal(hg.gemm(a, b, c, alpha=alpha, beta=2.0), 2 * c)
    np.testing.assert_array_equal(hg.gemm(a, b, alpha=alpha), np.zeros((4, 3)))
    assert hg.gemm(
        np.ones((0, 4), dtype), np.ones((4, 3), dtype), alpha=alpha
    ).shape == (0, 3)
    assert hg.gemm(
        np.ones((3, 4), dtype),
        np.ones((4, 0), dtype),
        np.ones((3, 0)),
        alpha=alpha,
        beta=2.0,
    ).shape == (
        3,
        0,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [1.0, 2.0, 3.0, -1.0])
@pytest.mark.parametrize("beta", [0.0, 1.0, 0.5])
def test_vectors_give_the_shapes_of_matmul(dtype, alpha, beta):
    x, y = np.arange(1, 4).astype(dtype), np.arange(2, 5).astype(dtype)
    for a, b in ((x, y), (np.stack([x, y]), y), (x, np.stack([x, y], 1))):
        expected = np.matmul(a, b)
        c = np.ones_like(expected)
        found = hg.gemm(a, b, c, alpha=alpha, beta=beta)
        assert np.shape(found) == np.shape(expected)
        assert type(found) is type(expected)
        np.testing.assert_array_equal(found, alpha * expected + beta * c)


def test_c_broadcasts_but_does_not_enlarge_the_result(make_pair):
    a, b = make_pair("integers", 4, 7, 3)
    for c in (np.float64(2.0), np.arange(3.0), np.arange(4.0)[:, None], [[1.0]], 3):
        np.testing.assert_array_equal(
            hg.gemm(a, b, c, beta=2.0), a @ b + 2 * np.asarray(c)
        )
    for c in (np.ones((2, 4, 3)), np.ones((5, 3)), np.ones(4)):
        with pytest.raises(ValueError, match=r"shape"):
            hg.gemm(a, b, c, beta=1.0)


def test_c_takes_part_in_the_promotion(make_pair):
    a, b = make_pair("integers", 4, 7, 3, "float32")
    assert hg.gemm(a, b, np.ones((4, 3)), beta=1.0).dtype == np.float64
    assert hg.gemm(a, b, np.ones((4, 3), np.complex64), beta=1.0).dtype == np.complex64
    assert hg.gemm(a, b, np.ones((4, 3), np.int8), beta=1.0).dtype == np.float32
    for c in (True, 2, 0.1, np.float64(0.1), 1j):
        found = hg.gemm(a, b, c, beta=1.0)
        np.testing.assert_array_equal(found, a @ b + c, strict=True)
    short = np.ones((2, 2), np.int8)
    for c in (0.5, 1j):
        np.testing.assert_array_equal(
            hg.gemm(short, short, c, beta=1.0), short @ short + c, strict=True
        )
    with pytest.raises(TypeError):
        hg.gemm(a, b, np.full((4, 3), None), beta=1.0)


def test_c_is_untouched_unless_it_is_out(make_pair):
    a, b = make_pair("integers", 4, 4, 4)
    c = np.arange(16.0).reshape(4, 4)
    before = c.copy()
    expected = 3 * (a @ b) + 2 * before
    np.testing.assert_array_equal(hg.gemm(a, b, c, alpha=3.0, beta=2.0), expected)
    np.testing.assert_array_equal(c, before)
    assert hg.gemm(a, b, c, alpha=3.0, beta=2.0, out=c) is c
    np.testing.assert_array_equal(c, expected)
    x = a.copy()
    np.testing.assert_array_equal(
        hg.gemm(x, b, before, alpha=3.0, beta=2.0, trans_a="T", out=x),
        3 * (a.T @ b) + 2 * before,
    )


def test_reports_speak_of_the_sum(make_pair):
    a, b = make_pair("phi_1", 4, 7, 3)
    c = np.ones((4, 3))

    def correct(**options):
        return hg.gemm(a, b, c, accuracy="correct", return_report=True, **options)[
            1
        ].correct

    for alpha in (1.0, 0.25, -4, 3.0, 0.1):
        for beta in (0.0, 1.0, -0.5, 0.3):
            assert correct(alpha=alpha, beta=beta)
    plan = hg.make_plan(a, b, accuracy="correct")
    options = {"beta": 0.3, "return_report": True}
    assert hg.gemm(a, b, c, plan=plan, **options)[1].correct
    for accuracy in (None, 1e-10):
        report = hg.gemm(a, b, c, accuracy=accuracy, **options)[1]
        assert not report.correct
        assert report.bound > 0
    for scheme in ("ozaki2", "double-double"):
        report = hg.gemm(a, b, c, scheme=scheme, **options)[1]
        assert not report.correct
        assert 0 < report.bound < 1e-14


def test_plans_and_prepared_operands_serve_gemm(make_pair, assert_same_bits):
    a, b = make_pair("phi_1", 4, 7, 3)
    plan = hg.make_plan(a, b, scheme=hg.Ozaki1(product="fp64"), accuracy="correct")
    for alpha in (1.0, 2.0**-1060, 2.0**900):
        expected = hg.gemm(a, b, alpha=alpha, accuracy="correct")
        assert_same_bits(hg.gemm(a, b, alpha=alpha, plan=plan), expected)
        assert_same_bits(
            hg.gemm(hg.prepare(a, "left", plan=plan), b, alpha=alpha), expected
        )


def test_wrong_arguments_are_refused():
    a = np.ones((3, 3))
    with pytest.raises(hg.PlanError, match="trans_a='X'"):
        hg.gemm(a, a, trans_a="X")
    with pytest.raises(hg.PlanError, match="trans_b='n'"):
        hg.gemm(a, a, trans_b="n")
    with pytest.raises(ValueError, match=r"two dimensions.*\(3,\)"):
        hg.gemm(np.ones(3), a, trans_a="T")
    with pytest.raises(ValueError, match=r"beta = 2\.0 needs c"):
        hg.gemm(a, a, beta=2.0)
    with pytest.raises(TypeError, match="complex"):
        hg.gemm(a, a, alpha=1j)
    with pytest.raises(TypeError, match="complex"):
        hg.gemm(a, a, a, beta=1j)
    with pytest.raises((TypeError, ValueError)):
        hg.gemm(a, a, alpha="two")


def test_scalars_of_other_kinds_are_accepted():
    a = np.ones((2, 2))
    for alpha in (
        np.float32(3.0),
        3,
        np.int64(3),
        np.array(3.0),
        3 + 0j,
        np.complex128(3),
    ):
        np.testing.assert_array_equal(
            hg.gemm(a, a, a, alpha=alpha, beta=alpha), np.full((2, 2), 9.0)
        )


@pytest.mark.parametrize("alpha", [float("inf"), float("nan")])
def test_non_finite_scalars_follow_ieee(alpha):
    a = np.ones((2, 2))
    np.testing.assert_array_equal(hg.gemm(a, a, alpha=alpha), alpha * (a @ a))
    np.testing.assert_array_equal(hg.gemm(a, a, a, beta=alpha), 2.0 + alpha * a)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint64", "bool"])
@pytest.mark.parametrize("alpha", [-1.0, -2, -0.5, -3.0])
def test_a_negative_alpha_turns_no_integer_around(dtype, alpha):
    x = np.array([[1, 0], [1, 1]]).astype(dtype)
    x[0, 0] = 1 if dtype == "bool" else np.iinfo(dtype).min if dtype == "int8" else 200
    y = np.eye(2)
    np.testing.assert_array_equal(hg.gemm(x, y, alpha=alpha), alpha * x.astype(float))
    np.testing.assert_array_equal(hg.gemm(y, x, alpha=alpha), alpha * x.astype(float))
    prepared = hg.prepare(y, "left", plan=hg.make_plan(y, y, scheme="ozaki1"))
    np.testing.assert_array_equal(
        hg.gemm(prepared, x, alpha=alpha), alpha * x.astype(float)
    )


@pytest.mark.parametrize("scheme", ["auto", "ozaki1", "ozaki2"])
@pytest.mark.parametrize(
    ("a", "b", "alpha", "want"),
    [
        (1e-200, 1e-200, 1e300, 1e-100),
        (1e200, 1e200, 1e-300, 1e100),
        (-1e200, 3e200, 1e-200, -3e200),
        (2.0**-600, 2.0**-600, -3 * 2.0**900, -3 * 2.0**-300),
    ],
)
@pytest.mark.parametrize(("accuracy", "rtol"), [("correct", 1e-15), (1e-12, 2e-12)])
def test_alpha_brings_back_what_lies_beyond_the_format(
    scheme, a, b, alpha, want, accuracy, rtol
):
    x, y = np.array([[a]]), np.array([[b]])
    found = hg.gemm(x, y, alpha=alpha, scheme=scheme, accuracy=accuracy)
    np.testing.assert_allclose(found, [[want]], rtol=rtol)


@pytest.mark.parametrize("accuracy", ["correct", 1e-12, 1e-3])
def test_an_alpha_of_far_components_brings_back_what_underflows(accuracy):
    x = np.array([[1e-200 + 0j]])
    found = hg.gemm(x, x, alpha=1e300 + 1e-20j, accuracy=accuracy)
    np.testing.assert_allclose(found, [[1e-100]], rtol=2e-12)


def test_finite_operands_never_give_nan():
    one, huge = np.ones((1, 1)), np.full((1, 1), 1e300)
    assert hg.gemm(one * 1e308, one, one * 1e308, alpha=1.5, beta=-1.5)[0, 0] == 0.0
    assert hg.gemm(huge, one, -huge, alpha=1e300, beta=1e300)[0, 0] == np.inf
    assert hg.gemm(huge, huge, -huge, beta=1e10)[0, 0] == np.inf
    assert hg.gemm(huge + 0j, huge + 0j, alpha=0.5j)[0, 0] == complex(0.0, np.inf)
    c = np.nextafter(1e305, 0)
    found = hg.gemm(one * 1e305, one, one * c, alpha=0.3, beta=-0.3, accuracy="correct")
    assert found[0, 0] == float(Fraction(0.3) * (Fraction(1e305) - Fraction(float(c))))


@pytest.mark.parametrize(
    ("dtype", "a", "b", "c", "alpha", "beta", "want"),
    [
        (
            "complex64",
            2.0**100 * (1 + 1j),
            1.0,
            None,
            2.0**34 + 1j,
            0.0,
            complex(np.inf, np.inf),
        ),
        (
            "complex64",
            1 + 2.0**100 * 1j,
            1.0,
            None,
            2.0**34 + 1j,
            0.0,
            complex(2.0**34 - 2.0**100, np.inf),
        ),
        (
            "complex128",
            2.0**1023 * (1 + 1j),
            2.0,
            None,
            1 + 1j,
            0.0,
            complex(0.0, np.inf),
        ),
        (
            "complex128",
            2.0**1023 * (1 + 1j),
            2.0**1023,
            None,
            2.0**1023 * (1 + 1j),
            0.0,
            complex(0.0, np.inf),
        ),
        (
            "complex128",
            2.0**1023 * (1 + 1j),
            2.0,
            2.0**1000,
            1 + 1j,
            2.0,
            complex(2.0**1001, np.inf),
        ),
        ("complex128", 1 + 1j, 1.0, 1e308, 1 + 1j, 10.0, complex(np.inf, 2.0)),
        ("complex128", 1 + 1j, 0.5, -np.inf, 1 + 1j, 10.0, complex(-np.inf, 1.0)),
    ],
)
def test_a_product_that_overflows_is_no_nan_for_a_complex_alpha(
    dtype, a, b, c, alpha, beta, want
):
    c = None if c is None else np.full((1, 1), c)
    for left in (
        np.full((1, 1), a, dtype),
        hg.prepare(x := np.full((1, 1), a, dtype), "left", plan=hg.make_plan(x, x)),
    ):
        found = hg.gemm(left, np.full((1, 1), b, dtype), c, alpha=alpha, beta=beta)[
            0, 0
        ]
        np.testing.assert_array_equal(
            [found.real, found.imag],
            np.array([want]).view(float).astype(found.real.dtype),
        )
    if c is None:
        assert (
            hg.gemm(np.full(1, a, dtype), np.full(1, b, dtype), alpha=alpha).shape == ()
        )


@pytest.mark.parametrize("accuracy", ["fp64", 1e-10])
@pytest.mark.parametrize("alpha", [2.0**100, 2.0**-100, 3 * 2.0**100])
def test_a_product_in_float64_of_float32_is_scaled_before_it_is_rounded(
    accuracy, alpha
):
    a, b = np.float32([[2**-75 * 1.3, 2**-76]]), np.float32([[2**-68], [2**-69 * 1.7]])
    if alpha < 1:
        a, b = a * np.float32(2.0**100), b * np.float32(2.0**90)
    want = float(a.astype(float)[0] @ b.astype(float)[:, 0]) * alpha
    for x, y in ((a, b), (a.astype(np.complex64), b.astype(np.complex64))):
        found, report = hg.gemm(
            x, y, alpha=alpha, accuracy=accuracy, return_report=True
        )
        assert report.bound < 1e-9
        assert abs(found[0, 0] - want) <= 1.2e-7 * want + 1.5e-45


def test_complex_scalars_on_the_unit_circle_are_rounded_once(assert_same_bits):
    a = np.full((2, 2), 1 + 1j) / 3
    for alpha in (0.6 + 0.8j, 1j):
        found, report = hg.gemm(
            a, a, alpha=alpha, accuracy="correct", return_report=True
        )
        assert report.correct
        assert_same_bits(found, rounded_sum(a, a, None, alpha, 0.0))


@pytest.mark.parametrize("alpha", [np.nan, np.inf, -np.inf, 3.0])
def test_an_empty_sum_does_not_ask_alpha(alpha):
    c = np.array([[-0.0, 2.0]])
    for scalars in ({"alpha": alpha}, {"alpha": 0.0}):
        k = 0 if scalars["alpha"] else 3
        a, b = np.zeros((1, k)), np.zeros((k, 2))
        found = hg.gemm(a, b, c, **scalars, beta=1.0)
        np.testing.assert_array_equal(found, c)
        assert np.signbit(found[0, 0])
        np.testing.assert_array_equal(hg.gemm(a, b, **scalars), [[0.0, 0.0]])


@pytest.mark.parametrize("scheme", ["ozaki1", hg.Ozaki2(scaling="fast")])
def test_prepared_operands_keep_the_sign_of_what_underflows(assert_same_bits, scheme):
    a = np.array([[2.0**-600, 0.0], [-(2.0**-600), 1.0]])
    plan = hg.make_plan(a, a, accuracy="correct", scheme=scheme)
    left, right = hg.prepare(a, "left", plan=plan), hg.prepare(a, "right", plan=plan)
    for alpha in (-1.0, -2.0, -3.0):
        found, report = hg.gemm(left, right, alpha=alpha, return_report=True)
        assert_same_bits(found, hg.gemm(a, a, alpha=alpha, plan=plan))
        assert report.correct


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(
    ("alpha", "beta"), [(-1.0, 1.0), (1.0, -1.0), (2.0**-30, 2.0**40), (-4.0, 0.5)]
)
@pytest.mark.parametrize("family", ["phi_1", "cancelling", "phi_4"])
def test_a_sum_with_powers_of_two_is_rounded_once(
    make_pair, assert_same_bits, family, dtype, alpha, beta
):
    a, b = make_pair(family, 5, 40, 90, dtype)
    t = hg.matmul(a, b, accuracy="correct")
    rng = np.random.default_rng(2)
    c = (-alpha / beta * t * (1 + 2.0**-20 * rng.standard_normal(t.shape))).astype(
        dtype
    )
    found, report = hg.gemm(
        a, b, c, alpha=alpha, beta=beta, accuracy="correct", return_report=True
    )
    assert report.correct
    assert "rounded once" in report.reason
    eye = np.eye(90, dtype=dtype)
    left, right = np.hstack([a, c]), np.vstack([alpha * b, beta * eye]).astype(dtype)
    assert_same_bits(found, correctly_rounded(left, right))
    assert_same_bits(
        hg.gemm(
            a.T,
            b.T,
            c,
            alpha=alpha,
            beta=beta,
            trans_a="T",
            trans_b="T",
            accuracy="correct",
        ),
        found,
    )
    out = c.copy()
    assert (
        hg.gemm(a, b, out, alpha=alpha, beta=beta, accuracy="correct", out=out) is out
    )
    assert_same_bits(out, found)


def apart(dtype):
    """Exponents of alpha and beta at and around the limits of a format, each quotient
    with small and large scalars.
    """
    real = np.finfo(dtype)
    least, most = real.minexp - real.nmant, real.maxexp - 1
    quotients = (
        least - 20,
        least - 1,
        least,
        least + 1,
        -30,
        most - 1,
        most,
        most + 1,
        most + 40,
    )
    found = [(q // 3 - q, q // 3) for q in quotients]
    found += (
        [(0, q) for q in quotients]
        + [(-q, 0) for q in quotients]
        + [(-30, 110), (-86, 100), (100, -86)]
    )
    return [(e, f) for e, f in found if max(e, f) <= 1023 and min(e, f) >= -1074]


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    "scheme", ["auto", "ozaki1", hg.Ozaki2(scaling="fast")], ids=str
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["phi_2", "subnormal", "overflowing", "integers"])
def test_powers_of_two_far_apart_are_rounded_once(
    make_pair, assert_same_bits, family, dtype, scheme
):
    a, b = make_pair(family, 3, 5, 2, dtype)
    c = make_pair("phi_1", 3, 2, 2, dtype)[0]
    for e, f in apart(dtype):
        alpha, beta = 2.0**e, -(2.0**f)
        try:
            found, report = hg.gemm(
                a,
                b,
                c,
                alpha=alpha,
                beta=beta,
                accuracy="correct",
                scheme=scheme,
                return_report=True,
            )
        except hg.AccuracyError:
            assert isinstance(scheme, hg.Ozaki2)
            continue
        assert report.correct
        assert_same_bits(found, rounded_sum(a, b, c, alpha, beta))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_powers_of_two_far_apart_give_the_bits_of_the_cpu_on_a_gpu(
    make_pair, assert_same_bits, dtype
):
    a, b = make_pair("phi_2", 3, 5, 2, dtype)
    c = make_pair("phi_1", 3, 2, 2, dtype)[0]
    for e, f in apart(dtype):
        for beta in (-(2.0**f), 3.0 * 2.0 ** min(f, 1000)):
            options = {
                "alpha": 2.0**e,
                "beta": beta,
                "accuracy": "correct",
                "return_report": True,
            }
            want, expected = hg.gemm(a, b, c, **options)
            found, report = hg.gemm(*on_gpu(a, b, c), **options)
            assert_same_bits(found.cpu().numpy(), want)
            assert report.correct == expected.correct


@pytest.mark.parametrize("accuracy", [None, 1e-15, "correct"])
@pytest.mark.parametrize("beta", [2.0**997, 1e305, -1.7e308])
def test_a_beta_near_the_largest_number_costs_no_entry_its_digits(accuracy, beta):
    """Entries of T and C lie far apart, so that beta C is large in some entries and
    nothing in others.
    """
    t = np.array([[1 / 3, 1e-100, 1 / 3, 2.0, 5e-324]])
    c = np.array([[0.0, 0.0, 1e-300, 1e-310, -5e-324]])
    for alpha, exact_alpha in ((1.0, Fraction(1)), (1.5, Fraction(3, 2))):
        found, report = hg.gemm(
            np.ones((1, 1)),
            t,
            c,
            alpha=alpha,
            beta=beta,
            accuracy=accuracy,
            return_report=True,
        )
        for x, y, z in zip(
            found[0].tolist(), t[0].tolist(), c[0].tolist(), strict=True
        ):
            terms = exact_alpha * Fraction(y), Fraction(beta) * Fraction(z)
            allowed = Fraction(1, 2**53) * abs(sum(terms)) + Fraction(1, 2**100) * sum(
                map(abs, terms)
            )
            assert abs(Fraction(x) - sum(terms)) <= allowed + Fraction(2) ** -1074
        # Small sums with powers of two keep a number by being rounded once.
        if accuracy != 1e-15:
            assert report.correct == (accuracy == "correct")


@pytest.mark.skipif(core.loaded()[0] is None, reason="the core is not built")
@pytest.mark.parametrize("accuracy", [1e-12, 1e-14])
def test_a_number_of_a_small_sum_is_kept_by_one_rounding(make_pair, accuracy):
    """It would cost more than correct rounding otherwise."""
    a, b = make_pair("phi_1", 5, 6, 4)
    c = -(a @ b)
    options = {"beta": 1.0, "accuracy": accuracy, "return_report": True}
    values, report = hg.gemm(a, b, c, **options)
    assert report.correct
    assert (values == hg.gemm(a, b, c, beta=1.0, accuracy="correct")).all()
    for others in ({"alpha": 1.5}, {"scheme": "native"}, {"accuracy": None}):
        assert not hg.gemm(a, b, c, **options | others)[1].correct
    large = np.ones((64, 64))
    assert not hg.gemm(large, large, large, **options)[1].correct


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("power", ["largest", "smallest"])
def test_an_addend_that_cannot_take_the_rest_of_a_power_is_rounded_once(
    assert_same_bits, dtype, power
):
    real = np.finfo(dtype)
    ones = np.ones((1, 1), dtype)
    beyond, c = (
        (real.maxexp, real.max)
        if power == "largest"
        else (real.minexp - real.nmant - 1, 1 + real.eps)
    )
    tiny = real.smallest_subnormal if power == "smallest" else 1.0
    for addend in (np.array([[c * tiny]], dtype), 2 * tiny * ones):
        alpha, beta = 2.0 ** -(beyond // 2), 2.0 ** (beyond - beyond // 2)
        found, report = hg.gemm(
            ones,
            ones,
            addend,
            alpha=alpha,
            beta=beta,
            accuracy="correct",
            return_report=True,
        )
        assert report.correct
        assert_same_bits(found, rounded_sum(ones, ones, addend, alpha, beta))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("power", [0, 60, 120, 200, 900])
@pytest.mark.parametrize("turn", [1.0, 1j])
def test_a_sum_stays_finite_where_the_product_overflows(dtype, power, turn):
    real, kind = np.finfo(dtype), np.dtype(dtype).kind
    top = real.maxexp - 1
    if power > top + 100 or (turn == 1j and kind != "c"):
        return
    a, b = np.full((1, 1), 3 * 2.0 ** (top - 1), dtype), np.full((1, 1), 8.0, dtype)
    c = np.full((1, 1), 1.125 * 2.0 ** (top - power) * (1 - 2.0**-10), dtype)
    found = hg.gemm(
        a, b, c, alpha=1.5 * turn, beta=-turn * 2.0 ** (power + 4), accuracy="correct"
    )
    assert found[0, 0] == turn * 9 * 2.0 ** (top - 9)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_a_small_part_is_what_remains_of_a_product_that_overflows(dtype):
    top = np.finfo(dtype).maxexp - 1
    a, two = np.full((1, 1), 2.0**top * (1 + 1j), dtype), np.full((1, 1), 2.0, dtype)
    for turn in (1.0, 1j):
        c = np.full((1, 1), 2.0 ** (top - 20) / turn, dtype)
        found = hg.gemm(a, two, c, alpha=1 + 1j, beta=turn * 2.0**-100)
        assert (found.real, found.imag) == (2.0 ** (top - 120), np.inf)


def test_stacks_vectors_and_special_values_are_rounded_once_too(assert_same_bits):
    rng = np.random.default_rng(3)
    a = rng.standard_normal((3, 4, 5))
    b = rng.standard_normal((5, 70))
    c = rng.standard_normal((4, 70))
    options = {"alpha": -1.0, "beta": 1.0, "accuracy": "correct"}
    found = hg.gemm(a, b, c, **options)
    for z in range(3):
        assert_same_bits(found[z], hg.gemm(a[z], b, c, **options))
        assert_same_bits(found[z][:, 1], hg.gemm(a[z], b[:, 1], c[:, 1], **options))
        assert found[z][2, 1] == hg.gemm(a[z, 2], b[:, 1], c[2, 1], **options)
    c[1, 2:5] = [np.inf, -np.inf, np.nan]
    mixed = c + 0.1j
    exact = hg.gemm(a, b, np.where(np.isfinite(c), c, 0) + 0.1j, **options)
    found = hg.gemm(a, b, mixed, **options)
    np.testing.assert_array_equal(found.imag, exact.imag)
    np.testing.assert_array_equal(
        found.real[:, 1, 2:4], np.tile([np.inf, -np.inf], (3, 1))
    )
    b[0, 4] = np.inf
    a[0, 1] = np.nan
    with np.errstate(invalid="ignore"):
        want = c - a @ b
    special = hg.gemm(a, b, c, **options)
    np.testing.assert_array_equal(np.isnan(special), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(special), np.isinf(want))
    np.testing.assert_allclose(special, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("accuracy", ["correct", 1e-20])
def test_iterative_refinement_converges_to_the_last_bit(accuracy):
    rng = np.random.default_rng(4)
    n, scale = 40, 10.0 ** -np.linspace(0, 10, 40)
    q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    a = np.rint((q * scale) @ q.T * 2.0**40)
    x = rng.integers(-50, 50, (n, 2)).astype(float)
    b = hg.matmul(a, x, accuracy="correct")
    y = np.linalg.solve(a, b)
    for _ in range(6):
        y += np.linalg.solve(
            a, hg.gemm(a, y, b, alpha=-1.0, beta=1.0, accuracy=accuracy)
        )
    np.testing.assert_allclose(y, x, rtol=0, atol=1e-30)


@pytest.mark.parametrize("alpha", [1.0, -1.0])
def test_bools_and_integers_are_refused_with_their_names(alpha):
    for dtype in ("bool", "int64", "uint8"):
        x = np.ones((2, 2), dtype)
        with pytest.raises(TypeError, match=f"{dtype}, {dtype} promote to {dtype}"):
            hg.gemm(x, x, alpha=alpha)
