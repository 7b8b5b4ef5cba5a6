from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.exceptions import PlanError
from hifigemm.plan import Verification
from hifigemm.testing.reference import (
    componentwise_error,
    correctly_rounded,
    relative_residual,
)
from hifigemm.workshop.measuring import peers
from hifigemm.workshop.measuring.arrays import (
    DTYPES,
    FAMILIES,
    Arrays,
    CudaArrays,
    Workload,
)
from hifigemm.workshop.measuring.cases import _uncapturable, measure, scheme_options
from hifigemm.workshop.measuring.ceilings import measured_ceilings, peak_rates
from hifigemm.workshop.measuring.checks import Reference, Verdict, native_bound
from hifigemm.workshop.measuring.peers import Peer
from hifigemm.workshop.measuring.power import Readings
from hifigemm.workshop.measuring.rows import rows
from hifigemm.workshop.measuring.runs import (
    CACHE_BYTES,
    Case,
    Outcome,
    operand_sets,
    run,
)
from hifigemm.workshop.measuring.timing import QUICK, Method, Times, Timing

ARRAYS = Arrays()
METHOD = Method(pause=0.0, warm=0, calls=(1, 1), bursts=1, sustained=0.0)


class Steps:
    """A clock that moves by a second with every mark."""

    def __init__(self):
        self.time = 0
        self.bare = []

    def without_host(self, run):
        self.bare.append(run)
        return run

    def mark(self):
        self.time += 1
        return self.time

    def wait(self, mark):
        pass

    def seconds(self, start, end):
        return float(end - start)

    def idle(self, seconds):
        pass


def case_of(load, name, write):
    """A case that calls write(a, b, out) on one pair of operands, with the reference
    for it and the calls made.
    """
    a, b = ARRAYS.operands(load, 0)
    out, calls = ARRAYS.empty(load), []

    def once():
        calls.append(name)
        write(a, b, out)

    return Case(name, (once,), (out,), native_bound(load)), Reference(load, a, b), calls


def wrong_by(value, index):
    def write(a, b, out):
        np.matmul(a, b, out=out)
        out[index] += value

    return write


LOADS = [
    Workload(100, 90, 80),
    Workload(100, 90, 80, dtype="float32", family="uniform"),
    Workload(70, 70, 20, dtype="complex128", family="type2"),
    Workload(9, 70, 20, batch=6, dtype="complex64", family="uniform01"),
    Workload(1, 1, 3000, batch=2),
]


@pytest.mark.parametrize("load", LOADS, ids=str)
def test_the_native_product_is_right(load):
    case, reference, _ = case_of(
        load, "native", lambda a, b, out: np.matmul(a, b, out=out)
    )
    [outcome] = run([case], [reference], Steps(), METHOD)
    assert outcome.status == "timed"
    assert 0 < outcome.verdict.error <= native_bound(load) + load.u


@pytest.mark.parametrize("k", [1, 30, 700])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_errors_are_those_of_the_exact_judge(dtype, k):
    load = Workload(40, 30, k, dtype=dtype, family="uniform01")
    a, b = ARRAYS.operands(load, 3)
    # Small enough for the last bits to matter, and of another sum than the library's.
    c = (a[:, ::-1].copy() @ b[::-1].copy()) * (1 + 2.0**-52)
    found, exact = (
        Reference(load, a, b).judge(c, native_bound(load)).error,
        componentwise_error(c, a, b),
    )
    # |A||B| is a sum of positive terms, the difference is rounded twice.
    assert abs(found - exact) <= (load.terms + 4) * load.u * exact


