"""A Gaussian process whose Cholesky factor fails in float32.

    python examples/verified_gaussian_process.py [--size N]

The kernel exp(-|x - y|^2 / (2 l^2)) of many points on a short interval, with noise
1e-7, is positive definite, but rounded to float32 it is not, so that Cholesky's
factorisation fails. The usual cure, more noise, changes the answer. `hifigemm.linalg`
proves what the float32 matrix is, and solves the system for it as it stands.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import hifigemm as hg

LENGTH = 0.3
NOISE = 1e-7
JITTER = 1e-4
"""The noise that lets the factorisation in float32 pass."""


def weights_by_cholesky(kernel: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    """K^-1 y by a factor in the dtype of the kernel; None where there is none."""
    try:
        factor = np.linalg.cholesky(kernel)
    except np.linalg.LinAlgError:
        return None
    return np.linalg.solve(factor.T, np.linalg.solve(factor, y))


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Print what each way makes of the mean at the points between, and return it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=60, help="number of points")
    options = parser.parse_args(argv)
    n = options.size
    x = np.linspace(0.0, 1.0, n)
    between = (x[:-1] + x[1:]) / 2.0
    kernel = np.exp(-((x[:, None] - x) ** 2) / (2.0 * LENGTH**2))
    cross = np.exp(-((between[:, None] - x) ** 2) / (2.0 * LENGTH**2))
    kernel = (kernel + NOISE * np.eye(n)).astype(np.float32)
    y = np.sin(7.0 * x).astype(np.float32)

    failed = weights_by_cholesky(kernel, y) is None
    print(f"Cholesky in float32: {'fails' if failed else 'passes'}")
    try:
        is_definite = hg.linalg.is_positive_definite(kernel)
        print(f"positive definite: {is_definite}, proven")
    except hg.linalg.VerificationError:
        is_definite = False
        print("positive definite: nobody knows")
    solution, report = hg.linalg.solve(kernel, y, return_report=True)
    print(
        f"condition {report.condition:.1e}, largest radius {solution.radius.max():.1e}"
    )

    # The mean is a short sum of long terms; the weights are those of the proof
    weights = solution.x.astype(np.float64)
    mean = hg.matmul(cross, weights, accuracy="correct")
    jittered = weights_by_cholesky(
        kernel + np.float32(JITTER) * np.eye(n, dtype="f"), y
    )
    assert jittered is not None
    other = cross @ jittered.astype(np.float64)
    error = float(np.abs(mean - np.sin(7.0 * between)).max())
    of_jitter = float(np.abs(other - np.sin(7.0 * between)).max())
    print(
        f"largest error of the mean: verified {error:.1e}, with jitter {of_jitter:.1e}"
    )
    return {
        "failed": float(failed),
        "definite": float(is_definite),
        "radius": float((solution.radius / np.spacing(np.abs(solution.x))).max()),
        "error": error,
        "of jitter": of_jitter,
    }


if __name__ == "__main__":
    main()
