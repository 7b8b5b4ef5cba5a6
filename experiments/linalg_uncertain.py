"""Does a solution of uncertain data ever lie outside of its radius, and are radii larger
than need be? Counts by family of systems.

    python -m experiments.linalg_uncertain [--boxes 600] [--seconds 300]
        [--output results/linalg_uncertain.csv]

A box is (A, b) with radii of its entries. Its systems are drawn at its corners, for
complex data with differences on the circles of their radii, and solved in fractions: for
each entry of x the two that change it most to first order, and random ones; all corners of
up to two rows. Each third box is one of `inv`. n is 1 to 8.

- missed: entries of these solutions outside of their radius;
- singular: boxes with a singular matrix in them by construction, and `proven singular`
  how many of these were proven nonsingular, or nonsingular up to it;
- refused: boxes without a proof. They are solved again with radii times the factor of
  the refusal, and `factor failed` is where that is no proof either;
- ratio: the radius over the largest change of an entry at the corners. `small` is for
  boxes whose first-order change of the largest entry of x is below 1e-6 of it, `large`
  for all others. An entry counts where its change is above 2^-30 of itself (2^-10 of float32),
  so that the rounding of x is no part of the ratio.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import flint
import numpy as np

import hifigemm.linalg as verified
from experiments.systems import Array
from hifigemm.workshop.environment import write_csv

SEED = 43
MOST_ROWS = 8
RANDOM_CORNERS = 6
SMALL = 1e-6
"""First-order changes of x, relative to its largest entry."""
VISIBLE = {np.dtype(np.float64): 2.0**-30, np.dtype(np.float32): 2.0**-10}
"""Changes of an entry, relative to it, beside which the rounding of x is small."""
CIRCLE_BITS = 20
"""Of the tangents of half the angles at which complex differences are drawn."""


class Box(NamedTuple):
    """Data with radii of their entries."""

    a: Array
    b: Array
    a_radius: Array
    b_radius: Array
    is_singular: bool = False


# Families


def sized(
    rng: np.random.Generator, a: Array, b: Array, least: float = -36.0
) -> tuple[Array, Array]:
    """Radii of a part of each entry, 2^-1 down to 2^least, with noise of their own."""
    share = 2.0 ** rng.uniform(least, -1.0)
    a_radius = share * np.abs(a) * rng.uniform(0.0, 1.0, a.shape)
    b_radius = share * np.abs(b) * rng.uniform(0.0, 1.0, b.shape)
    return a_radius, b_radius


def rows(rng: np.random.Generator, least: int = 1) -> int:
    """A number of rows."""
    return int(rng.integers(least, MOST_ROWS + 1))


def random_box(rng: np.random.Generator) -> Box:
    """Normal entries."""
    n = rows(rng)
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, 2))
    return Box(a, b, *sized(rng, a, b))


def one_radius(rng: np.random.Generator) -> Box:
    """One radius for all entries of A, another for b."""
    n = rows(rng)
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, 1))
    share = 2.0 ** rng.uniform(-36.0, -3.0, 2)
    return Box(a, b, np.full((n, n), share[0]), np.full((n, 1), share[1]))


def hilbert_like(rng: np.random.Generator) -> Box:
    """1 / (i + j + c), with radii down to 2^-70 of the entries."""
    n = rows(rng, least=2)
    i = np.arange(n)
    a = 1.0 / (1.0 + i[:, None] + i + rng.uniform(0.0, 2.0))
    b = rng.standard_normal((n, 1))
    return Box(a, b, *sized(rng, a, b, -70.0))


def in_two_words(rng: np.random.Generator) -> Box:
    """Conditions up to 1e28: products of triangular matrices of integers, with radii down
    to 2^-110 of the entries.
    """
    n = rows(rng, least=6)
    largest = int(rng.integers(6, 20))
    lower = np.tril(rng.integers(-largest, largest + 1, (n, n)), -1) + np.eye(n)
    upper = np.triu(rng.integers(-largest, largest + 1, (n, n)), 1) + np.eye(n)
    a = lower @ upper @ lower.T @ upper.T
    b = rng.standard_normal((n, 1))
    return Box(a, b, *sized(rng, a, b, -110.0))


def graded(rng: np.random.Generator) -> Box:
    """Rows and columns in units over 2^200, radii in the same units."""
    box = random_box(rng)
    n = len(box.a)
    of_rows = rng.integers(-100, 101, (n, 1))
    powers = of_rows + rng.integers(-100, 101, n)
    return Box(
        np.ldexp(box.a, powers),
        np.ldexp(box.b, of_rows),
        np.ldexp(box.a_radius, powers),
        np.ldexp(box.b_radius, of_rows),
    )


def graded_radii(rng: np.random.Generator) -> Box:
    """Normal entries whose radii are graded over 2^40, but only as far as an inverse lets
    them.
    """
    n = rows(rng)
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, 1))
    grades = 2.0 ** rng.uniform(-20.0, 20.0, n)
    shape = grades[:, None] / grades * rng.uniform(0.0, 1.0, (n, n))
    radius = max(np.abs(np.linalg.eigvals(np.abs(np.linalg.inv(a)) @ shape)))
    share = 2.0 ** rng.uniform(-30.0, 0.5) / radius
    return Box(a, b, share * shape, np.abs(b) * 2.0 ** rng.uniform(-30.0, 0.0))


def m_matrix(rng: np.random.Generator) -> Box:
    """Positive on the diagonal, negative or zero elsewhere, with dominant rows."""
    n = rows(rng)
    a = -rng.uniform(0.0, 1.0, (n, n)) * (rng.random((n, n)) < 0.6)
    np.fill_diagonal(a, 0.0)
    a += np.diag(np.abs(a).sum(axis=1) + rng.uniform(0.01, 1.0, n))
    b = np.abs(rng.standard_normal((n, 1)))
    return Box(a, b, *sized(rng, a, b))


def zeros_with_radii(rng: np.random.Generator) -> Box:
    """Zeros among the entries, with radii, and entries without."""
    n = rows(rng)
    a = rng.standard_normal((n, n)) * (rng.random((n, n)) < 0.4)
    a += np.diag(rng.choice([-2.0, 2.0], n))
    b = rng.standard_normal((n, 2)) * (rng.random((n, 2)) < 0.5)
    share = 2.0 ** rng.uniform(-36.0, -2.0)
    a_radius = share * rng.uniform(0.0, 1.0, (n, n)) * (rng.random((n, n)) < 0.7)
    b_radius = share * rng.uniform(0.0, 1.0, (n, 2)) * (rng.random((n, 2)) < 0.7)
    return Box(a, b, a_radius, b_radius)


def near_underflow(rng: np.random.Generator) -> Box:
    """Normal entries times 2^-1000, radii down to subnormal numbers."""
    box = random_box(rng)
    return Box(*(np.ldexp(x, -1000) for x in box[:4]))


def singular(rng: np.random.Generator) -> Box:
    """Boxes with a singular matrix of integers in their surface or inside."""
    n = rows(rng)
    left = rng.integers(-9, 10, (n, n - 1)).astype(float)
    matrix = left @ rng.integers(-9, 10, (n - 1, n))
    change = np.ldexp(rng.integers(-64, 65, (n, n)), -int(rng.integers(0, 30)))
    a = matrix + change
    b = rng.standard_normal((n, 1))
    return Box(a, b, np.abs(change), np.abs(b) * 2.0**-20, is_singular=True)


def in_single(rng: np.random.Generator) -> Box:
    """float32."""
    box = random_box(rng)
    return Box(*(x.astype(np.float32) for x in box[:4]))


def complex_box(rng: np.random.Generator) -> Box:
    """Complex entries, half of them with real right sides."""
    n = rows(rng)
    a = rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))
    b = rng.standard_normal((n, 1)) + 0j
    if rng.random() < 0.5:
        b = b + 1j * rng.standard_normal((n, 1))
    return Box(a, b, *sized(rng, a, b))


FAMILIES: dict[str, Callable[[np.random.Generator], Box]] = {
    "random": random_box,
    "one radius": one_radius,
    "Hilbert-like": hilbert_like,
    "condition up to 1e28": in_two_words,
    "graded over 2^200": graded,
    "graded radii": graded_radii,
    "M-matrices": m_matrix,
    "zeros with radii": zeros_with_radii,
    "near underflow": near_underflow,
    "singular in the box": singular,
    "float32": in_single,
    "complex": complex_box,
}


# Systems at the corners of a box, in fractions

Rational = tuple[Fraction, Fraction]
"""A complex number."""
Matrix = list[list[Rational]]


def directions(box: Box) -> Iterator[tuple[Array, Array]]:
    """Numbers of modulus 1, or nearly so, by which radii of A and b are multiplied."""
    shapes = box.a.shape, box.b.shape
    is_complex = box.a.dtype.kind == "c"
    n, k = box.b.shape
    if n <= 2 and not is_complex:
        count = n * n + n * k
        for signs in itertools.product((-1.0, 1.0), repeat=count):
            row = np.array(signs)
            yield row[: n * n].reshape(shapes[0]), row[n * n :].reshape(shapes[1])
        return

    # The two that change entry (i, j) most: dA = -s_i^H phase(x_j)^H Da, db = s_i^H db
    inverse, x = inverse_and_solution(box)
    for i, j in np.ndindex(x.shape):
        left = phases(inverse[i]).conj()[:, None]
        right = phases(x[:, j]).conj()
        for sign in (-1.0, 1.0):
            yield -sign * left * right, sign * left * np.ones((1, k))
    rng = np.random.default_rng(n)
    for _ in range(RANDOM_CORNERS):
        if is_complex:
            angles = [rng.uniform(0.0, 2.0 * np.pi, shape) for shape in shapes]
            yield np.exp(1j * angles[0]), np.exp(1j * angles[1])
        else:
            signs_of_a, signs_of_b = (rng.choice([-1.0, 1.0], s) for s in shapes)
            yield signs_of_a, signs_of_b


def phases(z: Array) -> Array:
    """z / |z|, 1 for zeros."""
    sizes = np.abs(z)
    return np.where(sizes > 0.0, z / np.where(sizes > 0.0, sizes, 1.0), 1.0)


def on_circle(direction: complex, is_complex: bool) -> Rational:
    """A rational point of the unit circle close to a direction; 1 or -1 for real data."""
    if not is_complex:
        return Fraction(1 if direction.real > 0.0 else -1), Fraction(0)
    if direction.real < 0.0:
        re, im = on_circle(-direction, is_complex)
        return -re, -im
    tangent = np.tan(np.angle(direction) / 2.0)
    t = Fraction(round(float(tangent) * 2**CIRCLE_BITS), 2**CIRCLE_BITS)
    return (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)


def corner(x: Array, radius: Array, direction: Array) -> Matrix:
    """x + radius times the directions."""
    is_complex = x.dtype.kind == "c"
    matrix = []
    for row in range(x.shape[0]):
        entries = []
        for column in range(x.shape[1]):
            entry = complex(x[row, column])
            size = Fraction(float(radius[row, column]))
            re, im = on_circle(complex(direction[row, column]), is_complex)
            entries.append(
                (Fraction(entry.real) + size * re, Fraction(entry.imag) + size * im)
            )
        matrix.append(entries)
    return matrix


def solved(a: Matrix, b: Matrix) -> Matrix | None:
    """A^-1 b; None for a singular A. A complex system is the real one of [Re -Im; Im Re]."""
    n, k = len(a), len(b[0])
    is_complex = any(im for row in (*a, *b) for _, im in row)
    left = [[re for re, _ in row] for row in a]
    right = [[re for re, _ in row] for row in b]
    if is_complex:
        upper = [[*(re for re, _ in row), *(-im for _, im in row)] for row in a]
        lower = [[*(im for _, im in row), *(re for re, _ in row)] for row in a]
        left = upper + lower
        right = right + [[im for _, im in row] for row in b]
    try:
        x = in_flint(left).solve(in_flint(right))
    except ZeroDivisionError:
        return None
    values = [[Fraction(int(v.p), int(v.q)) for v in row] for row in x.tolist()]
    if not is_complex:
        return [[(v, Fraction(0)) for v in row] for row in values]
    return [[(values[i][j], values[n + i][j]) for j in range(k)] for i in range(n)]


def in_flint(rows: list[list[Fraction]]) -> Any:
    """A matrix of python-flint."""
    entries = [flint.fmpq(v.numerator, v.denominator) for row in rows for v in row]
    return flint.fmpq_mat(len(rows), len(rows[0]), entries)


def distance_squared(number: complex, exact: Rational) -> Fraction:
    """|number - exact|^2."""
    re = Fraction(number.real) - exact[0]
    im = Fraction(number.imag) - exact[1]
    return re * re + im * im


# Counts


COUNTED = (
    "boxes",
    "singular",
    "refused",
    "factor failed",
    "proven singular",
    "vertex systems",
    "missed",
    "two words",
)


class Counts:
    """The line of one family."""

    def __init__(self) -> None:
        self.numbers = dict.fromkeys(COUNTED, 0)
        self.ratios: dict[str, list[float]] = {"small": [], "large": []}

    def add(self, box: Box, is_inverse: bool) -> None:
        """Solve and judge one box."""
        if is_inverse:
            identity = np.eye(len(box.a), dtype=box.a.dtype)
            box = box._replace(b=identity, b_radius=np.zeros(identity.shape))
        self.numbers["boxes"] += 1
        self.numbers["singular"] += box.is_singular
        try:
            solution, words = solution_of(box, is_inverse)
        except verified.VerificationError as error:
            self.numbers["refused"] += 1
            self._add_refused(box, error.proven_factor, is_inverse)
            return
        self.numbers["proven singular"] += box.is_singular
        self.judge(box, solution, words)

    def _add_refused(self, box: Box, factor: float | None, is_inverse: bool) -> None:
        """What the refusal says is proven is judged like any other box."""
        if not factor:
            return
        self.numbers["proven singular"] += box.is_singular and factor >= 1.0
        smaller = box._replace(a_radius=box.a_radius.astype(float) * factor)
        try:
            solution, words = solution_of(smaller, is_inverse)
        except verified.VerificationError as error:
            # Not where only the bounds of x lie beyond the range
            self.numbers["factor failed"] += error.proven_factor is not None
            return
        self.judge(smaller, solution, words)

    def judge(self, box: Box, solution: verified.VerifiedSolution, words: int) -> None:
        """Compare a solution with those of the corners."""
        self.numbers["two words"] += words == 2
        largest = np.zeros(solution.x.shape)
        limits = [[Fraction(float(r)) ** 2 for r in row] for row in solution.radius]
        for of_a, of_b in directions(box):
            a = corner(box.a, box.a_radius, of_a)
            exact = solved(a, corner(box.b, box.b_radius, of_b))
            self.numbers["vertex systems"] += 1
            if exact is None:
                self.numbers["missed"] += solution.x.size
                continue
            for i, j in np.ndindex(solution.x.shape):
                square = distance_squared(complex(solution.x[i, j]), exact[i][j])
                self.numbers["missed"] += square > limits[i][j]
                largest[i, j] = max(largest[i, j], root(square))

        sizes = np.abs(solution.x).astype(float)
        change = first_order_change(box)
        kind = "small" if change.max() <= SMALL * sizes.max() else "large"
        is_visible = largest > VISIBLE[solution.radius.dtype] * sizes
        ratios = solution.radius[is_visible].astype(float) / largest[is_visible]
        self.ratios[kind].extend(ratios.tolist())

    def row(self) -> dict[str, Any]:
        """What the table says of a family."""
        line: dict[str, Any] = dict(self.numbers)
        for kind, ratios in self.ratios.items():
            line[f"entries of {kind} boxes"] = len(ratios)
            line[f"median ratio, {kind}"] = float(np.median(ratios)) if ratios else ""
            line[f"largest ratio, {kind}"] = max(ratios, default="")
        return line


def solution_of(box: Box, is_inverse: bool) -> tuple[verified.VerifiedSolution, int]:
    """The enclosure of all solutions, and the words of the inverse."""
    if is_inverse:
        solution, report = verified.inv(
            box.a, a_radius=box.a_radius, return_report=True
        )
    else:
        solution, report = verified.solve(
            box.a,
            box.b,
            a_radius=box.a_radius,
            b_radius=box.b_radius,
            return_report=True,
        )
    return solution, report.words


def root(square: Fraction) -> float:
    """The square root of a number that may lie beyond the range of squares."""
    power = (square.numerator.bit_length() - square.denominator.bit_length()) // 2
    return float(np.ldexp(np.sqrt(float(square / Fraction(4) ** power)), power))


def first_order_change(box: Box) -> Array:
    """|A^-1| (db + Da |x|)."""
    inverse, x = inverse_and_solution(box)
    change: Array = np.abs(inverse) @ (box.b_radius + box.a_radius @ np.abs(x))
    return change


def inverse_and_solution(box: Box) -> tuple[Array, Array]:
    """A^-1 and A^-1 b, good to the last digit."""
    dtype = complex if box.a.dtype.kind == "c" else float
    a = box.a.astype(dtype)
    return verified.inv(a).x, verified.solve(a, box.b).x


def main() -> None:
    """Draw, solve, judge and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--boxes", type=int, default=600)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--output", default="results/linalg_uncertain.csv")
    options = parser.parse_args()

    counts = {family: Counts() for family in FAMILIES}
    end = time.monotonic() + options.seconds
    for number in range(options.boxes // len(FAMILIES)):
        if time.monotonic() > end:
            break
        for index, (family, draw) in enumerate(FAMILIES.items()):
            rng = np.random.default_rng([options.seed, number, index])
            counts[family].add(draw(rng), is_inverse=number % 3 == 2)

    lines = [{"family": family, **line.row()} for family, line in counts.items()]
    for line in lines:
        print(*line.values(), sep=", ")
    systems = sum(line["vertex systems"] for line in lines)
    missed = sum(line["missed"] for line in lines)
    print(f"{systems} vertex systems, {missed} entries missed")
    write_csv(options.output, lines, seed=options.seed)


if __name__ == "__main__":
    main()
