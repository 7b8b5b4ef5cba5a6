"""scheme="auto": what is taken where, by general rules and by what an engine says that
products cost.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base import store
from hifigemm.base.formats import BF16, FP16
from hifigemm.base.store import forget
from hifigemm.engines import core
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.model.accuracy import CORRECT, resolve
from hifigemm.model.plan import Evidence, Outliers, Verification
from hifigemm.model.problem import Problem
from hifigemm.numerics.bounds import native_bound
from hifigemm.running.auto import (
    chosen_native,
    on_device,
    scheme_for,
    words_by_exponents,
)
from hifigemm.schemes.moduli_counts import exact_count, expected_count
from hifigemm.testing.reference import meets_promise
from tests.host_programs import Costs, ProgramEngine
from tests.planning import by_operands

FAST = hg.Ozaki2(scaling="fast")
DTYPES = ("float32", "float64", "complex64", "complex128")
WORST = "at worst %.3g |A||B|, accepted at the level of %s (r = %.3g)"


def problem(dtype="float64", m=30, n=20, k=50):
    return Problem(1, m, n, k, np.dtype(dtype))


def target(accuracy, p):
    return resolve(accuracy, p.fmt, p.k)


def take(engine, monkeypatch):
    forget()
    monkeypatch.setattr("hifigemm.running.road.engine_for", lambda *args: engine)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accuracy", [None, "fp32", 1e-3])
def test_native_where_it_is_accurate_enough(dtype, accuracy):
    p = problem(dtype)
    assert scheme_for(p, target(accuracy, p), NumpyEngine()) == hg.Native()


@pytest.mark.parametrize("accuracy", [1e-12, "fp64"])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_float32_operands_go_through_float64_where_that_is_accurate_enough(
    dtype, accuracy
):
    p = problem(dtype, 300, 200, 500)
    goal = target(accuracy, p)
    in_float64 = hg.Native(product="fp64")
    assert scheme_for(p, goal, NumpyEngine()) == in_float64


@pytest.mark.parametrize("accuracy", [1e-12, "fp64"])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_small_float32_operands_are_summed_by_the_core_which_is_quicker(
    monkeypatch, dtype, accuracy
):
    p = problem(dtype, 8, 8, 8)
    goal = target(accuracy, p)
    engine = NumpyEngine()
    sums = SimpleNamespace(instructions=("portable",))
    monkeypatch.setattr(core, "loaded", lambda: (sums, ""))
    assert scheme_for(p, goal, engine) == hg.DoubleDouble()
    larger = problem(dtype, 20, 20, 20)
    assert scheme_for(larger, goal, engine) == hg.Native(product="fp64")
    monkeypatch.setattr(core, "loaded", lambda: (None, ""))
    assert scheme_for(p, goal, engine) == hg.Native(product="fp64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accuracy", ["correct", 0.0, 1e-20])
def test_beyond_native_products_exact_schemes_and_residues_where_programs_make_them(
    dtype, accuracy
):
    p = problem(dtype)
    assert scheme_for(p, target(accuracy, p), NumpyEngine()) == hg.DoubleDouble()
    assert scheme_for(p, target(accuracy, p), ProgramEngine(1.0)) == FAST


def test_double_double_sums_of_complex_operands_are_for_cpus():
    p = problem("complex128")
    with pytest.raises(
        hg.PlanError, match="DoubleDouble\\(\\) is for engines of a CPU"
    ):
        hg.DoubleDouble().plan(p, target("correct", p), ProgramEngine(1.0), None, None)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_residues_only_where_a_tenth_quicker_is_expected(dtype):
    p = problem(dtype)
    for accuracy in (None, "fp64", 1e-10):
        goal = target(accuracy, p)
        count = FAST.expected_products(p, goal)
        for share, scheme in ((0.89, FAST), (0.91, hg.Native()), (1.2, hg.Native())):
            assert scheme_for(p, goal, ProgramEngine(share / count)) == scheme


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_number_takes_sums_where_they_beat_a_certified_native_product(dtype):
    """The native product takes a second, its certificate 9 us."""
    p = problem(dtype)
    engine = ProgramEngine(2.0)
    is_real = not p.is_complex
    for seconds, is_quicker in ((0.9, True), (1.000008, True), (1.00001, False)):
        engine.costs.sum_seconds = lambda problem, seconds=seconds: seconds
        sums = hg.DoubleDouble() if is_quicker and is_real else hg.Native()
        assert scheme_for(p, target(1e-4, p), engine) == sums
        assert scheme_for(p, target(None, p), engine) == hg.Native()


def test_a_number_takes_no_sums_where_residues_are_quicker():
    """Which the planner would take then, after a look at the operands."""
    p = problem()
    goal = target(1e-10, p)
    count = FAST.expected_products(p, goal)
    for of_sums, of_residues, scheme in (
        (0.5, 0.7, hg.DoubleDouble()),
        (0.7, 0.5, FAST),
        (0.97, 0.95, hg.Native()),
    ):
        engine = ProgramEngine(of_residues / count)
        engine.costs.sum_seconds = lambda problem, seconds=of_sums: seconds
        assert scheme_for(p, goal, engine) == scheme


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_other_dtypes_stay_native_whatever_residues_cost(dtype):
    p = problem(dtype)
    assert scheme_for(p, target(None, p), ProgramEngine(1e-6)) == hg.Native()


class LibraryEngine(NumpyEngine):
    """One of a device, which leaves native products at their own level to the library,
    over- and underflow included.
    """

    device = "cuda:0 (none)"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_native_product_states_its_worst_case_and_whose_underflow_it_has(dtype):
    for k, accuracy in ((1, None), (50, None), (50, 1e-3)):
        p = problem(dtype, k=k)
        goal, worst = target(accuracy, p), hg.Native().bound(p)
        for engine in (NumpyEngine(), LibraryEngine()):
            plan = chosen_native(hg.Native(), p, goal, engine)
            left_to_library = isinstance(engine, LibraryEngine) and accuracy is None
            assert plan.bound == max(worst, goal.r)
            assert (
                "over- and underflow as the library has them" in plan.reason
            ) == left_to_library
            assert plan.verification is (
                Verification.A_PRIORI if left_to_library else Verification.ENTRYWISE
            )
            forced = hg.Native().plan(p, goal, engine, None, hg.Native())
            assert (plan.asked, forced.asked) == (None, hg.Native())
            assert (forced.bound, forced.verification) == (
                plan.bound,
                plan.verification,
            )
            assert plan.reason.startswith(f"{forced.reason}; ")


def test_native_plans_say_what_spoke_against_other_schemes():
    def why(engine, dtype="float64"):
        p = problem(dtype)
        return chosen_native(hg.Native(), p, target(None, p), engine).reason.split(
            "; "
        )[1]

    count = FAST.expected_products(problem(), target(None, problem()))
    assert why(NumpyEngine()) == "no scheme is known to be quicker on engine 'numpy'"
    assert why(NumpyEngine(), "float32") == "residues are not considered for float32"
    assert (
        why(NumpyEngine(), "complex64") == "residues are not considered for complex64"
    )
    numbers = f"{count} residue products of {count}e+03 ms in all, against 1e+03 ms, are not quicker by a tenth"
    assert why(ProgramEngine(1.0)) == numbers.replace(
        f"{count}e+03", f"{1e3 * count:.3g}"
    )
    for dtype in ("float32", "complex64"):
        assert (
            why(ProgramEngine(1.0), dtype)
            == "words of 1e+03 ms, against 1e+03 ms, are not quicker by a third"
        )
        assert (
            why(ProgramEngine(0.1), dtype)
            == "words would exceed this bound or the workspace"
        )


def device_plan(
    dtype="float64", accuracy=None, scheme=FAST, engine=None, asked=None, k=50
):
    p = problem(dtype, k=k)
    return on_device(scheme, p, target(accuracy, p), engine or ProgramEngine(), asked)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("accuracy", [None, "fp64", "fp32", 1e-9])
def test_the_device_chooses_between_moduli_and_a_native_product(dtype, accuracy):
    for k in (1, 50, 5000):
        plan = device_plan(dtype, accuracy, k=k)
        p, goal = plan.problem, plan.target
        count, worst = expected_count(p, goal), native_bound(p.terms, 2.0**-53)
        assert goal == target(accuracy, p)
        assert (plan.scheme, plan.verification) == (
            replace(FAST, num_moduli=count),
            Verification.ON_DEVICE,
        )
        assert plan.num_products == FAST.expected_products(p, goal)
        assert plan.alternatives[-1] == hg.Native()
        assert plan.bound == max(goal.r, worst)
        assert (plan.certifies, plan.is_fixed, plan.evidence) == (False, False, None)
        rungs = plan.scheme, *plan.alternatives[:-1]
        counts = [x.count for x in rungs if x.scaling == "fast"]
        inner = [x.count for x in rungs if x.scaling == "inner"]
        assert inner == (counts[:1] if k > 1 else [])
        words = " or ".join(map(str, counts))
        start = f"the device decides by the operands between {words} moduli"
        if inner:
            words = " or ".join(map(str, inner))
            start += f", {words} with powers of two along k,"
        start += f" and an FP64 product, at worst {worst:.3g}"
        assert plan.reason.startswith(start)
        assert plan.reason.endswith(", which over- and underflows as a library's")


def test_larger_counts_are_left_to_the_device_while_they_are_quicker_than_a_native_product():
    first = device_plan().scheme.count
    for share, more in (
        (0.01, (1, 2)),
        (1 / (first + 1.5), (1,)),
        (1 / (first + 0.5), ()),
        (1.0, ()),
    ):
        plan = device_plan(engine=ProgramEngine(share))
        inner = replace(FAST, scaling="inner")
        assert plan.alternatives == (
            *(replace(FAST, num_moduli=first + x) for x in more),
            replace(inner, num_moduli=first),
            hg.Native(),
        )


def test_the_device_is_asked_only_where_a_native_product_is_good_enough_after_all():
    assert device_plan(asked=FAST) == replace(device_plan(), asked=FAST)
    assert device_plan(engine=NumpyEngine()) is None
    for dtype in ("float32", "complex64"):
        assert device_plan(dtype) is None
    for accuracy in ("correct", 1e-17, 0.0):
        assert device_plan(accuracy=accuracy) is None
    for scheme in (
        hg.Ozaki2(),
        replace(FAST, num_moduli=15),
        hg.Ozaki1(),
        hg.Native(),
        hg.Corrected(),
    ):
        assert device_plan(scheme=scheme) is None


def test_reports_say_what_the_device_took_and_why(
    make_pair, assert_same_bits, monkeypatch
):
    easy, hard, empty = (
        make_pair(name, 30, 50, 20) for name in ("phi_0.1", "phi_8", "single_nonzero")
    )
    count = FAST.expected_products(problem(), target(None, problem()))
    store.forget()
    take(ProgramEngine(0.99 / count), monkeypatch)
    assert hg.matmul(*easy, return_report=True)[1].native
    store.forget()
    take(ProgramEngine(0.8 / count), monkeypatch)
    c, report = hg.matmul(*easy, return_report=True)
    assert report.scheme == replace(FAST, num_moduli=count)
    assert report.num_products == count
    assert report.reason.endswith(f"; {report.scheme} taken")
    assert report.bound == target(None, problem()).r
    assert meets_promise(c, *easy, report.bound).all()
    c, report = hg.matmul(*hard, return_report=True)
    assert report.native
    assert report.bound == native_bound(50, 2.0**-53)
    assert report.reason.endswith(f"; {hg.Native()} taken")
    assert_same_bits(c, hg.matmul(*hard, scheme="native"))
    assert hg.matmul(*hard, accuracy="correct", return_report=True)[1].correct
    c, report = hg.matmul(*empty, return_report=True)
    assert meets_promise(c, *empty, report.bound).all()


class WordProgram:
    """The memory of a plan of words."""

    def in_halves(self, batch, rows, cols):
        return False

    def nbytes(self, batch, rows, cols):
        return batch * (rows + cols) * 1000


class WordEngine(NumpyEngine):
    """Has kernels for the plans whose words are chosen on the device, or not."""

    def __init__(self, share, has=True):
        self.costs, self.has = Costs(share), has

    def lowering(self, plan):
        return WordProgram() if self.has and plan.alternatives else None


def words_of(p, accuracy, engine, workspace=2**28, **options):
    return words_by_exponents(p, target(accuracy, p), engine, workspace, **options)


@pytest.mark.parametrize(("dtype", "count"), [("float32", 3), ("complex64", 12)])
def test_words_are_chosen_on_the_device_where_a_third_less_time_is_expected(
    dtype, count
):
    p = problem(dtype)
    given = words_of(replace(p, m=31), None, WordEngine(0.6))
    for share, has, taken in (
        (0.6, True, True),
        (0.7, True, False),
        (0.6, False, False),
    ):
        for accuracy in (None, "fp32"):
            plan = words_of(p, accuracy, WordEngine(share, has))
            assert (plan is not None) == taken
            assert (
                words_of(p, accuracy, WordEngine(share, has), passed_plan=given)
                is not None
            ) == has
            if plan is not None:
                assert (plan.scheme, *plan.alternatives) == (
                    hg.Corrected("fp16"),
                    hg.Corrected("tf32"),
                    hg.Native(),
                )
                assert (plan.num_products, plan.certifies, plan.asked) == (
                    count,
                    False,
                    None,
                )
                assert plan.verification is Verification.ON_DEVICE
                assert plan.bound == hg.Native().bound(p) > plan.target.r
                assert plan.reason.endswith(WORST % (plan.bound, "fp32", plan.target.r))
                assert plan.is_whole


@pytest.mark.parametrize(
    ("dtype", "accuracy"),
    [
        ("float32", "correct"),
        ("float32", 1e-3),
        ("float32", "fp64"),
        ("complex64", 1e-3),
        ("float64", None),
    ],
)
def test_words_are_for_float32_results_at_their_own_level(dtype, accuracy):
    p = problem(dtype)
    assert words_of(p, accuracy, WordEngine(1e-6)) is None
    given = words_of(problem("float32"), None, WordEngine(1e-6))
    assert given is not None
    assert words_of(p, accuracy, WordEngine(1e-6), passed_plan=given) is None
    assert words_of(p, accuracy, NumpyEngine()) is None


@pytest.mark.parametrize(
    ("narrow", "names"), [(FP16, ["fp16", "tf32"]), (BF16, ["bf16", None])]
)
def test_narrow_operands_are_single_words(narrow, names):
    p = replace(problem("float32"), narrow=narrow)
    plan = words_of(p, None, WordEngine(0.5))
    assert [scheme.product for scheme in (plan.scheme, *plan.alternatives)] == names
    assert plan.num_products == 1


def test_words_stay_within_the_workspace():
    p = problem("float32")
    nbytes = words_of(p, None, WordEngine(0.5)).workspace
    assert nbytes == WordProgram().nbytes(1, p.m, p.n)
    assert words_of(p, None, WordEngine(0.5), nbytes) is not None
    assert words_of(p, None, WordEngine(0.5), nbytes - 1) is None


def test_a_forced_scheme_is_obeyed_whatever_it_costs(make_pair, monkeypatch):
    a, b = make_pair("phi_8", 30, 50, 20)
    take(ProgramEngine(10.0), monkeypatch)
    c, report = hg.matmul(a, b, scheme=FAST, accuracy=1e-17, return_report=True)
    assert isinstance(report.scheme, hg.Ozaki2)
    assert meets_promise(c, a, b, report.bound).all()


# Targets that no native product keeps, on an engine with programs.

WIDE = Evidence()
"""Operands whose exact product no moduli hold."""
SHORT, LONG = Evidence(required_bits=(30, 20)), Evidence(required_bits=(90, 80))


def plan_by_operands(accuracy, evidence, ratio=None, dtype="float64", engine=None):
    """The plan, which is made after one look for what correct rounding wants to
    know.
    """
    p, engine, seen = problem(dtype), engine or ProgramEngine(), []

    def look(scheme, goal):
        seen.append((scheme, goal))
        return evidence

    plan = by_operands(p, target(accuracy, p), engine, engine.costs, look, ratio)
    assert seen == [(FAST, CORRECT)]
    return plan


def moduli_for(evidence, is_complex=False):
    return replace(FAST, num_moduli=exact_count(is_complex, *evidence.required_bits))


@pytest.mark.parametrize("accuracy", [1e-20, hg.Relative(1e-12), "correct"])
def test_the_exact_product_keeps_every_target_where_it_is_short(accuracy):
    plan = plan_by_operands(accuracy, SHORT)
    assert (plan.scheme, plan.bound, plan.verification) == (
        moduli_for(SHORT),
        0.0,
        Verification.A_PRIORI,
    )
    assert "hold the exact product" in plan.reason


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_number_goes_on_to_the_exact_product_on_the_device(dtype):
    first = FAST.plan(
        problem(dtype), target(1e-17, problem(dtype)), ProgramEngine(), None, None
    )
    plan = None
    plan = plan_by_operands(1e-17, LONG, dtype=dtype)
    exact, count = moduli_for(LONG, dtype == "complex128"), first.scheme.count
    rungs = [replace(FAST, num_moduli=count + more) for more in (1, 2)]
    assert (plan.scheme, plan.alternatives) == (first.scheme, (*rungs, exact))
    assert (plan.verification, plan.bound, plan.evidence) == (
        Verification.ON_DEVICE,
        1e-17,
        LONG,
    )
    assert (
        f"between {count} or {count + 1} or {count + 2} moduli for |C - AB| <= 1e-17 |A||B|"
        in plan.reason
    )
    assert f"{exact.count} moduli hold the exact product" in plan.reason


def test_a_relative_error_takes_the_exact_product_whatever_it_costs_beside_a_number():
    assert plan_by_operands(hg.Relative(1e-3), LONG).scheme == moduli_for(LONG)


def test_no_rung_of_a_ladder_costs_more_than_what_is_behind_it():
    class Steep(Costs):
        def residue_seconds(self, problem, num_products, estimate):
            return num_products + 10 * estimate

    engine = ProgramEngine()
    count = FAST.expected_products(problem(), target(1e-17, problem()))
    for more, counts in ((9, None), (10, None), (11, 1), (12, 2), (13, 3)):
        bits = next(
            n for n in range(2, 300) if exact_count(False, n, n) == count + more
        )
        evidence = Evidence(required_bits=(bits, bits))
        engine.costs = Steep(1.0)
        plan = plan_by_operands(1e-17, evidence, engine=engine)
        if counts is None:
            assert (plan.scheme, plan.verification) == (
                moduli_for(evidence),
                Verification.A_PRIORI,
            )
        else:
            assert len(plan.alternatives) == counts


def test_what_the_ratio_asks_for_is_held_against_the_exact_product():
    p = problem()
    for ratio in (1.0, 1e3, 1e10, 1e20):
        enough = FAST.count_for(p, target(1e-17, p), ratio)
        plan = plan_by_operands(1e-17, LONG, ratio)
        assert plan.scheme.count == min(enough, moduli_for(LONG).count)
        assert plan.verification is Verification.A_PRIORI
        assert plan.bound == (1e-17 if enough < moduli_for(LONG).count else 0.0)
        assert plan_by_operands(1e-17, WIDE, ratio).scheme.count == enough
    assert plan_by_operands(1e-17, LONG, np.inf).scheme == moduli_for(LONG)


@pytest.mark.parametrize(
    ("accuracy", "ratio"), [(1e-17, np.inf), (1e-17, 1e200), (hg.Relative(1e-12), None)]
)
def test_where_no_moduli_are_known_to_do_the_steps_are_those_of_correct_rounding(
    accuracy, ratio
):
    # Of real operands sums in words are exact.
    p = problem("complex128")
    plan = plan_by_operands(accuracy, WIDE, ratio, "complex128")
    correct = plan_by_operands("correct", WIDE, None, "complex128")
    assert plan.scheme == correct.scheme
    assert (plan.verification, plan.evidence) == (
        correct.verification,
        correct.evidence,
    )
    assert (plan.target, plan.bound) == (target(accuracy, p), target(accuracy, p).r)
    assert ProgramEngine().lowering(plan) is None
    assert "no number of moduli is known to keep" in plan.reason
    last = replace(plan, scheme=replace(plan.scheme, num_moduli=49))
    finest = [
        x.scheme.escalate(x, p, ProgramEngine())
        for x in (last, replace(last, target=CORRECT))
    ]
    assert finest[0].scheme == finest[1].scheme
    assert finest[0].target == plan.target


@pytest.mark.parametrize(
    ("accuracy", "ratio"),
    [(1e-17, np.inf), (1e-17, 1e200), (hg.Relative(1e-12), None), ("correct", None)],
)
def test_real_operands_of_wide_exponents_are_added_in_words(accuracy, ratio):
    plan = plan_by_operands(accuracy, WIDE, ratio)
    assert plan.scheme == hg.DoubleDouble()
    assert (plan.bound, plan.verification) == (0.0, Verification.A_PRIORI)
    # Other operands of this kind may have narrow ones.
    assert plan.evidence is not None


def test_small_products_are_added_in_words_without_a_look():
    p = problem()
    engine = ProgramEngine()
    engine.costs = SimpleNamespace(
        sum_seconds=lambda problem: 1e-6,
        residue_seconds=lambda problem, num_products, estimate: 1e-4,
    )
    for accuracy in ("correct", 1e-17, hg.Relative(1e-12)):
        plan = by_operands(p, target(accuracy, p), engine, engine.costs, None)
        assert plan.scheme == hg.DoubleDouble()
        assert plan.evidence is None


@pytest.mark.parametrize(
    ("dtype", "accuracy"),
    [("float32", 1e-12), ("complex64", 1e-12), ("float64", 1e-17)],
)
def test_the_device_goes_on_to_the_exact_product_for_every_dtype(dtype, accuracy):
    plan = plan_by_operands(accuracy, LONG, dtype=dtype)
    assert plan.verification is Verification.ON_DEVICE


def test_a_number_without_an_exact_product_is_tried_by_its_ratio():
    plan = plan_by_operands(1e-17, WIDE)
    assert plan == FAST.plan(
        problem(), target(1e-17, problem()), ProgramEngine(), None, None
    )
    assert plan.verification is Verification.ENTRYWISE
    outliers = replace(LONG, outliers=Outliers(20, 22, 4, 0, (0,), (1,)))
    assert plan_by_operands(1e-17, outliers).verification is Verification.ENTRYWISE
