"""How fast are products of short words, and at what energy? FP16 and TF32 as in [OY22],
TF32 and TF64 as in [VLVJ23].

    python -m experiments.gpu.words [--sizes 1024 16384] [--seconds 90] [--output FILE.csv]

Uniform entries of both signs. For float32: corrected words of FP16 and TF32, the same
with the sum left to the tensor core, one, three and four products of TF32 words in one
chain, one and three of FP16 words, six of BF16 words. For float64: one, three and four
products of FP32 words ("TF64"). Joules of a product and GFLOP/s per watt come from the
energy counter in the second half of a run of 0.8 s without a pause.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from experiments.gpu.common import Machine, study
from hifigemm.workshop.measuring.arrays import Workload
from hifigemm.workshop.measuring.rows import Row

SIZES = {"cuda": (1024, 2048, 4096, 8192, 16384), "cpu": (48,)}
NAMES = {
    "float32": (
        *("native", "corrected:fp16", "corrected:tf32", "corrected:tf32:chained"),
        *("multiword:tf32:1:1", "multiword:tf32:2:3", "multiword:tf32:2:4"),
        *("multiword:fp16:1:1", "multiword:fp16:2:3", "multiword:bf16:3:6"),
    ),
    "float64": (
        "native",
        "multiword:fp32:1:1",
        "multiword:fp32:2:3",
        "multiword:fp32:2:4",
    ),
}
SHOWN = "n dtype case burst_tflops sustained_tflops joules gflops_per_watt sample_error status"


def lines(machine: Machine, sizes: Sequence[int]) -> Iterator[Row]:
    """Small products first."""
    for n in sizes:
        for dtype, names in NAMES.items():
            yield from machine.timed(
                Workload(n, n, n, dtype=dtype, family="uniform"), names
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write."""
    return study("words", __doc__, lines, SIZES, SHOWN, argv)


if __name__ == "__main__":
    sys.exit(main())
