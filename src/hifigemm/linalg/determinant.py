"""det: the sign of a determinant, and two numbers between which it lies.

Idea
    P A = L U + F, with L and U the factors that elimination returns, whatever their
    errors, and F = P A - L U rounded once. Then

        det A = +- (u_11 u_22 ... u_nn) / det(I - K),   K = A^-1 P^T F,

    K being small, and enclosed entry by entry by the certificate of A, as the solution
    of a system whose right sides are the columns of P^T F.
Bounds
    The product of the diagonal is made in integers. With k >= the norm of K, k < 1,

        |log det(I - K) + tr K| <= sum over j >= 2 of n k^j / j <= n k^2 / (2 (1 - k)),

    as |tr K^j| <= n k^j. det(I - t K) is no zero for t from 0 to 1, so the sign is that
    of the product and of P.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from hifigemm.exceptions import VerificationError
from hifigemm.linalg.arguments import check_one_matrix, verifying, wide_operands
from hifigemm.linalg.arrays import (
    check_finite,
    correct_residual,
    diagonal,
    numbers,
    pivoted_factors,
    to_device_of,
    to_host,
)
from hifigemm.linalg.certificate import Certificate, Residual
from hifigemm.linalg.exact import nearest
from hifigemm.linalg.inverse import certified_system
from hifigemm.linalg.upward import above, gamma, moduli
from hifigemm.numerics.bits import Array
from hifigemm.transforms import opaque

_EXP_ERROR = 2.0**-50
"""More than the relative error of the C library's exp, of one unit in the last place,
and of the roundings of its argument, which is less than 1.
"""
_LARGEST_EXPONENT = 1000
"""Beyond it, and below its negative, bounds get an exponent of their own."""


@dataclass(frozen=True)
class Determinant:
    """lower <= det A / 2^exponent <= upper, both bounds of the sign that is proven.

    Attributes
    ----------
    sign : int
        1 or -1.
    lower, upper : float
    exponent : int
        0 wherever float64 holds the determinant.
    """

    sign: int
    lower: float
    upper: float
    exponent: int = 0


@opaque
def det(a: Any) -> Determinant:
    """The determinant of a real matrix: its sign, and bounds.

    Parameters
    ----------
    a : array_like
        Shape (n, n), float32, float64 or integers that float64 holds.

    Returns
    -------
    Determinant
        ``.sign``, ``.lower``, ``.upper`` and ``.exponent``:
        lower <= det A / 2^exponent <= upper.

    Raises
    ------
    VerificationError
        The matrix is singular, or so close to a singular one that its sign cannot be
        told: from a condition of about 1e15 on.
    LinAlgError, TypeError, ValueError
        No square matrix; complex entries; arrays that JAX traces.

    Examples
    --------
    >>> import hifigemm.linalg
    >>> d = hifigemm.linalg.det([[1.0, 2.0], [3.0, 4.0]])
    >>> d.sign, d.lower <= -2.0 <= d.upper
    (-1, True)
    """
    operands = wide_operands(a=a)
    (a,) = operands.arrays
    check_one_matrix(a)
    if a.dtype.kind == "c":
        raise TypeError(f"a has dtype {operands.dtype}; det takes real matrices")
    with verifying(operands.library):
        check_finite(a=a)
        return _determinant(a)


def _determinant(a: Array) -> Determinant:
    n = len(a)
    certified = certified_system(a, np.zeros((n, 0), like=a))
    system = certified.system

    # P A - L U, rounded once, with its rows in the order of A
    lower, upper, order = pivoted_factors(system.a)
    rows = to_device_of(a, order)
    gaps = correct_residual(lower, upper, system.a[rows])
    unordered = gaps[to_device_of(a, np.argsort(order))]

    trace, error = _log_of_quotient(certified.certificate, unordered)
    product = _product_of_diagonal(upper) * sign_of(order)
    product *= Fraction(2) ** -int(system.determinant_exponent)
    return _bounds(product, trace, error)


def sign_of(order: Array) -> int:
    """1 for an even permutation, -1 for an odd one."""
    places = order.tolist()
    sign = 1
    for k in range(len(places)):
        while places[k] != k:
            target = places[k]
            places[k], places[target] = places[target], places[k]
            sign = -sign
    return sign


def _log_of_quotient(certificate: Certificate, gaps: Array) -> tuple[float, float]:
    """(t, e) with |t + log det(I - K)| <= e: t is the trace of K.

    K = R F + G K, so |K - d| is at most the error of d = fl(R F) and |G| |K|.

    Raises VerificationError: the norm of K is not known to be less than 1.
    """
    n = len(gaps)
    d, y = certificate.update(Residual([gaps]))
    sizes = certificate.radius(y)
    (norm,) = numbers(above(sizes.sum(axis=1), n).max(initial=0.0))
    if not norm < 1.0:
        raise VerificationError(
            f"the sign of the determinant cannot be told: the change of the matrix that its factors need is {norm:.2g} "
            f"of what may make it singular, and has to be less than 1 (estimated condition {certificate.condition:.1e})"
        )

    # Errors of the diagonal: those of R F, |G| |K|, and the sum of n terms
    errors = above(y - moduli(d), 1) + certificate.contraction(sizes)
    of_sum = gamma(n) * np.abs(diagonal(d)).sum()
    of_series = n * norm * norm / (2.0 * (1.0 - norm))
    error = above(diagonal(errors).sum() + of_sum + of_series, n + 8)
    trace, bound = numbers(diagonal(d).sum(), error)
    return trace, bound


def _product_of_diagonal(upper: Array) -> Fraction:
    """The exact product of the pivots."""
    numerator = 1
    denominator_bits = 0
    for pivot in to_host(diagonal(upper)).tolist():
        above_line, below_line = pivot.as_integer_ratio()
        numerator *= above_line
        denominator_bits += below_line.bit_length() - 1
    return numerator / Fraction(2) ** denominator_bits


def _bounds(product: Fraction, trace: float, error: float) -> Determinant:
    """The enclosure product exp(trace -+ error), rounded outward."""
    sign = 1 if product > 0 else -1
    size = abs(product)
    least, most = Fraction(0), Fraction(0)
    if error + abs(trace) < 1.0:
        least = Fraction(math.exp(trace - error) * (1.0 - _EXP_ERROR))
        most = Fraction(math.exp(trace + error) * (1.0 + _EXP_ERROR))
    if not least > 0 or size == 0:
        raise VerificationError(
            f"the determinant is known to a factor of exp({abs(trace) + error:.2g}) alone"
        )

    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if abs(exponent) <= _LARGEST_EXPONENT:
        exponent = 0
    size /= Fraction(2) ** exponent
    smaller = np.nextafter(nearest(size * least, np.dtype(float)), 0.0)
    larger = np.nextafter(nearest(size * most, np.dtype(float)), np.inf)
    if sign > 0:
        return Determinant(sign, float(smaller), float(larger), exponent)
    return Determinant(sign, -float(larger), -float(smaller), exponent)
