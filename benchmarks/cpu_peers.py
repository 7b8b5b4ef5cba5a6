"""Who makes accurate products of small matrices quickest on a CPU? NumPy, this library,
python-flint and mpmath.

Every result is held against the exact product first: "correct" and python-flint's, rounded
once, have to be the exact values rounded. Times are the least of many calls in turns, of
one thread. Run from the root of the repository:

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.cpu_peers [--output FILE.csv]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flint
import mpmath
import numpy as np
from numpy.typing import NDArray

import hifigemm as hg
from hifigemm.testing.reference import correctly_rounded
from hifigemm.workshop.environment import write_csv

SIZES = (2, 4, 8, 16, 32, 64, 128)
BITS = 212
"""Precision of python-flint and mpmath: sums of products of two float64 numbers that
cancel by a hundred bits still round correctly.
"""
SECONDS, BURST = 1.0, 0.005
"""For each way and size, and for calls of one way without another between them."""


def by_flint(a: NDArray, b: NDArray) -> NDArray:
    """From arrays to balls, their product, and back."""
    x, y = (flint.arb_mat(z.tolist()) for z in (a, b))
    return np.array([[float(z) for z in row] for row in (x * y).tolist()])


def by_mpmath(a: NDArray, b: NDArray) -> NDArray:
    """From arrays to matrices of mpmath, their product, and back."""
    product = mpmath.matrix(a.tolist()) * mpmath.matrix(b.tolist())
    return np.array(product.tolist(), dtype=float)


def pair(a: NDArray, b: NDArray) -> NDArray:
    """The first word of a pair."""
    high, _ = hg.matmul(a, b, result="pair")
    return high


WAYS: dict[str, Callable[[NDArray, NDArray], NDArray]] = {
    "numpy": np.matmul,
    "correct": lambda a, b: hg.matmul(a, b, accuracy="correct"),
    "pair": pair,
    "flint": by_flint,
    "mpmath": by_mpmath,
}


def least_of_burst(
    way: Callable[[NDArray, NDArray], Any], a: NDArray, b: NDArray
) -> float:
    """The least time of one call among those of BURST seconds, or of two."""
    least = float("inf")
    started = before = time.perf_counter()
    calls = 0
    while calls < 2 or before - started < BURST:
        way(a, b)
        after = time.perf_counter()
        least = min(least, after - before)
        before = after
        calls += 1
    return least


def measure(n: int) -> list[dict[str, Any]]:
    """A row for each way to a product of n x n matrices."""
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, n))
    exact = correctly_rounded(a, b)
    ways = {name: way for name, way in WAYS.items() if name != "mpmath" or n <= 32}
    shares = {}
    for name, way in ways.items():
        shares[name] = float((way(a, b) == exact).mean())
        if name != "numpy" and shares[name] < 1:
            raise RuntimeError(f"{name}: {shares[name]:.4%} of the entries are exact")

    least = dict.fromkeys(ways, float("inf"))
    turns = 0
    started = time.perf_counter()
    while time.perf_counter() - started < SECONDS * len(ways) or turns < 5:
        for name, way in ways.items():
            least[name] = min(least[name], least_of_burst(way, a, b))
        turns += 1
    return [
        {
            "n": n,
            "way": name,
            "seconds_least": least[name],
            "turns": turns,
            "correct_entries": shares[name],
        }
        for name in ways
    ]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = Path("results/cpu_peers.csv")
    parser.add_argument("--output", type=Path, default=default)
    options = parser.parse_args()
    flint.ctx.prec = mpmath.mp.prec = BITS
    rows = []
    for n in SIZES:
        rows += measure(n)
        for row in rows[-len(WAYS) :]:
            print(
                f"{row['n']:>4} {row['way']:<8} {1e6 * row['seconds_least']:10.1f} us"
            )
    write_csv(options.output, rows, bits=BITS, flint=flint.__version__)


if __name__ == "__main__":
    main()
