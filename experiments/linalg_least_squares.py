"""Does an enclosure of `hifigemm.linalg.lstsq` ever miss? Tall matrices, up to
100,000 x 100, judged by the exact solution of the normal equations.

    python -m experiments.linalg_least_squares [--shapes 1000x20,100000x100]
        [--output results/linalg_least_squares.csv]

A has singular values in a geometric series, b is drawn at random, so that the residual is
large, or is close to A x. A^T A and A^T b are exact: entries are cut into pieces of 17
bits, whose products are integers that float64 holds. `missed` are entries whose exact
value lies outside of their radius; radii are in units in the last place of x.
"""

from __future__ import annotations

import argparse
import time
from fractions import Fraction
from typing import Any

import flint
import numpy as np

import hifigemm.linalg as verified
from experiments.linalg_enclosures import ulps
from experiments.systems import Array, misses
from hifigemm.workshop.environment import write_csv

SEED = 43
SHAPES = "100x10,1000x20,10000x50,100000x100"
CONDITIONS = (1e1, 1e4, 1e7)
PIECE_BITS = 17
"""2^32 times 100,000 terms lies below 2^53."""


def drawn(
    rng: np.random.Generator, m: int, n: int, condition: float, is_consistent: bool
) -> tuple[Array, Array]:
    """A and b."""
    left, _ = np.linalg.qr(rng.standard_normal((m, n)))
    right, _ = np.linalg.qr(rng.standard_normal((n, n)))
    a = left * np.geomspace(1.0, 1.0 / condition, n) @ right
    b = (
        a @ rng.standard_normal((n, 1))
        if is_consistent
        else rng.standard_normal((m, 1))
    )
    return a, b


def pieces(x: Array) -> list[tuple[Array, int]]:
    """Pairs (p, e) with x the sum of p 2^e: p are integers up to 2^16 in modulus."""
    found = []
    exponent = int(np.frexp(np.abs(x).max())[1]) - PIECE_BITS + 1
    remainder = x
    while remainder.any():
        piece = np.rint(np.ldexp(remainder, -exponent))
        remainder = remainder - np.ldexp(piece, exponent)
        found.append((piece, exponent))
        exponent -= PIECE_BITS
    return found


def exact_products(x: Array, y: Array) -> Array:
    """X^T Y as fractions."""
    total = np.zeros((x.shape[1], y.shape[1]), object)
    for left, exponent in pieces(x):
        for right, other in pieces(y):
            product = (left.T @ right).astype(np.int64).astype(object)
            total = total + product * Fraction(2) ** (exponent + other)
    return total


def exact_solution(a: Array, b: Array) -> list[list[Fraction]]:
    """That of the normal equations."""
    n = a.shape[1]
    gram = exact_products(a, a)
    sides = exact_products(a, b)
    scale = max(v.denominator for v in [*gram.ravel(), *sides.ravel()])
    left = flint.fmpz_mat(n, n, [int(v * scale) for v in gram.ravel()])
    right = flint.fmpz_mat(n, 1, [int(v * scale) for v in sides.ravel()])
    x = left.solve(right)
    return [[Fraction(int(x[i, 0].p), int(x[i, 0].q))] for i in range(n)]


def row(m: int, n: int, condition: float, is_consistent: bool) -> dict[str, Any]:
    """One system, solved and judged."""
    rng = np.random.default_rng([SEED, m, n, int(condition), is_consistent])
    a, b = drawn(rng, m, n, condition, is_consistent)
    start = time.perf_counter()
    solution = verified.lstsq(a, b)
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    np.linalg.lstsq(a, b)
    seconds_of_numpy = time.perf_counter() - start
    parts = [exact_solution(a, b)]
    radii = ulps(solution.x, solution.radius, parts)
    return {
        "m": m,
        "n": n,
        "condition": condition,
        "b": "A x, rounded" if is_consistent else "random",
        "missed": len(misses(solution.x, solution.radius, parts)),
        "median radius in ulp": float(np.median(radii)),
        "largest radius in ulp": max(radii),
        "seconds": seconds,
        "seconds of numpy": seconds_of_numpy,
    }


def main() -> None:
    """Draw, solve, judge and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--output", default="results/linalg_least_squares.csv")
    options = parser.parse_args()
    rows = []
    for shape in options.shapes.split(","):
        m, n = (int(word) for word in shape.split("x"))
        for condition in CONDITIONS:
            for is_consistent in (False, True):
                rows.append(row(m, n, condition, is_consistent))
                print(*rows[-1].values(), sep=", ", flush=True)
    write_csv(options.output, rows, seed=SEED)


if __name__ == "__main__":
    main()
