"""Stacks of small systems on a device, all systems of a stack at once.

Idea
    A kernel has the theorem and the bounds of `certificate` and `refinement` for small
    matrices, as core/small_systems.c has them for the host. Its plain twin is
    `solved_systems`, array expressions on the whole stack. Systems that need another scale,
    two words of R or more steps are left.
Scale
    A' has rows and columns in scale. B' is multiplied by powers of two so that the largest
    entry of R B' lies in [1/4, 1/2). Where |I - R A'| e <= 1/2, the solution is at most
    twice as large, so that x stays below 1, as slices of `numerics.sliced_residuals` ask.
    R B' is about |B'| / (3 n) at least and 2^52 at most. If roundings make it much smaller,
    the system is left. It is left, too, if x or its radius loses a bit in the units of A
    and B.
Sums
    Products by R are sums of rounded products in any order, with n roundings of a term. R
    is the result of an elimination, and trusted in nothing.
Words
    x has two words from the first step on. Where an error bound reaches a word, it is
    replaced by zero: solutions that are float64 numbers, and zeros, then have a residual
    of zero in the next step. The second step is for these, too. A right side takes as many
    steps as it needs, so that no bit of it depends on others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from hifigemm.engines.core import SolvedStack
from hifigemm.linalg.arrays import (
    has_triton,
    is_small,
    launched,
    to_device_of,
    to_host,
)
from hifigemm.linalg.certificate import contraction_bound, errors_of_contraction
from hifigemm.linalg.inverse import GOOD_NORM, MOST_CONDITION
from hifigemm.linalg.refinement import NEGLIGIBLE, SHARP
from hifigemm.linalg.upward import UNIT, above, gamma, upward
from hifigemm.numerics.bits import LEAST, Array, power_of_two
from hifigemm.numerics.eft import two_sum
from hifigemm.numerics.equilibration import stack_in_scale
from hifigemm.numerics.sliced_residuals import (
    UNIT_OF_MATRIX,
    UNIT_OF_SOLUTION,
    SlicedMatrices,
    SlicedResidual,
    bound_of,
    sliced,
    sliced_residual,
    step_of,
    sums_of_products,
)

Answers = TypeVar("Answers", bound=Iterable[Array])

LEAST_ROWS = 2**10
"""Of all systems of a stack that a device solves: an H200 takes 0.8 to 1.6 ms for these, 16
cores 1 to 2 ms.
"""
MOST_ROWS = 32
"""Of a real system that a device solves."""
MOST_SHIFT = 64
"""Of the exponent of the power of two that brings R B' into scale."""
MOST_STEPS = 5
"""Of refinement."""
INVERSE_NORM = 2.0**52
"""More than the largest entry of |R| e, where |R| (|A| e) is at most `MOST_CONDITION`: the
largest entry of a row of A is 1/2 at least.
"""
_UPWARD = 1.0 + 2.0**-48
"""More than the roundings of two additions and of the product by this factor; subnormal sums
are exact.
"""
_SHARE_OF_LOW = 2.0**-51
"""More than two roundings of the second word and its margin."""
_ERRORS_OF_ERROR = 6, LEAST
"""Roundings of the error of a step, and what underflow takes from it."""


def is_stack(a: Array, *sides: Array) -> bool:
    """True if there are enough small square matrices A of a device, or right sides, for the
    device to solve all systems at once.
    """
    arrays = (a, *sides)
    if not has_triton(a) or not all(map(is_small, arrays)):
        return False
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        return False
    is_complex = any(x.dtype.kind == "c" for x in arrays)
    rows = 2 * a.shape[-1] if is_complex else a.shape[-1]
    systems = max(math.prod(x.shape[:-2]) for x in arrays)
    return rows <= MOST_ROWS and systems * rows >= LEAST_ROWS


def solved_stack(a: Array, b: Array) -> SolvedStack:
    """A x = b for stacks (..., n, n) and (..., n, k) of a device, in float64, with what
    `core.solved_stack` says of each system.
    """
    from hifigemm.kernels.systems import small_systems

    *stack, n, k = b.shape
    batch = math.prod(stack)
    x, radius, proofs = launched(
        small_systems.solved_systems,
        a.reshape(batch, n, n),
        b.reshape(batch, n, k),
        bounds=bounds_of_systems(n),
    )
    shape = (*stack, n, k)
    return SolvedStack(
        x.reshape(shape), radius.reshape(shape), proofs.reshape(*stack, 4)
    )


def completed_by_core(
    found: Answers,
    is_left: Array,
    by_core: Callable[..., Iterable[Array] | None],
    *operands: Array,
) -> Answers:
    """What was found for a stack of a device, with the answers of the core for those entries
    of the stack that are left. The arrays that were found lie anywhere.
    """
    if not bool(is_left.any()):
        return found
    left = np.nonzero(to_host(is_left))
    entries = [x[tuple(to_device_of(x, i) for i in left)] for x in operands]
    others = by_core(*map(to_host, entries))
    if others is not None:
        for array, values in zip(found, others, strict=True):
            places = tuple(to_device_of(array, i) for i in left)
            array[places] = to_device_of(array, values)
    return found


