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

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hifigemm.exceptions import VerificationError
from hifigemm.linalg.arrays import (
    inverse,
    product_of_numbers,
    to_device_of,
)
from hifigemm.linalg.certificate import Certificate, prove
from hifigemm.linalg.scaling import ScaledSystem, is_wide, matching, scaled_system
from hifigemm.numerics.bits import Array

GOOD_NORM = 0.5
"""Of I - R A: above it, refinement gains less than a bit a step, and the second inverse
is worth its price.
"""

CHANGES = 2.0**-50, 2.0**-40
"""Of entries, where elimination meets a pivot of zero: the least one leaves the most
digits for two words, but may meet another.
"""


@dataclass(frozen=True, eq=False)
class CertifiedSystem:
    """A system in scale, the proof that its matrix is nonsingular, and how many
    inverses were tried for it.
    """

    system: ScaledSystem
    certificate: Certificate
    attempts: int


def certified_system(a: Array, b: Array) -> CertifiedSystem:
    """A x = b with the first certificate that holds: of an inverse in float64; of one
    in another scale, where entries differ by more than the digits of float64; of one in
    two words.

    Raises VerificationError: none proves that A is nonsingular.
    """
    system = scaled_system(a, b)
    attempts = 1
    one_word = _certificate_in_one_word(system)
    if _norm(one_word) >= GOOD_NORM and is_wide(system.a):
        attempts += 1
        matched_system = scaled_system(a, b, matching)
        matched = _certificate_in_one_word(matched_system)
        if _norm(matched) < _norm(one_word):
            system = matched_system
            one_word = matched
    if one_word is not None and one_word.norm < GOOD_NORM:
        return CertifiedSystem(system, one_word, attempts)

    # Two words for the scale in which the inverse in one came closest; from another
    # inverse where that is no good start
    two_words = None
    for start in _starts(system.a, one_word):
        attempts += 1
        two_words = _certificate_in_two_words(system, start)
        if two_words is not None and two_words.is_proof:
            return CertifiedSystem(system, two_words, attempts)
    if one_word is not None and one_word.is_proof:
        return CertifiedSystem(system, one_word, attempts)
    raise VerificationError(_refusal(len(a), one_word, two_words))


def _certificate_in_one_word(system: ScaledSystem) -> Certificate | None:
    """The certificate by an inverse in float64; None where elimination ends at a pivot
    of zero, also for a matrix that differs in its last bits.
    """
    a = system.a
    try:
        return prove(a, approximate_inverse(a))
    except np.linalg.LinAlgError:
        pass
    for change in CHANGES:
        try:
            return prove(a, approximate_inverse(changed(a, change)))
        except np.linalg.LinAlgError:
            pass
    return None


def _starts(a: Array, certificate: Certificate | None) -> Iterator[Array]:
    """Inverses in float64 for one in two words to start from."""
    if certificate is None:
        return
    yield certificate.inverse
    try:
        yield approximate_inverse(changed(a, CHANGES[0]))
    except np.linalg.LinAlgError:
        return


def _certificate_in_two_words(system: ScaledSystem, start: Array) -> Certificate | None:
    """The certificate by an inverse in two words; None where there is none."""
    try:
        return prove(system.a, inverse_in_two_words(system.a, start))
    except np.linalg.LinAlgError:
        return None


def _norm(certificate: Certificate | None) -> float:
    """The norm of I - R A; Inf where it is NaN, and without a certificate."""
    if certificate is None or math.isnan(certificate.norm):
        return math.inf
    return certificate.norm


def approximate_inverse(a: Array) -> Array:
    """R with R A close to I.

    Raises numpy.linalg.LinAlgError: a pivot of zero, of an array of the host; on a
    device entries of R are not finite then.
    """
    return inverse(a.T).T


def changed(a: Array, change: float) -> Array:
    """A with entries that differ by up to this part of them, the same ones for each
    call, so that results have the same bits for each call.
    """
    changes = np.random.default_rng(0).uniform(-1.0, 1.0, a.shape)
    return a * (1.0 + change * to_device_of(a, changes))


def inverse_in_two_words(a: Array, approximate: Array) -> Array:
    """[Rh Rl], Rh + Rl = R2 R1 with R1 the approximate inverse and R2 that of R1 A.

    Raises numpy.linalg.LinAlgError: R1 is not finite, or a pivot of R1 A is zero.
    """
    if not np.isfinite(approximate).all():
        raise np.linalg.LinAlgError("the approximate inverse is not finite")
    preconditioned = product_of_numbers(approximate, a, "correct")
    correction = approximate_inverse(preconditioned)
    if not np.isfinite(correction).all():
        raise np.linalg.LinAlgError("the second inverse is not finite")
    high, low = product_of_numbers(correction, approximate, result="pair")
    return np.concatenate([high, low], axis=1)


def _refusal(
    n: int, one_word: Certificate | None, two_words: Certificate | None
) -> str:
    """The message where nothing was proven."""
    if one_word is None:
        return (
            f"no proof that the matrix ({n} x {n}) is nonsingular: it is so close to a singular one that Gaussian "
            "elimination ends at a pivot of zero"
        )
    condition = max(x.condition for x in (one_word, two_words) if x is not None)
    return (
        f"no proof that the matrix ({n} x {n}) is nonsingular: of I - R A, whose norm has to be less than 1, the "
        f"bound is {one_word.norm:.2g} with an inverse R in float64 and {_norm(two_words):.2g} with one in two words. "
        f"The estimated condition is {condition:.1e}: the matrix is singular, or closer to a singular one than "
        "inverses in two words can tell (about 1e-30)"
    )
