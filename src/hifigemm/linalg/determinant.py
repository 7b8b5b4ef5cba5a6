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
Small matrices
    Real matrices of up to 128 rows are eliminated by the compiled core in double words, with
    a bound that tells most determinants between two neighbours of float64; its proof is in
    core/small_factors.c.
Integers
    What is left, and complex matrices and those of up to about 60 rows, are eliminated
    modulo primes: at once where that is quicker, else where the proof fails. Zeros that
    the core does not find are found in no other way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from hifigemm.base.exceptions import VerificationError
from hifigemm.base.transforms import is_traced, needs_gradient, opaque
from hifigemm.engines import core
from hifigemm.linalg.arguments import (
    Answers,
    check_square,
    exact_operands,
    verifying,
)
from hifigemm.linalg.arrays import (
    check_finite,
    correct_residual,
    diagonal,
    numbers,
    pivoted_factors,
    to_device_of,
    to_host,
)
from hifigemm.linalg.certificate import Proof, Residual
from hifigemm.linalg.exact import IntegerMatrix, integers_of, nearest
from hifigemm.linalg.inverse import certified_system
from hifigemm.linalg.rational import determinant
from hifigemm.linalg.upward import above, gamma, moduli
from hifigemm.numerics.bits import Array

_EXP_ERROR = 2.0**-50
"""More than the relative error of the C library's exp, of one unit in the last place,
and of the roundings of its argument, which is less than 1.
"""
_MOST_CONDITION = 2.0**20
"""Above it another scale is worth its price: the width of the enclosure grows with the
square of the condition, and at 2^20 it is below a unit in the last place.
"""
_QUICK_ROWS = 128
"""Larger matrices are no longer looked at for an elimination in integers at once."""
_SECONDS_OF_PROOF = 5e-4, 4e-7
"""About what the certificate takes of one core, and more for each entry: 0.6 ms for 20
rows, 2.1 ms for 64.
"""
_LARGEST_EXPONENT = 1000
"""Beyond it, and below its negative, bounds get an exponent of their own."""


_ADVICE = (
    "Signs are told up to a condition of about 1e15, in integers of any condition; what helps beyond is exact "
    "arithmetic, such as fmpq_mat of python-flint"
)
"""What to do about determinants that cannot be told."""


@dataclass(frozen=True)
class Determinant:
    """``lower <= det A / 2^exponent <= upper``, both bounds of the sign that is proven.

    Attributes
    ----------
    sign : int
        1, -1 or 0.
    lower, upper : float
    exponent : int
        0 wherever float64 holds the determinant.
    """

    sign: Any
    lower: Any
    upper: Any
    exponent: Any = 0


@dataclass(frozen=True)
class ComplexDeterminant:
    """``|det A / 2^exponent - center| <= radius``, which is less than ``|center|``, or
    both are 0 where the determinant is.

    Attributes
    ----------
    center : complex
    radius : float
    exponent : int
        0 wherever float64 holds the determinant.
    """

    center: Any
    radius: Any
    exponent: Any = 0


