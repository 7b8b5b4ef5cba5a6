"""Does `hifigemm.linalg` ever say something wrong of a small determinant, its logarithm or
definiteness? Counts by family of matrices.

    python -m experiments.linalg_determinants [--matrices 100000] [--seconds 300]
        [--rows 32] [--first 0] [--output results/linalg_determinants.csv]

Stacks of real matrices of 1 to 32 rows, or to more, are drawn of each family in turns, and judged in
integers, by determinants and characteristic polynomials of python-flint:

- wrong: signs and answers that are not the exact ones;
- missed: determinants outside of their bounds, and logarithms outside of their radius;
- wide: bounds that are neither next to each other nor equal to a determinant that is a
  number of float64;
- refused: matrices without a proof;
- zero, definite: how often the exact answer is that;
- told by the core: without the general way, one matrix after the other.

`--first 40` goes on with the fortieth stack of each family, and adds to the counts of the
output.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import flint
import numpy as np

import hifigemm.linalg as verified
from hifigemm.engines import core
from hifigemm.workshop.environment import write_csv

Array = np.ndarray[Any, Any]
Family = Callable[[np.random.Generator, int], Array]

SEED = 61
STACK = 25
"""Matrices of one family and size that one call is about."""


# Families of square matrices


def normal(rng: np.random.Generator, n: int) -> Array:
    """Normal entries."""
    return rng.standard_normal((n, n))


def of_any_condition(rng: np.random.Generator, n: int) -> Array:
    """Conditions up to 1e18."""
    values = np.logspace(0.0, -rng.uniform(0.0, 18.0), n)
    return orthogonal(rng, n) * values @ orthogonal(rng, n)


def graded(rng: np.random.Generator, n: int) -> Array:
    """Rows and columns in units over 2^180."""
    return in_units(rng, normal(rng, n), 90)


def scattered(rng: np.random.Generator, n: int) -> Array:
    """Normal entries in units over 2^380 each."""
    return np.asarray(np.ldexp(normal(rng, n), rng.integers(-190, 190, (n, n))))


def digits(rng: np.random.Generator, n: int) -> Array:
    """Integers of one digit."""
    return rng.integers(-9, 10, (n, n)).astype(float)


def integers(rng: np.random.Generator, n: int) -> Array:
    """Integers of up to 53 bits."""
    return np.rint(normal(rng, n) * 2.0 ** rng.integers(1, 51))


def singular(rng: np.random.Generator, n: int) -> Array:
    """Products of short integers of rank n - 1 or less, rows and columns in units."""
    rank = max(n - int(rng.integers(1, 4)), 0)
    left = rng.integers(-9, 10, (n, rank))
    return in_units(rng, (left @ rng.integers(-9, 10, (rank, n))).astype(float), 20)


def off_by_ulps(rng: np.random.Generator, n: int) -> Array:
    """Singular matrices, one entry of which, if not zero, moves to a neighbour."""
    a = singular(rng, n)
    i, j = rng.integers(0, n, 2)
    if a[i, j] != 0.0:
        a[i, j] = np.nextafter(a[i, j], rng.choice([-np.inf, np.inf]))
    return a


def multiple_of_a_row(rng: np.random.Generator, n: int) -> Array:
    """Normal entries of 53 bits, one row a multiple of another up to 2^-20 to 2^-60."""
    a = normal(rng, n)
    factor = rng.choice([1.0, 2.0, 3.0])
    a[-1] = a[0] * factor * (1.0 + 2.0 ** -float(rng.integers(20, 61)))
    return a


def vandermonde(rng: np.random.Generator, n: int) -> Array:
    """Powers of points of (-1, 1)."""
    return np.vander(rng.uniform(-1.0, 1.0, n), increasing=True)


def cauchy(rng: np.random.Generator, n: int) -> Array:
    """1 / (x_i + y_j), rounded; Hilbert's matrix is one."""
    x = np.arange(n) + rng.choice([0.5, 1.0, rng.uniform(0.5, 1.0)])
    return 1.0 / (x[:, None] + x)


def triangular(rng: np.random.Generator, n: int) -> Array:
    """Kahan's matrices, rows and columns permuted."""
    angle = rng.uniform(0.9, 1.5)
    a = np.triu(-np.cos(angle) * np.ones((n, n)), 1) + np.eye(n)
    a = np.sin(angle) ** np.arange(n)[:, None] * a
    return a[rng.permutation(n)][:, rng.permutation(n)]


def band(rng: np.random.Generator, n: int) -> Array:
    """Three diagonals, half of them in units that grow from row to row."""
    a = 2.0 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    if rng.random() < 0.5:
        a = a * rng.uniform(0.5, 2.0, (n, n))
    return in_units(rng, a, 40) if rng.random() < 0.5 else a


