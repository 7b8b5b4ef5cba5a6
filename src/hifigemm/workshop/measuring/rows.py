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
    natives: dict[str, Times] = {}
    best_peers: dict[str, Times] = {}
    for outcome in outcomes:
        case = outcome.case
        times = outcome.times
        if times is None:
            continue
        if case.name == NATIVE:
            natives[case.mode] = times
        if case.peer:
            best = best_peers.get(case.mode, times)
            best_peers[case.mode] = min(best, times, key=_seconds)

    lines = []
    for outcome in outcomes:
        case = outcome.case
        times = outcome.times
        native = natives.get(case.mode)
        row: Row = {
            "case": case.name,
            **_sizes(load),
            "family": load.family,
            "mode": case.mode,
            "scheme": case.scheme,
            "num_products": case.num_products or "",
            "unit": case.unit,
        }
        row |= _speeds(load, times, _roof(load, case, rates))
        row["burst_ratio_to_native"] = _ratio(native, times, burst=True)
        row["ratio_to_native"] = _ratio(native, times)
        row["ratio_to_best_peer"] = _ratio(best_peers.get(case.mode), times)
        errors = {
            "error": outcome.verdict.error,
            "normwise_error": outcome.verdict.normwise,
            "bound": case.bound,
        }
        row |= dict.fromkeys(errors, "") if outcome.failure else errors
        row |= _power(load, times)
        row["status"] = outcome.status
        lines.append(row | dict(facts or {}))
    return lines


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
    burst = times.burst
    sustained = times.sustained
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
    work = 2.0 * load.batch * load.m * load.n * load.k * case.num_products
    return rates[case.unit] * load.operations / work


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
    if burst:
        return other.burst.median / times.burst.median
    return _seconds(other) / _seconds(times)


def _seconds(times: Times) -> float:
    return (times.sustained or times.burst).median
