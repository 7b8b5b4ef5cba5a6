"""det: the sign of a determinant, and two numbers between which it lies.

Idea
    P A = L U + F, with L and U the factors that elimination returns, whatever their
    errors, and F = P A - L U rounded once. Then

        det A = +- (u_11 u_22 ... u_nn) / det(I - K),   K = A^-1 P^T F,

    K being small. With the certificate of A, G = I - R A, and B = P^T F,

        K = R B + G K,   k <= |R| f + |G| k,

    f and k being the Euclidean norms of the rows of B and of K: so k is bounded as the
    solution of a system with one right side, and no product of two matrices is needed.
Bounds
    The product of the diagonal is made in integers. With phi >= the Frobenius norm of K,
    phi < 1,

        |log det(I - K) + tr K| <= sum over j >= 2 of phi^j / j <= phi^2 / (2 (1 - phi)),

    as |tr K^j| is at most the sum of |lambda|^j over the eigenvalues of K, hence at most
    phi^j [Sch09]. det(I - t K) is not zero for t from 0 to 1, so the sign follows from the
    product and from P. And tr K = tr(R B) + tr(G K), |tr(G K)| <= e^T |G| k.
Small matrices
    Real matrices of up to 128 rows are eliminated by the compiled core in double words, with
    a bound that puts most determinants between two neighbours of float64; its proof is in
    core/small_factors.c.
Integers
    Other matrices, and complex ones, are eliminated modulo primes where their rows are few:
    at once where that is quicker, otherwise where the proof fails. Zeros that the core does
    not find are found in no other way.

References
----------
    [Sch09] Schur: On the characteristic roots of a linear substitution with an
    application to the theory of integral equations, Math. Ann. 66, 1909
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from hifigemm.base.exceptions import VerificationError
from hifigemm.base.transforms import is_traced, needs_gradient, opaque
from hifigemm.engines.core import Neighbours
from hifigemm.linalg.arguments import (
    Answers,
    check_square,
    exact_operands,
    verifying,
)
from hifigemm.linalg.arrays import (
    LEAST_LENGTH,
    check_finite,
    diagonal,
    numbers,
    to_device_of,
    to_host,
    where_quick,
)
from hifigemm.linalg.certificate import Certificate, prove
from hifigemm.linalg.exact import IntegerMatrix, integers_of, nearest
from hifigemm.linalg.factors import pivoted_factors, residual_of_factors
from hifigemm.linalg.inverse import certified_system
from hifigemm.linalg.minors import is_real_stack, neighbours_of_determinants
from hifigemm.linalg.rational import determinant
from hifigemm.linalg.upward import UNIT, above, gamma, moduli
from hifigemm.numerics.bits import LEAST, Array

_EXP_ERROR = 2.0**-50
"""More than the relative error of the C library's exp, of one unit in the last place, of
the roundings of its argument, which is less than 1, and of the product of the pivots.
"""
_BITS_OF_PRODUCT = 104
"""Of the product of the pivots: more make fractions slow."""
_WIDE = 2.0**-50
"""Of the logarithm: eight units in the last place of the determinant."""
_GUARD = 2.0**48
"""Makes what the product R A adds to |G| a unit in the last place of 1, and less."""
_ROOM = Fraction(1, 2**99)
"""More than the product of the pivots and an exponential err by, relative to themselves."""
_MOST_CONDITION = 2.0**20
"""Above it another scale is worth its price: the width of the enclosure grows with the
square of the condition, and at 2^20 it is below a unit in the last place.
"""
_QUICK_ROWS = 36
"""Of matrices that may be quicker in integers than by a proof, whatever their numbers;
with 53 bits both take 0.3 ms on a core of an Intel Xeon of 2023.
"""
_QUICK_ROWS_OF_SHORT = 128
"""The same for numbers that float32 holds."""
_SECONDS_OF_PROOF = 5e-4, 4e-7
"""What a proof takes, and more for each entry, in the measure of `IntegerMatrix.seconds`,
which counts a result for each row.
"""
_LARGEST_EXPONENT = 1000
"""Beyond it, and below its negative, bounds get an exponent of their own."""


_ADVICE = (
    "Signs are told up to a condition of about 1e15, in integers of any condition; what helps beyond is exact "
    "arithmetic, such as fmpq_mat of python-flint"
)
"""Advice for determinants whose sign cannot be determined."""


@dataclass(frozen=True)
class Determinant:
    """``lower <= det A / 2^exponent <= upper``; both bounds have the proven sign.

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
    """``|det A / 2^exponent - center| <= radius``.

    The radius is less than ``|center|``, or both are 0 and so is the determinant.

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
    """The determinant: sign and bounds for a real matrix, a disk for a complex one.

    Parameters
    ----------
    a : array_like
        Shape (..., n, n), dtype as for `solve`. The determinant of a 0 x 0 matrix is 1.

    Returns
    -------
    Determinant
        ``.sign``, ``.lower``, ``.upper`` and ``.exponent``:
        ``lower <= det A / 2^exponent <= upper``. For a stack they are NumPy arrays.
    ComplexDeterminant
        For complex matrices: ``.center``, ``.radius`` and ``.exponent``.

    Raises
    ------
    VerificationError
        Floating-point arithmetic cannot prove the sign, from a condition of about 1e15
        on, and neither can integers: they would take more than two seconds, or the
        matrix has more than 512 rows. 64 rows of 53 bits take 3 ms. Entries that
        float64 does not hold, see `solve`, always take integers. For a stack the
        attribute ``solution`` has the proven determinants, with NaN and a sign of 0
        elsewhere.
    LinAlgError, TypeError, ValueError
        The matrices are not square. JAX differentiates the array, or the tensor
        requires a gradient: bounds have no gradient; use `slogdet`.

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
    operands = exact_operands(is_real_stack, a=a)
    (a,) = operands.arrays
    check_square(a)
    stack = a.shape[:-2]
    with verifying(operands.library):
        known = neighbours_of_determinants(a)
        if not stack and known.is_known:
            lower, upper = float(known.lower), float(known.upper)
            sign = (lower + upper > 0.0) - (lower + upper < 0.0)
            return Determinant(sign, lower, upper, int(known.exponent))
        left = [*map(tuple, np.argwhere(~known.is_known).tolist())]
        a = where_quick(a) if left else a
        determinant_of = _of_fractions if operands.are_fractions else _determinant
        answers = Answers(stack, lambda index: determinant_of(a[index]), left)
        if not stack and answers.values:
            return answers.values[()]
        is_complex = a.dtype.kind == "c"
        whole = _complex_stack(answers) if is_complex else _real_stack(answers, known)
        answers.check(lambda: whole)
        return whole


