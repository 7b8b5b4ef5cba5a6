"""Reports of outcomes: what the plan, the outcome and the record of a device say, read
when somebody looks.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines import engine_for
from hifigemm.model.executable import Outcome, RecordedDecision
from hifigemm.running.reports import log_decision, report_on

ENGINE = engine_for("numpy")
U = 2.0**-53


@pytest.fixture
def plan():
    """The plan of a product of residues."""
    scheme = hg.Ozaki2(num_moduli=9, scaling="fast")
    return hg.make_plan(np.ones((2, 3)), np.ones((3, 2)), scheme=scheme)


class Record:
    """A decision record, and how often it is read."""

    def __init__(self, **found):
        taken = RecordedDecision(True, hg.Native(), 0.25, 3, 7)
        self.decision = taken._replace(**found)
        self.num_reads = 0

    def __call__(self):
        self.num_reads += 1
        return self.decision


def test_a_report_says_what_the_plan_and_the_outcome_say(plan):
    outcome = Outcome(None, 0.125, 9, ("a note", "another"))
    report = report_on(plan, outcome, ENGINE, 0.5)
    assert (report.engine, report.device) == (ENGINE.name, ENGINE.device)
    assert report.workspace == plan.workspace
    assert report.decision_seconds == 0.5
    assert report.scheme == plan.scheme
    assert (report.bound, report.num_products) == (0.125, 9)
    assert report.k_block == plan.k_block
    assert report.reason == f"{plan.reason}; a note; another"
    assert not report.correct
    assert not report.native


def test_a_record_takes_the_place_of_what_was_planned(plan):
    record = Record(notes=("an entry escalated",))
    report = report_on(plan, Outcome(None, 0.5, 9, decision=record), ENGINE, 0.0)
    assert report.scheme == hg.Native()
    assert (report.bound, report.num_products, report.k_block) == (0.25, 3, 7)
    assert report.native
    assert report.reason == f"{plan.reason}; an entry escalated"


def test_a_reason_names_the_scheme_where_there_was_a_choice(plan):
    choice = replace(plan, alternatives=(hg.Native(),))
    report = report_on(choice, Outcome(None, 0.5, 9, decision=Record()), ENGINE, 0.0)
    assert report.reason == f"{plan.reason}; {hg.Native()} taken"


def test_a_record_is_read_once_and_when_somebody_looks(plan):
    record = Record()
    report = report_on(plan, Outcome(None, 0.5, 9, decision=record), ENGINE, 0.0)
    assert report.workspace == plan.workspace
    assert record.num_reads == 0
    assert report.bound == 0.25
    assert str(report)
    assert record.num_reads == 1


def test_a_product_without_an_error_is_correct_unless_it_is_rounded_again(plan):
    exact = Outcome(None, 0.0, 9)
    assert report_on(plan, exact, ENGINE, 0.0).correct
    rounded_again = report_on(plan, exact, ENGINE, 0.0, is_final=False)
    assert not rounded_again.correct
    assert rounded_again.bound == 2 * U
    assert rounded_again.reason.endswith("; alpha, beta applied")


def test_the_bound_of_a_record_has_room_for_the_second_rounding(plan):
    outcome = Outcome(None, 0.5, 9, decision=Record(bound=0.25))
    assert report_on(plan, outcome, ENGINE, 0.0, False).bound == 0.25 + 2 * U


@pytest.mark.parametrize(("made", "stated"), [(9, 9), (9.25, 10), (9 + 1e-12, 9)])
def test_shares_of_products_are_rounded_up_but_not_for_the_rounding(made, stated, plan):
    assert report_on(plan, Outcome(None, 0.5, made), ENGINE, 0.0).num_products == stated


def test_no_product_is_no_native_one():
    plan = hg.make_plan(np.ones((2, 3)), np.ones((3, 2)), scheme="native")
    assert report_on(plan, Outcome(None, 0.5, 1), ENGINE, 0.0).native
    assert not report_on(plan, Outcome(None, 0.5, 0), ENGINE, 0.0).native


def test_a_relative_error_that_was_asked_for_is_stated():
    a = np.ones((2, 3))
    plan = hg.make_plan(a, a.T, accuracy=hg.Relative(1e-9))
    report = report_on(plan, Outcome(None, 0.0, 1), ENGINE, 0.0)
    assert report.relative == plan.target.relative == 1e-9


# Lines of the log.


def test_a_log_that_takes_no_line_waits_for_no_record(plan, caplog):
    record = Record()
    report = report_on(plan, Outcome(None, 0.5, 9, decision=record), ENGINE, 0.0)
    with caplog.at_level(logging.WARNING, logger="hifigemm"):
        log_decision(plan.problem, report)
    assert record.num_reads == 0
    assert not caplog.records


@pytest.mark.parametrize(("level", "count"), [(logging.INFO, 1), (logging.DEBUG, 2)])
def test_a_decision_is_one_line_and_the_whole_report_where_that_is_asked_for(
    level, count, plan, caplog
):
    report = report_on(plan, Outcome(None, 0.5, 9), ENGINE, 0.0125)
    with caplog.at_level(level, logger="hifigemm"):
        log_decision(plan.problem, report)
    lines = [record.message for record in caplog.records]
    line = f"{plan.problem}: {plan.scheme}, {plan.reason}; decided in 12.5 ms"
    assert lines == [line, str(report)][:count]
