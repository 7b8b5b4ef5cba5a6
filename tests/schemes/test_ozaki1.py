"""Ozaki scheme I: counts, slices that fit their product, what is left out, and where it stops."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.numerics.bounds import exact_k_limit
from hifigemm.study.reference import correctly_rounded, exact_product, meets_promise

PRODUCTS = ("int8", "fp16", "bf16", "tf32", "fp32", "fp64")
LARGEST_WORD = {"int8": 128, "fp16": 2**11, "bf16": 2**8, "tf32": 2**11, "fp32": 2**24, "fp64": 2**53}


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("k", [1, 2, 3, 17, 1000, 100003])
def test_slices_fit_the_words_and_the_accumulator(product, k):
    plan = hg.make_plan(np.ones((1, k)), np.ones((k, 1)), scheme=hg.Ozaki1(product=product))
    h = 2 ** (plan.slice_bits - 1)
    assert plan.slice_bits >= 1
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
    # Operands on one grid that end after their slices: the result is the rounded sum of the kept slice products.
    rng = np.random.default_rng([count, 16])
    a, b = rng.integers(-(2**50), 2**50, (3, 6)).astype(float), rng.integers(-(2**50), 2**50, (6, 2)).astype(float)
    plan = hg.make_plan(a, b, scheme=hg.Ozaki1(product=product, num_slices=count))
    beta = plan.slice_bits

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
            x * y for p in range(count) for q in range(count - p) for x, y in zip(left[i][p], right[j][q], strict=True)
        )
        assert c[i, j] == (exact.numerator / exact.denominator if exact else 0.0)


def test_more_slices_err_less_until_the_result_is_correct(make_pair):
    a, b = make_pair("phi_1", 6, 20, 5)
    bounds = []
    for count in range(1, 30):
        c, report = hg.matmul(a, b, scheme=hg.Ozaki1(num_slices=count), return_report=True)
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
            hg.matmul(a, b, scheme=hg.Ozaki1(product=product, mode="dp"), return_report=True)[1].scheme.num_slices
        )
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_mode_sp_takes_fewer_slices_than_dp(make_pair):
    a, b = make_pair("phi_1", 20, 200, 20)
    sp, dp = (hg.make_plan(a, b, scheme=hg.Ozaki1(mode=mode)).scheme.num_slices for mode in ("sp", "dp"))
    assert sp < dp


def test_modes_do_not_pick_counts_per_block(make_pair, assert_same_bits, workspaces):
    a, b = make_pair("phi_2", 40, 30, 35)
    a[20:] = np.rint(a[20:])
    c, report = hg.matmul(a, b, scheme=hg.Ozaki1(mode="dp"), return_report=True)
    for share in (3, 10):
        d, other = hg.matmul(a, b, scheme=hg.Ozaki1(mode="dp"), workspace=report.workspace // share, return_report=True)
        assert other.scheme == report.scheme
        assert_same_bits(c, d)


@pytest.mark.parametrize("mode", ["dp", "sp"])
def test_modes_promise_nothing_but_the_stated_bound_and_keep_an_accuracy_or_refuse(make_pair, mode):
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
    assert "correct rounding" in str(hg.make_plan(a, b, scheme=hg.Ozaki1(mode="correct")))


@pytest.mark.parametrize("count", [1, 3, 9, 60])
def test_mode_correct_with_a_count_is_correct_or_refuses(make_pair, assert_same_bits, count):
    for name in ("integers", "phi_1", "cancelling"):
        a, b = make_pair(name, 6, 20, 5)
        try:
            scheme = hg.Ozaki1(num_slices=count, mode="correct")
            c, report = hg.matmul(a, b, scheme=scheme, return_report=True)
        except (hg.AccuracyError, hg.PlanError):
            continue
        assert report.correct
        assert_same_bits(c, correctly_rounded(a, b))


def test_refinement_touches_only_the_entries_that_need_it(make_pair, assert_same_bits):
    a, b = make_pair("uniform", 12, 20, 10)
    wide = make_pair("full_range", 1, 20, 1)
    a[3], b[:, 7] = wide[0][0], wide[1][:, 0]
    c, report = hg.matmul(a, b, accuracy="correct", scheme=hg.Ozaki1(product="fp64"), return_report=True)
    assert_same_bits(c, correctly_rounded(a, b))
    full = hg.make_plan(wide[0], wide[1], accuracy="correct", scheme=hg.Ozaki1(product="fp64", num_slices=80))
    assert report.num_products < full.num_products


def test_num_slices_at_its_largest_is_exact_for_the_whole_range(make_pair, assert_same_bits):
    a, b = make_pair("full_range", 3, 4, 2)
    for product in ("int8", "fp64"):
        c, report = hg.matmul(a, b, scheme=hg.Ozaki1(product=product, num_slices=4400), return_report=True)
        assert_same_bits(c, correctly_rounded(a, b))
        assert report.correct


def test_exact_products_need_no_more_slices_than_the_operands_have():
    a = np.arange(12.0).reshape(3, 4)
    report = hg.matmul(a, a.T, scheme=hg.Ozaki1(num_slices=50), return_report=True)[1]
    assert report.correct
    assert report.num_products == 1
    assert exact_product(a, a.T).fraction(0, 0)[0] == 14
