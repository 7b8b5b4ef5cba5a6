"""Who makes accurate products quickest on a CPU? NumPy, this library, python-flint,
mpmath, accupy, and Python's fsum and sumprod, from 2 x 2 to 1000 x 1000, and dot products
up to ten million terms.

Where a package promises the correctly rounded value, its result is held against the exact
one before it is timed; of the others the share of correct entries is told. Times are the
least of many calls in turns, of one thread. Run from the root of the repository, with a
Python from 3.12 on for sumprod:

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.cpu_peers [--output FILE.csv]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hifigemm as hg
from hifigemm.testing.reference import correctly_rounded
from hifigemm.workshop.environment import write_csv
from hifigemm.workshop.measuring import cpu_peers

SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 1000)
LENGTHS = (100, 10_000, 100_000, 10_000_000)
LARGEST_CHECK = 2**21
"""Multiplications of a product that is checked whole; of larger ones some rows are."""
BURST = 0.005
"""Seconds of calls of one way without another between them."""

Way = Callable[[NDArray[Any], NDArray[Any]], Any]


def _correct(a: NDArray[Any], b: NDArray[Any]) -> Any:
    return hg.matmul(a, b, accuracy="correct")


def _pair(a: NDArray[Any], b: NDArray[Any]) -> Any:
    high, _ = hg.matmul(a, b, result="pair")
    return high


OURS: dict[str, Way] = {"numpy": np.matmul, "correct": _correct, "pair": _pair}
PROMISE_ROUNDING = ("correct", "pair", "python-flint", "mpmath", "fsum")
PACKAGES = ("python-flint", "mpmath", "accupy")


def ways_for(m: int, k: int) -> dict[str, Way]:
    """Who multiplies an m x k by a k x m matrix within some seconds."""
    ways = dict(OURS)
    if m == 1:
        ways |= cpu_peers.DOT_PRODUCTS
        ways["accupy"] = cpu_peers.by_accupy
        if k <= 100_000:
            ways["python-flint"] = cpu_peers.by_flint
            ways["mpmath"] = cpu_peers.by_mpmath
    else:
        for name, way in cpu_peers.PRODUCTS.items():
            if m * k * m <= cpu_peers.LARGEST[name]:
                ways[name] = way
    return {
        name: way
        for name, way in ways.items()
        if name in OURS or cpu_peers.is_there(name)
    }


def least_of_burst(way: Way, a: NDArray[Any], b: NDArray[Any]) -> float:
    """The least time of one call among those of BURST seconds, or of one."""
    least = float("inf")
    started = before = time.perf_counter()
    calls = 0
    while calls < 1 or before - started < BURST:
        way(a, b)
        after = time.perf_counter()
        least = min(least, after - before)
        before = after
        calls += 1
    return least


def measure(m: int, k: int, seconds: float) -> list[dict[str, Any]]:
    """A row for each way to a product of an m x k by a k x m matrix."""
    rng = np.random.default_rng([m, k])
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, m))
    rows_checked = min(max(LARGEST_CHECK // (m * k), 1), m)
    is_checked = rows_checked * m * k <= LARGEST_CHECK
    exact = correctly_rounded(a[:rows_checked], b) if is_checked else None
    ways = ways_for(m, k)
    shares: dict[str, float | str] = {}
    for name, way in ways.items():
        shares[name] = ""
        if exact is not None:
            share = float((np.asarray(way(a, b))[:rows_checked] == exact).mean())
            shares[name] = share
            if name in PROMISE_ROUNDING and share < 1:
                raise RuntimeError(f"{name}: {share:.4%} of the entries are exact")

    least = dict.fromkeys(ways, float("inf"))
    started = time.perf_counter()
    turns = 0
    while turns < 1 or time.perf_counter() - started < seconds * len(ways):
        for name, way in ways.items():
            least[name] = min(least[name], least_of_burst(way, a, b))
        turns += 1
    return [
        {
            "m": m,
            "k": k,
            "n": m,
            "way": name,
            "seconds_least": least[name],
            "turns": turns,
            "correct_entries": shares[name],
        }
        for name in ways
    ]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    default = Path("results/cpu_peers.csv")
    parser.add_argument("--output", type=Path, default=default)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each way")
    options = parser.parse_args()
    rows = []
    shapes = [(n, n) for n in SIZES] + [(1, length) for length in LENGTHS]
    for m, k in shapes:
        new = measure(m, k, options.seconds)
        rows += new
        for row in new:
            microseconds = 1e6 * row["seconds_least"]
            print(f"{m:>4} {k:>8} {row['way']:<13} {microseconds:12.1f} us", flush=True)
    versions = {name: version(name) for name in PACKAGES if cpu_peers.is_there(name)}
    core = hg.info().versions["core"]
    write_csv(options.output, rows, bits=cpu_peers.BITS, versions=versions, core=core)


if __name__ == "__main__":
    main()
