"""Approximate inverses, and the first of them that proves its matrix nonsingular.

Idea
    The rows of R = inv(A^T)^T solve r A = e_i, so that R A is close to I: Gaussian
    elimination is backward stable for each row, and the certificate is about R A.
Scales
    Rows and columns get their largest entries first. If that proves nothing, or leaves
    a condition that costs digits, two other scales follow: that of an assignment of
    rows to columns, and the one in which columns have the weights v = |R| (|A| e), R
    the best inverse so far. max(|A^-1| |A| v / v) is the condition after such weights,
    and the least one has an eigenvector of |A^-1| |A| as v [Bau63], to which the steps
    lead. One is enough for chains.
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
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from hifigemm.base.exceptions import VerificationError
from hifigemm.linalg.arrays import (
    inverse,
    product_of_numbers,
    to_device_of,
)
from hifigemm.linalg.certificate import (
    Certificate,
    Proof,
    bound_in_words,
    prove,
)
from hifigemm.linalg.scaling import (
    ScaledSystem,
    matching,
    scaled_system,
    weighted_system,
)
from hifigemm.numerics.bits import Array

AnyProof = TypeVar("AnyProof", bound=Proof, covariant=True)

GOOD_NORM = 0.5
"""Of I - R A: above it, refinement gains less than a bit a step, and the second inverse
is worth its price.
"""

MOST_CONDITION = 2.0**50
"""Above it a solution loses digits, and another scale is worth its price."""
GAIN = 16.0
"""Of the condition, by weights: what another inverse is worth."""
MOST_SCALES = 5
"""Two steps of weights were enough for all matrices that were seen."""

CHANGES = 2.0**-50, 2.0**-40
"""Of entries, where elimination meets a pivot of zero: the least one leaves the most
digits for two words, but may meet another.
"""


@dataclass(frozen=True, eq=False)
class CertifiedSystem(Generic[AnyProof]):
    """A system in scale, the proof that its matrix is nonsingular, and how many
    inverses were tried for it.
    """

    system: ScaledSystem
    certificate: AnyProof
    attempts: int


class _Attempt(NamedTuple):
    """A system in some scale, and the certificate by an inverse in float64."""

    system: ScaledSystem
    certificate: Certificate | None

    @classmethod
    def of(cls, system: ScaledSystem) -> _Attempt:
        """The attempt to prove a system."""
        return cls(system, _certificate_in_one_word(system))

    @property
    def norm(self) -> float:
        """The bound of the norm of I - R A; Inf without one."""
        return _norm(self.certificate)

    @property
    def condition(self) -> float:
        """The estimated condition; Inf without a certificate."""
        return math.inf if self.certificate is None else self.certificate.condition

    def is_enough(self, most_condition: float) -> bool:
        """True if no other scale is worth its price."""
        return self.norm < GOOD_NORM and self.condition <= most_condition

    def is_better_than(self, other: _Attempt) -> bool:
        """True if its condition is less, if both norms are good; else if its norm is."""
        if max(self.norm, other.norm) < GOOD_NORM:
            return self.condition < other.condition
        return self.norm < other.norm


def certified_system(
    a: Array, b: Array, most_condition: float = MOST_CONDITION
) -> CertifiedSystem[Certificate]:
    """A x = b with the first certificate that is good enough: of an inverse in float64;
    of one in other scales, also where the condition exceeds the one given; of one in
    two words.

    Raises VerificationError: none proves that A is nonsingular.
    """
    best, attempts = _best_scale(a, b, most_condition)
    if best.certificate is not None and best.norm < GOOD_NORM:
        return CertifiedSystem(best.system, best.certificate, attempts)

    # Two words for the scale in which the inverse in one came closest; from another
    # inverse where that is no good start
    two_words = None
    for start in _starts(best):
        attempts += 1
        two_words = _certificate_in_two_words(best.system, start)
        if two_words is not None and two_words.is_proof:
            return CertifiedSystem(best.system, two_words, attempts)
    if best.certificate is not None and best.certificate.is_proof:
        return CertifiedSystem(best.system, best.certificate, attempts)
    raise VerificationError(_refusal(len(a), best.certificate, two_words, attempts))


def _best_scale(a: Array, b: Array, most_condition: float) -> tuple[_Attempt, int]:
    """The best attempt with an inverse in float64, and how many there were."""
    first = _Attempt.of(scaled_system(a, b))
    if first.is_enough(most_condition):
        return first, 1

    # The assignment of rows to columns
    matched = _Attempt.of(scaled_system(a, b, matching))
    best = matched if matched.is_better_than(first) else first
    attempts = 2

    # Weights of columns, as long as the inverse says that they gain something
    latest = best
    while latest.certificate is not None and attempts < MOST_SCALES:
        weights, condition = latest.certificate.weights()
        gains = condition < latest.condition / GAIN
        if best.is_enough(most_condition) or not gains:
            break
        latest = _Attempt.of(weighted_system(latest.system, weights))
        best = latest if latest.is_better_than(best) else best
        attempts += 1
    return best, attempts


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


def _starts(attempt: _Attempt) -> Iterator[Array]:
    """Inverses in float64 for one in two words to start from."""
    if attempt.certificate is None:
        return
    yield attempt.certificate.inverse
    try:
        yield approximate_inverse(changed(attempt.system.a, CHANGES[0]))
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
    n: int, best: Certificate | None, two_words: Certificate | None, attempts: int
) -> str:
    """The message where nothing was proven, after so many inverses."""
    advice = (
        "What helps: remove rows or columns that depend on others, or multiply rows with rounded entries, such as 1/3, "
        "by what makes them exact"
    )
    if best is None:
        return (
            f"the matrix ({n} x {n}) is singular or nearly so: no proof that it is nonsingular. Gaussian elimination "
            "ended at a pivot of zero in two scales, also with entries changed by 1e-15 and 1e-12 of themselves. "
            f"{advice}"
        )
    condition = max(x.condition for x in (best, two_words) if x is not None)
    return (
        f"the matrix ({n} x {n}) is singular or nearly so (condition about {condition:.0e} after scaling): no proof "
        f"that it is nonsingular by {attempts} inverses (bounds of the norm of I - R A, which has to be below 1: "
        f"{bound_in_words(best.norm)} with an inverse R in float64, {bound_in_words(_norm(two_words))} with one in two "
        f"words, which is good up to conditions of about 1e30). {advice}"
    )
