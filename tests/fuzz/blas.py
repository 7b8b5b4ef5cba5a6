"""Calls of the BLAS with hostile data, every number against exact fractions:

    python -m tests.fuzz.blas --calls 1000000 --jobs 16 --output results/blas_bits.csv

Each call has a routine, a type, an interface, shapes, flags, increments and scalars of
its own. What is wrong is printed with its seed and index.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import time
from collections import Counter
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np

from hifigemm.workshop.environment import write_csv
from tests.blas.cases import draw
from tests.blas.conftest import LIBRARY
from tests.blas.reductions import reduction_fault
from tests.blas.routines import (
    INTERFACES,
    ONLY_IN_FORTRAN,
    REDUCTIONS,
    ROUTINES,
    call,
)

NAMES = [*ROUTINES, *REDUCTIONS]


class Share(NamedTuple):
    """What one process does: the calls of each `jobs`-th index from `first` on."""

    seed: int
    first: int
    jobs: int
    calls: int
    deadline: float


def fault_of(library: ctypes.CDLL, rng: Any, name: str) -> str | None:
    """What is wrong with one call of a routine with any data, or None."""
    if name in REDUCTIONS:
        return reduction_fault(library, rng, name)
    p = str(rng.choice(list(ROUTINES[name][0])))
    case = draw(rng, name, p, largest=20 if rng.random() < 0.02 else 6)
    interfaces = [
        interface
        for interface in INTERFACES
        if (interface.is_c or case.order == "columns")
        and not (interface.is_c and p + name in ONLY_IN_FORTRAN)
    ]
    # Names that only Fortran has take no matrix by rows.
    if not interfaces:
        return fault_of(library, rng, name)
    interface = interfaces[int(rng.integers(len(interfaces)))]
    call(library, interface, case.p, case.name, case.order, case.arguments)
    fault = case.fault()
    return fault and f"{interface}: {fault}"


def run(share: Share) -> tuple[Counter[str], list[str]]:
    """Calls by routine, and what is wrong."""
    library = ctypes.CDLL(str(LIBRARY))
    calls: Counter[str] = Counter()
    wrong = []
    for index in itertools.count(share.first, share.jobs):
        if calls.total() >= share.calls or time.monotonic() > share.deadline:
            break
        name = NAMES[index % len(NAMES)]
        rng = np.random.default_rng([share.seed, index])
        fault = fault_of(library, rng, name)
        calls[name] += 1
        if fault:
            wrong.append(f"{(share.seed, index)} {fault}")
    return calls, wrong


def main() -> int:
    """Draw, call, judge; the exit status is 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--output")
    options = parser.parse_args()
    started = time.monotonic()
    jobs, deadline = options.jobs, started + options.seconds
    shares = [
        Share(options.seed, first, jobs, -(-options.calls // jobs), deadline)
        for first in range(jobs)
    ]
    with get_context("fork").Pool(jobs) as pool:
        results = pool.map(run, shares)
    total: Counter[str] = Counter()
    wrong: list[str] = []
    for calls, faults in results:
        total += calls
        wrong += faults
    print(*wrong[:100], sep="\n")
    rows = [
        {
            "routine": name,
            "calls": total[name],
            "wrong": sum(f": {name}:" in fault for fault in wrong),
        }
        for name in NAMES
    ]
    seconds = round(time.monotonic() - started, 1)
    print(f"{total.total()} calls in {seconds} s, {len(wrong)} wrong")
    if options.output:
        write_csv(options.output, rows, seed=options.seed, seconds=seconds)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
