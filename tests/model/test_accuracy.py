"""Promises against the exact |A||B|: what was asked for is kept, and what a report
states is true.
"""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import hifigemm as hg
import hifigemm.numpy as hnp
from hifigemm.base.formats import FP32, FP64
from hifigemm.model.accuracy import level, resolve
from hifigemm.numerics.bounds import native_bound
from hifigemm.testing.reference import componentwise_error, meets_promise
from tests import hard_matrices as gen

NAMES = (
    "uniform",
    "phi_1",
    "phi_4",
    "phi_8",
    "phi_20",
    "full_range",
    "subnormal",
    "largest",
    "smallest",
    "sparse",
    "zeros",
    "vandermonde",
    "integers",
    "cancelling",
    "nearly_cancelling",
    "ties",
    "overflowing",
    "underflowing",
    "subnormal_times_large",
    "largest_times_smallest",
    "span_60",
    "opposed_spans",
    "badly_scaled",
    "empty_rows_and_columns",
    "subnormal_rows",
)
PARTS = {f"{i + 1} of 5": NAMES[i::5] for i in range(5)}
TARGETS = (1e-6, 1e-8, 1e-10, 1e-12, 1e-14, 1e-15, 1e-16, 1e-17, 1e-18)
FORCED = (
    hg.Ozaki1(),
    hg.Ozaki1(product="fp16"),
    hg.Ozaki1(product="bf16"),
    hg.Ozaki1(product="fp32"),
    hg.Ozaki1(product="fp64"),
    hg.Ozaki2(),
    hg.Ozaki2(scaling="fast"),
)
EXPLICIT = (
    hg.Ozaki1(num_slices=1),
    hg.Ozaki1(num_slices=2),
    hg.Ozaki1(product="fp16", num_slices=5),
    hg.Ozaki1(product="bf16", num_slices=3),
    hg.Ozaki1(product="fp64", num_slices=1),
    hg.Ozaki1(product="fp64", num_slices=3),
    hg.Ozaki1(num_slices=9),
    hg.Ozaki1(mode="dp"),
    hg.Ozaki1(product="fp16", mode="sp"),
    hg.Ozaki2(num_moduli=2),
    hg.Ozaki2(num_moduli=5, scaling="fast"),
    hg.Ozaki2(num_moduli=15),
    hg.Ozaki2(num_moduli=15, scaling="fast"),
    hg.Ozaki2(num_moduli=49),
)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("name", NAMES)
def test_a_number_is_kept_whatever_the_operands(make_pair, name, dtype):
    a, b = make_pair(name, 9, 33, 8, dtype)
    for r in TARGETS:
        c, report = hg.matmul(a, b, accuracy=r, return_report=True)
        assert meets_promise(c, a, b, r).all(), r
        assert report.bound <= r


@pytest.mark.thinned(3)
@pytest.mark.parametrize("scheme", FORCED, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_forced_schemes_keep_a_number_or_refuse(make_pair, scheme, name):
    for dtype, shape in (
        ("float32", (5, 9, 4)),
        ("float64", (9, 33, 8)),
        ("complex128", (4, 7, 5)),
    ):
        a, b = make_pair(name, *shape, dtype)
        for r in (1e-6, 1e-12, 1e-16, 1e-18):
            try:
                c, report = hg.matmul(
                    a, b, accuracy=r, scheme=scheme, return_report=True
                )
            except hg.AccuracyError:
                assert isinstance(scheme, hg.Ozaki2)
                continue
            assert meets_promise(c, a, b, r).all(), (dtype, r)
            assert report.bound <= r
            assert isinstance(report.scheme, type(scheme))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 10, 14, 20])
@pytest.mark.parametrize("name", ["uniform", "phi_2", "phi_8", "span_60", "integers"])
def test_too_few_moduli_for_a_number_are_refused(make_pair, count, name):
    for dtype in ("float64", "complex64"):
        a, b = make_pair(name, 6, 9, 5, dtype)
        for r in TARGETS:
            for scaling in ("accurate", "fast"):
                try:
                    c = hg.matmul(
                        a,
                        b,
                        accuracy=r,
                        scheme=hg.Ozaki2(num_moduli=count, scaling=scaling),
                    )
                except hg.AccuracyError:
                    continue
                assert meets_promise(c, a, b, r).all(), (dtype, r, scaling)


