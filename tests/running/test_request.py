"""What is asked of a product is checked where it is written down."""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.running.request import Request, check_plan, check_result


def test_a_request_without_arguments_is_the_default_call():
    request = Request()
    assert (request.accuracy, request.scheme, request.result) == (None, "auto", "array")
    assert request == Request(scheme="auto")
    assert hash(request) == hash(Request())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"engine": 3}, "engine=3"),
        ({"plan": "fp64"}, "plan is a str"),
        ({"accuracy": "fp16"}, "accuracy='fp16'"),
        ({"scheme": "ozaki3"}, "scheme='ozaki3'"),
        ({"workspace": 0}, "workspace=0"),
        ({"workspace": True}, "workspace=True"),
        ({"workspace": 1.5}, "workspace=1.5"),
    ],
)
def test_a_value_that_no_product_takes_raises(options, text):
    with pytest.raises(hg.PlanError, match=text):
        Request(**options)


@pytest.mark.parametrize("result", ["fraction", 64, None, ("pair",)])
def test_an_unknown_kind_of_result_names_the_kinds(result):
    with pytest.raises(
        hg.PlanError, match='expected "array", "pair", "enclosure", "int64" or "object"'
    ):
        check_result(result)


def test_a_report_is_no_plan():
    _, report = hg.matmul(np.ones((2, 2)), np.ones((2, 2)), return_report=True)
    with pytest.raises(hg.PlanError, match="plan is a Report"):
        check_plan(report)
