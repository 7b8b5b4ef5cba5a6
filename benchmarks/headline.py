"""The figures of README and paper, in one run of two minutes. Checked, then timed.

    python -m benchmarks.headline [--sizes N,N,...] [--parts P,P,...] [--output FILE.csv] [--quick]

float64     the native product, the library's choice, every entry correctly rounded, 14 moduli, peers
float32     the native product, the library's choice, every entry correctly rounded
complex128  the same three

Square products of phi matrices with phi = 0.5, n = 8192 on a GPU and 1024 on a CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.common import Section, parse, run_sections
from hifigemm.workshop.measuring.arrays import Workload

SIZES = {"cpu": (1024,), "cuda": (8192,)}
CHOICES = ("native", "auto", "auto@correct")
CASES = {
    "float64": (*CHOICES, "ozaki2:14", "peers"),
    "float32": CHOICES,
    "complex128": CHOICES,
}


def sections(sizes: Sequence[int]) -> list[Section]:
    """What is measured for these sizes."""
    return [
        Section(dtype, Workload(n, n, n, dtype=dtype), names)
        for dtype, names in CASES.items()
        for n in sizes
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    words = sys.argv[1:] if argv is None else argv
    options = parse(__doc__, tuple(CASES), words, default_sizes=SIZES)
    return run_sections("headline", sections(options.sizes), options)


if __name__ == "__main__":
    sys.exit(main())
