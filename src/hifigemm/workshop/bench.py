"""`hifigemm bench`: times of the native product, of schemes and of peers, after their
results were checked.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hifigemm.workshop.atomic import check_results, write_results, writing
from hifigemm.workshop.environment import environment
from hifigemm.workshop.errors import COMPUTATION_ERROR, OK, InputError, complain
from hifigemm.workshop.measuring.arrays import (
    Arrays,
    Workload,
    arrays_of,
)
from hifigemm.workshop.measuring.cases import measure
from hifigemm.workshop.measuring.ceilings import (
    busy_remark,
    measured_ceilings,
    peak_rates,
    shown_rate,
)
from hifigemm.workshop.measuring.rows import Row, rows
from hifigemm.workshop.measuring.runs import NATIVE, Outcome
from hifigemm.workshop.measuring.timing import QUICK, Method
from hifigemm.workshop.table import print_table

SIZES = {"cpu": (128, 256, 512), "cuda": (1024, 2048, 4096, 8192, 16384)}
_COLUMNS = {
    "burst": ("burst_tflops", ".3g"),
    "sustained": ("sustained_tflops", ".3g"),
    "x native": ("ratio_to_native", ".2f"),
    "x peer": ("ratio_to_best_peer", ".2f"),
    "roof": ("share_of_roof", ".0%"),
    "error": ("error", ".1e"),
    "bound": ("bound", ".1e"),
    "GFLOP/s/W": ("gflops_per_watt", ".0f"),
    "W": ("watts", ".0f"),
    "MHz": ("sm_clock_mhz", ".0f"),
}
_NOTES = (
    ("burst", "{unit} after a pause"),
    ("sustained", "{unit} in the second half of a run without a pause"),
    ("x native", "speed over that of the native product in the same mode, sustained"),
    ("x peer", "speed over that of the best peer in the same mode, sustained"),
    ("roof", "share of (peak of the unit / number of products), sustained"),
    ("error", "max |C - AB| / (|A||B|) that was seen"),
    ("bound", "the same as it was promised; a result beyond its bound gets no time"),
)
"""What columns say; of a device with rates in `unit`."""
_UNITS = {"cpu": ("GFLOP/s", 1e3), "cuda": ("TFLOP/s", 1.0)}
"""Units of rates by device, and their number in a TFLOP/s."""


@dataclass(frozen=True)
class Settings:
    """What is measured, in the words of the command's options."""

    shapes: Sequence[tuple[int, int, int]]  # (m, n, k); none: squares by device
    batch: int
    dtype: str
    schemes: Sequence[str] | None  # None: by dtype
    family: str
    mode: str | None  # "eager", "graph" or "both"; None: both on CUDA
    device: str | None  # None: CUDA where there is one
    csv: Path | None
    quick: bool
    runs: int | None  # None: as the method says
    seed: int


def bench(settings: Settings) -> int:
    """The exit code of `hifigemm bench`, all of whose tables are printed."""
    arrays = arrays_of(settings.device)
    is_cpu = arrays.device == "cpu"
    if is_cpu and settings.mode in ("graph", "both"):
        raise InputError(f"--mode {settings.mode}: CUDA graphs need --device cuda")
    if settings.csv is not None:
        with writing(settings.csv):
            settings.csv.parent.mkdir(parents=True, exist_ok=True)
        check_results(settings.csv)

    # What is run: in which modes, how long.
    modes: tuple[str, ...] = ("eager",) if is_cpu else ("eager", "graph")
    if settings.mode in ("eager", "graph"):
        modes = (settings.mode,)
    method = QUICK if settings.quick else Method()
    method = replace(method, runs=settings.runs or method.runs)
    # an overflow of a native product shows in the verdict on it
    with np.errstate(all="ignore"):
        return _Bench(settings, arrays, modes, method).run()