@pytest.mark.parametrize("count", [1, 2, 4, 8, 30])
def test_too_few_slices_for_a_number_are_refused(make_pair, count):
    for name in ("uniform", "phi_2", "phi_8", "span_60", "integers"):
        for dtype in ("float64", "complex64"):
            a, b = make_pair(name, 6, 9, 5, dtype)
            for r in TARGETS:
                try:
                    c = hg.matmul(a, b, accuracy=r, scheme=hg.Ozaki1(num_slices=count))
                except hg.AccuracyError:
                    continue
                assert meets_promise(c, a, b, r).all(), (name, dtype, r)


@pytest.mark.thinned(7)
@pytest.mark.parametrize("accuracy", [None, "fp32", "fp64"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("part", PARTS)
def test_named_accuracies_are_kept(make_pair, accuracy, dtype, part):
    for name in PARTS[part]:
        for scheme in ("auto", hg.Ozaki1(), hg.Ozaki1(product="fp64"), hg.Ozaki2()):
            a, b = make_pair(name, 5, 21, 4, dtype)
            try:
                c, report = hg.matmul(
                    a, b, accuracy=accuracy, scheme=scheme, return_report=True
                )
            except hg.AccuracyError:
                assert isinstance(scheme, hg.Ozaki2)
                continue
            assert meets_promise(c, a, b, report.bound).all(), (name, scheme)
            fmt = FP32 if dtype in ("float32", "complex64") else FP64
            terms = 21 if c.dtype.kind == "f" else 42
            assert report.bound <= max(
                resolve(accuracy, fmt, 21).r, native_bound(terms, fmt.u)
            )


@pytest.mark.thinned(3)
@pytest.mark.parametrize("scheme", EXPLICIT, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("part", PARTS)
def test_the_bound_of_the_report_holds(make_pair, scheme, dtype, part):
    for name in PARTS[part]:
        for shape in ((5, 1, 4), (6, 19, 7)):
            a, b = make_pair(name, *shape, dtype)
            c, report = hg.matmul(a, b, scheme=scheme, return_report=True)
            if math.isfinite(report.bound):
                assert meets_promise(c, a, b, report.bound).all(), (name, shape)
            if report.correct:
                assert componentwise_error(c, a, b, rounding=True) == 0.0


@pytest.mark.parametrize("product", ["int8", "fp16", "bf16", "tf32", "fp32", "fp64"])
def test_one_slice_errs_within_a_tight_bound(product):
    # k = 1 and remainders of almost half a unit on both sides: nearly the worst case of
    # what is left out.
    for bits in range(1, 28):
        a = np.array([[2.0**bits - 0.5 - 2.0**-20]])
        c, report = hg.matmul(
            a, a, scheme=hg.Ozaki1(product=product, num_slices=1), return_report=True
        )
        assert meets_promise(c, a, a, report.bound).all()


@pytest.mark.parametrize("phi", [0.1, 1.0, 2.0])
@pytest.mark.parametrize(
    "n", [17, 128, 256, pytest.param(1024, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_native_accuracy_errs_at_most_twice_as_much_as_native(phi, n, seed):
    rng = np.random.default_rng([seed, n])
    rows = min(n, 40)
    a, b = gen.phi_matrix(rng, (rows, n), phi), gen.phi_matrix(rng, (n, rows), phi)
    native = componentwise_error(a @ b, a, b)
    for scheme in (
        hg.Ozaki1(mode="dp"),
        hg.Ozaki1(product="fp16", mode="dp"),
        hg.Ozaki1(product="fp64", mode="dp"),
        hg.Ozaki1(),
        hg.Ozaki1(product="fp64"),
        hg.Ozaki2(),
        hg.Ozaki2(scaling="fast"),
    ):
        assert (
            componentwise_error(hg.matmul(a, b, scheme=scheme), a, b) <= 2 * native
        ), scheme


@pytest.mark.parametrize("phi", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("n", [17, 256, pytest.param(1024, marks=pytest.mark.slow)])
def test_single_accuracy_errs_at_most_twice_as_much_as_native(phi, n):
    rng = np.random.default_rng(n)
    rows = min(n, 40)
    a, b = (
        gen.phi_matrix(rng, shape, phi, "float32") for shape in ((rows, n), (n, rows))
    )
    native = componentwise_error(a @ b, a, b)
    for scheme in (
        hg.Ozaki1(mode="sp"),
        hg.Ozaki1(product="fp16", mode="sp"),
        hg.Ozaki1(),
        hg.Ozaki2(),
    ):
        assert (
            componentwise_error(hg.matmul(a, b, scheme=scheme), a, b) <= 2 * native
        ), scheme


@pytest.mark.parametrize("r", [1e-6, 1e-12, 1e-18])
@pytest.mark.parametrize(
    "scheme",
    ["auto", hg.Ozaki1(), hg.Ozaki1(product="fp64"), hg.Ozaki2(scaling="fast")],
    ids=str,
)
def test_numbers_are_kept_by_stacks_and_plans_for_other_operands(make_pair, r, scheme):
    a, b = (
        np.stack(x)
        for x in zip(
            *(make_pair(name, 5, 12, 4) for name in ("uniform", "phi_8", "span_60"))
        )
    )
    assert meets_promise(hg.matmul(a, b, accuracy=r, scheme=scheme), a, b, r).all()
    assert meets_promise(
        hg.matmul(a[:, None], b[0], accuracy=r, scheme=scheme), a[:, None], b[0], r
    ).all()
    plan = hg.make_plan(np.ones((5, 12)), np.ones((12, 4)), accuracy=r, scheme=scheme)
    for name in NAMES:
        a, b = make_pair(name, 3, 12, 6)
        try:
            c = hg.matmul(a, b, plan=plan)
        except hg.AccuracyError:
            assert isinstance(scheme, hg.Ozaki2)
            continue
        assert meets_promise(c, a, b, r).all(), name


@pytest.mark.parametrize("scheme", ["auto", hg.Ozaki1(), hg.Ozaki2()], ids=str)
@pytest.mark.parametrize("r", [1e-6, 1e-18])
def test_long_inner_dimensions_keep_a_number(make_pair, scheme, r):
    a, b = make_pair("phi_2", 1, 100003, 1)
    assert meets_promise(hg.matmul(a, b, accuracy=r, scheme=scheme), a, b, r).all()


@pytest.mark.parametrize(
    "scheme", [hg.Ozaki1(num_slices=2), hg.Ozaki2(num_moduli=3), hg.Native()], ids=str
)
@pytest.mark.parametrize("accuracy", [1e-18, "correct"])
def test_a_forced_scheme_that_cannot_keep_its_promise_says_so_with_numbers(
    make_pair, scheme, accuracy
):
    a, b = make_pair("phi_2", 6, 9, 5)
    with pytest.raises(hg.AccuracyError, match=r"\(6 x 9\) @ \(9 x 5\)") as error:
        hg.matmul(a, b, accuracy=accuracy, scheme=scheme)
    assert isinstance(error.value, hg.HifigemmError)
    assert ("1e-18" if accuracy == 1e-18 else "correct rounding") in str(error.value)


def test_auto_takes_the_native_product_where_its_worst_case_suffices(make_pair):
    a, b = make_pair("phi_1", 6, 9, 5)
    for accuracy, native in (
        (None, True),
        ("fp64", True),
        (1e-6, True),
        (1e-15, True),
        (9e-16, False),
        ("correct", False),
    ):
        report = hg.matmul(a, b, accuracy=accuracy, return_report=True)[1]
        assert report.native is native
        assert isinstance(report.scheme, hg.Native) is native
    assert hg.matmul(a, b, return_report=True)[1].bound == 9 * 2.0**-53 / (
        1 - 9 * 2.0**-53
    )


@pytest.mark.parametrize(
    ("dtype", "accuracy", "u"),
    [
        ("float64", None, 2.0**-53),
        ("complex64", "fp32", 2.0**-24),
        ("float32", "fp64", 2.0**-53),
    ],
)
def test_plan_report_log_and_strict_mode_state_one_worst_case(
    make_pair, caplog, dtype, accuracy, u
):
    # Smaller products of float32 are sums of the compiled core.
    a, b = make_pair("phi_1", 120, 30, 100, dtype)
    terms = 60 if dtype == "complex64" else 30
    worst, asked = native_bound(terms, u), 4 * u
    plan = hg.make_plan(a, b, accuracy=accuracy)
    with caplog.at_level("INFO", "hifigemm"):
        report = hg.matmul(a, b, accuracy=accuracy, return_report=True)[1]
    with hg.strict(), pytest.raises(hg.AccuracyError) as refused:
        hg.matmul(a, b, accuracy=accuracy)
    assert (plan.bound, plan.target.r, report.bound) == (worst, asked, worst)
    promise = f"accuracy   |C - AB| <= {worst:.3g} |A||B| + u |AB|: the worst case of a native product, accepted at"
    assert promise in str(plan)
    assert f"{worst:.3g} |A||B|" in str(refused.value)
    assert f"{asked:.3g} |A||B|" in str(refused.value)
    for text in (str(plan), report.reason, caplog.text):
        assert (
            f"{worst:.3g} |A||B|, accepted at the level of fp{64 if u == 2.0**-53 else 32} (r = {asked:.3g})"
            in text
        )


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    "name", ["phi_1", "phi_8", "underflowing", "sparse", "integers"]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize(
    "accuracy", [None, "fp32", "fp64", 1e-3, 1e-12, 1e-18, "correct"]
)
def test_no_report_exceeds_the_bound_of_its_plan(make_pair, name, dtype, accuracy):
    a, b = make_pair(name, 6, 30, 5, dtype)
    for scheme in ("auto", *FORCED):
        plan = hg.make_plan(a, b, accuracy=accuracy, scheme=scheme)
        for options in ({"accuracy": accuracy, "scheme": scheme}, {"plan": plan}):
            assert hg.matmul(a, b, return_report=True, **options)[1].bound <= plan.bound


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_a_plan_for_nothing_keeps_its_promise_of_something(make_pair, shape):
    plan = hg.make_plan(
        np.ones((shape[0], 30)), np.ones((30, shape[1])), accuracy="correct"
    )
    a, b = make_pair("phi_1", 6, 30, 5)
    c, report = hg.matmul(a, b, plan=plan, return_report=True)
    assert report.correct
    assert meets_promise(c, a, b, 0.0).all()


def test_levels_grow_with_the_square_root_of_k():
    assert level(FP64, 1) == 4 * 2.0**-53
    assert level(FP64, 256) == 4 * 2.0**-53
    assert level(FP32, 1024) == 8 * 2.0**-24
    assert resolve("fp32", FP64, 4096).r == 16 * 2.0**-24
    assert resolve(None, FP32, 4096).r == resolve("fp32", FP32, 4096).r


@pytest.mark.parametrize(
    "accuracy",
    [-1e-3, math.nan, math.inf, "fp16", "Correct", True, [1e-3], 1j, b"fp64"],
)
def test_unknown_accuracies_are_refused_by_name(accuracy):
    with pytest.raises(hg.PlanError, match="accuracy"):
        hg.matmul(np.ones((2, 2)), np.ones((2, 2)), accuracy=accuracy)


@pytest.mark.parametrize(
    "accuracy", [1, 12, 1.0, 15.5, np.int64(12), np.float32(7), 1e300]
)
def test_a_count_of_digits_is_no_accuracy(accuracy):
    a = np.ones((2, 2))
    words = re.escape(
        f"accuracy={float(accuracy):g}: expected an error bound such as 1e-12, not a count of digits"
    )
    for call in (
        lambda **options: hg.matmul(a, a, **options),
        lambda **options: hg.matmul(a.astype(int), a.astype(int), **options),
        lambda **options: hg.gemm(a, a, alpha=0.0, **options),
        lambda **options: hg.make_plan(a, a, **options),
        lambda **options: hg.warmup(a, a, **options),
        lambda **options: hnp.dot(a, a, **options),
        lambda **options: hnp.einsum("ij,jk,kl", a, a, a, **options),
        lambda **options: hnp.matrix_power(a, 0, **options),
        lambda **options: hnp.syrk(a, **options),
    ):
        with pytest.raises(hg.PlanError, match=words):
            call(accuracy=accuracy)
    with pytest.raises(hg.PlanError, match="between 0 and 1, such as 1e-12"):
        hg.Relative(accuracy)


def test_the_largest_number_below_one_is_an_accuracy():
    a = np.ones((2, 2))
    assert hg.make_plan(a, a, accuracy=float(np.nextafter(1.0, 0.0))).target.r < 1.0


@pytest.mark.parametrize(
    "accuracy", [np.float32(1e-6), np.float64(1e-18), 0, np.float32(0.5)]
)
def test_numpy_numbers_are_accepted(make_pair, accuracy):
    a, b = make_pair("phi_1", 6, 9, 5)
    assert meets_promise(
        hg.matmul(a, b, accuracy=accuracy), a, b, float(accuracy)
    ).all()
