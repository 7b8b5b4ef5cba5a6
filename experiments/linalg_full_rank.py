"""Up to which condition does `hifigemm.linalg.lstsq` prove, and does an enclosure miss?

    python -m experiments.linalg_full_rank [--rounds 100] [--large 4]
        [--output results/linalg_full_rank.csv]

Tall systems of each family, and wide ones, whose matrix is the transposed one, are
solved and judged by the exact solution of the normal equations in integers. A line is for one
family and a range of conditions, |B| |B^+| in norms of Frobenius for B with columns of
about equal size, from the exact inverse of B^H B:

- missed: entries whose exact value lies outside of their radius;
- refused: systems without a proof. Those without full rank have lines of their own, where
  `proven` has to be zero;
- median, largest radius: in units in the last place of x, of the entries that are not
  zero, for m >= n. Entries of solutions of least norm may be 1e-56 times the largest one.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import flint
import numpy as np

import hifigemm.linalg as verified
from experiments.linalg_enclosures import median, ulps
from experiments.systems import Array, misses
from hifigemm.workshop.environment import write_csv

SEED = 44
STEP = 4
"""Powers of ten in a range of conditions."""
PRECISION = 2000
"""Bits of the inverse of B^H B for its condition."""


# Families: A with m >= n


def powers(rng: np.random.Generator) -> Array:
    """Powers of nodes, rounded, up to degree 30."""
    degree = int(rng.integers(2, 31))
    m = degree + 1 + int(rng.integers(0, 30))
    low = float(rng.choice([-1.0, 0.0, 1.0, -9.0]))
    nodes = np.sort(rng.uniform(low, low + float(rng.choice([1.0, 2.0, 6.0])), m))
    return nodes[:, None] ** np.arange(degree + 1)


def hilbert_like(rng: np.random.Generator) -> Array:
    """1 / (i + j + s), rounded."""
    n = int(rng.integers(2, 31))
    m = n + int(rng.integers(0, 20))
    i = np.arange(m)[:, None]
    return 1.0 / (i + np.arange(n) + float(rng.uniform(0.5, 3.0)))


def of_condition(rng: np.random.Generator) -> Array:
    """Singular values in a geometric series, down to 1e-16."""
    m, n = _shape(rng)
    values = np.geomspace(1.0, 10.0 ** -float(rng.uniform(0, 16)), n)
    left = np.linalg.qr(rng.standard_normal((m, n)))[0]
    right = np.linalg.qr(rng.standard_normal((n, n)))[0]
    return left * values @ right


def graded_columns(rng: np.random.Generator) -> Array:
    """Columns over 2^300."""
    m, n = _shape(rng)
    return np.ldexp(rng.standard_normal((m, n)), rng.integers(-150, 151, n))


def weighted_rows(rng: np.random.Generator) -> Array:
    """Weights of rows from 1e-10 to 1e10."""
    m, n = _shape(rng)
    return 10.0 ** rng.uniform(-10, 10, (m, 1)) * rng.standard_normal((m, n))


def nearly_dependent(rng: np.random.Generator) -> Array:
    """Matrices of lower rank above entries of 1e-1 to 1e-28."""
    n = int(rng.integers(2, 9))
    return _dependent(rng, n, int(rng.integers(1, 3 * n)), 1)


def in_levels(rng: np.random.Generator) -> Array:
    """The same in two steps, the second one of the square of the first."""
    n = int(rng.integers(3, 9))
    return _dependent(rng, n, int(rng.integers(1, 3 * n)), 2)


def long(rng: np.random.Generator) -> Array:
    """200 rows of a nearly dependent matrix."""
    return _dependent(rng, int(rng.integers(2, 5)), 200, 1)


def complex_entries(rng: np.random.Generator) -> Array:
    """Two of them, as re and im."""
    n = int(rng.integers(2, 6))
    extra = int(rng.integers(1, 2 * n))
    real = _dependent(rng, n, extra, 1)
    return real + 1j * _dependent(rng, n, extra, 1)


def in_single(rng: np.random.Generator) -> Array:
    """float32."""
    return nearly_dependent(rng).astype(np.float32)


def deficient(rng: np.random.Generator) -> Array:
    """Without full rank: products of integers, or a column twice."""
    m, n = _shape(rng)
    if rng.random() < 0.5:
        a = rng.integers(-9, 10, (m, n - 1)) @ rng.integers(-9, 10, (n - 1, n))
        return a.astype(float)
    a = rng.standard_normal((m, n))
    a[:, -1] = a[:, 0] * 2.0 ** int(rng.integers(-3, 4))
    return a


FAMILIES: dict[str, Callable[[np.random.Generator], Array]] = {
    "powers": powers,
    "Hilbert-like": hilbert_like,
    "singular values": of_condition,
    "graded columns": graded_columns,
    "weights of rows": weighted_rows,
    "nearly dependent": nearly_dependent,
    "two levels": in_levels,
    "200 rows": long,
    "complex": complex_entries,
    "float32": in_single,
    "without full rank": deficient,
}


def large(rng: np.random.Generator) -> Array:
    """30 to 100 columns in two levels."""
    n = int(rng.integers(30, 101))
    return _dependent(rng, n, int(rng.integers(1, 2 * n)), 2)


LARGE = {"30 to 100 columns": large}


def _shape(rng: np.random.Generator) -> tuple[int, int]:
    n = int(rng.integers(2, 9))
    return n + int(rng.choice([1, 2, 3, 10, 40])), n


def _dependent(rng: np.random.Generator, n: int, extra: int, levels: int) -> Array:
    """Integers of lower rank, then smaller ones, then n rows of normal numbers that are
    smaller still; rows in random order.
    """
    rank = int(rng.integers(1, n))
    least = 10.0 ** -float(rng.uniform(1, 28))
    blocks = [rng.integers(-9, 10, (extra, rank)) @ rng.integers(-9, 10, (rank, n))]
    if levels == 2:
        rank = int(rng.integers(1, n))
        middle = rng.integers(-9, 10, (n, rank)) @ rng.integers(-9, 10, (rank, n))
        blocks.append(math.sqrt(least) * middle)
    blocks.append(least * rng.standard_normal((n, n)))
    return rng.permutation(np.concatenate(blocks).astype(float))


# The judge


class Judge:
    """The normal equations of real A with m >= n, in integers."""

    def __init__(self, a: Array) -> None:
        m, n = a.shape
        self.columns = [_integers(a[:, j]) for j in range(n)]
        rows = [[self.columns[j][0][i] for j in range(n)] for i in range(m)]
        self.a = flint.fmpz_mat(m, n, [x for row in rows for x in row])
        self.gram = self.a.transpose() * self.a

    @property
    def has_full_rank(self) -> bool:
        """True if the exact rank is n."""
        return bool(self.gram.rank() == self.gram.nrows())

    def condition(self) -> float:
        """|B| |B^+| for columns of B of about equal size."""
        flint.ctx.prec = PRECISION
        n = self.gram.nrows()
        sizes = [int(self.gram[j, j]).bit_length() // 2 for j in range(n)]
        two = flint.arb(2)
        scaled = [
            [
                flint.arb(self.gram[i, j]) * two ** -(sizes[i] + sizes[j])
                for j in range(n)
            ]
            for i in range(n)
        ]
        gram = flint.arb_mat(scaled)
        inverse = gram.inv()
        squares = sum(gram[j, j] for j in range(n)) * sum(
            inverse[j, j] for j in range(n)
        )
        return float(squares.sqrt())

    def least_squares(self, b: Array) -> list[list[Fraction]]:
        """The x that minimises |b - A x|, for each column of b."""
        integers, exponent = _integers(b.ravel())
        right = flint.fmpz_mat(*b.shape, integers)
        x = self.gram.solve(self.a.transpose() * right)
        return [
            [
                _fraction(x[j, k]) * Fraction(2) ** (exponent - self.columns[j][1])
                for k in range(b.shape[1])
            ]
            for j in range(self.gram.nrows())
        ]

    def least_norm(self, b: Array) -> list[list[Fraction]]:
        """The least s with A^T s = b."""
        sides = []
        for j in range(self.gram.nrows()):
            integers, exponent = _integers(b[j])
            power = Fraction(2) ** (exponent - self.columns[j][1])
            sides.append([Fraction(x) * power for x in integers])
        scale = max(v.denominator for row in sides for v in row)
        right = [int(v * scale) for row in sides for v in row]
        y = self.gram.solve(flint.fmpz_mat(*b.shape, right))
        m, n = self.a.nrows(), self.gram.nrows()
        y_rows = [[_fraction(y[j, k]) for k in range(b.shape[1])] for j in range(n)]
        rows = []
        for i in range(m):
            entries = [int(self.a[i, j]) for j in range(n)]
            rows.append(
                [
                    sum(entries[j] * y_rows[j][k] for j in range(n)) / scale
                    for k in range(b.shape[1])
                ]
            )
        return rows


def _integers(x: Array) -> tuple[list[int], int]:
    """(p, e) with x = p 2^e."""
    _, exponents = np.frexp(x[x != 0.0])
    exponent = int(exponents.min(initial=0)) - 53
    return [int(Fraction(v) / Fraction(2) ** exponent) for v in x.tolist()], exponent


def _fraction(x: Any) -> Fraction:
    return Fraction(int(x.p), int(x.q))


def embedded(a: Array) -> Array:
    """Complex A as the real matrix [Re -Im; Im Re]."""
    if a.dtype.kind != "c":
        return a.astype(float)
    return np.block([[a.real, -a.imag], [a.imag, a.real]])


def exact_parts(
    judge: Judge, a: Array, b: Array, is_wide: bool
) -> list[list[list[Fraction]]]:
    """[re, im] or [re] of the solution for A, or for its adjoint."""
    is_complex = a.dtype.kind == "c"
    sides = np.concatenate([b.real, b.imag]) if is_complex else b.astype(float)
    rows = judge.least_norm(sides) if is_wide else judge.least_squares(sides)
    half = len(rows) // 2
    return [rows[:half], rows[half:]] if is_complex else [rows]


class Counts:
    """A line of the table."""

    def __init__(self) -> None:
        self.numbers: Counter[str] = Counter()
        self.radii: Counter[float] = Counter()

    def row(self) -> dict[str, Any]:
        """What the table says."""
        names = ("systems", "wide", "missed", "refused", "proven")
        return {
            **{name: self.numbers[name] for name in names},
            "median radius in ulp": median(self.radii),
            "largest radius in ulp": max(self.radii, default=""),
        }


def judge_system(
    counts: dict[tuple[str, int], Counts],
    family: str,
    a: Array,
    b: Array,
    is_wide: bool,
) -> None:
    """Solve for A, or for its adjoint, and count."""
    judge = Judge(embedded(a))
    power = -1
    if judge.has_full_rank:
        power = STEP * int(math.log10(judge.condition()) // STEP)
    line = counts[family, power]
    line.numbers["systems"] += 1
    line.numbers["wide"] += is_wide
    try:
        solution = verified.lstsq(a.conj().T if is_wide else a, b)
    except verified.VerificationError:
        line.numbers["refused"] += 1
        return
    line.numbers["proven"] += 1
    if power < 0:
        return
    parts = exact_parts(judge, a, b, is_wide)
    line.numbers["missed"] += len(misses(solution.x, solution.radius, parts))
    if not is_wide:
        for radius in ulps(solution.x, solution.radius, parts):
            line.radii[float(f"{radius:.3g}")] += 1


def main() -> None:
    """Draw, solve, judge and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--large", type=int, default=4)
    parser.add_argument("--output", default="results/linalg_full_rank.csv")
    options = parser.parse_args()
    counts: dict[tuple[str, int], Counts] = defaultdict(Counts)
    for families, rounds in ((FAMILIES, options.rounds), (LARGE, options.large)):
        for position, (family, draw) in enumerate(families.items()):
            for number in range(rounds):
                rng = np.random.default_rng([SEED, len(families), position, number])
                a = draw(rng)
                is_wide = number % 3 == 2
                sides = int(rng.integers(1, 3))
                shape = (a.shape[1] if is_wide else a.shape[0], sides)
                b = rng.standard_normal(shape).astype(a.dtype)
                judge_system(counts, family, a, b, is_wide)

    rows = []
    for (family, power), line in sorted(counts.items()):
        conditions = f"1e{power} to 1e{power + STEP}" if power >= 0 else "infinite"
        rows.append({"family": family, "condition": conditions, **line.row()})
        print(*rows[-1].values(), sep=", ")
    print(
        *(
            f"{name} {sum(row[name] for row in rows)}"
            for name in ("systems", "missed", "refused")
        ),
        sep=", ",
    )
    write_csv(options.output, rows, seed=SEED)


if __name__ == "__main__":
    main()