@opaque
def det(a: Any) -> Determinant | ComplexDeterminant:
    """The determinant: of a real matrix its sign, and bounds, of a complex one a disk.

    Parameters
    ----------
    a : array_like
        Shape (..., n, n), dtype as for `solve`. The determinant of a 0 x 0 matrix is 1.

    Returns
    -------
    Determinant
        ``.sign``, ``.lower``, ``.upper`` and ``.exponent``:
        ``lower <= det A / 2^exponent <= upper``. Of a stack they are arrays of NumPy.
    ComplexDeterminant
        For complex matrices: ``.center``, ``.radius`` and ``.exponent``.

    Raises
    ------
    VerificationError
        The matrix is singular, or so close to a singular one that its sign cannot be
        told, from a condition of about 1e15 on, and is not computed in integers: these
        would take more than two seconds, or it has more than 512 rows. 64 rows of 53 bits
        take 3 ms. Numbers that float64 does not hold, see `solve`, always take integers.
        Of a stack the attribute ``solution`` has what was proven, with NaN and
        a sign of 0 elsewhere.
    LinAlgError, TypeError, ValueError
        No square matrices; arrays that JAX differentiates, and tensors that require
        gradients: bounds have none, `slogdet` has.

    Examples
    --------
    >>> import hifigemm.linalg
    >>> d = hifigemm.linalg.det([[1.0, 2.0], [3.0, 4.0]])
    >>> d.sign, d.lower <= -2.0 <= d.upper
    (-1, True)
    >>> hifigemm.linalg.det([[1.0, 2.0], [2.0, 4.0]])
    Determinant(sign=0, lower=0.0, upper=0.0, exponent=0)
    """
    if needs_gradient(a):
        raise TypeError(
            "a requires a gradient, and the bounds and the exponent of det have none: use slogdet, whose logarithm has "
            "one, or pass a.detach()"
        )
    if is_traced(a):
        from hifigemm.linalg import jax_bounds

        check_square(a)
        if a.dtype.kind == "c":
            return jax_bounds.bounds(det, a, ComplexDeterminant, complex, float, int)
        return jax_bounds.bounds(det, a, Determinant, int, float, float, int)
    operands = exact_operands(a=a)
    (a,) = operands.arrays
    check_square(a)
    stack = a.shape[:-2]
    with verifying(operands.library):
        known = _known_determinants(a)
        if not stack and known.is_known:
            lower, upper = float(known.lower), float(known.upper)
            sign = (lower + upper > 0.0) - (lower + upper < 0.0)
            return Determinant(sign, lower, upper, int(known.exponent))
        left = map(tuple, np.argwhere(~known.is_known).tolist())
        determinant_of = _of_fractions if operands.are_fractions else _determinant
        answers = Answers(stack, lambda index: determinant_of(a[index]), left)
        if not stack and answers.values:
            return answers.values[()]
        is_complex = a.dtype.kind == "c"
        whole = _complex_stack(answers) if is_complex else _real_stack(answers, known)
        answers.check(lambda: whole)
        return whole


def _known_determinants(a: Array) -> core.Neighbours:
    """The determinants of small real matrices that the compiled core knows."""
    neighbours = core.neighbours_of_determinants(a)
    if neighbours is not None:
        return neighbours
    stack = a.shape[:-2]
    nothing = np.zeros(stack)
    return core.Neighbours(np.zeros(stack, bool), nothing, nothing, nothing)


def _real_stack(answers: Answers[Any], known: core.Neighbours) -> Determinant:
    """The determinants of a stack as arrays."""

    def merged(quick: Array, name: str, default: Any, dtype: Any) -> Array:
        others = answers.array(name, default, dtype)
        return np.where(known.is_known, quick, others).astype(dtype)

    return Determinant(
        merged(np.sign(known.lower + known.upper), "sign", 0, int),
        merged(known.lower, "lower", np.nan, float),
        merged(known.upper, "upper", np.nan, float),
        merged(known.exponent, "exponent", 0, int),
    )


def _complex_stack(answers: Answers[Any]) -> ComplexDeterminant:
    """The complex determinants of a stack as arrays."""
    return ComplexDeterminant(
        answers.array("center", np.nan, complex),
        answers.array("radius", np.inf, float),
        answers.array("exponent", 0, int),
    )


def _of_fractions(a: Array) -> Determinant:
    """The determinant of one matrix of fractions."""
    return _neighbours(determinant(a))


def _determinant(a: Array) -> Determinant | ComplexDeterminant:
    """The determinant of one matrix."""
    check_finite(a=a)
    if len(a) == 0:
        # A product of no numbers
        if a.dtype.kind == "c":
            return ComplexDeterminant(1 + 0j, 0.0)
        return Determinant(1, 1.0, 1.0)
    integers = None
    if len(a) <= _QUICK_ROWS:
        integers = IntegerMatrix.of(to_host(a))
        if integers is not None and integers.seconds <= _seconds_of_proof(len(a)):
            return _enclosed(integers)
    try:
        return _proven(a)
    except VerificationError as error:
        integers = integers or IntegerMatrix.of(to_host(a))
        if integers is None:
            raise
        if not integers.is_affordable:
            raise VerificationError(f"{error}. Left out: {integers.cost}") from None
    return _enclosed(integers)


def _seconds_of_proof(n: int) -> float:
    """About what the certificate takes of one core."""
    constant, of_entry = _SECONDS_OF_PROOF
    return constant + of_entry * n * n


