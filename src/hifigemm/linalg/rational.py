"""Systems, least squares and determinants of fractions, in integers.

Idea
    A column of A times its common denominator, divided by the common divisor of what
    results, holds integers: Z = A T, and c = t b for a right side. Then

        A x = b   if and only if   Z y = c,   x = T y / t,

    and a minimum of |b - A x| is one of |c - Z y|. For m >= n it is the solution of
    Z^T Z y = Z^T c, the normal equations, whose condition does not matter where nothing
    is rounded. For m < n and independent rows, x = A^T z with A A^T z = b is the
    solution of least norm. Z^T Z is singular if and only if columns of Z depend on
    each other, as |Z y|^2 = y^T Z^T Z y.
Minors
    For integers e_j and f_i with |z_ij| < 2^(e_j + f_i), q_ij = ceil(|z_ij| 2^(64 - e_j -
    f_i)) are the entries of a matrix Q >= 2^64 |2^-f Z 2^-e|, and Hadamard's inequality for
    its rows says

        |minor of n columns|^2 < 2^(2 (E + F - 64 n)) prod_i sum_j q_ij^2,

    F the sum of all f_i and E that of the n largest e_j. For leading minors of k rows the
    same holds with the first k of f_i and of the rows, and the k largest e_j. e_j are the
    bits of columns and f_i what rows lack of these: a Gram matrix of columns of all sizes
    has a bound close to the product of its diagonal.
Residues
    Z modulo p_1 p_2 < 2^48 is held by float64, and modulo p_1 and p_2 it is Z. So an
    elimination serves two primes, and `exact` does the rest.
Rounding
    Once, of fractions: x is the number of float64 nearest to the solution, and the
    radius is their distance, rounded upwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hifigemm.base.exceptions import VerificationError
from hifigemm.engines import core
from hifigemm.linalg.arrays import check_finite
from hifigemm.linalg.exact import (
    MOST_ROWS,
    MOST_SECONDS,
    IntegerMatrix,
    nearest,
)
from hifigemm.numerics.bits import Array
from hifigemm.numerics.prime_fields import Eliminated, eliminate

_GUARD = 64
"""Bits of q_ij."""
_SECONDS_OF_REMAINDER = 1e-7, 4e-10
"""Of an integer modulo one of 48 bits, and more for each bit: measured, as all of these,
on a core of an Intel Xeon of 2023 with Python 3.11.
"""
_SECONDS_OF_PAIR = 3e-5
"""Of the calls for two primes."""
_SECONDS_OF_FRACTION = 4e-5, 4e-12
"""Of an entry of a solution, and more for the square of its bits."""
_SECONDS_OF_TERM = 8e-8, 1.2e-12
"""Of a product of two integers and its sum, and more for the square of their bits."""
_ADVICE = (
    "What helps: numbers of float64, such as numpy.asarray(a, float), whose rounding is not in the radius unless "
    "`solve` is told by a_radius and b_radius"
)


@dataclass(frozen=True)
class WideIntegerMatrix(IntegerMatrix):
    """Integers of any size: a = Z = [A B], an array of objects; rows and columns are 0."""

    bits_of_entry: int

    @classmethod
    def of_integers(cls, z: Array) -> WideIntegerMatrix:
        """An n x (n + k) array of Python's integers, n > 0."""
        sizes = [[abs(x).bit_length() for x in row] for row in z.tolist()]
        largest = max(map(max, sizes))
        zeros = np.zeros(len(z)), np.zeros(z.shape[1])
        return cls(z, *zeros, _bits_of_minors(z.tolist(), sizes), largest)

    @property
    def seconds(self) -> float:
        """About the time of one core that an elimination takes, and its residues and
        results.
        """
        n, width = self.a.shape
        pairs = self.num_primes // 2
        constant, of_bit = _SECONDS_OF_REMAINDER
        of_remainders = n * width * (constant + of_bit * self.bits_of_entry)
        constant, of_square = _SECONDS_OF_FRACTION
        of_fractions = n * (width - n) * (constant + of_square * self.bits**2)
        of_pairs = pairs * (of_remainders + _SECONDS_OF_PAIR)
        return of_pairs + of_fractions + self._seconds_of(pairs)

    def _eliminated(self, primes: Array, roots: Array) -> Eliminated:
        """The elimination modulo each prime, of an even number of them."""
        run = core.override(eliminate)
        parts = []
        for p, q in primes.reshape(-1, 2).tolist():
            residues = (self.a % (p * q)).astype(float)
            pair = np.array([p, q], float)
            parts.append(run(residues, self.rows, self.columns, pair, np.zeros(2)))
        return Eliminated(*(np.concatenate(x, axis=-1) for x in zip(*parts)))


