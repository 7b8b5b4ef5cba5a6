"""The figures of a benchmark as lines of a table and of a CSV file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .arrays import Workload
from .runs import NATIVE, Case, Outcome
from .timing import Times

Row = dict[str, Any]


def rows(
    load: Workload,
    outcomes: Sequence[Outcome],
    rates: Mapping[str, float],
    facts: Mapping[str, Any] | None = None,
) -> list[Row]:
    """One line for each case and mode: TFLOP/s in bursts and sustained, ratios, error,
    power.

    The roof of a case is the rate of its format, in operations a second, divided by the
    number of its products. Facts are further columns, the same in all lines: commit,
    device.
    """
    natives = {
        o.case.mode: o.times for o in outcomes if o.case.name == NATIVE and o.times
    }
    timed_peers = [(o.case.mode, o.times) for o in outcomes if o.case.peer and o.times]
    best_peers = dict(
        sorted(timed_peers, key=lambda peer: _seconds(peer[1]), reverse=True)
    )
    found = []
    for o in outcomes:
        mode = o.case.mode
        row: Row = {
            "case": o.case.name,
            **_sizes(load),
            "family": load.family,
            "mode": mode,
            "scheme": o.case.scheme,
        }
        row |= {"num_products": o.case.num_products or "", "unit": o.case.unit}
        row |= _speeds(load, o.times, _roof(load, o.case, rates))
        row["burst_ratio_to_native"] = _ratio(natives.get(mode), o.times, burst=True)
        row["ratio_to_native"] = _ratio(natives.get(mode), o.times)
        row["ratio_to_best_peer"] = _ratio(best_peers.get(mode), o.times)
        errors = {
            "error": o.verdict.error,
            "normwise_error": o.verdict.normwise,
            "bound": o.case.bound,
        }
        row |= dict.fromkeys(errors, "") if o.failure else errors
        row |= _power(load, o.times)
        found.append(row | {"status": o.status} | dict(facts or {}))
    return found


def _sizes(load: Workload) -> Row:
    return {name: getattr(load, name) for name in ("m", "n", "k", "batch", "dtype")}


def _speeds(load: Workload, times: Times | None, roof: float | None) -> Row:
    speeds = ("burst_tflops", "sustained_tflops", "share_of_roof")
    row: Row = dict.fromkeys(
        (*speeds, "burst_seconds", "burst_p20", "burst_p80", "sustained_seconds"), ""
    )
    row["roof_tflops"] = "" if roof is None else roof * 1e-12
    if times is None:
        return row
    burst, sustained = times.burst, times.sustained
    row |= {
        "burst_seconds": burst.median,
        "burst_p20": burst.low,
        "burst_p80": burst.high,
    }
    row["burst_tflops"] = load.operations / burst.median * 1e-12
    if sustained is not None:
        row |= {
            "sustained_seconds": sustained.median,
            "sustained_tflops": load.operations / sustained.median * 1e-12,
        }
    if roof is not None:
        row["share_of_roof"] = load.operations / _seconds(times) / roof
    return row


def _roof(load: Workload, case: Case, rates: Mapping[str, float]) -> float | None:
    """Operations a second if the products alone took time, at the peak of their format;
    None if that is not known.
    """
    if case.unit not in rates or not case.num_products:
        return None
    return (
        rates[case.unit]
        * load.operations
        / (2.0 * load.batch * load.m * load.n * load.k * case.num_products)
    )


def _power(load: Workload, times: Times | None) -> Row:
    """Readings of the sustained runs, and joules of one product."""
    row: Row = dict.fromkeys(
        ("joules", "gflops_per_watt", "watts", "sm_clock_mhz", "temperature_c"), ""
    )
    if times is None or times.sustained is None:
        return row
    readings = times.readings
    row |= {name: value for name, value in vars(readings).items() if value is not None}
    if readings.watts:
        row["joules"] = readings.watts * times.sustained.median
        row["gflops_per_watt"] = load.operations * 1e-9 / row["joules"]
    return row


def _ratio(
    other: Times | None, times: Times | None, *, burst: bool = False
) -> float | str:
    """Speed over the other's."""
    if other is None or times is None:
        return ""
    return (
        other.burst.median / times.burst.median
        if burst
        else _seconds(other) / _seconds(times)
    )


def _seconds(times: Times) -> float:
    return (times.sustained or times.burst).median
