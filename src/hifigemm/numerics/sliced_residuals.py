"""Residuals B - A X of stacks of small systems, X in two words, with twice the digits of
float64 and a bound of their error.

Idea
    A and X are cut into slices on the grids g = 2^-t, g^2 and g^3, t bits each, and what
    these leave [OOOR12]: A = a_0 + a_1 + a_2 + a_3, X = x_0 + x_1 + x_2 + x_3. With
    r_i = a_i + ... + a_3, which are float64 numbers,

        A X = a_0 x_0  +  (a_1 x_0 + a_0 x_1)  +  (a_2 x_0 + a_1 x_1 + a_0 x_2)
              +  (a_3 x_0 + r_2 x_1 + r_1 x_2 + A x_3).

    The first three sums are exact. They are added to B by TwoSum, so that they cancel
    where X is a solution; the terms of the last one are below n 2^(-3 t), and so its
    rounding counts for little. Each sum is a product of blocks side by side and slices of
    X above each other.
Exact when
    2 n 4^t <= 2^53 for the n terms, and entries of A and X are at most 1 in modulus, with
    a second word of X of u at most. Then |a_0|, |x_0| <= 1, |a_1|, |x_1| <= g / 2,
    |a_2| <= g^2 / 2 and |x_2| <= g^2, because that holds the second word too, and
    u <= g^2 / 2. In units of their grids the terms of a sum have magnitudes of at most
    n 4^t (1 + 1/4 + 1/2). No partial sum is rounded, in any order.
Bound
    S is the sum of magnitudes of the terms of the last sum, e_0, e_1 and e_2 what TwoSum
    leaves. The last sum errs by at most gamma_(4 n) S, the rounding of x_3 counts for
    u S, the three additions of the e_i to it for 3.01 u (|e_0| + |e_1| + |e_2| +
    (1 + gamma_(4 n)) S):

        |B - A X - q| <= u |q| + 4 u (|e_0| + |e_1| + |e_2|) + (4 n + 6) u S + n eta.

    Only products with x_3 may underflow, by n eta / 2 in all: all others have a factor
    of 2^-78 or more, and entries of A in scale are zeros or at least 2^-401, with no bit
    below 2^-453. q is the residual itself where q, the e_i and S are zeros; S is added
    in units of 2^-700, so that it is zero only where all terms are.
References
    [OOOR12] doi:10.1007/s11075-011-9478-1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hifigemm.numerics.bits import LEAST, Array, ceil_log2
from hifigemm.numerics.eft import two_sum

UNIT = 2.0**-53
UNIT_OF_MATRIX = 2.0**-400
UNIT_OF_SOLUTION = 2.0**-300


class SlicedMatrices(NamedTuple):
    """Matrices (batch, n, n) in slices."""

    leading: Array
    """[-a_2 -a_1 -a_0], whose last blocks serve the first two sums."""
    last: Array
    """[-a_3 -r_2 -r_1 -A], the blocks of the last sum."""
    sizes: Array
    """Their magnitudes in units of 2^-400."""
    step: float
    """g."""


class SlicedResidual(NamedTuple):
    """q with |B - A X - q| <= u |q| + errors, (batch, n, k)."""

    q: Array
    errors: Array
    is_zero: Array
    """For each right side, True if q is the residual and zero: (batch, 1, k)."""


def step_of(n: int) -> float:
    """g for systems of n rows."""
    return 2.0 ** -((53 - ceil_log2(2 * n)) // 2)


def bound_of(n: int) -> tuple[float, float, float]:
    """(c, d, e) for systems of n rows: q errs by c times the magnitudes of what TwoSum
    leaves, d times S in its units, and e.
    """
    unit = UNIT * (1.0 + (4 * n + 10) * (2.0 * UNIT))
    share = (4 * n + 6) * (UNIT_OF_MATRIX * UNIT_OF_SOLUTION)
    return 4.0 * unit, share * unit, (n + 4) * LEAST


def sums_of_products(a: Array, b: Array) -> Array:
    """A B for stacks (batch, m, n) and (batch, n, k): sums of rounded products in any order,
    n roundings of a term. No setting of a library replaces them by others.
    """
    return (a[:, :, :, None] * b[:, None, :, :]).sum(axis=2)


def sliced(a: Array) -> SlicedMatrices:
    """Slices of matrices with entries of at most 1 in modulus."""
    step = step_of(a.shape[1])
    minus = -a
    first = _cut(minus, step)
    left_by_one = minus - first
    second = _cut(left_by_one, step**2)
    left_by_two = left_by_one - second
    third = _cut(left_by_two, step**3)
    last = np.concatenate(
        [left_by_two - third, left_by_two, left_by_one, minus], axis=2
    )
    leading = np.concatenate([third, second, first], axis=2)
    sizes = np.abs(last) * (1.0 / UNIT_OF_MATRIX)
    return SlicedMatrices(leading, last, sizes, step)


def sliced_residual(
    matrices: SlicedMatrices, b: Array, x: Array, low: Array
) -> SlicedResidual:
    """B - A (X + L) of the matrices and stacks (batch, n, k), |L| <= u |X|."""
    n = b.shape[1]
    step = matrices.step

    # X + L in slices, the last one rounded
    first = _cut(x, step)
    left = x - first
    second = _cut(left, step**2)
    left, error_of_left = two_sum(left - second, low)
    third = _cut(left, step**3)
    fourth = (left - third) + error_of_left
    stacked = np.concatenate([first, second, third, fourth], axis=1)

    # What exact sums cancel to, and the digits that are left
    q = b
    low_digits = sums_of_products(matrices.last, stacked)
    rounded = np.zeros_like(b)
    for i in (1, 2, 3):
        blocks = matrices.leading[:, :, (3 - i) * n :]
        q, error = two_sum(q, sums_of_products(blocks, stacked[:, : i * n]))
        low_digits = low_digits + error
        rounded = rounded + np.abs(error)
    q = q + low_digits

    # Their bound, and where nothing was rounded
    sizes_of_x = np.abs(stacked) * (1.0 / UNIT_OF_SOLUTION)
    sizes = sums_of_products(matrices.sizes, sizes_of_x)
    is_zero = (np.abs(q) + rounded) + sizes == 0.0
    of_digits, of_terms, underflows = bound_of(n)
    errors = rounded * of_digits + sizes * of_terms + underflows
    return SlicedResidual(q, errors, is_zero.all(axis=1, keepdims=True))


def _cut(x: Array, unit: float) -> Array:
    """The multiples of a power of two that are nearest to entries of at most 2^51 of them;
    what they leave is a float64 number.
    """
    sigma = 1.5 * 2.0**52 * unit
    return (x + sigma) - sigma
