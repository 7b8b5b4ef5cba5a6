"""Proofs that banded and triangular matrices are nonsingular, without storing an inverse.

Idea
    `certificate` needs three things of R: R q, |R| s and |I - R A| v for some vectors.
    Each can be computed from one row of R at a time. A row r solves r A = e_i, which takes
    time proportional to n for a band: P A = L U with few diagonals, U^T w = e_i,
    L^T P r = w. So the rows are made when they are needed, and then discarded. They are
    the same in each call, as the elimination is. A is read in n^2 steps anyway, and its
    diagonals count.
Bound
    D = fl(R A) is a sum of m terms, m the number of diagonals:

        |D - R A| <= gamma_m |R||A| and m eta / 2,

    so the theorem and all bounds of `certificate` hold with r = gamma_m. R may be any
    matrix, and entries of it below 2^-900 are zeros: rows that decay would end in
    subnormal numbers.
Triangles
    An upper triangle is its own U, and row i of R begins at column i: a sixth of the
    products of a full band. Inverses of comparison matrices bound |A^-1| too, in n^2
    steps; but for the factors of elimination these bounds are larger by 10^56 at n = 500.
Which way
    With more diagonals below than above, rows and columns are taken from the last one
    on, so that L is the narrow factor. Where the scale or one word of R is not enough,
    other ways follow: see `inverse`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hifigemm.engines import core
from hifigemm.linalg.arrays import is_on_host, magnitude_product, numbers
from hifigemm.linalg.bands import Band
from hifigemm.linalg.certificate import Proof, Residual, contraction_bound
from hifigemm.linalg.inverse import GOOD_NORM, MOST_CONDITION, CertifiedSystem
from hifigemm.linalg.scaling import ScaledSystem, scaled_system, weighted_system
from hifigemm.linalg.upward import UNIT, above, gamma
from hifigemm.numerics.bits import LEAST, Array

SMALLEST = 64
"""Rows from which on this is quicker than products with an inverse."""
MOST_SCALES = 2
"""The largest entries of rows and columns, and weights once: this was enough for all
triangles that were tried.
"""
LEAST_WEIGHT = 2.0**-960
"""Of a row: what underflows, up to n^2 2^-1074, is nothing compared with it."""


def pays(band: Band, sides: int) -> bool:
    """True if rows of an inverse, made twice, take less time than products with a stored
    inverse.

    Measured on one core with AVX-512: 0.035 ns a product of numbers here, 0.025 n^3 ns for
    a triangle, and 0.09 n^3 ns for a stored inverse.
    """
    if band.n < SMALLEST or core.loaded()[0] is None:
        return False
    narrow, wide = sorted((band.lower, band.upper))
    if band.is_triangular:
        return 6 * sides <= band.n
    return 5 * narrow + 3 * wide + 3 * sides <= band.n


@dataclass(frozen=True, eq=False)
class RowsOfInverse:
    """R by its rows, which are made for each product anew."""

    factors: core.BandFactors
    is_backwards: bool
    """True if the factors belong to the matrix with its rows and columns reversed."""

    @classmethod
    def of(cls, system: ScaledSystem) -> RowsOfInverse:
        """The rows for the matrix of a system with a band.

        Raises numpy.linalg.LinAlgError: a pivot of zero.
        """
        band = _band(system)
        if band.lower <= band.upper:
            factors = core.BandFactors.of(system.a, band.lower, band.upper)
            return cls(factors, False)
        backwards = system.a[::-1, ::-1]
        return cls(core.BandFactors.of(backwards, band.upper, band.lower), True)

    def products(self, q: Array, s: Array, v: Array) -> core.BandedProducts:
        """R Q, |R| S and |fl(R A - I)| V, each of n roundings."""
        if not self.is_backwards:
            return self.factors.products(q, s, v)
        products = self.factors.products(*(x[::-1] for x in (q, s, v)))
        return core.BandedProducts(*(x[::-1] for x in products))


@dataclass(frozen=True, eq=False)
class BandedCertificate(Proof):
    """An approximate inverse R of a banded A by its rows, and a bound of |I - R A|."""

    system: ScaledSystem
    """A, in a band."""
    rows: RowsOfInverse
    """Of R."""
    image_of_sides: Array
    """R b."""
    weights: Array
    """|R| (|A| e), n x 1: of columns, for another scale."""

    @property
    def words(self) -> int:
        """Number of words of R."""
        return 1

    def image(self, b: Array) -> Array:
        """R b, with no bound."""
        if b is self.system.b:
            return self.image_of_sides
        return self.rows.products(b, b[:, :0], b[:, :0]).images

    def contraction(self, v: Array) -> Array:
        """An upper bound of |I - R A| v for the columns of v >= 0."""
        products = self.rows.products(v[:, :0], _sizes(self.system, v), v)
        largest = v.max(axis=0, keepdims=True, initial=0.0)
        return contraction_bound(
            products.gaps,
            products.sizes,
            v,
            largest,
            _accuracy(self.system),
            self.inverse_norm,
        )

    def radius(self, y: Array) -> Array:
        """At least |A^-1 b - x~|, given y >= |R (b - A x~)| after two more roundings.

        |G| decays from the diagonal as R does, and so does y where x does. So y, or v >= y,
        are better weights than ones: |G| v <= c v with c < 1 gives y + |G| v / (1 - c).
        """
        v = np.maximum(above(y, 2), LEAST_WEIGHT)
        images = self.contraction(v)
        shares = above((images / v).max(axis=0, keepdims=True), 1)
        if not (shares <= 0.5).all():
            return super().radius(y)
        return above(y + images / (1.0 - shares), 5, LEAST)

    def update(self, residual: Residual) -> tuple[Array, Array]:
        """(d, e): d = fl(R q), and e >= |R q* - d| for the exact residual q*, as
        `Certificate.update` returns with one word.
        """
        (q,) = residual.words
        n = len(q)
        sizes = (gamma(n) + UNIT) * np.abs(q)
        if residual.errors is not None:
            sizes = sizes + residual.errors
        products = self.rows.products(q, sizes, q[:, :0])
        return products.images, above(products.sizes, n + 6, self.underflows)


def banded_system(a: Array, b: Array) -> CertifiedSystem[BandedCertificate] | None:
    """A x = b in scale with a certificate by rows of R; None where A has no band that pays,
    on a device, for complex numbers, and where the bounds are not good enough.

    Raises VerificationError: Inf and NaN.
    """
    if not (is_on_host(a) and a.dtype.kind == b.dtype.kind == "f"):
        return None
    band = Band.of(a)
    if not pays(band, b.shape[1]):
        return None
    system = replace(scaled_system(a, b), band=band)
    for attempt in range(MOST_SCALES):
        try:
            certificate = _certificate(system)
        except np.linalg.LinAlgError:
            return None
        if certificate.norm < GOOD_NORM and certificate.condition <= MOST_CONDITION:
            return CertifiedSystem(system, certificate, attempt + 1)
        weighted = weighted_system(system, certificate.weights)
        system = replace(weighted, band=band)
    return None


def _certificate(system: ScaledSystem) -> BandedCertificate:
    """The certificate of a system with a band, whose norm may be NaN.

    Raises numpy.linalg.LinAlgError: elimination meets a pivot of zero.
    """
    n = len(system.a)
    ones = np.ones((n, 1))

    # |R| (|A| e) and |R| e, |I - R A| e, and R b to start from
    columns = np.concatenate([_sizes(system, ones), ones], axis=1)
    rows = RowsOfInverse.of(system)
    products = rows.products(system.b, columns, ones)
    condition, largest_sum = numbers(*products.sizes.max(axis=0))
    inverse_norm = above(largest_sum, n, n * LEAST)
    row_bounds = contraction_bound(
        products.gaps,
        products.sizes[:, :1],
        1.0,
        1.0,
        _accuracy(system),
        inverse_norm,
    )
    return BandedCertificate(
        row_bounds,
        inverse_norm,
        condition,
        system,
        rows,
        products.images,
        products.sizes[:, :1],
    )


def _band(system: ScaledSystem) -> Band:
    """The band of a system that has one."""
    assert system.band is not None
    return system.band


def _accuracy(system: ScaledSystem) -> float:
    """r of D = fl(R A), whose entries have as many terms as A has diagonals."""
    band = _band(system)
    return gamma(band.lower + band.upper + 1)


def _sizes(system: ScaledSystem, v: Array) -> Array:
    """|A| V for V >= 0, after as many roundings as A has rows at most."""
    blocks = _band(system).blocks()
    products = [magnitude_product(system.a[block], v[block[1]]) for block in blocks]
    return np.concatenate(products)
