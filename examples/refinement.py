"""Iterative refinement with NumPy alone: the residual b - A x, rounded once, brings a
solution to full accuracy where the residual of NumPy leaves it as it is.

Usage: python examples/refinement.py
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import hifigemm as hg

SIZE = 200
CONDITION = 1e12
STEPS = 4


def system(size: int, seed: int) -> tuple[NDArray, NDArray]:
    """A matrix whose singular values fall from 1 to 1 / CONDITION, and a vector."""
    rng = np.random.default_rng(seed)
    u, v = (np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(2))
    singular_values = np.logspace(0, -np.log10(CONDITION), size)
    return (u * singular_values) @ v, rng.standard_normal(size)


def residual_of_numpy(a: NDArray, x: NDArray, b: NDArray) -> NDArray:
    """b - A x, most of whose digits cancel."""
    return b - a @ x


def residual(a: NDArray, x: NDArray, b: NDArray) -> NDArray:
    """b - A x, the exact value rounded once."""
    return hg.gemm(a, x, b, alpha=-1.0, beta=1.0, accuracy="correct")


def main(size: int = SIZE, seed: int = 0) -> dict[str, list[float]]:
    """Print and return the largest relative error of x after each step."""
    a, b = system(size, seed)
    # The proof of hifigemm.linalg is the judge: every entry is the exact one, rounded.
    exact = hg.linalg.solve(a, b, accuracy="correct").x
    errors: dict[str, list[float]] = {}
    for function in (residual_of_numpy, residual):
        x = np.linalg.solve(a, b)
        errors[function.__name__] = []
        for _ in range(STEPS):
            x += np.linalg.solve(a, function(a, x, b))
            errors[function.__name__].append(float(np.abs(x / exact - 1).max()))
    for name, column in errors.items():
        print(f"{name:<18}", "  ".join(f"{error:.0e}" for error in column))
    return errors


if __name__ == "__main__":
    main()
