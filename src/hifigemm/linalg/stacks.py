"""Stacks of small systems on a device, all systems of a stack at once.

Idea
    The theorem and the bounds of `certificate` and `refinement`, which
    core/small_systems.c has for the host, become array expressions on the whole stack:
    a few hundred launches of kernels, and one wait of the host for each step. Systems
    that need another scale, two words of R or more steps are left.
Scale
    A' has rows and columns in scale. B' is multiplied by powers of two so that the largest
    entry of R B' lies in [1/4, 1/2). Where |I - R A'| e <= 1/2, the solution is at most
    twice as large, so that x stays below 1, as slices of `numerics.sliced_residuals` ask.
    R B' is at least |B'| / (3 n) then and at most 2^52, so that no bit of B' is lost.
Sums
    Products by R are sums of rounded products on the device, in any order, with n roundings
    of a term. R is what the library of the device computes, and trusted in nothing.
Words
    x has two words from the first step on. Where an error bound reaches a word, it is
    replaced by zero: solutions that are float64 numbers, and zeros, then have a residual
    of zero in the next step.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hifigemm.engines.core import SolvedStack
from hifigemm.linalg.arrays import identity, inverses, is_on_host, is_small
from hifigemm.linalg.certificate import contraction_bound
from hifigemm.linalg.inverse import GOOD_NORM, MOST_CONDITION
from hifigemm.linalg.refinement import NEGLIGIBLE, SHARP
from hifigemm.linalg.upward import UNIT, above, gamma
from hifigemm.numerics.bits import LEAST, Array, power_of_two
from hifigemm.numerics.eft import two_sum
from hifigemm.numerics.equilibration import stack_in_scale
from hifigemm.numerics.sliced_residuals import (
    SlicedMatrices,
    SlicedResidual,
    sliced,
    sliced_residual,
    sums_of_products,
)

LEAST_ROWS = 2**15
"""Of all systems of a stack that a device solves. Its launches take 4 to 8 ms for any
number of rows; 16 cores take as long for 24,000 real rows, and in proportion for more.
"""
MOST_ROWS = 32
"""Of a real system that a device solves; each takes 32 n^3 bytes or more for its slices."""
MOST_STEPS = 5
"""Of refinement."""
_ENTRIES = 2**28
"""Numbers of float64 that are in memory at a time: 2 GiB."""
INVERSE_NORM = 2.0**52
"""More than the largest entry of |R| e, where |R| (|A| e) is at most `MOST_CONDITION`: the
largest entry of a row of A is 1/2 at least.
"""
_UPWARD = 1.0 + 2.0**-48
"""More than 2 roundings of sums of magnitudes, and that of the product by it; sums and
products by it that are subnormal become no smaller.
"""


def is_stack(a: Array, *sides: Array) -> bool:
    """True if there are enough small square matrices A of a device, or right sides, for the
    device to solve all systems at once.
    """
    arrays = (a, *sides)
    if is_on_host(a) or not all(map(is_small, arrays)):
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
    *stack, n, k = b.shape
    batch = math.prod(stack)
    a = a.reshape(batch, n, n)
    b = b.reshape(batch, n, k)

    # The products of slices, and those of R A, take the most memory
    products = 4 * n * n * max(k, n)
    length = max(_ENTRIES // (products + 64 * n * (n + k)), 1)
    parts = []
    for start in range(0, batch, length):
        part = slice(start, start + length)
        parts.append(_solved(a[part], b[part]))
    x, radius, proofs = parts[0]
    if len(parts) > 1:
        x, radius, proofs = map(np.concatenate, zip(*parts))
    shape = (*stack, n, k)
    return SolvedStack(
        x.reshape(shape), radius.reshape(shape), proofs.reshape(*stack, 4)
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
        underflows = (3 * n + 6) * LEAST * (1.0 + INVERSE_NORM)
        return d, above(images, n + 6, underflows)


def _proof(a: Array) -> _Proof:
    """The proof by inverses in float64."""
    n = a.shape[1]
    # Rows of R solve r A = e
    inverse = np.swapaxes(inverses(np.swapaxes(a, 1, 2)), 1, 2)
    inverse_sizes = np.abs(inverse)
    row_sums = np.abs(a).sum(axis=2, keepdims=True)
    images = sums_of_products(inverse_sizes, row_sums)

    # R A - I by a native product
    deviations = np.abs(sums_of_products(inverse, a) - identity(n, like=a))
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
    error = above(error_of_d + largest_error * proof.row_bounds, 6, LEAST)
    error = np.where(residual.is_zero, 0.0, error)

    # Slices of larger numbers are not exact
    has_bound = np.abs(x).max(axis=1, keepdims=True) <= 1.0
    error = np.where(has_bound, error, np.nan)
    low, left = two_sum(low, d)
    return _Step(*two_sum(x, low), left, error)


def _is_sharp(step: _Step, share: float) -> Array:
    """True if no error of a system is more than a small part of its entry, or a tiny one of
    the largest: (batch, 1, 1).
    """
    sizes = np.abs(step.x)
    negligible = sizes.max(axis=1, keepdims=True) * NEGLIGIBLE
    is_sharp = step.error <= np.maximum(sizes * share, negligible)
    return is_sharp.all(axis=(1, 2), keepdims=True)


def _refined(
    proof: _Proof, a: Array, b: Array, x: Array, is_proven: Array
) -> tuple[_Step, Array, int]:
    """The last step from x, where its errors are small, and the number of steps: as many as
    some system needs.
    """
    matrices = sliced(a)
    step = _step(proof, matrices, b, x, np.zeros_like(x))
    for steps in range(1, MOST_STEPS):
        is_sharp = _is_sharp(step, SHARP[2])
        if not (is_proven & ~is_sharp).any():
            return step, is_sharp, steps
        # Words that may stand for a zero are none in the next step
        x = np.where(np.abs(step.x) <= step.error, 0.0, step.x)
        low = np.where(np.abs(step.low) <= step.error, 0.0, step.low)
        step = _step(proof, matrices, b, x, low)
    return step, _is_sharp(step, SHARP[1]), MOST_STEPS


def _solved(a: Array, b: Array) -> SolvedStack:
    """A x = b for stacks (batch, n, n) and (batch, n, k)."""
    a, b, exponents, is_moderate = stack_in_scale(a, b)
    proof = _proof(a)
    is_proven = is_moderate & proof.is_good

    # Right sides for which R B' lies in [1/4, 1/2)
    x = sums_of_products(proof.inverse, b)
    _, sizes_of_x = np.frexp(np.abs(x).max(axis=1, keepdims=True))
    shifts = -1 - sizes_of_x
    in_scale = power_of_two(shifts)
    step, is_sharp, steps = _refined(proof, a, b * in_scale, x * in_scale, is_proven)
    is_proven = is_proven & is_sharp

    # The solution lies within `error` of x + low; its nearest number is x where all numbers
    # so close round to x
    error = step.error + np.abs(step.left)
    size_of_low = np.abs(step.low)
    margin = error * _UPWARD + size_of_low * 2.0**-51
    is_nearest = step.x + (step.low - margin) == step.x
    is_nearest = is_nearest & (step.x + (step.low + margin) == step.x)
    is_nearest = (is_nearest | (error == 0.0)).all(axis=(1, 2), keepdims=True)
    radius = (error + size_of_low) * _UPWARD

    # In the units of the system as it came, where no bit is lost
    factors = power_of_two(exponents - shifts)
    x = step.x * factors
    scaled_radius = radius * factors
    is_exact = (x / factors == step.x) & (scaled_radius / factors == radius)
    is_proven = is_proven & is_exact.all(axis=(1, 2), keepdims=True)
    status = is_proven.astype(np.float64) * (is_nearest.astype(np.float64) + 1.0)
    number_of_steps = np.full(status.shape, float(steps), like=status)
    facts = [status, proof.condition, proof.norm, number_of_steps]
    return SolvedStack(x, scaled_radius, np.concatenate(facts, axis=1)[:, :, 0])
