"""Linear systems that are hard to solve, each with the exact solution of its judge.

A family draws (a, b) from a generator: matrices of up to 60 rows in float64, float32 or
complex128, or stacks. `exact_solution` shares no code with the library: it is
python-flint's solver for integers.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
System = tuple[Array, Array]

MOST_ROWS = 40


# The exact solution


def exact_solution(a: Array, b: Array) -> list[list[Fraction]] | None:
    """The rows of A^-1 b for real a (n x n) and b (n x k); None for a singular A."""
    import flint

    n, k = b.shape
    rows = [_integers([*a[i].tolist(), *b[i].tolist()]) for i in range(n)]
    left = flint.fmpz_mat(n, n, [x for row in rows for x in row[:n]])
    right = flint.fmpz_mat(n, k, [x for row in rows for x in row[n:]])
    try:
        solution = left.solve(right)
    except ZeroDivisionError:
        return None
    return [
        [Fraction(int(solution[i, j].p), int(solution[i, j].q)) for j in range(k)]
        for i in range(n)
    ]


def exact_parts(a: Array, b: Array) -> list[list[list[Fraction]]] | None:
    """[re, im] or [re] of A^-1 b, each as rows; None for a singular A.

    A complex system is the real one of [Re -Im; Im Re].
    """
    if a.dtype.kind != "c" and b.dtype.kind != "c":
        solution = exact_solution(a, b)
        return None if solution is None else [solution]
    embedded = np.block([[a.real, -a.imag], [a.imag, a.real]])
    solution = exact_solution(embedded, np.concatenate([b.real, b.imag]))
    if solution is None:
        return None
    return [solution[: len(a)], solution[len(a) :]]


def _integers(entries: list[float]) -> list[int]:
    """Finite numbers times the least power of two that makes integers of them all."""
    ratios = [x.as_integer_ratio() for x in entries]
    largest = max(below for _, below in ratios)
    return [above * (largest // below) for above, below in ratios]


def misses(
    x: Array, radius: Array, parts: list[list[list[Fraction]]]
) -> list[tuple[int, int]]:
    """Indices of entries whose exact value lies farther from x than the radius; x and
    radius are n x k.
    """
    components = [x.real, x.imag][: len(parts)]
    outside = []
    for i, j in np.ndindex(x.shape):
        numbers = [float(component[i, j]) for component in components]
        exact = [part[i][j] for part in parts]
        if not is_within(numbers, float(radius[i, j]), exact):
            outside.append((i, j))
    return outside


def is_within(numbers: list[float], radius: float, exact: list[Fraction]) -> bool:
    """True if the distance of two real numbers, or of two complex ones, is at most a
    radius; False where one of the numbers is not finite.
    """
    if not np.isfinite([*numbers, radius]).all():
        return False

    # |v - p / q| <= r times the common denominators: integers need no common divisors
    limit, below_limit = radius.as_integer_ratio()
    gaps = []
    for number, value in zip(numbers, exact):
        above, below = number.as_integer_ratio()
        p, q = value.numerator, value.denominator
        gaps.append((abs(above * q - p * below) * below_limit, limit * below * q))
    if len(gaps) == 1:
        return gaps[0][0] <= gaps[0][1]
    squares = sum(Fraction(gap, scale or 1) ** 2 for gap, scale in gaps)
    return squares <= 1 if limit else not squares


# Families


def random_system(rng: np.random.Generator) -> System:
    """Normal entries, one to three right sides."""
    n = _size(rng)
    return rng.standard_normal((n, n)), _sides(rng, n)


def of_condition(condition: float) -> Callable[[np.random.Generator], System]:
    """A family with singular values from 1 down to 1 / condition, evenly in their
    logarithms.
    """

    def draw(rng: np.random.Generator) -> System:
        n = _size(rng, least=2)
        values = np.logspace(0.0, -np.log10(condition), n)
        return _orthogonal(rng, n) * values @ _orthogonal(rng, n), _sides(rng, n)

    return draw


def graded(rng: np.random.Generator) -> System:
    """Rows and columns scaled by random powers of two over 2^300."""
    n = _size(rng)
    rows = rng.integers(-150, 151, (n, 1))
    columns = rng.integers(-150, 151, n)
    return np.ldexp(rng.standard_normal((n, n)), rows + columns), _sides(rng, n)


def graded_with_sides(rng: np.random.Generator) -> System:
    """Rows of A and b scaled alike, b with entries of its own grading."""
    a, b = graded(rng)
    return a, np.ldexp(b, rng.integers(-300, 301, b.shape))


def vandermonde(rng: np.random.Generator) -> System:
    """Powers of random points of (-1, 1), up to the tenth."""
    n = int(rng.integers(2, 12))
    return np.vander(rng.uniform(-1.0, 1.0, n), increasing=True), _sides(rng, n)


def pascal(rng: np.random.Generator) -> System:
    """Pascal's matrix, whose inverse has integers; half of the right sides are
    integers too.
    """
    n = int(rng.integers(1, 16))
    row = np.ones(n)
    rows = [row]
    for _ in range(n - 1):
        row = np.cumsum(row)
        rows.append(row)
    b = _sides(rng, n)
    return np.stack(rows), np.rint(8.0 * b) if rng.random() < 0.5 else b


def hilbert_like(rng: np.random.Generator) -> System:
    """Cauchy's matrices 1 / (x_i + y_j), rounded: conditions to 1e13."""
    n = int(rng.integers(2, 10))
    x = np.arange(n) + rng.uniform(0.5, 1.0)
    return 1.0 / (x[:, None] + np.arange(n)), _sides(rng, n)


