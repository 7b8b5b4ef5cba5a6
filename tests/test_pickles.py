"""Pickles: what a program stored or sends to another process loads again, under the
names that classes had then.

The bytes below were made by version 0.1.0. They hold names of modules, classes and
fields: one that fails to load means that files of users do, so that the old name has to
be kept where it was. They are never made anew.
"""

from __future__ import annotations

import base64
import math
import pickle

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.schemes import SCHEMES, Scheme

PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)

A = np.array([[1e16, 1.0, -1e16], [0.5, 1e-8, 3.0]])
B = np.ones((3, 2))
"""The operands of the plan and of the report below."""

STORED = {
    hg.Native("fp64"): """
        gAJjaGlmaWdlbW0uc2NoZW1lcy5uYXRpdmUKTmF0aXZlCnEAKYFxAX1xAlgHAAAAcHJvZHVjdHEDWAQAAABmcDY0cQRzYi4=
    """,
    hg.DoubleDouble(): """
        gAJjaGlmaWdlbW0uc2NoZW1lcy5kb3VibGVfZG91YmxlCkRvdWJsZURvdWJsZQpxACmBcQEu
    """,
    hg.Multiword(
        "fp16", 2, 4, split_rounding="zero", accumulate="blocked", block=32
    ): """
        gAJjaGlmaWdlbW0uc2NoZW1lcy5tdWx0aXdvcmQKTXVsdGl3b3JkCnEAKYFxAX1xAihYBwAAAHByb2R1Y3RxA1gEAAAAZnAxNnEEWAkAAABudW
        1fd29yZHNxBUsCWAwAAABudW1fcHJvZHVjdHNxBksEWA4AAABzcGxpdF9yb3VuZGluZ3EHWAQAAAB6ZXJvcQhYCgAAAGFjY3VtdWxhdGVxCVgH
        AAAAYmxvY2tlZHEKWAUAAABzY2FsZXELiFgFAAAAYmxvY2txDEsgdWIu
    """,
    hg.Corrected("tf32", accumulate="chained"): """
        gAJjaGlmaWdlbW0uc2NoZW1lcy5jb3JyZWN0ZWQKQ29ycmVjdGVkCnEAKYFxAX1xAihYBwAAAHByb2R1Y3RxA1gEAAAAdGYzMnEEWAoAAABhY2
        N1bXVsYXRlcQVYBwAAAGNoYWluZWRxBlgFAAAAc2NhbGVxB4hYBQAAAGJsb2NrcQhOWAkAAABzaGlmdF9sb3dxCYhYDgAAAHNwbGl0X3JvdW5k
        aW5ncQpYBwAAAG5lYXJlc3RxC3ViLg==
    """,
    hg.Ozaki1("fp16", 3): """
        gAJjaGlmaWdlbW0uc2NoZW1lcy5vemFraTEKT3pha2kxCnEAKYFxAX1xAihYBwAAAHByb2R1Y3RxA1gEAAAAZnAxNnEEWAoAAABudW1fc2xpY2
        VzcQVLA1gEAAAAbW9kZXEGTnViLg==
    """,
    hg.Ozaki1(mode="dp"): """
        gAJjaGlmaWdlbW0uc2NoZW1lcy5vemFraTEKT3pha2kxCnEAKYFxAX1xAihYBwAAAHByb2R1Y3RxA1gEAAAAaW50OHEEWAoAAABudW1fc2xpY2
        VzcQVOWAQAAABtb2RlcQZYAgAAAGRwcQd1Yi4=
    """,
    hg.Ozaki2(num_moduli=9, scaling="fast"): """
        gAJjaGlmaWdlbW0uc2NoZW1lcy5vemFraTIKT3pha2kyCnEAKYFxAX1xAihYBwAAAHByb2R1Y3RxA1gEAAAAaW50OHEEWAoAAABudW1fbW9kdW
        xpcQVLCVgHAAAAc2NhbGluZ3EGWAQAAABmYXN0cQd1Yi4=
    """,
    hg.Relative(1e-12): """
        gAJjaGlmaWdlbW0uYWNjdXJhY3kKUmVsYXRpdmUKcQApgXEBfXECWAEAAABycQNHPXGXmYEt6hFzYi4=
    """,
}
"""Values, and what pickles of 0.1.0 hold of them (protocol 2, base64)."""