def sparse(rng: np.random.Generator, n: int) -> Array:
    """Three entries a row."""
    a = normal(rng, n) * (rng.random((n, n)) < 3 / n)
    return a + np.diag(normal(rng, n)[0])[rng.permutation(n)]


def spikes(rng: np.random.Generator, n: int) -> Array:
    """Normal entries, a few of which are larger or smaller by up to 2^190."""
    a = normal(rng, n)
    spots = tuple(rng.integers(0, n, (2, n)))
    a[spots] = np.ldexp(a[spots], rng.integers(-190, 190, n))
    return a


def next_to_a_double(rng: np.random.Generator, n: int) -> Array:
    """Determinants (2^b - c) (2^b + c) times powers of two."""
    bits = int(rng.integers(10, 48))
    a = 2.0**bits * np.eye(n)
    a[0, 0] -= 3.0
    a[-1, -1] += 3.0
    mixed: Array = (np.tril(rng.integers(-1, 2, (n, n)), -1) + np.eye(n)) @ a
    return mixed


def subnormal(rng: np.random.Generator, n: int) -> Array:
    """Subnormal numbers."""
    return np.asarray(np.ldexp(normal(rng, n), -1055))


def huge(rng: np.random.Generator, n: int) -> Array:
    """Up to the largest number."""
    a = normal(rng, n)
    return np.asarray(np.ldexp(a / np.abs(a).max(), 1023))


def orthogonal(rng: np.random.Generator, n: int) -> Array:
    """An orthogonal matrix, rounded."""
    q: Array = np.linalg.qr(normal(rng, n))[0]
    return q


def in_units(rng: np.random.Generator, a: Array, power: int) -> Array:
    """Rows and columns times powers of two."""
    rows = rng.integers(-power, power + 1, (len(a), 1))
    columns = rng.integers(-power, power + 1, len(a))
    return np.asarray(np.ldexp(a, rows + columns))


FAMILIES: dict[str, Family] = {
    "normal": normal,
    "condition up to 1e18": of_any_condition,
    "graded over 2^180": graded,
    "scattered over 2^380": scattered,
    "integers of a digit": digits,
    "integers up to 53 bits": integers,
    "exactly singular": singular,
    "singular but for an ulp": off_by_ulps,
    "one row close to a multiple": multiple_of_a_row,
    "Vandermonde": vandermonde,
    "Hilbert and Cauchy": cauchy,
    "triangular, permuted": triangular,
    "tridiagonal": band,
    "sparse": sparse,
    "spikes": spikes,
    "next to a double": next_to_a_double,
    "subnormal": subnormal,
    "huge": huge,
}


# Symmetric matrices of each family


def symmetric(rng: np.random.Generator, family: str, n: int) -> Array:
    """A A^T, exactly where that is short, or A + A^T with its diagonal made larger by up to
    its norm, in units of rows that are columns' too.
    """
    a = FAMILIES[family](rng, n)
    largest = np.abs(a).max(initial=0.0)
    if largest > 0.0:
        a = np.ldexp(a, -int(np.frexp(largest)[1]))
    if rng.random() < 0.6:
        product = a @ a.T
    else:
        product = a + a.T
        shift = rng.choice([0.0, 1.0, 2.0]) * np.abs(np.linalg.eigvalsh(product)).max()
        product += np.diag(np.full(n, shift))
    lower = np.tril(product) + np.tril(product, -1).T
    units = rng.integers(-30, 31, n)
    lower = np.ldexp(lower, units[:, None] + units)
    if family in ("subnormal", "huge"):
        lower = np.ldexp(lower, -1000 if family == "subnormal" else 900)
    return np.asarray(lower)


# Judges in integers


