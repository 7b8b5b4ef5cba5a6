"""scheme="auto": what is taken where, by general rules and by what an engine says that products cost."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.accuracy import resolve
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.formats import BF16, FP16
from hifigemm.plan import Problem
from hifigemm.select import as_scheme, check_forced, choose, choose_words, settle, stand_in, words_plan
from hifigemm.study.reference import meets_promise

FAST = hg.Ozaki2(scaling="fast")
DTYPES = ("float32", "float64", "complex64", "complex128")
WORST = "at worst %.3g |A||B|, accepted at the level of %s (r = %.3g)"


@dataclass
class Costs:
    """A native product takes one second, each residue product its share of it."""

    share: float

    def native_seconds(self, problem):
        return 1.0

    def residue_seconds(self, problem, num_products, looks):
        return self.share * num_products

    def word_seconds(self, problem):
        return self.share


class CostedEngine(NumpyEngine):
    """An engine with costs."""

    fused = True

    def __init__(self, share):
        self.costs = Costs(share)


def problem(dtype="float64", m=30, n=20, k=50):
    return Problem(1, m, n, k, np.dtype(dtype))


def target(accuracy, p):
    return resolve(accuracy, p.fmt, p.k)


def take(engine, monkeypatch):
    monkeypatch.setattr("hifigemm.api.engine_for", lambda *args: engine)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accuracy", [None, "fp32", 1e-3])
def test_native_where_it_is_accurate_enough(dtype, accuracy):
    p = problem(dtype)
    assert choose(p, target(accuracy, p), NumpyEngine()) == hg.Native()


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_float32_operands_go_through_float64_where_that_is_accurate_enough(dtype):
    p = problem(dtype)
    for accuracy in (1e-12, "fp64"):
        assert choose(p, target(accuracy, p), NumpyEngine()) == hg.Native(product="fp64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accuracy", ["correct", 0.0, 1e-20])
def test_beyond_native_products_slices_or_residues_where_they_are_fused(dtype, accuracy):
    p = problem(dtype)
    assert choose(p, target(accuracy, p), NumpyEngine()) == hg.Ozaki1(product="fp64")
    assert choose(p, target(accuracy, p), CostedEngine(1.0)) == FAST


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_residues_only_where_a_tenth_quicker_is_expected(dtype):
    p = problem(dtype)
    for accuracy in (None, "fp64", 1e-10):
        goal = target(accuracy, p)
        count = FAST.expected_products(p, goal)
        for share, scheme in ((0.89, FAST), (0.91, hg.Native()), (1.2, hg.Native())):
            assert choose(p, goal, CostedEngine(share / count)) == scheme


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_other_dtypes_stay_native_whatever_residues_cost(dtype):
    p = problem(dtype)
    assert choose(p, target(None, p), CostedEngine(1e-6)) == hg.Native()


class NativeEngine(NumpyEngine):
    """Leaves native products at their own level to the library, over- and underflow included."""

    def whole_product(self, plan):
        at_level = plan.scheme == hg.Native() and plan.target.level is plan.problem.fmt
        return (lambda *arguments: None) if at_level else None


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_native_product_is_a_fall_back_where_it_is_not_known_to_keep_the_target(dtype):
    for k, accuracy in ((1, None), (50, None), (50, 1e-3)):
        p = problem(dtype, k=k)
        goal, worst = target(accuracy, p), hg.Native().bound(p)
        for engine in (NumpyEngine(), NativeEngine()):
            plan = stand_in(hg.Native(), p, goal, engine)
            left_to_library = isinstance(engine, NativeEngine) and accuracy is None
            assert plan.fallback == (worst > goal.r or left_to_library)
            assert plan.bound == max(worst, goal.r)
            assert ("over- and underflow as the library has them" in plan.reason) == left_to_library
            forced = hg.Native().planned(p, goal, engine)
            assert (forced.fallback, forced.bound) == (False, plan.bound)
            assert plan.reason.startswith(forced.reason)


def seen_plan(engine, accuracy="fp64", **fields):
    p = problem()
    empty = np.zeros((1, p.m, p.k)), np.zeros((1, p.k, p.n))
    plan = hg.Ozaki2(num_moduli=15, scaling="fast").plan(p, *empty, target(accuracy, p), engine, 2**28)
    return replace(plan, free=True, **fields)


def test_settled_plans_stay_where_residues_are_quicker_or_the_only_way():
    cheap, dear = CostedEngine(0.01), CostedEngine(1.0)
    kept = [
        (cheap, seen_plan(cheap, promised=True)),
        (dear, seen_plan(dear, accuracy="correct", promised=True)),
        (dear, seen_plan(dear, accuracy=1e-20)),
        (NumpyEngine(), seen_plan(NumpyEngine())),
    ]
    for engine, plan in kept:
        assert settle(plan, engine) is plan
    native = hg.Native().planned(problem(), target(None, problem()), dear)
    assert settle(native, dear) is native


def test_hopeful_plans_stay_and_state_the_worst_case_of_the_native_product_that_may_follow():
    dear = CostedEngine(1.0)
    for accuracy in ("fp64", 1e-10):
        hopeful = seen_plan(dear, accuracy=accuracy, promised=True, hopeful=True)
        plan = settle(hopeful, dear)
        assert plan == replace(hopeful, worst_case=hg.Native().bound(problem()))
        assert plan.bound == max(plan.target.r, plan.worst_case)
    beyond = seen_plan(dear, accuracy=1e-20, promised=True, hopeful=True)
    assert settle(beyond, dear) is beyond


def test_settled_plans_stay_where_the_exact_product_is_quicker():
    cheap = CostedEngine(0.01)
    plan = seen_plan(cheap, exact=True)
    assert settle(plan, cheap) is plan


def test_settled_plans_go_back_to_native_and_say_why():
    for share, fields, why in (
        (1 / 14, {"promised": True}, "these operands would take 15 residue products"),
        (0.001, {}, "these operands would take an unknown number of residue products"),
    ):
        engine = CostedEngine(share)
        plan = settle(seen_plan(engine, **fields), engine)
        assert plan.scheme == hg.Native()
        assert plan.target == target("fp64", problem())
        assert why in plan.reason
        assert plan.fallback
        assert plan.bound == hg.Native().bound(problem()) > plan.target.r
        assert (plan.promised, plan.exact, plan.hopeful) == (False, False, False)


def test_reports_say_what_auto_took_and_why(make_pair, assert_same_bits, monkeypatch):
    easy, hard, empty = (make_pair(name, 30, 50, 20) for name in ("phi_1", "phi_8", "single_nonzero"))
    count = FAST.expected_products(problem(), target(None, problem()))
    take(CostedEngine(0.99 / (count + 1)), monkeypatch)
    assert hg.matmul(*easy, return_report=True)[1].native
    engine = CostedEngine(0.8 / count)
    take(engine, monkeypatch)
    c, report = hg.matmul(*easy, return_report=True)
    assert isinstance(report.scheme, hg.Ozaki2)
    assert f"{report.num_products} moduli for" in report.reason
    assert meets_promise(c, *easy, report.bound).all()
    c, report = hg.matmul(*hard, return_report=True)
    assert report.native
    assert "these operands would take" in report.reason
    assert_same_bits(c, hg.matmul(*hard, scheme="native"))
    assert hg.matmul(*hard, accuracy="correct", return_report=True)[1].correct
    c, report = hg.matmul(*empty, return_report=True)
    assert meets_promise(c, *empty, report.bound).all()


class WordEngine(CostedEngine):
    """Has kernels for the plans whose words are chosen on the device, or not."""

    def __init__(self, share, has=True):
        super().__init__(share)
        self.has = has

    def whole_product(self, plan):
        return (lambda *arguments: None) if self.has and plan.choices else None


def test_words_are_chosen_on_the_device_where_a_third_less_time_is_expected():
    p = problem("float32")
    for share, has, taken in ((0.6, True, True), (0.7, True, False), (0.6, False, False)):
        for accuracy in (None, "fp32"):
            plan = choose_words(p, target(accuracy, p), WordEngine(share, has), 2**28)
            assert (plan is not None) == taken
            if plan is not None:
                assert plan.choices == (hg.Corrected("fp16"), hg.Corrected("tf32"), hg.Native())
                assert (plan.scheme, plan.num_products, plan.certifies, plan.free) == (plan.choices[0], 3, False, False)
                assert plan.bound == plan.worst_case == hg.Native().bound(p)
                assert plan.reason.endswith(WORST % (plan.bound, "fp32", plan.target.r))


@pytest.mark.parametrize(
    ("dtype", "accuracy"),
    [("float32", "correct"), ("float32", 1e-3), ("float32", "fp64"), ("complex64", None), ("float64", None)],
)
def test_words_are_for_float32_results_at_their_own_level(dtype, accuracy):
    p = problem(dtype)
    assert choose_words(p, target(accuracy, p), WordEngine(1e-6), 2**28) is None
    assert choose_words(p, target(accuracy, p), NumpyEngine(), 2**28) is None


@pytest.mark.parametrize(("narrow", "names"), [(FP16, ["fp16", "tf32"]), (BF16, ["bf16", None])])
def test_narrow_operands_are_single_words(narrow, names):
    p = replace(problem("float32"), narrow=narrow)
    plan = choose_words(p, target(None, p), WordEngine(0.5), 2**28)
    assert [scheme.product for scheme in plan.choices] == names
    assert plan.num_products == 1


def test_words_stay_within_the_workspace():
    p = problem("float32")
    nbytes = words_plan(p, target(None, p), WordEngine(0.5), 2**28).workspace
    assert nbytes == 8 * (p.m + p.n) * (p.k + 15)
    assert words_plan(p, target(None, p), WordEngine(0.5), nbytes) is not None
    assert words_plan(p, target(None, p), WordEngine(0.5), nbytes - 1) is None


def test_a_forced_scheme_is_obeyed_whatever_it_costs(make_pair, monkeypatch):
    a, b = make_pair("phi_8", 30, 50, 20)
    take(CostedEngine(10.0), monkeypatch)
    c, report = hg.matmul(a, b, scheme=FAST, accuracy="fp64", return_report=True)
    assert isinstance(report.scheme, hg.Ozaki2)
    assert meets_promise(c, a, b, report.bound).all()


def test_schemes_by_name():
    assert as_scheme("auto") is None
    assert as_scheme("ozaki2") == hg.Ozaki2()
    assert as_scheme(FAST) is FAST
    with pytest.raises(hg.PlanError, match=r"'strassen'.*native.*ozaki1"):
        as_scheme("strassen")


def test_a_forced_native_product_that_cannot_keep_the_accuracy_is_refused():
    p = problem()
    check_forced(hg.Native(), p, target(None, p))
    check_forced(FAST, p, target("correct", p))
    with pytest.raises(hg.AccuracyError, match="errs by up to"):
        check_forced(hg.Native(), p, target(1e-20, p))
