"""Eigenvalues that are apart from all others, to a few units in the last place of
themselves.

Idea
    An operator H in coordinates: y = V z for a basis V of vectors from any solver, and

        K(r) = V^H (H - r) V = diag(p + e) + M - r (I + S),

    M and S small. z = e_i + w close to an eigenvector follows from M in a few steps, and
    is kept as w: no word of V has to change. With g = K(r) z and G = I + S = V^H V,

        the Rayleigh quotient of y is  theta = r + z^H g / z^H G z,
        (H - theta) y = V^-H (g - t G z),  t = theta - r.

    g is a difference that has lost nothing, as M, S and the differences of p + e and r
    are small numbers that are known to all their digits.
Bound
    `separated_quotients` gives theta, and q >= s^H (H + mu)^-1 s / |y|^2 for the
    residual s = (H - theta) y, or s^H s / |y|^2. What follows for the eigenvalue stands
    where it is used: the inequalities of Kato and Temple.

References
----------
    [Kat49] Kato: On the upper and lower bounds of eigenvalues, J. Phys. Soc. Japan 4,
    1949
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from hifigemm.linalg.arrays import (
    diagonal,
    identity,
    matmul,
    to_device_of,
    to_host,
)
from hifigemm.linalg.decompositions import TINY, Gram, column_norms
from hifigemm.linalg.upward import UNIT, above, gamma, moduli
from hifigemm.numerics.bits import Array

STEPS = 2
"""Of w. The first makes g as small as (u / gap)^2, the second as (u / gap)^3, and a gap of
1e-12 of the norm needs both.
"""


@dataclass(frozen=True, eq=False)
class Columns:
    """Upper bounds of lengths of the columns of Z = I + W, each 1 x n."""

    z: Array
    w: Array
    scaled_z: Array
    """Of D z, D the scales of a pencil."""
    scaled_w: Array


@dataclass(frozen=True, eq=False)
class Pencil(ABC):
    """K(r), and bounds of what M and S lack; vectors are 1 x n."""

    values: Array
    """p."""
    second_values: Array
    """e; p + e is exact."""
    coupling: Array
    """M up to an error."""
    gram: Gram
    """S up to an error."""
    scales: Array
    """D >= 0, by which bounds of errors are graded."""
    least_weights: Array
    """A lower bound of each column of weights."""

    @abstractmethod
    def weights(self) -> Array | float:
        """Numbers tau_ji of row j for column i: s^H (H + mu)^-1 s is at most
        |g / tau|^2 / `coercivity`.
        """

    @property
    @abstractmethod
    def coercivity(self) -> float:
        """A positive constant, or what proves nothing."""

    @abstractmethod
    def coupling_errors(self, columns: Columns) -> tuple[Array, Array]:
        """At least |z^H F| and |F / tau| for F z, the error of `coupling` and, as it is
        multiplied by w, of that product.
        """


@dataclass(frozen=True, eq=False)
class Quotients:
    """Rayleigh quotients theta, close to r + t, in the memory of the CPU."""

    shifts: Array
    """r."""
    corrections: Array
    """t."""
    errors: Array
    """At least |theta - (r + t)|."""
    defects: Array
    """q."""


def separated_quotients(pencil: Pencil, is_separated: Array) -> Quotients:
    """The quotients of vectors that belong to separated eigenvalues; those of others are of
    no use.
    """
    n = len(pencil.coupling)
    coupling = pencil.coupling
    overlap = pencil.gram.gap
    rows = pencil.values.reshape(-1, 1)
    second_rows = pencil.second_values.reshape(-1, 1)
    unit = identity(n, like=coupling)
    is_free = (unit == 0.0) & is_separated

    # w solves the rows of K(r) (e_i + w) = 0 but that of i, the product by S left out
    w = np.zeros_like(coupling)
    images = coupling
    for _ in range(STEPS):
        shifts = _shifts(pencil, images)
        distances = (rows - shifts) + second_rows
        w = np.where(is_free, (shifts * overlap - images) / distances, 0.0)
        images = coupling + matmul(coupling, w)

    # g = K(r) z, and what its sums are made of
    shifts = _shifts(pencil, images)
    distances = (rows - shifts) + second_rows
    z = unit + w
    moved = distances * z
    shifted = shifts * overlap
    g = (moved + images) - shifted
    sizes = (np.abs(distances) + np.abs(second_rows)) * moduli(z)
    sizes = sizes + moduli(images) + moduli(shifted)
    return _bounded(pencil, w, z, g, sizes, shifts)


def _shifts(pencil: Pencil, images: Array) -> Array:
    """r close to the Rayleigh quotients, from M z."""
    corrections = pencil.second_values + diagonal(images).real.reshape(1, -1)
    overlap = diagonal(pencil.gram.gap).real.reshape(1, -1)
    return pencil.values + (corrections - pencil.values * overlap)


def _bounded(
    pencil: Pencil, w: Array, z: Array, g: Array, sizes: Array, shifts: Array
) -> Quotients:
    """Rayleigh quotients with bounds of theta and of q, from g and its errors.

    Entries of g err by at most 8 u of `sizes`: two roundings of distances and one of
    their product, three of sums, one of the products by r.
    """
    n = len(g)
    gram = pencil.gram
    weights = pencil.weights()
    least = pencil.least_weights
    columns = Columns(
        column_norms(z),
        column_norms(w),
        column_norms(pencil.scales.reshape(-1, 1) * z),
        column_norms(pencil.scales.reshape(-1, 1) * w),
    )
    inner, squares = _real_inner(z, g), _real_inner(z, z)
    sizes = 8.0 * UNIT * sizes
    length = columns.z
    length_of_w = columns.w

    # |z^H (g - g*)| and |(g - g*) / tau|: of roundings, of M, and of r S
    linear, weighted = pencil.coupling_errors(columns)
    linear = linear + _real_inner(moduli(z), sizes)
    linear = linear + gamma(2 * n + 4) * length * column_norms(g)
    magnitudes = np.abs(shifts)
    products = gram.error * (2.0 * length_of_w + length_of_w * length_of_w)
    products = products + gram.entry_error + gram.norm * length * length_of_w
    linear = above(linear + magnitudes * products, n + 12, TINY)
    products = gram.error * length + gram.norm * length_of_w
    weighted = weighted + magnitudes * products / least
    weighted = weighted + column_norms(g / weights) + column_norms(sizes / weights)

    # |(g - t G z) / tau|
    share = 1.0 - gram.norm
    correction = above((np.abs(inner) + linear) / share, n + 6)
    of_image = column_norms(z / weights) + gram.norm * length / least
    weighted = above(weighted + correction * of_image, n + 12, TINY)
    defects = above(weighted * weighted / (share * pencil.coercivity), 6, TINY)

    # 1 <= |z|^2 <= |y|^2 / (1 - ||S||), and inner / squares errs by 2 n + 8 roundings
    errors = np.abs(inner) * (gram.norm + (2 * n + 16) * UNIT)
    errors = above((errors + linear) / share, n + 12, TINY)
    vectors = (shifts, inner / squares, errors, defects)
    table = to_host(np.concatenate(vectors))
    return Quotients(*table)


def _real_inner(x: Array, y: Array) -> Array:
    """The real part of x^H y for columns, 1 x n, each term after n + 1 roundings."""
    terms = x.real * y.real
    if x.dtype.kind == "c" and y.dtype.kind == "c":
        terms = terms + x.imag * y.imag
    return terms.sum(axis=0, keepdims=True)


def row(x: Array, like: Array) -> Array:
    """A vector of the host as a row where another array is."""
    return to_device_of(like, x.reshape(1, -1))


def neighbours(lower: Array, upper: Array) -> tuple[Array, Array, Array]:
    """(is_separated, a, b) of ascending enclosures: a is above all smaller values, or
    minus infinity, b below all larger ones, or infinity.
    """
    below = np.concatenate([[-np.inf], upper[:-1]])
    beyond = np.concatenate([lower[1:], [np.inf]])
    return (below < lower) & (upper < beyond), below, beyond


def distance_below(a: Array, b: Array, c: Array) -> Array:
    """At most a - b - c where that is positive, for c >= 0; else not positive."""
    return ((a - b) * (1.0 - 4.0 * UNIT) - c) * (1.0 - 4.0 * UNIT)
