"""How long do calls take, in this checkout and in another one?

    python -m benchmarks.calls [--against CHECKOUT] [--sizes N,N,...] [--output FILE]
    python -m benchmarks.calls --device cpu --against CHECKOUT

Products of n x n phi matrices with phi = 0.5, checked and then timed. Modes: "eager",
loops of calls from Python with one wait at the end; "graph", replays of a CUDA graph,
for calls that can be captured; "host", the time until a call returns, whatever the
device does then. On a CPU a call is done when it returns: there is one mode, with one
thread, in processor time.

Each checkout is measured in three fresh processes, in turns with the other one, all on
one card. A process gives a call the least of its loops. `before_us` and `after_us` are
the least of the processes, `before_median_us` and `after_median_us` their median, and
`ratio` is that of the least ones. "Before" is the other checkout, "after" this one.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import hifigemm as hg
from benchmarks.common import sizes
from benchmarks.processes import (
    METHODS,
    ONE_THREAD,
    ROOT,
    clock_of,
    lines_of,
    print_line,
)
from hifigemm.workshop.environment import write_csv
from hifigemm.workshop.measuring.arrays import Arrays, CudaArrays, Workload
from hifigemm.workshop.measuring.checks import Reference
from hifigemm.workshop.measuring.timing import time_bursts

SIZES = {"cpu": (8, 64, 256), "cuda": (512, 1024, 2048, 4096, 8192)}
CALLS = {
    "float64": ("default", "correct", "14", "1e-12", "native"),
    "float32": ("default", "correct", "native"),
    "complex128": ("default", "correct", "native"),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "correct": {"accuracy": "correct"},
    "14": {"scheme": hg.Ozaki2(num_moduli=14, scaling="fast")},
    "1e-12": {"accuracy": 1e-12},
}
"""Options of `hifigemm.matmul`; "native" is the array library's own product."""
BOUNDS = {"correct": 0.0, "1e-12": 1e-12}
"""Errors in multiples of |A||B| that a call promises; others promise no less than the
native product.
"""
CAPTURED = ("default", "14", "native")
"""Calls that never wait for the device."""
LARGEST_IN_GRAPH = 1024
"""Larger products take longer than their launches."""
HOST_SIZES = (64, 512)
PROCESSES = 3
SAMPLE = 16
"""Rows and columns that are compared with the exact product."""


@dataclass(frozen=True)
class Case:
    """What a row measures."""

    dtype: str
    n: int
    call: str
    mode: str = "eager"


def cases_of(device: str, sizes: Sequence[int]) -> list[Case]:
    """The rows of a device."""
    dtypes = [(dtype, call) for dtype, calls in CALLS.items() for call in calls]
    cases = [Case(dtype, n, call) for n in sizes for dtype, call in dtypes]
    if device == "cpu":
        return cases
    cases += [
        Case(dtype, n, call, "graph")
        for n in sizes
        for dtype, call in dtypes
        if n <= LARGEST_IN_GRAPH and call in CAPTURED
    ]
    cases += [
        Case(dtype, n, call, "host") for n in HOST_SIZES for dtype, call in dtypes
    ]
    return cases


def run_process(device: str, cases: Sequence[Case]) -> None:
    """Check and time the cases in this process; print a line for the checkout and one
    for each case.
    """
    arrays = CudaArrays() if device == "cuda" else Arrays()
    print_line(library=hg.__file__, core=hg.info().versions["core"])
    print_line(**arrays.describe())
    # Cases of one size share operands, and are timed in turns.
    groups: dict[tuple[str, int, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.dtype, case.n, case.mode), []).append(case)
    for (dtype, n, mode), group in groups.items():
        load = Workload(n, n, n, dtype=dtype)
        calls = checked_calls(arrays, load, [case.call for case in group])
        clock = clock_of(device, mode)
        if mode == "graph":
            calls = {name: clock.without_host(call) for name, call in calls.items()}
        times = time_bursts(calls, clock, METHODS[device])
        for case in group:
            print_line(**asdict(case), us=1e6 * times[case.call].least)
        del calls
        arrays.release()


