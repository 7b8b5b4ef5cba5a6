"""lstsq: solutions of least squares, and of least norm, with a radius for every entry.

Idea
    For B with full column rank, (s, x) of the augmented system

        [ I    B ] [s]   [f]
        [ B^H  0 ] [x] = [h]

    is the residual and the solution of least squares for h = 0, and for f = 0 the s of
    least norm with B^H s = h and its multipliers. Its condition is that of B and not
    its square, if R is made from a thin QR factorisation, B ~ Q U, V ~ U^-1:

        R = [ I - Q Q^H   Q V^H ]      I - R M = [ -Q W^H   -(B - Q T) ]
            [ V Q^H      -V V^H ],               [  V W^H    I - V T   ],

    M the augmented matrix, W = B V - Q, T = Q^H B. None of the m x m blocks is made:
    O(m n^2) time and O(m n) memory.
Bound
    As in `certificate`, with weights v = (1, ..., 1, w, ..., w), w of the size of V:
    |I - R M| v <= a v, a < 1, proves that M is nonsingular, so that B has full rank,
    and |error| <= y + max(y / v) / (1 - a) |I - R M| v.
    Each product D of X and Y, to an accuracy r, is off by at most
    r |X||Y| + u |X Y| + eta, and |X Y| is known from what D comes close to.
Scaling
    Columns of B, and right sides, by powers of two where no bit is lost. Rows of B
    keep their weights. If m = n the solution is A^-1 b whatever their weights are, so
    rows are scaled too: the system is solved as `solve` does it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from hifigemm.base.exceptions import VerificationError
from hifigemm.base.transforms import opaque
from hifigemm.linalg.arguments import (
    in_dtype,
    wide_operands,
)
from hifigemm.linalg.arrays import (
    check_finite,
    correct_residual,
    identity,
    inverse,
    matmul,
    numbers,
    product_of_numbers,
    thin_qr,
)
from hifigemm.linalg.certificate import accuracy_of_product, bound_in_words
from hifigemm.linalg.inverse import certified_system
from hifigemm.linalg.refinement import enclosure
from hifigemm.linalg.scaling import scaled, scaled_columns
from hifigemm.linalg.solution import VerifiedSolution, solutions
from hifigemm.linalg.upward import UNIT, above, gamma, moduli
from hifigemm.numerics.bits import LEAST, Array, DType

_MOST_STEPS = 30
_ADVICE = (
    "What helps: remove columns that depend on others, choose another basis, such as orthogonal polynomials for "
    "powers, or bring the weights of rows closer together"
)
"""What to do about matrices without full rank."""


@opaque
def lstsq(a: object, b: object) -> VerifiedSolution:
    """The x that minimises ``|b - A x|``, or of least norm with ``A x = b``, and a radius
    for every entry.

    Parameters
    ----------
    a : array_like
        Shape (..., m, n), of full rank; dtype as for `solve`.
    b : array_like
        A vector (m,), if it has one axis, or matrices (..., m, k). Stacks broadcast.

    Returns
    -------
    VerifiedSolution
        ``.x`` and ``.radius``, of shape (..., n) or (..., n, k): ``|x - x*| <= radius``
        in every entry. For m >= n, ``x*`` is the solution of least squares, for m < n
        that of least norm.

    Raises
    ------
    VerificationError
        Full rank could not be proven: from a condition of A of about 1e14 / m on, if
        m = n from 1e30 on as for `solve`. Of a stack the attribute ``solution`` has what
        was proven.
    LinAlgError, ValueError, TypeError
        Shapes or dtypes that do not fit; arrays that JAX traces.

    Examples
    --------
    >>> import hifigemm.linalg
    >>> hifigemm.linalg.lstsq([[1.0], [1.0], [1.0]], [1.0, 2.0, 6.0]).x
    array([3.])
    """
    operands = wide_operands(a=a, b=b)
    a, b = operands.arrays
    if a.ndim < 2:
        raise np.linalg.LinAlgError(f"a has shape {a.shape}; expected matrices")
    solve = partial(_in_range, dtype=operands.dtype)
    return solutions(operands, a, b, solve)[0]


def _in_range(a: Array, b: Array, dtype: DType) -> tuple[Array, Array, None]:
    """x in a dtype and its radius, all of them finite, without a report."""
    check_finite(a=a, b=b)
    x, radius = _solved(a, b)
    x, radius = in_dtype(x, radius, dtype)
    is_finite = np.isfinite(x) & np.isfinite(radius)
    if not is_finite.all():
        raise VerificationError(
            f"{x.size - int(np.count_nonzero(is_finite))} of {x.size} entries of x lie beyond the range of {x.dtype}, "
            "or their bounds do. What helps: b times a power of two, or other units for the columns of a"
        )
    return x, radius, None


def _solved(a: Array, b: Array) -> tuple[Array, Array]:
    """x and its radius in float64 or complex128."""
    m, n = a.shape
    if m == n:
        return _solved_square(a, b)
    dtype = np.result_type(a.dtype, b.dtype)
    if m > n:
        tall, columns = scaled_columns(a)
        f, sides = scaled_columns(b)
        h = np.zeros((n, b.shape[1]), dtype, like=b)
    else:
        # B = A^H, whose columns are the equations
        tall, columns = scaled_columns(a.conj().T)
        h, sides = scaled_columns(scaled(b, columns.T))
        if not (scaled(h, -sides - columns.T) == b).all():
            # A bit would be lost: nothing is scaled.
            tall = a.conj().T
            columns = np.zeros((1, m), int, like=a)
            h = b
            sides = np.zeros((1, b.shape[1]), int, like=b)
        f = np.zeros((n, b.shape[1]), dtype, like=b)

    system = AugmentedSystem.of(tall)
    s, x, radius_of_s, radius_of_x = system.enclosure(f, h)
    if m < n:
        return _restored(s, radius_of_s, -sides)
    return _restored(x, radius_of_x, columns.T - sides)


def _solved_square(a: Array, b: Array) -> tuple[Array, Array]:
    """A^-1 b and its radius."""
    certified = certified_system(a, b)
    certificate = certified.certificate
    enclosed = enclosure(certified.system, certificate, certificate.words)
    return certified.system.restored(enclosed.x, enclosed.of_one_word())


def _restored(x: Array, radius: Array, exponents: Array) -> tuple[Array, Array]:
    """Both in the units of the system as it came, with the rounding of those that are
    subnormal.
    """
    result = scaled(x, exponents)
    bound = scaled(radius, exponents)
    is_exact = scaled(result, -exponents) == x
    is_exact &= scaled(bound, -exponents) == radius
    return result, np.where(is_exact, bound, above(bound, 1, LEAST))


class _Update(NamedTuple):
    """R q for the residual q of s and x: what they are changed by."""

    ds: Array
    dx: Array
    of_s: Array
    """A bound of |R q*|, q* the exact residual, for s."""
    of_x: Array
    """The same for x."""

    def has_halved(self, before: _Update) -> Any:
        """For each right side, True if some bound is less than half of one before."""
        of_s = (self.of_s < 0.5 * before.of_s).any(axis=0)
        of_x = (self.of_x < 0.5 * before.of_x).any(axis=0)
        return of_s | of_x

    def chosen(self, is_better: Array, before: _Update) -> _Update:
        """This update or the one before, for each right side."""
        pairs = zip(self, before, strict=True)
        return _Update(*(np.where(is_better, x, y) for x, y in pairs))


@dataclass(frozen=True, eq=False)
class AugmentedSystem:
    """B with the factors that make R, and what bounds I - R M."""

    b: Array
    q: Array
    v: Array
    """V, close to the inverse of U."""
    t: Array
    """T to an accuracy."""
    accuracy: float
    """r of all products, in modulus."""
    gap_of_q: Array
    """At least |fl(D - Q)|, D = B V to an accuracy."""
    gap_of_b: Array
    """At least |fl(B - D)|, D = Q T."""
    gap_of_identity: Array
    """At least |fl(I - D)|, D = V T."""
    weight: float
    """w, a power of two."""

    @classmethod
    def of(cls, b: Array) -> AugmentedSystem:
        """The system of B, m x n with m >= n.

        Raises VerificationError: U has no inverse.
        """
        m, n = b.shape
        q, u = thin_qr(b)
        try:
            v = inverse(u)
        except np.linalg.LinAlgError:
            v = np.full(u.shape, np.nan, u.dtype)
        if not np.isfinite(v).all():
            raise VerificationError(
                f"the matrix ({m} x {n}) is rank-deficient or nearly so: no proof that it has full rank. The "
                f"triangular factor of a QR factorisation in float64 has no inverse. {_ADVICE}"
            )

        # The four blocks of R M, with all numbers by their moduli, decide the accuracy
        size_of_b = moduli(b)
        size_of_q = moduli(q)
        size_of_v = moduli(v)
        image_of_x = size_of_q.T @ (size_of_b @ np.ones((n, 1), like=b))
        image_of_s = size_of_v.T @ (size_of_b.T @ np.ones((m, 1), like=b))
        largest, x_to_x, x_to_s, s_to_s, s_to_x = numbers(
            size_of_v.sum(axis=1).max(initial=1.0),
            (size_of_v @ image_of_x).max(initial=0.0),
            (size_of_q @ image_of_x).max(initial=0.0),
            (size_of_q @ image_of_s).max(initial=0.0),
            (size_of_v @ image_of_s).max(initial=0.0),
        )
        weight = 2.0 ** math.frexp(largest)[1]
        size = max(x_to_x, x_to_s * weight, s_to_s, s_to_x / weight)
        is_complex = b.dtype.kind == "c"
        accuracy = accuracy_of_product(4.0 * size, max(m, n), is_complex)

        t = product_of_numbers(q.conj().T, b, accuracy)
        image_of_v = product_of_numbers(b, v, accuracy)
        image_of_t = product_of_numbers(q, t, accuracy)
        near_identity = product_of_numbers(v, t, accuracy)
        return cls(
            b=b,
            q=q,
            v=v,
            t=t,
            accuracy=1.5 * accuracy if is_complex else accuracy,
            gap_of_q=moduli(image_of_v - q),
            gap_of_b=moduli(b - image_of_t),
            gap_of_identity=moduli(identity(n, like=b) - near_identity),
            weight=weight,
        )

    def contraction(self, of_s: Array, of_x: Array) -> tuple[Array, Array]:
        """Upper bounds of |I - R M| (of_s; of_x), both nonnegative, by blocks."""
        r = self.accuracy
        q = moduli(self.q)
        v = moduli(self.v)
        b = moduli(self.b)
        t = moduli(self.t)

        # |W|^H of_s, W = B V - Q
        image_of_w = matmul(self.gap_of_q.T, of_s)
        image_of_w = image_of_w + r * matmul(v.T, matmul(b.T, of_s))
        image_of_w = image_of_w + UNIT * matmul(q.T, of_s)

        # |T - T~| of_x, T~ the exact product Q^H B
        gap_of_t = r * matmul(q.T, matmul(b, of_x)) + UNIT * matmul(t, of_x)

        # |B - Q T| of_x and |I - V T| of_x
        images = matmul(t, of_x)
        gap_of_b = matmul(self.gap_of_b, of_x) + r * matmul(q, images)
        gap_of_b = gap_of_b + UNIT * matmul(b, of_x)
        gap_of_identity = matmul(self.gap_of_identity, of_x)
        gap_of_identity = gap_of_identity + r * matmul(v, images) + UNIT * of_x

        # The rows of blocks, of s and of x
        rows_of_s = matmul(q, image_of_w + gap_of_t) + gap_of_b
        rows_of_x = matmul(v, image_of_w + gap_of_t) + gap_of_identity
        return self._above(rows_of_s, of_s, of_x), self._above(rows_of_x, of_s, of_x)

    def norm(self) -> float:
        """a, at least max(|I - R M| v / v)."""
        of_s, of_x = self._weighted_bounds()
        relative_of_x = of_x / self.weight
        return max(numbers(of_s.max(initial=0.0), relative_of_x.max(initial=0.0)))

    def enclosure(self, f: Array, h: Array) -> tuple[Array, Array, Array, Array]:
        """s, x and their radii for the right sides f and h.

        Raises VerificationError: B is not proven to have full rank.
        """
        m, n = self.b.shape
        norm = self.norm()
        if not norm < 1.0:
            raise VerificationError(
                f"the matrix ({m} x {n}) is rank-deficient or nearly so (condition about {self.weight:.0e} after "
                "scaling of columns): no proof that it has full rank by a QR factorisation in float64 (bound of the "
                f"norm of I - R M, which has to be below 1: {bound_in_words(norm)}). {_ADVICE}"
            )
        s, x, update = self._refined(f, h)
        radius_of_s, radius_of_x = self._radius(update.of_s, update.of_x, norm)
        is_zero = (f == 0.0).all(axis=0) & (h == 0.0).all(axis=0)
        radius_of_s = np.where(is_zero, 0.0, radius_of_s)
        radius_of_x = np.where(is_zero, 0.0, radius_of_x)
        return s, x, radius_of_s, radius_of_x

    def _refined(self, f: Array, h: Array) -> tuple[Array, Array, _Update]:
        """s and x, and the update that refines no right side further."""
        s = np.zeros_like(f)
        x = np.zeros_like(h)
        update = self._update(s, x, f, h)
        for _ in range(_MOST_STEPS):
            next_s = s + update.ds
            next_x = x + update.dx
            if (next_s == s).all() and (next_x == x).all():
                break
            following = self._update(next_s, next_x, f, h)
            bound = self._largest(update.of_s, update.of_x)
            is_better = self._largest(following.of_s, following.of_x) <= bound
            has_gained = is_better & following.has_halved(update)

            # Right sides that became worse stay as they were
            s = np.where(is_better, next_s, s)
            x = np.where(is_better, next_x, x)
            update = following.chosen(is_better, update)
            if not has_gained.any():
                break
        return s, x, update

    def _update(self, s: Array, x: Array, f: Array, h: Array) -> _Update:
        """R q, close to the errors of s and x, and bounds of |R q*|, q* the exact
        residual.

        R q = (q1 - Q z, V z) with z = Q^H q1 - V^H q2.
        """
        m, n = self.b.shape
        k = x.shape[1]
        left = np.concatenate([self.b, s], axis=1)
        right = np.concatenate([x, identity(k, like=x)])
        q1 = correct_residual(left, right, f)
        q2 = correct_residual(self.b.conj().T, s, h)
        q = moduli(self.q)
        v = moduli(self.v)

        # z, and a bound of its distance from the one of q*
        z = matmul(self.q.conj().T, q1) - matmul(self.v.conj().T, q2)
        share_of_q1 = self._gamma(m) + 2.0 * UNIT
        share_of_q2 = self._gamma(n) + 2.0 * UNIT
        of_z = share_of_q1 * matmul(q.T, moduli(q1))
        of_z = of_z + share_of_q2 * matmul(v.T, moduli(q2))
        of_z = of_z + UNIT * moduli(z) + self._gamma(n) * moduli(z)

        # Errors of Q z and V z in one with those of z
        ds = q1 - matmul(self.q, z)
        dx = matmul(self.v, z)
        size_of_s = moduli(ds)
        of_s = size_of_s + 2.0 * UNIT * (moduli(q1) + size_of_s)
        of_s = of_s + matmul(q, of_z)
        of_x = moduli(dx) + matmul(v, of_z)
        sizes = moduli(q1), moduli(q2)
        return _Update(ds, dx, self._above(of_s, *sizes), self._above(of_x, *sizes))

    def _radius(self, of_s: Array, of_x: Array, norm: float) -> tuple[Array, Array]:
        """Bounds of the errors of s and x, from those of R q*."""
        beta = above(self._largest(of_s, of_x) / (1.0 - norm), 3)
        bounds_of_s, bounds_of_x = self._weighted_bounds()
        error_of_s = above(of_s + beta * bounds_of_s, 2, LEAST)
        error_of_x = above(of_x + beta * bounds_of_x, 2, LEAST)

        # Once more, the errors being R q* and what I - R M makes of them
        image_of_s, image_of_x = self.contraction(error_of_s, error_of_x)
        return above(of_s + image_of_s, 1), above(of_x + image_of_x, 1)

    def _weighted_bounds(self) -> tuple[Array, Array]:
        """|I - R M| v."""
        m, n = self.b.shape
        of_s = np.ones((m, 1), like=self.b)
        of_x = np.full((n, 1), self.weight, like=self.b)
        return self.contraction(of_s, of_x)

    def _largest(self, of_s: Array, of_x: Array) -> Array:
        """max(y / v) of each right side; w is a power of two."""
        largest_of_s = of_s.max(axis=0, keepdims=True, initial=0.0)
        largest_of_x = of_x.max(axis=0, keepdims=True, initial=0.0)
        return above(np.maximum(largest_of_s, largest_of_x / self.weight), 1)

    def _gamma(self, terms: int) -> float:
        """The share of a sum that its roundings may be, complex ones in modulus."""
        if self.b.dtype.kind == "c":
            return 1.5 * gamma(2 * terms)
        return gamma(terms)

    def _above(self, bound: Array, *vectors: Array) -> Array:
        """An upper bound of sums that pass at most three products in a row.

        Products of two numbers that underflow lose at most eta / 2 each, and sums of
        rows or columns of Q and V may enlarge that twice.
        """
        m, n = self.b.shape
        largest = vectors[0].max(initial=0.0)
        for x in vectors[1:]:
            largest = np.maximum(largest, x.max(initial=0.0))
        underflows = 8.0 * (m + n + 8) * LEAST * (1.0 + largest) * self._enlargement
        return above(bound, 2 * (m + 2 * n) + 40, underflows)

    @cached_property
    def _enlargement(self) -> float:
        """More than sums of rows and columns of Q and V, twice in a row."""
        sums = []
        for x in (moduli(self.q), moduli(self.v)):
            sums.append(x.sum(axis=0).max(initial=0.0))
            sums.append(x.sum(axis=1).max(initial=0.0))
        factor = 1.0 + 2.0 * max(numbers(*sums))
        return factor * factor
