"""Correct products on a CPU whose rows are shared among threads, beside NumPy's with as
many: times, and bits that do not depend on the number.

Run from the root of the repository, on a machine where nothing else runs:

    python -m benchmarks.cpu_threads [--threads 1 2 4 8] [--output FILE.csv]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import hifigemm as hg
from hifigemm.testing import matrices
from hifigemm.workshop.environment import write_csv

SHAPES = ((1000, 1000, 1000), (2000, 2000, 2000))
REQUESTS: dict[str, dict[str, Any]] = {
    "correct": {"accuracy": "correct"},
    "pair": {"result": "pair"},
}


def least_time(function: Callable[[], Any], seconds: float) -> float:
    """The least time of a call, on the clock of the wall."""
    function()
    least = float("inf")
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        before = time.perf_counter()
        function()
        least = min(least, time.perf_counter() - before)
    return least


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--output", default="results/cpu_threads.csv")
    options = parser.parse_args()
    rows = []
    for m, k, n in SHAPES:
        rng = np.random.default_rng([m, k, n])
        a = matrices.phi_matrix(rng, (m, k), 0.5)
        b = matrices.phi_matrix(rng, (k, n), 0.5)
        for request, arguments in REQUESTS.items():
            bits = set()
            for count in options.threads:

                def ours(a: Any = a, b: Any = b, arguments: Any = arguments) -> Any:
                    return hg.matmul(a, b, **arguments)

                with threadpool_limits(count, user_api="blas"):
                    native = least_time(lambda a=a, b=b: a @ b, options.seconds)
                    seconds = least_time(ours, options.seconds)
                    bits.add(np.asarray(ours()).tobytes())
                row = {
                    "shape": f"{m} x {k} x {n}",
                    "request": request,
                    "threads": count,
                    "numpy_ms": round(1e3 * native, 3),
                    "ms": round(1e3 * seconds, 3),
                }
                rows.append(row)
                print(row, flush=True)
            if len(bits) > 1:
                raise RuntimeError(
                    f"{m} x {k} x {n}, {request}: bits depend on threads"
                )
    write_csv(options.output, rows, core=hg.info().versions["core"])


if __name__ == "__main__":
    main()