def near_singular(rng: np.random.Generator) -> System:
    """A singular matrix of short integers, one entry of which moves by a few units in
    its last place.
    """
    a, b = singular(rng, least=2, defect=1)
    i, j = rng.integers(0, len(a), 2)
    for _ in range(int(rng.integers(1, 4))):
        a[i, j] = np.nextafter(a[i, j], np.inf)
    return a, b


def singular(
    rng: np.random.Generator, least: int = 1, defect: int | None = None
) -> System:
    """A matrix of short integers of rank n - 1 at most, or n - defect at most."""
    n = _size(rng, least)
    rank = int(rng.integers(max(0, n - 3), n)) if defect is None else n - defect
    left = rng.integers(-9, 10, (n, rank))
    right = rng.integers(-9, 10, (rank, n))
    scale = np.ldexp(1.0, rng.integers(-20, 21, (n, 1)) + rng.integers(-20, 21, n))
    return (left @ right) * scale, _sides(rng, n)


def spikes(rng: np.random.Generator) -> System:
    """Normal entries, a few of which are larger or smaller by up to 2^200."""
    a, b = random_system(rng)
    count = int(rng.integers(1, len(a) + 1))
    spots = rng.integers(0, len(a), (2, count))
    a[tuple(spots)] *= np.ldexp(1.0, rng.integers(-200, 201, count))
    return a, b


def near_overflow(rng: np.random.Generator) -> System:
    """Entries up to the largest number; b is such that x is a number of float64."""
    a, b = random_system(rng)
    a = np.ldexp(a / np.abs(a).max(), 1023)
    return a, np.ldexp(b / np.abs(b).max(), int(rng.integers(900, 1024)))


def near_underflow(rng: np.random.Generator) -> System:
    """Entries of A, of b, or of both are subnormal numbers."""
    a, b = random_system(rng)
    power_of_a, power_of_b = rng.choice([-1060, -1030, -500, 0], 2)
    return np.ldexp(a, power_of_a), np.ldexp(b, power_of_b)


def underflowing_solution(rng: np.random.Generator) -> System:
    """Solutions that are subnormal numbers, in some entries or all."""
    a, b = random_system(rng)
    powers = rng.integers(500, 545, len(a))
    return np.ldexp(a, powers), np.ldexp(b, -520)


def cancelling_sides(rng: np.random.Generator) -> System:
    """b close to A x for an x with one large entry, so that the others are small."""
    a, _ = of_condition(10.0 ** float(rng.uniform(0, 8)))(rng)
    n = len(a)
    x = rng.standard_normal((n, 1)) * 2.0 ** -rng.integers(0, 60, (n, 1))
    return a, a @ x


