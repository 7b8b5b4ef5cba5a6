"""How fast are the modes of Ozaki scheme I on tensor cores, and where does their time
go? As in [MOOI20].

    python -m experiments.gpu.modes [--sizes 1024 10240] [--seconds 100] [--output FILE.csv]

Inputs: (rand - 0.5) exp(phi randn), phi = 0.1, 1, 2 (doi:10.1007/978-3-030-50743-5_12,
figures 3 to 8 and the table at n = 10240). DP and correct multiply float64 matrices, SP
float32 ones. Products of slices are those of FP16 and INT8 tensor cores and of FP64
units; Ozaki scheme II stands beside them.

DP and SP by INT8 slices have kernels of their own, all else goes step by step. Time of
one call more, step by step for all, is taken apart: splitting A, splitting B, products
of slices, their sums (with rounding and certificates), and the rest, such as the
estimate of the number of slices. `share_equal` compares all entries with those of
`accuracy="correct"`, which goes by residues and shares no products with slices.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, ClassVar

import hifigemm as hg
from experiments.gpu.common import METHOD, Machine, study
from hifigemm.workshop.measuring.arrays import Workload
from hifigemm.workshop.measuring.cases import scheme_options
from hifigemm.workshop.measuring.rows import Row
from hifigemm.workshop.measuring.runs import Case
from hifigemm.workshop.measuring.timing import Clock

SIZES = {"cuda": (1024, 4096, 10240), "cpu": (48,)}
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
BURSTS = replace(METHOD, sustained=0)
"""Most of these products take so long that bursts of them are sustained."""
STAGES = ("split A", "split B", "products", "sums")
SHOWN = "family n dtype case burst_tflops seconds_total products_tflops num_slices products relative_error share_equal"


def _no_kernels() -> None:
    """The heart of a scheme by which no engine finds kernels."""


@dataclass(frozen=True)
class Watched(hg.Ozaki1):
    """Ozaki scheme I, step by step, that marks on a clock where its stages begin and
    end.
    """

    core = staticmethod(_no_kernels)
    clock: ClassVar[Clock] = Clock()
    laps: ClassVar[list[tuple[str, Any, Any]]] = []
    operations: ClassVar[list[float]] = []
    counts: ClassVar[dict[str, int]] = {}

    @classmethod
    @contextmanager
    def lap(cls, stage: str) -> Iterator[None]:
        """Both ends of a stage."""
        start = cls.clock.mark()
        yield
        cls.laps.append((stage, start, cls.clock.mark()))

    def split(self, plan: Any, x: Any, side: str, scale: Any, engine: Any) -> Any:
        """Slices of rows or columns."""
        with self.lap("split A" if side == "left" else "split B"):
            found = super().split(plan, x, side, scale, engine)
        # escalated entries come later and take more
        self.counts.setdefault("num_slices", self.count)
        self.counts.setdefault("k_block", plan.k_block)
        return found

    def multiply(
        self, plan: Any, left: Any, right: Any, engine: Any, shift: int
    ) -> Any:
        """Products and sums."""
        with self.lap("sums"):
            return super().multiply(plan, left, right, _Counting(engine), shift)


class _Counting:
    """An engine whose exact products are marked and counted."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def exact_product(self, spec: Any, a: Any, b: Any, max_a: int, max_b: int) -> Any:
        """The engine's own."""
        Watched.operations.append(
            2.0 * max(a.shape[0], b.shape[0]) * a.shape[1] * a.shape[2] * b.shape[2]
        )
        with Watched.lap("products"):
            return self._engine.exact_product(spec, a, b, max_a, max_b)


def breakdown(machine: Machine, a: Any, b: Any, case: Case) -> Row:
    """Seconds of each stage of a product by slices, its counts, and the rate of its
    products.
    """
    scheme = (
        scheme_options(case.name).get("scheme")
        if case.name.startswith("ozaki1")
        else None
    )
    if scheme is None:
        return {}
    Watched.clock = clock = machine.clock
    for recorded in (Watched.laps, Watched.operations, Watched.counts):
        recorded.clear()
    watched = Watched(
        **{field.name: getattr(scheme, field.name) for field in fields(scheme)}
    )
    start = clock.mark()
    hg.matmul(a, b, scheme=watched)  # without a report, whose bound would be work
    end = clock.mark()
    clock.wait(end)
    seconds = dict.fromkeys(STAGES, 0.0)
    for stage, begin, finish in Watched.laps:
        seconds[stage] += clock.seconds(begin, finish)
    seconds["sums"] -= seconds["products"]
    total, work = clock.seconds(start, end), sum(Watched.operations)
    row: Row = {
        f"seconds_{stage.replace(' ', '_').lower()}": seconds[stage] for stage in STAGES
    }
    row |= {
        "seconds_rest": total - sum(seconds.values()),
        "seconds_total": total,
        **Watched.counts,
    }
    row["products"] = work / (2.0 * a.shape[0] * a.shape[1] * b.shape[1])
    return row | {"products_tflops": 1e-12 * work / seconds["products"]}


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
                return {"share_equal": same} | breakdown(machine, a, b, case)

            yield from machine.timed(load, names, more)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write."""
    return study("modes", __doc__, lines, SIZES, SHOWN, argv, BURSTS)


if __name__ == "__main__":
    sys.exit(main())