def _enclosed(integers: IntegerMatrix) -> Determinant | ComplexDeterminant:
    """The exact determinant, between neighbours of float64 or in a disk."""
    real, imag = integers.determinant()
    if integers.a.dtype.kind == "c":
        return _smallest_disk(real, imag)
    return _neighbours(real)


def _neighbours(value: Fraction) -> Determinant:
    """A determinant between neighbours of float64; lower = upper where it is one."""
    exponent = _exponent_of(value) if value else 0
    if exponent:
        value /= Fraction(2) ** exponent
    close = nearest(value, np.dtype(float))
    lower = upper = close
    gap = value - Fraction(close)
    if gap < 0:
        lower = math.nextafter(close, -math.inf)
    elif gap > 0:
        upper = math.nextafter(close, math.inf)
    sign = (value > 0) - (value < 0)
    return Determinant(sign, lower, upper, exponent)


def _smallest_disk(real: Fraction, imag: Fraction) -> ComplexDeterminant:
    """A determinant and its distance from the nearest number; 0 where it is one."""
    size = abs(real) + abs(imag)
    exponent = _exponent_of(size) if size else 0
    scale = Fraction(2) ** -exponent
    double = np.dtype(float)
    center = complex(nearest(real * scale, double), nearest(imag * scale, double))
    gap = abs(real * scale - Fraction(center.real))
    gap += abs(imag * scale - Fraction(center.imag))
    radius = float(np.nextafter(nearest(gap, double), np.inf)) if gap else 0.0
    return ComplexDeterminant(center, radius, exponent)


def _proven(a: Array) -> Determinant | ComplexDeterminant:
    """The determinant of a matrix by its certificate."""
    n = len(a)
    certified = certified_system(a, np.zeros((n, 0), like=a), _MOST_CONDITION)
    system = certified.system

    # P A - L U, rounded once, with its rows in the order of A
    lower, upper, order = pivoted_factors(system.a)
    rows = to_device_of(a, order)
    gaps = correct_residual(lower, upper, system.a[rows])
    unordered = gaps[to_device_of(a, np.argsort(order))]

    trace, error = _log_of_quotient(certified.certificate, unordered)
    factor = sign_of(order) * Fraction(2) ** -int(system.determinant_exponent)
    real, imag = _product_of_diagonal(upper)
    if a.dtype.kind == "c":
        return _disk(factor * real, factor * imag, trace, error)
    return _bounds(factor * real, trace.real, error)


def sign_of(order: Array) -> int:
    """1 for an even permutation, -1 for an odd one."""
    rows = order.tolist()
    sign = 1
    for k in range(len(rows)):
        # Exchanges bring row k to its place, and each of them changes the sign
        while rows[k] != k:
            target = rows[k]
            rows[k], rows[target] = rows[target], rows[k]
            sign = -sign
    return sign


def _log_of_quotient(certificate: Proof, gaps: Array) -> tuple[complex, float]:
    """(t, e) with |t + log det(I - K)| <= e: t is the trace of K.

    K = R F + G K, so |K - d| is at most the error of d = fl(R F) and |G| |K|.

    Raises VerificationError: the norm of K is not known to be less than 1.
    """
    n = len(gaps)
    d, error_of_d = certificate.update(Residual([gaps]))
    sizes = certificate.radius(moduli(d) + error_of_d)
    (norm,) = numbers(above(sizes.sum(axis=1), n).max(initial=0.0))
    if not norm < 1.0:
        raise VerificationError(
            "the matrix is nonsingular, but the sign of the determinant cannot be told: the backward error of the LU "
            f"factors is {_times(norm)} the distance to singularity; it has to be below 1 (condition about "
            f"{certificate.condition:.0e} after scaling). {_ADVICE}"
        )

    # Errors of the diagonal: those of R F, |G| |K|, and the sum of n terms
    is_complex = d.dtype.kind == "c"
    errors = error_of_d + certificate.contraction(sizes)
    share = 1.5 * gamma(n) if is_complex else gamma(n)
    error_of_sum = share * np.abs(diagonal(d)).sum()
    error_of_series = n * norm * norm / (2.0 * (1.0 - norm))
    error = diagonal(errors).sum() + error_of_sum + error_of_series
    trace = diagonal(d).sum()
    imag_of_trace = trace.imag if is_complex else 0.0 * trace
    real, imag, bound = numbers(trace.real, imag_of_trace, above(error, n + 8))
    return complex(real, imag), bound


