"""`hifigemm report`: what can be used on this machine, how fast, how accurate, and what
to write, as one HTML page.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import hifigemm as hg
from hifigemm.testing import ExactProduct, hilbert, inverse_hilbert, phi_matrix
from hifigemm.testing.primitives import findings
from hifigemm.workshop.atomic import check_writable, replacing
from hifigemm.workshop.demo import HILBERT_SIZE, against_exact
from hifigemm.workshop.environment import environment
from hifigemm.workshop.errors import InputError, complain
from hifigemm.workshop.measuring.arrays import (
    Arrays,
    Workload,
    arrays_of,
)
from hifigemm.workshop.measuring.cases import SCHEMES, measure
from hifigemm.workshop.measuring.ceilings import (
    busy_remark,
    measured_ceilings,
    peak_rates,
)
from hifigemm.workshop.measuring.rows import rows
from hifigemm.workshop.measuring.runs import FAILURES, NATIVE
from hifigemm.workshop.measuring.timing import Method
from hifigemm.workshop.page import Measured, page

SIZES = {"cpu": (128, 256, 512, 1024), "cuda": (1024, 2048, 4096)}
"""Of the square products that are timed."""

CASES = {
    "float64": (
        "auto",
        "auto@1e-12",
        "auto@Relative(1e-12)",
        "auto@correct",
        "ozaki1:8:int8",
        "ozaki2:14",
        "multiword:fp32:2:3",
        "peers",
    ),
    "float32": (
        "auto",
        "auto@correct",
        "corrected:fp16",
        "corrected:tf32",
        "multiword:fp16:2:3",
        "ozaki2:8",
        "peers",
    ),
}
"""What is timed beside the native product, in the notation of `hifigemm bench`."""

WAYS: dict[str, dict[str, Any]] = {
    "correct": {"accuracy": "correct"},
    "auto": {},
    **{name: {"scheme": name} for name in SCHEMES},
}
"""What is compared with the exact product: names with the options of `matmul`."""

METHOD = Method(pause=0.02, warm=1, calls=(1, 8), bursts=3, sustained=0)
"""Bursts alone: what a GPU makes under lasting load is for `hifigemm bench`."""

PHI = 1.0
PHI_SIZE = 128
"""Random matrices that are compared with their exact product, which Python's own
integers find in a second.
"""

SECONDS = 165.0
"""No size is started that would end later than this after the start, by what the size
before it took.
"""

GROWTH = {"cpu": 5.0, "cuda": 1.5}
"""Time of a size over that of half of it, the largest of those measured (3 to 4.6 on
two CPUs). On a GPU kernels are compiled for most of the time.
"""


def report(output: Path, device: str | None, seed: int) -> int:
    """The exit code of `hifigemm report`, whose page is written; without a device CUDA
    is taken where there is one.
    """
    if output.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{output}: a report ends in .html or .htm")
    arrays = arrays_of(device)
    check_writable(output)
    with np.errstate(all="ignore"):  # an overflow shows in the error of the result
        measured = _Measuring(arrays, seed).run()
    with replacing(output) as file:
        file.write(page(measured).encode())
    for text in measured.busy:
        print(f"hifigemm: warning: {text}", file=sys.stderr)
    print(output)
    return complain(measured.broken)


def _method() -> list[str]:
    """How it is measured, for the page."""
    return [
        "Rates: square matrices (rand - 0.5) exp(0.5 randn), with operands that change from call to call where they "
        f"would stay in a cache; the median of {METHOD.bursts} bursts of up to {METHOD.calls[1]} calls behind a pause. "
        "Each result was checked before it was timed. Other work on the machine shows in these figures.",
        f"Errors: {PHI_SIZE} x {PHI_SIZE} matrices (rand - 0.5) exp({PHI:g} randn), and the Hilbert matrix of order "
        f"{HILBERT_SIZE} times its inverse, against their exact products in integers.",
        "Other sizes, schemes and matrices: hifigemm bench; hifigemm.testing judges any product.",
    ]


def _say(what: str) -> None:
    """Say on the standard error what is measured next."""
    print(f"{what} ...", file=sys.stderr, flush=True)


class _Measuring:
    """One run of the command."""

    def __init__(self, arrays: Arrays, seed: int) -> None:
        self.arrays = arrays
        self.seed = seed
        usable = hg.info()
        self.measured = Measured(
            environment(),
            arrays.describe(),
            usable.versions,
            usable.engines,
            usable.gpus,
            _method(),
        )
        self.started = time.perf_counter()

    def run(self) -> Measured:
        _say("functions of NumPy, the BLAS and PyTorch")
        self.measured.findings = list(findings())
        _say("rates of memory and of plain products")
        clock = self.arrays.clock()
        self.measured.ceilings = measured_ceilings(self.arrays, clock, METHOD)
        for dtype in CASES:
            self._errors(dtype)
        self._rates()
        for finding in self.measured.findings:
            if finding.fault and finding.used:
                self.measured.broken.append(" ".join(str(finding).split()))
        seconds = time.perf_counter() - self.started
        self.measured.method.append(f"It took {seconds:.0f} seconds.")
        return self.measured

    def _errors(self, dtype: str) -> None:
        """Every way to a product against the exact one, for random matrices and for one
        with cancellation.
        """
        rng = np.random.default_rng([self.seed, 1])
        random = [phi_matrix(rng, (PHI_SIZE, PHI_SIZE), PHI) for _ in range(2)]
        cancelling = hilbert(HILBERT_SIZE), inverse_hilbert(HILBERT_SIZE)
        problems = {}
        for name, (a, b) in {"random": random, "cancelling": cancelling}.items():
            problems[name] = ExactProduct(a.astype(dtype), b.astype(dtype))
        for way in WAYS:
            _say(f"error of {way}, {dtype}")
            for problem, exact in problems.items():
                self._judge(problem, exact, way, dtype)

    def _judge(self, problem: str, exact: ExactProduct, way: str, dtype: str) -> None:
        """Add the error of one way to one product, or why it is not possible."""
        measured = self.measured
        options = {way: WAYS[way]}
        try:
            lines, complaints = against_exact(problem, exact, options, self.arrays)
        except FAILURES as error:
            text = f"{way}, {dtype}: {' '.join(str(error).split())}"
            if text not in measured.refused:
                measured.refused.append(text)
            return
        measured.errors += [row | {"dtype": dtype} for row in lines]
        measured.broken += [f"{dtype}, {text}" for text in complaints]

    def _rates(self) -> None:
        """Times of the cases, by growing size; of results that were checked."""
        growth = GROWTH[self.arrays.device]
        seconds = dict.fromkeys(CASES, 0.0)
        for n in SIZES[self.arrays.device]:
            for dtype in CASES:
                begun = time.perf_counter()
                expected_end = begun - self.started + growth * seconds[dtype]
                if expected_end > SECONDS:
                    self.measured.left_out.append(f"{dtype}, n = {n}")
                    continue
                _say(f"times of {dtype} products, n = {n}")
                self._time(dtype, n)
                self.arrays.release()
                seconds[dtype] = time.perf_counter() - begun

    def _time(self, dtype: str, n: int) -> None:
        """Add the times of all cases of a dtype at one size."""
        load = Workload(n, n, n, dtype=dtype, seed=self.seed)
        names = [NATIVE, *CASES[dtype]]
        outcomes = measure(load, names, ("eager",), self.arrays, METHOD, sample=16)
        peaks = peak_rates(self.measured.device["device"])
        lines = rows(load, outcomes, peaks)
        for row in lines:
            remark = busy_remark(row, self.measured.ceilings, self.arrays.device)
            if remark:
                self.measured.busy.append(f"{dtype}: {remark}")
                # Ratios to a product that waited for other work are none.
                for line in lines:
                    line["burst_ratio_to_native"] = ""
        self.measured.rates += lines
        for outcome in outcomes:
            if outcome.refused:
                self.measured.broken.append(
                    f"{outcome.case.name}, {load}: {outcome.verdict.wrong}"
                )