def checked_calls(
    arrays: Arrays, load: Workload, names: Sequence[str]
) -> dict[str, Callable[[], Any]]:
    """The calls, whose results are right.

    Raises RuntimeError: a result is not within its bound.
    """
    a, b = arrays.operands(load, 0)
    reference = Reference(load, a, b, min(SAMPLE, load.n))
    calls: dict[str, Callable[[], Any]] = {}
    for name in names:
        if name == "native":
            calls[name] = lambda: a @ b
        else:
            calls[name] = partial(hg.matmul, a, b, **OPTIONS[name])
        verdict = reference.judge(calls[name](), BOUNDS.get(name, math.inf))
        if verdict.wrong:
            raise RuntimeError(f"{load}, {name}: {verdict.wrong}")
    return calls


def measure(
    trees: dict[str, Path], device: str, sizes: Sequence[int], processes: int
) -> tuple[dict[Case, dict[str, list[float]]], dict[str, Any]]:
    """Times in microseconds of each case and checkout, one for each process, and facts
    for the environment.

    Raises RuntimeError: a process took the library from elsewhere.
    """
    arguments = ["--process", "--device", device]
    arguments += ["--sizes", ",".join(map(str, sizes))]
    variables = ONE_THREAD if device == "cpu" else {}
    times: dict[Case, dict[str, list[float]]] = {}
    facts: dict[str, Any] = {}
    for turn in range(processes):
        for name, tree in trees.items():
            print(f"process {turn + 1} of {processes}: {name}, {tree}", flush=True)
            version, described, *lines = lines_of(
                "benchmarks.calls", arguments, tree=tree, variables=variables
            )
            if not Path(version["library"]).is_relative_to(tree):
                raise RuntimeError(
                    f"hifigemm came from {version['library']}, not from {tree}"
                )
            facts |= {**described, f"core {name}": version["core"]}
            for line in lines:
                us = line.pop("us")
                times.setdefault(Case(**line), {}).setdefault(name, []).append(us)
    return times, facts


def rows_of(times: dict[Case, dict[str, list[float]]]) -> Iterator[dict[str, Any]]:
    """The rows of the file."""
    for case, by_tree in times.items():
        row: dict[str, Any] = asdict(case)
        for name, values in by_tree.items():
            row[f"{name}_us"] = round(min(values), 2)
        for name, values in by_tree.items():
            row[f"{name}_median_us"] = round(median(values), 2)
        if "before" in by_tree:
            ratio = min(by_tree["after"]) / min(by_tree["before"])
            row["ratio"] = round(ratio, 3)
        yield row


def print_row(row: dict[str, Any]) -> None:
    """Print a row as a line of a table."""
    text = f"{row['dtype']:<10} {row['n']:>5} {row['call']:<8} {row['mode']:<6}"
    numbers = [value for key, value in row.items() if key.endswith(("_us", "ratio"))]
    print(text + "".join(f"{value:>12.6g}" for value in numbers))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both checkouts, print, write."""
    options = parse(sys.argv[1:] if argv is None else argv)
    sizes_of_device = options.sizes or SIZES[options.device]
    if options.process:
        run_process(options.device, cases_of(options.device, sizes_of_device))
        return 0

    trees = {"after": ROOT}
    if options.against is not None:
        trees = {"before": options.against.resolve(), "after": ROOT}
    times, facts = measure(trees, options.device, sizes_of_device, options.processes)
    rows = list(rows_of(times))
    for row in rows:
        print_row(row)
    if options.output is not None:
        if options.against is not None:
            facts["commit before"] = commit_of(trees["before"])
        write_csv(
            options.output,
            rows,
            **facts,
            method=vars(METHODS[options.device]),
            processes=options.processes,
            note=options.note,
        )
    return 0


def commit_of(tree: Path) -> str | None:
    """The commit of a checkout; None if git cannot say."""
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty", "--abbrev=40"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or None


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of the script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=tuple(SIZES), default="cuda")
    parser.add_argument(
        "--against", type=Path, metavar="CHECKOUT", help="measured in turns with this"
    )
    parser.add_argument("--sizes", type=sizes, metavar="N,N,...")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--output", type=Path, metavar="FILE")
    parser.add_argument("--note", default="", help="for the environment")
    parser.add_argument("--process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.against is not None and not (options.against / "src/hifigemm").is_dir():
        parser.error(f"{options.against} is no checkout: it has no src/hifigemm")
    if options.processes < 1:
        parser.error(f"--processes {options.processes}: at least one")
    return options


if __name__ == "__main__":
    sys.exit(main())