SAMPLED, ELSEWHERE = (0, 0), (50, 40)
BROKEN = {
    "sampled entry": wrong_by(1e-9, SAMPLED),
    "entry that is not sampled": wrong_by(1e-9, ELSEWHERE),
    "one NaN": wrong_by(math.nan, ELSEWHERE),
    "an infinity": wrong_by(math.inf, ELSEWHERE),
    "nothing written": lambda a, b, out: None,
    "last row not written": lambda a, b, out: np.matmul(a[:-1], b, out=out[:-1]),
    "of float32 accuracy": lambda a, b, out: np.copyto(
        out, a.astype(np.float32) @ b.astype(np.float32)
    ),
    "zeros": lambda a, b, out: out.fill(0),
    "transposed": lambda a, b, out: np.copyto(out, (a @ b).T),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_wrong_result_gets_no_time(name):
    load = Workload(120, 120, 64)
    good, reference, _ = case_of(
        load, "good", lambda a, b, out: np.matmul(a, b, out=out)
    )
    wrong, _, calls = case_of(load, "wrong", BROKEN[name])
    first, second = run([wrong, good], [reference], Steps(), METHOD)
    assert first.refused
    assert first.times is None
    assert calls == ["wrong"], "it was called for the check alone"
    assert second.times == Times(Timing(1.0, 1.0, 1.0, 1))
    [row, _] = rows(load, [first, second], {})
    assert row["status"].startswith("refused: ")
    assert row["burst_tflops"] == row["burst_seconds"] == row["sustained_tflops"] == ""


def test_the_sampled_entry_is_sampled_and_the_other_is_not():
    load = Workload(120, 120, 64)
    a, b = ARRAYS.operands(load, 0)
    [(_, chosen_rows, chosen_columns, *_)] = Reference(load, a, b)._samples
    assert SAMPLED[0] in chosen_rows
    assert SAMPLED[1] in chosen_columns
    assert ELSEWHERE[0] not in chosen_rows or ELSEWHERE[1] not in chosen_columns


@pytest.mark.parametrize("part", ["real", "imag"])
def test_both_components_are_judged(part):
    load = Workload(10, 10, 10, dtype="complex128")
    a, b = ARRAYS.operands(load, 0)
    c = a @ b
    getattr(c, part)[9, 0] += 1e-9
    assert Reference(load, a, b).judge(c, 1e-14).wrong


def test_every_matrix_of_a_stack_and_every_set_of_operands_is_judged():
    load = Workload(8, 8, 8, batch=9)
    for z in range(load.batch):
        case, reference, _ = case_of(load, "wrong", wrong_by(1e-9, (z, 3, 3)))
        assert run([case], [reference], Steps(), METHOD)[0].refused
    pairs = [ARRAYS.operands(load, seed) for seed in range(3)]
    outputs = tuple(ARRAYS.empty(load) for _ in pairs)
    calls = tuple(
        lambda a=a, b=b, out=out: np.matmul(a, b, out=out)
        for (a, b), out in zip(pairs, outputs)
    )
    references = [Reference(load, a, b) for a, b in pairs]
    for broken, status in (
        (None, "timed"),
        (2, "refused: 576 of 576 entries are not finite or not written"),
    ):
        runs = tuple(
            (lambda: None) if i == broken else call for i, call in enumerate(calls)
        )
        assert (
            run([Case("c", runs, outputs, 1e-14)], references, Steps(), METHOD)[
                0
            ].status
            == status
        )


def test_a_small_bound_is_held_against_the_exact_product():
    load = Workload(30, 30, 400)
    a, b = ARRAYS.operands(load, 0)
    reference = Reference(load, a, b)
    assert not reference.judge(hg.matmul(a, b, accuracy="correct"), 0.0).wrong
    assert "breaks the bound of 0" in reference.judge(a @ b, 0.0).wrong
    assert not reference.judge(a @ b, math.inf).wrong
    assert reference.judge(1.5 * (a @ b), math.inf).wrong


def test_subnormal_results_of_float32_may_lose_what_rounding_takes():
    load = Workload(20, 20, 20, dtype="float32", family="type3")
    case, reference, _ = case_of(
        load, "native", lambda a, b, out: np.matmul(a, b, out=out)
    )
    assert run([case], [reference], Steps(), METHOD)[0].status == "timed"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", [*FAMILIES, "phi2"])
def test_operands_are_the_same_for_the_same_seed_only(family, dtype):
    load = Workload(3, 5, 4, batch=2, dtype=dtype, family=family)
    (a, b), again, other = (
        ARRAYS.operands(load, 0),
        ARRAYS.operands(load, 0),
        ARRAYS.operands(load, 1),
    )
    assert a.dtype == b.dtype == dtype
    assert (a.shape, b.shape) == ((2, 3, 4), (2, 4, 5))
    assert (a == again[0]).all()
    assert (b == again[1]).all()
    assert (a != other[0]).all()
    assert np.isfinite(a).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"m": 0},
        {"batch": 0},
        {"dtype": "float16"},
        {"family": "phi"},
        {"family": "zeros"},
    ],
)
def test_senseless_workloads_are_refused(wrong):
    with pytest.raises(ValueError, match=r"sizes start at 1|no dtype|no family"):
        Workload(**({"m": 2, "n": 2, "k": 2} | wrong))


def test_small_operands_change_from_call_to_call():
    load = Workload(1024, 1024, 1024)
    assert len(operand_sets(ARRAYS, load)) * load.nbytes >= CACHE_BYTES
    assert len(operand_sets(ARRAYS, Workload(8, 8, 8))) == 16


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


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(peers, "_OWN", list(peers._OWN))


@pytest.mark.parametrize(("factor", "status"), [(1.0, "timed"), (1.001, "refused")])
def test_peers_are_judged_like_everybody(registry, factor, status):
    def prepare(a, b, out):
        return lambda: np.multiply(a @ b, factor, out=out)

    peers._OWN.append(
        Peer("other", lambda: True, lambda device, load: device == "cpu", prepare)
    )
    load = Workload(20, 20, 20)
    assert [peer.name for peer in peers.available("cpu", load)] == ["other"]
    native, other = measure(load, ["native", "other"], ["eager"], ARRAYS, METHOD)
    assert other.status.startswith(status)
    found = rows(load, [native, other], {})
    assert (found[0]["ratio_to_best_peer"] == "") == (status == "refused")