def whole_numbers(rng: np.random.Generator) -> System:
    """Short integers and solutions that are integers, zeros among them."""
    n = _size(rng)
    a = rng.integers(-9, 10, (n, n)).astype(float)
    x = rng.integers(-9, 10, (n, 2)) * rng.integers(0, 2, (n, 2))
    return a, a @ x


def ties(rng: np.random.Generator) -> System:
    """A tie between two numbers in one entry beside entries that no float holds."""
    n = int(rng.integers(3, 12))
    a = np.diag(np.where(np.arange(n) > 1, 3.0, 1.0))
    a[:2, :2] = [[1.0, 1.0], [1.0, -1.0]]
    b = rng.integers(1, 9, (n, 1)).astype(float)
    b[:2, 0] = [2.0, 2.0**-52 * rng.choice([1.0, 3.0, 5.0])]
    order = rng.permutation(n)
    return a[order], b[order]


def triangular(rng: np.random.Generator) -> System:
    """Kahan's matrices, whose condition grows like a power of n."""
    n = _size(rng)
    angle = rng.uniform(0.9, 1.5)
    a = np.triu(-np.cos(angle) * np.ones((n, n)), 1) + np.eye(n)
    return np.sin(angle) ** np.arange(n)[:, None] * a, _sides(rng, n)


def tridiagonal(rng: np.random.Generator) -> System:
    """Three diagonals, and a right side of one entry: solutions that decay."""
    n = _size(rng)
    a = 2.5 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    b = np.zeros((n, 1))
    b[0] = rng.standard_normal()
    return a * rng.uniform(0.5, 2.0, (n, n)), b


def complex_system(rng: np.random.Generator) -> System:
    """Complex entries, up to 20 rows, with conditions up to 1e12."""
    n = int(rng.integers(1, 21))
    values = np.logspace(0.0, -float(rng.uniform(0, 12)), n)
    left = np.linalg.qr(_complex(rng, (n, n)))[0]
    right = np.linalg.qr(_complex(rng, (n, n)))[0]
    return left * values @ right, _complex(rng, (n, 2))


def in_single(rng: np.random.Generator) -> System:
    """float32, with conditions up to 1e10."""
    a, b = of_condition(10.0 ** float(rng.uniform(0, 10)))(rng)
    return a.astype(np.float32), b.astype(np.float32)


def complex_in_single(rng: np.random.Generator) -> System:
    """complex64."""
    a, b = complex_system(rng)
    return a.astype(np.complex64), b.astype(np.complex64)


def stacks(rng: np.random.Generator) -> System:
    """Three matrices of one size and the same right sides for each."""
    n = int(rng.integers(1, 13))
    return rng.standard_normal((3, n, n)), _sides(rng, n)


def extreme(rng: np.random.Generator) -> System:
    """Conditions from 1e15 to 1e25: products of triangular matrices of integers with
    ones on their diagonals, whose inverses are integers.
    """
    n = int(rng.integers(4, 13))
    largest = int(rng.integers(6, 12))
    lower = np.tril(rng.integers(-largest, largest + 1, (n, n)), -1) + np.eye(n)
    upper = np.triu(rng.integers(-largest, largest + 1, (n, n)), 1) + np.eye(n)
    return lower @ upper @ lower.T @ upper.T, _sides(rng, n)


CONDITIONS = {f"condition 1e{k}": of_condition(10.0**k) for k in range(1, 17)}

FAMILIES: dict[str, Callable[[np.random.Generator], System]] = {
    "random": random_system,
    **CONDITIONS,
    "graded over 2^300": graded,
    "graded, right sides too": graded_with_sides,
    "Vandermonde": vandermonde,
    "Pascal": pascal,
    "Hilbert-like": hilbert_like,
    "near singular by an ulp": near_singular,
    "exactly singular": singular,
    "spikes": spikes,
    "near overflow": near_overflow,
    "near underflow": near_underflow,
    "solutions that underflow": underflowing_solution,
    "cancelling right sides": cancelling_sides,
    "whole numbers": whole_numbers,
    "ties": ties,
    "triangular": triangular,
    "tridiagonal": tridiagonal,
    "complex": complex_system,
    "float32": in_single,
    "complex64": complex_in_single,
    "stacks": stacks,
    "condition 1e15 to 1e25": extreme,
}


