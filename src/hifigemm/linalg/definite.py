"""is_positive_definite: both answers are proofs.

Idea
    Yes: L is whatever Cholesky's factorisation of A - c I returns, c > 0. With
    E = A - c I - L L^H, for all x

        x^H A x = |L^H x|^2 + c |x|^2 + x^H E x >= (c - ||E||) |x|^2,

    so ||E||_inf < c is a proof [Rum06]. It does not matter how good L is.
    No: an x other than zero with x^H A x <= 0, an eigenvector of the least eigenvalue or
    a vector of the identity.
    Else the leading minors of small matrices, in integers.
Small matrices
    For real ones of up to 128 rows the compiled core eliminates without exchanges, in double
    words, and knows the signs of most leading minors; its proof is in core/small_factors.c.
Scaling
    Rows and columns by the same powers of two, which keeps definiteness and brings the
    diagonal into [1/4, 1), unless a bit would be lost. c is relative to 1 then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np

from hifigemm.base.exceptions import VerificationError
from hifigemm.base.transforms import check_untraced, is_traced, opaque
from hifigemm.linalg.arguments import (
    Answers,
    check_hermitian,
    check_square,
    verifying,
    wide_operands,
)
from hifigemm.linalg.arrays import (
    check_finite,
    cholesky,
    diagonal,
    identity,
    least_eigenvector,
    matmul,
    numbers,
    product_of_numbers,
    to_device_of,
    to_host,
    where_quick,
)
from hifigemm.linalg.exact import IntegerMatrix
from hifigemm.linalg.minors import definiteness, is_real_stack
from hifigemm.linalg.scaling import scaled, zeros_are_exact
from hifigemm.linalg.upward import UNIT, above, gamma, moduli
from hifigemm.numerics.bits import LEAST, Array

_TRIES = 3
"""Values of c, each twice the norm of E of the last one."""
_GRID = 2.0**20
"""Vectors of short numbers are tried too: a null vector may be exact among them."""


@dataclass(frozen=True)
class DefinitenessReport:
    """What proves the answer for one matrix.

    Attributes
    ----------
    is_definite : bool
        The answer.
    proof : str
        Of a positive definite matrix "factor": ``A - c I = L L^H + E``, where L is
        Cholesky's factor and ``||E|| < c``. Of another one "vector": an x other than
        zero with ``x^H A x <= 0``; or "diagonal": an entry that is not positive. Of
        either "elimination": the pivots in double words, with their error; or "minors":
        the leading minors as integers.
    shift : float
        c, for A with rows and columns scaled by the same powers of two to a diagonal in
        [1/4, 1); for A itself if a bit would be lost. NaN without a factor.
    gap : float
        A bound of ``||E||``. The least eigenvalue of that matrix is at least shift -
        gap.
    """

    is_definite: bool
    proof: str
    shift: float = math.nan
    gap: float = math.nan


@overload
def is_positive_definite(a: Any, *, return_report: Literal[False] = False) -> Any: ...
@overload
def is_positive_definite(
    a: Any, *, return_report: Literal[True]
) -> tuple[Any, Any]: ...
@opaque
def is_positive_definite(a: Any, *, return_report: bool = False) -> Any:
    """True if ``x^H A x > 0`` for all nonzero x, False otherwise; either answer is
    proven.

    Parameters
    ----------
    a : array_like
        Shape (..., n, n), equal to its own conjugate transpose; dtype as for `solve`. A
        0 x 0 matrix is positive definite: there is no nonzero x.
    return_report : bool
        Return a `DefinitenessReport`, too.

    Returns
    -------
    bool, or array of bool
        For a stack a NumPy array of shape (...).
    report
        Only if `return_report` is True; for a stack an array of reports.

    Raises
    ------
    VerificationError
        Neither answer could be proven: the least eigenvalue is too close to zero, and
        the matrix has more than 512 rows, or so many rows and bits that integers take
        more than two seconds. 64 rows of 53 bits take 4 ms. For a stack the attribute
        ``solution`` has the proven answers as 1 and 0, with NaN elsewhere.
    ValueError
        The matrix differs from its conjugate transpose.
    LinAlgError, TypeError
        The matrices are not square. JAX differentiates the array, or the tensor
        requires a gradient.

    Examples
    --------
    >>> import hifigemm.linalg
    >>> hifigemm.linalg.is_positive_definite([[2.0, 1.0], [1.0, 2.0]])
    True
    >>> hifigemm.linalg.is_positive_definite([[1.0, 2.0], [2.0, 1.0]])
    False
    """
    if is_traced(a):
        from hifigemm.linalg import jax_bounds

        check_untraced({"a": a}, return_report=return_report)
        check_square(a)
        return jax_bounds.bounds(is_positive_definite, a, lambda answers: answers, bool)
    operands = wide_operands(is_real_stack, a=a)
    (a,) = operands.arrays
    check_square(a)
    stack = a.shape[:-2]
    with verifying(operands.library):
        is_definite, is_known = definiteness(a)
        if is_known.all() and not return_report:
            return is_definite if stack else bool(is_definite)
        left = [*map(tuple, np.argwhere(~is_known).tolist())]
        a = where_quick(a) if left else a
        answers = Answers(stack, lambda index: _report_on(a[index]), left)

        def whole() -> Array:
            others = answers.array("is_definite", np.nan, float)
            found: Array = np.where(is_known, is_definite, others)
            return found

        answers.check(whole)
        values = whole().astype(bool)
    result = values if stack else bool(values)
    if not return_report:
        return result
    reports = np.empty(stack, object)
    for index in np.ndindex(stack):
        by_core = DefinitenessReport(bool(values[index]), "elimination")
        reports[index] = answers.values.get(index, by_core)
    return result, reports if stack else reports[()]


def _report_on(a: Array) -> DefinitenessReport:
    """The answer for one matrix."""
    check_finite(a=a)
    check_hermitian(a)
    if (diagonal(a).real <= 0.0).any():
        return DefinitenessReport(False, "diagonal")
    return _decide(scaled_symmetrically(a))


def _decide(a: Array) -> DefinitenessReport:
    """The answer for a scaled matrix with a positive diagonal."""
    n = len(a)
    if n == 0:
        return DefinitenessReport(True, "minors")
    terms = 2 * n if a.dtype.kind == "c" else n

    # By the native product, whose worst case is c; then by what E really is
    native = gamma(terms), 4.0 * n * gamma(terms)
    sharp = UNIT, 2.0 * n * UNIT
    norms = []
    for accuracy, c in (native, sharp):
        for _ in range(_TRIES):
            norm = norm_of_gap(a, c, accuracy)
            if norm < c:
                return DefinitenessReport(True, "factor", c, norm)
            if not np.isfinite(norm):
                break
            norms.append(norm)
            c = 2.0 * norm
    value, vector = least_eigenvector(a)
    for x in candidates(to_host(vector)):
        if is_not_positive(a, to_device_of(a, x)):
            return DefinitenessReport(False, "vector")
    integers = IntegerMatrix.of(to_host(a))
    if integers is not None and integers.is_affordable:
        return DefinitenessReport(integers.is_positive_definite(), "minors")
    cost = f". Left out: {integers.cost}" if integers is not None else ""
    gaps = f"at best {min(norms):.1e}" if norms else "for no c was there a factor L"
    shift = 4.0 * (abs(value) + 2.0 * native[1])
    raise VerificationError(
        f"neither proven nor disproven that the matrix ({n} x {n}) is positive definite: its least eigenvalue is about "
        f"{value:.1e} after scaling to a diagonal below 1, too close to zero for Cholesky's factorisation in float64 "
        f"(the norm of A - c I - L L^H has to be below c, {native[1]:.1e} and less: {gaps}) and for the sign of "
        f"x^H A x, x its eigenvector. What helps: more than {shift:.0e} of the diagonal added to it, if that may be"
        f"{cost}"
    )


def norm_of_gap(a: Array, c: float, accuracy: float) -> float:
    """An upper bound of the norm of E = A - c I - L L^H, L Cholesky's factor of
    A - c I; Inf where there is none.

    With D = L L^H to an accuracy r, T1 = fl(A - D) and T2 = fl(T1 - c I),

        |E| <= |T2| + u |T2| + u |T1| + r |L||L^H| + u |L L^H| + eta,
        |L L^H| <= (|D| + r |L||L^H| + eta) / (1 - u).
    """
    n = len(a)
    shift = c * identity(n, like=a)
    try:
        factor = cholesky(a - shift)
    except np.linalg.LinAlgError:
        return float("inf")
    transposed = factor.conj().T

    # The native product where its worst case is enough
    terms = 2 * n if a.dtype.kind == "c" else n
    if accuracy >= gamma(terms):
        product = matmul(factor, transposed)
    else:
        product = product_of_numbers(factor, transposed, accuracy)
    if a.dtype.kind == "c":
        accuracy *= 1.5  # more than the square root of 2

    # T1, T2 and the bound of |E|
    difference = a - product
    gap = difference - shift
    roundings = moduli(difference) + moduli(gap) + moduli(product)
    entries = moduli(gap) + 2.0 * UNIT * roundings

    # Sums of rows, with r |L| (|L^H| e)
    ones = np.ones((n, 1), like=a)
    sizes = moduli(factor)
    lengths = matmul(sizes, matmul(sizes.T, ones))
    sums = matmul(entries, ones) + accuracy * lengths
    row_sums = matmul(sizes, ones)
    underflows = (4 * n + 8) * LEAST * (1.0 + row_sums)
    bound = above(sums, 2 * n + 12, underflows)
    (norm,) = numbers(bound.max(initial=0.0))
    return norm


def candidates(x: Array) -> list[Array]:
    """x, and x relative to its largest entry on a grid of short numbers."""
    largest = x[np.argmax(np.abs(x))]
    relative = x / largest if np.abs(largest) > 0.0 else x
    short = np.rint(relative.real * _GRID) / _GRID
    if x.dtype.kind == "c":
        short = short + 1j * (np.rint(relative.imag * _GRID) / _GRID)
    return [x, short]


def is_not_positive(a: Array, x: Array) -> bool:
    """True if x, n x 1, is not zero and x^H A x <= 0 is proven.

    q = A x is rounded once, |q - q*| <= u |q| + eta, and the inner product errs by
    gamma_n |x|^T |q|, for complex numbers gamma_2n.
    """
    n = len(x)
    if not (x != 0.0).any():
        return False
    q = product_of_numbers(a, x, "correct")
    if not (q != 0.0).any():
        return zeros_are_exact(a, x)
    form = matmul(x.conj().T, q).real[0, 0]
    sizes = above(matmul(moduli(x).T, moduli(q)), n, n * LEAST)
    terms = 2 * n if x.dtype.kind == "c" else n
    sum_of_x = above(moduli(x).sum(), n)
    underflows = (2 * terms + 4) * LEAST * (1.0 + sum_of_x)
    error = above((gamma(terms) + UNIT) * sizes, 4, underflows)[0, 0]
    return bool(form <= -error)


def scaled_symmetrically(a: Array) -> Array:
    """2^s A 2^s with a diagonal in [1/4, 1), or A itself where a bit would be lost."""
    _, exponents = np.frexp(diagonal(a).real)
    shifts = -((exponents + 1) // 2)
    exponents_of_entries = shifts.reshape(-1, 1) + shifts
    result = scaled(a, exponents_of_entries)
    is_exact = (scaled(result, -exponents_of_entries) == a).all()
    return result if is_exact else a
