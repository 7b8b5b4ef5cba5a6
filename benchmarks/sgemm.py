"""Which scheme makes products at the accuracy of float32 quickest, how accurate, at
what energy? Checked, then timed.

    python -m benchmarks.sgemm [--sizes N,N,...] [--parts P,P,...] [--output FILE.csv] [--quick]

times      square products of phi matrices with phi = 0.5: corrected FP16 and TF32 words, INT8 slices and residues,
           the library's choice, the native product; joules and GFLOP/s/W from the
           energy counter
errors     the same on uniform entries of both signs and of one sign, without times
exponents  the four exponent families of [OY22], and what "auto" takes for them
long       positive entries and k = 65536: sums outside the tensor core against sums chained in it

Errors are max |C - AB| / (|A||B|) and ||C - AB||_F / ||AB||_F against the product in
float64 on the device.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.common import Section, parse, run_sections
from hifigemm.testing.matrices import EXPONENT_FAMILIES
from hifigemm.workshop.measuring.arrays import Workload

PARTS = ("times", "errors", "exponents", "long")
WORDS = ("corrected:fp16", "corrected:tf32")
INTEGERS = ("ozaki1:3", "ozaki2:7", "ozaki2:8")
SCHEMES = ("native", "auto", *WORDS, *INTEGERS)
LONG = 65536
MOST = {"errors": 8192, "exponents": 2048, "long": 1024}
"""Largest n of the parts without times."""


def sections(sizes: Sequence[int]) -> list[Section]:
    """What is measured for these sizes."""

    def load(n: int, family: str, k: int | None = None) -> Workload:
        return Workload(n, n, k or n, dtype="float32", family=family)

    def capped(part: str) -> list[int]:
        return sorted({min(n, MOST[part]) for n in sizes})

    found = [Section("times", load(n, "phi0.5"), SCHEMES) for n in sizes]
    found += [
        Section("errors", load(n, family), SCHEMES, None)
        for n in capped("errors")
        for family in ("uniform", "uniform01")
    ]
    largest = capped("exponents")[-1]
    found += [
        Section("exponents", load(largest, family), SCHEMES, None)
        for family in EXPONENT_FAMILIES
    ]
    chained = [f"{words}:chained" for words in WORDS]
    long = load(capped("long")[-1], "uniform01", LONG)
    return [
        *found,
        Section("long", long, ("native", *WORDS, *chained, *INTEGERS), None),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = parse(__doc__, PARTS, sys.argv[1:] if argv is None else argv)
    return run_sections("sgemm", sections(options.sizes), options)


if __name__ == "__main__":
    sys.exit(main())
