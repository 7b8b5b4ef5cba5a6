from __future__ import annotations

import io
import sys

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.workshop import steps as progress
from hifigemm.workshop.steps import Steps, multiply, multiply_watched

OPTIONS = {
    "correct": {"accuracy": "correct"},
    "number": {"accuracy": 1e-18},
    "dp": {"scheme": hg.Ozaki1(product="fp16", mode="dp")},
    "int8": {"scheme": "ozaki1"},
    "ozaki2": {"scheme": "ozaki2"},
    "ozaki2_fast": {"scheme": hg.Ozaki2(num_moduli=12, scaling="fast")},
}


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Blocks of a few rows, so that small products have many."""
    monkeypatch.setattr(progress, "LEAST_ROWS", 2)


@pytest.mark.usefixtures("tiny_blocks")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(
    ("pair_name", "dtype"),
    [("phi_2", np.float64), ("phi_1", np.complex128), ("span_60", np.float32)],
)
def test_watching_changes_neither_bits_nor_report(
    make_pair, assert_same_bits, options, pair_name, dtype
):
    a, b = make_pair(pair_name, 60, 20, 30, dtype)
    c, report = hg.matmul(a, b, return_report=True, **options)
    seen = []
    plan = hg.make_plan(a, b, **options)
    watched, its_report = multiply_watched(
        a, b, plan, None, lambda plan, block: seen.append((plan.scheme, block))
    )
    assert_same_bits(watched, c)
    assert its_report == report
    whole = [block for scheme, block in seen if scheme == plan.scheme]
    assert len(whole) >= progress.BLOCKS
    assert (
        sum((x.rows.stop - x.rows.start) * (x.cols.stop - x.cols.start) for x in whole)
        == 60 * 30
    )


@pytest.mark.usefixtures("tiny_blocks")
def test_limit_of_the_workspace_keeps_its_own_blocks(make_pair, assert_same_bits):
    a, b = make_pair("phi_2", 60, 20, 30)
    options = {"accuracy": "correct", "workspace": 60000}
    c, report = hg.matmul(a, b, return_report=True, **options)
    plan, seen = hg.make_plan(a, b, **options), []
    watched, its_report = multiply_watched(
        a, b, plan, 60000, lambda plan, block: seen.append((plan.scheme, block))
    )
    assert_same_bits(watched, c)
    assert its_report == report
    assert [block for scheme, block in seen if scheme == plan.scheme] == list(
        plan.blocks()
    )


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.usefixtures("tiny_blocks")
def test_bar_appears_on_a_terminal_for_long_work_only(
    make_pair, assert_same_bits, monkeypatch
):
    pytest.importorskip("rich")
    a, b = make_pair("cancelling", 60, 20, 30)
    options = {
        "accuracy": "correct",
        "scheme": "auto",
        "engine": None,
        "workspace": None,
    }
    c = hg.matmul(a, b, accuracy="correct")
    for least, quiet, stderr in (
        (0, False, Terminal()),
        (0, True, Terminal()),
        (1e9, False, Terminal()),
        (0, False, io.StringIO()),
    ):
        monkeypatch.setattr(progress, "LONG_WORK", least)
        monkeypatch.setattr(sys, "stderr", stderr)
        result, report = multiply(a, b, options, quiet=quiet)
        assert_same_bits(result, c)
        assert report.correct
        bar_wanted = least == 0 and not quiet and stderr.isatty()
        assert ("Ozaki1" in stderr.getvalue()) == bar_wanted


def test_native_and_empty_products_have_no_bar(monkeypatch):
    monkeypatch.setattr(progress, "LONG_WORK", 0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    options = {"accuracy": None, "scheme": "auto", "engine": None, "workspace": None}
    for shape in ((3, 3), (0, 3)):
        result, _ = multiply(np.ones(shape), np.eye(3), options, quiet=False)
        np.testing.assert_array_equal(result, np.ones(shape))
    assert sys.stderr.getvalue() == ""


def test_steps_fill_a_bar_in_one_line_of_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    steps = Steps(4.0)
    for weight in (1.0, 2.0, 1.0):
        steps.start(
            "a step whose description is longer than what is left of a line of 80 characters"
        )
        steps.advance(weight)
    steps.close()
    *shown, blank, last = sys.stderr.getvalue().split("\r")[1:]
    assert [line.split("]")[1].split()[0] for line in shown] == ["0%", "25%", "75%"]
    assert [line.count("#") for line in shown] == [
        0,
        progress.BAR // 4,
        3 * progress.BAR // 4,
    ]
    assert all(len(line) <= len(blank) < 80 for line in shown)
    assert (blank.strip(), last) == ("", "")


def test_steps_are_lines_where_nobody_watches(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    steps = Steps(1.0)
    steps.start("a step")
    steps.advance(1.0)
    steps.close()
    assert sys.stderr.getvalue() == "a step ...\n"
