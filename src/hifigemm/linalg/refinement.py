"""Solutions of A x = b in one or two words, refined until nothing is gained, with a
bound of their error.

Idea
    q = b - A x, and x + R q: each step multiplies the error of x by the norm of
    I - R A. At the end the same q gives the bound, as the residual of the last x is
    there already [OR02, Rum10].
Digits of the residual
    An error of r (|A||x| + |b|) adds about r cond(A) to the relative error of the
    largest entries of x. So r is a small part of u / cond(A) first; where that leaves
    an entry, such as a small one, with more than a unit in the last place, q is made
    again and rounded once.
Words
    x1 + x2 has the residual b - [A A] [x1; x2]. So x is good to about u^2 cond(A), and
    x1 is the solution rounded to float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hifigemm.linalg.arrays import (
    correct_residual,
    identity,
    matmul,
    numbers,
    product_of_numbers,
    to_host,
)
from hifigemm.linalg.certificate import Certificate, Residual, rung
from hifigemm.linalg.scaling import ScaledSystem, zeros_are_exact
from hifigemm.linalg.upward import above, moduli
from hifigemm.numerics.bits import LEAST, Array
from hifigemm.numerics.eft import two_sum

Accuracy = float | Literal["correct", "pair"]
"""Of a residual: see `residual`."""
MOST_STEPS = 50
"""A step gains a bit at least where the norm of I - R A is at most 1/2."""

SHARE_OF_RESIDUAL = 2.0**-60
"""Of the condition and x, what the residual may add to the bound: less than a hundredth
of a unit in the last place of the largest entries.
"""
SHARE_IN_TWO_WORDS = 2.0**-72
"""The same for two words: 2^-18 of a unit in the last place."""
SHARP_IN_TWO_WORDS = 2.0**-16
"""Of a unit in the last place: few numbers are that close to a tie."""
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

    def on_host(self) -> Enclosure:
        """The same in the memory of the CPU."""
        low = None if self.low is None else to_host(self.low)
        words = to_host(self.x), low
        bounds = to_host(self.radius), to_host(self.is_exact)
        return Enclosure(*words, *bounds, self.steps)


@dataclass(frozen=True, eq=False)
class _Iterate:
    """A solution in one or two words, its residual, and what the certificate makes of
    it: the next step d, and y >= |R (b - A x)|.
    """

    x: Array
    low: Array | None
    q: Residual
    d: Array
    y: Array

    @property
    def words(self) -> list[Array]:
        """The words of x."""
        return [self.x] if self.low is None else [self.x, self.low]


def enclosure(
    system: ScaledSystem,
    certificate: Certificate,
    words: int,
    accuracies: Sequence[Accuracy] | None = None,
) -> Enclosure:
    """The solution in `words` words, 1 or 2, with its radius; `certificate` is a
    proof.

    `accuracies` of residuals are taken in turns until the bound is sharp.
    """
    a, b = system.a, system.b
    if accuracies is None:
        accuracies = _accuracies(certificate, words)

    # R b as the first x: |R b| is of the size of x, or of R |b| where digits cancel
    x, _ = certificate.update(Residual([b]))
    low = np.zeros_like(x) if words == 2 else None

    steps = 0
    for accuracy in accuracies:
        iterate, more_steps, is_sharp = _refined(system, certificate, x, low, accuracy)
        steps += more_steps
        x, low = iterate.x, iterate.low
        if is_sharp:
            break

    # An error of zero is known as such: no term of the residual has underflowed, and
    # a sharp bound, where some digits of the residual are enough, has no zeros
    is_exact = (b == 0.0).all(axis=0, keepdims=True)
    if not is_sharp and zeros_are_exact(a, *iterate.words):
        is_exact |= _is_zero(iterate.q)
    radius = np.where(is_exact, 0.0, certificate.radius(iterate.y))
    return Enclosure(x, low, radius, is_exact, steps)


def _accuracies(certificate: Certificate, words: int) -> list[Accuracy]:
    """Of residuals: to some digits first, where these may be all that is needed."""
    if certificate.words == 2:
        return ["pair"]
    share = SHARE_OF_RESIDUAL if words == 1 else SHARE_IN_TWO_WORDS
    return [rung(share / max(certificate.condition, 1.0)), "correct"]


def _refined(
    system: ScaledSystem,
    certificate: Certificate,
    x: Array,
    low: Array | None,
    accuracy: Accuracy,
) -> tuple[_Iterate, int, bool]:
    """The last iterate that gained something, the number of steps to it, and if it is
    sharp.
    """
    a, b = system.a, system.b
    sizes = (certificate.moduli, moduli(b))

    def iterate_of(x: Array, low: Array | None) -> _Iterate:
        q = residual(a, b, x, low, accuracy, sizes)
        return _Iterate(x, low, q, *certificate.update(q))

    # The residual of the last x is what the bound needs: no step without it
    iterate = iterate_of(x, low)
    steps = 0
    has_gained = np.ones((1, 1), bool, like=x)
    while True:
        # What decides about another step, with one wait for a device
        next_x, next_low = _sum(iterate.x, iterate.low, iterate.d)
        changes = _differ((iterate.x, iterate.low), (next_x, next_low))
        is_sharp, may_gain, is_changed = numbers(
            _is_sharp(iterate), has_gained.any(), changes
        )
        is_enough = is_sharp and low is not None
        if is_enough or not (may_gain and is_changed) or steps == MOST_STEPS:
            return iterate, steps, bool(is_sharp)
        following = iterate_of(next_x, next_low)
        steps += 1

        # Right sides that became worse stay as they were
        is_better = _largest(following.y) <= _largest(iterate.y)
        has_gained = is_better & _has_gained(iterate, following)
        iterate = _chosen(is_better, following, iterate)


def residual(
    a: Array,
    b: Array,
    x: Array,
    low: Array | None,
    accuracy: Accuracy,
    sizes: tuple[Array, Array],
) -> Residual:
    """b - A (x + low): rounded once; "pair": the sum of two words; a number r: with
    errors of r (|A| (|x| + |low|) + |b|), where `sizes` are |A| and |b|.

    But for "correct" it is the product of [A A b] and [-x; -low; I].
    """
    words = [x] if low is None else [x, low]
    copies = [a] * len(words)
    if accuracy == "correct":
        left = np.concatenate(copies, axis=1)
        right = np.concatenate(words)
        return Residual([correct_residual(left, right, b)])
    left = np.concatenate([*copies, b], axis=1)
    unit = identity(b.shape[1], like=b)
    right = np.concatenate([*(-word for word in words), unit])
    if accuracy == "pair":
        return Residual(list(product_of_numbers(left, right, result="pair")))
    size_of_a, size_of_b = sizes
    n = len(a)
    size_of_x = sum(map(moduli, words[1:]), moduli(x))
    terms = matmul(size_of_a, size_of_x) + size_of_b
    share = 1.5 * accuracy if left.dtype.kind == "c" else accuracy
    errors = above(share * terms, n + 4, (n + 1) * LEAST)
    return Residual([product_of_numbers(left, right, accuracy)], errors)


def _sum(x: Array, low: Array | None, d: Array) -> tuple[Array, Array | None]:
    """x + d in as many words as x has, the first one rounded to nearest."""
    if low is None:
        return x + d, None
    return two_sum(x, low + d)


def _differ(
    first: tuple[Array, Array | None], second: tuple[Array, Array | None]
) -> Any:
    """True if the words of both are not the same numbers."""
    (x, low), (y, other) = first, second
    changes = (x != y).any()
    if low is not None and other is not None:
        changes = changes | (low != other).any()
    return changes


def _largest(y: Array) -> Array:
    """The largest bound of each right side."""
    return y.max(axis=0, keepdims=True, initial=0.0)


def _has_gained(iterate: _Iterate, following: _Iterate) -> Any:
    """For each right side, True if some bound was halved that is no tiny part of x.

    Where an entry of the solution is zero, x would be halved until it underflows.
    """
    counts = iterate.y > NEGLIGIBLE * _largest(np.abs(iterate.x))
    has_halved = following.y < 0.5 * iterate.y
    return (has_halved & counts).any(axis=0, keepdims=True)


def _chosen(is_better: Array, following: _Iterate, iterate: _Iterate) -> _Iterate:
    """The one or the other for each right side."""
    low = None
    if iterate.low is not None and following.low is not None:
        low = np.where(is_better, following.low, iterate.low)
    words = zip(following.q.words, iterate.q.words)
    q = Residual(
        [np.where(is_better, *pair) for pair in words],
        np.where(is_better, following.q.errors, iterate.q.errors),
    )
    return _Iterate(
        np.where(is_better, following.x, iterate.x),
        low,
        q,
        np.where(is_better, following.d, iterate.d),
        np.where(is_better, following.y, iterate.y),
    )


def _is_sharp(iterate: _Iterate) -> Any:
    """True if no error can be more than a unit in the last place, or a small part of
    one in two words, and none may be zero.
    """
    sizes = np.abs(iterate.x)
    units = np.nextafter(sizes, np.inf) - sizes
    limit = units if iterate.low is None else SHARP_IN_TWO_WORDS * units
    is_small = iterate.y <= limit
    return is_small.all() & ~_is_zero(iterate.q).any()


def _is_zero(q: Residual) -> Array:
    """For each right side, True if all words of its residual are zeros."""
    is_zero = q.words[0] == 0.0
    for word in q.words[1:]:
        is_zero = is_zero & (word == 0.0)
    return is_zero.all(axis=0, keepdims=True)
