"""Ozaki scheme II: exact integers behind every result, refusals, and the counts it
chooses.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines import engine_for
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.model.accuracy import NO_PROMISE, NOTHING_STATED, Target
from hifigemm.model.engine import SCALED_ALONG_K
from hifigemm.model.plan import Evidence, Verification
from hifigemm.model.problem import Problem
from hifigemm.numerics.bits import NO_BIT
from hifigemm.numerics.embedding import components
from hifigemm.numerics.residues import moduli_set
from hifigemm.numerics.scaling import (
    balance,
    gained_bits,
    round_to_integers,
)
from hifigemm.running.planner import fitted
from hifigemm.schemes.moduli_counts import (
    exact_count,
)
from hifigemm.schemes.ozaki2 import _balance, _error
from hifigemm.testing.reference import (
    componentwise_error,
    correctly_rounded,
    meets_promise,
)
from tests.hard_matrices import with_units

SCALINGS = ("accurate", "fast")
DTYPES = ("float32", "float64", "complex64", "complex128")


@pytest.mark.thinned(5)
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", range(2, 50))
def test_every_number_of_moduli_keeps_its_bound(make_pair, scaling, dtype, count):
    a, b = make_pair("phi_1", 4, 11, 3, dtype)
    c, report = hg.matmul(
        a, b, scheme=hg.Ozaki2(num_moduli=count, scaling=scaling), return_report=True
    )
    assert meets_promise(c, a, b, report.bound).all()
    assert report.scheme.num_moduli == count
    assert math.isfinite(report.bound)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_small_integers_are_exact_with_few_moduli(
    make_pair, assert_same_bits, scaling, dtype
):
    for k in (1, 2, 30, 1000):
        a, b = make_pair("integers", 5, k, 4, dtype)
        c, report = hg.matmul(
            a,
            b,
            scheme=hg.Ozaki2(scaling=scaling),
            accuracy="correct",
            return_report=True,
        )
        assert_same_bits(c, correctly_rounded(a, b))
        assert report.scheme.num_moduli <= 4


@pytest.mark.thinned(5)
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 2, 3, 7, 64, 1000])
def test_integers_at_the_edge_of_the_range_do_not_wrap(scaling, dtype, k):
    # All terms of equal sign and size: the sum reaches what the scale allows. Residues
    # beyond the range would wrap.
    for bits in (1, 2, 7, 20, 24, 53):
        value = float(2**bits - 1)
        a, b = np.full((1, k), value, dtype), np.full((k, 1), value, dtype)
        if np.dtype(dtype).kind == "c":
            a, b = a * (1 + 1j), b * (1 - 1j)
        for count in (2, 3, 8, 15, 20):
            c, report = hg.matmul(
                a,
                b,
                scheme=hg.Ozaki2(num_moduli=count, scaling=scaling),
                return_report=True,
            )
            assert meets_promise(c, a, b, report.bound).all()


@pytest.mark.parametrize("scaling", SCALINGS)
def test_fewest_moduli_for_fp64_are_about_those_published(make_pair, scaling):
    a, b = make_pair("phi_0.1", 20, 256, 20)
    report = hg.matmul(a, b, scheme=hg.Ozaki2(scaling=scaling), return_report=True)[1]
    assert 13 <= report.scheme.num_moduli <= 18
    assert report.bound <= 4 * 2.0**-53


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_exact_products_beyond_49_moduli_are_refused_with_numbers(
    make_pair, scaling, dtype
):
    a, b = make_pair("full_range", 4, 6, 3, dtype)
    with pytest.raises(hg.AccuracyError, match=r"49.*\(4 x 6\) @ \(6 x 3\)"):
        hg.matmul(a, b, scheme=hg.Ozaki2(scaling=scaling), accuracy="correct")


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_unequal_spans_of_the_operands_are_balanced(
    make_pair, assert_same_bits, scaling, dtype
):
    # One operand wide, the other short: together they fit, each on its own half of the
    # range would not.
    rng = np.random.default_rng(17)
    a, b = make_pair("span_60", 5, 9, 4, dtype)
    a = a * np.ldexp(1.0, rng.integers(-50, 50, a.shape)).astype(a.real.dtype)
    short = rng.integers(-3, 4, b.shape).astype(dtype)
    for x, y in ((a, short), (short.T, a.T)):
        c, report = hg.matmul(
            x,
            y,
            scheme=hg.Ozaki2(scaling=scaling),
            accuracy="correct",
            return_report=True,
        )
        assert_same_bits(c, correctly_rounded(x, y))
        assert report.correct


@pytest.mark.parametrize("scaling", SCALINGS)
def test_bits_that_one_operand_had_to_spare_are_not_kept_for_others(
    assert_same_bits, scaling
):
    # The plan for a wide left operand moves its range to the left; a wide right operand
    # then needs more moduli.
    wide, short = np.array([[1.0, 2.0**-90]]), np.array([[3.0], [1.0]])
    scheme = hg.Ozaki2(scaling=scaling)
    plan = hg.make_plan(wide, short, scheme=scheme, accuracy="correct")
    assert _balance(plan) > 20
    c, report = hg.matmul(short.T, wide.T, plan=plan, return_report=True)
    assert_same_bits(c, correctly_rounded(short.T, wide.T))
    assert report.reason.count("escalated by") == 1
    assert (
        f"escalated by Ozaki2(product='int8', num_moduli={plan.scheme.num_moduli * 3 // 2}"
        in report.reason
    )


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_rows_and_columns_cost_nothing(
    make_pair, assert_same_bits, scaling, dtype
):
    a, b = make_pair("empty_rows_and_columns", 6, 8, 5, dtype)
    c = hg.matmul(a, b, scheme=hg.Ozaki2(num_moduli=12, scaling=scaling))
    assert not c[::2].any()
    assert not c[:, 1::2].any()
    zeros = np.zeros_like(a)
    c, report = hg.matmul(
        zeros,
        b,
        scheme=hg.Ozaki2(scaling=scaling),
        accuracy="correct",
        return_report=True,
    )
    assert not c.any()
    assert report.scheme.num_moduli == 2


@pytest.mark.parametrize("scaling", SCALINGS)
def test_entries_that_underflow_in_the_scale_are_not_forgotten(scaling):
    # The small entries meet each other and make the whole of the product; beside
    # 2**1000 they are below any scale.
    a, b = np.array([[2.0**1000, 2.0**-60]]), np.array([[0.0], [2.0**-1000]])
    for options in ({"accuracy": 1e-12}, {"accuracy": "correct"}, {}):
        try:
            c = hg.matmul(a, b, scheme=hg.Ozaki2(scaling=scaling), **options)
        except hg.AccuracyError:
            continue
        assert c == 2.0**-1060
    c, report = hg.matmul(
        a, b, scheme=hg.Ozaki2(num_moduli=5, scaling=scaling), return_report=True
    )
    assert report.bound == math.inf or meets_promise(c, a, b, report.bound).all()


@pytest.mark.parametrize("scaling", SCALINGS)
def test_more_moduli_err_less(make_pair, scaling):
    a, b = make_pair("phi_1", 6, 20, 5)
    reports = [
        hg.matmul(
            a, b, scheme=hg.Ozaki2(num_moduli=c, scaling=scaling), return_report=True
        )[1]
        for c in range(2, 40)
    ]
    bounds = [report.bound for report in reports]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] == 0.0


def test_only_fast_scaling_scales_operands_apart(make_pair):
    engine, (a, b) = engine_for("numpy"), (x[None] for x in make_pair("phi_4", 4, 6, 5))
    problem = Problem(1, 4, 5, 6, a.dtype)
    plan = (scheme := hg.Ozaki2(num_moduli=5, scaling="fast")).plan(
        problem, NO_PROMISE, engine, None, scheme
    )
    assert scheme.scales(plan, None, None, engine) == (None, None)
    both = scheme.scales(plan, a, b, engine)
    for left, right in ((a, None), (None, b)):
        for x, own, scale in zip(
            (left, right), scheme.scales(plan, left, right, engine), both, strict=True
        ):
            assert (own is None) == (x is None)
            if own is not None:
                np.testing.assert_array_equal(own.exponent, scale.exponent)
                np.testing.assert_array_equal(own.nearest, scale.nearest)
    plan = (scheme := hg.Ozaki2(num_moduli=5)).plan(
        problem, NO_PROMISE, engine, None, scheme
    )
    for left, right in ((None, None), (a, None), (None, b)):
        assert scheme.scales(plan, left, right, engine) is None


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_error_of_the_integers_stays_below_its_bound_and_comes_near(scaling, count):
    # Vectors of one odd integer, or of the number before it: all terms err alike, by
    # half a unit where it has one bit too many. A few smaller entries round up to more
    # than their own size.
    scheme = hg.Ozaki2(num_moduli=count, scaling=scaling)
    engine = engine_for("numpy")
    share = 0.0
    for bits, k in ((bits, k) for bits in range(1, 28) for k in (1, 2, 9)):
        a = np.full((1, 2, k), 2.0**bits - 1)
        b = np.full((1, k, 3), 2.0**bits - 2.0 ** (bits // 2) + 1)
        a[:, 1], b[:, :, 1], b[:, k // 2 + 1 :, 2] = (
            np.nextafter(a[:, 1], 0),
            np.nextafter(b[:, :, 1], 0),
            3 / 512,
        )
        plan = fitted(
            scheme.plan(Problem(1, 2, 3, k, a.dtype), NO_PROMISE, engine, None, scheme),
            2**28,
            engine,
        )
        s, t = scheme.scales(plan, a, b, engine)
        left = scheme.split(plan, a, "left", s, engine)
        right = scheme.split(plan, b, "right", t, engine)
        rows, cols = (
            round_to_integers(x, scale.exponent, scale.nearest)[0]
            for x, scale in ((a, s), (b, t))
        )
        error = _error(left, right)[0]
        unit = (left.facts["exponent"] + right.facts["exponent"])[0]
        for i, j in np.ndindex(2, 3):
            scale = Fraction(2) ** (s.exponent[0, i, 0] + t.exponent[0, 0, j]).item()
            exact = (
                sum(
                    Fraction(x) * Fraction(y)
                    for x, y in zip(a[0, i].tolist(), b[0, :, j].tolist())
                )
                * scale
            )
            made = sum(int(x) * int(y) for x, y in zip(rows[i], cols[:, j]))
            bound = Fraction(error[i, j]) * scale * Fraction(2) ** unit[i, j].item()
            assert abs(made) <= moduli_set(count, False).half_range
            assert abs(exact - made) <= bound
            share = max(share, float(abs(exact - made) / (bound or 1)))
    assert share > 0.95


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_escalated_plans_have_half_as_many_moduli_again_and_end_with_the_largest_number(
    dtype,
):
    a, engine = np.ones((3, 4), dtype), engine_for("numpy")
    for count, then in (
        (2, 3),
        (3, 4),
        (20, 30),
        (32, 48),
        (33, 49),
        (40, 49),
        (48, 49),
    ):
        plan = hg.make_plan(a, a.T, scheme=hg.Ozaki2(num_moduli=count))
        assert plan.scheme.escalate(plan, plan.problem, engine) is None
        plan = replace(
            plan, asked=hg.Ozaki2(), evidence=Evidence(required_bits=(90, 1))
        )
        finer = plan.scheme.escalate(plan, plan.problem, engine)
        assert (finer.scheme.num_moduli, finer.evidence) == (then, None)
        assert finer.verification is Verification.ENTRYWISE
        assert (
            finer.num_products
            == hg.make_plan(a, a.T, scheme=hg.Ozaki2(num_moduli=then)).num_products
        )
    plan = replace(
        hg.make_plan(a, a.T, scheme=hg.Ozaki2(num_moduli=49)), asked=hg.Ozaki2()
    )
    assert plan.scheme.escalate(plan, plan.problem, engine) is None
    assert isinstance(
        plan.scheme.escalate(replace(plan, asked=None), plan.problem, engine).scheme,
        hg.Ozaki1,
    )


@pytest.mark.parametrize("scaling", SCALINGS)
def test_operands_of_one_bit_more_than_their_moduli_hold_take_one_more(
    assert_same_bits, scaling
):
    counts = []
    for bits in range(1, 50):
        a = np.array([[1.0, 2.0**-bits]])
        c, report = hg.matmul(
            a,
            a.T,
            scheme=hg.Ozaki2(scaling=scaling),
            accuracy="correct",
            return_report=True,
        )
        assert_same_bits(c, correctly_rounded(a, a.T))
        assert "hold the exact product" in report.reason
        counts.append(report.scheme.num_moduli)
    # With two moduli the scale of vectors of a norm just above 1 is 2**7, and both lack
    # as many bits.
    least = [
        next(n for n in range(2, 49) if 2 * bits - 2 * 7 <= 2 * gained_bits(n, False))
        for bits in range(1, 50)
    ]
    assert counts == least


class CountingEngine(NumpyEngine):
    """Counts INT8 products."""

    calls = 0

    def exact_product(self, *args):
        self.calls += 1
        return super().exact_product(*args)


@pytest.mark.parametrize(("dtype", "products"), [("float64", 1), ("complex128", 4)])
@pytest.mark.parametrize("stacks", [(1, 1), (2, 2), (3, 3), (2, 1), (1, 2)])
def test_accurate_scales_are_those_of_matrices_apart_or_of_all_that_meet_one(
    make_pair, dtype, products, stacks
):
    engine, scheme = CountingEngine(), hg.Ozaki2(num_moduli=5)
    a, b = (
        np.stack(
            [make_pair("phi_4", 4, 6, 5, dtype, seed)[i] for seed in range(stacks[i])]
        )
        for i in range(2)
    )
    problem = Problem(max(stacks), 4, 5, 6, a.dtype)
    plan = fitted(scheme.plan(problem, NO_PROMISE, engine, None, scheme), 2**28, engine)
    s, t = scheme.scales(plan, a, b, engine)
    assert engine.calls == products
    assert s.exponent.shape == (stacks[0], 4, 1)
    assert t.exponent.shape == (stacks[1], 1, 5)
    for x, scale in ((a, s), (b, t)):
        assert (
            max(
                abs(round_to_integers(y, scale.exponent, scale.nearest)).max()
                for y in components(x)
            )
            < 2**scale.bits
        )
    for z in range(max(stacks)):
        x, y = a[z % len(a)][None], b[z % len(b)][None]
        own = scheme.scales(hg.make_plan(x, y, scheme=scheme), x, y, engine)
        for scale, each, at in ((s, own[0], z % len(a)), (t, own[1], z % len(b))):
            assert scale.bits == each.bits
            if len(scale.exponent) == max(stacks):
                np.testing.assert_array_equal(scale.exponent[at], each.exponent[0])
                np.testing.assert_array_equal(scale.nearest[at], each.nearest[0])
            else:
                assert (scale.exponent[at] <= each.exponent[0]).all()


def test_reasons_name_the_bits_of_the_exact_product_and_the_product_for_the_scaling():
    a, b = np.array([[1.0, 2.0**-20]]), np.array([[1.0], [0.0]])
    for x, y, bits, count in ((a, b, 21, 3), (b.T, b, 1, 2), (a, a.T, 41, 6)):
        for scaling, more in (
            ("fast", ""),
            ("accurate", ", one more product for the scaling"),
        ):
            plan = hg.make_plan(
                x, y, scheme=hg.Ozaki2(scaling=scaling), accuracy="correct"
            )
            assert (
                plan.reason
                == f"{count} moduli hold the exact product of {bits} bit{'s' * (bits > 1)}{more}"
            )


@pytest.mark.parametrize("scaling", SCALINGS)
def test_plans_that_certify_nothing_keep_no_facts(scaling):
    a, engine = np.ones((1, 3, 4)), engine_for("numpy")
    plan = hg.make_plan(a[0], a[0].T, scheme=hg.Ozaki2(num_moduli=5, scaling=scaling))
    scheme = plan.scheme
    s, _ = scheme.scales(plan, a, np.swapaxes(a, 1, 2), engine)
    assert set(scheme.split(plan, a, "left", s, engine).facts) == {
        "exponent",
        "delta",
        "sums",
        "nonzero",
        "magnitude",
    }
    quiets = [
        {"verification": x} for x in (Verification.A_PRIORI, Verification.ON_DEVICE)
    ]
    for quiet in ({"target": NOTHING_STATED}, *quiets):
        assert scheme.split(replace(plan, **quiet), a, "left", s, engine).facts == {}


@pytest.mark.parametrize("balance", [-90, -1, 0, 1, 90])
@pytest.mark.parametrize("count", [2, 3, 20])
def test_bits_of_accurate_scales_hold_the_integers(monkeypatch, balance, count):
    engine, scheme = engine_for("numpy"), hg.Ozaki2(num_moduli=count)
    # The largest entries meet nothing, so that scales are as large as they can be.
    a, b = np.array([[[0.999, 2.0**-9], [1.0, 0.0]]]), np.array([[[0.0], [1.0]]])
    plan = fitted(
        scheme.plan(Problem(1, 2, 1, 2, a.dtype), NO_PROMISE, engine, None, scheme),
        2**28,
        engine,
    )
    monkeypatch.setattr("hifigemm.schemes.ozaki2._balance", lambda plan: balance)
    for x, scale in zip((a, b), scheme.scales(plan, a, b, engine), strict=True):
        assert (
            abs(round_to_integers(x, scale.exponent, scale.nearest)).max()
            < 2.0**scale.bits
        )


def test_operands_of_zeros_leave_the_others_as_they_are(assert_same_bits):
    for left, right in ((-NO_BIT, 2000), (2000, -NO_BIT), (-NO_BIT, -NO_BIT)):
        assert balance((left, right), 2, False) == 0
    a, b = np.zeros((2, 3)), np.array([[2.0**1000], [1.0], [2.0**-1000]])
    for scaling in SCALINGS:
        for x, y in ((a, b), (b.T, a.T)):
            c, report = hg.matmul(
                x,
                y,
                scheme=hg.Ozaki2(scaling=scaling),
                accuracy="correct",
                return_report=True,
            )
            assert_same_bits(c, x @ y)
            assert report.scheme.num_moduli == 2


def test_a_forced_count_that_holds_the_exact_product_promises_it(make_pair):
    problem, engine = Problem(1, 5, 4, 20, np.dtype("float64")), engine_for("numpy")
    for bits, count in (
        ((30, 20), exact_count(False, 30, 20)),
        ((90, 1), exact_count(False, 90, 1)),
    ):
        for forced, scaling in itertools.product(
            (count - 1, count, count + 1), SCALINGS
        ):
            scheme = hg.Ozaki2(num_moduli=forced, scaling=scaling)
            plan = scheme.plan(
                problem,
                Target(0.0, correct=True),
                engine,
                Evidence(required_bits=bits),
                scheme,
            )
            assert plan.scheme == scheme
            holds = forced >= count and scaling == "fast"
            assert plan.verification is (
                Verification.A_PRIORI if holds else Verification.ENTRYWISE
            )
            assert plan.evidence == Evidence(required_bits=bits if holds else None)
            assert plan.bound == 0.0


# Scaling along k: powers of two between the columns of A and the rows of B.

INNER = hg.Ozaki2(scaling="inner")


@pytest.mark.parametrize("span", [20, 60, 200, 600])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_inner_scaling_keeps_the_error_of_data_without_units(make_pair, span, dtype):
    a, b = make_pair("phi_0.1", 20, 120, 18, dtype)
    x, y = with_units(a, b, span)
    for count in (14, 15):
        plain = hg.matmul(a, b, scheme=replace(INNER, num_moduli=count))
        c, report = hg.matmul(
            x, y, scheme=replace(INNER, num_moduli=count), return_report=True
        )
        error = componentwise_error(c, x, y)
        assert error <= 3 * max(componentwise_error(plain, a, b), 2.0**-53)
        assert SCALED_ALONG_K in report.reason
        assert meets_promise(c, x, y, report.bound).all()
        fast = hg.matmul(x, y, scheme=hg.Ozaki2(num_moduli=count, scaling="fast"))
        assert componentwise_error(fast, x, y) > 2**10 * error


@pytest.mark.parametrize("family", ["phi_1", "phi_4", "phi_8", "sparse", "zeros"])
def test_inner_scaling_keeps_the_bits_of_data_without_a_pattern(
    make_pair, assert_same_bits, family
):
    a, b = make_pair(family, 20, 120, 18)
    c, report = hg.matmul(
        a, b, scheme=replace(INNER, num_moduli=14), return_report=True
    )
    fast = hg.matmul(a, b, scheme=hg.Ozaki2(num_moduli=14, scaling="fast"))
    assert_same_bits(c, fast)
    assert SCALED_ALONG_K not in report.reason


@pytest.mark.parametrize("scaling", ["accurate", "fast", "inner"])
@pytest.mark.parametrize("accuracy", ["correct", 1e-14, hg.Relative(1e-12)])
def test_promises_scale_along_k_by_themselves(make_pair, scaling, accuracy):
    a, b = make_pair("phi_0.1", 20, 120, 18)
    x, y = with_units(a, b, 200)
    scheme = hg.Ozaki2(scaling=scaling)
    c, report = hg.matmul(x, y, scheme=scheme, accuracy=accuracy, return_report=True)
    assert report.scheme.scaling == "inner"
    assert SCALED_ALONG_K in report.reason
    assert report.num_products <= 20
    if accuracy == 1e-14:
        assert meets_promise(c, x, y, accuracy).all()
    else:
        wanted = correctly_rounded(x, y)
        assert (abs(c - wanted) <= 1e-12 * abs(wanted)).all()
        if accuracy == "correct":
            assert (c == wanted).all()


@pytest.mark.parametrize("span", [1000, 2000])
@pytest.mark.parametrize("family", ["phi_0.1", "phi_8"])
def test_correct_products_take_residues_whatever_the_span(make_pair, family, span):
    """Exponents of both operands, or of one that has a pattern, over all of float64;
    a column of zeros meets entries that are larger than all others.
    """
    a, _ = make_pair("phi_0.1", 20, 120, 18)
    _, b = make_pair(family, 20, 120, 18)
    a[:, 7] = 0
    a, b = with_units(a, b, span)
    b[7] *= 2.0**1010 / abs(b[7]).max()
    c, report = hg.matmul(
        a, b, scheme=hg.Ozaki2(), accuracy="correct", return_report=True
    )
    assert report.scheme.scaling == "inner"
    assert (c == correctly_rounded(a, b)).all()


def test_operands_stay_where_a_subnormal_entry_would_lose_bits(
    make_pair, assert_same_bits
):
    a, b = with_units(*make_pair("phi_0.1", 20, 120, 18), 900)
    # In a column that D makes smaller.
    a[3, abs(a).max(axis=0).argmax()] = 2.0**-1074
    c, report = hg.matmul(
        a, b, scheme=replace(INNER, num_moduli=14), return_report=True
    )
    fast = hg.matmul(a, b, scheme=hg.Ozaki2(num_moduli=14, scaling="fast"))
    assert_same_bits(c, fast)
    assert SCALED_ALONG_K not in report.reason
    c = hg.matmul(a, b, accuracy="correct")
    assert_same_bits(c, correctly_rounded(a, b))


def test_blocks_layouts_and_special_values_change_no_bit(make_pair, assert_same_bits):
    a, b = with_units(*make_pair("phi_0.1", 20, 120, 18), 60)
    a[3, 7] = np.nan
    b[5, 2] = -np.inf
    scheme = replace(INNER, num_moduli=14)
    c = hg.matmul(a, b, scheme=scheme)
    assert_same_bits(hg.matmul(a, b, scheme=scheme, workspace=2**16), c)
    turned = np.asfortranarray(a)[::-1, ::-1]
    assert_same_bits(hg.matmul(turned, b[::-1], scheme=scheme)[::-1], c)
    clean = np.isfinite(c)
    assert clean.sum() == 19 * 17
    a[3, 7] = b[5, 2] = 0.0
    assert_same_bits(hg.matmul(a, b, scheme=scheme)[clean], c[clean])


def test_an_operand_cannot_be_split_alone(make_pair, assert_same_bits):
    a, b = with_units(*make_pair("phi_0.1", 20, 120, 18), 60)
    scheme = replace(INNER, num_moduli=14)
    plan = hg.make_plan(a, b, scheme=scheme)
    left = hg.prepare(a, "left", plan=plan)
    assert_same_bits(hg.matmul(left, b), hg.matmul(a, b, scheme=scheme))
