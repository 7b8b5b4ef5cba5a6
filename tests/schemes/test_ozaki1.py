"""Ozaki scheme I: counts, slices that fit their product, what is left out, and where it
stops.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines import engine_for
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.model.accuracy import Target
from hifigemm.model.engine import SCALED_ALONG_K
from hifigemm.model.plan import Evidence
from hifigemm.model.problem import Problem
from hifigemm.numerics.bounds import (
    exact_k_limit,
    first_slice_count,
    ozaki1_error_exponent,
)
from hifigemm.numerics.slicing import diagonals_in_words
from hifigemm.running.executor import execute
from hifigemm.schemes.ozaki1 import (
    _diagonals,
    _small_diagonals,
    _sum_bits,
    first_num_slices,
    slice_bits,
)
from hifigemm.testing.reference import (
    componentwise_error,
    correctly_rounded,
    exact_product,
    meets_promise,
)
from tests.hard_matrices import with_units

PRODUCTS = ("int8", "fp16", "bf16", "tf32", "fp32", "fp64")


def beta_of(plan):
    """Bits of the slices of a plan."""
    return slice_bits(plan.problem, plan.spec)


LARGEST_WORD = {
    "int8": 128,
    "fp16": 2**11,
    "bf16": 2**8,
    "tf32": 2**11,
    "fp32": 2**24,
    "fp64": 2**53,
}


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("k", [1, 2, 3, 17, 1000, 100003])
def test_slices_fit_the_words_and_the_accumulator(product, k):
    plan = hg.make_plan(
        np.ones((1, k)), np.ones((k, 1)), scheme=hg.Ozaki1(product=product)
    )
    h = 2 ** (beta_of(plan) - 1)
    assert beta_of(plan) >= 1
    assert h <= LARGEST_WORD[product]
    assert plan.k_block == exact_k_limit(plan.product.accumulator_max, h, h)
    assert plan.k_block >= min(k, plan.product.k_block)


@pytest.mark.parametrize("product", PRODUCTS)
def test_k_of_one_is_capped_by_the_word(product):
    a = np.array([[np.nextafter(1.0, 0)]])
    c = hg.matmul(a, a, scheme=hg.Ozaki1(product=product), accuracy="correct")
    assert c == correctly_rounded(a, a)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("count", [1, 2, 3, 6, 11])
def test_kept_diagonals_are_summed_exactly_and_rounded_once(product, count):
    # Operands on one grid that end after their slices: the result is the rounded sum of
    # the kept slice products.
    rng = np.random.default_rng([count, 16])
    a = rng.integers(-(2**50), 2**50, (3, 6)).astype(float)
    b = rng.integers(-(2**50), 2**50, (6, 2)).astype(float)
    plan = hg.make_plan(a, b, scheme=hg.Ozaki1(product=product, num_slices=count))
    beta = beta_of(plan)

    two, base = product == "int8", 2**beta  # INT8 digits are -128 .. 127

    def slices(rows):
        out = []
        for row in rows:
            rest, parts = [Fraction(float(x)) for x in row], []
            largest = max(abs(x) for x in rest)
            e = max(int(np.frexp(x)[1]) for x in row)
            e += two and largest >= Fraction(base - 2, base - 1) * Fraction(2) ** e
            for p in range(count):
                grid = Fraction(2) ** (e - (beta - 1) - beta * p)
                words = [round(x / grid) for x in rest]
                if two:
                    words = [
                        w + (x / grid - w >= Fraction(base // 2 - 1, base - 1))
                        for x, w in zip(rest, words, strict=True)
                    ]
                    assert all(-128 <= w <= 127 for w in words)
                rest = [x - w * grid for x, w in zip(rest, words, strict=True)]
                parts.append([w * grid for w in words])
            out.append(parts)
        return out

    left, right = slices(a), slices(b.T)
    c = hg.matmul(a, b, plan=plan)
    for i, j in np.ndindex(c.shape):
        exact = sum(
            x * y
            for p in range(count)
            for q in range(count - p)
            for x, y in zip(left[i][p], right[j][q], strict=True)
        )
        assert c[i, j] == (exact.numerator / exact.denominator if exact else 0.0)


def test_more_slices_err_less_until_the_result_is_correct(make_pair):
    a, b = make_pair("phi_1", 6, 20, 5)
    bounds = []
    for count in range(1, 30):
        c, report = hg.matmul(
            a, b, scheme=hg.Ozaki1(num_slices=count), return_report=True
        )
        assert meets_promise(c, a, b, report.bound).all()
        bounds.append(report.bound)
        assert report.correct is (report.bound == 0)
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] == 0.0


@pytest.mark.parametrize("product", ["int8", "fp16"])
def test_mode_dp_takes_more_slices_for_wider_exponents(make_pair, product):
    counts = []
    for name in ("phi_0.1", "phi_1", "phi_2", "phi_8"):
        a, b = make_pair(name, 20, 200, 20)
        counts.append(
            hg.matmul(
                a, b, scheme=hg.Ozaki1(product=product, mode="dp"), return_report=True
            )[1].scheme.num_slices
        )
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_mode_sp_takes_fewer_slices_than_dp(make_pair):
    a, b = make_pair("phi_1", 20, 200, 20)
    sp, dp = (
        hg.make_plan(a, b, scheme=hg.Ozaki1(mode=mode)).scheme.num_slices
        for mode in ("sp", "dp")
    )
    assert sp < dp


@pytest.mark.parametrize("mode", ["dp", "sp"])
@pytest.mark.parametrize("count", [1, 3, 7, 12])
def test_a_number_of_slices_goes_before_the_estimate_of_a_mode(
    mode, count, make_pair, assert_same_bits
):
    a, b = make_pair("phi_2", 20, 70, 20)
    c = hg.matmul(a, b, scheme=hg.Ozaki1(mode=mode, num_slices=count))
    assert_same_bits(c, hg.matmul(a, b, scheme=hg.Ozaki1(num_slices=count)))

    estimated, report = hg.matmul(a, b, scheme=hg.Ozaki1(mode=mode), return_report=True)
    assert_same_bits(hg.matmul(a, b, scheme=report.scheme), estimated)


def test_modes_do_not_pick_counts_per_block(make_pair, assert_same_bits, workspaces):
    a, b = make_pair("phi_2", 40, 30, 35)
    a[20:] = np.rint(a[20:])
    c, report = hg.matmul(a, b, scheme=hg.Ozaki1(mode="dp"), return_report=True)
    for share in (3, 10):
        d, other = hg.matmul(
            a,
            b,
            scheme=hg.Ozaki1(mode="dp"),
            workspace=report.workspace // share,
            return_report=True,
        )
        assert other.scheme == report.scheme
        assert_same_bits(c, d)


@pytest.mark.parametrize("mode", ["dp", "sp"])
def test_modes_promise_nothing_but_the_stated_bound_and_keep_an_accuracy_or_refuse(
    make_pair, mode
):
    for name in ("phi_0.1", "phi_8", "cancelling", "full_range", "zeros"):
        a, b = make_pair(name, 6, 20, 5)
        c, report = hg.matmul(a, b, scheme=hg.Ozaki1(mode=mode), return_report=True)
        if np.isfinite(report.bound):
            assert meets_promise(c, a, b, report.bound).all()
        for r in (1e-6, 1e-12, 1e-18):
            try:
                c = hg.matmul(a, b, scheme=hg.Ozaki1(mode=mode), accuracy=r)
            except hg.AccuracyError:
                continue
            assert meets_promise(c, a, b, r).all()


def test_mode_correct_fills_in_its_count(make_pair):
    a, b = make_pair("phi_1", 6, 20, 5)
    report = hg.matmul(a, b, scheme=hg.Ozaki1(mode="correct"), return_report=True)[1]
    assert report.correct
    assert isinstance(report.scheme.num_slices, int)
    assert "correct rounding" in str(
        hg.make_plan(a, b, scheme=hg.Ozaki1(mode="correct"))
    )


@pytest.mark.parametrize("count", [1, 3, 9, 60])
def test_mode_correct_with_a_count_is_correct_or_refuses(
    make_pair, assert_same_bits, count
):
    for name in ("integers", "phi_1", "cancelling"):
        a, b = make_pair(name, 6, 20, 5)
        try:
            scheme = hg.Ozaki1(num_slices=count, mode="correct")
            c, report = hg.matmul(a, b, scheme=scheme, return_report=True)
        except (hg.AccuracyError, hg.PlanError):
            continue
        assert report.correct
        assert_same_bits(c, correctly_rounded(a, b))


def test_escalation_touches_only_the_entries_that_need_it(make_pair, assert_same_bits):
    a, b = make_pair("uniform", 12, 20, 10)
    wide = make_pair("full_range", 1, 20, 1)
    a[3], b[:, 7] = wide[0][0], wide[1][:, 0]
    c, report = hg.matmul(
        a, b, accuracy="correct", scheme=hg.Ozaki1(product="fp64"), return_report=True
    )
    assert_same_bits(c, correctly_rounded(a, b))
    full = hg.make_plan(
        wide[0],
        wide[1],
        accuracy="correct",
        scheme=hg.Ozaki1(product="fp64", num_slices=80),
    )
    assert report.num_products < full.num_products


def test_num_slices_at_its_largest_is_exact_for_the_whole_range(
    make_pair, assert_same_bits
):
    a, b = make_pair("full_range", 3, 4, 2)
    for product in ("int8", "fp64"):
        c, report = hg.matmul(
            a, b, scheme=hg.Ozaki1(product=product, num_slices=4400), return_report=True
        )
        assert_same_bits(c, correctly_rounded(a, b))
        assert report.correct


def test_exact_products_need_no_more_slices_than_the_operands_have():
    a = np.arange(12.0).reshape(3, 4)
    report = hg.matmul(a, a.T, scheme=hg.Ozaki1(num_slices=50), return_report=True)[1]
    assert report.correct
    assert report.num_products == 1
    assert exact_product(a, a.T).fraction(0, 0)[0] == 14


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_first_counts_leave_out_what_typical_data_allow(dtype):
    # With slices of one bit a count tells every bit that is wanted; see
    # `first_num_slices`.
    def bits(target, batch=1, m=1, n=1, k=1):
        count = first_num_slices(Problem(batch, m, n, k, np.dtype(dtype)), target, 1)
        wanted = {bits for bits in range(3, 200) if first_slice_count(1, bits) == count}
        assert len(wanted) == 1
        return wanted.pop()

    correct, doubled = Target(0.0, correct=True), dtype == "complex64"
    t = 53 if dtype == "float64" else 24
    for k, more in ((1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (2**20, 10)):
        if not doubled:
            assert bits(correct, k=k) == t + 1 + 6 + 6 + more
    assert bits(correct, k=2, m=32, n=32) == t + 1 + 6 + 6 + doubled
    assert bits(correct, k=2, m=32, n=33) == t + 1 + 7 + 6 + doubled
    assert bits(correct, k=2, m=2**5, n=2**6, batch=2**9) == t + 1 + 16 + 6 + doubled
    for x in (1, 5, 40, 100):
        assert bits(Target(2.0**-x), k=2**17, m=77) == x + 6
        assert bits(Target(0.75 * 2.0**-x)) == x + 1 + 6


@pytest.mark.parametrize("beta", [1, 2, 3, 7, 8, 11, 22])
@pytest.mark.parametrize("k", [1, 2, 3, 1000, 1024])
def test_bits_of_sums_hold_the_largest_sum_of_all_diagonals(monkeypatch, beta, k):
    # D_s is a sum of s + 1 products of k terms of at most h**2; the last diagonal kept
    # has the unit 1.
    plan = hg.make_plan(np.ones((1, k)), np.ones((k, 1)), scheme=hg.Ozaki1())
    monkeypatch.setattr(
        "hifigemm.schemes.ozaki1.slice_bits", lambda problem, spec: beta
    )
    waste = []
    for kept in (1, 2, 3, 8, 40, 300):
        largest = sum(
            (s + 1) * k * 4 ** (beta - 1) << (beta * (kept - 1 - s))
            for s in range(kept)
        )
        waste.append(_sum_bits(plan, kept) - largest.bit_length())
        assert largest < 2 ** _sum_bits(plan, kept)
    if k in (1, 2, 1024):
        assert min(waste) <= (0 if beta == 1 else 1)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("accuracy", [None, 1e-5, "correct"])
def test_counts_come_from_the_target_where_none_is_given(dtype, accuracy):
    a = np.ones((30, 40), dtype)
    plan = hg.make_plan(a, a.T, scheme=hg.Ozaki1(), accuracy=accuracy)
    count = first_num_slices(plan.problem, plan.target, beta_of(plan))
    assert plan.scheme == hg.Ozaki1(num_slices=count)
    assert plan.num_products == count * (count + 1) // 2 * (
        4 if dtype == "complex128" else 1
    )
    assert plan.reason == f"{count} slices of {beta_of(plan)} bits for {plan.target}"


@pytest.mark.parametrize(("dtype", "each"), [("float32", 1), ("complex64", 4)])
def test_products_are_counted_as_they_are_made(dtype, each):
    # Rows of one slice and columns of three: the diagonals have one pair each; with all
    # slices two more.
    a, b = np.ones((2, 3), dtype), np.ones((3, 2), dtype)
    b[0] = 1 + 2.0**-20
    for count, made in ((1, 1), (2, 2), (3, 3), (9, 3)):
        for x, y in ((a, b), (b.T, a.T)):
            report = hg.matmul(
                x, y, scheme=hg.Ozaki1(num_slices=count), return_report=True
            )[1]
            assert report.num_products == each * made
            assert report.correct is (made == 3)
    for count, made in ((1, 1), (2, 3), (3, 6), (4, 8), (5, 9), (9, 9)):
        report = hg.matmul(
            b.T, b, scheme=hg.Ozaki1(num_slices=count), return_report=True
        )[1]
        assert report.num_products == each * made
        assert report.correct is (made == 9)


def test_all_kinds_of_target_are_escalated_to_twice_the_slices_and_to_the_largest_count_at_last():
    a = np.ones((3, 4))
    engine = engine_for("numpy")
    for count, then in (
        (1, 2),
        (7, 14),
        (2200, 4400),
        (3000, 4400),
        (4399, 4400),
        (4400, None),
    ):
        plan = hg.make_plan(a, a.T, scheme=hg.Ozaki1(num_slices=count, mode="correct"))
        finer = plan.scheme.escalate(plan, plan.problem, engine)
        assert (None if finer is None else finer.scheme.num_slices) == then


def test_sums_that_no_slices_keep_in_int64_are_refused():
    engine = engine_for("numpy")
    for k, bits in ((2**46, 4), (2**50, 1)):
        plan = hg.Ozaki1("fp64").plan(
            Problem(1, 1, 1, k, np.dtype("float64")), Target(1e-9), engine, None, None
        )
        assert beta_of(plan) == bits
    with pytest.raises(
        hg.PlanError, match="no slice size is exact for k = 2251799813685248"
    ):
        hg.Ozaki1("fp64").plan(
            Problem(1, 1, 1, 2**51, np.dtype("float64")),
            Target(1e-9),
            engine,
            None,
            None,
        )


def test_only_estimates_look_at_operands():
    problem = Problem(1, 2, 2, 2, np.dtype(float))
    engine = NumpyEngine()
    x = np.full((1, 2, 2), 1 / 3)
    for mode in ("dp", "sp"):
        found = hg.Ozaki1(mode=mode).evidence(
            problem, Target(1e-9), x, x, engine, 2**28
        )
        assert found == Evidence(num_slices=found.num_slices)
    for scheme in (
        hg.Ozaki1(),
        hg.Ozaki1(num_slices=3),
        hg.Ozaki1(mode="correct"),
        hg.Ozaki1(num_slices=3, mode="dp"),
    ):
        assert not scheme.needs_evidence(problem, Target(1e-9), engine)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_splits_know_their_vectors_and_begin_at_the_largest_entry(product, dtype):
    # Only digits -h .. h - 1 leave no room for a number just below a power of two.
    plan = hg.make_plan(
        np.ones((3, 5), dtype),
        np.ones((5, 2), dtype),
        scheme=hg.Ozaki1(product, num_slices=4),
    )
    engine, width = engine_for("numpy"), 2 if dtype == "complex128" else 1
    x = np.full((2, 3, 5), np.nextafter(1.0, 0), dtype)
    x[:, 1] = 0.75
    left = plan.scheme.split(plan, x, "left", None, engine)
    right = plan.scheme.split(plan, np.swapaxes(x, 1, 2), "right", None, engine)
    assert (left.vectors, right.vectors) == (3, 3)
    usual = 1 - beta_of(plan)
    full = usual + (product == "int8")
    assert left.unit[0, :, 0].tolist() == [full, usual, full]
    assert right.unit[0, 0].tolist() == list(np.repeat([full, usual, full], width))


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("count", [1, 3, 6])
def test_integers_are_judged_in_the_units_that_they_have(monkeypatch, product, count):
    # The entry is a power of two, and kept whole: floor(log2 |V|) says what its unit
    # is.
    def judge(plan, left, right, engine, rounded, exact, err, lowest):
        assert exact.all()
        largest = [math.frexp(x.max())[1] for x in (a, b)]
        assert rounded.magnitude.item() - lowest + sum(largest) == math.log2(c)
        kept = min(count, left.count + right.count - 1)
        beta = beta_of(plan)
        assert lowest == beta * (kept - 1) + 2 * (beta - 1)
        assert err == ozaki1_error_exponent(2, kept, beta, product == "int8") - lowest
        return exact, 0.0

    monkeypatch.setattr("hifigemm.schemes.certify.certified_entries", judge)
    a, b, c = np.array([[0.75, 0.25]]), np.array([[4.0], [20.0]]), 8.0
    assert hg.matmul(a, b, scheme=hg.Ozaki1(product, count), return_report=True)[0] == c


class BoundedEngine(NumpyEngine):
    """Words are no larger than it is told; it keeps what it was told."""

    def __init__(self):
        self.told = []

    def exact_product(self, spec, a, b, max_a, max_b):
        self.told.append((spec.name, max_a, max_b))
        assert max(abs(a.astype(float)).max(), abs(b.astype(float)).max()) <= max_a
        return super().exact_product(spec, a, b, max_a, max_b)


@pytest.mark.parametrize("product", ["int8", "bf16"])
def test_products_are_told_how_large_slices_are(product):
    plan = hg.make_plan(np.ones((1, 2)), np.ones((2, 1)), scheme=hg.Ozaki1(product, 3))
    a, b = np.array([[[1 / 3, 0.999]]]), np.array([[[-1 / 7], [0.5]]])
    engine, h = BoundedEngine(), 2 ** (beta_of(plan) - 1)
    assert execute(plan, a, b, engine, 2**28)[1].num_products == 6
    assert set(engine.told) == {(product, h, h)}


@pytest.mark.parametrize("scheme", [hg.Ozaki1(), hg.Ozaki1(mode="dp"), hg.Ozaki2()])
def test_a_count_comes_from_a_plan(scheme):
    with pytest.raises(hg.PlanError, match="it comes from a plan"):
        _ = scheme.count


# Scaling along k: powers of two between the columns of A and the rows of B.


@pytest.mark.parametrize("product", ["int8", "fp16", "fp64"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_inner_scaling_keeps_the_error_of_data_without_units(make_pair, product, dtype):
    a, b = make_pair("phi_0.1", 20, 120, 18, dtype)
    scheme = hg.Ozaki1(product, 2 if product == "fp64" else 4)
    plain = componentwise_error(hg.matmul(a, b, scheme=scheme), a, b)
    for span in (30, 60, 600):
        x, y = with_units(a, b, span)
        c, report = hg.matmul(
            x, y, scheme=replace(scheme, scaling="inner"), return_report=True
        )
        error = componentwise_error(c, x, y)
        # Two bits of either operand: powers of two meet the pattern of its entries to
        # a bit, and slices begin at powers of two.
        assert error <= 2**4 * plain
        assert SCALED_ALONG_K in report.reason
        assert meets_promise(c, x, y, report.bound).all()
        without = componentwise_error(hg.matmul(x, y, scheme=scheme), x, y)
        assert without > 2**10 * error


@pytest.mark.parametrize("mode", ["dp", "correct", None])
def test_modes_take_the_slices_of_data_without_units(make_pair, mode):
    a, b = make_pair("phi_0.1", 20, 120, 18)
    x, y = with_units(a, b, 200)
    scheme = hg.Ozaki1(mode=mode)
    accuracy = 1e-14 if mode is None else None
    plain = hg.matmul(a, b, scheme=scheme, accuracy=accuracy, return_report=True)[1]
    inner = replace(scheme, scaling="inner")
    c, report = hg.matmul(x, y, scheme=inner, accuracy=accuracy, return_report=True)
    assert report.num_products <= 1.5 * plain.num_products
    assert meets_promise(c, x, y, report.bound).all()
    if mode == "correct":
        assert (c == correctly_rounded(x, y)).all()


@pytest.mark.parametrize("family", ["phi_1", "phi_4", "sparse", "zeros"])
def test_inner_scaling_keeps_the_bits_of_data_without_a_pattern(
    make_pair, assert_same_bits, family
):
    a, b = make_pair(family, 20, 120, 18)
    scheme = hg.Ozaki1(num_slices=6)
    inner = replace(scheme, scaling="inner")
    c, report = hg.matmul(a, b, scheme=inner, return_report=True)
    assert_same_bits(c, hg.matmul(a, b, scheme=scheme))
    assert SCALED_ALONG_K not in report.reason


def test_prepared_operands_are_scaled_with_the_other_one(make_pair, assert_same_bits):
    a, b = with_units(*make_pair("phi_0.1", 20, 120, 18), 60)
    scheme = hg.Ozaki1(num_slices=6, scaling="inner")
    left = hg.prepare(a, "left", scheme=scheme)
    right = hg.prepare(b, "right", scheme=scheme)
    wanted = hg.matmul(a, b, scheme=scheme)
    for x, y in ((left, b), (a, right), (left, right)):
        assert_same_bits(hg.matmul(x, y), wanted)


@pytest.mark.parametrize("word_bits", [53, 62])
@pytest.mark.parametrize("counts", [(8, 8), (2, 5), (5, 1), (1, 1)])
@pytest.mark.parametrize("batch", [1, 3])
def test_diagonals_of_one_stacked_product_are_those_of_several(
    batch, counts, word_bits
):
    rng = np.random.default_rng(4)
    a = rng.standard_normal((batch, 4, 6))
    b = rng.standard_normal((batch, 6, 3))
    plan = hg.make_plan(a, b, scheme=hg.Ozaki1(num_slices=8))
    engine = NumpyEngine()
    left = plan.scheme.split(plan, a, "left", None, engine)
    right = plan.scheme.split(plan, b, "right", None, engine)

    # The first slices of both, those of B in reverse.
    left = replace(left, planes=left.planes[:, :, : counts[0] * 6], count=counts[0])
    last = right.planes[:, (right.count - counts[1]) * 6 :]
    right = replace(right, planes=last, count=counts[1])
    num_diagonals = min(8, sum(counts) - 1)
    lengths = diagonals_in_words(6, num_diagonals, beta_of(plan), word_bits)
    found = _small_diagonals(plan, left, right, engine, lengths)
    want = _diagonals(plan, left, right, engine, lengths)
    np.testing.assert_array_equal(found, want)
