"""Plans that rest on the operands they were made for: hopeful, promised and exact ones keep what they promise."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hifigemm.driver import multiply
from hifigemm.planning import plan_for, second_plan

import hifigemm as hg
from hifigemm.accuracy import NO_PROMISE, NOTHING_STATED, resolve
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.exceptions import HopeError
from hifigemm.formats import FP64
from hifigemm.plan import Problem
from hifigemm.schemes import certify
from hifigemm.study.reference import meets_promise

FAST = hg.Ozaki2(scaling="fast")
FAMILIES = ("uniform", "phi_1", "phi_4", "phi_8", "sparse", "cancelling", "span_60", "opposed_spans", "zeros")


class LookingEngine(NumpyEngine):
    """Carries out whole plans, and looks at the operands of hopeful ones only then."""

    looks_on_the_way = True
    fused = True

    def __init__(self):
        self.done = []

    def whole_product(self, plan):
        p = plan.problem
        if plan.scheme.name != "ozaki2" or plan.certifies or plan.block_shape != (p.batch, p.m, p.n):
            return None

        def whole(a, b, shift, epilogue, splits, out):
            assert out is None
            self.done.append(plan)
            if plan.hopeful:
                ratio = certify.error_ratio(a, b, self, self.block_entries, 10**6)
                if not plan.scheme.suffices(plan, ratio):
                    raise HopeError(ratio)
            steps = replace(plan, hopeful=False, fused=False)
            return multiply(steps, a, b, NumpyEngine(), 2**30, shift, epilogue, splits).values

        return whole


class CountingEngine(NumpyEngine):
    """Counts exact products."""

    calls = 0

    def exact_product(self, *args):
        self.calls += 1
        return super().exact_product(*args)


@pytest.fixture
def looking(monkeypatch):
    engine = LookingEngine()
    monkeypatch.setattr("hifigemm.api.engine_for", lambda *args: engine)
    return engine


def test_operands_that_suffice_are_multiplied_once(make_pair, looking):
    a, b = make_pair("phi_0.1", 9, 60, 8)
    c, report = hg.matmul(a, b, scheme=FAST, accuracy="fp64", return_report=True)
    (plan,) = looking.done
    assert plan.hopeful
    assert plan.promised
    assert meets_promise(c, a, b, plan.target.r).all()
    assert report.bound == plan.target.r
    assert report.num_products == report.scheme.num_moduli == plan.scheme.count
    assert "in every entry" in report.reason


@pytest.mark.parametrize("family", ["phi_1", "phi_4"])
@pytest.mark.parametrize("accuracy", ["fp64", 1e-18])
def test_a_second_plan_has_enough_moduli(make_pair, looking, family, accuracy):
    a, b = make_pair(family, 12, 60, 9)
    c, report = hg.matmul(a, b, scheme=FAST, accuracy=accuracy, return_report=True)
    first, *others = looking.done
    assert first.hopeful
    for second in others:
        assert (second.hopeful, second.promised) == (False, True)
        assert second.scheme.count > first.scheme.count
        ratio = certify.error_ratio(a[None], b[None], looking, 2**14, 10**6)
        assert second.scheme.suffices(second, ratio)
        assert not first.scheme.suffices(first, ratio)
    assert report.scheme.num_moduli == looking.done[-1].scheme.count
    r = first.target.r
    assert report.bound == r
    assert meets_promise(c, a, b, r).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("accuracy", [1e-4, "fp64", 1e-18])
def test_promises_hold_whatever_was_hoped(make_pair, looking, family, dtype, accuracy):
    a, b = make_pair(family, 7, 40, 6, dtype)
    c, report = hg.matmul(a, b, scheme=FAST, accuracy=accuracy, return_report=True)
    r = resolve(accuracy, Problem(1, 7, 6, 40, a.dtype).fmt, 40).r
    assert report.bound <= r
    assert meets_promise(c, a, b, r).all()
    assert len(looking.done) <= 2


def test_second_plans_are_those_of_numpy(make_pair, assert_same_bits, monkeypatch):
    for family in ("phi_2", "phi_4", "span_60"):
        a, b = make_pair(family, 8, 50, 7)
        want, stated = hg.matmul(a, b, scheme=FAST, accuracy=1e-16, return_report=True)
        with monkeypatch.context() as patch:
            engine = LookingEngine()
            patch.setattr("hifigemm.api.engine_for", lambda *args, engine=engine: engine)
            found, report = hg.matmul(a, b, scheme=FAST, accuracy=1e-16, return_report=True)
        assert (report.scheme, report.reason, report.bound) == (stated.scheme, stated.reason, stated.bound)
        assert_same_bits(found, want)


@pytest.mark.parametrize("family", ["phi_2", "phi_4", "phi_8"])
@pytest.mark.parametrize("share", [1, 4])
def test_a_hopeful_plan_that_is_cut_into_blocks_is_never_trusted(make_pair, looking, family, share):
    a, b = make_pair(family, 300, 12, 300)
    problem, target = Problem(1, 300, 300, 12, a.dtype), resolve(1e-17, FP64, 12)
    whole = FAST.plan(problem, a[None], b[None], target, looking, 2**28)
    workspace = whole.workspace // share - 1
    plan = FAST.plan(problem, a[None], b[None], target, looking, workspace)
    assert plan.hopeful
    assert plan.block_shape != whole.block_shape == (1, 300, 300)
    with pytest.raises(HopeError):
        multiply(plan, a[None], b[None], looking, workspace)
    second = second_plan(plan, np.inf, a[None], b[None], looking, 2**20)
    assert second.certifies
    assert (second.promised, second.hopeful) == (False, False)
    values = multiply(second, a[None], b[None], looking, 2**20).values
    assert looking.done == []
    assert meets_promise(values[0], a, b, 1e-17).all()


def numpy_and(looking, a, b, **options):
    """Result and report of the NumPy engine, and of the looking one."""
    found = hg.matmul(a, b, return_report=True, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hifigemm.api.engine_for", lambda *args: NumpyEngine())
        return hg.matmul(a, b, return_report=True, **options), found


@pytest.mark.parametrize("accuracy", ["fp64", 1e-10, "correct"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_short_data_take_few_moduli_without_a_guess(make_pair, assert_same_bits, looking, accuracy, dtype):
    rng = np.random.default_rng(7)
    integers = make_pair("integers", 9, 60, 8, dtype)
    short = [x.astype(np.float32).astype(dtype) for x in make_pair("uniform", 9, 60, 8)]
    unequal = rng.integers(-(2**20), 2**20, (9, 60)).astype(dtype), rng.integers(-1, 2, (60, 8)).astype(dtype)
    for a, b in (integers, short, unequal, tuple(x.T for x in unequal[::-1])):
        (want, stated), (found, report) = numpy_and(looking, a, b, scheme=FAST, accuracy=accuracy)
        assert "moduli hold the exact product of" in report.reason
        assert (report.scheme, report.reason, report.bound) == (stated.scheme, stated.reason, 0.0)
        assert_same_bits(found, want)
    assert [plan.hopeful for plan in looking.done] == [False] * 4


def test_a_second_plan_sees_that_more_moduli_hold_the_exact_product(assert_same_bits, looking):
    rng = np.random.default_rng(8)
    a, b = (rng.integers(-(2**30), 2**30, shape).astype(float) for shape in ((6, 40), (40, 5)))
    # The large entries meet zeros only.
    a[:, 0], b[0] = 2.0**35, 0.0
    a[:, 1], b[1] = 0.0, 2.0**35
    (want, stated), (found, report) = numpy_and(looking, a, b, scheme=FAST, accuracy=1e-9)
    assert [plan.hopeful for plan in looking.done] == [True, False]
    assert (report.scheme, report.reason, report.bound) == (stated.scheme, stated.reason, 0.0)
    assert_same_bits(found, want)


def test_a_ratio_that_says_nothing_leaves_entries_to_be_judged(looking):
    a, b = np.zeros((4, 6)), np.zeros((6, 4))
    a[:, 0], b[1] = 1.0, 2.0**-40 / 3
    a[0, 1] = 2.0**-60 / 3
    c, report = hg.matmul(a, b, scheme=FAST, accuracy=1e-12, return_report=True)
    assert [plan.hopeful for plan in looking.done] == [True]
    assert meets_promise(c, a, b, 1e-12).all()
    assert "in every entry" not in report.reason


def test_no_error_of_a_guess_leaves_the_package(make_pair, looking):
    a, b = make_pair("phi_8", 6, 30, 5)
    for accuracy in (1e-40, 1e-100, 1e-300):
        try:
            c = hg.matmul(a, b, scheme=FAST, accuracy=accuracy)
        except hg.AccuracyError:
            continue
        assert meets_promise(c, a, b, accuracy).all()


@pytest.mark.parametrize(
    "options",
    [
        {"scheme": FAST, "accuracy": "correct"},
        {"scheme": hg.Ozaki2(num_moduli=12, scaling="fast")},
        {"scheme": hg.Ozaki2(num_moduli=12, scaling="fast"), "accuracy": 1e-10},
        {"scheme": hg.Ozaki2(), "accuracy": 1e-10},
    ],
    ids=str,
)
def test_only_counts_that_operands_decide_are_guessed(make_pair, looking, options):
    a, b = make_pair("phi_1", 6, 30, 5)
    hg.matmul(a, b, **options)
    assert not any(plan.hopeful for plan in looking.done)


def test_complex_operands_are_looked_at_on_the_way(make_pair, looking):
    a, b = make_pair("phi_1", 6, 30, 5, "complex128")
    c, report = hg.matmul(a, b, scheme=FAST, accuracy=1e-14, return_report=True)
    assert looking.done[0].hopeful
    assert "in every entry" in report.reason
    assert meets_promise(c, a, b, 1e-14).all()


@pytest.mark.parametrize(("alpha", "beta"), [(4.0, 0.0), (-0.5, 0.0), (0.3, 0.0), (1.0, 2.0), (-8.0, 0.7)])
def test_gemm_goes_through_whole_products(make_pair, assert_same_bits, monkeypatch, alpha, beta):
    a, b = make_pair("phi_2", 8, 50, 7)
    c = make_pair("phi_1", 8, 7, 7)[0]
    options = {"alpha": alpha, "beta": beta, "scheme": FAST, "accuracy": 1e-16, "return_report": True}
    want, stated = hg.gemm(a, b, c, **options)
    engine = LookingEngine()
    monkeypatch.setattr("hifigemm.api.engine_for", lambda *args: engine)
    found, report = hg.gemm(a, b, c, **options)
    assert engine.done
    assert_same_bits(found, want)
    assert (report.bound, report.correct) == (stated.bound, stated.correct)
    np.testing.assert_array_equal(hg.gemm(a, b, c, **options | {"return_report": False, "out": c}), want)


def test_special_values_do_not_count_as_hard(make_pair, looking):
    a, b = make_pair("uniform", 8, 40, 7)
    a[2, 3], b[5, 1] = np.inf, np.nan
    c = hg.matmul(a, b, scheme=FAST, accuracy="fp64")
    assert len(looking.done) == 1
    assert not np.isfinite(c[2]).any()
    assert np.isnan(c[:, 1]).all()
    keep_rows, keep_cols = np.arange(8) != 2, np.arange(7) != 1
    r = looking.done[0].target.r
    assert meets_promise(c[np.ix_(keep_rows, keep_cols)], a[keep_rows], b[:, keep_cols], r).all()


@pytest.mark.parametrize("accuracy", [1e-15, "correct", "fp64"])
def test_a_plan_forgets_what_was_seen_of_its_operands(make_pair, accuracy):
    for family in ("integers", "uniform", "zeros"):
        a, b = make_pair(family, 8, 30, 8)
        plan = hg.make_plan(a, b, scheme=FAST, accuracy=accuracy)
        assert (plan.promised, plan.exact, plan.hopeful) == (False, False, False)
        assert plan.certifies
        for other in ("phi_8", "opposed_spans", "nearly_cancelling"):
            x, y = make_pair(other, 8, 30, 8)
            c = hg.matmul(x, y, plan=plan)
            assert meets_promise(c, x, y, plan.target.r).all()


@pytest.mark.parametrize("accuracy", [1e-15, "correct", "fp64"])
def test_prepared_operands_do_not_inherit_what_was_seen(make_pair, assert_same_bits, accuracy):
    for family in ("integers", "uniform"):
        easy, hard = make_pair(family, 8, 30, 8), make_pair("phi_8", 8, 30, 8)
        plan = hg.make_plan(*easy, scheme=FAST, accuracy=accuracy)
        left, right = hg.prepare(easy[0], "left", plan=plan), hg.prepare(hard[1], "right", plan=plan)
        own = hg.prepare(hard[0], "left", plan=plan)
        for x, y, p, q in (
            (*(easy[0], hard[1]), *(left, right)),
            (*(easy[0], hard[1]), *(left, hard[1])),
            (*hard, *(own, right)),
            (*hard, *(own, hard[1])),
        ):
            c, report = hg.matmul(p, q, return_report=True)
            assert meets_promise(c, x, y, plan.target.r).all()
            assert report.bound <= plan.target.r
            assert_same_bits(c, hg.matmul(x, y, plan=plan))


def test_plans_of_an_engine_that_looks_later_serve_other_operands(make_pair, looking):
    plan = hg.make_plan(*make_pair("uniform", 8, 30, 8), scheme=FAST, accuracy=1e-16)
    for family in ("uniform", "phi_8", "sparse"):
        a, b = make_pair(family, 8, 30, 8)
        for left in (a, hg.prepare(a, "left", plan=plan)):
            c, report = hg.matmul(left, b, plan=plan, return_report=True)
            assert report.bound <= 1e-16
            assert meets_promise(c, a, b, 1e-16).all()


@pytest.mark.parametrize("family", ["integers", "single_nonzero", "zeros"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("accuracy", ["correct", 1e-20])
def test_exact_plans_round_the_exact_product_in_any_blocks(make_pair, family, dtype, accuracy):
    a, b = make_pair(family, 9, 20, 8, dtype)
    whole, report = hg.matmul(a, b, scheme=FAST, accuracy=accuracy, return_report=True)
    assert "hold the exact product" in report.reason
    assert (report.bound, report.correct) == (0.0, True)
    assert meets_promise(whole, a, b, 0.0).all()
    for workspace in (report.workspace // 2, report.workspace // 5):
        c, cut = hg.matmul(a, b, scheme=FAST, accuracy=accuracy, workspace=workspace, return_report=True)
        assert cut.correct
        assert cut.workspace <= workspace
        np.testing.assert_array_equal(c, whole)


def test_exact_plans_use_what_one_operand_has_to_spare():
    rng = np.random.default_rng(5)
    a = rng.integers(-1, 2, (6, 10)).astype(float)
    b = rng.integers(-(2**50), 2**50, (10, 5)).astype(float)
    for x, y in ((a, b), (b.T.copy(), a.T.copy())):
        c, report = hg.matmul(x, y, scheme=FAST, accuracy="correct", return_report=True)
        assert report.correct
        exact = [[sum(Fraction(p) * Fraction(q) for p, q in zip(r, s)) for s in y.T] for r in x]
        assert [[Fraction(float(e)) for e in row] for row in c] == [[Fraction(float(e)) for e in row] for row in exact]


def test_what_is_not_reported_is_not_worked_out(make_pair, assert_same_bits, monkeypatch):
    a, b = make_pair("phi_2", 8, 30, 7)
    scheme = hg.Ozaki2(num_moduli=9, scaling="fast")
    engine = CountingEngine()
    monkeypatch.setattr("hifigemm.api.engine_for", lambda *args: engine)
    plain = hg.matmul(a, b, scheme=scheme)
    assert engine.calls == 9
    c, report = hg.matmul(a, b, scheme=scheme, return_report=True)
    assert engine.calls > 18
    assert_same_bits(plain, c)
    assert 0 < report.bound < np.inf
    assert meets_promise(c, a, b, report.bound).all()
    plan = hg.make_plan(a, b, scheme=scheme)
    assert plan.target == NO_PROMISE != NOTHING_STATED
    engine.calls = 0
    assert_same_bits(hg.matmul(a, b, plan=plan), c)
    assert engine.calls == 9
    assert hg.matmul(a, b, plan=plan, return_report=True)[1].bound == report.bound


def test_only_plans_with_something_to_say_judge(make_pair):
    a, b = (x[None] for x in make_pair("phi_1", 5, 20, 4))
    problem = Problem(1, 5, 4, 20, a.dtype)
    scheme = hg.Ozaki2(num_moduli=9, scaling="fast")

    def plan(accuracy, states_bound):
        return plan_for(problem, a, b, accuracy, scheme, states_bound, NumpyEngine(), 2**28)

    assert plan(None, True).certifies
    assert not plan(None, False).certifies
    for states_bound in (True, False):
        assert plan(1e-6, states_bound).certifies
        assert plan("correct", states_bound).certifies


def test_prepared_operands_serve_reports_and_products_without_one(make_pair, assert_same_bits):
    a, b = make_pair("phi_1", 8, 30, 7)
    for scheme in (hg.Ozaki2(num_moduli=9, scaling="fast"), hg.Ozaki1(num_slices=3)):
        plan = hg.make_plan(a, b, scheme=scheme)
        left, right = hg.prepare(a, "left", plan=plan), hg.prepare(b, "right", plan=plan)
        c, report = hg.matmul(a, b, plan=plan, return_report=True)
        for x, y in ((left, b), (a, right), (left, right)):
            assert_same_bits(hg.matmul(x, y), c)
            found, stated = hg.matmul(x, y, return_report=True)
            assert_same_bits(found, c)
            assert stated.bound == report.bound
