"""alpha A B + beta C rounded once for any scalars, against fractions."""

from __future__ import annotations

import math

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.numerics.epilogue import combine
from tests.exact_values import rounded_sum

DTYPES = ("float32", "float64", "complex64", "complex128")
FAMILIES = ("normal", "integers", "subnormal", "tiny", "huge", "half", "full", "coarse")
FACTORS = (3.0, 0.1, -0.7, 5e-324, 1.7e308, -(2.0**-700) / 3, 2.0**900, -1.0)


def entries(rng, family, shape, dtype):
    """A matrix of a family; complex ones have both components of it."""
    if np.dtype(dtype).kind == "c":
        real = np.empty(0, dtype).real.dtype
        parts = [entries(rng, family, shape, real) for _ in range(2)]
        return (parts[0] + 1j * parts[1]).astype(dtype)
    info = np.finfo(dtype)
    least = info.minexp - info.nmant
    ranges = {
        "subnormal": (least, info.minexp),
        "tiny": (least, info.minexp + 60),
        "huge": (info.maxexp - 5, info.maxexp),
        "half": (info.minexp // 2 - 3, info.minexp // 2 + 3),
        "full": (least, info.maxexp),
    }
    if family == "normal":
        x = rng.standard_normal(shape)
    elif family == "integers":
        x = rng.integers(-9, 10, shape)
    elif family == "coarse":
        x = np.rint(16 * rng.standard_normal(shape)) / 16
    else:
        mantissas = (rng.choice([-1, 1], shape) * (1 + rng.random(shape))).astype(dtype)
        with np.errstate(all="ignore"):
            x = np.ldexp(mantissas, rng.integers(*ranges[family], shape))
    return np.asarray(x, dtype)


def scalar(rng, dtype):
    """A factor, or a number of any magnitude; complex for half of complex dtypes."""
    x = float(rng.choice(FACTORS))
    if rng.random() < 0.4:
        x = math.ldexp(1 + rng.random(), int(rng.integers(-1074, 1023)))
    if np.dtype(dtype).kind == "c" and rng.random() < 0.5:
        return complex(x, float(rng.choice(FACTORS)))
    return x


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_rounded_once_for_all_scalars(assert_same_bits, dtype, family):
    rng = np.random.default_rng([3, DTYPES.index(dtype), FAMILIES.index(family)])
    for _ in range(12):
        m, k, n = rng.integers(1, 4, 3)
        others = rng.choice(FAMILIES, 2)
        a = entries(rng, family, (m, k), dtype)
        b = entries(rng, others[0], (k, n), dtype)
        c = entries(rng, others[1], (m, n), dtype)
        alpha, beta = scalar(rng, dtype), scalar(rng, dtype)
        # A C that cancels most of the product, any other one, and none.
        with np.errstate(all="ignore"):
            near = (-rounded_sum(a, b, None, alpha, 0.0) / beta).astype(dtype)
        near = np.where(np.isfinite(near), near, c).astype(dtype)
        for addend, factor in ((near, beta), (c, beta), (None, 0.0)):
            options = {"alpha": alpha, "beta": factor, "accuracy": "correct"}
            found, report = hg.gemm(a, b, addend, return_report=True, **options)
            assert report.correct
            assert report.bound == 0.0
            assert_same_bits(found, rounded_sum(a, b, addend, alpha, factor))


@pytest.mark.parametrize("scheme", ["ozaki1", "ozaki2", hg.Ozaki1(mode="correct")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_named_schemes_round_sums_once(assert_same_bits, dtype, scheme):
    rng = np.random.default_rng(4)
    a, b, c = (
        entries(rng, "normal", shape, dtype) for shape in ((3, 5), (5, 70), (3, 70))
    )
    accuracy = "correct" if isinstance(scheme, str) else None
    for alpha, beta in ((3.0, 1 / 3), (-1.0, 0.1), (0.3, 1.0)):
        options = {"alpha": alpha, "beta": beta, "accuracy": accuracy}
        found = hg.gemm(a, b, c, scheme=scheme, **options)
        assert_same_bits(found, rounded_sum(a, b, c, alpha, beta))


@pytest.mark.parametrize("dtype", DTYPES)
def test_plans_and_prepared_operands_keep_their_word_for_sums(assert_same_bits, dtype):
    rng = np.random.default_rng(5)
    a, b, c = (
        entries(rng, "normal", shape, dtype) for shape in ((3, 5), (5, 4), (3, 4))
    )
    plan = hg.make_plan(a, b, accuracy="correct")
    want = rounded_sum(a, b, c, 3.0, 0.1)
    left, right = hg.prepare(a, "left", plan=plan), hg.prepare(b, "right", plan=plan)
    for x, y in ((a, b), (left, b), (a, right), (left, right)):
        used = plan if x is a and y is b else None
        found, report = hg.gemm(
            x, y, c, alpha=3.0, beta=0.1, plan=used, return_report=True
        )
        assert report.correct
        assert_same_bits(found, want)


@pytest.mark.parametrize("r", [1e-3, 1e-12, 2e-16])
def test_a_relative_error_is_kept_for_all_scalars(r):
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((4, 9)), rng.standard_normal((9, 3))
    for alpha, beta in ((3.0, 0.1), (0.1, -1.0), (5e-324, 3.0), (-1.0, 1 / 3)):
        c = -rounded_sum(a, b, None, alpha, 0.0) / beta
        found, report = hg.gemm(
            a,
            b,
            c,
            alpha=alpha,
            beta=beta,
            accuracy=hg.Relative(r),
            return_report=True,
        )
        exact = rounded_sum(a, b, c, alpha, beta)
        assert (abs(found - exact) <= (r + 2.0**-52) * abs(exact)).all()
        assert report.correct or report.relative == r


@pytest.mark.parametrize("alpha", [np.inf, -np.inf, np.nan])
def test_a_relative_error_of_infinite_scalars_is_refused(alpha):
    x = np.ones((2, 2))
    with pytest.raises(hg.PlanError, match="finite scalars"):
        hg.gemm(x, x, x, alpha=alpha, beta=1.0, accuracy=hg.Relative(1e-12))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta", [3.0, -0.1, 1j, 0.1 - 3j])
def test_beta_c_alone_is_rounded_once_and_keeps_the_signs_of_zeros(
    assert_same_bits, dtype, beta
):
    if isinstance(beta, complex) and np.dtype(dtype).kind != "c":
        return
    rng = np.random.default_rng(7)
    c = entries(rng, "normal", (3, 5), dtype)
    c[0] = 0.0
    c[1] = -c[0]
    operands = np.full((3, 2), np.nan, dtype), np.ones((2, 5), dtype)
    empty = np.ones((3, 0), dtype), np.ones((0, 5), dtype)
    want = rounded_sum(*empty, c, 0.0, beta)
    want[:2] = combine(c[:2], beta, None, 0.0, zero=-0.0)
    for alpha, (a, b) in ((0.0, operands), (3.0, empty)):
        found = hg.gemm(a, b, c, alpha=alpha, beta=beta, accuracy="correct")
        assert_same_bits(found, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta", [-1.0, 3.0, -0.1])
def test_beta_c_alone_keeps_infinities_and_nans(dtype, beta):
    c = np.array([[np.inf, -np.inf, np.nan], [0.0, -0.0, 1.0]], dtype)
    x, y = np.ones((2, 4), dtype), np.ones((4, 3), dtype)
    found = hg.gemm(x, y, c, alpha=0.0, beta=beta, accuracy="correct")
    np.testing.assert_array_equal(found.real, (beta * c.real).astype(found.real.dtype))
    assert (np.signbit(found.real) == np.signbit(beta * c.real))[:, [0, 1]].all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinities_and_nans_leave_other_entries_rounded_once(assert_same_bits, dtype):
    rng = np.random.default_rng(8)
    a, b, c = (
        entries(rng, "normal", shape, dtype) for shape in ((4, 5), (5, 4), (4, 4))
    )
    want = rounded_sum(a, b, c, 3.0, 0.1)
    a[0, 1] = np.inf
    b[2, 3] = np.nan
    c.real[2, 1] = -np.inf
    found = hg.gemm(a, b, c, alpha=3.0, beta=0.1, accuracy="correct")
    assert not np.isfinite(found[0]).any()
    assert np.isnan(found[:, 3]).all()
    assert found[2, 1].real == -np.inf
    assert found[2, 1].imag == want[2, 1].imag
    untouched = np.ones((4, 4), bool)
    untouched[0] = untouched[:, 3] = untouched[2, 1] = False
    assert_same_bits(found[untouched], want[untouched])


def test_stacks_vectors_and_transposes_are_rounded_once(assert_same_bits):
    rng = np.random.default_rng(9)
    a, b = rng.standard_normal((3, 4, 5)), rng.standard_normal((5, 6))
    c = rng.standard_normal((4, 6))
    options = {"alpha": 0.1, "beta": 3.0, "accuracy": "correct"}
    found = hg.gemm(a, b, c, **options)
    for z in range(3):
        want = rounded_sum(a[z], b, c, 0.1, 3.0)
        assert_same_bits(found[z], want)
        assert_same_bits(hg.gemm(a[z], b[:, 1], c[:, 1], **options), want[:, 1])
        turned = hg.gemm(a[z].T, b.T, c, trans_a="T", trans_b="T", **options)
        assert_same_bits(turned, want)
        out = np.empty((4, 6))
        assert hg.gemm(a[z], b, c, out=out, **options) is out
        assert_same_bits(out, want)


@pytest.mark.parametrize("has_addend", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_a_pair_are_kept(assert_same_bits, monkeypatch, dtype, has_addend):
    """Later calls with other entries and scalars run what the first one ran, and those
    with entries that are not certain go the long way.
    """
    rng = np.random.default_rng(5)

    def operands():
        shapes = (5, 6), (6, 4), (5, 4)
        return [entries(rng, "normal", shape, dtype) for shape in shapes]

    def values(a, b, c, alpha, beta):
        addend = c if has_addend else None
        return hg.gemm(
            a, b, addend, alpha=alpha, beta=beta * has_addend, accuracy="correct"
        )

    values(*operands(), 1.7, 0.3)
    with monkeypatch.context() as patch:
        patch.setattr("hifigemm.running.gemm._product", None)
        for alpha, beta in ((1.1, -0.7), (1.9, 3.0), (-1.3, 1.0)):
            a, b, c = operands()
            want = rounded_sum(
                a, b, c if has_addend else None, alpha, beta * has_addend
            )
            assert_same_bits(values(a, b, c, alpha, beta), want.astype(dtype))

    # Midpoints, zeros that stand for small products, Inf.
    a, b, c = operands()
    c[0, 0] = np.inf
    a[1] = 0.0
    c[1] = 0.0
    a[2], b[:, 2] = np.finfo(dtype).tiny, np.finfo(dtype).tiny
    with np.errstate(all="ignore"):
        got = values(a, b, c, 1.7, 0.3)
    assert np.isinf(got[0, 0].real) == has_addend
    assert np.all(got[1] == 0.0)
    c[0, 0] = 1.0
    want = rounded_sum(a, b, c if has_addend else None, 1.7, 0.3 * has_addend)
    assert_same_bits(got.ravel()[1:], want.astype(dtype).ravel()[1:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinite_scalars_and_entries_go_past_what_is_kept(dtype):
    a = np.ones((2, 2), dtype)
    c = np.full((2, 2), 1e-10, dtype)

    def values(alpha, beta, x=a):
        with np.errstate(all="ignore"):
            return hg.gemm(x, a, c, alpha=alpha, beta=beta, accuracy="correct")

    values(1.5, 1e300)
    for alpha, beta in ((1.5, np.inf), (np.inf, 1.0), (1.5, -np.inf)):
        found = values(alpha, beta)
        want = np.inf if beta > 0 else -np.inf
        assert (found.real == want).all()
    assert np.isnan(values(1.5, np.nan).real).all()
    x = a.copy()
    x[0, 1] = np.nan
    for _ in range(2):
        found = values(1.3, 0.7, x)
        assert np.isnan(found[0].real).all()
        assert np.isfinite(found[1]).all()


def test_operands_that_a_pair_does_not_settle_are_not_tried_again(
    make_pair, monkeypatch
):
    a, b = make_pair("phi_1", 5, 6, 7)
    hg.gemm(a, b, alpha=3.0, accuracy="correct")
    monkeypatch.setattr("hifigemm.running.scaled_sums._sum_at_once", None)
    a[0, 0] = np.inf
    found = hg.gemm(a, b, alpha=3.0, accuracy="correct")
    assert not np.isfinite(found[0]).any()
    assert np.isfinite(found[1:]).all()


def test_reports_of_sums_of_a_pair_are_those_of_their_operands(make_pair):
    a, b = make_pair("phi_1", 5, 6, 7)
    for _ in range(2):
        got, report = hg.gemm(a, b, alpha=3.0, accuracy="correct", return_report=True)
        assert report.correct
        assert "alpha A B + beta C rounded once" in report.reason
        assert np.array_equal(got, hg.gemm(a, b, alpha=3.0, accuracy="correct"))


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_have_the_bits_of_the_cpu_on_a_gpu(assert_same_bits, torch, dtype, family):
    rng = np.random.default_rng([10, DTYPES.index(dtype), FAMILIES.index(family)])
    for _ in range(6):
        m, k, n = rng.integers(1, 40, 3)
        a = entries(rng, family, (m, k), dtype)
        b = entries(rng, "normal", (k, n), dtype)
        c = entries(rng, str(rng.choice(FAMILIES)), (m, n), dtype)
        alpha, beta = scalar(rng, dtype), scalar(rng, dtype)
        for addend, factor in ((c, beta), (None, 0.0)):
            options = {"alpha": alpha, "beta": factor, "accuracy": "correct"}
            want = hg.gemm(a, b, addend, **options)
            on_device = None if addend is None else torch.from_numpy(addend).cuda()
            x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
            found, report = hg.gemm(x, y, on_device, return_report=True, **options)
            assert report.correct
            assert_same_bits(found.cpu().numpy(), want)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_core_adds_real_multiples(assert_same_bits, dtype):
    from hifigemm.engines import core

    if core.loaded()[0] is None:
        pytest.skip("needs the compiled core")
    rng = np.random.default_rng(5)
    a, b, c = (
        entries(rng, "normal", shape, dtype) for shape in ((5, 7), (7, 4), (5, 4))
    )
    for alpha, beta in ((0.1, 0.7), (-3.0, 1.0), (2.0**-700 / 3, 0.0)):
        options = {"alpha": alpha, "beta": beta, "accuracy": "correct"}
        for _ in range(2):
            found, report = hg.gemm(a, b, c, return_report=True, **options)
            assert "compiled sums" in report.reason
            assert_same_bits(found, rounded_sum(a, b, c, alpha, beta))
            assert_same_bits(hg.gemm(a, b, c, **options), found)
    # No two words hold these products with beta: the general way does.
    c = entries(rng, "tiny", (5, 4), dtype)
    options = {"alpha": 0.1, "beta": 2.0**-900 / 3, "accuracy": "correct"}
    found, report = hg.gemm(a, b, c, return_report=True, **options)
    assert (
        "compiled sums in two words or more, each rounded once; alpha"
        not in report.reason
    )
    assert_same_bits(found, rounded_sum(a, b, c, 0.1, 2.0**-900 / 3))


@pytest.mark.parametrize(
    "shape", [(2, 1, 3, 4), (3, 4, 5, 1), (1, 1, 1, 1), (2, 3, 1, 2)]
)
def test_c_may_have_any_order_in_memory(assert_same_bits, shape):
    batch, m, k, n = shape
    rng = np.random.default_rng(shape)
    a, b = rng.standard_normal((batch, m, k)), rng.standard_normal((batch, k, n))
    c = rng.standard_normal((batch, m, n))
    options = {"alpha": 0.3, "beta": 0.7, "accuracy": "correct"}
    want = np.array([rounded_sum(a[i], b[i], c[i], 0.3, 0.7) for i in range(batch)])
    views = np.asfortranarray(c), np.swapaxes(np.swapaxes(c, 1, 2).copy(), 1, 2)
    for addend in (c, *views, np.repeat(c, 2, axis=2)[..., ::2]):
        for _ in range(2):
            assert_same_bits(hg.gemm(a, b, addend, **options), want)
