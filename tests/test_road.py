"""The road of a product: operands, plan, result, report."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.libraries import library_of
from hifigemm.planner import Options
from hifigemm.road import deliver, given_plan, product


@pytest.fixture
def rng():
    return np.random.default_rng(39)


def options(**changes):
    policy = {
        "accuracy": None,
        "scheme": "auto",
        "engine": None,
        "plan": None,
        "workspace": None,
    }
    return Options(**policy | changes, return_report=True)


def test_a_product_without_terms_is_zero_and_multiplies_nothing():
    a = np.ones((3, 0))
    b = np.ones((0, 2))
    result, report = product(a, b, options(), library_of(("a", a)))
    np.testing.assert_array_equal(result, np.zeros((3, 2)))
    assert report.num_products == 0
    assert report.reason == "a dimension is 0: nothing to multiply"


def test_a_power_of_two_is_applied_without_rounding(rng):
    a = rng.standard_normal((4, 6))
    b = rng.standard_normal((6, 5))
    correct = options(accuracy="correct")
    result, report = product(a, b, correct, library_of(("a", a)), shift=-3)
    np.testing.assert_array_equal(
        result, np.ldexp(hg.matmul(a, b, accuracy="correct"), -3)
    )
    assert report.correct


def test_a_result_is_delivered_into_out_and_returned(rng):
    a = rng.standard_normal((4, 6))
    out = np.empty((4, 4))
    library = library_of(("a", a))
    result, report = product(a, a.T, options(scheme="ozaki2"), library)
    delivered, same_report = deliver(result, report, library, out, return_report=True)
    assert delivered is out
    assert same_report is report
    np.testing.assert_array_equal(out, result)


def test_a_plan_for_another_inner_dimension_names_both(rng):
    a = rng.standard_normal((4, 6))
    plan = hg.make_plan(a, a.T)
    with pytest.raises(
        hg.PlanError, match=r"the plan is for \(4 x 6\).*the operands are \(4 x 7\)"
    ):
        product(
            np.ones((4, 7)), np.ones((7, 4)), options(plan=plan), library_of(("a", a))
        )


def test_a_plan_is_that_of_the_prepared_operand(rng):
    a = rng.standard_normal((4, 6))
    plan = hg.make_plan(a, a.T, scheme="ozaki2")
    left = hg.prepare(a, "left", plan=plan)
    assert given_plan(left, a.T, options(), plan.problem) is plan
    assert given_plan(a, a.T, options(), plan.problem) is None


def test_each_decision_is_one_line_of_the_log(rng, caplog):
    a = rng.standard_normal((4, 6))
    with caplog.at_level(logging.INFO, logger="hifigemm"):
        product(a, a.T, options(scheme="ozaki2"), library_of(("a", a)))
    (record,) = caplog.records
    assert record.getMessage().startswith("(4 x 6) @ (6 x 4) float64: Ozaki2(")
