"""Plans that rest on what was seen of their operands keep what they promise, and
promise it for no others.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base.formats import FP64
from hifigemm.base.store import forget
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.model.accuracy import NO_PROMISE, NOTHING_STATED, resolve
from hifigemm.model.plan import Verification
from hifigemm.model.problem import Problem
from hifigemm.numerics.error_ratio import count_for_ratio, error_ratio
from hifigemm.schemes.moduli_counts import expected_count
from hifigemm.schemes.scheme import int8_product
from hifigemm.testing.reference import correctly_rounded, meets_promise
from tests.host_programs import ProgramEngine, ResidueLowering

FAST = hg.Ozaki2(scaling="fast")
EXACT = int8_product(NumpyEngine())
FAMILIES = (
    "uniform",
    "phi_1",
    "phi_4",
    "phi_8",
    "sparse",
    "cancelling",
    "span_60",
    "opposed_spans",
    "zeros",
)


class CountingEngine(NumpyEngine):
    """Counts products of two matrices."""

    planes = 0

    def exact_product(self, spec, a, b, max_a, max_b):
        self.planes += max(len(a), len(b))
        return super().exact_product(spec, a, b, max_a, max_b)

    def native_product(self, a, b):
        self.planes += max(len(a), len(b))
        return super().native_product(a, b)


@pytest.fixture
def programs(monkeypatch):
    engine = ProgramEngine()
    forget()
    monkeypatch.setattr("hifigemm.running.road.engine_for", lambda *args: engine)
    yield engine
    forget()


def with_programs(monkeypatch, function, *args, **options):
    """What a call gives on an engine with programs, and the plans that it carried
    out.
    """
    with monkeypatch.context() as patch:
        engine = ProgramEngine()
        forget()
        patch.setattr("hifigemm.running.road.engine_for", lambda *args: engine)
        found = *function(*args, return_report=True, **options), engine.done
    forget()
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("accuracy", [1e-4, "fp64", 1e-18])
def test_promises_hold_by_what_was_seen_before_and_by_what_programs_find(
    make_pair, monkeypatch, family, dtype, accuracy
):
    a, b = make_pair(family, 7, 40, 6, dtype)
    p = Problem(1, 7, 6, 40, a.dtype)
    r = resolve(accuracy, p.fmt, 40).r
    c, report = hg.matmul(a, b, scheme=FAST, accuracy=accuracy, return_report=True)
    assert report.bound <= r
    assert meets_promise(c, a, b, r).all()
    c, report, done = with_programs(
        monkeypatch, hg.matmul, a, b, scheme=FAST, accuracy=accuracy
    )
    assert report.bound <= (hg.Native().bound(p) if report.native else r)
    assert meets_promise(c, a, b, report.bound).all()
    assert len(done) <= 2


@pytest.mark.parametrize("family", ["uniform", "phi_0.1", "phi_1", "phi_4"])
@pytest.mark.parametrize("accuracy", ["fp64", 1e-10, 1e-18])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_counts_are_as_large_as_the_error_ratio_asks_for(
    make_pair, family, accuracy, dtype
):
    a, b = make_pair(family, 12, 60, 9, dtype)
    c, report = hg.matmul(a, b, scheme=FAST, accuracy=accuracy, return_report=True)
    p = Problem(1, 12, 9, 60, a.dtype)
    target = resolve(accuracy, FP64, 60)
    ratio = error_ratio(a[None], b[None], EXACT, 2**14, 10**6)
    enough = count_for_ratio(p.terms, target.r, ratio, p.is_complex)
    assert meets_promise(c, a, b, report.bound).all()
    exact, certified = "hold the exact product" in report.reason, enough is None
    assert (report.bound == 0.0) == exact
    assert ("in every entry" in report.reason) == (not exact and not certified)
    if not exact:
        assert report.scheme.num_moduli == max(enough or 0, expected_count(p, target))
        assert report.bound <= target.r
    assert certified or "escalated" not in report.reason


def test_a_plan_after_a_program_is_that_of_an_engine_that_looks_first(
    make_pair, assert_same_bits, monkeypatch
):
    for family in ("phi_2", "phi_4", "span_60"):
        a, b = make_pair(family, 8, 50, 7)
        want, stated = hg.matmul(a, b, scheme=FAST, accuracy=1e-16, return_report=True)
        found, report, done = with_programs(
            monkeypatch, hg.matmul, a, b, scheme=FAST, accuracy=1e-16
        )
        assert len(done) == 1 + (report.scheme.count > done[0].scheme.count)
        assert (report.scheme, report.bound) == (stated.scheme, stated.bound)
        # one plan that was enough says that it was made for the target
        if len(done) > 1:
            assert report.reason == stated.reason
        assert_same_bits(found, want)


@pytest.mark.parametrize("accuracy", ["fp64", 1e-10, "correct"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_short_data_take_the_few_moduli_that_hold_the_exact_product(
    make_pair, assert_same_bits, accuracy, dtype
):
    rng = np.random.default_rng(7)
    integers = make_pair("integers", 9, 60, 8, dtype)
    short = [x.astype(np.float32).astype(dtype) for x in make_pair("uniform", 9, 60, 8)]
    unequal = (
        rng.integers(-(2**20), 2**20, (9, 60)).astype(dtype),
        rng.integers(-1, 2, (60, 8)).astype(dtype),
    )
    for a, b in (integers, short, unequal, tuple(x.T for x in unequal[::-1])):
        c, report = hg.matmul(a, b, scheme=FAST, accuracy=accuracy, return_report=True)
        assert "moduli hold the exact product of" in report.reason
        assert (report.bound, report.correct) == (0.0, True)
        assert_same_bits(c, correctly_rounded(a, b))


def test_more_moduli_than_data_of_one_size_take_may_hold_the_exact_product(
    assert_same_bits,
):
    rng = np.random.default_rng(8)
    a, b = (
        rng.integers(-(2**30), 2**30, shape).astype(float)
        for shape in ((6, 40), (40, 5))
    )
    # Each row and column has a large entry of its own, so that no power of two along k
    # serves them all.
    a[range(6), range(6)] = b[range(5), range(5)] = 2.0**35 + 1
    c, report = hg.matmul(a, b, scheme=FAST, accuracy=1e-9, return_report=True)
    assert report.scheme.count > expected_count(
        Problem(1, 6, 5, 40, a.dtype), resolve(1e-9, FP64, 40)
    )
    assert "moduli hold the exact product of" in report.reason
    assert_same_bits(c, correctly_rounded(a, b))


def test_a_ratio_that_says_nothing_leaves_entries_to_be_certified(monkeypatch):
    a, b = np.zeros((4, 6)), np.zeros((6, 4))
    a[:, 0], b[1] = 1.0, 2.0**-40 / 3
    a[0, 1] = 2.0**-60 / 3
    for c, report in (
        hg.matmul(a, b, scheme=FAST, accuracy=1e-17, return_report=True),
        with_programs(monkeypatch, hg.matmul, a, b, scheme=FAST, accuracy=1e-17)[:2],
    ):
        assert meets_promise(c, a, b, 1e-17).all()
        assert "in every entry" not in report.reason


def test_what_a_program_found_is_read_when_somebody_looks(
    make_pair, programs, monkeypatch
):
    read = []
    monkeypatch.setattr(
        ResidueLowering, "told", lambda self, found: read.append(found) or found
    )
    for family, native in (("phi_0.1", False), ("phi_8", True)):
        a, b = make_pair(family, 9, 60, 8)
        for options in ({"scheme": FAST}, {"scheme": FAST, "accuracy": "fp64"}):
            hg.matmul(a, b, **options)
            c, report = hg.matmul(a, b, return_report=True, **options)
            _, changed = hg.gemm(a, b, alpha=0.7, return_report=True, **options)
            assert read == []
            assert report.native is changed.native is native
            assert report.bound == (
                hg.Native().bound(programs.done[-1].problem) if native else 4 * 2.0**-53
            )
            assert report.num_products == (1 if native else report.scheme.count)
            assert str(report.scheme) in str(report)
            assert len(read) == 2
            assert meets_promise(c, a, b, report.bound).all()
            read.clear()


@pytest.mark.parametrize(
    ("alpha", "beta"), [(4.0, 0.0), (-0.5, 0.0), (0.3, 0.0), (1.0, 2.0), (-8.0, 0.7)]
)
def test_programs_apply_alpha_and_beta(
    make_pair, assert_same_bits, monkeypatch, alpha, beta
):
    a, b = make_pair("phi_2", 8, 50, 7)
    c = make_pair("phi_1", 8, 7, 7)[0]
    options = {
        "alpha": alpha,
        "beta": beta,
        "scheme": FAST,
        "accuracy": 1e-15,
        "return_report": True,
    }
    want, stated = hg.gemm(a, b, c, **options)
    engine = ProgramEngine()
    monkeypatch.setattr("hifigemm.running.road.engine_for", lambda *args: engine)
    found, report = hg.gemm(a, b, c, **options)
    assert engine.done
    assert_same_bits(found, want)
    assert (report.bound, report.correct) == (stated.bound, stated.correct)
    np.testing.assert_array_equal(
        hg.gemm(a, b, c, **options | {"return_report": False, "out": c}), want
    )


def test_special_values_do_not_count_as_hard(make_pair, programs):
    a, b = make_pair("uniform", 8, 40, 7)
    a[2, 3], b[5, 1] = np.inf, np.nan
    c = hg.matmul(a, b, scheme=FAST, accuracy="fp64")
    (plan,) = programs.done
    assert not np.isfinite(c[2]).any()
    assert np.isnan(c[:, 1]).all()
    keep_rows, keep_cols = np.arange(8) != 2, np.arange(7) != 1
    r = plan.target.r
    assert meets_promise(
        c[np.ix_(keep_rows, keep_cols)], a[keep_rows], b[:, keep_cols], r
    ).all()


@pytest.mark.parametrize("accuracy", [1e-15, "correct", "fp64"])
def test_a_plan_forgets_what_was_seen_of_its_operands(make_pair, accuracy):
    for family in ("integers", "uniform", "zeros"):
        a, b = make_pair(family, 8, 30, 8)
        plan = hg.make_plan(a, b, scheme=FAST, accuracy=accuracy)
        assert plan.verification is Verification.ENTRYWISE
        assert plan.bound == plan.target.r
        for other in ("phi_8", "opposed_spans", "nearly_cancelling"):
            x, y = make_pair(other, 8, 30, 8)
            c = hg.matmul(x, y, plan=plan)
            assert meets_promise(c, x, y, plan.target.r).all()


@pytest.mark.parametrize("accuracy", [1e-15, "correct", "fp64"])
def test_prepared_operands_do_not_inherit_what_was_seen(
    make_pair, assert_same_bits, accuracy
):
    for family in ("integers", "uniform"):
        easy, hard = make_pair(family, 8, 30, 8), make_pair("phi_8", 8, 30, 8)
        plan = hg.make_plan(*easy, scheme=FAST, accuracy=accuracy)
        left = hg.prepare(easy[0], "left", plan=plan)
        right = hg.prepare(hard[1], "right", plan=plan)
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


def test_plans_of_programs_serve_other_operands(make_pair, programs):
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
def test_exact_plans_round_the_exact_product_in_any_blocks(
    make_pair, family, dtype, accuracy
):
    a, b = make_pair(family, 9, 20, 8, dtype)
    whole, report = hg.matmul(a, b, scheme=FAST, accuracy=accuracy, return_report=True)
    assert "hold the exact product" in report.reason
    assert (report.bound, report.correct) == (0.0, True)
    assert meets_promise(whole, a, b, 0.0).all()
    for workspace in (report.workspace // 2, report.workspace // 5):
        c, cut = hg.matmul(
            a,
            b,
            scheme=FAST,
            accuracy=accuracy,
            workspace=workspace,
            return_report=True,
        )
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
        exact = [
            [sum(Fraction(p) * Fraction(q) for p, q in zip(r, s)) for s in y.T]
            for r in x
        ]
        assert [[Fraction(float(e)) for e in row] for row in c] == [
            [Fraction(float(e)) for e in row] for row in exact
        ]


def test_what_is_not_reported_is_not_worked_out(
    make_pair, assert_same_bits, monkeypatch
):
    a, b = make_pair("phi_2", 8, 30, 7)
    scheme = hg.Ozaki2(num_moduli=9, scaling="fast")
    engine = CountingEngine()
    monkeypatch.setattr("hifigemm.running.road.engine_for", lambda *args: engine)
    plain = hg.matmul(a, b, scheme=scheme)
    assert engine.planes == 9
    c, report = hg.matmul(a, b, scheme=scheme, return_report=True)
    assert engine.planes > 18
    assert_same_bits(plain, c)
    assert 0 < report.bound < np.inf
    assert meets_promise(c, a, b, report.bound).all()
    plan = hg.make_plan(a, b, scheme=scheme)
    assert plan.target == NO_PROMISE != NOTHING_STATED
    engine.planes = 0
    assert_same_bits(hg.matmul(a, b, plan=plan), c)
    assert engine.planes == 9
    assert hg.matmul(a, b, plan=plan, return_report=True)[1].bound == report.bound


def test_prepared_operands_serve_reports_and_products_without_one(
    make_pair, assert_same_bits
):
    a, b = make_pair("phi_1", 8, 30, 7)
    for scheme in (hg.Ozaki2(num_moduli=9, scaling="fast"), hg.Ozaki1(num_slices=3)):
        plan = hg.make_plan(a, b, scheme=scheme)
        left = hg.prepare(a, "left", plan=plan)
        right = hg.prepare(b, "right", plan=plan)
        c, report = hg.matmul(a, b, plan=plan, return_report=True)
        for x, y in ((left, b), (a, right), (left, right)):
            assert_same_bits(hg.matmul(x, y), c)
            found, stated = hg.matmul(x, y, return_report=True)
            assert_same_bits(found, c)
            assert stated.bound == report.bound


@pytest.mark.parametrize("accuracy", [1e-40, 1e-100, 1e-300])
def test_accuracies_beyond_all_moduli_are_kept_or_refused(
    make_pair, monkeypatch, accuracy
):
    a, b = make_pair("phi_8", 6, 30, 5)
    for engine in (NumpyEngine(), ProgramEngine()):
        monkeypatch.setattr(
            "hifigemm.running.road.engine_for", lambda *args, engine=engine: engine
        )
        try:
            c = hg.matmul(a, b, scheme=FAST, accuracy=accuracy)
        except hg.AccuracyError:
            continue
        assert meets_promise(c, a, b, accuracy).all()
