"""Reports are decided once, when somebody looks, and are equal where the same was done;
splits are cut like blocks.
"""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.model.plan import Decision, Evidence, Report, Split
from hifigemm.plan import Apart

DECISION = Decision(
    hg.Ozaki1(num_slices=3), 6, 1e-9, False, 2048, False, "3 slices, as asked"
)


def report(decided, decision=DECISION, seconds=0.25, **fields):
    def decide():
        decided.append(decision)
        return decision

    given = {"engine": "numpy", "device": "cpu", "workspace": 2**20} | fields
    return Report(*given.values(), seconds, decide)


def test_a_report_is_decided_when_somebody_looks_and_once():
    decided = []
    made = report(decided)
    assert (made.engine, made.device, made.workspace, made.decision_seconds) == (
        "numpy",
        "cpu",
        2**20,
        0.25,
    )
    assert decided == []
    for _ in range(2):
        for name in (
            "scheme",
            "num_products",
            "bound",
            "correct",
            "native",
            "reason",
            "k_block",
        ):
            assert getattr(made, name) == getattr(DECISION, name)
        assert "3 slices, as asked" in str(made)
        assert f"bound {DECISION.bound:.3g} |A||B|" in repr(made)
    assert decided == [DECISION]


def test_a_changed_report_is_decided_after_the_one_it_changes():
    decided = []
    made = report(decided)
    changed = made.changed(
        lambda d: replace(d, correct=True, reason="changed"), seconds=2.0
    )
    assert decided == []
    assert (changed.reason, changed.correct, changed.num_products) == (
        "changed",
        True,
        6,
    )
    assert (
        changed.engine,
        changed.device,
        changed.workspace,
        changed.decision_seconds,
    ) == ("numpy", "cpu", 2**20, 2.0)
    assert (made.reason, made.correct) == (DECISION.reason, False)
    assert decided == [DECISION]
    assert made.changed(lambda d: d) == made
    assert made.changed(lambda d: d).decision_seconds == 0.25


def test_reports_are_equal_where_the_same_was_done_whatever_time_it_took():
    made = report([])
    assert made == report([], seconds=3.0)
    assert hash(made) == hash(report([], seconds=3.0))
    others = [
        report([], replace(DECISION, bound=1e-8)),
        report([], engine="torch"),
        report([], workspace=1),
    ]
    assert made not in others
    assert made != DECISION


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_reports_are_copied_with_what_was_decided(again):
    decided = []
    made = report(decided)
    other = again(made)
    assert decided == [DECISION]
    assert (other, other.decision_seconds) == (made, 0.25)


def test_plans_are_keys_and_travel():
    for options in (
        {},
        {"accuracy": "correct"},
        {"scheme": "corrected"},
        {"scheme": hg.Ozaki2(num_moduli=9)},
    ):
        plan = hg.make_plan(np.ones((2, 3)), np.ones((3, 4)), **options)
        assert pickle.loads(pickle.dumps(plan)) == plan
        assert len({plan, replace(plan), replace(plan, bound=math.nan)}) == 2


@pytest.mark.parametrize("k_major", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("width", [1, 2])
def test_splits_are_cut_by_matrices_and_vectors(side, width, k_major):
    rng = np.random.default_rng(1)
    rows = side == "left"
    planes = rng.random(
        (3, 6, 4 * width, 5) if rows or k_major else (3, 6, 5, 4 * width)
    )
    unit = rng.integers(9, size=(3, 4 * width, 1) if rows else (3, 1, 4 * width))
    shared = unit[:1]
    split = Split(
        side, 4, planes, unit, 6, {"exponent": unit, "needed": shared}, k_major
    )
    part = split.take(slice(1, 3), slice(1, 3))
    at = slice(width, 3 * width)
    np.testing.assert_array_equal(
        part.planes, planes[1:3, :, at] if rows or k_major else planes[1:3, :, :, at]
    )
    for found, x in (
        (part.unit, unit[1:3]),
        (part.facts["exponent"], unit[1:3]),
        (part.facts["needed"], shared),
    ):
        np.testing.assert_array_equal(found, x[:, at] if rows else x[:, :, at])
    assert (part.side, part.vectors, part.count, part.k_major) == (side, 2, 6, k_major)


def line(shown, name):
    """The text of one line of a plan or a report."""
    (text,) = (x for x in str(shown).splitlines() if x.startswith(f"  {name} "))
    return text.split(maxsplit=1)[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("accuracy", [None, 1e-5])
def test_the_lines_of_a_native_product_are_true(dtype, accuracy):
    a = np.random.default_rng(0).standard_normal((30, 40)).astype(dtype)
    plan = hg.make_plan(a, a.T, accuracy=accuracy, scheme="native")
    assert line(plan, "verified") == (
        "the bound holds without a look at the result; entries that may over- or underflow are made again"
    )
    report = hg.matmul(a, a.T, plan=plan, return_report=True)[1]
    assert line(report, "products") == line(plan, "products") == "1, the library's own"
    assert "escalated" not in report.reason

    # Entries that may have underflowed are made again.
    a[0] *= 2.0 ** (np.finfo(dtype).minexp * 3 // 4)
    report = hg.matmul(a, a.T, plan=plan, return_report=True)[1]
    assert line(report, "products") == str(report.num_products) != "1"
    assert "escalated" in report.reason


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_in_one_pass_are_not_counted_as_products(dtype):
    a = np.random.default_rng(0).standard_normal((30, 40)).astype(dtype)
    report = hg.matmul(a, a.T, accuracy="correct", return_report=True)[1]
    plan = hg.make_plan(a, a.T, accuracy="correct")
    is_compiled = report.num_products == 1
    assert is_compiled == ("compiled" in report.reason)
    one_pass = "none of parts: all terms are added in one pass"
    assert (line(report, "products") == one_pass) == is_compiled
    assert (line(plan, "products") == one_pass) == is_compiled
    assert ("certified" in line(plan, "verified")) == (not is_compiled)


@pytest.mark.parametrize("scheme", ["auto", "ozaki1", "ozaki2", "double-double"])
@pytest.mark.parametrize("r", [1e-15, 1e-9, 1e-3])
def test_a_report_names_one_bound_of_a_correct_result(scheme, r):
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 20, 20))
    report = hg.matmul(
        a, b, accuracy=hg.Relative(r), scheme=scheme, return_report=True
    )[1]
    text = line(report, "bound")
    if report.correct:
        assert text == f"correctly rounded (asked: {r:g} |AB|)"
    else:
        assert text.startswith(f"{report.relative:.3g} |AB|, and ")
    correct = hg.matmul(a, b, accuracy="correct", scheme=scheme, return_report=True)[1]
    assert line(correct, "bound") == "0 |A||B|, correctly rounded"


def test_evidence_of_version_0_1_0_names_separate_vectors_apart():
    old = Evidence.__new__(Evidence)
    vectors = Apart((3,), ())
    old.__setstate__({"required_bits": (3, 4), "apart": vectors})
    assert old == Evidence(required_bits=(3, 4), separate=vectors)