@pytest.mark.parametrize(
    ("there", "text"), [(False, "is not installed"), (True, "does not multiply")]
)
def test_peers_that_are_not_there_fail(registry, there, text):
    peers._OWN.append(
        Peer(
            "other",
            lambda: there,
            lambda device, load: False,
            lambda a, b, out: lambda: None,
        )
    )
    [outcome] = measure(Workload(2, 2, 2), ["other"], ["eager"], ARRAYS, METHOD)
    assert text in outcome.status
    assert not outcome.refused


def test_a_case_that_raises_fails_and_leaves_the_others_alone():
    load = Workload(20, 20, 20)
    good, reference, _ = case_of(
        load, "good", lambda a, b, out: np.matmul(a, b, out=out)
    )

    def refuse(a, b, out):
        raise PlanError("not today\nnor tomorrow")

    bad, _, _ = case_of(load, "bad", refuse)
    first, second = run([bad, good], [reference], Steps(), METHOD)
    assert first.status == "failed: not today"
    assert second.status == "timed"


def test_figures_follow_from_times():
    load = Workload(1000, 500, 2000)
    once = {
        seconds: Timing(seconds, seconds, seconds, 1)
        for seconds in (0.25, 0.5, 1.0, 2.0)
    }
    case = Case("x", (), (), 1e-15, num_products=4, unit="int8")
    native = Outcome(
        Case("native", (), (), 1e-13), Verdict(1e-16), Times(once[1.0], once[2.0])
    )
    peer = Outcome(
        Case("p", (), (), 1e-13, peer=True), Verdict(1e-16), Times(once[1.0], once[1.0])
    )
    ours = Outcome(
        case,
        Verdict(1e-16),
        Times(once[0.25], once[0.5], Readings(400.0, 1600.0, 60.0)),
    )
    wrong = Outcome(case, Verdict(1.0, "wrong"))
    found = rows(load, [native, peer, ours, wrong], {"int8": 64e9}, {"commit": "c"})
    row = found[2]
    assert (row["burst_tflops"], row["sustained_tflops"]) == (0.008, 0.004)
    assert (
        row["burst_ratio_to_native"],
        row["ratio_to_native"],
        row["ratio_to_best_peer"],
    ) == (4.0, 4.0, 2.0)
    assert (row["roof_tflops"], row["share_of_roof"]) == (0.016, 0.25)
    assert (row["joules"], row["gflops_per_watt"], row["sm_clock_mhz"]) == (
        200.0,
        0.01,
        1600.0,
    )
    assert row["commit"] == "c"
    assert found[3]["status"] == "refused: wrong"
    assert all(each.keys() == row.keys() for each in found)


def test_complex_operations_are_eight_and_so_is_the_roof():
    load = Workload(10, 10, 10, dtype="complex128")
    case = Case("x", (), (), 1e-15, num_products=28, unit="int8")
    [row] = rows(load, [Outcome(case, Verdict(0.0))], {"int8": 28e12})
    assert load.operations == 8000
    assert row["roof_tflops"] == 4.0


def test_ceilings_are_work_over_time(monkeypatch):
    monkeypatch.setattr("hifigemm.workshop.measuring.ceilings._SIZE", {"cpu": 4})
    monkeypatch.setattr(
        "hifigemm.workshop.measuring.ceilings._COPY_BYTES", {"cpu": 800}
    )
    found = measured_ceilings(ARRAYS, Steps(), METHOD)
    assert found == {"copy": 1600.0, "fp64": 128.0, "fp32": 128.0}


def test_peaks_are_found_in_the_name_of_the_device():
    assert peak_rates("NVIDIA H200")["int8"] == 1979e12
    assert peak_rates("abacus") == {}


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


@pytest.mark.parametrize(
    ("dtype", "name"), [("float64", "ozaki2:15"), ("float32", "corrected:fp16")]
)
def test_normwise_errors_are_those_of_the_metric(dtype, name):
    load = Workload(40, 30, 200, dtype=dtype, family="uniform")
    [outcome] = measure(load, [name], ["eager"], ARRAYS, METHOD, timed=False)
    a, b = ARRAYS.operands(load, 0)
    c = hg.matmul(a, b, **scheme_options(name))
    wide = (x.astype(np.float64) for x in (a, b))
    reference = (
        hg.matmul(*wide, accuracy="correct")
        if dtype == "float32"
        else correctly_rounded(a, b)
    )
    exact = relative_residual(c, reference)
    assert outcome.status == "checked"
    assert outcome.times is None
    assert abs(outcome.verdict.normwise - exact) <= 0.2 * exact + 2.0**-53


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
