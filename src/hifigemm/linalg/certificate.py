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
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hifigemm.engines import core
from hifigemm.linalg.arrays import (
    beside,
    diagonal,
    identity,
    is_on_host,
    magnitude_product,
    matmul,
    numbers,
    product_of_numbers,
    roundings,
)
from hifigemm.linalg.upward import UNIT, above, gamma, moduli
from hifigemm.numerics.bits import LEAST, Array
from hifigemm.numerics.magnitudes import FEW

SHARE_OF_PRODUCT = 0.05
"""What the product R A may add to the norm of I - R A."""
MANY_ROWS = 8192
"""Of a device array: a product with as many costs more than a step of refinement."""
ACCURACY_OF_UPDATE = 2.0**-20
"""Of R q relative to the error of x, in the worst case."""


class Magnitudes:
    """At least |M| for a real or complex matrix M, or for the sum of words that stand side
    by side, of which products with nonnegative columns are asked.
    """

    def __init__(self, matrix: Array, words: int = 1) -> None:
        self.matrix = matrix
        self.words = words

    @cached_property
    def array(self) -> Array:
        """The bounds of entries, each of which passed `words` - 1 roundings."""
        n = self.matrix.shape[1] // self.words
        total = moduli(self.matrix[:, :n])
        for word in range(1, self.words):
            entries = self.matrix[:, word * n : (word + 1) * n]
            total = above(total + moduli(entries), 1)
        return total

    def times(self, v: Array) -> Array:
        """|M| V for V >= 0 of n rows, after n roundings of each term."""
        if self.words == 1 and v.shape[1] <= FEW and self.matrix.dtype.kind == "f":
            return magnitude_product(self.matrix, v)
        return matmul(self.array, v)


@dataclass(frozen=True, eq=False)
class Proof(ABC):
    """What bounds of solutions ask of an approximate inverse R of A.

    Where `norm` is less than 1, A is nonsingular.
    """

    row_bounds: Array
    """At least |I - R A| e, n x 1, in the memory of the CPU."""
    inverse_norm: float
    """At least the largest entry of |R| e."""
    condition: float
    """The largest entry of |R| (|A| e), an estimate of || |A^-1| |A| ||."""

    @cached_property
    def norm(self) -> float:
        """a, at least the norm of I - R A; Inf or NaN where it is of no use."""
        (norm,) = numbers(self.row_bounds.max(initial=0.0))
        return norm

    @property
    def is_proof(self) -> bool:
        """True if A is proven to be nonsingular."""
        return self.norm < 1.0

    @property
    @abstractmethod
    def words(self) -> int:
        """Number of words of R."""

    @abstractmethod
    def image(self, b: Array) -> Array:
        """R b, with no bound."""

    @abstractmethod
    def contraction(self, v: Array) -> Array:
        """An upper bound of |I - R A| v for the columns of v >= 0."""

    @abstractmethod
    def update(self, residual: Residual) -> tuple[Array, Array]:
        """(d, e): d close to R q, and e >= |R q* - d| for the exact residual q*."""

    @cached_property
    def underflows(self) -> float:
        """At least the sum of the losses below 2^-1074 of products of R and a residual, of
        products of |R| and its sizes, and of the last rounding of the residual.
        """
        n = len(self.row_bounds)
        return (3 * n + 6) * LEAST * (1.0 + self.inverse_norm)

    def largest_error(self, y: Array) -> Array:
        """At least the largest entries of |A^-1 b - x~|, given y >= |R (b - A x~)| after two
        more roundings, and a proof: max(y) / (1 - a), 1 x k.
        """
        largest = y.max(axis=0, keepdims=True, initial=0.0)
        return above(largest / (1.0 - self.norm), 4)

    def radius(self, y: Array) -> Array:
        """At least |A^-1 b - x~|, given y as before.

        First y + max(y) / (1 - a) g, g >= |G| e. What that bounds, z, satisfies
        z = R (b - A x~) + G z, so y + |G| z bounds it as well, and no worse.
        """
        error = above(y + self.image_of_bounds(self.largest_error(y)), 4, LEAST)
        return above(y + self.contraction(error), 3)

    def image_of_bounds(self, largest: Array) -> Array:
        """At least |I - R A| v before one rounding, for columns v of which these (1 x k)
        are the largest entries.
        """
        return largest * beside(largest, self.row_bounds)