def _times(norm: float) -> str:
    """A ratio as messages have it."""
    return f"{norm:.2g} times" if math.isfinite(norm) else "beyond any multiple of"


def _product_of_diagonal(upper: Array) -> tuple[Fraction, Fraction]:
    """The exact product of the pivots, re and im."""
    real = 1
    imag = 0
    denominator_bits = 0
    for pivot in to_host(diagonal(upper)).tolist():
        (x, y), bits = integers_of(np.array([pivot.real, pivot.imag]))
        next_real = real * x - imag * y
        imag = real * y + imag * x
        real = next_real
        denominator_bits += bits
    scale = Fraction(2) ** -denominator_bits
    return real * scale, imag * scale


def _bounds(product: Fraction, trace: float, error: float) -> Determinant:
    """The enclosure product exp(trace -+ error), rounded outward."""
    sign = 1 if product > 0 else -1
    size = abs(product)

    # Bounds of exp(trace -+ error), with room for the rounding of exp; 0 for none.
    lower_factor = Fraction(0)
    upper_factor = Fraction(0)
    if error + abs(trace) < 1.0:
        lower_factor = Fraction(math.exp(trace - error) * (1.0 - _EXP_ERROR))
        upper_factor = Fraction(math.exp(trace + error) * (1.0 + _EXP_ERROR))
    if not lower_factor > 0 or size == 0:
        raise _unknown_factor(abs(trace) + error)

    # Rounded outward, in a unit that float64 holds.
    exponent = _exponent_of(size)
    size /= Fraction(2) ** exponent
    double = np.dtype(float)
    smaller = np.nextafter(nearest(size * lower_factor, double), 0.0)
    larger = np.nextafter(nearest(size * upper_factor, double), np.inf)
    if sign > 0:
        return Determinant(sign, float(smaller), float(larger), exponent)
    return Determinant(sign, -float(larger), -float(smaller), exponent)


def _unknown_factor(exponent: float) -> VerificationError:
    """The error of a determinant that is known to a factor of exp(exponent) alone."""
    return VerificationError(
        f"the determinant is known only to a factor of exp({exponent:.2g}); the exponent has to be "
        f"below 1. {_ADVICE}"
    )


def _disk(
    real: Fraction, imag: Fraction, trace: complex, error: float
) -> ComplexDeterminant:
    """A disk around the product times exp(trace), in which the product times exp(t)
    lies for every t with |t - trace| <= error.

    |exp(t) - exp(trace)| <= |exp(trace)| (error + error^2) for errors below 1.
    """
    size = abs(real) + abs(imag)
    if not (error < 1.0 and abs(trace) < 1.0) or size == 0:
        raise _unknown_factor(abs(trace) + error)
    exponent = _exponent_of(size)
    scale = Fraction(2) ** -exponent
    growth = Fraction(math.exp(trace.real))
    cosine = Fraction(math.cos(trace.imag))
    sine = Fraction(math.sin(trace.imag))

    # The center, exactly that of the numbers that exp, cos and sin return, and rounded
    exact_real = (real * cosine - imag * sine) * growth * scale
    exact_imag = (real * sine + imag * cosine) * growth * scale
    double = np.dtype(float)
    center = complex(nearest(exact_real, double), nearest(exact_imag, double))

    # What t may differ by, and the rounding of the center
    share = Fraction(error) + Fraction(error) ** 2 + Fraction(_EXP_ERROR)
    radius = size * growth * scale * share * (1 + Fraction(_EXP_ERROR))
    center_real = Fraction(center.real)
    center_imag = Fraction(center.imag)
    radius += abs(exact_real - center_real) + abs(exact_imag - center_imag)
    if not radius**2 < center_real**2 + center_imag**2:
        raise VerificationError(
            f"the determinant is within {float(radius):.2g} of {center} times 2^{exponent}, and may be zero. {_ADVICE}"
        )
    bound = np.nextafter(nearest(radius, double), np.inf)
    return ComplexDeterminant(center, float(bound), exponent)


def _exponent_of(size: Fraction) -> int:
    """e with size / 2^e in the middle of the range of float64; 0 where size is."""
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    return 0 if abs(exponent) <= _LARGEST_EXPONENT else exponent
