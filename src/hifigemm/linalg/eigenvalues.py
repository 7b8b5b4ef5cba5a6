"""eigvalsh: all eigenvalues of a Hermitian matrix, with a radius for each.

Idea
    X and the real D come from any solver, R = A X - X D. For D in ascending order

        |lambda_i - d_i| <= ||R||_2 / sigma_min(X)   for all i [CXL96],

    clusters included: with X = Q P, P >= sigma_min(X), and (Q^H A Q - D) u = t u of the
    largest |t|, Re u^H Q^H R u = t u^H P u, as D P - P D is skew; Weyl's inequality is
    the rest. And sigma_min(X)^2 >= 1 - ||X^H X - I||.
Separated ones
    Where these radii tell an eigenvalue from all others, the open interval (a, b) holds
    it alone, and for theta in it, the Rayleigh quotient of y, with s = (A - theta) y,

        theta - q / (b - theta) <= lambda <= theta + q / (theta - a),
        q = |s|^2 / |y|^2 [Kat49].

    `separated` makes y of X and w; K(0) = X^H A X = D + S D + X^H R.
Scaling
    By one power of two; numbers that underflow then are a part of the radius.

References
----------
    [CXL96] Cao, Xie, Li: A sharp version of Kahan's theorem on clustered eigenvalues,
    Linear Algebra Appl. 245, 1996; [Kat49] in `separated`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hifigemm.base.exceptions import VerificationError
from hifigemm.base.transforms import is_traced, opaque
from hifigemm.linalg.arguments import check_hermitian, check_square, wide_operands
from hifigemm.linalg.arrays import check_finite, eigenvectors, matmul, to_host
from hifigemm.linalg.decompositions import (
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
from hifigemm.numerics.eft import two_sum


@opaque
def eigvalsh(a: Any) -> VerifiedValues:
    """All eigenvalues of a symmetric or Hermitian matrix, in ascending order, and a radius
    for each.

    Parameters
    ----------
    a : array_like
        Shape (..., n, n), equal to its own conjugate transpose; dtype as for `solve`.

    Returns
    -------
    VerifiedValues
        ``.values`` and ``.radius``, of shape (..., n): ``|values - exact| <= radius``
        in every entry, multiple eigenvalues included. The radius of an eigenvalue that
        is well separated from the others is a few units in its last place; for matrices
        with up to a hundred rows this holds down to about 1e-12 of the norm. The radius
        of an eigenvalue in a cluster is a few units in the last place of the norm.

    Raises
    ------
    VerificationError
        An entry is Inf or NaN, an eigenvalue lies beyond the range of the dtype, or the
        underlying solver fails. For a stack the attribute ``solution`` has the proven
        values, with NaN and infinite radii elsewhere.
    ValueError
        The matrix differs from its conjugate transpose.
    LinAlgError, TypeError
        The matrices are not square. JAX differentiates the array, or the tensor
        requires a gradient.

    Examples
    --------
    >>> import hifigemm.linalg
    >>> hifigemm.linalg.eigvalsh([[2.0, 1.0], [1.0, 2.0]]).values
    array([1., 3.])
    """
    if is_traced(a):
        from hifigemm.linalg import jax_bounds

        check_square(a)
        return jax_bounds.values(eigvalsh, a, a.shape[-1])
    operands = wide_operands(a=a)
    (array,) = operands.arrays
    check_square(array)
    return verified_values(operands, array.shape[-1], _eigenvalues)


def _eigenvalues(a: Array) -> Enclosure:
    """The eigenvalues of one matrix."""
    check_finite(a=a)
    check_hermitian(a)
    matrix = scaled_matrix(a)
    return matrix.restored(*_enclosure(matrix.array))


def _enclosure(a: Array) -> Enclosure:
    """The eigenvalues of a matrix in scale."""
    d, x = eigenvectors(a)
    values = to_host(d)
    check_ordered(np.diff(values), "eigh")
    d = row(values, like=a)
    residual_of_x = residual(a, x, x, d)
    gram_of_x = gram(x)
    if not gram_of_x.norm < 1.0:
        raise VerificationError(
            f"eigenvectors of the library are not linearly independent: the norm of X^H X - I is {gram_of_x.norm:.2g}, "
            "and has to be below 1"
        )

    # All of them
    radius = residual_of_x.norm / math.sqrt(1.0 - gram_of_x.norm)
    radii = np.full(len(values), above(radius, 4))
    lower = np.nextafter(values - radii, -np.inf)
    upper = np.nextafter(values + radii, np.inf)

    # Those that are separated by it
    is_separated, below, beyond = neighbours(lower, upper)
    if not is_separated.any():
        return values, radii
    if not residual_of_x.is_enough_for(np.abs(values[is_separated]).min()):
        residual_of_x = sharp_residual(a, x, x, d)
    pencil = _pencil(x, d, residual_of_x, gram_of_x)
    quotients = separated_quotients(pencil, row(is_separated, like=a))
    sharp, bounds = _kato_temple(quotients, below, beyond)
    is_better = is_separated & (bounds < radii) & (lower <= sharp) & (sharp <= upper)
    return np.where(is_better, sharp, values), np.where(is_better, bounds, radii)


def _kato_temple(quotients: Quotients, a: Array, b: Array) -> Enclosure:
    """Eigenvalues that are alone in (a, b), and radii."""
    shifts = quotients.shifts
    distance = np.abs(quotients.corrections) + quotients.errors
    distance = above(distance, 2)
    to_beyond = distance_below(b, shifts, distance)
    to_below = distance_below(shifts, a, distance)
    nearest = np.minimum(to_beyond, to_below)
    values, remainders = two_sum(shifts, quotients.corrections)
    radii = np.abs(remainders) + quotients.errors + quotients.defects / nearest
    return values, np.where(nearest > 0.0, above(radii, 4), np.inf)


@dataclass(frozen=True, eq=False)
class _HermitianPencil(Pencil):
    """M = S D + X^H R, without weights."""

    size: float
    """At least the Frobenius norm of `coupling`."""
    error: float
    """At least that of its error, but for that of S."""

    def weights(self) -> float:
        """Ones: s^H s = g^H (X^H X)^-1 g."""
        return 1.0

    @property
    def coercivity(self) -> float:
        """X^H X >= 1 - ||S||."""
        return 1.0 - self.gram.norm

    def coupling_errors(self, columns: Columns) -> tuple[Array, Array]:
        """F z = dS D z + dC z, and roundings of the product by w.

        In z^H dS D z the entry of i, which is small, counts alone.
        """
        gram = self.gram
        share = share_of_product(self.coupling) * self.size
        of_others = columns.scaled_w + self.scales * columns.w
        of_others = of_others + columns.w * columns.scaled_w
        linear = self.scales * gram.entry_error + gram.error * of_others
        products = self.error * columns.z + share * columns.w
        weighted = gram.error * columns.scaled_z + products
        return linear + columns.z * products, weighted


def _pencil(
    x: Array, d: Array, residual_of_x: Residual, gram_of_x: Gram
) -> _HermitianPencil:
    """The pencil of A in the coordinates of X."""
    product = gram_of_x.gap * d
    image = matmul(x.conj().T, residual_of_x.matrix)
    coupling = product + image

    # Roundings of two products and a sum, and the error of R
    share = share_of_product(x)
    error = share * norm_of(x) * residual_of_x.size
    error = error + math.sqrt(1.0 + gram_of_x.norm) * residual_of_x.error
    error = error + 2.0 * UNIT * (norm_of(product) + norm_of(image))
    return _HermitianPencil(
        values=d,
        second_values=0.0 * d,
        coupling=coupling,
        gram=gram_of_x,
        scales=np.abs(d),
        least_weights=0.0 * d + 1.0,
        size=norm_of(coupling),
        error=above(error, 12),
    )
