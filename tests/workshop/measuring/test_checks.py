from __future__ import annotations

import math

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.testing.reference import (
    componentwise_error,
    correctly_rounded,
    relative_residual,
)
from hifigemm.workshop.measuring.arrays import Workload
from hifigemm.workshop.measuring.cases import measure, scheme_options
from hifigemm.workshop.measuring.checks import Reference, native_bound
from hifigemm.workshop.measuring.rows import rows
from hifigemm.workshop.measuring.runs import (
    Case,
    run,
)
from hifigemm.workshop.measuring.timing import Times, Timing
from tests.workshop.measuring.stand_ins import ARRAYS, METHOD, Steps, case_of, wrong_by

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
    found = Reference(load, a, b).judge(c, native_bound(load)).error
    exact = componentwise_error(c, a, b)
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
    assert second.times == Times(Timing(1.0, 1.0, 1.0, 1, 1.0))
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
