"""How fast are products at the accuracy of float64, and what does a guarantee cost?
Checked, then timed.

    python -m benchmarks.dgemm [--sizes N,N,...] [--parts P,P,...] [--output FILE.csv] [--quick]

times      square products of phi matrices with phi = 0.5: the native product, the library's choice, 14 and 15 moduli
           as they are (no promise), Ozaki scheme II with the count that the level
           "fp64" asks of these operands in every entry, INT8 slices, peers
correct    every entry correctly rounded

Errors are max |C - AB| / (|A||B|) and ||C - AB||_F / ||AB||_F in samples of rows and
columns, against exact products.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.common import Section, parse, run_sections
from hifigemm.workshop.measuring.arrays import Workload

PARTS = ("times", "correct")
GUARANTEED = "ozaki2:fast@fp64"
SCHEMES = ("native", "auto", "ozaki2:14", "ozaki2:15", GUARANTEED, "ozaki1:7", "peers")


def sections(sizes: Sequence[int]) -> list[Section]:
    """What is measured for these sizes."""
    found = [Section("times", Workload(n, n, n), SCHEMES) for n in sizes]
    names = ("native", "auto@correct")
    return found + [Section("correct", Workload(n, n, n), names) for n in sizes]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = parse(__doc__, PARTS, sys.argv[1:] if argv is None else argv)
    return run_sections("dgemm", sections(options.sizes), options)


if __name__ == "__main__":
    sys.exit(main())