STORED_PLAN = """
    gAJjaGlmaWdlbW0ucGxhbgpQbGFuCnEAKYFxAX1xAihYBwAAAHByb2JsZW1xA2NoaWZpZ2VtbS5wcm9ibGVtClByb2JsZW0KcQQpgXEFfXEGKF
    gFAAAAYmF0Y2hxB0sBWAEAAABtcQhLAlgBAAAAbnEJSwJYAQAAAGtxCksDWAUAAABkdHlwZXELY251bXB5CmR0eXBlCnEMWAIAAABmOHENiYiH
    cQ5ScQ8oSwNYAQAAADxxEE5OTkr/////Sv////9LAHRxEWJYBgAAAG5hcnJvd3ESTlgGAAAAbWlycm9ycRNYAAAAAHEUWA8AAABtdWx0aXBsaW
    NhdGlvbnNxFUsMWAMAAABmbXRxFmNoaWZpZ2VtbS5mb3JtYXRzCl9uYW1lZApxF1gEAAAAZnA2NHEYhXEZUnEaWAoAAABpc19jb21wbGV4cRuJ
    WAUAAAB0ZXJtc3EcSwN1YlgFAAAAYXNrZWRxHWNoaWZpZ2VtbS5zY2hlbWVzLm96YWtpMgpPemFraTIKcR4pgXEffXEgKFgHAAAAcHJvZHVjdH
    EhWAQAAABpbnQ4cSJYCgAAAG51bV9tb2R1bGlxI05YBwAAAHNjYWxpbmdxJFgIAAAAYWNjdXJhdGVxJXViWAYAAABzY2hlbWVxJmgeKYFxJ31x
    KChoIWgiaCNLC2gkaCVYBQAAAGNvdW50cSlLC3ViWAYAAAB0YXJnZXRxKmNoaWZpZ2VtbS5hY2N1cmFjeQpUYXJnZXQKcSspgXEsfXEtKFgBAA
    AAcnEuRwAAAAAAAAAAWAcAAABjb3JyZWN0cS+IWAUAAABsZXZlbHEwTlgMAAAAc3RhdGVzX2JvdW5kcTGIWAgAAAByZWxhdGl2ZXEyTnViWAYA
    AABlbmdpbmVxM1gFAAAAbnVtcHlxNGghY2hpZmlnZW1tLnByb2JsZW0KUHJvZHVjdFNwZWMKcTUpgXE2fXE3KFgHAAAAb3BlcmFuZHE4aBdoIo
    VxOVJxOlgPAAAAYWNjdW11bGF0b3JfbWF4cTtK////f1gLAAAAbWF4X2ludGVnZXJxPEt/WAcAAABrX2Jsb2NrcT1K//8BAHViWAwAAABudW1f
    cHJvZHVjdHNxPksLaD1K//8BAFgMAAAAdmVyaWZpY2F0aW9ucT9jaGlmaWdlbW0ucGxhbgpWZXJpZmljYXRpb24KcUBYPwAAAGVudHJpZXMgYX
    JlIGNlcnRpZmllZCwgdGhlIG90aGVycyBhcmUgZXNjYWxhdGVkIHRvIGEgZmluZXIgcGxhbnFBhXFCUnFDWAUAAABib3VuZHFERwAAAAAAAAAA
    WAYAAAByZWFzb25xRVhNAAAAMTEgbW9kdWxpIGhvbGQgdGhlIGV4YWN0IHByb2R1Y3Qgb2YgODIgYml0cywgb25lIG1vcmUgcHJvZHVjdCBmb3
    IgdGhlIHNjYWxpbmdxRlgMAAAAYWx0ZXJuYXRpdmVzcUcpWAgAAABldmlkZW5jZXFIY2hpZmlnZW1tLnBsYW4KRXZpZGVuY2UKcUkpgXFKfXFL
    KFgNAAAAcmVxdWlyZWRfYml0c3FMS0lK+v///4ZxTVgLAAAAZXJyb3JfcmF0aW9xTk5YCgAAAG51bV9zbGljZXNxT05YCAAAAG91dGxpZXJzcV
    BOdWJYCAAAAGJsb2NraW5ncVFjaGlmaWdlbW0ucGxhbgpCbG9ja2luZwpxUimBcVN9cVQoWAUAAABzaGFwZXFVSwFLAksCh3FWWAkAAAB3b3Jr
    c3BhY2VxV02QDFgHAAAAZW50cmllc3FYTQBAWAkAAABpbl9oYWx2ZXNxWYl1YlgLAAAAYmxvY2tfc2hhcGVxWmhWaFdNkAxYCAAAAGlzX3dob2
    xlcVuIWAkAAABjZXJ0aWZpZXNxXIh1Yi4=
"""

