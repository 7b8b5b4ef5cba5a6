"""Solutions with proof: Hilbert's systems, until float64 has no correct digit left.

Usage: python examples/verified_systems.py
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import hifigemm as hg


def hilbert(n: int) -> NDArray:
    """1 / (i + j + 1), rounded to float64."""
    i = np.arange(n)
    return 1.0 / (1.0 + i[:, None] + i)


def main(sizes: tuple[int, ...] = (4, 8, 12, 16)) -> list[tuple[float, float]]:
    """Print and return, for each size for which there is a proof, the relative error of
    NumPy's solution and the relative radius.
    """
    rows = []
    print(" n  NumPy errs by  proven radius  det A is within")
    for n in sizes:
        a, b = hilbert(n), np.ones(n)
        try:
            solution = hg.linalg.solve(a, b)
            det = hg.linalg.det(a)
        except hg.linalg.VerificationError as error:
            print(f"{n:>2}  {error}")
            continue
        error = float(np.abs(np.linalg.solve(a, b) / solution.x - 1).max())
        radius = float((solution.radius / np.abs(solution.x)).max())
        rows.append((error, radius))
        interval = f"[{det.lower:.15g}, {det.upper:.15g}] 2^{det.exponent}"
        print(f"{n:>2}  {error:<13.0e}  {radius:<13.0e}  {interval}")
    return rows


if __name__ == "__main__":
    main()
