"""Hermitian and rectangular matrices that are hard for bounds of eigenvalues and singular
values, and a judge of such bounds that is exact.

The judge is the characteristic polynomial, in integers. All its roots are real, so the
changes of sign of its coefficients count those that are positive (Descartes), with their
multiplicity, and no root is computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import flint
import numpy as np

Array = np.ndarray[Any, Any]
Family = Callable[[np.random.Generator], Array]

LARGEST = 8
"""Rows and columns."""


def size(rng: np.random.Generator) -> int:
    """A number of rows."""
    return int(rng.integers(1, LARGEST + 1))


def orthonormal(rng: np.random.Generator, m: int, n: int) -> Array:
    """Columns close to orthonormal ones."""
    q: Array = np.linalg.qr(rng.standard_normal((m, n)))[0]
    return q


def normal(rng: np.random.Generator, m: int, n: int) -> Array:
    """Normal entries."""
    return rng.standard_normal((m, n))


def complex_normal(rng: np.random.Generator, m: int, n: int) -> Array:
    """Normal real and imaginary parts."""
    z: Array = normal(rng, m, n) + 1j * normal(rng, m, n)
    return z


def integers(rng: np.random.Generator, m: int, n: int) -> Array:
    """Small integers as floats, of a rank that may be less than m and n."""
    rank = int(rng.integers(1, max(m, n) + 1))
    left = rng.integers(-3, 4, (m, rank))
    product: Array = left @ rng.integers(-3, 4, (rank, n))
    return product.astype(float)


def scattered(rng: np.random.Generator, m: int, n: int) -> Array:
    """Entries of any size that float64 holds."""
    exponents = rng.integers(-1070, 1000, (m, n))
    return np.asarray(np.ldexp(normal(rng, m, n), exponents))


def graded(rng: np.random.Generator, m: int, n: int) -> Array:
    """Rows and columns in units of their own; the same ones if m = n."""
    rows = rng.integers(-30, 31, m)
    columns = rows if m == n else rng.integers(-30, 31, n)
    return np.asarray(complex_normal(rng, m, n) * 2.0 ** (rows[:, None] + columns))


def equal_columns(rng: np.random.Generator, m: int, n: int) -> Array:
    """Columns that occur twice."""
    return normal(rng, m, n)[:, rng.integers(0, n, n)]


def wilkinson(rng: np.random.Generator, n: int, _: int) -> Array:
    """Wilkinson's matrix, whose large eigenvalues come in close pairs."""
    beside = np.ones(n - 1)
    diagonal = np.abs(np.arange(n) - (n - 1) / 2)
    return np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)


def hilbert(rng: np.random.Generator, m: int, n: int) -> Array:
    """Hilbert's matrix, rounded."""
    return np.asarray(1.0 / (1.0 + np.arange(m)[:, None] + np.arange(n)))


def identity(rng: np.random.Generator, m: int, n: int) -> Array:
    """A multiple of the identity, or zero."""
    return np.asarray(rng.choice([0.0, 3.0, 0.1]) * np.eye(m, n))


def of_values(rng: np.random.Generator, m: int, n: int, values: Array) -> Array:
    """A matrix with eigenvalues, if m = n and they have signs, or else singular values,
    close to these.
    """
    count = min(m, n)
    left = orthonormal(rng, m, count)
    right = left if m == n else orthonormal(rng, n, count)
    return np.asarray((left * values[:count]) @ right.T)


def clusters(rng: np.random.Generator, m: int, n: int) -> Array:
    """Values in groups, 2^-k apart within each."""
    centers = rng.choice([1.0, -2.0, 3.0], max(m, n))
    steps = rng.integers(0, 4, len(centers)) * 2.0 ** -rng.uniform(8, 60)
    return of_values(rng, m, n, centers * (1.0 + steps))


def geometric(rng: np.random.Generator, m: int, n: int) -> Array:
    """A geometric series down to 1e-16 of its first number."""
    values = np.geomspace(1.0, 10.0 ** -rng.uniform(0, 16), max(m, n))
    return of_values(rng, m, n, values * rng.choice([1.0, -1.0], len(values)))


def in_units(make: Callable[..., Array], exponent: int) -> Callable[..., Array]:
    """Matrices of a family times 2^exponent, rounded where that is subnormal."""
    return lambda rng, m, n: np.ldexp(make(rng, m, n), exponent)


def as_type(make: Callable[..., Array], dtype: type) -> Callable[..., Array]:
    """Matrices of a family in a dtype."""
    return lambda rng, m, n: make(rng, m, n).astype(dtype)


