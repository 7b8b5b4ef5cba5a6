"""What do powers of two along k cost? A D and D^-1 B have the product of A and B.

    python -m experiments.gpu.spans [--sizes 4096] [--seconds 60] [--output FILE.csv]

A and B are (rand - 0.5) exp(0.5 randn), and D is a diagonal of powers of two at random
over up to 600 bits, so that nothing is rounded where D is applied. Units of measurement
in the columns of A, or a scaled basis, look like this. A scheme with a fixed number of
products puts rows and columns on grids of their own, and D takes bits of these grids
away. Errors are the largest |C - AB| / (|A||B|) of sampled entries, which D does not
change, since it leaves |A||B| as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import hifigemm as hg
from experiments.gpu.common import METHOD, Machine, Sample, study
from hifigemm.workshop.measuring.arrays import Workload
from hifigemm.workshop.measuring.cases import scheme_options
from hifigemm.workshop.measuring.peers import available
from hifigemm.workshop.measuring.rows import Row

SIZES = {"cuda": (4096,), "cpu": (256,)}
SPANS = (0, 10, 20, 30, 40, 60, 100, 200, 600)
SCHEMES = ("ozaki2:14", "ozaki2:15", "auto", "auto@fp64", "auto@correct")
BURSTS = replace(METHOD, pause=0.01, span=0.01, calls=(1, 4), bursts=3, sustained=0)
SEED = 42
SHOWN = "n span case error milliseconds tflops status"


def scaled_operands(a: Any, b: Any, span: int, machine: Machine) -> tuple[Any, Any]:
    """A D and D^-1 B, D a diagonal of powers of two over so many bits."""
    rng = np.random.default_rng([SEED, span])
    exponents = rng.integers(-(span // 2), span - span // 2 + 1, a.shape[1])
    diagonal = machine.arrays.asarray(np.ldexp(1.0, exponents))
    return a * diagonal, b / diagonal[:, None]


def ways(
    machine: Machine, load: Workload, a: Any, b: Any, out: Any
) -> dict[str, Callable[[], object]]:
    """The native product, the library's schemes, and the vendor's emulation."""
    found: dict[str, Callable[[], object]] = {
        "native": partial(machine.arrays.multiply, a, b, out)
    }
    for peer in available(machine.arrays.device, load):
        if peer.name.startswith("cublas"):
            found[peer.name] = peer.prepare(a, b, out)
    for name in SCHEMES:
        found[name] = partial(hg.matmul, a, b, out=out, **scheme_options(name))
    return found


def lines(machine: Machine, sizes: Sequence[int]) -> Iterator[Row]:
    """A line for each way to the product, narrow diagonals first."""
    for n in sizes:
        load = Workload(n, n, n)
        unscaled = machine.arrays.operands(load, 0)
        out = machine.arrays.empty(load)
        for span in SPANS:
            a, b = scaled_operands(*unscaled, span, machine)
            sample = Sample(a, b)
            for case, run in ways(machine, load, a, b, out).items():
                row: Row = {"device": machine.name, "n": n, "dtype": load.dtype}
                row |= {"span": span, "case": case}
                try:
                    run()
                except hg.HifigemmError as error:
                    yield row | {"status": str(error).splitlines()[0]}
                    continue
                error = sample.exact.error(sample.of(out))
                seconds = machine.times(run).burst.median
                yield row | {
                    "error": error,
                    "milliseconds": 1e3 * seconds,
                    "tflops": 1e-12 * load.operations / seconds,
                    "status": "timed",
                }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write."""
    return study("spans", __doc__, lines, SIZES, SHOWN, argv, BURSTS)


if __name__ == "__main__":
    sys.exit(main())
