"""What two patched packages gain: `python examples/patches/gains.py [FILE.csv]`, where
statsmodels and PyKrige are installed and the patches of this folder are applied.

Coefficients of statsmodels are held against the exact least squares solution in
fractions, for the design matrix and the data as they are in memory. Kriged fields of a
smooth function are held against the function, and their variances against zero.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pykrige.ok
import statsmodels
import statsmodels.api as sm

from hifigemm.workshop.environment import write_csv


def designs() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Name, matrix and data of some regressions."""
    longley = sm.datasets.longley.load_pandas()
    matrix = sm.add_constant(np.asarray(longley.exog, float))
    yield "Longley (NIST)", matrix, np.asarray(longley.endog, float)

    matrix = np.vander(np.arange(21.0), 6, increasing=True)
    yield "Wampler 1 (NIST)", matrix, matrix.sum(axis=1)

    years = np.arange(1950.0, 2010.0)
    matrix = np.vander(years, 4, increasing=True)
    trend = 1e-3 * (years - 1980) ** 3 - (years - 1975) ** 2 + np.sin(years)
    yield "cubic trend, 1950 to 2009", matrix, trend

    points = np.linspace(0, 20, 80)
    yield "degree 10 on [0, 20]", np.vander(points, 11, increasing=True), np.cos(points)


def least_squares(matrix: np.ndarray, data: np.ndarray) -> list[Fraction]:
    """The exact solution of the normal equations."""
    rows = [[Fraction(x) for x in row] for row in matrix.tolist()]
    right = [Fraction(x) for x in data.tolist()]
    n = len(rows[0])
    system = [
        [sum(row[i] * row[j] for row in rows) for j in range(n)]
        + [sum(row[i] * y for row, y in zip(rows, right))]
        for i in range(n)
    ]
    for i in range(n):
        system[i] = [x / system[i][i] for x in system[i]]
        for k in range(n):
            if k != i:
                factor = system[k][i]
                system[k] = [x - factor * y for x, y in zip(system[k], system[i])]
    return [row[-1] for row in system]


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result and the least time of three calls."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
    return result, min(seconds)


def regressions() -> Iterator[dict[str, Any]]:
    """A row for each regression and method."""
    for name, matrix, data in designs():
        exact = least_squares(matrix, data)
        for method in ("pinv", "qr", "verified"):
            model = sm.OLS(data, matrix)
            fit, seconds = timed(lambda: model.fit(method=method))  # noqa: B023
            errors = [
                abs(Fraction(x) - y) / abs(y)
                for x, y in zip(fit.params.tolist(), exact, strict=True)
            ]
            yield {
                "package": f"statsmodels {statsmodels.__version__}",
                "problem": name,
                "condition": float(np.linalg.cond(matrix)),
                "way": method,
                "error": float(max(errors)),
                "seconds": seconds,
            }


def fields() -> Iterator[dict[str, Any]]:
    """A row for each kriged field and way."""
    rng = np.random.default_rng(0)
    ways = {
        "inv": ({}, "vectorized"),
        "pinv": ({"pseudo_inv": True}, "vectorized"),
        "verified": ({}, "verified"),
    }
    for n in (50, 100, 200):
        x, y = rng.uniform(0, 10, (2, n))
        points = rng.uniform(1, 9, (2, 40))
        truth = np.sin(points[0]) + np.cos(points[1])
        for way, (options, backend) in ways.items():
            kriging = pykrige.ok.OrdinaryKriging(
                x,
                y,
                np.sin(x) + np.cos(y),
                variogram_model="gaussian",
                variogram_parameters={"sill": 1.0, "range": 6.0, "nugget": 0.0},
                **options,
            )
            (values, variances), seconds = timed(
                lambda: kriging.execute("points", *points, backend=backend)  # noqa: B023
            )
            yield {
                "package": f"PyKrige {pykrige.__version__}",
                "problem": f"{n} points, Gaussian variogram",
                "condition": float(np.linalg.cond(kriging._get_kriging_matrix(n))),
                "way": way,
                "error": float(np.abs(values - truth).max()),
                "least_variance": float(variances.min()),
                "seconds": seconds,
            }


def main() -> None:
    """Measure, print, write."""
    warnings.simplefilter("ignore")  # of matrices that are nearly singular
    rows = [*regressions(), *fields()]
    for row in rows:
        print(
            f"{row['problem']:<34} {row['condition']:.0e} {row['way']:<9} {row['error']:.1e}"
            f" {row.get('least_variance', 0.0):9.1e} {1e3 * row['seconds']:8.2f} ms"
        )
    if sys.argv[1:]:
        write_csv(sys.argv[1], rows)


if __name__ == "__main__":
    main()
