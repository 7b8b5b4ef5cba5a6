"""Coefficients of density fitting from a Coulomb metric that is nearly singular.

    python examples/fitting_metric.py [--size N]

Fitting a charge density rho by functions f_P, its self-repulsion is that of the
coefficients c with V c = g, where V[P, Q] = (f_P | f_Q) and g[P] = (f_P | rho). Here
f_P are spherical Gaussians of norm 1 at one place, with exponents in a ratio of r:

    (f_a | f_b) = 2 sqrt(p / pi),  p = a b / (a + b)

(Helgaker, Jorgensen, Olsen, Molecular Electronic-Structure Theory, 2000, section 9.7).
Programs drop such functions, or trust a Cholesky factor. The verified solution says
what the metric as it is determines: charges, and the fitted energy g^T c / 2.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import hifigemm as hg

DENSITY = 0.7
"""Exponent of the charge that is fitted, which no function has."""


def coulomb(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Repulsion of Gaussians of norm 1 with these exponents at one place."""
    return 2.0 * np.sqrt(a * b / (a + b) / np.pi)


def main(argv: Sequence[str] | None = None) -> dict[float, dict[str, float]]:
    """Print errors of charges and energies by ratio of exponents, and return them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=12, help="number of functions")
    options = parser.parse_args(argv)
    rows = {}
    exact = coulomb(np.array(DENSITY), np.array(DENSITY)) / 2.0
    print(
        "ratio | condition | definite | NumPy's error of c | radius of c | energy lost"
    )
    for ratio in (3.0, 2.0, 1.5, 1.3, 1.2):
        exponents = 0.05 * ratio ** np.arange(options.size)
        metric = coulomb(exponents[:, None], exponents)
        metric = (metric + metric.T) / 2.0
        g = coulomb(exponents, np.array(DENSITY))
        try:
            is_definite = str(hg.linalg.is_positive_definite(metric))
        except hg.linalg.VerificationError:
            is_definite = "unknown"
        solution, report = hg.linalg.solve(metric, g, return_report=True)
        largest = np.abs(solution.x).max()
        error = np.abs(np.linalg.solve(metric, g) - solution.x).max() / largest
        energy = hg.matmul(g, solution.x, accuracy="correct") / 2.0
        rows[ratio] = {
            "error": float(error),
            "radius": float(solution.radius.max() / largest),
            "lost": float(exact - energy),
        }
        print(
            f"{ratio:5} | {report.condition:9.1e} | {is_definite:8} | {error:18.1e} | "
            f"{rows[ratio]['radius']:11.1e} | {rows[ratio]['lost']:.1e}"
        )
    return rows


if __name__ == "__main__":
    main()
