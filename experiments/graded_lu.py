"""What does a factorisation of a graded matrix make of fixed counts? Backward errors of
LU whose updates are products by this library.

    python -m experiments.graded_lu [--sizes 64 128 256] [--output results/graded_lu.csv]

A = D M D, M uniform on (-1, 1) with n on its diagonal, D falling from 2^(span / 2) to
2^(-span / 2). LU without pivoting, by halves: A22 - L21 U12 is one product with k up to
n / 2, L21 and U12 come from substitution. L has columns divided by D, U has rows times
D: every product is one of A D and D^-1 B, so that rows and columns on grids of their
own lose the bits that D spans. The error is the largest |A - LU| / (u |L||U|), all in
extended precision, which errs by n 2^-64 |L||U|.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import hifigemm as hg
from hifigemm.testing.matrices import uniform
from hifigemm.workshop.environment import write_csv

SEED = 11
SIZES = (64, 128, 256, 512)
SPANS = (0, 20, 40, 60)
SMALLEST = 16
"""Blocks of so many rows are factored entry by entry."""

Product = Callable[[Any, Any], Any]
WAYS: dict[str, Product] = {
    "native": np.matmul,
    "14 moduli": partial(hg.matmul, scheme=hg.Ozaki2(num_moduli=14, scaling="fast")),
    "15 moduli": partial(hg.matmul, scheme=hg.Ozaki2(num_moduli=15, scaling="fast")),
    "8 INT8 slices": partial(hg.matmul, scheme=hg.Ozaki1("int8", 8)),
    "default": hg.matmul,
    "residues, promised": partial(hg.matmul, scheme="ozaki2", accuracy="fp64"),
    "correct": partial(hg.matmul, accuracy="correct"),
}


def graded_matrix(rng: np.random.Generator, n: int, span: int) -> Any:
    """D M D with a diagonal D of powers of two that falls over so many bits."""
    m = uniform(rng, (n, n)) + n * np.eye(n)
    exponents = np.rint(np.linspace(span / 2, -span / 2, n)).astype(int)
    return np.ldexp(m, exponents[:, None] + exponents)


def factor(a: Any, product: Product) -> None:
    """L without its diagonal and U in the place of A."""
    n = len(a)
    if n <= SMALLEST:
        for j in range(n - 1):
            a[j + 1 :, j] /= a[j, j]
            a[j + 1 :, j + 1 :] -= np.outer(a[j + 1 :, j], a[j, j + 1 :])
        return
    half = n // 2
    factor(a[:half, :half], product)
    # L21 U11 = A21 and L11 U12 = A12, one row and column of A11 after the other.
    for j in range(half):
        a[half:, j] = (a[half:, j] - a[half:, :j] @ a[:j, j]) / a[j, j]
        a[j, half:] -= a[j, :j] @ a[:j, half:]
    a[half:, half:] -= product(a[half:, :half].copy(), a[:half, half:].copy())
    factor(a[half:, half:], product)


def backward_error(a: Any, factors: Any) -> float:
    """The largest |A - LU| / (u |L||U|)."""
    wide = factors.astype(np.longdouble)
    lower = np.tril(wide, -1) + np.eye(len(a), dtype=np.longdouble)
    upper = np.triu(wide)
    residual = abs(a.astype(np.longdouble) - lower @ upper)
    size = abs(lower) @ abs(upper)
    # Without terms there is no error to divide.
    relative = np.divide(residual, size, out=residual.copy(), where=size > 0)
    return float(relative.max() * 2.0**53)


def measure(n: int, span: int) -> list[dict[str, Any]]:
    """One line for each way to the products."""
    rows: list[dict[str, Any]] = []
    for way, product in WAYS.items():
        a = graded_matrix(np.random.default_rng([SEED, n, span]), n, span)
        factors = a.copy()
        factor(factors, product)
        error = backward_error(a, factors)
        rows.append({"n": n, "span": span, "way": way, "backward_error": error})
    return rows


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--output", default="results/graded_lu.csv")
    options = parser.parse_args()
    rows = []
    for n in options.sizes:
        for span in SPANS:
            rows += measure(n, span)
            for row in rows[-len(WAYS) :]:
                print(*row.values(), flush=True)
    write_csv(options.output, rows, seed=SEED)


if __name__ == "__main__":
    main()
