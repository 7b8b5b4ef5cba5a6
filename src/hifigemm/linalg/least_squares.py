"""lstsq: solutions of least squares, and of least norm, with a radius for every entry.

Idea
    For B with full column rank, (s, x) of the augmented system

        [ I    B ] [s]   [f]
        [ B^H  0 ] [x] = [h]

    is the residual and the solution of least squares for h = 0, and for f = 0 the s of
    least norm with B^H s = h and its multipliers. Its condition is that of B and not
    its square. The proof of full rank comes with an approximate inverse, see
    `full_rank`: each step adds to s and x what it makes of the residuals

        q1 = f - s - B x,  rounded once,   and   q2 = h - B^H s,

    and the same residuals bound the error that is left. O(m n^2) time, O(m n) memory.
Words
    s and x are sums of words: a step adds words to them, and no bit is lost but behind
    the last word that is kept. So an error of x relative to its largest entry becomes as
    small as it has to be. The first word is the solution, all others belong to its radius.
    Real tall matrices that are not large take their steps in core/tall_systems.c, with two
    words of each.
Scaling
    Columns of B, and right sides, by powers of two where no bit is lost. Rows of B
    keep their weights. If m = n the solution is A^-1 b whatever their weights are, so
    rows are scaled too: the system is solved as `solve` does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hifigemm.base.exceptions import VerificationError
from hifigemm.base.transforms import opaque
from hifigemm.engines.core import SolvedStack
from hifigemm.linalg.arguments import beyond_range, exact_operands, in_dtype
from hifigemm.linalg.arrays import (
    check_finite,
    correct_residual,
    identity,
    numbers,
    pair_residual,
)
from hifigemm.linalg.full_rank import FullRank, Update, proven_full_rank
from hifigemm.linalg.rational import least_squares
from hifigemm.linalg.refinement import ENOUGH, NEGLIGIBLE
from hifigemm.linalg.scaling import restored, scaled, scaled_columns
from hifigemm.linalg.solution import (
    MOST_SMALL,
    SolutionReport,
    in_integers,
    small_systems,
    solution_of_operands,
    solutions,
    solved_by_core,
    stack_by_core,
    worst,
)
from hifigemm.linalg.stacks import is_stack
from hifigemm.linalg.upward import above, moduli
from hifigemm.numerics.bits import Array, DType
from hifigemm.numerics.eft import two_sum

_MOST_TERMS = 2**20
"""Of products of tall matrices, each right side counting eight times, up to which the
compiled core is no slower than products by a BLAS.
"""
_MOST_STEPS = 30
"""A step gains a factor of 2 at least; seven were enough up to a condition of 1e13."""


@opaque
def least_squares_of_numbers(a: object, b: object, return_report: bool) -> Any:
    """`lstsq` of operands whose operations nothing records."""
    operands = exact_operands(is_stack, a=a, b=b)
    matrices, sides = operands.arrays
    if matrices.ndim < 2:
        raise np.linalg.LinAlgError(f"a has shape {matrices.shape}; expected matrices")
    if matrices.shape[-2] == matrices.shape[-1]:
        return solution_of_operands(operands, matrices, sides, None, return_report)
    solve: Callable[..., tuple[Array, Array, SolutionReport]]
    solve_small = None
    if operands.are_fractions:
        solve = in_integers(least_squares)
    else:
        solve = partial(_in_range, dtype=operands.dtype)
        solve_small = partial(small_systems, _small, dtype=operands.dtype)
    solution, reports = solutions(operands, matrices, sides, solve, (), solve_small)
    return (solution, worst(reports)) if return_report else solution


def _small(a: Array, b: Array) -> SolvedStack | None:
    """Stacks of small real matrices by the compiled core; None where it does not serve
    them. A solution that loses a bit in scale counts as not proven.

    The system is [I B; B^T 0] [r; z] = [f; h], with B = A, f = b and x = z, or for least
    norm B = A^T, h = b and x = r; it is singular unless B has full rank.
    """
    m, n = a.shape[-2:]
    if m + n > MOST_SMALL:
        return _tall(a, b)
    is_wide = m < n
    tall = np.swapaxes(a, -1, -2) if is_wide else a
    rows, columns = tall.shape[-2:]

    # Columns of B in scale
    largest = np.abs(tall).max(axis=-2, keepdims=True, initial=0.0)
    exponents = np.frexp(largest)[1]
    scaled_tall = np.ldexp(tall, -exponents)
    loses_a_bit = (np.ldexp(scaled_tall, exponents) != tall).any(axis=(-2, -1))
    of_columns = np.swapaxes(-exponents, -1, -2)
    data = b
    if is_wide:
        data = np.ldexp(b, of_columns)
        loses_a_bit |= (np.ldexp(data, -of_columns) != b).any(axis=(-2, -1))

    stack = a.shape[:-2]
    system = np.zeros((*stack, rows + columns, rows + columns))
    system[..., range(rows), range(rows)] = 1.0
    system[..., :rows, rows:] = scaled_tall
    system[..., rows:, :rows] = np.swapaxes(scaled_tall, -1, -2)
    sides = np.zeros((*stack, rows + columns, b.shape[-1]))
    of_r, of_z = slice(rows), slice(rows, None)
    of_data, of_x = (of_z, of_r) if is_wide else (of_r, of_z)
    sides[..., of_data, :] = data
    solved = solved_by_core(system, sides)
    if solved is None:
        return None
    x = solved.x[..., of_x, :]
    radius = solved.radius[..., of_x, :]
    if not is_wide:
        x, radius = restored(x, radius, of_columns)
    solved.proofs[loses_a_bit, 0] = 0.0
    return SolvedStack(x, radius, solved.proofs)


def _tall(a: Array, b: Array) -> SolvedStack | None:
    """The same for stacks of tall matrices, by the theorem of `full_rank`; None for others,
    and for large ones.
    """
    m, n = a.shape[-2:]
    k = b.shape[-1]
    if not (m > n > 0 and m * n * (n + 8 * k) <= _MOST_TERMS):
        return None
    return stack_by_core(a, b)


def _in_range(a: Array, b: Array, dtype: DType) -> tuple[Array, Array, SolutionReport]:
    """x in a dtype and its radius, all of them finite, and the report."""
    check_finite(a=a, b=b)
    x, radius, report = _solved(a, b)
    x, radius = in_dtype(x, radius, dtype)
    beyond = beyond_range(x, radius, "entries of x")
    if beyond:
        raise VerificationError(
            f"{beyond}. What helps: b times a power of two, or other units for the columns of a"
        )
    return x, radius, report


def _solved(a: Array, b: Array) -> tuple[Array, Array, SolutionReport]:
    """x and its radius in float64 or complex128, and the report."""
    m, n = a.shape
    dtype = np.result_type(a.dtype, b.dtype)
    if m > n:
        tall, columns = scaled_columns(a)
        f, sides = scaled_columns(b)
        h = np.zeros((n, b.shape[1]), dtype, like=b)
    else:
        # B = A^H, whose columns are the equations
        tall, columns = scaled_columns(a.conj().T)
        h, sides = scaled_columns(scaled(b, columns.T))
        if not (scaled(h, -sides - columns.T) == b).all():
            # A bit would be lost: nothing is scaled.
            tall = a.conj().T
            columns = np.zeros((1, m), int, like=a)
            h = b
            sides = np.zeros((1, b.shape[1]), int, like=b)
        f = np.zeros((n, b.shape[1]), dtype, like=b)

    proof, attempts = proven_full_rank(tall)
    x, radius, steps = _enclosure(proof, f, h, is_of_s=m < n)
    exponents = -sides if m < n else columns.T - sides
    x, radius = restored(x, radius, exponents)
    report = SolutionReport(
        proof.condition, proof.norm, attempts, len(proof.words), steps
    )
    return x, radius, report


@dataclass(frozen=True, eq=False)
class _Refined:
    """A solution of one word after a step, and bounds of its error."""

    x: Array
    radius: Array
    bound: Array
    """Of the update, 1 x k."""
    is_sharp: Array
    """For each right side, True if no error is more than a small part of its entry."""

    @classmethod
    def of(cls, words: list[Array], error: Array, bound: Array) -> _Refined:
        """The first word of a solution that is the sum of words up to an error."""
        x = words[0]
        sizes = moduli(x)
        largest = sizes.max(axis=0, keepdims=True, initial=0.0)
        enough = np.maximum(ENOUGH[1] * sizes, NEGLIGIBLE * largest)
        is_sharp = (error <= enough).all(axis=0, keepdims=True)
        radius = sum(map(moduli, words[1:]), error)
        return cls(x, above(radius, len(words) - 1), bound, is_sharp)

    def after(self, before: _Refined | None) -> tuple[_Refined, bool]:
        """This one or the one before, whichever is better, for each right side; and True
        if another step would gain nothing.
        """
        if before is None:
            (is_sharp,) = numbers(self.is_sharp.all())
            return self, bool(is_sharp)
        has_gained = ~self.is_sharp & (self.bound < 0.5 * before.bound)
        is_better = self.bound <= before.bound
        best = _Refined(
            np.where(is_better, self.x, before.x),
            np.where(is_better, self.radius, before.radius),
            np.where(is_better, self.bound, before.bound),
            np.where(is_better, self.is_sharp, before.is_sharp),
        )

        # What decides is read with one wait for a device
        is_sharp, may_gain = numbers(best.is_sharp.all(), has_gained.any())
        return best, bool(is_sharp) or not may_gain


def _enclosure(
    proof: FullRank, f: Array, h: Array, is_of_s: bool
) -> tuple[Array, Array, int]:
    """s or x of the augmented system with the right sides f and h, its radius, and the
    number of steps.
    """
    ds, x = proof.start(f, h)
    s = [ds]
    refined = None
    is_last = False
    steps = 0
    while not is_last and steps < _MOST_STEPS:
        q1, q2 = _residuals(proof, s, x, f, h)
        update = proof.update(q1, q2)
        s = _sum(s, [update.ds])
        x = _sum(x, update.dx)
        latest = _refined(proof, update, s if is_of_s else x, is_of_s)
        refined, is_last = latest.after(refined)
        steps += 1

        # Entries that are small beside others may need more words than V has
        most_words = 2 * len(proof.words) + 1
        s = s[:most_words]
        x = x[:most_words]

    assert refined is not None
    is_zero = (f == 0.0).all(axis=0) & (h == 0.0).all(axis=0)
    return refined.x, np.where(is_zero, 0.0, refined.radius), steps


def _refined(
    proof: FullRank, update: Update, words: list[Array], is_of_s: bool
) -> _Refined:
    """The solution whose words are the last ones, with the update in them."""
    if is_of_s:
        return _Refined.of(words, update.bound, update.bound)
    return _Refined.of(words, proof.error_of_x(update.bound), update.bound)


def _sum(words: list[Array], others: list[Array]) -> list[Array]:
    """Words with the same sum as all of these, exactly, the first one being rounded."""
    for carry in others:
        parts = []
        for word in reversed(words):
            carry, part = two_sum(word, carry)
            parts.append(part)
        words = [carry, *reversed(parts)]
    return words


def _residuals(
    proof: FullRank, s: list[Array], x: list[Array], f: Array, h: Array
) -> tuple[Array, list[Array]]:
    """f - s - B x rounded once, and h - B^H s in as many words as V has."""
    eye = identity(f.shape[1], like=f)
    left = np.concatenate([proof.b] * len(x) + s, axis=1)
    right = np.concatenate(x + [eye] * len(s))
    q1 = correct_residual(left, right, f)
    left = np.concatenate([proof.adjoint] * len(s), axis=1)
    right = np.concatenate(s)
    if len(proof.words) == 1:
        return q1, [correct_residual(left, right, h)]
    return q1, pair_residual(left, right, h)
