"""Which accuracy at which speed? Every scheme as a point, for float64 and for float32.

    python -m experiments.gpu.schemes [--sizes 8192] [--seconds 90] [--output FILE.csv]

Square products of phi matrices with phi = 0.5: what "auto" takes, counts of moduli and
slices from few to many, words, sums of FP64 slices, and the emulation of cuBLAS where
it is there. Errors are the largest of |C - AB| / (|A||B|) in a sample of rows and
columns, against exact products.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from experiments.gpu.common import Machine, study
from hifigemm.workshop.measuring.arrays import Workload
from hifigemm.workshop.measuring.rows import Row

SIZES = {"cuda": (8192,), "cpu": (48,)}
NAMES = {
    "float32": (
        *(
            "native",
            "auto",
            "corrected:fp16",
            "corrected:tf32",
            "multiword:tf32:1:1",
            "multiword:tf32:2:3",
        ),
        *(
            "corrected:fp16:chained",
            "corrected:tf32:chained",
            "multiword:fp16:1:1",
            "multiword:bf16:3:6",
        ),
        *("ozaki2:7", "ozaki2:8", "ozaki1:3", "ozaki2:5", "ozaki2:6", "auto@correct"),
    ),
    "float64": (
        *(
            "native",
            "auto",
            "ozaki2:14",
            "ozaki2:15",
            "ozaki2:fast@fp64",
            "auto@correct",
            "peers",
        ),
        *(
            "ozaki1:7",
            "ozaki1:fp16:dp",
            "ozaki1:fp64:correct",
            "ozaki2:10",
            "ozaki2:12",
            "ozaki2:13",
            "ozaki2:16",
        ),
        *("multiword:fp32:1:1", "multiword:fp32:2:3", "multiword:fp32:2:4"),
        *(
            "ozaki1:4",
            "ozaki1:5",
            "ozaki1:6",
            "ozaki1:8",
            "auto@1e-8",
            "auto@1e-12",
            "auto@1e-18",
        ),
    ),
}
"""What matters most comes first, for a study that its time ends."""

SHOWN = "n dtype case burst_tflops sustained_tflops sample_error scheme status"


def lines(machine: Machine, sizes: Sequence[int]) -> Iterator[Row]:
    """All schemes for one size, then for the next."""
    for n in sizes:
        for dtype, names in NAMES.items():
            yield from machine.timed(Workload(n, n, n, dtype=dtype), names)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write."""
    return study("schemes", __doc__, lines, SIZES, SHOWN, argv)


if __name__ == "__main__":
    sys.exit(main())
