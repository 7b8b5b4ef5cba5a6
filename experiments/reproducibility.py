"""How many results does one product have?

    python -m experiments.reproducibility [--shape 200 3000 100] [--output results/reproducibility.csv]

The same two matrices are multiplied in ways that mathematics does not tell apart: other
numbers of threads, pieces, and orders of the sum. Each line has a digest of all bits of
the result and the share of entries that are the exact value rounded once.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import hifigemm as hg
from hifigemm.testing.reference import correctly_rounded
from hifigemm.workshop.environment import write_csv

SEED = 0
SHAPE = (200, 3000, 100)
BLOCK = 64
Multiply = Callable[[Any, Any], Any]
METHODS: dict[str, Multiply] = {
    "numpy.matmul": np.matmul,
    'hifigemm.matmul(accuracy="correct")': lambda a, b: hg.matmul(
        a, b, accuracy="correct"
    ),
}


def ways(
    multiply: Multiply, a: np.ndarray, b: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """The product in each way, with its name."""
    blocks = range(0, len(a), BLOCK)
    with threadpool_limits(2):
        yield "whole, two threads", multiply(a, b)
    with threadpool_limits(1):
        yield "whole, one thread", multiply(a, b)
        yield "row by row", np.stack([multiply(row, b) for row in a])
        yield (
            "column by column",
            np.stack([multiply(a, column) for column in b.T], axis=1),
        )
        yield (
            f"{BLOCK} rows at a time",
            np.vstack([multiply(a[i : i + BLOCK], b) for i in blocks]),
        )
        yield "terms in reverse", multiply(a[:, ::-1], b[::-1])
        yield "operands transposed and swapped", multiply(b.T, a.T).T


def measure(shape: tuple[int, int, int]) -> list[dict[str, Any]]:
    """One line for each method and way."""
    m, k, n = shape
    rng = np.random.default_rng(SEED)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    exact = correctly_rounded(a, b)
    return [
        {
            "method": method,
            "way": way,
            "digest": hashlib.sha256(np.ascontiguousarray(c).tobytes()).hexdigest()[:8],
            "correctly_rounded": float((c == exact).mean()),
        }
        for method, multiply in METHODS.items()
        for way, c in ways(multiply, a, b)
    ]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--shape", type=int, nargs=3, default=SHAPE, metavar=("M", "K", "N")
    )
    parser.add_argument("--output", default="results/reproducibility.csv")
    options = parser.parse_args()
    rows = measure(tuple(options.shape))
    for row in rows:
        print(
            f"{row['digest']} {row['correctly_rounded']:7.2%}  {row['method']:<36} {row['way']}"
        )
    for method in METHODS:
        digests = {row["digest"] for row in rows if row["method"] == method}
        print(f"{method}: {len(digests)} different")
    write_csv(options.output, rows, seed=SEED, shape=list(options.shape))


if __name__ == "__main__":
    main()
