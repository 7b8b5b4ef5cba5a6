"""Exact solutions, determinants and definiteness of small matrices by elimination modulo
primes, and their rounding.

Idea
    Rows and columns times powers of two make an integer matrix Z of A. By Hadamard's
    inequality its minors are at most H in modulus, the product of the Euclidean norms of
    its rows, those of zeros left out, and det Z at most the product for its columns as
    well. A minor is given by its residues modulo primes whose product exceeds 2 H, and
    is zero where all of these are [GG13].
Definite
    A Hermitian matrix is positive definite if and only if all leading minors are
    positive (Sylvester), and these are products of pivots of one elimination without
    exchanges. Where a minor vanishes modulo one prime and not modulo another, the first
    one knows nothing of the minors after it, and a new prime takes its place.
Cost
    n^3 / 3 steps for each prime of 24 bits, 0.15 ns each with the compiled core: 20 x 20
    numbers of 53 bits have an H of 1,200 bits and take 56 primes, 64 x 64 take 160.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hifigemm.engines import core
from hifigemm.linalg.upward import above
from hifigemm.numerics.bits import Array, DType
from hifigemm.numerics.prime_fields import (
    PRIME_BITS,
    SIDE_BY_SIDE,
    Eliminated,
    RemainderSystem,
    eliminate,
    primes_from,
    root_of_minus_one,
)

MOST_ROWS = 512
"""Larger matrices are not looked at: of integers of one bit they take a second or more."""
MOST_SECONDS = 2.0
"""Longer eliminations are left."""
_SLOWER = 35.0
"""Times as long a step takes by NumPy."""
_LARGEST = 2**20
"""Above all exponents of entries."""


@dataclass(frozen=True)
class IntegerMatrix:
    """Z = 2^rows [A B] 2^columns, integers, where B are right sides, if any."""

    a: Array  # [A B], n x (n + k), float64 or complex128
    rows: Array  # exponents, float64
    columns: Array
    bits: int  # minors of n columns of Z, and of its leading rows, are below 2^bits

    @classmethod
    def of(cls, a: Array) -> IntegerMatrix | None:
        """The integers of a finite matrix; None for one of too many rows."""
        if len(a) > MOST_ROWS:
            return None
        parts = a.view(np.float64).reshape(*a.shape, -1) if a.size else a[..., None]
        mantissas, exponents = np.frexp(parts)

        # Exponents of the lowest bits of entries: of the sum of re and im
        significands = (mantissas * 2.0**53).astype(np.int64)
        _, trailing = np.frexp(significands & -significands)
        lowest = exponents + trailing - 54
        is_zero = significands == 0
        lowest[is_zero] = _LARGEST
        rows = _upward(lowest.min(axis=(1, 2), initial=_LARGEST))
        lowest += rows[:, None, None]
        columns = _upward(lowest.min(axis=(0, 2), initial=_LARGEST))

        # Norms of rows, and of columns where another group of primes is at stake
        exponents += rows[:, None, None]
        exponents += columns[:, None]
        exponents[is_zero] = -_LARGEST
        bits = _bits_of_product(mantissas, exponents, (1, 2))
        is_square = a.shape[0] == a.shape[1]
        if is_square and bits >= PRIME_BITS * SIDE_BY_SIDE:
            bits = min(bits, _bits_of_product(mantissas, exponents, (0, 2)))
        return cls(a, rows.astype(float), columns.astype(float), bits)

    @property
    def num_primes(self) -> int:
        """About how many primes of 24 bits an elimination takes."""
        groups = (self.bits + 1) // (PRIME_BITS * SIDE_BY_SIDE) + 1
        return groups * SIDE_BY_SIDE

    @property
    def seconds(self) -> float:
        """About the time of one core that an elimination takes, and the integers of a
        result for each row: measured on an Intel Xeon of 2023 with AVX-512.
        """
        images = 2 if self.a.dtype.kind == "c" else 1
        return self._seconds_of(images * self.num_primes / SIDE_BY_SIDE)

    def _seconds_of(self, groups: float) -> float:
        """The time of so many eliminations side by side, and of the results."""
        n, width = self.a.shape
        steps = n * (0.6 * n * width + 8.5 * width + 150.0)
        integers = n * self.num_primes * (150.0 + 0.1 * self.num_primes)
        slower = _SLOWER if core.loaded()[0] is None else 1.0
        return 1e-9 * (slower * groups * steps + integers)

    @property
    def is_affordable(self) -> bool:
        """True if an elimination may be waited for."""
        return self.seconds <= MOST_SECONDS

    @property
    def cost(self) -> str:
        """The cost as messages have it."""
        return (
            f"integers below 2^{self.bits} by Hadamard's bound, {self.num_primes} primes of {PRIME_BITS} bits, "
            f"about {self.seconds:.2g} seconds, of which {MOST_SECONDS:g} are spent"
        )

    def determinant(self) -> tuple[Fraction, Fraction]:
        """det A, re and im."""
        system = RemainderSystem.beyond(self.bits + 1)
        primes = system.primes
        roots = self._roots(primes)
        plus = self._eliminated(primes, roots).determinants.astype(np.int64)
        residues = [plus]
        if self.a.dtype.kind == "c":
            # u + j v and u - j v, whose sum is 2 u; -j is the inverse of j
            minus = self._eliminated(primes, -roots % primes).determinants
            real = (plus + minus.astype(np.int64)) * ((primes + 1) // 2) % primes
            residues = [real, (real - plus) * roots % primes]
        exponent = sum(self.rows.tolist()) + sum(self.columns.tolist())
        numbers = [times_power(x, -int(exponent)) for x in system.integers(residues)]
        return numbers[0], numbers[1] if len(numbers) > 1 else Fraction(0)

    def is_positive_definite(self) -> bool:
        """True if all leading minors of a Hermitian matrix, which are real, are positive."""

        def has_most_minors(eliminated: Eliminated) -> Array:
            counts = np.count_nonzero(eliminated.minors, axis=0)
            most: Array = counts == counts.max()
            return most

        system, eliminated = self._useful(has_most_minors)
        if (eliminated.minors == 0.0).any():
            # Modulo all of the primes
            return False
        return all(minor > 0 for minor in system.integers(eliminated.minors))

    def solution(self) -> list[list[Fraction]] | None:
        """The rows of A^-1 B of a real matrix; None where A is singular."""

        def is_nonsingular(eliminated: Eliminated) -> Array:
            are_zeros: Array = eliminated.determinants == 0.0
            return are_zeros if are_zeros.all() else ~are_zeros

        system, eliminated = self._useful(is_nonsingular)
        (determinant,) = system.integers([eliminated.determinants])
        if determinant == 0:
            return None
        numerators = iter(system.integers(eliminated.numerators))

        # Unknown i has its column's power of two, and the inverse one of its side
        n = len(self.a)
        exponents = self.columns.astype(int).tolist()
        solution = []
        for exponent in exponents[:n]:
            row = []
            for exponent_of_side in exponents[n:]:
                numerator = times_power(next(numerators), exponent - exponent_of_side)
                row.append(numerator / determinant)
            solution.append(row)
        return solution

    def _roots(self, primes: Array) -> Array:
        """Roots of -1 modulo each prime; zeros for a real matrix."""
        if self.a.dtype.kind != "c":
            return np.zeros_like(primes)
        return np.array([root_of_minus_one(p) for p in primes.tolist()])

    def _eliminated(self, primes: Array, roots: Array) -> Eliminated:
        """The elimination modulo each prime."""
        run = core.override(eliminate)
        fields = primes.astype(float), roots.astype(float)
        return run(self.a, self.rows, self.columns, *fields)

    def _useful(
        self, are_useful: Callable[[Eliminated], Array]
    ) -> tuple[RemainderSystem, Eliminated]:
        """The elimination modulo useful primes whose product exceeds 2 H, by one image of
        a complex matrix.
        """
        system = RemainderSystem.beyond(self.bits + 1)
        primes = system.primes
        count = len(primes)
        eliminated = self._eliminated(primes, self._roots(primes))
        useful = are_useful(eliminated)
        if useful.all():
            return system, eliminated

        # Other primes take the places of those that tell nothing
        while True:
            places = np.flatnonzero(useful)
            places = places[: len(places) // 2 * 2]
            primes = primes[places]
            eliminated = Eliminated(*(x[..., places] for x in eliminated))
            if math.prod(primes.tolist()) >> (self.bits + 1):
                return RemainderSystem.of(primes.tolist()), eliminated
            others = primes_from(count, count + SIDE_BY_SIDE)
            count += SIDE_BY_SIDE
            primes = np.concatenate([primes, others])
            pairs = zip(eliminated, self._eliminated(others, self._roots(others)))
            eliminated = Eliminated(*(np.concatenate(pair, axis=-1) for pair in pairs))
            useful = are_useful(eliminated)


def _upward(lowest: Array) -> Array:
    """The powers of two that make integers of rows or columns with these lowest bits; 0
    for those of zeros.
    """
    return np.where(lowest > _LARGEST // 2, 0, -lowest)


def _bits_of_product(mantissas: Array, exponents: Array, axes: tuple[int, int]) -> int:
    """b, so that the product of the norms of rows or columns, of those that are not zero,
    is below 2^b. Norms are sums along two axes.
    """
    largest = exponents.max(axis=axes, keepdims=True, initial=-_LARGEST)
    terms = np.ldexp(mantissas, exponents - largest)
    terms *= terms
    squares = terms.sum(axis=axes).tolist()

    # Squares are at least 1/4, and what underflows is less than a rounding of them
    product = 1.0
    bits_of_square = 0
    for square, exponent in zip(squares, largest.ravel().tolist()):
        if square > 0.0:
            fraction, power = math.frexp(square)
            product *= fraction
            bits_of_square += power + 2 * exponent
    roundings = mantissas.size + 2 * len(squares)
    _, power = math.frexp(above(product, roundings))
    return -(-(bits_of_square + power) // 2)


def times_power(x: int, exponent: int) -> Fraction:
    """x 2^exponent."""
    if exponent < 0:
        return Fraction(x, 1 << -exponent)
    return Fraction(x << exponent)


def integers_of(vector: Array) -> tuple[list[int], int]:
    """Integers and the least e >= 0 with a float64 vector = integers / 2^e."""
    ratios = [x.as_integer_ratio() for x in vector.tolist()]
    # All denominators are powers of two, and divide the largest one
    common = max((denominator for _, denominator in ratios), default=1)
    integers = [
        numerator * (common // denominator) for numerator, denominator in ratios
    ]
    return integers, common.bit_length() - 1


def nearest(value: Fraction, dtype: DType) -> float:
    """The number of a dtype, float64 or float32, that is nearest to a fraction, ties to
    even; Inf beyond its range.
    """
    info = np.finfo(dtype)
    numerator = abs(value.numerator)
    denominator = value.denominator
    if numerator == 0:
        return 0.0

    # 2^exponent <= |value| < 2^(exponent + 1)
    exponent = numerator.bit_length() - denominator.bit_length()
    if numerator << max(-exponent, 0) < denominator << max(exponent, 0):
        exponent -= 1
    unit = max(exponent, int(info.minexp)) - int(info.nmant)

    # Python rounds a fraction to the nearest integer, ties to even
    significand = round(value / Fraction(2) ** unit)
    if abs(significand) >= 1 << max(int(info.maxexp) - unit, 0):
        return float("inf") if value > 0 else float("-inf")
    return float(np.ldexp(float(significand), unit))
