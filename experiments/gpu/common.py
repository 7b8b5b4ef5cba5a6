"""What the studies of a GPU share: products that are checked, then timed; one line
after the other in a CSV file.

Where there is no GPU, NumPy takes its place and the model of an H100 that of its tensor
cores: a rehearsal of every line at small sizes, whose times say nothing.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import hifigemm as hg
from benchmarks.common import arrays_here, short_name
from hifigemm.testing.reference import ExactProduct
from hifigemm.workshop.environment import environment, write_csv
from hifigemm.workshop.measuring.arrays import Workload, to_host
from hifigemm.workshop.measuring.cases import build, scheme_options
from hifigemm.workshop.measuring.ceilings import peak_rates
from hifigemm.workshop.measuring.checks import Reference, native_bound
from hifigemm.workshop.measuring.peers import available
from hifigemm.workshop.measuring.rows import Row, rows
from hifigemm.workshop.measuring.runs import FAILURES, Case, Outcome, check, failed
from hifigemm.workshop.measuring.timing import Method, Times, Timing, time_variants

MODEL = "simulated-h100"
SAMPLE = 16
"""Rows and columns whose entries are held against the exact product."""

METHOD = Method(pause=0.03, warm=1, calls=(1, 8), bursts=5, sustained=0.8)
REHEARSAL = Method(
    pause=0.0, warm=0, calls=(1, 1), bursts=1, sustained=0.01, chunk=0.005
)
SLOW = 0.3
"""Seconds of one call from which on it is sustained by itself and is repeated for a
second at most.
"""

_BETWEEN_WRITES = 1.0
"""Seconds: describing the environment asks other programs."""


class Machine:
    """The GPU, or what takes its place, and how products are timed there."""

    def __init__(self, method: Method = METHOD) -> None:
        self.arrays = arrays_here()
        self.is_gpu = self.arrays.device == "cuda"
        self.method = method if self.is_gpu else REHEARSAL
        self.clock, self.meter, self.facts = (
            self.arrays.clock(),
            self.arrays.meter(),
            self.arrays.describe(),
        )
        self.name = str(self.facts["device"])
        self.engine = None if self.is_gpu else MODEL
        self._own = {"device": self.name, "commit": environment()["commit"]}

    def matmul(self, a: Any, b: Any, scheme: Any) -> Any:
        """The product by a scheme of words, on the tensor cores or on their model."""
        return hg.matmul(a, b, scheme=scheme, engine=self.engine)

    def timed(
        self,
        load: Workload,
        names: Sequence[str],
        more: Callable[[Any, Any, Case], Row] | None = None,
    ) -> Iterator[Row]:
        """A line for each case, in the notation of `hifigemm bench`: checked, then
        timed; the first is the native one.

        A result that is wrong in an entry of the sample, or differs from the native
        product by more than both may err, gets no time. `more` adds columns for
        operands and a case that is right.
        """
        a, b = self.arrays.operands(load, 0)
        reference, sample, native = Reference(load, a, b, SAMPLE), Sample(a, b), None
        there = [peer.name for peer in available(self.arrays.device, load)]
        for name in dict.fromkeys(
            each for given in names for each in (there if given == "peers" else [given])
        ):
            outcome, found = self._outcome(load, name, (a, b), reference, sample)
            native = native or outcome
            if more is not None and outcome.times is not None:
                found |= more(a, b, outcome.case)
            yield (
                rows(load, [native, outcome], peak_rates(self.name), self._own)[-1]
                | found
            )
            del outcome
            self.arrays.release()

    def _outcome(
        self,
        load: Workload,
        name: str,
        operands: tuple[Any, Any],
        reference: Reference,
        sample: Sample,
    ) -> tuple[Outcome, Row]:
        try:
            [case] = build(name, ["eager"], load, self.arrays, [operands])
            if not math.isfinite(case.bound):
                case = replace(case, bound=sample.bound(load, name))
            verdict = check(case, [reference])
        except FAILURES as error:
            return failed(Case(name, (), (), math.nan), error), {}
        found = sample.judge(case.outputs[0], case.bound)
        if verdict.wrong or not found["kept"]:
            wrong = (
                verdict.wrong or f"a sampled entry breaks the bound of {case.bound:.3g}"
            )
            return Outcome(case, replace(verdict, wrong=wrong)), found
        times = self.times(case.runs[0])
        return Outcome(case, verdict, times), found | {"repeats": times.burst.repeats}

    def times(self, run: Callable[[], object]) -> Times:
        """Of a call: in bursts and sustained, or over a second where it takes long."""
        seconds = self.once(run)
        if seconds < SLOW or not self.is_gpu:
            return time_variants({"": run}, self.clock, self.method, self.meter)[""]
        readings = [
            seconds,
            *(
                self.once(run)
                for _ in range(min(int(1 / seconds), self.method.bursts - 1))
            ),
        ]
        low, median, high = (float(x) for x in np.quantile(readings, [0.2, 0.5, 0.8]))
        return Times(Timing(median, low, high, len(readings), min(readings)))

    def once(self, run: Callable[[], object]) -> float:
        """Seconds of one call, to the end of its work."""
        start = self.clock.mark()
        run()
        end = self.clock.mark()
        self.clock.wait(end)
        return self.clock.seconds(start, end)

    def kernel_seconds(self, run: Callable[[], object]) -> dict[str, float]:
        """Seconds of the kernels of one call by their names; a rehearsal takes the call
        for one product.
        """
        if not self.is_gpu:
            return {"gemm": self.once(run)}
        import torch
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
            run()
            torch.cuda.synchronize()
        return {
            event.key: 1e-6 * event.self_device_time_total
            for event in seen.key_averages()
            if event.device_type == DeviceType.CUDA
        }


class Sample:
    """Entries of a product that are held against its exact value, by a judge that
    shares no code with the library.
    """

    def __init__(self, a: Any, b: Any, most: int = SAMPLE) -> None:
        rng = np.random.default_rng(0)
        self.rows, self.columns = (
            sorted(rng.choice(size, min(size, most), replace=False).tolist())
            for size in (a.shape[0], b.shape[1])
        )
        self.exact = ExactProduct(to_host(a[self.rows]), to_host(b[:, self.columns]))
        self._wide = self.exact.value.round(np.float64)

    def of(self, c: Any) -> np.ndarray:
        """The entries of a result."""
        return to_host(c[self.rows][:, self.columns])

    def bound(self, load: Workload, name: str) -> float:
        """Twice what the scheme states for the sample, since |A||B| differs from entry
        to entry; gamma_k at least.

        It serves large products by a forced count, for which no bound is worked out.
        """
        _, report = hg.matmul(
            self.exact.a,
            self.exact.b,
            engine=MODEL,
            return_report=True,
            **scheme_options(name),
        )
        return max(2 * report.bound, native_bound(load))

    def judge(self, c: Any, bound: float) -> Row:
        """Errors in the sample, the share that is rounded once, and whether all keep
        the bound.

        Errors are the largest |C - AB| / (|A||B|), and |C - R| / |R| with R the exact
        product rounded once to float64.
        """
        entries, wide = self.of(c), self._wide
        return {
            "sample_error": self.exact.error(entries),
            "relative_error": float(
                np.max(abs(entries - wide) / np.where(entries == wide, 1, abs(wide)))
            ),
            "share_correct": float(np.mean(entries == self.exact.rounded)),
            "kept": bool(self.exact.meets(entries, bound).all()),
        }


def study(
    name: str,
    text: str | None,
    lines: Callable[[Machine, Sequence[int]], Iterable[Row]],
    sizes: dict[str, Sequence[int]],
    shown: str,
    argv: Sequence[str] | None,
    method: Method = METHOD,
) -> int:
    """Run a study: read its options, write its lines as they come, print the columns
    that are `shown`.

    `sizes` are those of "cuda" and of "cpu", the rehearsal. No line is begun once the
    seconds have passed. The exit code is 1 where a result was wrong.
    """
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", metavar="N", help="(default: by device)"
    )
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="no line is begun after so many"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="(default: by device)"
    )
    parser.add_argument(
        "--bursts", action="store_true", help="no sustained runs, so no energy either"
    )
    options = parser.parse_args(argv)
    if options.bursts:
        method = replace(method, sustained=0)
    machine, start, written, found = Machine(method), time.perf_counter(), 0.0, []
    path = options.output or Path("results", f"{name}_{short_name(machine.arrays)}.csv")
    chosen, ended = options.sizes or sizes[machine.arrays.device], "with all lines"

    def write(how: str) -> None:
        write_csv(path, found, **machine.facts, method=vars(machine.method), ended=how)

    for row in lines(machine, chosen):
        found.append({"study": name} | row)
        passed = time.perf_counter() - start
        print(
            f"{passed:6.1f} s ",
            *(_text(row.get(column, "")) for column in shown.split()),
            flush=True,
        )
        if passed > options.seconds:
            ended = f"after {options.seconds:g} s"
            break
        if passed > written + _BETWEEN_WRITES:
            written = passed
            write("while it ran")
    write(ended)
    print(f"{path}: {len(found)} lines, ended {ended}")
    return int(any(str(row.get("status", "")).startswith("refused") for row in found))


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
