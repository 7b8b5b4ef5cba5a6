"""Approximate inverses, and the first of them that proves its matrix nonsingular.

Idea
    The rows of R = inv(A^T)^T solve r A = e_i, so that R A is close to I: Gaussian
    elimination is backward stable for each row, and the certificate is about R A.
Beyond condition 1 / u
    An inverse of a matrix that is singular to working precision still holds what is
    needed [Rum09]: R1 A, rounded once, has a condition of about u cond(A). With
    R2 its inverse, the product R2 R1 in two words is an inverse of A. That is for
    conditions up to about 1e30.
"""

from __future__ import annotations

import numpy as np

from hifigemm.api import product_of_numbers
from hifigemm.exceptions import VerificationError
from hifigemm.linalg.certificate import Certificate, prove
from hifigemm.numerics.bits import Array

GOOD_NORM = 0.5
"""Of I - R A: above it, refinement gains less than a bit a step, and the second inverse
is worth its price.
"""


def certified_inverse(a: Array) -> Certificate:
    """The certificate of A by its inverse in float64, or by one in two words where that
    is too coarse.

    Raises VerificationError: neither proves that A is nonsingular.
    """
    try:
        first = prove(a, approximate_inverse(a))
        if first.norm < GOOD_NORM:
            return first
        second = prove(a, inverse_in_two_words(a, first.inverse))
    except np.linalg.LinAlgError as error:
        raise VerificationError(
            f"no proof that the matrix ({len(a)} x {len(a)}) is nonsingular: it is so close to a singular one that "
            "Gaussian elimination ends at a pivot of zero"
        ) from error
    best = second if second.norm < 1.0 or not first.is_proof else first
    if not best.is_proof:
        raise VerificationError(_refusal(first, second))
    return best


def approximate_inverse(a: Array) -> Array:
    """R with R A close to I; of a matrix that differs from A in its last bits where
    elimination of A itself meets a pivot of zero.

    Raises numpy.linalg.LinAlgError: a pivot of zero again.
    """
    try:
        return np.linalg.inv(a.T).T
    except np.linalg.LinAlgError:
        # The same for each call, as results have the same bits for each call
        changes = np.random.default_rng(0).uniform(-1.0, 1.0, a.shape)
        return np.linalg.inv((a * (1.0 + 2.0**-50 * changes)).T).T


def inverse_in_two_words(a: Array, first: Array) -> Array:
    """[Rh Rl], Rh + Rl = R2 R1 with R1 the first inverse and R2 that of R1 A.

    Raises numpy.linalg.LinAlgError: R1 is not finite, or a pivot of R1 A is zero.
    """
    if not np.isfinite(first).all():
        raise np.linalg.LinAlgError("the approximate inverse is not finite")
    preconditioned = product_of_numbers(first, a, "correct")
    second = approximate_inverse(preconditioned)
    if not np.isfinite(second).all():
        raise np.linalg.LinAlgError("the second inverse is not finite")
    high, low = product_of_numbers(second, first, result="pair")
    return np.concatenate([high, low], axis=1)


def _refusal(first: Certificate, second: Certificate) -> str:
    """The message where nothing was proven."""
    n = len(first.moduli)
    return (
        f"no proof that the matrix ({n} x {n}) is nonsingular: of I - R A, whose norm has to be less than 1, the "
        f"bound is {first.norm:.2g} with an inverse R in float64 and {second.norm:.2g} with one in two words. The "
        f"estimated condition is {max(first.condition, second.condition):.1e}: the matrix is singular, or closer to "
        "a singular one than inverses in two words can tell (about 1e-30)"
    )
