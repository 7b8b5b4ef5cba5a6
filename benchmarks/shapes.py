"""Is the library's choice ever slower than the native product? Small, skinny and
batched shapes, checked, then timed.

    python -m benchmarks.shapes [--parts P,P,...] [--output FILE.csv] [--quick]

One part for each dtype. On a GPU products are captured in graphs and called from
Python: below n = 512 the time of a call is the host's, and the graph shows that of the
device. What waits for the device cannot be captured, and its row says so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.common import BRIEF, Section, parse, run_sections
from hifigemm.workshop.measuring.arrays import Workload

PARTS = ("float64", "float32")
SHAPES = (
    *((n, n, n, 1) for n in (128, 256, 512, 1024, 2501, 3333)),
    (1024, 1024, 65536, 1),
    (16384, 64, 16384, 1),
    (16384, 1, 16384, 1),
    (256, 256, 256, 256),
)
"""m, n, k, matrices in a stack."""
METHOD = replace(BRIEF, sustained=1.6)
MODES = ("graph", "eager")


def sections(parts: Sequence[str]) -> list[Section]:
    """What is measured for these dtypes."""
    return [
        Section(dtype, Workload(*shape, dtype=dtype), ("native", "auto"), METHOD, MODES)
        for dtype in parts
        for shape in SHAPES
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = parse(
        __doc__, PARTS, sys.argv[1:] if argv is None else argv, default_sizes=None
    )
    return run_sections("shapes", sections(options.parts), options)


if __name__ == "__main__":
    sys.exit(main())