def _bits_of_minors(z: list[list[int]], sizes: list[list[int]]) -> int:
    """b, so that minors of n columns, and of leading rows, are below 2^b."""
    columns = [max(column) for column in zip(*sizes)]
    largest_columns = sorted(columns, reverse=True)
    exponent = 0
    product = 1
    bits = 0
    for row, row_sizes, column in zip(z, sizes, largest_columns):
        # Rows of zeros are left out: minors with one of them are zero
        if not any(row):
            continue
        lack = max(x - e for x, e in zip(row_sizes, columns) if x)
        quotients = [_scaled(x, _GUARD - e - lack) for x, e in zip(row, columns)]
        product *= sum(q * q for q in quotients)
        exponent += column + lack - _GUARD
        bits = max(bits, exponent + -(-product.bit_length() // 2))
    return bits


def _scaled(x: int, exponent: int) -> int:
    """|x| 2^exponent, rounded upwards."""
    return abs(x) << exponent if exponent >= 0 else -(-abs(x) >> -exponent)


def solved(a: Array, b: Array) -> tuple[Array, Array]:
    """x with A x = b and its radius, n x n and n x k fractions.

    Raises VerificationError: A is singular, entries are Inf or NaN, the integers would
    take too long, or float64 does not hold x.
    """
    _check_finite(a=a, b=b)
    z, scales = _integer_columns(a)
    c, scales_of_c = _integer_columns(b)
    y = _solution(z, c)
    if y is None:
        raise VerificationError(
            f"the matrix ({len(a)} x {len(a)}) of fractions is singular: its determinant is 0"
        )
    return _rounded(scales[:, None] * y / scales_of_c)


def least_squares(a: Array, b: Array) -> tuple[Array, Array]:
    """The x that minimises |b - A x|, or of least norm with A x = b, and its radius; m x n
    and m x k fractions.

    Raises VerificationError: A has no full rank, and as `solved`.
    """
    _check_finite(a=a, b=b)
    m, n = a.shape
    z, scales = _integer_columns(a if m >= n else a.T)
    right = b if m >= n else scales[:, None] * b
    c, scales_of_c = _integer_columns(right)
    _check_products(z, c)
    y = _solution(z.T @ z, z.T @ c if m >= n else c)
    if y is None:
        product = "A^T A" if m >= n else "A A^T"
        raise VerificationError(
            f"the matrix ({m} x {n}) of fractions has no full rank: the determinant of {product} is 0"
        )
    x = scales[:, None] * y if m >= n else z @ y
    return _rounded(x / scales_of_c)


def determinant(a: Array) -> Fraction:
    """det A of n x n fractions; errors as of `solved`."""
    if len(a) == 0:
        return Fraction(1)
    _check_finite(a=a)
    z, scales = _integer_columns(a)
    real, _ = _affordable(z).determinant()
    return real / math.prod(scales.tolist())


def _check_finite(**operands: Array) -> None:
    """Raise VerificationError for Inf and NaN, which are floats among fractions."""
    for name, x in operands.items():
        floats = [y if isinstance(y, float) else 0.0 for y in x.ravel().tolist()]
        check_finite(**{name: np.array(floats)})


def _integer_columns(a: Array) -> tuple[Array, Array]:
    """(Z, t) with Z = A diag(t), integers without a common divisor in each column."""
    m, n = a.shape
    z = np.zeros((m, n), object)
    scales = np.ones(n, object)
    for j, column in enumerate(a.T.tolist()):
        common = math.lcm(*(x.denominator for x in column))
        integers = [x.numerator * (common // x.denominator) for x in column]
        divisor = math.gcd(*integers) or 1
        z[:, j] = [x // divisor for x in integers]
        scales[j] = Fraction(common, divisor)
    return z, scales


def _check_products(z: Array, c: Array) -> None:
    """Raise VerificationError where Z^T Z and Z^T c would take too long."""
    m, n = z.shape
    terms = m * n * (n + c.shape[1])
    largest = max((abs(x).bit_length() for x in z.ravel().tolist()), default=0)
    constant, of_square = _SECONDS_OF_TERM
    seconds = terms * (constant + of_square * largest * largest)
    if seconds > MOST_SECONDS:
        raise VerificationError(
            f"the normal equations of integers of {largest} bits ({m} x {n}) have {terms} terms, about {seconds:.2g} "
            f"seconds, of which {MOST_SECONDS:g} are spent. {_ADVICE}"
        )


def _affordable(z: Array) -> WideIntegerMatrix:
    """The matrix of integers, n x (n + k).

    Raises VerificationError: an elimination would take too long.
    """
    if len(z) > MOST_ROWS:
        raise VerificationError(
            f"the matrix has {len(z)} rows of fractions, which are solved in integers up to {MOST_ROWS} rows. {_ADVICE}"
        )
    matrix = WideIntegerMatrix.of_integers(z)
    if not matrix.is_affordable:
        raise VerificationError(
            f"the matrix ({len(z)} x {len(z)}) of fractions takes too long: {matrix.cost}. {_ADVICE}"
        )
    return matrix


def _solution(z: Array, c: Array) -> Array | None:
    """Y with Z Y = C, an array of fractions; None where Z is singular."""
    if len(z) == 0:
        return c
    rows = _affordable(np.concatenate([z, c], axis=1)).solution()
    if rows is None:
        return None
    y = np.zeros(c.shape, object)
    for i, row in enumerate(rows):
        y[i] = row
    return y


def _rounded(exact: Array) -> tuple[Array, Array]:
    """Fractions, each rounded to the nearest number, and the distances, rounded upwards.

    Raises VerificationError: one lies beyond the range of float64.
    """
    x = np.zeros(exact.shape)
    radius = np.zeros(exact.shape)
    double = np.dtype(float)
    for index, value in np.ndenumerate(exact):
        x[index] = close = nearest(value, double)
        if math.isfinite(close):
            gap = abs(value - Fraction(close))
            radius[index] = np.nextafter(nearest(gap, double), np.inf) if gap else 0.0
    beyond = int(np.count_nonzero(~np.isfinite(x)))
    if beyond:
        raise VerificationError(
            f"{beyond} of {x.size} entries of x lie beyond the range of float64"
        )
    return x, radius
