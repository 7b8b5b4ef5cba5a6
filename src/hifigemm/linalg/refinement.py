"""Solutions of A x = b in one or two words, refined until nothing is gained, with a
bound of their error.

Idea
    q = b - A x, and x + d with d close to R q: each step multiplies the error of x by
    the norm of G = I - R A. The same q gives the bound [OR02, Rum10]: as
    x* - x = R q + G (x* - x),

        |x* - (x + d)| <= |R q - d| + |G| |x* - x|.

    So the last step needs no residual of its own: what the sum x + d leaves beside its
    first word, or its first two, is known exactly, and is the largest part of the
    radius.
Residuals
    q is rounded once, or of two words where R has two. On a GPU a kernel adds it in two
    words first, with an error that is known, in one reading of A; where that leaves an
    entry without a sharp bound, q is made again and rounded once. On the host this holds for
    more than three right sides, and sums in three words come between the two. They are
    enough for an x of two words, whose residual only exact sums could round.
Words
    What a sum leaves beside its first word becomes the second one where another step
    needs it. x1 + x2 has the residual b - [A A] [x1; x2]. So x is good to about u^2 cond(A), and
    x1 is the solution rounded to float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hifigemm.engines import core
from hifigemm.linalg.arrays import (
    correct_residual,
    is_on_host,
    numbers,
    pair_residual,
    quick_residual,
    to_host,
)
from hifigemm.linalg.certificate import Certificate, Proof, Residual
from hifigemm.linalg.fixed_point import (
    is_ill_conditioned,
    is_inverse,
    step_of_inverse,
    with_known_gap,
    zeros_of_inverse,
)
from hifigemm.linalg.scaling import ScaledSystem, zeros_are_exact
from hifigemm.linalg.upward import above, moduli
from hifigemm.numerics.bits import LEAST, Array
from hifigemm.numerics.eft import two_sum

MOST_STEPS = 50
"""A step gains a bit at least where the norm of I - R A is at most 1/2."""

SHARP = {1: 2.0**-60, 2: 2.0**-69}
"""Of an entry, by the number of words: bounds of what the words leave that need not be
smaller. A hundredth of a unit in the last place changes a radius by little, 2^-16 of
one is enough but for few numbers that are that close to a tie.
"""
ENOUGH = {1: 2.0**-56, 2: SHARP[2]}
"""The same where only a residual that is rounded once would make them smaller, for the
price of ten steps: an eighth of a unit in the last place at most.
"""
REACH = 2.0**-45
"""The same after a step by sums in two words: an error from which a step by sums in three
leads to the bounds above for most entries, without a second word of x.
"""
LAST_CHANGE = {1: 2.0**-52, 2: 2.0**-104}
"""Of the largest entry of x, by the number of words: what x changes by when only its own
rounding is left.
"""
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
        bound = above(self.radius + moduli(self.low), 1)
        return np.where(self.low == 0.0, self.radius, bound)

    def on_host(self) -> Enclosure:
        """The same in the memory of the CPU."""
        return Enclosure(
            x=to_host(self.x),
            low=None if self.low is None else to_host(self.low),
            radius=to_host(self.radius),
            is_exact=to_host(self.is_exact),
            steps=self.steps,
        )


@dataclass(frozen=True, eq=False)
class _Refined:
    """A solution after a step, and what is known of its error."""

    x: Array
    low: Array | None
    left: Array
    """What x + low is less than the sum that it stands for, exactly."""
    error: Array
    """A bound of the error of x + low + left."""
    y: Array
    """|R q*| or more before one rounding, q* the residual before the step."""
    error_of_d: Array
    """At least |R q* - d|."""
    is_zero: Array
    """For each right side, True if the residual is zero, in all its words."""
    d: Array
    """What x + low changed by."""
    is_rounded_once: bool
    """False if the residual has errors of its own."""

    @property
    def words(self) -> list[Array]:
        """The words of the solution."""
        return [self.x] if self.low is None else [self.x, self.low]


def enclosure(
    system: ScaledSystem,
    certificate: Proof,
    words: int,
    start: Enclosure | None = None,
) -> Enclosure:
    """The solution with its radius; `certificate` is a proof.

    Of two words, or of one, and then of two where the rounding of one would be seen in
    the radius of some entry: its part in |G| |x* - x|, or in the next residual.

    A solution to start from is refined once more: where its residual is zero, it is known
    to be exact.
    """
    inverts = is_inverse(system)
    zeros = zeros_of_inverse(system.a) if inverts else None
    first = None
    if start is None:
        if words == 1:
            enclosed = _first_enclosure(system, certificate)
            if enclosed is not None:
                return enclosed
        sharper = _first_of_inverse(system, certificate) if inverts else None
        if sharper is not None:
            first, certificate = sharper
            first = first if words == 1 else _in_two_words(first)

        # |R b| is of the size of x, or of R |b| where digits cancel
        x = certificate.image(system.b) if first is None else first.x
        low = np.zeros_like(x) if words == 2 else None
    else:
        x = start.x
        low = start.low
    step, steps, is_sharp, has_zeros = _refined(
        system, certificate, x, low, words, zeros=zeros, first=first
    )

    # Entries that are small beside others may need more than the largest bounds
    error = step.error
    if not is_sharp:
        radius = certificate.radius(step.y)
        error = above(step.error_of_d + certificate.contraction(radius), 1)
    radius = above(error + moduli(step.left), 1)

    # An error of zero is known as such where no term of the residual has underflowed
    is_exact = np.zeros((1, radius.shape[1]), bool, like=x)
    if has_zeros:
        is_exact = (system.b == 0.0).all(axis=0, keepdims=True)
        if zeros_are_exact(system.a, *step.words):
            is_exact = is_exact | step.is_zero
        radius = np.where(is_exact, 0.0, radius)
    if zeros is not None:
        radius[zeros] = 0.0
        for word in step.words:
            word[zeros] = 0.0
    return Enclosure(step.x, step.low, radius, is_exact, steps)


def _first_of_inverse(
    system: ScaledSystem, certificate: Proof
) -> tuple[_Refined, Certificate] | None:
    """The step by `fixed_point` for the inverse of an ill-conditioned matrix, and the
    certificate by what it knows of I - R A; None for other matrices.
    """
    if not isinstance(certificate, Certificate) or certificate.words != 1:
        return None
    if not is_ill_conditioned(certificate):
        return None
    sharper = with_known_gap(certificate, system.a)
    if sharper is None:
        return None
    certificate, gap = sharper
    found = step_of_inverse(system, certificate, gap)
    if found is None:
        return None
    largest_error = certificate.largest_error(found.y)
    error = above(found.error + certificate.image_of_bounds(largest_error), 3, LEAST)
    step = _Refined(
        found.x,
        None,
        found.left,
        np.where(found.is_zero, 0.0, error),
        found.y,
        found.error,
        found.is_zero,
        found.change,
        is_rounded_once=False,
    )
    return step, certificate


def _first_enclosure(system: ScaledSystem, certificate: Proof) -> Enclosure | None:
    """The enclosure by the compiled core where one step makes it sharp; else None."""
    if not isinstance(certificate, Certificate) or certificate.words != 1:
        return None
    a = system.a
    b = system.b
    is_real = a.dtype.kind == b.dtype.kind == "f"
    if not (is_on_host(a) and is_real and b.shape[1] == 1):
        return None
    # One step in C: the residual, its product with R and the radius.
    enclosed = core.enclosed(
        a,
        b,
        certificate.inverse,
        certificate.row_bounds,
        certificate.norm,
        certificate.inverse_norm,
    )
    if enclosed is None:
        return None
    x, radius = enclosed
    return Enclosure(x, None, radius, np.zeros((1, 1), bool), 1)


def _refined(
    system: ScaledSystem,
    certificate: Proof,
    x: Array,
    low: Array | None,
    words: int,
    sum_words: int = 2,
    zeros: Array | None = None,
    first: _Refined | None = None,
) -> tuple[_Refined, int, bool, bool]:
    """The last step that gained something, the number of steps, if its bound is sharp for so
    many words, and if some residual is zero; from x, or from a first step. Some entries may
    be known zeros.

    Sums of residuals have two words first, three where two are not enough, and are rounded
    once in the end, for which `sum_words` is 0.
    """

    def step_from(x: Array, low: Array | None) -> _Refined:
        q = _residual_of(system, x, low, certificate.words, sum_words)
        return _without_errors_of(zeros, _step(certificate, x, low, q))

    share = SHARP[words]
    step = step_from(x, low) if first is None else _without_errors_of(zeros, first)
    steps = 1
    is_sharp, has_zeros = numbers(_is_sharp(step, share), step.is_zero.any())
    while not is_sharp and steps < MOST_STEPS:
        if is_on_host(step.x) and not step.is_rounded_once:
            # Sums in two words serve until their own errors are most of what is left
            is_sharp = _is_enough(step, words)
            if is_sharp or (words == 1 and _is_negligible(step)):
                break
            if sum_words and _is_due_to_update(step, words):
                sum_words = 3
                if step.low is None and not _is_sharp(step, REACH):
                    step = _in_two_words(step)
        sides = _few_open_sides(step, words)
        if sides is not None:
            part = system.of_sides(sides)
            low = None if step.low is None else step.low[:, sides]
            zeros_of_part = None if zeros is None else zeros[:, sides]
            refined = _refined(
                part,
                certificate,
                step.x[:, sides],
                low,
                words,
                sum_words,
                zeros_of_part,
            )
            of_part, more_steps, is_sharp, is_zero = refined
            step = _merged(step, of_part, sides)
            return step, steps + more_steps, is_sharp, bool(has_zeros) or is_zero
        if _is_last(step):
            # Another step may gain by a second word of x, or by digits of its residual
            if step.low is None:
                step = _in_two_words(step)
            elif step.is_rounded_once:
                break
            elif _is_enough(step, words):
                is_sharp = True
                break
            else:
                sum_words = 0
        following = step_from(step.x, step.low)
        steps += 1

        # Right sides that became worse stay as they were
        is_better = _largest(following.error) <= _largest(step.error)
        has_gained = is_better & _has_gained(step, following)
        step = _chosen(is_better, following, step)

        # What decides about another step is read with one wait for a device
        is_sharp, has_zeros, may_gain = numbers(
            _is_sharp(step, share), step.is_zero.any(), has_gained.any()
        )
        if not may_gain and (step.is_rounded_once or not sum_words):
            break
        if not may_gain and _is_enough(step, words):
            is_sharp = True
            break
        if not may_gain:
            sum_words = 0
    return step, steps, bool(is_sharp), bool(has_zeros)


def _without_errors_of(zeros: Array | None, step: _Refined) -> _Refined:
    """A step that has nothing left to gain in these entries of the solution. What it found
    there remains in `y`, on which the bounds of all entries depend.
    """
    if zeros is not None:
        step.error[zeros] = 0.0
    return step


def _few_open_sides(step: _Refined, words: int) -> Array | None:
    """The right sides of which some error is not small enough, of arrays of the host; None
    where they are more than a quarter, or more than three quarters after close sums. Steps
    for all of them would take as long as for the others, whose sums cancel to nothing.
    """
    if not is_on_host(step.x):
        return None
    is_once = step.is_rounded_once
    share = SHARP[words] if is_once else ENOUGH[words]
    is_open = np.asarray((step.error > share * np.abs(step.x)).any(axis=0))
    sides = np.flatnonzero(is_open)
    most = len(is_open) // 4 if is_once else 3 * len(is_open) // 4
    return sides if 0 < len(sides) <= most else None


def _is_due_to_update(step: _Refined, words: int) -> bool:
    """True if some error is not small enough and another step would leave most of it: the
    update errs by a sixteenth of it or more, or by more than it changes x.
    """
    is_open = step.error > ENOUGH[words] * np.abs(step.x)
    is_most_of_error = step.error_of_d > step.error / 16.0
    is_most_of_y = _largest(step.error_of_d) > _largest(np.abs(step.d))
    return bool((is_open & (is_most_of_error | is_most_of_y)).any())


def _merged(step: _Refined, part: _Refined, sides: Array) -> _Refined:
    """A step with some right sides from another one, in its memory."""

    def merged(name: str) -> Array:
        values: Array = getattr(step, name)
        values[:, sides] = getattr(part, name)
        return values

    low = None
    if step.low is not None or part.low is not None:
        low = np.zeros_like(step.x) if step.low is None else step.low
        low[:, sides] = 0.0 if part.low is None else part.low
    return _Refined(
        merged("x"),
        low,
        merged("left"),
        merged("error"),
        merged("y"),
        merged("error_of_d"),
        merged("is_zero"),
        merged("d"),
        step.is_rounded_once and part.is_rounded_once,
    )


def _step(certificate: Proof, x: Array, low: Array | None, q: Residual) -> _Refined:
    """x + low + d, d close to R q, in as many words as x has."""
    d, error_of_d = certificate.update(q)
    y = moduli(d) + error_of_d
    largest_error = certificate.largest_error(y)
    error = above(error_of_d + certificate.image_of_bounds(largest_error), 3, LEAST)
    if low is None:
        x, left = two_sum(x, d)
    else:
        low, left = two_sum(low, d)
        x, low = two_sum(x, low)
    is_zero = _is_zero(q)
    if q.errors is not None:
        # Nothing has underflowed where the residual is known to be zero
        is_zero = is_zero & (q.errors == 0.0).all(axis=0, keepdims=True)
        error = np.where(is_zero, 0.0, error)
    is_rounded_once = q.errors is None
    return _Refined(x, low, left, error, y, error_of_d, is_zero, d, is_rounded_once)


def _residual_of(
    system: ScaledSystem, x: Array, low: Array | None, words: int, sum_words: int
) -> Residual:
    """`residual` of a system; with a band, block of rows by block."""
    if system.band is None:
        return residual(system.a, system.b, x, low, words, sum_words)
    parts = []
    for rows, columns in system.band.blocks():
        a = system.a[rows, columns]
        low_of_rows = None if low is None else low[columns]
        parts.append(residual(a, system.b[rows], x[columns], low_of_rows, words).words)
    return Residual([np.concatenate(blocks) for blocks in zip(*parts)])


def residual(
    a: Array, b: Array, x: Array, low: Array | None, words: int, sum_words: int = 0
) -> Residual:
    """b - A (x + low), rounded once, or the sum of two words; with sums of so many words,
    where these are quick, it has errors of its own.

    For an x of two words it is b - [A A] [x; low].
    """
    if sum_words and words == 1:
        sums = quick_residual(a, b, [x] if low is None else [x, low], sum_words)
        if sums is not None:
            q, errors = sums
            return Residual([q], errors)
    copies = a
    stacked = x
    if low is not None:
        copies = np.concatenate([a, a], axis=1)
        stacked = np.concatenate([x, low])
    if words == 2:
        return Residual(pair_residual(copies, stacked, b))
    return Residual([correct_residual(copies, stacked, b)])


def _largest(bounds: Array) -> Array:
    """The largest bound of each right side."""
    return bounds.max(axis=0, keepdims=True, initial=0.0)


def _has_gained(step: _Refined, following: _Refined) -> Any:
    """For each right side, True if some bound was halved that is no tiny part of x.

    Where an entry of the solution is zero, x would be halved until it underflows.
    """
    counts = step.error > NEGLIGIBLE * _largest(np.abs(step.x))
    has_halved = following.error < 0.5 * step.error
    return (has_halved & counts).any(axis=0, keepdims=True)


def _chosen(is_better: Array, following: _Refined, step: _Refined) -> _Refined:
    """The one or the other for each right side."""
    if is_on_host(is_better) and is_better.all():
        return following
    low = None
    if step.low is not None and following.low is not None:
        low = np.where(is_better, following.low, step.low)
    return _Refined(
        np.where(is_better, following.x, step.x),
        low,
        np.where(is_better, following.left, step.left),
        np.where(is_better, following.error, step.error),
        np.where(is_better, following.y, step.y),
        np.where(is_better, following.error_of_d, step.error_of_d),
        np.where(is_better, following.is_zero, step.is_zero),
        np.where(is_better, following.d, step.d),
        following.is_rounded_once,
    )


def _in_two_words(step: _Refined) -> _Refined:
    """The same with what one word leaves as the second one."""
    return replace(step, low=step.left, left=np.zeros_like(step.left))


def _is_sharp(step: _Refined, share: float) -> Any:
    """True if no error is more than a small part of its entry."""
    return (step.error <= share * np.abs(step.x)).all()


def _is_negligible(step: _Refined) -> bool:
    """True if no error is more than a small part of its entry, or a tiny one of the largest:
    of entries that are zero, or small beside others, bounds of all entries say more.
    """
    sizes = np.abs(step.x)
    enough = np.maximum(SHARP[1] * sizes, NEGLIGIBLE * _largest(sizes))
    return bool((step.error <= enough).all())


def _is_enough(step: _Refined, words: int) -> bool:
    """True if a residual that is rounded once is not worth its price."""
    (is_enough,) = numbers(_is_sharp(step, ENOUGH[words]))
    return bool(is_enough)


def _is_last(step: _Refined) -> bool:
    """True if x changed by no more than its words can tell: what is left of the residual
    comes from their own rounding, and the next one would be as large.
    """
    share = LAST_CHANGE[len(step.words)]
    largest = share * _largest(np.abs(step.x))
    (is_last,) = numbers((_largest(np.abs(step.d)) <= largest).all())
    return bool(is_last)


def _is_zero(q: Residual) -> Array:
    """For each right side, True if all words of its residual are zeros."""
    is_zero = q.words[0] == 0.0
    for word in q.words[1:]:
        is_zero = is_zero & (word == 0.0)
    return is_zero.all(axis=0, keepdims=True)