@cache
def bounds_of_systems(n: int) -> Any:
    """The constants of the kernel for systems of n rows."""
    from hifigemm.kernels.systems.small_systems import Bounds

    of_digits, of_terms, underflows = bound_of(n)
    of_contraction = upward(*errors_of_contraction(n, 1.0, INVERSE_NORM))
    of_update = upward(*_errors_of_update(n))
    of_error = upward(*_ERRORS_OF_ERROR)
    return Bounds(
        rows=n,
        step=step_of(n),
        unit_of_matrix=1.0 / UNIT_OF_MATRIX,
        unit_of_solution=1.0 / UNIT_OF_SOLUTION,
        share_of_digits=of_digits,
        share_of_terms=of_terms,
        underflows_of_residual=underflows,
        gamma=gamma(n),
        factor_of_contraction=of_contraction[0],
        offset_of_contraction=of_contraction[1],
        factor_of_update=of_update[0],
        offset_of_update=of_update[1],
        factor_of_error=of_error[0],
        offset_of_error=of_error[1],
        good_norm=GOOD_NORM,
        most_condition=MOST_CONDITION,
        most_unit=2.0**MOST_SHIFT,
        most_steps=MOST_STEPS,
        sharp=SHARP[1],
        sharper=SHARP[2],
        negligible=NEGLIGIBLE,
        upward=_UPWARD,
        share_of_low=_SHARE_OF_LOW,
    )


class _Proof(NamedTuple):
    """Approximate inverses R of A (batch, n, n) in scale, and bounds of |I - R A|. Numbers
    of matrices are (batch, 1, 1).
    """

    inverse: Array
    inverse_sizes: Array
    """|R|."""
    row_bounds: Array
    """At least |I - R A| e, (batch, n, 1)."""
    norm: Array
    """The largest of them; NaN where R is not finite."""
    condition: Array
    """The largest entry of |R| (|A| e)."""

    @property
    def is_good(self) -> Array:
        """True if a matrix is proven to be nonsingular, and no scale is likely to gain."""
        return (self.norm < GOOD_NORM) & (self.condition <= MOST_CONDITION)

    def update(self, residual: SlicedResidual) -> tuple[Array, Array]:
        """(d, e): d close to R q, and e >= |R q* - d| for the exact residual q*, as
        `Certificate.update` has it.
        """
        n = self.inverse.shape[1]
        d = sums_of_products(self.inverse, residual.q)
        sizes = np.abs(residual.q) * (gamma(n) + UNIT) + residual.errors
        images = sums_of_products(self.inverse_sizes, sizes)
        return d, above(images, *_errors_of_update(n))


def _errors_of_update(n: int) -> tuple[int, float]:
    """Roundings of a term of the error of R q, and what underflow takes from it."""
    return n + 6, (3 * n + 6) * LEAST * (1.0 + INVERSE_NORM)


def _inverse(a: Array) -> Array:
    """R by elimination with the largest pivot of each column."""
    batch, n, _ = a.shape
    rest = a
    inverse = np.broadcast_to(np.eye(n), a.shape)
    systems = np.arange(batch)
    for p in range(n):
        # The row with the largest pivot changes places with row p
        sizes = np.abs(rest[:, :, p])
        may_be_pivot = (np.arange(n) >= p) & (sizes >= 0.0)
        pivots = np.where(may_be_pivot, sizes, -1.0).argmax(axis=1)
        order = np.tile(np.arange(n), (batch, 1))
        order[systems, pivots] = p
        order[:, p] = pivots
        rest = np.take_along_axis(rest, order[:, :, None], axis=1)
        inverse = np.take_along_axis(inverse, order[:, :, None], axis=1)

        # It is divided by the pivot, and the others lose their entry in column p
        column = rest[:, :, p, None]
        factor = 1.0 / column[:, p, None]
        row = rest[:, p, None] * factor
        row_of_inverse = inverse[:, p, None] * factor
        is_p = (np.arange(n) == p)[:, None]
        rest = np.where(is_p, row, rest - column * row)
        inverse = np.where(is_p, row_of_inverse, inverse - column * row_of_inverse)
    return inverse


def _proof(a: Array) -> _Proof:
    """The proof by inverses in float64."""
    n = a.shape[1]
    inverse = _inverse(a)
    inverse_sizes = np.abs(inverse)
    row_sums = np.abs(a).sum(axis=2, keepdims=True)
    images = sums_of_products(inverse_sizes, row_sums)

    # R A - I by a native product
    deviations = np.abs(sums_of_products(inverse, a) - np.eye(n))
    row_bounds = contraction_bound(
        deviations.sum(axis=2, keepdims=True),
        images,
        1.0,
        1.0,
        gamma(n),
        INVERSE_NORM,
    )
    norm = row_bounds.max(axis=1, keepdims=True)
    condition = images.max(axis=1, keepdims=True)
    return _Proof(inverse, inverse_sizes, row_bounds, norm, condition)


