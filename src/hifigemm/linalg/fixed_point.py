"""Ill-conditioned inverses from I - R A itself, without residuals.

Idea
    R is an approximate inverse of A and G = I - R A. The solution of A X = B satisfies

        X = R B + G X,

    and R B is exact where each column of B has one entry that is not zero, a power of
    two: X0 = R B is R in other units. So once G is known to enough digits, native
    products lead to the change S = X - X0 = G X0 + G S: each product multiplies the error
    by the norm of G. Residuals would be made anew for each step, with sums in
    three words where the condition is large.
Words
    G is close to Q + Q2, sums in three words. G X0, the first and largest part of S, is
    close to H + L, sums in two words. The rest of S is T = L + Q2 X0 + Q (H + T'), with
    T' from the product before.
Bound
    With S = H + T and S' = fl(H + T'),

        X - (X0 + S) = G (X - (X0 + S')) + (G X0 - H - L - Q2 X0) + (G S' - Q S'),

    up to what the products of T err by, and R (B - A (X0 + S')) = G X0 + G S' - S' is S - S'
    up to the same terms. So this is a step of `refinement`, from X0 + S' to X0 + S. The
    terms are bounded by sums of rows of |Q| and of the errors of Q + Q2, times the largest
    entries of columns of X0 and S'.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hifigemm.engines import core
from hifigemm.linalg.arrays import close_gap, diagonal, is_on_host, matmul
from hifigemm.linalg.certificate import Certificate, Magnitudes, contraction_bound
from hifigemm.linalg.scaling import ScaledSystem
from hifigemm.linalg.upward import UNIT, above, gamma, moduli
from hifigemm.numerics.bits import LEAST, Array
from hifigemm.numerics.eft import two_sum

MOST_NORM = 2.0**-8
"""Of G: beyond it, refinement takes less time."""
HIDDEN = 2.0**-64
"""An error divided by n and relative to the largest entry of a column that is an eighth of
a unit in the last place, 2^-56, or less for all entries of ordinary inverses.
"""


class Gap(NamedTuple):
    """I - R A = Q + Q2 up to u |Q2| and errors."""

    q: Array
    q2: Array
    errors: Array
    row_sizes: Array
    """At least the sums of rows of |Q|, before n + 1 roundings."""


class Step(NamedTuple):
    """The last step towards an inverse, as `refinement` takes them."""

    x: Array
    left: Array
    """X0 + S - x, up to `error`."""
    y: Array
    """|R (B - A (X0 + S'))| or more, before one rounding."""
    error: Array
    """At least what x + left differs by from X0 + S' + R (B - A (X0 + S'))."""
    change: Array
    """S - S', what the last product has changed."""
    is_zero: Array
    """For each right side, True if X0 is R B, and G X0 is zero: 1 x k."""


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
    entries = diagonal(b)
    fractions, _ = np.frexp(entries.real)
    return bool(((fractions == 0.5) & (entries.imag == 0.0)).all())


def zeros_of_inverse(a: Array) -> Array | None:
    """The places of the zeros that the inverse of a triangle has; None for other matrices."""
    if a[-1, 0] == 0.0 and not np.tril(a, -1).any():
        return np.tri(len(a), k=-1, dtype=bool)
    if a[0, -1] == 0.0 and not np.triu(a, 1).any():
        return ~np.tri(len(a), dtype=bool)
    return None


def is_ill_conditioned(certificate: Certificate) -> bool:
    """True if residuals by sums in two words would leave most columns of an inverse open:
    what they err by, times the condition, is no small part of small entries.
    """
    n = len(certificate.inverse)
    error = certificate.condition * core.error_of_close_sums(n)
    return n * error > 2.0**-58


def with_known_gap(
    certificate: Certificate, a: Array
) -> tuple[Certificate, Gap] | None:
    """The certificate by I - R A in two words, and these; None where sums in three words do
    not serve, or where the norm stays large.
    """
    words_and_errors = close_gap(certificate.inverse, a)
    if words_and_errors is None:
        return None
    (q, q2), errors = words_and_errors
    # |Q2| is at most u |Q|, for which `contraction_bound` has room
    sizes = Magnitudes(above(moduli(q) + errors, 1))
    row_sizes = sizes.times(np.ones((len(a), 1)))
    inverse_norm = certificate.inverse_norm
    row_bounds = contraction_bound(
        row_sizes, np.zeros_like(row_sizes), 1.0, 1.0, 0.0, inverse_norm
    )
    sharper = replace(
        certificate, row_bounds=row_bounds, deviations=sizes, accuracy=0.0
    )
    if not sharper.norm <= MOST_NORM:
        return None
    return sharper, Gap(q, q2, errors, row_sizes)


def step_of_inverse(
    system: ScaledSystem, certificate: Certificate, gap: Gap
) -> Step | None:
    """The last step from R B to the solution; None where sums in two words do not serve."""
    q = gap.q
    n = len(q)
    start = certificate.inverse * diagonal(system.b)
    product = core.close_pair(q[None], start[None])
    if product is None:
        return None

    # Sums of rows: of |Q|, of what Q + Q2 errs by, and of what products with Q err by
    norm = certificate.norm
    sizes = gap.row_sizes
    of_words = gap.errors.sum(axis=1, keepdims=True) + UNIT * UNIT * sizes
    of_sums = core.error_of_close_sums(n) * norm * math.sqrt(n)
    of_product = gamma(n) * sizes

    # H, and T by one product after the other
    high, low = (word[0] for word in product)
    low_of_start = low + matmul(gap.q2, start)
    error = (of_words + of_sums + UNIT * of_product) * _largest(start)
    error += UNIT * moduli(low_of_start)
    low = low_of_start
    last = np.zeros_like(high)
    for _ in range(_products(norm, n)):
        last = high + low
        low = low_of_start + matmul(q, last)
    error += (of_words + UNIT * sizes + of_product) * _largest(last)

    # X0 + H is two words, and T joins the second
    x, left = two_sum(start, high)
    left = left + low
    error += UNIT * (moduli(low) + moduli(left))
    x, left = two_sum(x, left)

    difference = high - last
    change = difference + low
    error = above(error, 2 * n + 20, (6 * n + 12) * LEAST)
    y = above(moduli(change) + UNIT * moduli(difference) + error, 4)
    is_zero = _is_without_change(gap, start)
    if is_zero.any():
        # R B underflows only for right sides that are not in scale
        is_zero &= (start / diagonal(system.b) == certificate.inverse).all(axis=0)
    return Step(x, left, y, error, change, is_zero)


def _products(norm: float, n: int) -> int:
    """How many products with Q make T: what they leave is the norm to this power, times two
    norms more, of the largest entry.
    """
    if norm == 0.0:
        return 0
    return max(math.ceil(math.log(HIDDEN / n) / math.log(norm)) - 2, 0)


def _largest(x: Array) -> Array:
    """The largest magnitude of each column."""
    return moduli(x).max(axis=0, keepdims=True)


def _is_without_change(gap: Gap, start: Array) -> Array:
    """For each column of X0, True if G X0 is known to be zero: columns of G that are not
    zero meet zeros.
    """
    may_be_other = [(word != 0.0).any(axis=0) for word in (gap.q, gap.q2, gap.errors)]
    is_other = np.logical_or.reduce(may_be_other)
    if is_other.all():
        return np.zeros((1, start.shape[1]), bool)
    return ~(start[is_other] != 0.0).any(axis=0, keepdims=True)
