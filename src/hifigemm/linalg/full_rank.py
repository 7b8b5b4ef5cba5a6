"""The proof that a matrix has full column rank, and what it says of least squares.

Idea
    V (n x n) makes the columns of B (m x n, m >= n) nearly orthonormal: C = B V is close
    to Q, whatever computed them. In the unknowns y, x = V y, the augmented system of
    least squares

        [ I    B ] [s]   [f]              [ I    C ] [s]   [   f   ]
        [ B^H  0 ] [x] = [h]   becomes    [ C^H  0 ] [y] = [ V^H h ].

    Its matrix M is well conditioned, and R is close to its inverse:

        R = [ I - Q Q^H   Q ]
            [ Q^H        -I ].
Theorem
    Let W = C - Q, E = I - Q^H Q, and a = 5 |W| + 2 |E| < 1, in norms of Frobenius.
    Then M is nonsingular, so B has full rank, and for residuals q1 = f - s - B x,
    q2 = h - B^H s, p = V^H q2 and z = Q^H q1 - p the errors of s and x are

        q1 - Q z + d1,   V (z + d2),   |(d1, d2)| <= 2.25 a / (1 - a) (|q1| + |p|).

    Proof: I - R M = [-Q; I] [W^H, E - Q^H W] - [0, W; 0, 0], |E| < 1/2, so |Q|^2 < 3/2 in
    the spectral norm, and |I - R M| <= 1.59 (2.23 |W| + |E|) + |W| <= a. The errors e of
    (s, y) are R q + (I - R M) e for q = (q1, p), and R q = (q1 - Q z, z) has a norm of
    at most (1 + |Q|)(|q1| + |p|), because |I - Q Q^H| <= 1.
Bounds
    D is B V to an accuracy r: |D - B V| <= r |B||V| + u |B V| + eta. With v the norms of
    the rows of |V|, | |B||V| | <= | |B| v | by Minkowski. All sums are lifted above what
    their roundings took, see `upward`; those of E = I - Q^H Q, a native product, by
    gamma_m times the squared norms of columns of Q, which are at most 7/4 if |E| <= 1/2.
    m sqrt(n) is below 2^48.
Beyond condition 1 / u
    Q U of a QR factorisation of B, and V = U^-1, are good up to a condition of about
    1e14. Beyond, B V still has a condition that is less than that of B by a factor of
    about u [Rum09]. With Q U of B V, rounded once, V U^-1 in two words is the next V,
    good up to about 1e30. Where a pivot of U is zero, one of the size of its roundings
    is in its place: any V will do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hifigemm.base.exceptions import VerificationError
from hifigemm.engines import core
from hifigemm.linalg.arrays import (
    diagonal,
    identity,
    inverse,
    is_on_host,
    matmul,
    numbers,
    product_of_numbers,
    thin_qr,
)
from hifigemm.linalg.certificate import (
    ACCURACY_OF_UPDATE,
    Magnitudes,
    accuracy_of_product,
    bound_in_words,
    rung,
    worst_case,
)
from hifigemm.linalg.upward import UNIT, above, gamma, moduli
from hifigemm.numerics.bits import LEAST, Array

GOOD_NORM = 0.25
"""Of the bound a: above it, another V is worth its price."""
MOST_PASSES = 4
"""Factorisations that are tried. Three were enough for all matrices of condition 1e28
and up to 100 columns that were seen.
"""
GUARD = 4.0
"""By how much B V is more accurate than what adds a few hundredths to |W|."""
_ADVICE = (
    "What helps: remove columns that depend on others, choose another basis, such as orthogonal polynomials for "
    "powers, or bring the weights of rows closer together"
)
"""What to do about matrices without full rank."""


class Update(NamedTuple):
    """What the residuals q1 and q2 say of s and x."""

    ds: Array
    """Close to q1 - Q z."""
    dx: list[Array]
    """Words of a sum close to V z."""
    bound: Array
    """At least the norms of d1 and d2 with all roundings of ds and dx, 1 x k: for each
    right side a bound of the errors of s + ds.
    """


@dataclass(frozen=True, eq=False)
class FullRank:
    """B with Q and V, and the bound that proves its full rank if it is less than 1."""

    b: Array
    q: Array
    v: Array
    """V, n x n, or its words side by side."""
    magnitudes: Array
    """At least |V|."""
    row_sizes: Array
    """v, at least the norms of the rows of |V|, n x 1."""
    condition: float
    """| |B| v |, of the size of the condition of B times n."""
    norm: float
    """a of the theorem; Inf or NaN where it is of no use."""

    @property
    def is_proof(self) -> bool:
        """True if B is proven to have full rank."""
        return self.norm < 1.0

    @cached_property
    def words(self) -> list[Array]:
        """Of V."""
        return words_of(self.v)

    @cached_property
    def adjoint(self) -> Array:
        """B^H."""
        return self.b.conj().T

    def start(self, f: Array, h: Array) -> tuple[Array, list[Array]]:
        """Approximations of s, and of x in words."""
        return self._changes(f, self._image([h]))

    def update(self, q1: Array, q2: list[Array]) -> Update:
        """The update for residuals: q1 up to u |q1| + eta, and q2 as `certificate.Residual`
        has it, of as many words as V.

        Let S >= |q1| + |p|, T at least the error of p, and c = gamma_m sqrt(n). |Q| < 1.23,
        and the norm of Frobenius of Q is less than 1.23 sqrt(n). So |z| <= 1.4 S, and

            z is off by at most (1.23 c + 3 u) S + T, as Q^H q1 is a native product;
            V z by gamma_2n v 1.4 S <= v 2.8 c S more;
            q1 - Q z by 1.23 times the error of z, and (1.73 c + 4 u) S.

        With gamma_m >= 2 u all of that is less than 9 c S + 1.25 T, for V z times v.
        """
        m, n = self.b.shape
        p = self._image(q2)
        ds, dx = self._changes(q1, p)
        size_of_error = norms(self._error_of_image(q2, p))
        sizes = norms(moduli(q1)) + norms(moduli(p)) + size_of_error
        sizes = above(sizes, 3, 4 * (m + n) * LEAST)
        share = above(2.25 * self.norm / (1.0 - self.norm), 4)
        share += 9.0 * self._gamma(m) * math.sqrt(n)
        bound = share * sizes + 1.25 * size_of_error
        return Update(ds, dx, above(bound, 12, self._underflows))

    def error_of_x(self, bound: Array) -> Array:
        """At least the errors of x + dx, n x k, by the bound of an update."""
        return above(self.row_sizes * bound, 1, self._underflows)

    @property
    def _underflows(self) -> float:
        """More than products of an update lose below 2^-1074."""
        m, n = self.b.shape
        return 16 * (m + n + 4) ** 2 * LEAST

    def _changes(self, q1: Array, p: Array) -> tuple[Array, list[Array]]:
        """Q z short of q1, and V z in words, for z = Q^H q1 - p.

        V z is of two words where one would have a residual larger than that of x.
        """
        z = matmul(self.q.conj().T, q1) - p
        ds = q1 - matmul(self.q, z)
        if len(self.words) == 1:
            return ds, [matmul(self.v, z)]
        copies = np.concatenate([z] * len(self.words))
        return ds, list(product_of_numbers(self.v, copies, result="pair"))

    def _image(self, q2: list[Array]) -> Array:
        """p close to V^H q2: a native product where V has one word, and else one to an
        accuracy, as digits of q2 cancel by as much as the condition.
        """
        if len(self.words) == 1:
            return matmul(self.v.conj().T, q2[0])
        adjoints = [word.conj().T for word in self.words]
        left = np.concatenate(adjoints * len(q2), axis=1)
        right = np.concatenate([q for q in q2 for _ in self.words])
        return product_of_numbers(left, right, self._accuracy)

    def _error_of_image(self, q2: list[Array], p: Array) -> Array:
        """At least |p - V^H q2*| for the exact residual q2*."""
        n = len(p)
        if len(self.words) == 1:
            share = self._gamma(n) + UNIT
        else:
            is_complex = p.dtype.kind == "c"
            share = 1.5 * self._accuracy if is_complex else self._accuracy
            share += UNIT * UNIT
        sizes = share * sum(map(moduli, q2[1:]), moduli(q2[0])) + 2.0 * LEAST
        images = matmul(self.magnitudes.T, sizes) + 2.0 * UNIT * moduli(p)
        return above(images, n + 10, 4 * (n + 1) * LEAST)

    @property
    def _accuracy(self) -> float:
        """Of V^H q2, where V has two words."""
        return rung(ACCURACY_OF_UPDATE / max(self.condition, 1.0))

    def _gamma(self, terms: int) -> float:
        """The share of a sum that its roundings may be, complex ones in modulus."""
        if self.q.dtype.kind == "c":
            return 1.5 * gamma(2 * terms)
        return gamma(terms)


def proven_full_rank(b: Array) -> tuple[FullRank, int]:
    """The proof that B, m x n with m >= n, has full rank, with V in float64 or else in
    two words; and how many V were tried.

    Raises VerificationError: there is none.
    """
    m, n = b.shape
    best: FullRank | None = None
    passes = 0
    try:
        latest = best = _in_one_word(b)
        passes = 1
        while not best.norm < GOOD_NORM and passes < MOST_PASSES:
            latest = _in_two_words(latest)
            passes += 1
            best = latest if latest.norm < best.norm else best
    except np.linalg.LinAlgError:
        pass
    if best is not None and best.is_proof:
        return best, passes
    reached = ""
    norm = math.inf
    if best is not None:
        reached = f" (condition about {best.condition:.0e} after scaling of columns)"
        norm = best.norm
    raise VerificationError(
        f"the matrix ({m} x {n}) is rank-deficient or nearly so{reached}: no proof that it has full rank by QR "
        "factorisations in float64 and in two words (bound of what keeps their columns from being orthonormal, which "
        f"has to be below 1: {bound_in_words(norm)}). {_ADVICE}"
    )


def _in_one_word(b: Array) -> FullRank:
    """The proof by a QR factorisation in float64.

    Raises numpy.linalg.LinAlgError: its factor has no inverse.
    """
    q, u = thin_qr(b)
    return prove(b, q, _inverse_of_factor(u))


def _in_two_words(latest: FullRank) -> FullRank:
    """The proof by a factorisation of B V, V being the latest one.

    Raises numpy.linalg.LinAlgError: as before.
    """
    count = len(latest.words)
    left = np.concatenate([latest.b] * count, axis=1)
    image = product_of_numbers(left, np.concatenate(latest.words), "correct")
    q, u = thin_qr(image)
    corrections = np.concatenate([_inverse_of_factor(u)] * count)
    words = product_of_numbers(latest.v, corrections, result="pair")
    return prove(latest.b, q, np.concatenate(words, axis=1))


def _inverse_of_factor(u: Array) -> Array:
    """V close to U^-1. Where a pivot is zero, what rounding makes of zero is in its place.

    Raises numpy.linalg.LinAlgError: V is not finite.
    """
    try:
        v = inverse(u)
        if np.isfinite(v).all():
            return v
    except np.linalg.LinAlgError:
        pass
    floors = UNIT * moduli(u).max(axis=0, initial=0.0)
    pivots = diagonal(u)
    changes = np.where(moduli(pivots) < floors, floors - pivots, 0.0)
    v = inverse(u + identity(len(u), like=u) * changes)
    if not np.isfinite(v).all():
        raise np.linalg.LinAlgError("the triangular factor has no inverse")
    return v


def prove(b: Array, q: Array, v: Array) -> FullRank:
    """The bound of the theorem for B and Q, m x n in float64 or complex128, and V, n x n or
    words of it side by side.

    Raises numpy.linalg.LinAlgError: a product of sizes is not finite.
    """
    m, n = b.shape
    magnitudes = Magnitudes(v, len(words_of(v))).array
    row_sizes = norms(magnitudes.T).T
    image = Magnitudes(b).times(row_sizes)
    (condition,) = numbers(_frobenius(image))
    if not math.isfinite(condition):
        raise np.linalg.LinAlgError("B V is not finite")

    # W = B V - Q, whose product counts with r |B||V| and u |Q + W|
    gap, accuracy = _gap(b, q, v, condition)
    # E = I - Q^H Q
    deviation = matmul(q.conj().T, q)
    diagonal(deviation)[...] -= 1.0
    size_of_gap, size_of_deviation = numbers(
        _frobenius(moduli(gap)), _frobenius(moduli(deviation))
    )
    share = worst_case(m, b.dtype.kind == "c")
    if b.dtype.kind == "c":
        share *= 1.5
    of_w = size_of_gap + accuracy * condition + UNIT * math.sqrt(1.75 * n)
    of_w = above(of_w, n + 10, 8 * (m + n) ** 2 * LEAST)
    of_e = above(size_of_deviation + 2.0 * share * n, 8, 4 * m * n * LEAST)
    norm = above(5.0 * of_w + 2.0 * of_e, 4)
    if math.isnan(norm):
        norm = math.inf
    return FullRank(b, q, v, magnitudes, row_sizes, condition, norm)


def _gap(b: Array, q: Array, v: Array, condition: float) -> tuple[Array, float]:
    """(fl(D - Q), r): D is B V to the accuracy r, in modulus.

    A native product where that is enough, and else B V - Q rounded once by the core, if
    it is there: r = 0.
    """
    is_complex = b.dtype.kind == "c"
    words = words_of(v)
    terms = v.shape[1]
    is_free = is_on_host(b)
    accuracy = accuracy_of_product(GUARD * condition, terms, is_complex, is_free)
    left, right = b, v
    if len(words) > 1:
        left = np.concatenate([b] * len(words), axis=1)
        right = np.concatenate(words)
    if accuracy == worst_case(terms, is_complex) and is_free:
        product = matmul(left, right)
    else:
        if not is_complex and is_free:
            sums = core.sums(left, right, -q)
            if sums is not None:
                return sums[0], 0.0
        product = product_of_numbers(left, right, accuracy)
    return product - q, 1.5 * accuracy if is_complex else accuracy


def words_of(v: Array) -> list[Array]:
    """The square matrices that stand side by side."""
    n, columns = v.shape
    if columns == n:
        return [v]
    return [v[:, i : i + n] for i in range(0, columns, n)]


def _frobenius(x: Array) -> Array:
    """At least the norm of Frobenius of x >= 0."""
    return norms(x.reshape(-1, 1))[0, 0]


def norms(x: Array) -> Array:
    """At least the Euclidean norms of the columns of x >= 0, 1 x k: the root of their sum
    times their largest entry, made without a square.
    """
    sums = x.sum(axis=0, keepdims=True)
    largest = x.max(axis=0, keepdims=True, initial=0.0)
    return above(np.sqrt(sums) * np.sqrt(largest), len(x) + 4)
