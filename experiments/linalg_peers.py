"""Solvers side by side: errors against the exact solution, radii, and time.

    python -m experiments.linalg_peers [--sizes 20 100] [--output results/linalg_peers.csv]

For each size and condition one system, solved by

- numpy and scipy: `solve`, without a bound;
- gesvx: LAPACK's expert driver by scipy, with scaling and one to five steps of
  refinement; its forward error bound is an estimate;
- arb: `arb_mat.solve` of python-flint, balls with a proof, at the least precision of
  53, 106, 212, ... bits that gives an answer with relative radii below 1;
- crlin, crlin extended: `crlin.solve` (PyPI), an interval with a proof, by default and
  with mode="extended", where it is installed;
- hifigemm: `hifigemm.linalg.solve`, and "hifigemm correct" with accuracy="correct".

`error` is the largest error of an entry, and `radius` the largest radius, each relative
to the exact entry; `seconds` is the least of several runs.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import flint
import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dgesvx

import hifigemm.linalg as verified
from experiments.systems import Array, exact_parts
from hifigemm.workshop.environment import write_csv

Answer = tuple[list[Fraction], list[Fraction] | None]
"""x and radii, exactly; None where there is no bound, not even an estimated one."""
CONDITIONS = (1e2, 1e8, 1e12, 1e15, 1e18)
SEED = 43
MOST_BITS = 2048


def system(n: int, condition: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """A matrix with singular values in a geometric series, and a right side.

    Rounding its entries leaves a condition of about 1e17 where 1e18 is meant.
    """
    left, _ = np.linalg.qr(rng.standard_normal((n, n)))
    right, _ = np.linalg.qr(rng.standard_normal((n, n)))
    a = (left * np.geomspace(1.0, 1.0 / condition, n)) @ right
    return a, rng.standard_normal((n, 1))


def fractions(x: Array) -> list[Fraction]:
    """The entries of a column."""
    return [Fraction(v) for v in x.ravel().tolist()]


def of_numpy(a: Array, b: Array) -> Answer:
    """NumPy's solution."""
    return fractions(np.linalg.solve(a, b)), None


def of_scipy(a: Array, b: Array) -> Answer:
    """SciPy's solution, without its warning of a large condition."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
        return fractions(scipy.linalg.solve(a, b)), None


def of_gesvx(a: Array, b: Array) -> Answer:
    """LAPACK's refined solution, and its estimate of the relative error of the largest
    entry.
    """
    result = dgesvx(a, b, fact="E")
    x = result[7]
    bound = float(result[9][0]) * float(np.abs(x).max())
    return fractions(x), [Fraction(bound)] * len(x)


def of_arb(a: Array, b: Array) -> Answer:
    """Balls of Arb at the least precision that holds the solution."""
    before = flint.ctx.prec
    bits = 53
    try:
        while bits <= MOST_BITS:
            flint.ctx.prec = bits
            matrix = flint.arb_mat(a.tolist())
            try:
                x = matrix.solve(flint.arb_mat(b.tolist()))
            except ZeroDivisionError:
                bits *= 2
                continue
            balls = [x[i, 0] for i in range(len(a))]
            if all(ball.rad() < abs(ball.mid()) for ball in balls):
                return [_exact(ball.mid()) for ball in balls], [
                    _exact(ball.rad()) for ball in balls
                ]
            bits *= 2
    finally:
        flint.ctx.prec = before
    raise ArithmeticError("no answer")


def _exact(x: Any) -> Fraction:
    """The number that is the middle of a ball without a radius."""
    mantissa, exponent = x.man_exp()
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)


def of_crlin(a: Array, b: Array, mode: str = "classical") -> Answer:
    """The middle of crlin's interval, and how far its ends are from it."""
    import crlin

    try:
        low, high = crlin.solve(a, b[:, 0], mode=mode)
    except crlin.NotVerified as error:
        raise ArithmeticError("no proof") from error
    lower = fractions(low)
    upper = fractions(high)
    middle = [(x + y) / 2 for x, y in zip(lower, upper)]
    return middle, [y - x for x, y in zip(middle, upper)]


def of_crlin_extended(a: Array, b: Array) -> Answer:
    """The same in pairs of numbers."""
    return of_crlin(a, b, "extended")


def of_hifigemm(a: Array, b: Array) -> Answer:
    """The verified solution."""
    solution = verified.solve(a, b)
    return fractions(solution.x), fractions(solution.radius)


def of_correct(a: Array, b: Array) -> Answer:
    """The correctly rounded one."""
    solution = verified.solve(a, b, accuracy="correct")
    return fractions(solution.x), fractions(solution.radius)


SOLVERS: dict[str, Callable[[Array, Array], Answer]] = {
    "numpy": of_numpy,
    "scipy": of_scipy,
    "gesvx": of_gesvx,
    "arb": of_arb,
    "crlin": of_crlin,
    "crlin extended": of_crlin_extended,
    "hifigemm": of_hifigemm,
    "hifigemm correct": of_correct,
}


def main() -> None:
    """Solve, judge and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", default="results/linalg_peers.csv")
    options = parser.parse_args()
    rows = []
    for n in options.sizes:
        for condition in CONDITIONS:
            rng = np.random.default_rng([SEED, n, int(np.log10(condition))])
            a, b = system(n, condition, rng)
            parts = exact_parts(a, b)
            assert parts is not None, "the matrix is singular"
            exact = [row[0] for row in parts[0]]
            for name, solver in SOLVERS.items():
                rows.append(
                    {"n": n, "condition": condition, "solver": name}
                    | judged(solver, a, b, exact, options.repeats)
                )
                print(*rows[-1].values(), sep=", ")
    write_csv(options.output, rows, seed=SEED)


def judged(
    solver: Callable[[Array, Array], Answer],
    a: Array,
    b: Array,
    exact: list[Fraction],
    repeats: int,
) -> dict[str, Any]:
    """Error, radius, whether all entries are within it, and seconds."""
    seconds = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        try:
            x, radii = solver(a, b)
        except (ArithmeticError, ImportError, np.linalg.LinAlgError):
            return {"error": "", "radius": "", "encloses": "", "seconds": ""}
        seconds = min(seconds, time.perf_counter() - start)
    errors = [abs(v - e) for v, e in zip(x, exact)]
    row: dict[str, Any] = {
        "error": float(max(error / abs(e) for error, e in zip(errors, exact))),
        "radius": "",
        "encloses": "",
    }
    if radii is not None:
        row["radius"] = float(max(r / abs(e) for r, e in zip(radii, exact)))
        row["encloses"] = all(error <= r for error, r in zip(errors, radii))
    return row | {"seconds": seconds}


if __name__ == "__main__":
    main()