def _real_stack(answers: Answers[Any], known: Neighbours) -> Determinant:
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
    if _may_be_quick(a):
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


def _may_be_quick(a: Array) -> bool:
    """True if integers may be quicker than a proof."""
    n = len(a)
    if n <= _QUICK_ROWS or n > _QUICK_ROWS_OF_SHORT:
        return n <= _QUICK_ROWS
    single = np.dtype("F" if a.dtype.kind == "c" else "f")
    (is_short,) = numbers((a.astype(single).astype(a.dtype) == a).all())
    return bool(is_short)


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

    lower, upper, order = pivoted_factors(system.a)
    ordered = system.a[to_device_of(a, order)]
    gaps, errors = residual_of_factors(lower, upper, ordered)

    # A sharper product R A, where the bound of G is what makes the enclosure wide
    certificate = certified.certificate
    trace, error = _log_of_quotient(certificate, gaps, errors, order)
    if error > _WIDE and certificate.accuracy > 0.0:
        certificate = prove(system.a, certificate.inverse, _GUARD)
        trace, error = _log_of_quotient(certificate, gaps, errors, order)
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


def _log_of_quotient(
    certificate: Certificate, gaps: Array, errors: Array, order: Array
) -> tuple[complex, float]:
    """(t, e) with |t + log det(I - K)| <= e for all F with |F - gaps| <= 2 u |gaps| +
    errors: t is the trace of K up to rounding.

    Raises VerificationError: the norm of K is not known to be less than 1.
    """
    n = len(gaps)

    # f, and what rows of K are bounded by
    sizes = moduli(gaps)
    spread = 2.0 * UNIT * sizes + errors
    largest = sizes + spread
    squares = where_quick((largest * largest).sum(axis=1).reshape(-1, 1))
    lengths = above(np.sqrt(squares), n + 8, LEAST_LENGTH)
    places = to_device_of(lengths, np.argsort(order))
    images = certificate.inverse_magnitudes.times(lengths[places])
    underflows = n * LEAST * (1.0 + certificate.inverse_norm)
    rows_of_k = certificate.radius(above(images, n, underflows))
    (square,) = numbers((rows_of_k * rows_of_k).sum())
    norm = above(math.sqrt(square), n + 2, LEAST_LENGTH)
    if not norm < 1.0:
        raise VerificationError(
            "the matrix is nonsingular, but the sign of the determinant cannot be told: the backward error of the LU "
            f"factors is {_times(norm)} the distance to singularity; it has to be below 1 (condition about "
            f"{certificate.condition:.0e} after scaling). {_ADVICE}"
        )

    # tr(R B) = tr(R P^T F), and what it errs by: F does, and the sums of its terms
    is_complex = gaps.dtype.kind == "c"
    share = 1.5 * gamma(4 * n + 4) if is_complex else gamma(2 * n + 2)
    spread = spread + share * sizes
    trace = 0.0 * gaps[0, 0]
    error_of_trace = 0.0 * spread[0, 0]
    rows = to_device_of(gaps, order)
    for start in range(0, n * certificate.words, n):
        word = certificate.inverse[:, start : start + n].T[rows]
        trace = trace + (word * gaps).sum(axis=0).sum()
        error_of_trace = error_of_trace + (moduli(word) * spread).sum(axis=0).sum()
    imag = trace.imag if is_complex else 0.0 * trace
    real, imag, error = numbers(trace.real, imag, error_of_trace)

    # |tr(G K)| and the series
    (of_gap,) = numbers(certificate.contraction(rows_of_k).sum())
    of_series = norm * norm / (2.0 * (1.0 - norm))
    underflows = 8 * n * n * certificate.words * LEAST
    error = above(error + of_gap + of_series, 2 * n + 16, underflows)
    return complex(real, imag), error


