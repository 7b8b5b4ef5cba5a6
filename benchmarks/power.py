"""How does a rate go on through a run at the limit of power? Pieces of 50 ms over 4 s,
after a rest.

    python -m benchmarks.power [--sizes N,N,...] [--output FILE.csv]

The native product, 14 moduli and three FP16 products, one after the other; each is
checked first. What is found says how long a run has to be for the mean of its second
half to tell what a card can keep up: see `Method`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.common import arrays_here, default_path, sizes
from hifigemm.workshop.environment import write_csv
from hifigemm.workshop.measuring.arrays import Arrays, Workload
from hifigemm.workshop.measuring.cases import measure
from hifigemm.workshop.measuring.timing import Method, time_course

CASES = {"native": "float64", "ozaki2:14": "float64", "corrected:fp16": "float32"}
REST, RUN, PIECE = 1.0, 4.0, 0.05
"""Seconds."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=sizes, default=(4096, 8192), metavar="N,N,...")
    parser.add_argument("--output", type=Path, help="(default: by device and day)")
    options = parser.parse_args(argv)
    arrays = arrays_here()
    runs = [pieces(arrays, case, n) for n in options.sizes for case in CASES]
    write_csv(
        options.output or default_path("power", arrays),
        [row for rows in runs for row in rows],
        **arrays.describe(),
    )
    return 0 if all(runs) else 1


def pieces(arrays: Arrays, case: str, n: int) -> list[dict[str, Any]]:
    """A row for each piece of the run of one case; none where its product is wrong."""
    load = Workload(n, n, n, dtype=CASES[case])
    (outcome,) = measure(load, [case], ["eager"], arrays, Method(bursts=3, sustained=0))
    if outcome.times is None:
        print(f"{case}, n = {n}: {outcome.status}")
        return []
    clock, run = arrays.clock(), outcome.case.runs[0]
    calls = max(round(PIECE / outcome.times.burst.median), 1)
    clock.idle(REST)
    elapsed, _ = time_course(run, clock, calls, RUN)
    rates = [
        1e-12 * load.operations * calls / (end - start)
        for start, end in pairwise(elapsed)
    ]
    print(
        f"{case}, n = {n}: {' '.join(f'{rate:.3g}' for rate in rates)} TFLOP/s",
        flush=True,
    )
    return [
        {"case": case, "n": n, "seconds": end, "tflops": rate}
        for end, rate in zip(elapsed[1:], rates, strict=True)
    ]


if __name__ == "__main__":
    sys.exit(main())