def large(rng: np.random.Generator) -> System:
    """100 to 300 rows, of conditions from 1 to 1e14, graded by rows and columns."""
    n = int(rng.integers(100, 301))
    values = np.logspace(0.0, -float(rng.uniform(0, 14)), n)
    a = _orthogonal(rng, n) * values @ _orthogonal(rng, n)
    powers = rng.integers(-100, 101, (n, 1)) + rng.integers(-100, 101, n)
    return np.ldexp(a, powers), rng.standard_normal((n, 1))


LARGE = {"n = 100 to 300": large}


# Families of sparse systems, and of systems in units of their own


def laplacian_in_units(rng: np.random.Generator) -> System:
    """D1 K D2, or D K D, K the second difference, with units that grow from row to row."""
    n = int(rng.integers(2, 61))
    rows = _growing(rng, n)
    columns = rows if rng.random() < 0.5 else _growing(rng, n)
    a = 2.0 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    return np.ldexp(a, rows[:, None] + columns), _sides(rng, n)


def random_tridiagonal(rng: np.random.Generator) -> System:
    """Normal entries on three diagonals, half of them in units over 2^60."""
    return _band(rng, 1)


def random_band(rng: np.random.Generator) -> System:
    """Normal entries on five or seven diagonals, half of them in units over 2^60."""
    return _band(rng, int(rng.integers(2, 4)))


def bidiagonal(rng: np.random.Generator) -> System:
    """Ones on the diagonal, and beside it a number from 0.1 to 10^4, or normal numbers
    times it.
    """
    n = int(rng.integers(2, 61))
    beside = np.full(n - 1, 10.0 ** rng.uniform(-1, 4))
    if rng.random() < 0.5:
        beside *= rng.standard_normal(n - 1)
    return np.eye(n) + np.diag(beside, int(rng.choice([-1, 1]))), _sides(rng, n)


def decay_chain(rng: np.random.Generator) -> System:
    """Bateman's equations with rates over 24 powers of ten, or that grow or fall by up
    to a hundred from each to the next, or a step of the implicit Euler method for them.
    """
    n = int(rng.integers(2, 41))
    rates = 10.0 ** rng.uniform(-24, 0, n)
    if rng.random() < 0.5:
        rates = 10.0 ** (rng.uniform(-2, 2) * np.arange(n))
    a = np.diag(rates) - np.diag(rates[:-1], -1)
    if rng.random() < 0.5:
        a = np.eye(n) + 10.0 ** rng.uniform(0, 24) * a
    return a, np.abs(_sides(rng, n))


def sparse(rng: np.random.Generator) -> System:
    """Three entries a row beside a diagonal whose rows are permuted, a third of them in
    units over 2^60, a third with entries over sixteen powers of ten.
    """
    n = _size(rng)
    a = rng.standard_normal((n, n)) * (rng.random((n, n)) < 3 / n)
    a += np.diag(rng.standard_normal(n))
    kind = int(rng.integers(3))
    if kind == 1:
        a = _in_units(rng, a)
    elif kind == 2:
        a = a * 10.0 ** rng.uniform(-8, 8, (n, n))
    return a[rng.permutation(n)], _sides(rng, n)


def random_triangular(rng: np.random.Generator) -> System:
    """Normal entries on and above the diagonal: conditions like 2^n."""
    n = _size(rng)
    a = np.triu(rng.standard_normal((n, n)))
    return a[:, rng.permutation(n)], _sides(rng, n)


SPARSE: dict[str, Callable[[np.random.Generator], System]] = {
    "second differences in units": laplacian_in_units,
    "random tridiagonal": random_tridiagonal,
    "random band": random_band,
    "bidiagonal": bidiagonal,
    "decay chain": decay_chain,
    "sparse, rows permuted": sparse,
    "random triangular, columns permuted": random_triangular,
}


# Families of bands and triangles that are large enough for rows of an inverse


def long_band(rng: np.random.Generator) -> System:
    """Normal entries on up to five diagonals below the main one and above it, half of
    them in units over 2^60.
    """
    n = _length(rng)
    a = _diagonals(rng.standard_normal((n, n)), *rng.integers(0, 6, 2))
    return _in_units(rng, a) if rng.random() < 0.5 else a, _sides(rng, n)