def _times(norm: float) -> str:
    """A ratio as messages have it."""
    return f"{norm:.2g} times" if math.isfinite(norm) else "beyond any multiple of"


def _product_of_diagonal(upper: Array) -> tuple[Fraction, Fraction]:
    """The product of the pivots, re and im, up to 2^-100 of its modulus."""
    real = 1
    imag = 0
    exponent = 0
    pivots = to_host(diagonal(upper))
    if pivots.dtype.kind != "c":
        significands, exponents = np.frexp(pivots)
        integers = (significands * 2.0**53).astype(np.int64)
        real = math.prod(integers.tolist())
        exponent = int(exponents.sum()) - 53 * len(pivots)
        pivots = pivots[:0]
    for pivot in pivots.tolist():
        (x, y), bits = integers_of(np.array([pivot.real, pivot.imag]))
        next_real = real * x - imag * y
        imag = real * y + imag * x
        real = next_real
        exponent -= bits
    surplus = max((abs(real) + abs(imag)).bit_length() - _BITS_OF_PRODUCT, 0)
    scale = Fraction(2) ** (exponent + surplus)
    return (real >> surplus) * scale, (imag >> surplus) * scale


def _bounds(product: Fraction, trace: float, error: float) -> Determinant:
    """The enclosure product exp(trace -+ error), rounded outward."""
    sign = 1 if product > 0 else -1
    size = abs(product)
    if not error + abs(trace) < 1.0 or size == 0:
        raise _unknown_factor(abs(trace) + error)
    exponent = _exponent_of(size)
    size /= Fraction(2) ** exponent

    # Both ends, with room for the errors of the product and of the exponentials
    smaller = size * _exponential(Fraction(trace) - Fraction(error))
    larger = size * _exponential(Fraction(trace) + Fraction(error))
    lower = _rounded(smaller * (1 - _ROOM), -math.inf)
    upper = _rounded(larger * (1 + _ROOM), math.inf)
    if not lower > 0.0:
        raise _unknown_factor(abs(trace) + error)
    if sign > 0:
        return Determinant(sign, lower, upper, exponent)
    return Determinant(sign, -upper, -lower, exponent)


def _exponential(x: Fraction) -> Fraction:
    """exp(x) for |x| <= 1, up to 2^-104 of itself.

    30 terms are enough, and each is cut to 2^-120.
    """
    unit = 1 << 120
    fixed = math.floor(x * unit)
    term = total = unit
    for k in range(1, 31):
        term = term * fixed // (k * unit)
        total += term
    return Fraction(total, unit)


def _rounded(x: Fraction, end: float) -> float:
    """The float64 number next to x > 0 in the direction of an end; x itself where it is
    one.
    """
    close = nearest(x, np.dtype(float))
    is_beyond = Fraction(close) >= x if end > 0 else Fraction(close) <= x
    return close if is_beyond else math.nextafter(close, end)


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
