"""The road of a product: operands, plan, result, report."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import hifigemm as hg
import hifigemm.numpy as hnp
from hifigemm.base import store
from hifigemm.libraries import NUMPY
from hifigemm.model.plan import Plan
from hifigemm.operands.operands import Operands
from hifigemm.running import planner
from hifigemm.running.request import Request
from hifigemm.running.road import deliver, passed_plan, product


@pytest.fixture
def rng():
    return np.random.default_rng(39)


def operands(a, b):
    return Operands(a, b, NUMPY, np.dtype(np.float64))


def request_of(**policy):
    return Request(**policy, return_report=True)


def test_a_product_without_terms_is_zero_and_multiplies_nothing():
    a = np.ones((3, 0))
    b = np.ones((0, 2))
    result, report = product(operands(a, b), request_of())
    np.testing.assert_array_equal(result, np.zeros((3, 2)))
    assert report.num_products == 0
    assert report.reason == "a dimension is 0: nothing to multiply"


def test_a_power_of_two_is_applied_without_rounding(rng):
    a = rng.standard_normal((4, 6))
    b = rng.standard_normal((6, 5))
    correct = request_of(accuracy="correct")
    result, report = product(operands(a, b), correct, shift=-3)
    np.testing.assert_array_equal(
        result, np.ldexp(hg.matmul(a, b, accuracy="correct"), -3)
    )
    assert report.correct


def test_a_result_is_delivered_into_out_and_returned(rng):
    a = rng.standard_normal((4, 6))
    out = np.empty((4, 4))
    result, report = product(operands(a, a.T), request_of(scheme="ozaki2"))
    delivered, same_report = deliver(result, report, NUMPY, out, return_report=True)
    assert delivered is out
    assert same_report is report
    np.testing.assert_array_equal(out, result)


def test_a_plan_for_another_inner_dimension_names_both(rng):
    a = rng.standard_normal((4, 6))
    plan = hg.make_plan(a, a.T)
    with pytest.raises(
        hg.PlanError, match=r"the plan is for \(4 x 6\).*the operands are \(4 x 7\)"
    ):
        product(operands(np.ones((4, 7)), np.ones((7, 4))), request_of(plan=plan))


def test_a_plan_is_that_of_the_prepared_operand(rng):
    a = rng.standard_normal((4, 6))
    plan = hg.make_plan(a, a.T, scheme="ozaki2")
    left = hg.prepare(a, "left", plan=plan)
    assert passed_plan(operands(left, a.T), request_of(), plan.problem) is plan
    assert passed_plan(operands(a, a.T), request_of(), plan.problem) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accuracy": 1e-3}, "leave accuracy= out"),
        ({"accuracy": "correct"}, "leave accuracy= out"),
        ({"scheme": "ozaki1"}, "leave scheme= out"),
        ({"accuracy": 1e-3, "scheme": "ozaki1"}, "leave accuracy= and scheme= out"),
    ],
    ids=str,
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_prepared_operand_beside_an_accuracy_is_named(rng, options, words, side):
    a = rng.standard_normal((4, 6))
    prepared = hg.prepare(a if side == "left" else a.T, side, accuracy="correct")
    pair = (prepared, a.T) if side == "left" else (a, prepared)
    name = "a" if side == "left" else "b"
    match = rf"^{name} was prepared with its own accuracy \(correct rounding\).*{words}"
    with pytest.raises(hg.PlanError, match=match):
        hg.matmul(*pair, **options)
    plan = hg.make_plan(a, a.T, accuracy=1e-20)
    match = rf"^the plan has its own accuracy \(.*1e-20.*{words}, or leave the plan out"
    with pytest.raises(hg.PlanError, match=match):
        hg.matmul(a, a.T, plan=plan, **options)


def test_each_decision_is_one_line_of_the_log(rng, caplog):
    a = rng.standard_normal((4, 6))
    with caplog.at_level(logging.INFO, logger="hifigemm"):
        product(operands(a, a.T), request_of(scheme="ozaki2"))
    (record,) = caplog.records
    assert record.getMessage().startswith("(4 x 6) @ (6 x 4) float64: Ozaki2(")


def plans_made(monkeypatch):
    """The list of problems that the planner is asked for from now on."""
    problems = []

    def make(problem, *args):
        plan = planner.make(problem, *args)
        if isinstance(plan, Plan):
            problems.append(problem)
        return plan

    monkeypatch.setattr("hifigemm.running.road.make", make)
    return problems


CALLS = {
    "report": lambda a, b: hg.matmul(a, b, accuracy="correct", return_report=True)[0],
    "gemm": lambda a, b: hg.gemm(a, b, a @ b, alpha=-1.0, beta=3.0, accuracy=1e-12),
    "gemm, rounded once": lambda a, b: hg.gemm(
        a, b, a @ b, alpha=-1.0, beta=1.0, accuracy="correct"
    ),
    "pair": lambda a, b: hg.matmul(a, b, result="pair")[1],
    "stack": lambda a, b: hg.matmul(a[None], b[None], accuracy="correct"),
    "vector": lambda a, b: hg.matmul(a, b[:, 0], accuracy="correct"),
    "einsum": lambda a, b: hnp.einsum("ij,jk->ki", a, b, accuracy="correct"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_any_kind_is_planned_once(name, rng, monkeypatch):
    call = CALLS[name]
    store.forget()
    problems = plans_made(monkeypatch)
    first = rng.standard_normal((5, 7)), rng.standard_normal((7, 6))
    other = rng.standard_normal((5, 7)), rng.standard_normal((7, 6))
    expected = call(*first)
    assert problems
    problems.clear()
    call(*other)
    np.testing.assert_array_equal(call(*first), expected)
    assert not problems


def test_a_plan_that_rests_on_the_operands_is_made_for_each_of_them(rng, monkeypatch):
    # The published mode of Ozaki scheme I estimates the number of slices from them.
    scheme = hg.Ozaki1(mode="dp")
    tame = np.ones((4, 6))
    wide = np.ldexp(rng.standard_normal((4, 6)), rng.integers(-300, 300, (4, 6)))
    store.forget()
    problems = plans_made(monkeypatch)
    counts = [
        hg.matmul(x, x.T, scheme=scheme, return_report=True)[1].scheme.num_slices
        for x in (tame, wide, tame)
    ]
    assert len(problems) == 3
    assert counts[0] == counts[2] < counts[1]


def test_strict_mode_and_equal_numbers_of_other_types_have_plans_of_their_own(rng):
    a = rng.standard_normal((40, 50))
    _, report = hg.matmul(a, a.T, return_report=True)
    assert report.native
    with hg.strict():
        try:
            _, report = hg.matmul(a, a.T, return_report=True)
        except hg.AccuracyError:
            pass
        else:
            assert not report.native
    with pytest.raises(hg.PlanError, match="accuracy=True"):
        hg.matmul(a, a.T, accuracy=True)
