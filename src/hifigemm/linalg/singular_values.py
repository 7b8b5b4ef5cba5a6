"""svdvals: all singular values of a matrix, with a radius for each.

Idea
    U (m x n), S >= 0 in descending order and V (n x n) come from any solver, m >= n (else
    A^H is meant), R = A V - U S. By Ostrowski's theorem for A V and for U S, and Weyl's
    between them,

        (s_i sigma_min(U) - ||R||) / sigma_max(V) <= sigma_i
            <= (s_i sigma_max(U) + ||R||) / sigma_min(V)   for all i [HJ13],

    clusters and zeros included. With d(X) >= ||X^H X - I||, the singular values of U
    and V lie between 1 - d and 1 + d / 2.
Separated ones
    A^H A in the coordinates of V, with U^H U = I + S_U and V^H V = I + S_V:

        K(0) = V^H A^H A V = S^2 + S S_U S + S U^H R + R^H U S + R^H R.

    If (a, b) holds one eigenvalue lambda of A^H A and its Rayleigh quotient theta for y,
    (x - lambda) (x - b) / (x + mu) is nonnegative at all eigenvalues, mu > 0, so

        theta - lambda <= q (b + mu) / (b - theta),
        q = s^H (A^H A + mu)^-1 s / |y|^2,  s = (A^H A - theta) y,

    and for the other side (x - lambda) (x - a) / (x + mu) gives

        lambda - theta <= (lambda + mu) (a + mu) q / ((theta + mu) (theta - a)).

    That is the inequality of Kato and Temple [Kat49] with weights. With mu of the size
    of theta a small singular value has a bound relative to itself: errors in the
    directions of large ones are divided by these.
Weights
    mu = t^2, t = max(s_i, 8 ||R||). For all x, |A V x| >= sigma_min(U) |S x| - ||R|| |x|,
    so (p - r)^2 >= (1 - h) p^2 - (1 / h - 1) r^2 with h = ||R|| / t <= 1/8 shows

        K(0) + mu V^H V >= (7/8 - d(U) - d(V)) T^2,  T = max(S, t).

References
----------
    [HJ13] Horn, Johnson: Matrix Analysis, 2nd ed., 2013, Theorem 4.5.9 and Corollary
    7.3.5; [Kat49] in `separated`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hifigemm.base.exceptions import VerificationError
from hifigemm.base.transforms import is_traced, opaque
from hifigemm.linalg.arguments import wide_operands
from hifigemm.linalg.arrays import matmul, singular_vectors, to_host
from hifigemm.linalg.decompositions import (
    TINY,
    Gram,
    Residual,
    gram,
    norm_of,
    residual,
    share_of_product,
    sharp_residual,
)
from hifigemm.linalg.separated import (
    Columns,
    Pencil,
    Quotients,
    distance_below,
    neighbours,
    row,
    separated_quotients,
)
from hifigemm.linalg.upward import UNIT, above
from hifigemm.linalg.values import (
    Enclosure,
    VerifiedValues,
    check_ordered,
    scaled_matrix,
    verified_values,
)
from hifigemm.numerics.bits import Array
from hifigemm.numerics.eft import two_product

_LEAST_WEIGHT = 2.0**-150
"""Its square may divide numbers that lost a few eta: see `decompositions.TINY`."""


@opaque
def svdvals(a: Any) -> VerifiedValues:
    """All singular values, in descending order, and a radius for each.

    Parameters
    ----------
    a : array_like
        Shape (..., m, n), of any rank; dtype as for `solve`.

    Returns
    -------
    VerifiedValues
        ``.values`` and ``.radius``, of shape (..., min(m, n)): ``|values - exact| <=
        radius`` in every entry, multiple singular values and zeros included. The radius
        of a singular value that is well separated from the others is a few units in its
        last place; for matrices with some tens of columns this holds down to about
        1e-12 of the largest one.

    Raises
    ------
    VerificationError
        An entry is Inf or NaN, a value lies beyond the range of the dtype, or the
        underlying solver fails. For a stack the attribute ``solution`` has the proven
        values, with NaN and infinite radii elsewhere.
    LinAlgError, TypeError
        The operand is not a matrix. JAX differentiates the array, or the tensor
        requires a gradient.

    Examples
    --------
    >>> import hifigemm.linalg
    >>> hifigemm.linalg.svdvals([[3.0, 0.0], [4.0, 5.0]]).values
    array([6.70820393, 2.23606798])
    """
    if is_traced(a):
        from hifigemm.linalg import jax_bounds

        check_matrices(a)
        return jax_bounds.values(svdvals, a, min(a.shape[-2:]))
    operands = wide_operands(a=a)
    (array,) = operands.arrays
    check_matrices(array)
    return verified_values(operands, min(array.shape[-2:]), _singular_values)


def check_matrices(a: Array) -> None:
    """Raise LinAlgError unless a is a matrix or a stack of matrices."""
    if a.ndim < 2:
        raise np.linalg.LinAlgError(
            f"a has shape {a.shape}; expected matrices (..., m, n)"
        )


def _singular_values(a: Array) -> Enclosure:
    """The singular values of one matrix."""
    matrix = scaled_matrix(a)
    return matrix.restored(*enclosure(matrix.array))


def enclosure(a: Array) -> Enclosure:
    """The singular values of a matrix in scale."""
    if a.shape[0] < a.shape[1]:
        a = a.conj().T
    u, s, v = singular_vectors(a)
    values = to_host(s)
    check_ordered(np.append(-np.diff(values), values[-1]), "svd")
    s = row(values, like=a)
    residual_of_v = residual(a, v, u, s)
    gram_of_u = gram(u)
    gram_of_v = gram(v)
    if not (gram_of_u.norm < 0.25 and gram_of_v.norm < 0.25):
        raise VerificationError(
            "singular vectors of the library are not orthonormal: the norms of U^H U - I and V^H V - I are "
            f"{gram_of_u.norm:.2g} and {gram_of_v.norm:.2g}, and have to be below 1/4"
        )

    # All of them: at most (s (d(U) + d(V)) + ||R||) / (1 - d(V)) off
    radii = values * (gram_of_u.norm + gram_of_v.norm) + residual_of_v.norm
    radii = above(radii / (1.0 - gram_of_v.norm), 6)
    lower = np.maximum(np.nextafter(values - radii, -np.inf), 0.0)
    upper = np.nextafter(values + radii, np.inf)

    # Those that are separated by it; from the least to the largest
    is_separated, below, beyond = neighbours(lower[::-1], upper[::-1])
    is_separated = is_separated[::-1]
    if not is_separated.any():
        return values, radii
    if not residual_of_v.is_enough_for(values[is_separated].min()):
        residual_of_v = sharp_residual(a, v, u, s)
    pencil = _pencil(s, u, residual_of_v, gram_of_u, gram_of_v)
    quotients = separated_quotients(pencil, row(is_separated, like=a))
    weights = to_host(pencil.least_weights)[0]
    sharp, bounds = _kato_temple(quotients, below[::-1], beyond[::-1], lower, weights)
    is_better = is_separated & (bounds < radii) & (lower <= sharp) & (sharp <= upper)
    return np.where(is_better, sharp, values), np.where(is_better, bounds, radii)


def _kato_temple(
    quotients: Quotients, below: Array, beyond: Array, lower: Array, weights: Array
) -> Enclosure:
    """Singular values that are alone between `below` and `beyond` and not less than
    `lower`, and radii; sqrt(mu) are `weights`.
    """
    shifts = quotients.shifts
    corrections = quotients.corrections
    mu = weights * weights
    distance = above(np.abs(corrections) + quotients.errors, 2)
    theta = above(np.abs(shifts) + distance, 1)

    # (a, b) for the squares; the least one is alone above -mu
    a = np.where(below > 0.0, above(below * below, 1), -mu * (1.0 - 4.0 * UNIT))
    b = beyond * beyond * (1.0 - 4.0 * UNIT)
    to_beyond = distance_below(b, shifts, distance)
    to_below = distance_below(shifts, a, distance)
    nearest = np.minimum(to_beyond, to_below)

    # (b + mu) / (b - theta) = 1 + (theta + mu) / (b - theta), and for the other side the
    # quotient k of lambda - theta and lambda + mu is at most q / (theta - a)
    quotient = above(quotients.defects / nearest, 1)
    defects = (theta + mu) * quotient / (1.0 - quotient) + quotients.defects

    # lambda - v^2 for v near the root, and v + sigma >= v + lower
    values = np.sqrt(np.maximum(shifts + corrections, 0.0))
    squares, errors = two_product(values, values)
    difference = shifts - squares
    remainders = np.abs((difference - errors) + corrections)
    sizes = np.abs(difference) + np.abs(errors) + np.abs(corrections)
    remainders = remainders + 4.0 * UNIT * sizes + quotients.errors + defects
    radii = above(above(remainders, 8, TINY) / (values + lower), 3)
    is_proven = (nearest > 0.0) & (quotient < 0.5) & (values > 0.0)
    return values, np.where(is_proven, radii, np.inf)


@dataclass(frozen=True, eq=False)
class _Sizes:
    """|x^H F y| <= f2 |S x||S y| + f1 (|S x||y| + |x||S y|) + f0 |x||y|, as is so for
    F = S F2 S + S F1 + F1^H S + F0 with these bounds of Frobenius norms.
    """

    f2: float
    f1: float
    f0: float

    def form(self, x: Array, scaled_x: Array, y: Array, scaled_y: Array) -> Array:
        """The bound, from lengths."""
        mixed = scaled_x * y + x * scaled_y
        return self.f2 * scaled_x * scaled_y + self.f1 * mixed + self.f0 * x * y

    def image(self, y: Array, scaled_y: Array, least: Array) -> Array:
        """At least |F y / T|, where T is no less than S and `least`."""
        of_r = self.f1 * scaled_y + self.f0 * y
        return self.f2 * scaled_y + self.f1 * y + of_r / least


@dataclass(frozen=True, eq=False)
class _GramPencil(Pencil):
    """M = S S_U S + S U^H R + R^H U S + R^H R, with T as weights."""

    gram_of_u: Gram
    sizes: _Sizes
    """Of M."""
    errors: _Sizes
    """Of its error, but for that of S_U."""

    def weights(self) -> Array:
        """T = max(s_j, t_i)."""
        return np.maximum(self.scales.reshape(-1, 1), self.least_weights)

    @property
    def coercivity(self) -> float:
        """7/8 - d(U) - d(V)."""
        return 0.875 - 2.0 * UNIT - self.gram_of_u.norm - self.gram.norm

    def coupling_errors(self, columns: Columns) -> tuple[Array, Array]:
        """F z: the error of S_U, where in z^H F z the entry of i counts alone, those of
        the other terms, and roundings of the product by w.
        """
        gram = self.gram_of_u
        z, w, scaled_z, scaled_w = (
            columns.z,
            columns.w,
            columns.scaled_z,
            columns.scaled_w,
        )
        share = share_of_product(self.coupling)
        of_others = (2.0 * self.scales + scaled_w) * scaled_w
        linear = self.scales * self.scales * gram.entry_error + gram.error * of_others
        linear = linear + self.errors.form(z, scaled_z, z, scaled_z)
        linear = linear + share * self.sizes.form(z, scaled_z, w, scaled_w)

        least = self.least_weights
        weighted = gram.error * scaled_z + self.errors.image(z, scaled_z, least)
        return linear, weighted + share * self.sizes.image(w, scaled_w, least)


def _pencil(
    s: Array, u: Array, residual_of_v: Residual, gram_of_u: Gram, gram_of_v: Gram
) -> _GramPencil:
    """The pencil of A^H A in the coordinates of V."""
    r = residual_of_v.matrix
    rows = s.reshape(-1, 1)
    image = matmul(u.conj().T, r)
    square = matmul(r.conj().T, r)
    mixed = rows * image
    coupling = rows * gram_of_u.gap * s + (mixed + mixed.conj().T) + square
    size_of_image = norm_of(image)
    size_of_square = norm_of(square)
    sizes = _Sizes(gram_of_u.size, size_of_image, size_of_square)

    # Errors of products, of R in them, and five roundings of each term
    share = share_of_product(u)
    size = residual_of_v.size
    error = residual_of_v.error
    error_of_image = share * norm_of(u) * size + (1.0 + gram_of_u.norm) * error
    error_of_square = share * size * size + (2.0 * size + error) * error
    errors = _Sizes(
        above(5.0 * UNIT * sizes.f2, 2),
        above(error_of_image + 5.0 * UNIT * sizes.f1, 8),
        above(error_of_square + 5.0 * UNIT * sizes.f0, 8),
    )
    values, second_values = two_product(s, s)
    least = max(above(8.0 * residual_of_v.norm, 1), _LEAST_WEIGHT)
    return _GramPencil(
        values=values,
        second_values=second_values,
        coupling=coupling,
        gram=gram_of_v,
        scales=s,
        least_weights=np.maximum(s, least),
        gram_of_u=gram_of_u,
        sizes=sizes,
        errors=errors,
    )