class _Bench:
    """One run of the command: what is the same for all workloads, and the rows so
    far.
    """

    def __init__(
        self,
        settings: Settings,
        arrays: Arrays,
        modes: Sequence[str],
        method: Method,
    ) -> None:
        self.settings = settings
        self.arrays = arrays
        self.modes = modes
        self.method = method
        self.unit, self.per_tflops = _UNITS[arrays.device]
        self.columns: dict[str, None] = {}  # all that were printed
        self.rows: list[Row] = []
        self.wrong: list[str] = []

    def run(self) -> int:
        arrays = self.arrays
        facts = arrays.describe()
        meter = arrays.meter()
        columns = {"device": facts["device"], "commit": environment()["commit"]}
        ceilings = measured_ceilings(arrays, arrays.clock(), self.method)
        peaks = peak_rates(facts["device"])
        extra = facts | {
            "method": vars(self.method),
            "seed": self.settings.seed,
            "ceilings": ceilings,
            "peaks": peaks,
        }
        roofs = [f"{name} {shown_rate(rate, name)}" for name, rate in ceilings.items()]
        print("  ".join(roofs), flush=True)
        for load in self._workloads():
            print(f"{load} ...", file=sys.stderr, flush=True)
            names = [NATIVE, *(self.settings.schemes or _schemes(load))]
            outcomes = measure(
                load,
                names,
                self.modes,
                arrays,
                self.method,
                meter=meter,
            )
            lines = rows(load, outcomes, peaks, columns)
            self.rows += lines
            self._print(load, outcomes, lines)
            for row in lines:
                remark = busy_remark(row, ceilings, arrays.device)
                if remark:
                    print(f"{remark}\n", flush=True)
            self._write(extra)
            del outcomes
            arrays.release()
        width = max(map(len, self.columns), default=0)
        for name, text in _NOTES:
            if name in self.columns:
                print(f"{name:<{width}}  {text.format(unit=self.unit)}")
        is_timed = any(row["burst_seconds"] for row in self.rows)
        return complain(self.wrong) or (OK if is_timed else COMPUTATION_ERROR)

    def _workloads(self) -> list[Workload]:
        options = self.settings
        squares = [(n, n, n) for n in SIZES[self.arrays.device]]
        loads = []
        for m, n, k in options.shapes or squares:
            load = Workload(
                m, n, k, options.batch, options.dtype, options.family, options.seed
            )
            if load.nbytes > sys.maxsize:
                raise MemoryError(f"{load} takes {load.nbytes} bytes")
            loads.append(load)
        return loads

    def _print(
        self,
        load: Workload,
        outcomes: Sequence[Outcome],
        lines: Sequence[Row],
    ) -> None:
        # A table of what was timed, without columns of which nothing is known.
        timed = [row for row in lines if row["burst_seconds"]]
        columns = {}
        for name, (key, spec) in _COLUMNS.items():
            if any(row[key] != "" for row in timed):
                columns[name] = key, spec
        groups = []
        for mode in self.modes:
            of_mode = [row for row in timed if row["mode"] == mode]
            if of_mode:
                groups.append([self._cells(row, columns) for row in of_mode])
        self.columns |= dict.fromkeys(columns)
        if timed:
            print_table(str(load), ("case", "mode", *columns), groups)

        # Then what has no time, and why.
        for outcome in outcomes:
            if outcome.status != "timed":
                print(f"{outcome.case.name}, {outcome.case.mode}: {outcome.status}")
            if outcome.refused:
                self.wrong.append(
                    f"{outcome.case.name}, {outcome.case.mode}, {load}: {outcome.verdict.wrong}"
                )
        print(flush=True)

    def _cells(self, row: Row, columns: dict[str, tuple[str, str]]) -> list[str]:
        """The cells of a line of a table; nothing where nothing is known."""
        cells = [row["case"], row["mode"]]
        for key, spec in columns.values():
            value = row[key]
            if value != "" and key.endswith("_tflops"):
                value *= self.per_tflops
            cells.append("" if value == "" else format(value, spec))
        return cells

    def _write(self, extra: dict[str, Any]) -> None:
        """All rows so far, so that an interrupted run leaves what it has."""
        path = self.settings.csv
        if path is None:
            return
        write_results(path, self.rows, **extra)


def _schemes(load: Workload) -> list[str]:
    """What is compared unless --schemes says otherwise."""
    counts = ("ozaki2:14", "ozaki2:15")
    if load.real == "float32":
        counts = ("ozaki2:7", "ozaki2:8")
    return ["auto", "auto@correct", *counts, "peers"]
