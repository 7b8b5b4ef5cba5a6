"""Inverses from I - R A itself, without a residual.

Idea
    R is an approximate inverse of A and G = I - R A. The solution of A X = B satisfies

        X = R B + G X,

    and R B is exact where each column of B has one entry that is not zero, a power of
    two: X0 = R B is R in other units. So once G is known to enough digits, native
    products lead to the change S = X - X0 = G X0 + G S: each multiplies what is left of
    the error by the norm of G. `refinement` would make A X anew for each step, with
    sums in two or three words.
Words
    G is Q, or Q + Q2 where its rounding would show in X. G X0, the first and largest
    part of S, is one native product or, where this would show, H + L by sums in two
    words. The rest is T = L + Q2 X0 + Q (H + T'), with T' from the product before.
Bound
    With S = H + T and S' = fl(H + T'),

        X - (X0 + S) = G (X - (X0 + S')) + (G X0 - H - L - Q2 X0) + (G S' - Q S'),

    up to what the products of T err by, and R (B - A (X0 + S')) = G X0 + G S' - S' is S - S'
    up to the same terms. So this is a step of `refinement`, from X0 + S' to X0 + S. The
    terms are bounded by sums of rows of |Q| and of the errors of Q, times the largest
    entries of columns of X0 and S'.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hifigemm.engines import core
from hifigemm.linalg.arrays import diagonal, is_on_host, matmul
from hifigemm.linalg.certificate import Certificate, invisible
from hifigemm.linalg.scaling import ScaledSystem
from hifigemm.linalg.upward import UNIT, above, gamma, moduli
from hifigemm.numerics.bits import LEAST, Array
from hifigemm.numerics.eft import two_sum

MOST_NORM = 2.0**-8
"""Of G: beyond it, refinement takes less time."""


HIDDEN = 2.0**-6
"""Of errors that show in few columns: they show in none."""


class Step(NamedTuple):
    """The last step towards an inverse, as `refinement` takes them."""

    x: Array
    left: Array
    """What X0 + S is beside x, up to `error`."""
    y: Array
    """|R (B - A (X0 + S'))| or more, before one rounding."""
    error: Array
    """At least what x + left differs by from X0 + S' + R (B - A (X0 + S'))."""
    change: Array
    """S - S', what the last product has changed."""
    is_zero: Array
    """For each right side, True if G X0 is zero: 1 x k."""


def is_inverse(system: ScaledSystem) -> bool:
    """True for a system in the memory of the CPU of which R B has the entries of R in other
    units: B is a diagonal of powers of two.
    """
    a, b = system.a, system.b
    n = len(b)
    if b.shape != (n, n) or n == 0 or not (is_on_host(a) and is_on_host(b)):
        return False
    if np.count_nonzero(b) != n:
        return False
    fractions, _ = np.frexp(diagonal(b))
    return bool((fractions == 0.5).all())


def step_of_inverse(system: ScaledSystem, certificate: Certificate) -> Step | None:
    """The last step from R B to the solution, for a certificate that knows I - R A; None
    where refinement takes less time.
    """
    gap = certificate.gap
    norm = certificate.norm
    if gap is None or gap.errors is None or not norm <= MOST_NORM:
        return None
    q, *second = gap.words
    n = len(q)
    start = certificate.inverse * diagonal(system.b)
    largest = moduli(start).max(axis=0, keepdims=True)

    # Sums of rows: of |Q|, of what G and its words differ by, and what a native product errs by
    sizes = certificate.deviations.times(np.ones((n, 1)))
    of_words = gap.errors.sum(axis=1, keepdims=True) + UNIT ** len(gap.words) * sizes
    of_product = gamma(n) * sizes

    # H and the first T
    if gamma(n) * norm <= HIDDEN * invisible(n):
        high = matmul(q, start)
        first = np.zeros_like(high)
        error = (of_words + of_product) * largest
    else:
        sums = core.close_pair(q[None], start[None])
        if sums is None:
            return None
        high, first = (word[0] for word in sums)
        of_sums = core.error_of_close_sums(n) * norm * math.sqrt(n)
        error = (of_words + of_sums) * largest
    for word in second:
        first = first + matmul(word, start)
        error += UNIT * of_product * largest + UNIT * moduli(first)

    # T, by one product after the other
    low = first
    last = np.zeros_like(high)
    for _ in range(_products(norm, n)):
        last = high + low
        low = first + matmul(q, last)
    of_last = of_words + UNIT * sizes + of_product
    error += of_last * moduli(last).max(axis=0, keepdims=True)

    # X0 + H is two words, and T joins the second
    x, left = two_sum(start, high)
    left = left + low
    error += UNIT * (moduli(low) + moduli(left))
    x, left = two_sum(x, left)

    difference = high - last
    change = difference + low
    error = above(error, 2 * n + 20, (6 * n + 12) * LEAST)
    y = above(moduli(change) + UNIT * moduli(difference) + error, 4)
    is_zero = _is_without_change(gap.words, gap.errors, start)
    return Step(x, left, y, error, change, is_zero)


def _products(norm: float, n: int) -> int:
    """How many products with Q make T: what they leave is the norm to this power, times two
    norms more, of the largest entry.
    """
    if norm == 0.0:
        return 0
    return max(math.ceil(math.log(HIDDEN * invisible(n)) / math.log(norm)) - 2, 0)


def _is_without_change(words: list[Array], errors: Array, start: Array) -> Array:
    """For each column of X0, True if G X0 is known to be zero: columns of G that are not
    zero meet zeros.
    """
    may_be_other = [(word != 0.0).any(axis=0) for word in (*words, errors)]
    is_other = np.logical_or.reduce(may_be_other)
    if is_other.all():
        return np.zeros((1, start.shape[1]), bool)
    return ~(start[is_other] != 0.0).any(axis=0, keepdims=True)