def in_integers(a: Array) -> tuple[flint.fmpz_mat, int]:
    """(Z, e) with Z = 2^e A."""
    ratios = [x.as_integer_ratio() for x in a.ravel().tolist()]
    largest = max(below for _, below in ratios)
    entries = [above * (largest // below) for above, below in ratios]
    return flint.fmpz_mat(*a.shape, entries), largest.bit_length() - 1


def exact_determinant(a: Array) -> Fraction:
    """det A."""
    integers_of_a, exponent = in_integers(a)
    return Fraction(int(integers_of_a.det()), 1 << (exponent * len(a)))


def is_definite(a: Array) -> bool:
    """True if no root of the characteristic polynomial, which are all real, is negative or
    zero: its coefficients change their signs from each to the next (Descartes).
    """
    matrix, _ = in_integers(a)
    coefficients = [int(c) for c in matrix.charpoly().coeffs()]
    signs = [-c if i % 2 else c for i, c in enumerate(reversed(coefficients))]
    return all(c > 0 for c in signs)


def judge_determinants(stack: Array, counts: Counter[str]) -> None:
    """Bounds, signs and logarithms of a stack of matrices."""
    neighbours = core.neighbours_of_determinants(stack)
    if neighbours is not None:
        counts["told by the core"] += int(neighbours.is_known.sum())
    try:
        d = verified.det(stack)
        logarithms = verified.slogdet(stack)
    except verified.VerificationError as error:
        counts["refused"] += int(np.isnan(error.solution.lower).sum())
        d = error.solution
        logarithms = None
    for index, a in enumerate(stack):
        lower, upper = float(d.lower[index]), float(d.upper[index])
        if np.isnan(lower):
            continue
        exact = exact_determinant(a)
        value = exact / Fraction(2) ** int(d.exponent[index])
        counts["zero"] += exact == 0
        counts["wrong"] += int(d.sign[index]) != (exact > 0) - (exact < 0)
        is_within = Fraction(lower) <= value <= Fraction(upper)
        counts["missed"] += not is_within
        is_number = Fraction(lower) == value == Fraction(upper)
        is_next = np.nextafter(lower, np.inf) == upper
        is_rounded = Fraction(lower) != value != Fraction(upper)
        counts["wide"] += not (is_number or (is_next and is_rounded))
        if logarithms is not None and exact != 0:
            logarithm = flint.arb(flint.fmpq(abs(exact.numerator), exact.denominator))
            gap = logarithm.log() - flint.arb(float(logarithms.logabsdet[index]))
            radius = flint.arb(float(logarithms.radius[index]))
            counts["missed"] += not abs(gap) <= radius


def judge_definiteness(stack: Array, counts: Counter[str]) -> None:
    """Answers for a stack of symmetric matrices."""
    answers = core.definiteness(stack)
    if answers is not None:
        counts["told by the core"] += int(answers.is_known.sum())
    try:
        said = verified.is_positive_definite(stack).astype(float)
    except verified.VerificationError as error:
        said = error.solution
        counts["refused"] += int(np.isnan(said).sum())
    for a, answer in zip(stack, said):
        exact = is_definite(a)
        counts["definite"] += exact
        counts["wrong"] += not np.isnan(answer) and bool(answer) != exact


FUNCTIONS = "det, slogdet", "is_positive_definite"


def judge(
    function: str, family: str, number: int, seed: int, most_rows: int
) -> Counter[str]:
    """The counts of one stack."""
    place = list(FAMILIES).index(family), function == FUNCTIONS[0]
    rng = np.random.default_rng([seed, number, *place])
    n = 1 + int((most_rows - 0.5) * rng.random() ** 2)
    counts: Counter[str] = Counter(matrices=STACK)
    if function == FUNCTIONS[0]:
        draw = FAMILIES[family]
        judge_determinants(np.stack([draw(rng, n) for _ in range(STACK)]), counts)
    else:
        stack = np.stack([symmetric(rng, family, n) for _ in range(STACK)])
        judge_definiteness(stack, counts)
    return counts


COLUMNS = (
    "matrices",
    "told by the core",
    "refused",
    "wrong",
    "missed",
    "wide",
    "zero",
    "definite",
)


def main() -> None:
    """Draw, ask, judge and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--matrices", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--output", type=Path, default="results/linalg_determinants.csv"
    )
    options = parser.parse_args()

    lines = {(f, family): Counter[str]() for f in FUNCTIONS for family in FAMILIES}
    if options.first:
        with options.output.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                counts = lines[row["function"], row["family"]]
                counts.update({column: int(row[column]) for column in COLUMNS})
    end = time.monotonic() + options.seconds
    number = options.first
    last = number + -(-options.matrices // (STACK * len(lines)))
    while number < last and time.monotonic() < end:
        for (function, family), counts in lines.items():
            count = judge(function, family, number, options.seed, options.rows)
            counts.update(count)
        number += 1

    rows = [
        {"function": function, "family": family, **{c: counts[c] for c in COLUMNS}}
        for (function, family), counts in lines.items()
    ]
    for row in rows:
        print(*row.values(), sep=", ")
    sums = {column: sum(row[column] for row in rows) for column in COLUMNS}
    print(*(f"{count} {column}" for column, count in sums.items()), sep=", ")
    print(f"next: --first {number}")
    environment = {"seed": options.seed, "most_rows": options.rows}
    write_csv(options.output, rows, **environment, stacks_of_a_family=number)


if __name__ == "__main__":
    main()