class _Step(NamedTuple):
    """Solutions after a step, in two words, and what is known of their errors."""

    x: Array
    low: Array
    left: Array
    """What x + low is less than the sum that it stands for, exactly."""
    error: Array
    """At least the error of x + low + left; NaN where there is no bound."""


def _step(
    proof: _Proof, matrices: SlicedMatrices, b: Array, x: Array, low: Array
) -> _Step:
    """x + low + d, d close to R q, as in `refinement`."""
    residual = sliced_residual(matrices, b, x, low)
    d, error_of_d = proof.update(residual)
    y = np.abs(d) + error_of_d
    largest_error = y.max(axis=1, keepdims=True) / (1.0 - proof.norm)
    error = above(error_of_d + largest_error * proof.row_bounds, *_ERRORS_OF_ERROR)
    error = np.where(residual.is_zero, 0.0, error)

    # Slices of larger numbers are not exact
    has_bound = np.abs(x).max(axis=1, keepdims=True) <= 1.0
    error = np.where(has_bound, error, np.nan)
    low, left = two_sum(low, d)
    return _Step(*two_sum(x, low), left, error)


def _is_sharp(step: _Step, share: float) -> Array:
    """True if no error of a right side is more than a small part of its entry, or a tiny
    one of the largest: (batch, 1, k).
    """
    sizes = np.abs(step.x)
    negligible = sizes.max(axis=1, keepdims=True) * NEGLIGIBLE
    is_sharp = step.error <= np.maximum(sizes * share, negligible)
    return is_sharp.all(axis=1, keepdims=True)


def _refined(
    proof: _Proof, a: Array, b: Array, x: Array, is_proven: Array
) -> tuple[_Step, Array]:
    """The last step from x, and the number of steps, (batch, 1, k): a right side takes as
    many as it needs, whatever the others need.
    """
    matrices = sliced(a)
    step = _step(proof, matrices, b, x, np.zeros_like(x))
    steps = np.ones((len(x), 1, x.shape[2]))
    for number in range(1, MOST_STEPS):
        # A word that its error bound reaches starts the next step as zero
        x = np.where(np.abs(step.x) <= step.error, 0.0, step.x)
        low = np.where(np.abs(step.low) <= step.error, 0.0, step.low)
        is_open = ~_is_sharp(step, SHARP[2])
        if number == 1:
            is_changed = (x != step.x) | (low != step.low)
            is_open = is_open | is_changed.any(axis=1, keepdims=True)
        is_open = is_open & is_proven
        if not is_open.any():
            break
        following = _step(proof, matrices, b, x, low)
        step = _Step(*(np.where(is_open, y, z) for y, z in zip(following, step)))
        steps = steps + is_open
    return step, steps


def _rounded(step: _Step) -> tuple[Array, Array]:
    """The radius of x alone, and whether x is the number nearest to the solution: all
    numbers within the error of x + low round to x.
    """
    error = step.error + np.abs(step.left)
    size_of_low = np.abs(step.low)
    margin = error * _UPWARD + size_of_low * _SHARE_OF_LOW
    is_nearest = step.x + (step.low - margin) == step.x
    is_nearest = is_nearest & (step.x + (step.low + margin) == step.x)
    return (error + size_of_low) * _UPWARD, is_nearest | (error == 0.0)


def solved_systems(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """(x, radius, proofs) of A x = b for stacks (batch, n, n) and (batch, n, k), as
    `solved_stack` has them.
    """
    a, b, exponents, is_moderate = stack_in_scale(a, b)
    proof = _proof(a)
    is_proven = is_moderate & proof.is_good

    # Right sides for which R B' lies in [1/4, 1/2)
    x = sums_of_products(proof.inverse, b)
    _, sizes_of_x = np.frexp(np.abs(x).max(axis=1, keepdims=True))
    shifts = -1 - sizes_of_x
    is_in_reach = np.abs(shifts) <= MOST_SHIFT
    is_proven = is_proven & is_in_reach.all(axis=2, keepdims=True)
    in_scale = power_of_two(shifts)
    step, steps = _refined(proof, a, b * in_scale, x * in_scale, is_proven)
    is_sharp = _is_sharp(step, SHARP[1])
    is_proven = is_proven & is_sharp.all(axis=2, keepdims=True)

    radius, are_nearest = _rounded(step)
    is_nearest = are_nearest.all(axis=(1, 2), keepdims=True)

    # In the units of the system as it came, where no bit may be lost
    factors = power_of_two(exponents - shifts)
    x = step.x * factors
    scaled_radius = radius * factors
    is_exact = (x / factors == step.x) & (scaled_radius / factors == radius)
    is_proven = is_proven & is_exact.all(axis=(1, 2), keepdims=True)
    status = is_proven.astype(np.float64) * (is_nearest.astype(np.float64) + 1.0)
    most_steps = steps.max(axis=2, keepdims=True, initial=1.0)
    facts = [status, proof.condition, proof.norm, most_steps]
    return x, scaled_radius, np.concatenate(facts, axis=1)[:, :, 0]
