"""Who makes products at the error of a native one quickest on a GPU? This library, the
emulation of cuBLAS, and GEMMul8. Checked, then timed: in bursts, sustained, with watts.

    python -m benchmarks.cuda_peers [--parts P,P,...] [--output FILE.csv] [--quick]

float64     square products
stacks      of small float64 matrices, for which GEMMul8 has no call
complex128  square products, 8 n**3 operations
float32     square products

All have phi matrices with phi = 0.5. The cuBLAS that torch comes with is measured, or
the one that LD_PRELOAD names (libcublasLt.so.13 and libcublas.so.13); GEMMul8 where
LD_LIBRARY_PATH names the directory of its libgemmul8.so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.common import Section, parse, run_sections
from hifigemm.workshop.measuring.arrays import Workload

_FLOAT64 = "native", "ozaki2:14", "ozaki2:15", "auto", "auto@correct", "peers"
SCHEMES = {
    "float64": _FLOAT64,
    "stacks": _FLOAT64,
    "complex128": ("native", "ozaki2:14", "ozaki2:15", "auto", "peers"),
    "float32": ("native", "ozaki2:7", "corrected:fp16", "auto", "peers"),
}
SIZES = {
    "float64": (1024, 2048, 4096, 8192, 16384),
    "complex128": (2048, 4096, 8192),
    "float32": (1024, 2048, 4096, 8192, 16384),
}
STACKS = (1024, 64), (256, 256), (64, 512), (16, 1024)
"""Matrices in a stack, and their rows and columns."""


def sections() -> list[Section]:
    """What is measured."""
    loads = [
        Workload(n, n, n, dtype=part) for part, sizes in SIZES.items() for n in sizes
    ]
    loads += [Workload(n, n, n, batch=count) for count, n in STACKS]
    found = []
    for load in loads:
        part = "stacks" if load.batch > 1 else load.dtype
        found.append(Section(part, load, SCHEMES[part]))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    given = sys.argv[1:] if argv is None else argv
    options = parse(__doc__, tuple(SCHEMES), given, default_sizes=None)
    return run_sections("cuda_peers", sections(), options)


if __name__ == "__main__":
    sys.exit(main())
