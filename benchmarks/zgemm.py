"""How fast are complex products by residues, next to the native ones? Checked, then
timed.

    python -m benchmarks.zgemm [--sizes N,N,...] [--parts P,P,...] [--output FILE.csv] [--quick]

double     complex128: the native product, the library's choice, 14 and 15 moduli, two real products for each, the
           level "fp64" kept in every component, every component correctly rounded
single     complex64: the native product, 7 and 8 moduli

Square products of complex phi matrices with phi = 0.5; 8 n**3 operations.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.common import Section, parse, run_sections
from hifigemm.workshop.measuring.arrays import Workload

PARTS = ("double", "single")
SCHEMES = {
    "double": (
        "native",
        "auto",
        "ozaki2:14",
        "ozaki2:15",
        "ozaki2:fast@fp64",
        "auto@correct",
    ),
    "single": ("native", "ozaki2:7", "ozaki2:8"),
}
DTYPES = {"double": "complex128", "single": "complex64"}


def sections(sizes: Sequence[int]) -> list[Section]:
    """What is measured for these sizes."""
    return [
        Section(part, Workload(n, n, n, dtype=DTYPES[part]), SCHEMES[part])
        for part in PARTS
        for n in sizes
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = parse(__doc__, PARTS, sys.argv[1:] if argv is None else argv)
    return run_sections("zgemm", sections(options.sizes), options)


if __name__ == "__main__":
    sys.exit(main())
