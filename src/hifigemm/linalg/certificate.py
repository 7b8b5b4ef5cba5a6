"""The proof that a matrix is nonsingular, and what it says of solutions.

Idea
    R is an approximate inverse of A, whatever computed it, and G = I - R A. If
    |G| v <= a v with a < 1 for some v > 0, then A and R are nonsingular
    [Rum10, Theorem 10.2], and for every x~

        A^-1 b - x~ = (I - G)^-1 R (b - A x~),   (I - G)^-1 = I + G (I - G)^-1.

    Here v = e = (1, ..., 1), so a bounds the sums of rows of |G|. The bound of |G| is a
    matrix that is never written down: only its products with vectors are needed.
Bound
    D is R A to an accuracy r: |D - R A| <= r |R||A| + u |R A| + eta. With
    |R A| <= I + |G| follows

        |G| <= (1 + 3 u) (F + r |R||A| + u I + eta E),   F >= |fl(I - D)|,

    E the matrix of ones. For complex A the promise of D holds for re and im, so r is
    multiplied by the square root of 2.
Words
    R may be a sum of words, R1 + R2, side by side in one array: R A is the product of
    [R1 R2] and A above A, and |R| is |R1| + |R2|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hifigemm.linalg.arrays import diagonal, matmul, numbers, product_of_numbers
from hifigemm.linalg.upward import UNIT, above, gamma, moduli
from hifigemm.numerics.bits import LEAST, Array

SHARE_OF_PRODUCT = 0.05
"""What the product R A may add to the norm of I - R A."""
ACCURACY_OF_UPDATE = 2.0**-20
"""Of R q relative to the error of x, in the worst case."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """An approximate inverse R of A and a bound of |I - R A|.

    Where `norm` is less than 1, A is nonsingular.
    """

    inverse: Array
    """R, n x n, or its words side by side."""
    inverse_moduli: Array
    """At least |R|, n x n."""
    inverse_sums: Array
    """At least |R| e, n x 1."""
    moduli: Array
    """At least |A|."""
    deviations: Array
    """F, at least |fl(I - D)|."""
    accuracy: float
    """r of D in modulus."""
    condition: float
    """The largest entry of |R| (|A| e), an estimate of || |A^-1| |A| ||."""
    row_bounds: Array
    """At least |I - R A| e, n x 1."""

    @cached_property
    def norm(self) -> float:
        """a, at least the norm of I - R A; Inf or NaN where R is of no use."""
        (norm,) = numbers(self.row_bounds.max(initial=0.0))
        return norm

    @property
    def is_proof(self) -> bool:
        """True if A is proven to be nonsingular."""
        return self.norm < 1.0

    @property
    def words(self) -> int:
        """Number of words of R."""
        n = len(self.moduli)
        return self.inverse.shape[1] // n if n else 1

    def contraction(self, v: Array) -> Array:
        """An upper bound of |I - R A| v for the columns of v >= 0."""
        return _contraction(
            self.deviations,
            self.inverse_moduli,
            self.inverse_sums,
            self.moduli,
            self.accuracy,
            v,
        )

    def update(self, residual: Residual) -> tuple[Array, Array]:
        """(d, y): d close to R q, and y >= |R q*| for the exact residual q*."""
        if len(residual.words) == 1 and self.words == 1:
            return self._native_update(residual)
        return self._accurate_update(residual)

    def _native_update(self, residual: Residual) -> tuple[Array, Array]:
        """|R q*| <= |d| + |R| ((gamma_n + u) |q| + errors) and what underflows,
        d = fl(R q).

        A complex product of n terms is two real ones of 2 n terms.
        """
        n = len(self.moduli)
        (q,) = residual.words
        d = matmul(self.inverse, q)

        # gamma of the sums of d; those of re and im are of all its components
        share = 1.5 * gamma(2 * n) if q.dtype.kind == "c" else gamma(n)
        sizes = (share + UNIT) * moduli(q) + residual.errors
        return d, above(moduli(d) + self._sums(sizes), 2, self._underflows())

    def _accurate_update(self, residual: Residual) -> tuple[Array, Array]:
        """|R q*| <= (1 + 2 u) |d| + |R| ((r + u^2) |q| + errors), d = R q to an
        accuracy r; u for u^2 where q is of one word.

        Where the condition exceeds 1 / u, roundings of a native product would be larger
        than R q itself. All words of R meet all words of q in one product.
        """
        count = len(residual.words)
        left = np.concatenate([self.inverse] * count, axis=1)
        right = np.concatenate([q for q in residual.words for _ in range(self.words)])
        accuracy = rung(ACCURACY_OF_UPDATE / max(self.condition, 1.0))
        d = product_of_numbers(left, right, accuracy)

        share = 1.5 * accuracy if d.dtype.kind == "c" else accuracy
        share += UNIT * UNIT if count == 2 else UNIT
        magnitudes = sum(map(moduli, residual.words[1:]), moduli(residual.words[0]))
        sizes = share * magnitudes + residual.errors
        return d, above(moduli(d) + self._sums(sizes), 5, self._underflows())

    def _sums(self, sizes: Array) -> Array:
        """At least |R| v, v >= 0 having come out of six roundings at most."""
        n = len(self.moduli)
        return above(matmul(self.inverse_moduli, sizes), n + 6, n * LEAST)

    def _underflows(self) -> Array:
        """At least what products of R and a residual, and the last rounding of the
        residual, lose below 2^-1074.
        """
        n = len(self.moduli)
        return (2 * n + 6) * LEAST * (1.0 + self.inverse_sums)

    def radius(self, y: Array) -> Array:
        """At least |A^-1 b - x~|, given y >= |R (b - A x~)| and a proof.

        First y + max(y) / (1 - a) g, g >= |G| e. What that bounds, z, satisfies
        z = R (b - A x~) + G z, so y + |G| z bounds it as well, and no worse.
        """
        largest = y.max(axis=0, keepdims=True, initial=0.0)
        beta = above(largest / (1.0 - self.norm), 2)
        first = above(y + beta * self.row_bounds, 2, LEAST)
        return above(y + self.contraction(first), 1)


@dataclass(frozen=True, eq=False)
class Residual:
    """b - A x as a sum q of words, up to u |q| + eta, for two words u^2 |q| + eta, and
    errors of their own.
    """

    words: list[Array]
    errors: Array | float = 0.0


def _contraction(
    deviations: Array,
    inverse_moduli: Array,
    inverse_sums: Array,
    moduli_of_a: Array,
    accuracy: float,
    v: Array,
) -> Array:
    """An upper bound of (1 + 3 u) (F v + r |R| (|A| v) + u v + eta E v).

    A term passes n roundings in each of two products, and seven more with those that
    stand for 1 + 3 u. Underflow takes at most eta (n + 1 + n r |R| e / 2), r <= 1.
    """
    n = len(v)
    products = matmul(inverse_moduli, matmul(moduli_of_a, v))
    terms = matmul(deviations, v) + accuracy * products + UNIT * v
    largest = v.max(axis=0, keepdims=True, initial=0.0)
    underflows = (n + 3) * LEAST * (1.0 + largest + inverse_sums)
    return above(terms, 2 * n + 7, underflows)


def prove(a: Array, inverse: Array) -> Certificate:
    """The certificate of A (n x n, float64 or complex128) by an approximate inverse, n x
    n or words of it side by side.

    Raises numpy.linalg.LinAlgError: the inverse, or a product of sizes, is not finite.
    """
    n = len(a)
    words = inverse.shape[1] // n if n else 1
    ones = np.ones((n, 1), like=a)

    # Moduli of both matrices, and the sizes that decide the accuracy of their product
    moduli_of_a = moduli(a)
    inverse_moduli = _sum_of_moduli(inverse, words)
    inverse_sums = above(matmul(inverse_moduli, ones), n, n * LEAST)
    sizes = matmul(inverse_moduli, matmul(moduli_of_a, ones))
    (condition,) = numbers(sizes.max(initial=0.0))
    if not math.isfinite(condition):
        raise np.linalg.LinAlgError("the approximate inverse is not finite")

    # The product, as accurate as the proof needs it
    is_complex = a.dtype.kind == "c"
    accuracy = accuracy_of_product(condition, words * n, is_complex)
    product = product_of_numbers(inverse, np.concatenate([a] * words), accuracy)
    if is_complex:
        accuracy *= 1.5  # more than the square root of 2, its own rounding included

    diagonal(product)[...] -= 1.0
    deviations = moduli(product)

    row_bounds = _contraction(
        deviations, inverse_moduli, inverse_sums, moduli_of_a, accuracy, ones
    )
    return Certificate(
        inverse,
        inverse_moduli,
        inverse_sums,
        moduli_of_a,
        deviations,
        accuracy,
        condition,
        row_bounds,
    )


def accuracy_of_product(condition: float, terms: int, is_complex: bool) -> float:
    """r for D: what adds 0.05 to the norm, or the worst case of the native product
    where that is less and costs nothing.
    """
    wanted = SHARE_OF_PRODUCT / max(condition, 1.0)
    native = gamma(2 * terms if is_complex else terms)
    return native if native <= wanted else rung(wanted)


def rung(accuracy: float) -> float:
    """The largest of 1, 1/4, 1/16, ... that is no larger: products of few accuracies
    share their plans and programs.
    """
    exponent = math.frexp(accuracy)[1] - 1
    return max(math.ldexp(1.0, exponent - exponent % 2), math.ulp(0.0))


def _sum_of_moduli(words: Array, count: int) -> Array:
    """Upper bounds of the sums of moduli of words that stand side by side."""
    n = len(words)
    total = moduli(words[:, :n])
    for word in range(1, count):
        total = above(total + moduli(words[:, word * n : (word + 1) * n]), 1)
    return total
