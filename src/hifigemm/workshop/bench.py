"""`hifigemm bench`: times of the native product, of schemes and of peers, after their
results were checked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hifigemm.accuracy import resolve
from hifigemm.cli.options import SEED, SIZE, add_command, usage
from hifigemm.formats import FP64
from hifigemm.workshop.atomic import check_results, write_results, writing
from hifigemm.workshop.environment import environment
from hifigemm.workshop.errors import COMPUTATION_ERROR, OK, InputError, complain
from hifigemm.workshop.measuring.arrays import (
    DTYPES,
    FAMILIES,
    Arrays,
    CudaArrays,
    Workload,
    check_family,
    cuda_is_usable,
)
from hifigemm.workshop.measuring.cases import measure, scheme_options
from hifigemm.workshop.measuring.ceilings import measured_ceilings, peak_rates
from hifigemm.workshop.measuring.peers import peers
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
_NOTES = """
burst, sustained  TFLOP/s after a pause, and in the second half of a run without one
x native, x peer  speed over that of the native product and of the best peer in the same mode, sustained
roof              share of (peak of the unit / number of products), sustained
error, bound      max |C - AB| / (|A||B|) seen and promised; a result beyond its bound gets no time"""


def add_bench(commands: Any) -> None:
    """Add the command `bench`."""
    epilog = "Schemes: native, peers, the name of a peer, or SCHEME[:COUNT][:WORD...][@ACCURACY] such as auto, "
    epilog += (
        "ozaki2:14, ozaki1:7:fp16, auto@correct. Exit code 1 when a result was wrong."
    )
    text = "times of the native product, of schemes and of peers, of results that were checked first"
    parser = add_command(commands, "bench", _bench, text, epilog=epilog)
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--sizes",
        type=_list(SIZE),
        metavar="N,N,...",
        help="square products (default: by device)",
    )
    group.add_argument(
        "--shapes", type=_shape, nargs="+", metavar="M,N,K", help="m x k times k x n"
    )
    add = parser.add_argument
    add(
        "--batch",
        type=SIZE,
        default=1,
        metavar="N",
        help="matrices in a stack (default: 1)",
    )
    add("--dtype", choices=DTYPES, default="float64", help="(default: float64)")
    add("--schemes", type=_list(_scheme), metavar="S,S,...", help="(default: by dtype)")
    add(
        "--family",
        type=_family,
        default="phi0.5",
        metavar="F",
        help=f"{', '.join(FAMILIES)} (default: phi0.5)",
    )
    add(
        "--mode",
        choices=("eager", "graph", "both"),
        help="calls, CUDA graphs, or both (default: both on CUDA)",
    )
    add(
        "--device",
        choices=("cpu", "cuda"),
        help="NumPy or torch (default: cuda where there is one)",
    )
    add(
        "--csv",
        type=Path,
        metavar="FILE",
        help="write the figures, and the environment beside them",
    )
    add(
        "--quick",
        action="store_true",
        help="short bursts and runs: a first look, not a measurement",
    )
    add(
        "--runs",
        type=SIZE,
        metavar="N",
        help=f"sustained runs of each case (default: {Method().runs}, quick 1)",
    )
    add("--seed", type=SEED, default=1, help="of the operands (default: 1)")


def _list(parse: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: list(dict.fromkeys(parse(word) for word in text.split(",")))


def _shape(text: str) -> tuple[int, int, int]:
    sizes = [SIZE(word) for word in text.split(",")]
    if len(sizes) != 3:
        raise argparse.ArgumentTypeError(f"{text!r}: expected three sizes M,N,K")
    return sizes[0], sizes[1], sizes[2]


def _scheme(text: str) -> str:
    if text not in (NATIVE, "peers", *peers()):
        with usage():
            resolve(scheme_options(text).get("accuracy"), FP64, 1)
    return text


def _family(text: str) -> str:
    with usage():
        check_family(text)
    return text


def _bench(args: argparse.Namespace) -> int:
    device = args.device or ("cuda" if cuda_is_usable() else "cpu")
    if device == "cuda" and not cuda_is_usable():
        raise InputError("--device cuda needs torch and a CUDA device")
    if device == "cpu" and args.mode in ("graph", "both"):
        raise InputError(f"--mode {args.mode}: CUDA graphs need --device cuda")
    modes = {
        None: ("eager", "graph") if device == "cuda" else ("eager",),
        "both": ("eager", "graph"),
    }
    if args.csv is not None:
        with writing(args.csv):
            args.csv.parent.mkdir(parents=True, exist_ok=True)
        check_results(args.csv)
    arrays = CudaArrays() if device == "cuda" else Arrays()
    method = QUICK if args.quick else Method()
    method = replace(method, runs=args.runs or method.runs)
    # an overflow of a native product shows in the verdict on it
    with np.errstate(all="ignore"):
        return _Bench(args, arrays, modes.get(args.mode, (args.mode,)), method).run()


class _Bench:
    """One run of the command: what is the same for all workloads, and the rows so
    far.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        arrays: Arrays,
        modes: Sequence[str],
        method: Method,
    ) -> None:
        self.args, self.arrays, self.modes, self.method = args, arrays, modes, method
        self.rows: list[Row] = []
        self.wrong: list[str] = []

    def run(self) -> int:
        arrays, facts = self.arrays, self.arrays.describe()
        clock, meter, commit = arrays.clock(), arrays.meter(), environment()["commit"]
        ceilings = measured_ceilings(arrays, clock, self.method)
        peaks = peak_rates(facts["device"])
        extra = facts | {
            "method": vars(self.method),
            "seed": self.args.seed,
            "ceilings": ceilings,
            "peaks": peaks,
        }
        print(
            "  ".join(
                f"{name} {rate * 1e-12:.3g} T/s" for name, rate in ceilings.items()
            ),
            flush=True,
        )
        for load in self._workloads():
            print(f"{load} ...", file=sys.stderr, flush=True)
            names = [NATIVE, *(self.args.schemes or _schemes(load))]
            outcomes = measure(
                load,
                names,
                self.modes,
                arrays,
                self.method,
                meter=meter,
            )
            new = rows(
                load, outcomes, peaks, {"device": facts["device"], "commit": commit}
            )
            self.rows += new
            self._print(load, outcomes, new)
            self._write(extra)
            del outcomes
            arrays.release()
        print(_NOTES)
        is_timed = any(row["burst_seconds"] for row in self.rows)
        return complain(self.wrong) or (OK if is_timed else COMPUTATION_ERROR)

    def _workloads(self) -> list[Workload]:
        args = self.args
        shapes = args.shapes or [
            (n, n, n) for n in args.sizes or SIZES[self.arrays.device]
        ]
        loads = [
            Workload(m, n, k, args.batch, args.dtype, args.family, args.seed)
            for m, n, k in shapes
        ]
        for load in loads:
            if load.nbytes > sys.maxsize:
                raise MemoryError(f"{load} takes {load.nbytes} bytes")
        return loads

    def _print(
        self,
        load: Workload,
        outcomes: Sequence[Outcome],
        new: Sequence[Row],
    ) -> None:
        timed = [row for row in new if row["burst_seconds"]]
        known = {
            name: at
            for name, at in _COLUMNS.items()
            if any(row[at[0]] != "" for row in timed)
        }
        groups = [
            [_cells(row, known, "case", "mode") for row in timed if row["mode"] == mode]
            for mode in self.modes
        ]
        if timed:
            print_table(
                str(load),
                ("case", "mode", *known),
                [group for group in groups if group],
            )
        for outcome in outcomes:
            if outcome.status != "timed":
                print(f"{outcome.case.name}, {outcome.case.mode}: {outcome.status}")
            if outcome.refused:
                self.wrong.append(
                    f"{outcome.case.name}, {outcome.case.mode}, {load}: {outcome.verdict.wrong}"
                )
        print(flush=True)

    def _write(self, extra: dict[str, Any]) -> None:
        """All rows so far, so that an interrupted run leaves what it has."""
        path = self.args.csv
        if path is None:
            return
        write_results(path, self.rows, **extra)


def _schemes(load: Workload) -> list[str]:
    """What is compared unless --schemes says otherwise."""
    return [
        "auto",
        *(
            f"ozaki2:{count}"
            for count in ((14, 15) if load.real == "float64" else (7, 8))
        ),
        "peers",
    ]


def _cells(row: Row, columns: dict[str, tuple[str, str]], *names: str) -> list[str]:
    """The cells of a line of a table; nothing where nothing is known."""
    numbers = (
        "" if row[key] == "" else format(row[key], spec)
        for key, spec in columns.values()
    )
    return [*(row[name] for name in names), *numbers]
