"""cond: two numbers between which the condition of a matrix in the 2-norm lies, the
quotient of its largest and its least singular value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hifigemm.base.transforms import is_traced, opaque
from hifigemm.linalg.arguments import Answers, verifying, wide_operands
from hifigemm.linalg.separated import distance_below
from hifigemm.linalg.singular_values import check_matrices, enclosure
from hifigemm.linalg.upward import UNIT, above
from hifigemm.linalg.values import scaled_matrix
from hifigemm.numerics.bits import Array


@dataclass(frozen=True)
class Condition:
    """``lower <= cond(A) <= upper``.

    Attributes
    ----------
    lower, upper : float
        `upper` is infinite if full rank could not be proven. For a stack both are NumPy
        arrays.
    """

    lower: Any
    upper: Any


@opaque
def cond(a: Any) -> Condition:
    """Bounds of the 2-norm condition number, the largest singular value over the least.

    Parameters
    ----------
    a : array_like
        Shape (..., m, n), with at least one row and column; dtype as for `solve`.

    Returns
    -------
    Condition
        ``.lower`` and ``.upper``. ``.upper`` is infinite if the least singular value
        may be zero, from a condition of about 1e15 on.

    Raises
    ------
    VerificationError
        An entry is Inf or NaN, or the underlying solver fails. For a stack the
        attribute ``solution`` has the proven bounds, with NaN elsewhere.
    LinAlgError, TypeError
        The operand is not a matrix, or is empty. JAX differentiates the array, or the
        tensor requires a gradient.

    Examples
    --------
    >>> import hifigemm.linalg
    >>> c = hifigemm.linalg.cond([[1.0, 1.0], [1.0, 3.0]])
    >>> c.lower <= 3.0 + 8.0**0.5 <= c.upper
    True
    """
    if is_traced(a):
        from hifigemm.linalg import jax_bounds

        _check_not_empty(a)
        return jax_bounds.bounds(cond, a, Condition, float, float)
    operands = wide_operands(a=a)
    (array,) = operands.arrays
    _check_not_empty(array)
    stack = array.shape[:-2]
    with verifying(operands.library):
        answers = Answers(stack, lambda index: _condition(array[index]))
        if not stack and answers.values:
            return answers.values[()]
        lower = answers.array("lower", np.nan, float)
        upper = answers.array("upper", np.nan, float)
        whole = Condition(lower, upper)
        answers.check(lambda: whole)
        return whole


def _check_not_empty(a: Array) -> None:
    """Raise LinAlgError unless a is a nonempty matrix, or a stack of nonempty matrices."""
    check_matrices(a)
    if 0 in a.shape[-2:]:
        raise np.linalg.LinAlgError(
            f"a has shape {a.shape}; the condition of empty matrices is not defined"
        )


def _condition(a: Array) -> Condition:
    """The condition of one matrix."""
    matrix = scaled_matrix(a)
    values, radii = enclosure(matrix.array)
    radii = above(radii + matrix.loss, 1)
    smallest = distance_below(values, np.zeros_like(values), radii)[-1]
    largest = above(values[0] + radii[0], 1)
    upper = above(largest / smallest, 1) if smallest > 0.0 else np.inf

    # The quotient of a rounded difference and a sum, rounded downward; it may overflow
    largest = distance_below(values, np.zeros_like(values), radii)[0]
    lower = largest / (values[-1] + radii[-1]) * (1.0 - 8.0 * UNIT)
    greatest = np.finfo(float).max
    return Condition(min(max(float(lower), 1.0), float(greatest)), float(upper))