@dataclass(frozen=True, eq=False)
class Certificate(Proof):
    """An approximate inverse R of A, stored as a matrix, and a bound of |I - R A|."""

    inverse: Array
    """R, n x n, or its words side by side."""
    inverse_magnitudes: Magnitudes
    """Of R."""
    magnitudes: Magnitudes
    """Of A."""
    deviations: Magnitudes
    """F, at least |fl(I - D)|."""
    accuracy: float
    """r of D in modulus."""

    @property
    def words(self) -> int:
        """Number of words of R."""
        return self.inverse_magnitudes.words

    def weights(self) -> tuple[Array, float]:
        """(v, c): v = |R| (|A| e), and the condition with v for e, that is
        max(|R| (|A| v) / v); NaN where v has zeros.
        """
        v = self._image_of_sizes(np.ones_like(self.row_bounds))
        (condition,) = numbers((self._image_of_sizes(v) / v).max(initial=0.0))
        return v, condition

    def _image_of_sizes(self, v: Array) -> Array:
        """|R| (|A| v)."""
        return self.inverse_magnitudes.times(self.magnitudes.times(v))

    def contraction(self, v: Array) -> Array:
        """An upper bound of |I - R A| v for the columns of v >= 0."""
        images = self.deviations.times(v)
        products = self._image_of_sizes(v) if self.accuracy else np.zeros_like(v)
        largest = v.max(axis=0, keepdims=True, initial=0.0)
        return contraction_bound(
            images, products, v, largest, self.accuracy, self.inverse_norm
        )

    def image(self, b: Array) -> Array:
        """R b, with no bound."""
        if self.words == 1:
            return matmul(self.inverse, b)
        d, _ = self._accurate_update(Residual([b]))
        return d

    def update(self, residual: Residual) -> tuple[Array, Array]:
        """(d, e): d close to R q, and e >= |R q* - d| for the exact residual q*."""
        if len(residual.words) == 1 and self.words == 1:
            return self._native_update(residual)
        return self._accurate_update(residual)

    def _native_update(self, residual: Residual) -> tuple[Array, Array]:
        """|R q* - d| <= |R| ((gamma_m + u) |q| + errors) and what underflows, d = fl(R q)
        after m roundings of a term.

        A complex product of n terms is two real ones of 2 n terms.
        """
        (q,) = residual.words
        n = len(q)
        d = matmul(self.inverse, q)

        # gamma of the sums of d; those of re and im are of all its components
        count = roundings(self.inverse, q)
        share = 1.5 * gamma(2 * count) if q.dtype.kind == "c" else gamma(count)
        sizes = (share + UNIT) * moduli(q)
        if residual.errors is not None:
            sizes = sizes + residual.errors
        images = self.inverse_magnitudes.times(sizes)
        return d, above(images, n + 6, self.underflows)

    def _accurate_update(self, residual: Residual) -> tuple[Array, Array]:
        """|R q* - d| <= 2 u |d| + |R| (r + u^2) |q|, d = R q to an accuracy r; u for u^2
        where q is of one word.

        Where the condition exceeds 1 / u, roundings of a native product would be larger
        than R q itself. All words of R meet all words of q in one product.
        """
        count = len(residual.words)
        left = np.concatenate([self.inverse] * count, axis=1)
        factors = [q for q in residual.words for _ in range(self.words)]
        right = np.concatenate(factors)
        accuracy = rung(ACCURACY_OF_UPDATE / max(self.condition, 1.0))
        d = product_of_numbers(left, right, accuracy)

        share = 1.5 * accuracy if d.dtype.kind == "c" else accuracy
        share += UNIT * UNIT if count == 2 else UNIT
        magnitudes = sum(map(moduli, residual.words[1:]), moduli(residual.words[0]))
        images = self.inverse_magnitudes.times(share * magnitudes)
        error = images + 2.0 * UNIT * moduli(d)
        return d, above(error, len(d) + 8, self.underflows)


@dataclass(frozen=True, eq=False)
class Residual:
    """b - A x as a sum q of words, up to u |q| + eta, for two words u^2 |q| + eta, and
    errors of their own.
    """

    words: list[Array]
    errors: Array | None = None


def contraction_bound(
    images: Array,
    products: Array,
    v: Array | float,
    largest: Array | float,
    accuracy: float,
    inverse_norm: Array | float,
) -> Array:
    """An upper bound of (1 + 3 u) (F v + r |R| (|A| v) + u v + n eta E v), `images` being
    F v and `products` |R| (|A| v), of one matrix or of a stack.
    """
    terms = images + accuracy * products + UNIT * v
    return above(terms, *errors_of_contraction(images.shape[-2], largest, inverse_norm))


