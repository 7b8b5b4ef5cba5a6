"""Solutions of A x = b in one or two words, refined until nothing is gained, with a
bound of their error.

Idea
    q = b - A x, rounded once, and x + R q: each step takes the error of x times the
    norm of I - R A. At the end the same q gives the bound, as the residual of the
    last x is there already [OR02, Rum10].
Words
    x1 + x2 has the residual b - [A A] [x1; x2], again rounded once. So x is good to
    about u^2 cond(A), and x1 is the solution rounded to float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hifigemm.api import product_of_numbers
from hifigemm.gemm import gemm_of_numbers
from hifigemm.linalg.certificate import Certificate
from hifigemm.linalg.scaling import ScaledSystem, zeros_are_exact
from hifigemm.linalg.upward import above, moduli
from hifigemm.numerics.bits import Array
from hifigemm.numerics.eft import two_sum

MOST_STEPS = 50
"""A step gains a bit at least where the norm of I - R A is at most 1/2."""

NEGLIGIBLE = 2.0**-106
"""Of the largest entry of x: what two words of it cannot hold."""


@dataclass(frozen=True, eq=False)
class Enclosure:
    """x1 + x2 and a bound of its error in modulus, for the scaled system."""

    x: Array
    low: Array | None
    """x2; None where x is of one word."""
    radius: Array
    is_exact: Array
    """For each right side, True if x1 + x2 is the solution itself: 1 x k."""
    steps: int
    """How often x was refined."""

    def of_one_word(self) -> Array:
        """A bound of the error of x1 alone."""
        if self.low is None:
            return self.radius
        return above(self.radius + moduli(self.low), 1)


def enclosure(system: ScaledSystem, certificate: Certificate, words: int) -> Enclosure:
    """The solution in `words` words, 1 or 2, with its radius; `certificate` is a
    proof.
    """
    a, b = system.a, system.b
    # R b as the first x: |R b| is of the size of x, or of R |b| where digits cancel
    x, _ = certificate.update([b])
    low = np.zeros_like(x) if words == 2 else None
    in_pairs = certificate.words == 2

    # The residual of the last x is what the bound needs: no step without it
    q = residual(a, b, x, low, in_pairs)
    d, y = certificate.update(q)
    steps = 0
    while steps < MOST_STEPS:
        next_x, next_low = _sum(x, low, d)
        if _are_equal((x, low), (next_x, next_low)):
            break
        next_q = residual(a, b, next_x, next_low, in_pairs)
        next_d, next_y = certificate.update(next_q)
        steps += 1

        # Right sides that became worse stay as they were
        is_better = _largest(next_y) <= _largest(y)
        has_gained = is_better & _has_gained(y, next_y, x)
        x = np.where(is_better, next_x, x)
        if low is not None and next_low is not None:
            low = np.where(is_better, next_low, low)
        q = [np.where(is_better, *pair) for pair in zip(next_q, q)]
        d = np.where(is_better, next_d, d)
        y = np.where(is_better, next_y, y)
        if not has_gained.any():
            break

    # An error of zero is known as such: no term of the residual has underflowed
    words_of_x = [x] if low is None else [x, low]
    has_no_residual = np.all([word == 0.0 for word in q], axis=0)
    is_exact = has_no_residual.all(axis=0, keepdims=True) & zeros_are_exact(
        a, *words_of_x
    )
    is_exact |= (b == 0.0).all(axis=0, keepdims=True)
    radius = np.where(is_exact, 0.0, certificate.radius(y))
    return Enclosure(x, low, radius, is_exact, steps)


def residual(
    a: Array, b: Array, x: Array, low: Array | None, in_pairs: bool
) -> list[Array]:
    """b - A (x + low), rounded once; in pairs the sum of two words.

    A pair is the product of [A A b] and [-x; -low; I].
    """
    words = [x] if low is None else [x, low]
    copies = [a] * len(words)
    if not in_pairs:
        left = np.concatenate(copies, axis=1)
        right = np.concatenate(words)
        q = gemm_of_numbers(left, right, b, alpha=-1.0, beta=1.0, accuracy="correct")
        return [q]
    left = np.concatenate([*copies, b], axis=1)
    right = np.concatenate([*(-word for word in words), np.eye(b.shape[1])])
    return list(product_of_numbers(left, right, result="pair"))


def _sum(x: Array, low: Array | None, d: Array) -> tuple[Array, Array | None]:
    """x + d in as many words as x has, the first one rounded to nearest."""
    if low is None:
        return x + d, None
    return two_sum(x, low + d)


def _are_equal(
    first: tuple[Array, Array | None], second: tuple[Array, Array | None]
) -> bool:
    """True if the words of both are the same numbers."""
    if not (first[0] == second[0]).all():
        return False
    return first[1] is None or bool((first[1] == second[1]).all())


def _largest(y: Array) -> Array:
    """The largest bound of each right side."""
    return y.max(axis=0, keepdims=True, initial=0.0)


def _has_gained(y: Array, next_y: Array, x: Array) -> Array:
    """For each right side, True if some bound was halved that is no tiny part of x.

    Where an entry of the solution is zero, x would be halved until it underflows.
    """
    counts = y > NEGLIGIBLE * _largest(np.abs(x))
    return np.any((next_y < 0.5 * y) & counts, axis=0, keepdims=True)