MATRICES: dict[str, Callable[..., Array]] = {
    "normal": normal,
    "complex": complex_normal,
    "clusters": clusters,
    "geometric series": geometric,
    "integers of low rank": integers,
    "graded, complex": graded,
    "equal columns": equal_columns,
    "Wilkinson": wilkinson,
    "Hilbert": hilbert,
    "multiples of the identity, zero": identity,
    "clusters in 2^900": in_units(clusters, 900),
    "series in 2^900": in_units(geometric, 900),
    "clusters in 2^-900": in_units(clusters, -900),
    "subnormal series": in_units(geometric, -1060),
    "entries of any size": scattered,
    "float32 series": as_type(geometric, np.float32),
    "complex64": as_type(complex_normal, np.complex64),
    "int64": as_type(integers, np.int64),
}


def hermitian(family: str, rng: np.random.Generator) -> Array:
    """A Hermitian matrix with the lower triangle of one of a family."""
    n = size(rng)
    a = MATRICES[family](rng, n, n)
    lower = np.tril(a, -1)
    diagonal: Array = np.diag(np.diag(a).real)
    return lower + lower.conj().T + diagonal


def rectangular(family: str, rng: np.random.Generator) -> Array:
    """A matrix of a family; Wilkinson's are square."""
    m = size(rng)
    n = m if family == "Wilkinson" else size(rng)
    return MATRICES[family](rng, m, n)


class Spectrum:
    """The exact eigenvalues of a Hermitian matrix, or squares of singular values of any."""

    def __init__(self, a: Array, *, is_singular: bool) -> None:
        wide = a.astype(complex if a.dtype.kind == "c" else float)
        parts = [wide.real, wide.imag] if wide.dtype.kind == "c" else [wide]
        blocks = [[Fraction(float(v)) for v in part.ravel()] for part in parts]
        scale = max(v.denominator for block in blocks for v in block)
        rows = [
            np.array([int(v * scale) for v in block], object).reshape(a.shape)
            for block in blocks
        ]

        # [Re -Im; Im Re] has all values twice
        self.copies = len(parts)
        matrix = rows[0]
        if self.copies == 2:
            matrix = np.block([[rows[0], -rows[1]], [rows[1], rows[0]]])
        if is_singular:
            matrix = (
                matrix.T @ matrix if a.shape[0] >= a.shape[1] else matrix @ matrix.T
            )
        self.is_singular = is_singular
        self.scale = scale
        n = len(matrix)
        self.count = n // self.copies
        self.polynomial = flint.fmpz_mat(n, n, list(matrix.ravel())).charpoly()

    def beyond(self, x: Fraction) -> tuple[int, int]:
        """How many values are greater than x, and how many are no less."""
        if self.is_singular and x < 0:
            return self.count, self.count
        point = (x * self.scale) ** (2 if self.is_singular else 1)
        shift = flint.fmpq_poly([flint.fmpq(point.numerator, point.denominator), 1])
        coefficients = flint.fmpq_poly(self.polynomial)(shift).coeffs()
        signs = [(c > 0) - (c < 0) for c in coefficients]
        zeros = next(i for i, sign in enumerate(signs) if sign)
        nonzero = [sign for sign in signs if sign]
        changes = sum(left != right for left, right in itertools.pairwise(nonzero))
        return changes // self.copies, (changes + zeros) // self.copies

    def misses(self, values: Array, radius: Array) -> list[int]:
        """Indices of ascending values whose exact ones lie outside of their radius."""
        indices = []
        for i, (value, bound) in enumerate(zip(values.tolist(), radius.tolist())):
            lower = Fraction(value) - Fraction(bound)
            upper = Fraction(value) + Fraction(bound)
            # At most i values are below the interval, and at least i + 1 are not above it
            below = self.count - self.beyond(lower)[1]
            not_above = self.count - self.beyond(upper)[0]
            if below > i or not_above <= i:
                indices.append(i)
        return indices

    def condition_misses(self, lower: float, upper: float) -> bool:
        """True if the quotient of the largest and the least singular value is outside."""
        roots = [root.real for root, _ in self.polynomial.complex_roots()]
        least = min(roots, key=lambda root: root.mid())
        largest = max(roots, key=lambda root: root.mid())
        if least == 0:
            return upper != np.inf
        quotient = largest / least
        return bool(
            quotient < flint.arb(lower) ** 2 or quotient > flint.arb(upper) ** 2
        )
