"""accuracy=Relative(r): every entry against the exact one, as a fraction, however much
its terms cancel.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base.formats import FP32, FP64
from hifigemm.model.accuracy import Target, resolve
from tests.exact_values import components, exact_entries
from tests.test_correct import DTYPES, NAMES, wide

SHAPES = ((1, 1, 1), (5, 1, 4), (7, 13, 6), (1, 64, 1), (3, 40, 5))


def check(c, exact, r, dtype):
    """|c - ab| <= r |ab|, but for half the smallest subnormal where the exact value
    lies below the normal numbers.
    """
    real = np.finfo(dtype)
    tiny = Fraction(float(real.tiny))
    half = Fraction(float(real.smallest_subnormal)) / 2
    largest = float(real.max)
    for x, y in zip(components(c), exact, strict=True):
        if isinstance(x, float):
            assert x > 0 if y > 0 else x < 0
            assert abs(y) > Fraction(largest)
        else:
            assert abs(x - y) <= Fraction(r) * abs(y) + (half if abs(y) < tiny else 0)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_entry_keeps_it(make_pair, name, dtype):
    u = float(np.finfo(dtype).eps) / 2
    for m, k, n in SHAPES:
        a, b = make_pair(name, m, k, n, dtype)
        exact = exact_entries(a, b)
        for r in (u, 3 * u, 2e4 * u, 1e-3):
            check(hg.matmul(a, b, accuracy=hg.Relative(r)), exact, r, dtype)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "name",
    [
        "uniform",
        "phi_1",
        "cancelling",
        "nearly_cancelling",
        "subnormal",
        "ties",
        "zeros",
    ],
)
@pytest.mark.parametrize(
    "scheme",
    [hg.Ozaki1(), hg.Ozaki1(product="fp32"), hg.Ozaki2(), hg.Ozaki2(scaling="fast")],
    ids=str,
)
def test_forced_schemes_keep_it_or_refuse(make_pair, name, scheme):
    for m, k, n in SHAPES:
        a, b = make_pair(name, m, k, n, "float64")
        for r in (1e-15, 1e-9, 0.1):
            try:
                c, report = hg.matmul(
                    a, b, accuracy=hg.Relative(r), scheme=scheme, return_report=True
                )
            except hg.AccuracyError:
                assert isinstance(scheme, hg.Ozaki2)
                assert wide(name) or name == "subnormal"
                continue
            check(c, exact_entries(a, b), r, "float64")
            assert type(report.scheme) is type(scheme)
            assert report.bound <= r
            assert report.relative == r


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("first", [0, 15, 30, 45])
def test_entries_just_below_overflow_stay_finite(make_pair, dtype, first):
    """What few slices add up to may lie beyond the largest float where the exact sum
    does not.
    """
    for seed in range(first, first + 15):
        a, b = make_pair("overflowing", 3, 3, 3, dtype, seed)
        exact = exact_entries(a, b)
        for r in (1e-3, 0.3):
            check(hg.matmul(a, b, accuracy=hg.Relative(r)), exact, r, dtype)
            for x, y in zip(
                components(hg.matmul(a, b, accuracy=r, scheme="ozaki1")),
                exact,
                strict=True,
            ):
                assert isinstance(x, Fraction) or abs(y) > Fraction(
                    float(np.finfo(dtype).max)
                )


def test_few_slices_do_where_nothing_cancels():
    rng = np.random.default_rng(1)
    a, b = rng.random((30, 40)), rng.random((40, 20))
    options = {"scheme": hg.Ozaki1(product="fp64"), "return_report": True}
    counts = [
        hg.matmul(a, b, accuracy=x, **options)[1].num_products
        for x in (hg.Relative(1e-3), "correct")
    ]
    assert counts[0] < counts[1]


@pytest.mark.usefixtures("without_core")
def test_entries_that_cancel_are_escalated():
    a = np.array([[2.0**400, 1.0, -(2.0**400)], [1.0, 1.0, 1.0]])
    c, report = hg.matmul(
        a, np.ones((3, 1)), accuracy=hg.Relative(1e-6), return_report=True
    )
    np.testing.assert_array_equal(c, [[1.0], [3.0]])
    assert "escalated" in report.reason


def test_targets():
    assert resolve(hg.Relative(FP64.u), FP64, 10) == Target(0.0, correct=True)
    found = resolve(hg.Relative(1e-9), FP64, 10)
    assert found.relative
    s, r, u = Fraction(found.r), Fraction(1e-9), Fraction(FP64.u)
    assert u + (1 + u) * s <= r
    assert str(found) == "|C - AB| <= 1e-09 |AB|"
    with pytest.raises(
        hg.PlanError,
        match=rf"Relative\(1e-09\): rounding to fp32 alone errs by up to 2\*\*-24 = {FP32.u}",
    ):
        resolve(hg.Relative(1e-9), FP32, 10)


@pytest.mark.parametrize(
    "r",
    [
        0,
        1,
        -1e-3,
        2.0,
        np.nan,
        np.inf,
        "1e-3",
        None,
        True,
        Fraction(1, 10**400),
        1 - Fraction(1, 10**400),
    ],
)
def test_what_is_no_relative_error(r):
    with pytest.raises(hg.PlanError, match="expected a number between 0 and 1"):
        hg.Relative(r)


@pytest.mark.parametrize("scheme", ["native", "multiword", "corrected"])
def test_schemes_that_round_their_sums_refuse(scheme):
    a = np.ones((3, 3), np.float32)
    with pytest.raises(hg.AccuracyError):
        hg.matmul(
            a,
            a,
            scheme=scheme,
            accuracy=hg.Relative(1e-3),
            engine="simulated-h100" if scheme != "native" else None,
        )


def test_gemm_keeps_it_for_the_whole_sum(make_pair):
    a, b = make_pair("uniform", 5, 9, 4, "float64")
    t = hg.matmul(a, b, accuracy="correct")
    r = 1e-10
    for alpha, beta in ((1.0, 1.0), (-2.0, 0.5), (0.25, -1.0), (0.3, 1.0), (3.0, 0.1)):
        near = -alpha / beta * t
        for c in (near, None):
            addend = None if c is None else beta
            options = {} if c is None else {"beta": beta}
            found = hg.gemm(a, b, c, alpha=alpha, accuracy=hg.Relative(r), **options)
            exact = exact_sums(a, b, c, alpha, addend)
            check(found, exact, r, "float64")
    np.testing.assert_array_equal(
        hg.gemm(a, b, t, alpha=0.0, beta=3.0, accuracy=hg.Relative(r)), 3.0 * t
    )


def exact_sums(a, b, c, alpha, beta):
    """Entries of alpha a @ b + beta c, without c where that is None."""
    exact = [Fraction(alpha) * x for x in exact_entries(a, b)]
    if c is None:
        return exact
    addends = (Fraction(beta) * Fraction(float(x)) for x in c.ravel())
    return [x + y for x, y in zip(exact, addends, strict=True)]


def test_plans_and_prepared_operands(make_pair):
    a, b = make_pair("nearly_cancelling", 6, 30, 5, "float64")
    r = 1e-12
    plan = hg.make_plan(a, b, accuracy=hg.Relative(r))
    assert "|AB|" in str(plan)
    exact = exact_entries(a, b)
    check(hg.matmul(a, b, plan=plan), exact, r, "float64")
    check(hg.matmul(hg.prepare(a, "left", plan=plan), b), exact, r, "float64")
    c = np.ones((6, 5))
    for left, options in ((a, {"plan": plan}), (hg.prepare(a, "left", plan=plan), {})):
        found = hg.gemm(left, b, c, beta=1.0, **options)
        check(found, exact_sums(a, b, c, 1.0, 1.0), r, "float64")
        found = hg.gemm(left, b, alpha=3.0, **options)
        check(found, exact_sums(a, b, None, 3.0, None), r, "float64")


def test_tensors_have_the_bits_of_arrays(make_pair):
    torch = pytest.importorskip("torch")
    from hifigemm.differentiable.arguments import accuracy_from, accuracy_text

    a, b = make_pair("nearly_cancelling", 6, 30, 5, "float64")
    want = hg.matmul(a, b, accuracy=hg.Relative(1e-12))
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    np.testing.assert_array_equal(
        hg.matmul(x, y, accuracy=hg.Relative(1e-12)).numpy(), want
    )
    x.requires_grad_()
    c = hg.matmul(x, y, accuracy=hg.Relative(1e-12))
    np.testing.assert_array_equal(c.detach().numpy(), want)
    c.sum().backward()
    assert accuracy_from(accuracy_text(hg.Relative(0.1))) == hg.Relative(0.1)
    with hg.emulate(hg.Relative(1e-12)):
        np.testing.assert_array_equal((x @ y).detach().numpy(), want)
