"""Where does the time of a product by Ozaki scheme II go? Its stages, one by one, beside
the work that they cannot avoid.

    python -m benchmarks.stages [--sizes N,N,...] [--dtype float64|float32] [--output FILE.csv]

Residues of A, residues of B, products with reconstruction, in bursts, with 14 and 15
moduli (7 and 8 for float32) and fast scaling. The floor of a stage is the larger of two
times: that of its bytes at the rate of a copy, and that of its operations at the peak of
their format.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hifigemm as hg
from benchmarks.common import SIZES, arrays_here, default_path, sizes
from hifigemm.engines import engine_for
from hifigemm.libraries import library_of
from hifigemm.operands.operands import own_stack
from hifigemm.running.planner import for_problem, workspace_limit
from hifigemm.workshop.environment import write_csv
from hifigemm.workshop.measuring.arrays import Arrays, Workload
from hifigemm.workshop.measuring.ceilings import measured_ceilings, peak_rates
from hifigemm.workshop.measuring.rows import Row
from hifigemm.workshop.measuring.timing import Clock, Method, time_bursts
from hifigemm.workshop.table import print_table

COUNTS = {"float64": (14, 15), "float32": (7, 8)}
METHOD = Method()
COLUMNS = {
    "us": ("microseconds", ".1f"),
    "floor": ("floor_microseconds", ".1f"),
    "x floor": ("ratio_to_floor", ".2f"),
}
"""Those of the table, with their keys and formats."""


@dataclass(frozen=True)
class Stage:
    """A part of a product that is timed by itself, with the work that it cannot avoid.

    That is bytes to be read and written, and operations in the format `unit`, a key of
    the rates.
    """

    name: str
    run: Callable[[], object]
    nbytes: float = 0.0
    operations: float = 0.0
    unit: str = "int8"


def stages(a: Any, b: Any, scheme: hg.Ozaki2) -> list[Stage]:
    """Stages of `matmul(a, b, scheme=scheme)` with fast scaling: residues of A, residues
    of B, products with reconstruction. None for products in blocks.

    The floors count each byte once: operands in, L residues of an entry out and in
    again, residues of the product out and in, the result out.
    """
    plan = hg.make_plan(a, b, scheme=scheme)
    p = plan.problem
    library = library_of(("a", a), ("b", b))
    engine = engine_for(plan.engine, library.name, library.device)
    limit = workspace_limit(p, None, engine)
    plan = for_problem(plan, p, engine, limit, states_bound=False)
    if not plan.is_whole:
        return []
    x = own_stack(library.asarray(a, "a"), "left", p)
    y = own_stack(library.asarray(b, "b"), "right", p)

    def split_left() -> Any:
        scale, _ = plan.scheme.scales(plan, x, None, engine)
        return plan.scheme.split(plan, x, "left", scale, engine)

    def split_right() -> Any:
        _, scale = plan.scheme.scales(plan, None, y, engine)
        return plan.scheme.split(plan, y, "right", scale, engine)

    finish = partial(plan.scheme.multiply, plan, split_left(), split_right(), engine, 0)

    # Bytes and operations of one matrix of the stack.
    count = plan.num_products
    size = p.dtype.itemsize
    area_a, area_b, area_c = p.m * p.k, p.k * p.n, p.m * p.n
    bytes_last = count * (area_a + area_b + 2 * area_c) + size * area_c
    work = 2.0 * p.m * p.n * p.k * count
    return [
        Stage("residues of A", split_left, p.batch * (size + count) * area_a),
        Stage("residues of B", split_right, p.batch * (size + count) * area_b),
        Stage(
            "products, reconstruction",
            finish,
            p.batch * bytes_last,
            p.batch * work,
            plan.spec.name,
        ),
    ]


def stage_rows(
    parts: Sequence[Stage],
    clock: Clock,
    method: Method,
    rates: Mapping[str, float],
    copy_rate: float,
) -> list[Row]:
    """One line for each stage: time in bursts beside its floor, the larger of bytes and
    operations.

    rates are operations a second by format, copy_rate bytes a second.
    """
    runs = {stage.name: clock.without_host(stage.run) for stage in parts}
    times = time_bursts(runs, clock, method)
    lines = []
    for stage in parts:
        seconds = times[stage.name].median
        rate = rates.get(stage.unit, 0.0)
        seconds_of_products = stage.operations / rate if rate else 0.0
        floor = max(stage.nbytes / copy_rate, seconds_of_products)
        lines.append(
            {
                "stage": stage.name,
                "microseconds": 1e6 * seconds,
                "floor_microseconds": 1e6 * floor,
                "ratio_to_floor": seconds / floor if floor else "",
                "bytes": stage.nbytes,
                "operations": stage.operations,
                "unit": stage.unit,
            }
        )
    return lines


def measured(
    arrays: Arrays, load: Workload, rates: Mapping[str, float], copy_rate: float
) -> list[Row]:
    """The rows of all counts for one workload."""
    a, b = arrays.operands(load, 0)
    sizes_of_load = {"m": load.m, "n": load.n, "k": load.k, "dtype": load.dtype}
    found: list[Row] = []
    for count in COUNTS[load.dtype]:
        parts = stages(a, b, hg.Ozaki2(num_moduli=count, scaling="fast"))
        lines = stage_rows(parts, arrays.clock(), METHOD, rates, copy_rate)
        found += [{"case": f"ozaki2:{count}", **sizes_of_load} | line for line in lines]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=sizes, metavar="N,N,...")
    parser.add_argument("--dtype", choices=tuple(COUNTS), default="float64")
    parser.add_argument("--output", type=Path, help="(default: by device and day)")
    options = parser.parse_args(argv)
    arrays = arrays_here()
    facts = arrays.describe()
    ceilings = measured_ceilings(arrays, arrays.clock(), METHOD)
    rates = peak_rates(facts["device"]) or ceilings
    path = options.output or default_path("stages", arrays)

    found: list[Row] = []
    for n in options.sizes or SIZES[arrays.device]:
        load = Workload(n, n, n, dtype=options.dtype)
        new = measured(arrays, load, rates, ceilings["copy"])
        cells = [
            [row["case"], row["stage"]]
            + [
                "" if row[key] == "" else format(row[key], spec)
                for key, spec in COLUMNS.values()
            ]
            for row in new
        ]
        print_table(str(load), ("case", "stage", *COLUMNS), [cells])
        found += new
        write_csv(path, found, **facts, method=vars(METHOD), ceilings=ceilings)
        arrays.release()
    return 0


if __name__ == "__main__":
    sys.exit(main())
