from __future__ import annotations

from hifigemm.workshop.measuring.arrays import Workload
from hifigemm.workshop.measuring.checks import Verdict
from hifigemm.workshop.measuring.power import Readings
from hifigemm.workshop.measuring.rows import rows
from hifigemm.workshop.measuring.runs import (
    Case,
    Outcome,
)
from hifigemm.workshop.measuring.timing import Times, Timing


def test_figures_follow_from_times():
    load = Workload(1000, 500, 2000)
    once = {
        seconds: Timing(seconds, seconds, seconds, 1, seconds)
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