def errors_of_contraction(
    n: int, largest: Array | float, inverse_norm: Array | float
) -> tuple[int, Array | float]:
    """Roundings of a term of `contraction_bound`, and what underflow takes from it.

    A term passes n roundings in each of two products, and seven more with those that
    stand for 1 + 3 u. Underflow takes at most eta (n + 1 + n r |R| e / 2), r <= 1, from
    these products, and n^2 eta max(v) from D.
    """
    return 2 * n + 7, (n + 2) ** 2 * LEAST * (1.0 + largest + inverse_norm)


def prove(a: Array, inverse: Array, guard: float = 1.0) -> Certificate:
    """The certificate of A (n x n, float64 or complex128) by an approximate inverse, n x
    n or words of it side by side.

    The product R A adds no more than `SHARE_OF_PRODUCT` / `guard` to the norm of I - R A.

    Raises numpy.linalg.LinAlgError: the inverse, or a product of sizes, is not finite.
    """
    n = len(a)
    words = inverse.shape[1] // n if n else 1
    magnitudes = Magnitudes(a)
    inverse_magnitudes = Magnitudes(inverse, words)

    # |R| (|A| e), the sizes that decide the accuracy of the product, and |R| e
    columns = np.ones((n, 2))
    ones = columns[:, 1:]
    columns[:, :1] = magnitudes.times(ones)
    images = inverse_magnitudes.times(columns)
    sizes = images[:, :1]
    condition, largest_sum = numbers(*images.max(axis=0, initial=0.0))
    if not math.isfinite(condition):
        raise np.linalg.LinAlgError("the approximate inverse is not finite")
    inverse_norm = above(largest_sum, n, n * LEAST)

    # R A - I, as accurate as the proof needs it
    gap, accuracy = _gap(a, inverse, words, guard * condition)
    deviations = Magnitudes(gap)
    row_bounds = contraction_bound(
        deviations.times(ones), sizes, 1.0, 1.0, accuracy, inverse_norm
    )
    return Certificate(
        row_bounds,
        inverse_norm,
        condition,
        inverse,
        inverse_magnitudes,
        magnitudes,
        deviations,
        accuracy,
    )


def _gap(a: Array, inverse: Array, words: int, condition: float) -> tuple[Array, float]:
    """(fl(D - I), r): D is R A to the accuracy r, for complex A in modulus.

    For arrays of the host the native product is D where that is enough, and else
    R A - I is a sum that is rounded once, if the core is there: an error of r = 0, as
    the u |R A - I| is that of the difference. Digits of large products on a device have
    their price, and fewer of them cost one step more at most.
    """
    is_complex = a.dtype.kind == "c"
    n = len(a)
    is_free = is_on_host(a) or n < MANY_ROWS
    accuracy = accuracy_of_product(condition, words * n, is_complex, is_free)
    copies = np.concatenate([a] * words) if words > 1 else a
    if accuracy == worst_case(words * n, is_complex) and is_on_host(a):
        product = matmul(inverse, copies)
    else:
        if not is_complex and is_on_host(a):
            sums = core.sums(inverse, copies, -identity(n, like=a))
            if sums is not None:
                return sums[0], 0.0
        product = product_of_numbers(inverse, copies, accuracy)
    diagonal(product)[...] -= 1.0

    # More than the square root of 2, its own rounding included
    return product, 1.5 * accuracy if is_complex else accuracy


def bound_in_words(norm: float) -> str:
    """A bound as messages have it; "none" where it is Inf or NaN."""
    return f"{norm:.2g}" if math.isfinite(norm) else "none"


def accuracy_of_product(
    condition: float, terms: int, is_complex: bool, is_free: bool = True
) -> float:
    """r for D: what adds 0.05 to the norm, or the worst case of the native product
    where that is less and costs nothing more.
    """
    sufficient = SHARE_OF_PRODUCT / max(condition, 1.0)
    native = worst_case(terms, is_complex)
    return native if is_free and native <= sufficient else rung(sufficient)


def worst_case(terms: int, is_complex: bool) -> float:
    """r of a native product of this many terms."""
    return gamma(2 * terms if is_complex else terms)


def rung(accuracy: float) -> float:
    """The largest of 1, 1/4, 1/16, ... that is no larger: products of few accuracies
    share their plans and executables.
    """
    exponent = math.frexp(accuracy)[1] - 1
    return max(math.ldexp(1.0, exponent - exponent % 2), math.ulp(0.0))
