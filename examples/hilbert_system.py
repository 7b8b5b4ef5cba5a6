"""Systems with Hilbert-like matrices: digits of NumPy's solution, and a proof.

    python examples/hilbert_system.py [--size N]

The entries 1 / (1 + i + j), rounded to float64, make a system of condition 1e18 for
n = 13. What NumPy returns there has no right digit. `hifigemm.linalg.solve` returns x
with a radius that is proven, of half a unit in the last place.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import hifigemm as hg


def digits(x: np.ndarray, solution: hg.linalg.VerifiedSolution) -> float:
    """Decimal digits that the worst entry of x has in common with the solution."""
    error = np.abs(x - solution.x) + solution.radius
    worst = (error / np.abs(solution.x)).max()
    return max(float(-np.log10(worst)), 0.0)


def main(argv: Sequence[str] | None = None) -> dict[int, tuple[float, float]]:
    """Print digits by size, of NumPy and of the verified solution, and return them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=14, help="largest n")
    options = parser.parse_args(argv)
    rows = {}
    print(" n | condition | digits of NumPy | digits proven | words")
    for n in range(4, options.size + 1):
        i = np.arange(n)
        a = 1.0 / (1.0 + i[:, None] + i)
        b = np.ones(n)
        solution, report = hg.linalg.solve(a, b, return_report=True)
        native = digits(np.linalg.solve(a, b), solution)
        proven = digits(solution.x, solution)
        rows[n] = native, proven
        print(
            f"{n:2} | {report.condition:9.1e} | {native:15.1f} | {proven:13.1f} | {report.words}"
        )
    return rows


if __name__ == "__main__":
    main()