STORED_REPORT = """
    gAJjaGlmaWdlbW0ucGxhbgpfcmVwb3J0CnEAKFgFAAAAbnVtcHlxAVgDAAAAY3B1cQJNkAxHP9AAAAAAAABjaGlmaWdlbW0ucGxhbgpEZWNpc2
    lvbgpxAymBcQR9cQUoWAYAAABzY2hlbWVxBmNoaWZpZ2VtbS5zY2hlbWVzLm96YWtpMgpPemFraTIKcQcpgXEIfXEJKFgHAAAAcHJvZHVjdHEK
    WAQAAABpbnQ4cQtYCgAAAG51bV9tb2R1bGlxDEsLWAcAAABzY2FsaW5ncQ1YCAAAAGFjY3VyYXRlcQ5YBQAAAGNvdW50cQ9LC3ViWAwAAABudW
    1fcHJvZHVjdHNxEEsLWAUAAABib3VuZHERRwAAAAAAAAAAWAcAAABjb3JyZWN0cRKIWAcAAABrX2Jsb2NrcRNK//8BAFgGAAAAbmF0aXZlcRSJ
    WAYAAAByZWFzb25xFVhNAAAAMTEgbW9kdWxpIGhvbGQgdGhlIGV4YWN0IHByb2R1Y3Qgb2YgODIgYml0cywgb25lIG1vcmUgcHJvZHVjdCBmb3
    IgdGhlIHNjYWxpbmdxFlgIAAAAcmVsYXRpdmVxF051YnRxGFJxGS4=
"""


def loaded(text):
    """The object of a pickle in base64."""
    return pickle.loads(base64.b64decode(text))


def again(x, protocol):
    """x, stored and loaded."""
    return pickle.loads(pickle.dumps(x, protocol))


VALUES = list(dict.fromkeys([*STORED, *(scheme() for scheme in SCHEMES.values())]))

PLANS = {
    "native": {},
    "number": {"accuracy": 1e-12},
    "correct": {"accuracy": "correct"},
    "relative": {"accuracy": hg.Relative(1e-10)},
    "multiword": {"scheme": "multiword"},
    "corrected": {"scheme": "corrected"},
    "ozaki1": {"scheme": "ozaki1", "accuracy": "correct"},
    "ozaki2": {"scheme": "ozaki2", "accuracy": "correct"},
    "moduli": {"scheme": hg.Ozaki2(num_moduli=9)},
    "double-double": {"scheme": "double-double"},
}
"""Options of `make_plan`, by what is special about the plan."""

