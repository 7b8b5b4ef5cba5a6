from __future__ import annotations

import math
from dataclasses import replace

import pytest

import hifigemm as hg
from hifigemm.model.plan import Verification
from hifigemm.workshop.measuring.arrays import (
    DTYPES,
    CudaArrays,
    Workload,
)
from hifigemm.workshop.measuring.cases import _uncapturable, measure, scheme_options
from hifigemm.workshop.measuring.rows import rows
from hifigemm.workshop.measuring.timing import QUICK
from tests.workshop.measuring.stand_ins import ARRAYS, METHOD


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("auto", {"scheme": "auto"}),
        ("auto@correct", {"scheme": "auto", "accuracy": "correct"}),
        ("auto@Relative(1e-12)", {"scheme": "auto", "accuracy": hg.Relative(1e-12)}),
        ("ozaki2", {"scheme": hg.Ozaki2()}),
        ("ozaki2:14", {"scheme": hg.Ozaki2(num_moduli=14, scaling="fast")}),
        ("ozaki2:15:accurate", {"scheme": hg.Ozaki2(num_moduli=15)}),
        ("ozaki2@1e-15", {"scheme": hg.Ozaki2(), "accuracy": 1e-15}),
        ("ozaki1:7:fp16", {"scheme": hg.Ozaki1(num_slices=7, product="fp16")}),
        ("ozaki1:fp16:dp", {"scheme": hg.Ozaki1(product="fp16", mode="dp")}),
        ("multiword:fp16:2:4", {"scheme": hg.Multiword("fp16", 2, 4)}),
        (
            "corrected:tf32:chained",
            {"scheme": hg.Corrected("tf32", accumulate="chained")},
        ),
        ("native:fp64", {"scheme": hg.Native(product="fp64")}),
    ],
)
def test_notation_of_schemes(text, options):
    assert scheme_options(text) == options


@pytest.mark.parametrize(
    "text",
    [
        "",
        "strassen",
        "auto:3",
        "ozaki2:14:15",
        "ozaki2:many",
        "ozaki2:99",
        "native:2",
        "native:fast",
        "ozaki1:x",
    ],
)
def test_what_cannot_be_read_is_refused(text):
    with pytest.raises(
        ValueError, match=r"no scheme|is no count|no such option|num_moduli=99"
    ):
        scheme_options(text)


def test_schemes_are_checked_and_timed_beside_the_native_product():
    load = Workload(40, 40, 40)
    names = ["native", "auto", "ozaki2:15", "ozaki2@correct", "native@correct"]
    outcomes = {o.case.name: o for o in measure(load, names, ["eager"], ARRAYS, METHOD)}
    assert {
        name: o.status for name, o in outcomes.items() if name != names[-1]
    } == dict.fromkeys(names[:-1], "timed")
    assert outcomes[names[-1]].status.startswith("failed: ")
    found = {
        row["case"]: row for row in rows(load, list(outcomes.values()), {"int8": 15e12})
    }
    assert found["ozaki2:15"]["num_products"] == 15
    assert found["ozaki2:15"]["roof_tflops"] == 1.0
    assert found["ozaki2@correct"]["bound"] == 0
    assert found["native"]["burst_ratio_to_native"] == 1.0


def test_a_scheme_that_lies_about_its_bound_is_refused(monkeypatch):
    honest = hg.matmul

    def dishonest(a, b, **options):
        c = honest(a, b, **options)
        if options.get("out") is not None:
            options["out"][0, 0] *= 1 + 1e-12
        return c

    monkeypatch.setattr(hg, "matmul", dishonest)
    native, scheme = measure(
        Workload(20, 20, 20), ["native", "ozaki2:15"], ["eager"], ARRAYS, METHOD
    )
    assert native.times is not None
    assert scheme.refused
    assert scheme.times is None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_calls_and_graphs_are_checked_and_timed_on_the_device(dtype):
    outcomes = measure(
        Workload(300, 200, 100, dtype=dtype),
        ["native", "auto"],
        ["eager", "graph"],
        CudaArrays(),
        QUICK,
    )
    found = {(o.case.name, o.case.mode): o for o in outcomes}
    assert not any(o.refused for o in outcomes)
    assert all(
        found["native", mode].times.sustained.median > 0 for mode in ("eager", "graph")
    )


def test_products_that_wait_for_their_operands_are_not_captured(monkeypatch):
    load, waiting = Workload(20, 20, 20), "ozaki2@1e-12"
    monkeypatch.setattr("hifigemm.workshop.measuring.runs.capture", lambda run: run)
    cases = measure(
        load, ["native", waiting, "ozaki2:15"], ["eager", "graph"], ARRAYS, METHOD
    )
    found = {(o.case.name, o.case.mode): o for o in cases}
    assert (
        found[waiting, "graph"].status
        == "timed without a graph: its entries are certified"
    )
    assert found[waiting, "eager"].status == found["native", "graph"].status == "timed"
    assert found["ozaki2:15", "graph"].case.captured
    lines = rows(load, cases, {})
    assert all(line["ratio_to_native"] for line in lines)
    plan = hg.make_plan(
        *ARRAYS.operands(load, 0), scheme=hg.Ozaki2(scaling="fast"), accuracy="fp64"
    )
    assert _uncapturable(plan) == "its entries are certified"
    assert _uncapturable(replace(plan, verification=Verification.ON_DEVICE)) == ""


def test_bounds_of_large_forced_products_are_not_worked_out(monkeypatch):
    load = Workload(20, 20, 20)
    monkeypatch.setattr("hifigemm.workshop.measuring.cases.LARGEST_STATED", 1.0)
    forced, promised = measure(
        load, ["ozaki2:15", "ozaki2:15@1e-12"], ["eager"], ARRAYS, METHOD, timed=False
    )
    assert forced.case.bound == math.inf
    assert forced.case.num_products == promised.case.num_products == 15
    assert promised.case.bound == 1e-12
