"""Seven products of halves for eight, beside whole products of residues: compared bit
for bit, then timed in turns.

    python -m benchmarks.halves [--sizes N,N,...] [--output FILE.csv]

Square matrices on a GPU, phi = 0.5. A row says what a plan takes by itself, which need
not be what was timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import hifigemm as hg
from benchmarks.common import BRIEF, default_path, sizes
from hifigemm.engines import engine_for
from hifigemm.engines.device_array import wrap
from hifigemm.model.executable import Signature
from hifigemm.workshop.environment import write_csv
from hifigemm.workshop.measuring.arrays import CudaArrays, Workload
from hifigemm.workshop.measuring.timing import time_variants

CASES = (("float64", 14), ("complex128", 14), ("float64", None))
"""Dtype and number of moduli; none where the device chooses and the result is
promised.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes", type=sizes, default=(8192, 12288, 16384), metavar="N,N,..."
    )
    parser.add_argument("--output", type=Path)
    args = parser.parse_args(argv)
    arrays, rows = CudaArrays(), []
    path = args.output or default_path("halves", arrays)
    for n in args.sizes:
        for dtype, count in CASES:
            rows += measure(Workload(n, n, n, dtype=dtype), count, arrays)
            write_csv(path, rows, **arrays.describe(), method=vars(BRIEF))
            arrays.release()
            for row in rows[-2:]:
                print(
                    "  ".join(f"{key} {value}" for key, value in row.items()),
                    flush=True,
                )
    return 0 if all(row["same_bits"] for row in rows) else 1


def measure(
    load: Workload, count: int | None, arrays: CudaArrays
) -> list[dict[str, Any]]:
    """A row for whole products and one for those of halves."""
    a, b = arrays.operands(load, 0)
    plan = hg.make_plan(a, b, scheme=hg.Ozaki2(num_moduli=count, scaling="fast"))
    engine = engine_for(None, "torch", a.device)
    results = {form: arrays.empty(load) for form in (False, True)}

    def run(in_halves: bool) -> Callable[[], object]:
        own = replace(plan, blocking=replace(plan.blocking, in_halves=in_halves))
        lowering: Any = engine.lowering(own)
        x, y, out = (z[None] for z in (a, b, results[in_halves]))
        stacks = wrap(x), wrap(y)
        signature = Signature(*stacks, own.problem.shape, wrap(out))
        executable = lowering.lower(signature)
        return lambda: executable(x, y, out)

    runs = {str(form): run(form) for form in results}
    for call in runs.values():
        call()
    same = torch.equal(results[False], results[True])
    times = time_variants(runs, arrays.clock(), BRIEF, arrays.meter())
    rows = []
    for form in results:
        found = times[str(form)]
        row = {
            "n": load.n,
            "dtype": load.dtype,
            "scheme": str(plan.scheme),
            "promised": count is None,
        }
        row |= {
            "in_halves": form,
            "planned": plan.blocking.in_halves,
            "same_bits": same,
        }
        row |= {"burst_tflops": load.operations / found.burst.median * 1e-12}
        row |= {"sustained_tflops": load.operations / found.sustained.median * 1e-12}
        rows.append(
            row
            | {
                "sm_clock_mhz": found.readings.sm_clock_mhz,
                "watts": found.readings.watts,
            }
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
