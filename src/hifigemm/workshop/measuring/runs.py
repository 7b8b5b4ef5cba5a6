"""The benchmark: cases are checked, and what is right is timed.

A wrong result gets no time. Everything of one workload is timed in one process, in
turns, with inputs that change from call to call where they are small enough to stay in
a cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import hifigemm as hg

from .arrays import Arrays, Workload
from .checks import Reference, Verdict
from .power import Meter
from .timing import Clock, Method, Times, capture, time_variants

NATIVE = "native"

CACHE_BYTES = 64 << 20
"""Operands and results of all sets together exceed what the L2 of an H200 holds (50
MB).
"""

MOST_SETS = 16

FAILURES = (hg.HifigemmError, RuntimeError, MemoryError)
"""What a case may raise that cannot run here: errors of hifigemm, of CUDA and its
graphs, of memory.
"""


@dataclass(frozen=True)
class Case:
    """One way to the product, with a call and an output for every set of operands.

    What is promised is |C - AB| <= bound |A||B| + u |AB|. `num_products` counts
    products of m n k in the format `unit`; 0 where that is not known. `scheme` is what
    was chosen.
    """

    name: str
    runs: tuple[Callable[[], object], ...]
    outputs: tuple[Any, ...]
    bound: float
    mode: str = "eager"  # or "graph", in which each call is replayed from a CUDA graph
    num_products: int = 0
    unit: str = ""
    peer: bool = False  # another implementation that hifigemm is compared with
    scheme: str = ""
    # why calls cannot be captured; they are timed as they are in the mode "graph" too
    uncapturable: str = ""

    @property
    def captured(self) -> bool:
        """Calls are replayed from graphs."""
        return self.mode == "graph" and not self.uncapturable


@dataclass(frozen=True)
class Outcome:
    """A case with the verdict on its results, and its times if they are right."""

    case: Case
    verdict: Verdict
    times: Times | None = None
    failure: str = ""

    @property
    def refused(self) -> bool:
        """A result was wrong."""
        return bool(self.verdict.wrong)

    @property
    def status(self) -> str:
        """timed (as calls where a graph was asked for), checked without a time, refused
        or failed, with the reason.
        """
        if self.refused:
            return f"refused: {self.verdict.wrong}"
        if self.failure:
            return f"failed: {self.failure}"
        if self.times is None:
            return "checked"
        as_calls = self.case.mode == "graph" and not self.case.captured
        return (
            f"timed without a graph: {self.case.uncapturable}" if as_calls else "timed"
        )


def operand_sets(arrays: Arrays, load: Workload) -> list[tuple[Any, Any]]:
    """So many pairs of operands that, with their results, they do not stay in a
    cache.
    """
    count = min(max(-(-CACHE_BYTES // load.nbytes), 1), MOST_SETS)
    return [arrays.operands(load, seed) for seed in range(count)]


def run(
    cases: Sequence[Case],
    references: Sequence[Reference],
    clock: Clock,
    method: Method,
    *,
    meter: Meter | None = None,
    timed: bool = True,
) -> list[Outcome]:
    """Check every case on every set of operands, then time those that are right, in
    turns, unless it is not `timed`.

    There is a reference for each set of operands. Names and modes of cases together are
    unique.
    """
    outcomes: dict[str, Outcome] = {}
    launches: dict[str, Callable[[], object]] = {}
    for case in cases:
        key = f"{case.name} {case.mode}"
        try:
            runs = case.runs
            if case.captured:
                runs = tuple(capture(call) for call in runs)
            verdict = check(replace(case, runs=runs), references)
            outcomes[key] = Outcome(case, verdict)
        except FAILURES as error:
            outcomes[key] = failed(case, error)
            continue
        if not outcomes[key].refused:
            launches[key] = _rotating(runs)
    times: dict[str, Times] = {}
    if launches and timed:
        times = time_variants(launches, clock, method, meter)
    return [replace(outcome, times=times.get(key)) for key, outcome in outcomes.items()]


def failed(case: Case, error: BaseException) -> Outcome:
    """The outcome of a case that cannot run."""
    text = str(error).strip()
    failure = text.splitlines()[0] if text else type(error).__name__
    return Outcome(case, Verdict(math.nan), failure=failure)


def check(case: Case, references: Sequence[Reference]) -> Verdict:
    """The worst verdict on the results of a case, each poisoned with NaN before it is
    computed.
    """
    verdicts = []
    sets = zip(case.runs, case.outputs, references, strict=True)
    for call, output, reference in sets:
        output[...] = math.nan
        call()
        verdicts.append(reference.judge(output, case.bound))
    return max(verdicts, key=lambda verdict: (bool(verdict.wrong), verdict.error))


def _rotating(runs: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """Calls one after the other, over and over."""
    if len(runs) == 1:
        return runs[0]
    calls = itertools.cycle(runs)
    return lambda: next(calls)()