def decaying_band(rng: np.random.Generator) -> System:
    """Dominant diagonals, of which inverses decay down to where numbers end, and right
    sides with one entry.
    """
    n = _length(rng)
    a = _diagonals(rng.uniform(-1.0, 1.0, (n, n)), *rng.integers(1, 4, 2))
    np.fill_diagonal(a, 10.0 ** rng.uniform(0.0, 4.0) * np.abs(a).sum(axis=1))
    b = np.zeros((n, 2))
    b[rng.integers(n, size=2), [0, 1]] = 1.0
    return a, b


def differences(rng: np.random.Generator) -> System:
    """The second difference or its square, of conditions like n^2 and n^4, half of them
    in units that grow from row to row.
    """
    n = _length(rng)
    a = 2.0 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    if rng.random() < 0.5:
        a = a @ a
    if rng.random() < 0.5:
        a = np.ldexp(a, _growing(rng, n)[:, None] + _growing(rng, n))
    return a, _sides(rng, n)


def integer_band(rng: np.random.Generator) -> System:
    """-1 and 1 beside the diagonal, and one integer up to 2 on it, or many; some are
    singular.
    """
    n = _length(rng)
    diagonal = rng.integers(-2, 3, n)
    if rng.random() < 0.75:
        diagonal[:] = diagonal[0]
    above, below = rng.choice([-1.0, 1.0], (2, n - 1))
    a = np.diag(diagonal) + np.diag(above, 1) + np.diag(below, -1)
    return a, rng.integers(-3, 4, (n, 1)).astype(float)


def long_triangle(rng: np.random.Generator) -> System:
    """Triangles, upper or lower, of normal or positive numbers, with conditions beyond
    2^n, or factors of elimination and orthogonalisation; a third in units over 2^60.
    """
    n = _length(rng)
    full = rng.standard_normal((n, n))
    kind = int(rng.integers(4))
    if kind == 1:
        full = np.abs(full)
    elif kind == 2:
        full = np.linalg.qr(full)[1]
    elif kind == 3:
        full = np.tril(rng.uniform(-1.0, 1.0, (n, n)), -1) + np.eye(n)
        full = full.T
    a = np.triu(full)
    if rng.random() < 1 / 3:
        a = _in_units(rng, a)
    return a if rng.random() < 0.5 else np.ascontiguousarray(a.T), _sides(rng, n)


BANDED: dict[str, Callable[[np.random.Generator], System]] = {
    "long band": long_band,
    "decaying band": decaying_band,
    "differences": differences,
    "integer band": integer_band,
    "long triangle": long_triangle,
}


def _length(rng: np.random.Generator) -> int:
    return int(rng.integers(64, 129))


def _diagonals(a: Array, lower: int, upper: int) -> Array:
    """A with zeros beyond some diagonals below the main one and above it."""
    return np.triu(np.tril(a, upper), -lower)


def _band(rng: np.random.Generator, width: int) -> System:
    n = _size(rng)
    i = np.arange(n)
    a = rng.standard_normal((n, n)) * (np.abs(i[:, None] - i) <= width)
    return _in_units(rng, a) if rng.random() < 0.5 else a, _sides(rng, n)


def _growing(rng: np.random.Generator, n: int) -> Array:
    """Exponents that change by up to four from each row to the next."""
    return np.rint(rng.uniform(-4, 4) * np.arange(n)).astype(int)


def _in_units(rng: np.random.Generator, a: Array) -> Array:
    n = len(a)
    return np.ldexp(a, rng.integers(-30, 31, (n, 1)) + rng.integers(-30, 31, n))


def _size(rng: np.random.Generator, least: int = 1) -> int:
    """Number of rows; small ones are more frequent."""
    return int(rng.integers(least, 11 if rng.random() < 0.6 else MOST_ROWS + 1))


def _sides(rng: np.random.Generator, n: int) -> Array:
    return rng.standard_normal((n, int(rng.integers(1, 4))))


def _complex(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


def _orthogonal(rng: np.random.Generator, n: int) -> Array:
    return np.linalg.qr(rng.standard_normal((n, n)))[0]
