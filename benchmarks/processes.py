"""What the benchmarks of calls share: fresh processes of one checkout or another that
print lines of JSON, and clocks for what they time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hifigemm.workshop.measuring.timing import Clock, CudaClock, Method

try:
    import resource
except ImportError:  # not on Windows
    resource = None

__all__ = [
    "METHODS",
    "ONE_THREAD",
    "ROOT",
    "HostClock",
    "ProcessorClock",
    "clock_of",
    "lines_of",
    "print_line",
]

ROOT = Path(__file__).resolve().parents[1]

ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""Variables for a BLAS, PyTorch and the compiled core that take one thread."""

METHODS = {
    "cuda": Method(pause=0.02, calls=(3, 200), bursts=5, sustained=0.0),
    "cpu": Method(pause=0.005, warm=0, calls=(1, 200), span=0.003, sustained=0.0),
}
"""Bursts of up to 200 calls with one wait at the end of each; short ones on a CPU, as
other work leaves short gaps.
"""


class ProcessorClock(Clock):
    """The processor time of this process and of those that it waited for, which other
    work on the machine changes least; on Windows of this process alone.
    """

    def mark(self) -> Any:
        """Seconds of the processor so far."""
        if resource is None:
            return time.process_time()
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime


class HostClock(CudaClock):
    """The time of the host from call to return, whatever the device does then."""

    def mark(self) -> Any:
        """Seconds of the host."""
        return time.perf_counter()

    def wait(self, mark: Any) -> None:
        """Return at once."""

    def seconds(self, start: Any, end: Any) -> float:
        """Time of the host between two marks."""
        return float(end - start)

    def idle(self, seconds: float) -> None:
        """Let the device rest when it is done with everything."""
        self._cuda.synchronize()
        time.sleep(seconds)


def clock_of(device: str, mode: str = "eager") -> Clock:
    """The clock for calls on "cpu" or "cuda"; in mode "host" that of the host."""
    if device == "cpu":
        return ProcessorClock()
    return HostClock() if mode == "host" else CudaClock()


def lines_of(
    module: str,
    arguments: Sequence[str],
    *,
    tree: Path = ROOT,
    variables: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """What a module of this checkout prints, line by line, in a fresh process that
    imports hifigemm from a checkout.
    """
    variables = {**os.environ, "PYTHONPATH": str(tree / "src"), **(variables or {})}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=variables,
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def print_line(**line: Any) -> None:
    """Print a line for the process that started this one."""
    print(json.dumps(line), flush=True)
