"""Solutions of all systems whose data lie within radii of A and b, and how large the radii
of A may be for that.

Idea
    |A' - A| <= Da and |b' - b| <= db in every entry, of complex data in modulus. With R
    and G = I - R A as in `certificate`,

        |I - R A'| <= |G| + |R| Da =: H.

    If H v <= a v, a < 1, for some v > 0, then every A' is nonsingular [RR98]. For the
    solutions x* of A x = b and x' of A' x = b'

        x' - x* = (I - R A') (x' - x*) + R (b' - b - (A' - A) x*),

    so |x' - x*| <= H |x' - x*| + y with y = |R| (db + Da |x*|). The powers of H tend to
    zero, so

        |x' - x*| <= (I - H)^-1 y <= y + max(y / v) / (1 - a) H v,

    and from any bound z of |x' - x*| follows the bound y + H z.
Sharp
    To first order: in each entry some A' and b' reach |A^-1| (db + Da |x*|) up to terms
    of order Da^2, and R is close to A^-1.
Weights
    v = e where that is a proof, else vectors closer to the Perron vector of |R| Da, for
    which max(|R| Da v / v) is least. They are the same for all t Da, t > 0.
Factor
    |G| v + t |R| Da v < v holds for all t below min((v - |G| v) / (|R| Da v)). So all
    matrices within t Da are nonsingular, whatever lies beyond: how far the next singular
    one is, is NP-hard to tell [PR93].
Rounding
    All products and sums are of nonnegative numbers, and each is rounded upwards as
    `upward` says; the factor is rounded downwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from hifigemm.base.exceptions import VerificationError
from hifigemm.linalg.arrays import beside, numbers
from hifigemm.linalg.certificate import Certificate, Magnitudes, bound_in_words
from hifigemm.linalg.upward import above, moduli
from hifigemm.numerics.bits import LEAST, Array

Images = Callable[[Array], Array]
"""At least M V for some matrix M >= 0 and all V >= 0."""

MOST_WEIGHTS = 40
"""Vectors that are tried as weights. A step takes the part of an eigenvector times the
mean of 1 and the ratio of its eigenvalue to the largest one.
"""
MOST_BOUNDS = 20
"""Bounds y + H z, each with the one before as z."""
GAIN = 0.9
"""Where all bounds are larger than this part of the ones before, another is not worth its
price.
"""
BELOW = 1.0 - 2.0**-30
"""Takes what roundings may have added to a factor, and more: radii of so many times Da
are left some room for a proof of their own.
"""
SHOWN = 1.0 - 2.0**-10
"""Takes what rounding to four digits adds to a factor at most, and more."""


class Weights(NamedTuple):
    """v > 0 with H v <= a v, a < 1."""

    images: Array
    """At least H v."""
    v: Array
    norm: float
    """a."""


@dataclass(frozen=True, eq=False)
class Neighbours:
    """All matrices within Da of one, as H = |G| + |R| Da sees them."""

    gap: Images
    """Of |G|."""
    box: Images
    """Of |R| Da."""

    def images(self, v: Array) -> Array:
        """At least H v."""
        return above(self.gap(v) + self.box(v), 1)

    def weights(self, e: Array) -> Weights:
        """Weights that prove all matrices nonsingular; e, n x 1, is the first vector that
        is tried, |G| e < e.

        Raises VerificationError: none were found.
        """
        v = e
        factor = 0.0
        for _ in range(MOST_WEIGHTS):
            of_gap = self.gap(v)
            of_box = self.box(v)
            images = above(of_gap + of_box, 1)

            # Both are read with one wait for a device
            ratios = above(images / v, 1)
            factors = BELOW * ((v - of_gap) / of_box)
            norm, least_factor = numbers(ratios.max(), factors.min())
            if norm < 1.0:
                return Weights(images, v, norm)
            factor = max(factor, least_factor)

            # The mean with v, which has no zeros and does not go round in circles
            v = 0.5 * (v + of_box / of_box.max())
        raise _refusal(len(e), norm, factor)

    def bounds(self, y: Array, weights: Weights) -> Array:
        """At least (I - H)^-1 Y for Y >= 0, n x k."""
        largest = above(y / beside(y, weights.v), 1).max(axis=0, keepdims=True)
        error = above(largest / (1.0 - weights.norm), 4)
        z = above(y + error * beside(y, weights.images), 2, LEAST)
        for _ in range(MOST_BOUNDS):
            following = np.minimum(above(y + self.images(z), 1), z)
            (is_close,) = numbers((following >= GAIN * z).all())
            z = following
            if is_close:
                break
        return z


def uncertain_radius(
    certificate: Certificate, x: Array, radius: Array, a_radius: Array, b_radius: Array
) -> Array:
    """At least |x' - x| for the solutions x' of all systems within radii of A and b, n x n
    and n x k, from a radius of the solution of A x = b itself.

    Raises VerificationError: some A' may be singular.
    """
    deviations = partial(_above_product, Magnitudes(a_radius))
    inverse = partial(_above_product, certificate.inverse_magnitudes)
    neighbours = Neighbours(
        gap=certificate.contraction,
        box=lambda v: inverse(deviations(v)),
    )
    weights = neighbours.weights(np.ones_like(certificate.row_bounds))

    # What the residuals of all systems may be for the solution of A x = b
    residuals = above(b_radius + deviations(moduli(x) + radius), 2)
    return above(radius + neighbours.bounds(inverse(residuals), weights), 1)


def _above_product(matrix: Magnitudes, v: Array) -> Array:
    """At least |M| V for V >= 0; a product on a device takes a rounding more than it has
    terms.
    """
    n = len(v)
    return above(matrix.times(v), n + 1, n * LEAST)


def _refusal(n: int, norm: float, factor: float) -> VerificationError:
    """The error for radii that are too large, or too large to be proven."""
    error = VerificationError(
        f"no proof that all matrices within a_radius of a ({n} x {n}) are nonsingular (bound of the norm of I - R A', "
        f"which has to be below 1: {bound_in_words(norm)}). It is proven up to {SHOWN * factor:.4g} times a_radius; "
        "beyond, nothing is known. What helps: smaller radii"
    )
    error.proven_factor = factor
    return error