ERRORS = [
    hg.HifigemmError("1 of 2"),
    hg.PlanError("workspace=1: 2 bytes are needed"),
    hg.InexactProductError("k = 3"),
    hg.AccuracyError("r = 1e-12"),
]


def test_values_cover_every_public_scheme():
    public = [getattr(hg, name) for name in hg.__all__]
    schemes = {
        kind for kind in public if isinstance(kind, type) and issubclass(kind, Scheme)
    }
    assert {type(x) for x in VALUES} == {*schemes, hg.Relative}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_schemes_and_accuracies_survive_a_pickle(value, protocol):
    copy = again(value, protocol)
    assert type(copy) is type(value)
    assert copy == value
    assert repr(copy) == repr(value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", PLANS)
def test_plans_survive_a_pickle_before_and_after_their_use(kind, protocol):
    plan = hg.make_plan(A, B, **PLANS[kind])
    fresh = again(plan, protocol)
    product = hg.matmul(A, B, plan=plan)
    used = again(plan, protocol)
    for copy in (fresh, used):
        assert copy == plan
        assert str(copy) == str(plan)
        assert hg.matmul(A, B, plan=copy).tobytes() == product.tobytes()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_reports_survive_a_pickle_with_the_time_that_they_took(protocol):
    _, report = hg.matmul(A, B, accuracy="correct", return_report=True)
    copy = again(report, protocol)
    assert copy == report
    assert str(copy) == str(report)
    assert copy.decision_seconds == report.decision_seconds


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_reach_other_processes_with_their_messages(error, protocol):
    copy = again(error, protocol)
    assert type(copy) is type(error)
    assert str(copy) == str(error)


@pytest.mark.parametrize("value", STORED, ids=repr)
def test_stored_schemes_and_accuracies_load(value):
    stored = loaded(STORED[value])
    assert type(stored) is type(value)
    assert stored == value
    assert hash(stored) == hash(value)


def test_a_stored_plan_loads_with_its_documented_attributes():
    plan = loaded(STORED_PLAN)
    assert type(plan) is hg.Plan
    assert str(plan.problem) == "(2 x 3) @ (3 x 2) float64"
    assert plan.asked == hg.Ozaki2()
    assert plan.scheme == hg.Ozaki2(num_moduli=11)
    assert plan.alternatives == ()
    assert plan.num_products == 11
    assert plan.bound == 0.0
    assert plan.verification.name == "ENTRYWISE"
    assert plan.k_block == 131071
    assert plan.workspace == 3216
    assert plan.engine == "numpy"
    assert (
        plan.reason
        == "11 moduli hold the exact product of 82 bits, one more product for the scaling"
    )
    assert "accuracy   correct rounding" in str(plan)
    assert again(plan, pickle.HIGHEST_PROTOCOL) == plan


def test_a_stored_plan_still_makes_the_correct_product():
    plan = loaded(STORED_PLAN)
    product, report = hg.matmul(A, B, plan=plan, return_report=True)
    correct = [[math.fsum(row)] * 2 for row in A]
    assert product.tolist() == correct
    assert report.scheme == plan.scheme
    assert report.correct
    left = hg.prepare(A, "left", plan=plan)
    assert hg.matmul(left, B).tolist() == correct


def test_a_stored_report_loads_with_its_documented_attributes():
    report = loaded(STORED_REPORT)
    assert type(report) is hg.Report
    assert report.scheme == hg.Ozaki2(num_moduli=11)
    assert report.num_products == 11
    assert report.engine == "numpy"
    assert report.device == "cpu"
    assert report.bound == 0.0
    assert report.relative is None
    assert report.correct is True
    assert report.native is False
    assert (
        report.reason
        == "11 moduli hold the exact product of 82 bits, one more product for the scaling"
    )
    assert report.k_block == 131071
    assert report.workspace == 3216
    assert report.decision_seconds == 0.25
    assert again(report, pickle.HIGHEST_PROTOCOL) == report
