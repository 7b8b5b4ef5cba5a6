"""How fast are the modes of Ozaki scheme I on tensor cores, and where does their time
go? As in [MOOI20].

    python -m experiments.gpu.modes [--sizes 1024 10240] [--seconds 100] [--output FILE.csv]

Inputs: (rand - 0.5) exp(phi randn), phi = 0.1, 1, 2 (doi:10.1007/978-3-030-50743-5_12,
figures 3 to 9 and the table at n = 10240). DP and correct multiply float64 matrices, SP
float32 ones. Products of slices are those of FP16 and INT8 tensor cores and of FP64
units; Ozaki scheme II stands beside them.

One call more is seen by torch's profiler, whose kernels are put into stages: counting
slices, slicing, products of slices, sums with their one rounding, other passes. What a
call takes beyond its kernels is the host's, and the gaps between launches.
`share_equal` compares all entries with those of `accuracy="correct"`, which goes by
residues and shares no products with slices.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import hifigemm as hg
from experiments.gpu.common import METHOD, Machine, study
from hifigemm.workshop.measuring.arrays import Workload
from hifigemm.workshop.measuring.rows import Row
from hifigemm.workshop.measuring.runs import Case

SIZES = {"cuda": (1024, 2048, 4096, 8192, 10240), "cpu": (48,)}
PHIS = (0.1, 1.0, 2.0)
DOUBLE = (
    *(
        "native",
        "ozaki1:fp16:dp",
        "ozaki1:int8:dp",
        "ozaki1:fp64:correct",
        "ozaki1:int8:correct",
    ),
    *("ozaki1:fp16:correct", "ozaki2:14", "ozaki2:15", "auto@correct"),
)
SINGLE = ("native", "ozaki1:fp16:sp", "ozaki1:int8:sp")
BURSTS = replace(METHOD, pause=0.02, span=0.01, bursts=3, sustained=0)
"""Most of these products take so long that bursts of them are sustained."""
STAGES = ("count", "slices", "products", "sums", "passes")
_KERNELS = {
    **dict.fromkeys(
        ("exponents_kernel", "sums_kernel", "weights_kernel", "counts_kernel"), "count"
    ),
    "_add_spans_kernel": "sums",
    "slice_kernel": "slices",
    "slice_gemm_kernel": "products",
    **dict.fromkeys(
        (
            "slice_product_kernel",
            "slice_rounding_kernel",
            "needed_kernel",
            "_finish_kernel",
        ),
        "sums",
    ),
}
"""The stage of each kernel of a program of slices."""
_CALLS = 3
"""Calls whose quickest is the time that stages are a part of."""
SHOWN = (
    "family n dtype case burst_tflops seconds_total products_tflops num_slices "
    "num_products relative_error share_equal"
)


def stage_of(kernel: str) -> str:
    """The stage of a kernel by its name.

    INT8 products with any epilogue and products of libraries are "products"; kernels
    that have no name here are "passes" over memory.
    """
    found = _KERNELS.get(kernel)
    if found is None:
        is_product = "int8_product" in kernel or "gemm" in kernel
        found = "products" if is_product else "passes"
    return found


def breakdown(machine: Machine, case: Case) -> Row:
    """Seconds of each stage of a product by slices, its number of slices, and the rate
    of its products.
    """
    if not case.name.startswith("ozaki1"):
        return {}
    [run] = case.runs
    seconds = dict.fromkeys(STAGES, 0.0)
    for kernel, each in machine.kernel_seconds(run).items():
        seconds[stage_of(kernel)] += each
    on_device = sum(seconds.values())
    # A profiled call is launched more slowly, so the whole is timed by itself.
    total = max(on_device, min(machine.once(run) for _ in range(_CALLS)))
    row: Row = {f"seconds_{stage}": seconds[stage] for stage in STAGES}
    row |= {"seconds_rest": total - on_device, "seconds_total": total}
    [num_slices] = re.findall(r"num_slices=(\d+)", case.scheme)
    n = len(case.outputs[0])
    work = 2.0 * n**3 * case.num_products
    return row | {
        "num_slices": num_slices,
        "products_tflops": 1e-12 * work / seconds["products"],
    }


def lines(machine: Machine, sizes: Sequence[int]) -> Iterator[Row]:
    """The largest products of narrow exponents, which make the table of the paper, then
    small ones first.
    """
    first = max(sizes), PHIS[0]
    for n, phi in sorted(product(sizes, PHIS), key=lambda each: (each != first, each)):
        for dtype, names in (("float64", DOUBLE), ("float32", SINGLE)):
            load = Workload(n, n, n, dtype=dtype, family=f"phi{phi:g}")
            correct = hg.matmul(*machine.arrays.operands(load, 0), accuracy="correct")

            def more(a: Any, b: Any, case: Case, correct: Any = correct) -> Row:
                same = float((case.outputs[0] == correct).sum()) / (
                    correct.shape[0] * correct.shape[1]
                )
                return {"share_equal": same} | breakdown(machine, case)

            yield from machine.timed(load, names, more)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write."""
    return study("modes", __doc__, lines, SIZES, SHOWN, argv, BURSTS)


if __name__ == "__main__":
    sys.exit(main())
