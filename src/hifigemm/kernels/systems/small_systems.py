"""Stacks of small systems, solved and proven: linalg.stacks.solved_systems.

A program has some systems, in tiles as tiles.py has them, and goes over their right sides
one by one. Sums are made in another order than in the twin: bounds differ by some
roundings, and solutions of status 2 are equal.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, attr-defined, misc, no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import two_sum
from hifigemm.kernels.runtime.launch import Launch
from hifigemm.kernels.systems.tiles import (
    all_hold,
    along_columns,
    along_rows,
    are_moderate,
    column_of,
    in_scale,
    pivot_of,
    power_above,
    row_of,
    tile_of,
    times,
    with_rows_exchanged,
)

_UNIT = tl.constexpr(2.0**-53)


@dataclass(frozen=True)
class Bounds:
    """The constants of the proof for systems of some number of rows.

    A factor and an offset are those of linalg.upward.upward: x * factor + offset is above
    what was computed as x.
    """

    rows: int
    # g of the slices, and what the units of A and X make of magnitudes
    step: float
    unit_of_matrix: float
    unit_of_solution: float
    # q of residuals errs by these parts of the last digits and of all terms, and by this
    share_of_digits: float
    share_of_terms: float
    underflows_of_residual: float
    # |I - R A|: gamma(n), which counts for products, and how its bound is rounded up
    gamma: float
    factor_of_contraction: float
    offset_of_contraction: float
    factor_of_update: float
    offset_of_update: float
    factor_of_error: float
    offset_of_error: float
    # limits of |I - R A|, of the condition, of the power of two that brings R B into scale
    # and of the number of steps
    good_norm: float
    most_condition: float
    most_unit: float
    most_steps: int
    # parts of an entry, and of the largest one, that an error may be
    sharp: float
    sharper: float
    negligible: float
    # of the radius, and of `low` in the test for the nearest number
    upward: float
    share_of_low: float


@triton.jit
def _inverse(a, rows, columns, n):
    """R by elimination with the largest pivot of each column."""
    rest = a
    inverse = ((rows == columns) & (rows < n)).to(tl.float64)
    inverse = tl.broadcast_to(inverse, a.shape)
    for p in range(n):
        # The row with the largest pivot changes places with row p
        is_p = rows == p
        is_column = columns == p
        is_pivot = rows == pivot_of(column_of(rest, is_column), rows, p)
        rest = with_rows_exchanged(rest, is_pivot, is_p)
        inverse = with_rows_exchanged(inverse, is_pivot, is_p)

        # It is divided by the pivot, and the others lose their entry in column p
        column = column_of(rest, is_column)
        factor = 1.0 / row_of(column, is_p)
        row = row_of(rest, is_p) * factor
        row_of_inverse = row_of(inverse, is_p) * factor
        rest = tl.where(is_p, row, rest - column * row)
        inverse = tl.where(is_p, row_of_inverse, inverse - column * row_of_inverse)
    return inverse


@triton.jit
def _cut(x, UNIT: tl.constexpr):
    """Twin: numerics.sliced_residuals._cut."""
    SIGMA: tl.constexpr = 1.5 * 2.0**52 * UNIT
    return (x + SIGMA) - SIGMA


@triton.jit
def _residual(a, b, x, low, BOUNDS: tl.constexpr):
    """Twin: numerics.sliced_residuals.sliced_residual, for x and `low` along the columns.
    (q, errors, is_zero).
    """
    STEP: tl.constexpr = BOUNDS.step
    STEP_2: tl.constexpr = STEP * STEP
    STEP_3: tl.constexpr = STEP * STEP * STEP
    # X in slices, the last one rounded
    x0 = _cut(x, STEP)
    left = x - x0
    x1 = _cut(left, STEP_2)
    left, error_of_left = two_sum(left - x1, low)
    x2 = _cut(left, STEP_3)
    x3 = (left - x2) + error_of_left

    # -A in slices, and what they leave
    minus = -a
    a0 = _cut(minus, STEP)
    left_by_one = minus - a0
    a1 = _cut(left_by_one, STEP_2)
    left_by_two = left_by_one - a1
    a2 = _cut(left_by_two, STEP_3)
    a3 = left_by_two - a2

    # What exact sums cancel to, and the digits that are left
    last = a3 * x0 + left_by_two * x1 + left_by_one * x2 + minus * x3
    low_digits = tl.sum(last, axis=2, keep_dims=True)
    q, error = two_sum(b, times(a0, x0))
    low_digits += error
    rounded = tl.abs(error)
    q, error = two_sum(q, tl.sum(a1 * x0 + a0 * x1, axis=2, keep_dims=True))
    low_digits += error
    rounded += tl.abs(error)
    q, error = two_sum(q, tl.sum(a2 * x0 + a1 * x1 + a0 * x2, axis=2, keep_dims=True))
    low_digits += error
    rounded += tl.abs(error)
    q += low_digits

    # Their bound, and where nothing was rounded
    terms = _sizes_of_terms(a3, x0, BOUNDS) + _sizes_of_terms(left_by_two, x1, BOUNDS)
    terms += _sizes_of_terms(left_by_one, x2, BOUNDS)
    terms += _sizes_of_terms(minus, x3, BOUNDS)
    terms = tl.sum(terms, axis=2, keep_dims=True)
    is_zero = all_hold(((tl.abs(q) + rounded) + terms) == 0.0)
    errors = rounded * BOUNDS.share_of_digits + terms * BOUNDS.share_of_terms
    return q, errors + BOUNDS.underflows_of_residual, is_zero


@triton.jit
def _sizes_of_terms(a, x, BOUNDS: tl.constexpr):
    """|A||X| in the units of both."""
    return (tl.abs(a) * BOUNDS.unit_of_matrix) * (tl.abs(x) * BOUNDS.unit_of_solution)


@triton.jit
def _step(proof, b, x, low, BOUNDS: tl.constexpr):
    """Twin: linalg.stacks._step. (x, low, left, error), along the rows as b, x and
    `low` are.
    """
    a, inverse, row_bounds, norm, is_row = proof
    q, errors, is_zero = _residual(a, b, along_columns(x), along_columns(low), BOUNDS)

    # The update R q, and its error
    d = times(inverse, along_columns(q))
    sizes = tl.abs(q) * (BOUNDS.gamma + _UNIT) + errors
    images = times(tl.abs(inverse), along_columns(sizes))
    error_of_d = images * BOUNDS.factor_of_update + BOUNDS.offset_of_update
    y = tl.abs(d) + error_of_d
    largest_error = tl.max(y, axis=1, keep_dims=True) / (1.0 - norm)
    error = error_of_d + largest_error * row_bounds
    error = error * BOUNDS.factor_of_error + BOUNDS.offset_of_error
    error = tl.where(is_zero | ~is_row, 0.0, error)

    # Slices of larger numbers are not exact
    has_bound = all_hold(tl.abs(x) <= 1.0)
    error = tl.where(has_bound, error, float("nan"))
    low, left = two_sum(low, d)
    x, low = two_sum(x, low)
    return x, low, left, error


@triton.jit
def _is_sharp(x, error, SHARE: tl.constexpr, NEGLIGIBLE: tl.constexpr):
    """Twin: linalg.stacks._is_sharp."""
    sizes = tl.abs(x)
    negligible = tl.max(sizes, axis=1, keep_dims=True) * NEGLIGIBLE
    return all_hold(error <= tl.maximum(sizes * SHARE, negligible))


@triton.jit
def _without_zeros(word, error):
    """Words that may stand for a zero are replaced by one."""
    return tl.where(tl.abs(word) <= error, 0.0, word)


@triton.jit
def _are_open(x, low, error, is_proven, IS_FIRST: tl.constexpr, BOUNDS: tl.constexpr):
    """True where another step may gain."""
    is_open = ~_is_sharp(x, error, BOUNDS.sharper, BOUNDS.negligible)
    if IS_FIRST:
        is_same = _without_zeros(x, error) == x
        is_same = is_same & (_without_zeros(low, error) == low)
        is_open = is_open | ~all_hold(is_same)
    return is_open & is_proven


@triton.jit
def _refined(proof, b, x, is_proven, BOUNDS: tl.constexpr):
    """Twin: linalg.stacks._refined. (x, low, left, error, steps)."""
    x, low, left, error = _step(proof, b, x, tl.zeros_like(x), BOUNDS)
    is_open = _are_open(x, low, error, is_proven, True, BOUNDS)
    steps = tl.full(is_open.shape, 1.0, tl.float64)
    number = 1
    while (number < BOUNDS.most_steps) & (tl.max(is_open.to(tl.int32)) > 0):
        # A word that its error bound reaches starts the step as zero
        start = _without_zeros(x, error)
        start_low = _without_zeros(low, error)
        next_x, next_low, next_left, next_error = _step(
            proof, b, start, start_low, BOUNDS
        )
        x = tl.where(is_open, next_x, x)
        low = tl.where(is_open, next_low, low)
        left = tl.where(is_open, next_left, left)
        error = tl.where(is_open, next_error, error)
        steps += is_open.to(tl.float64)
        is_open = _are_open(x, low, error, is_proven, False, BOUNDS)
        number += 1
    return x, low, left, error, steps


@triton.jit
def _rounded(x, low, left, error, BOUNDS: tl.constexpr):
    """Twin: linalg.stacks._rounded. (radius, is_nearest)."""
    error = error + tl.abs(left)
    size_of_low = tl.abs(low)
    margin = error * BOUNDS.upward + size_of_low * BOUNDS.share_of_low
    is_nearest = x + (low - margin) == x
    is_nearest = is_nearest & (x + (low + margin) == x)
    return (error + size_of_low) * BOUNDS.upward, is_nearest | (error == 0.0)


@triton.jit(do_not_specialize=["count", "sides"])
def solved_systems_kernel(
    a,
    b,
    x,
    radius,
    proofs,
    count,
    sides,
    BOUNDS: tl.constexpr,
    SYSTEMS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Twin: linalg.stacks.solved_systems. A program solves SYSTEMS systems of matrices
    (count, n, n) for right sides (count, n, sides), with rows in memory; ROWS is n or the
    next power of two.
    """
    N: tl.constexpr = BOUNDS.rows
    first = tl.program_id(0).to(tl.int64) * SYSTEMS
    system = first + tl.arange(0, SYSTEMS)[:, None, None]
    rows = tl.arange(0, ROWS)[None, :, None]
    columns = tl.arange(0, ROWS)[None, None, :]
    is_system = system < count
    is_row = rows < N

    # Systems beyond the last one are zeros. The unknowns of columns are the rows of X
    entries = a + (system * N + rows) * N + columns
    matrix = tl.load(entries, mask=is_system & is_row & (columns < N), other=0.0)
    is_proven = all_hold(are_moderate(matrix))
    matrix, of_rows, of_columns = in_scale(matrix)
    row_in_scale = 1.0 / of_rows
    of_unknowns = 1.0 / along_rows(of_columns)

    # The proof
    inverse = _inverse(matrix, rows, columns, N)
    row_sums = tl.sum(tl.abs(matrix), axis=2, keep_dims=True)
    images = times(tl.abs(inverse), along_columns(row_sums))
    deviations = tl.zeros((SYSTEMS, ROWS, 1), tl.float64)
    for j in range(N):
        column = along_columns(column_of(matrix, columns == j))
        deviation = times(inverse, column) - (rows == j).to(tl.float64)
        deviations += tl.abs(deviation)
    terms = deviations + BOUNDS.gamma * images + _UNIT
    row_bounds = terms * BOUNDS.factor_of_contraction + BOUNDS.offset_of_contraction
    # NaN is no bound
    is_good = (row_bounds < BOUNDS.good_norm) & (images <= BOUNDS.most_condition)
    is_proven = is_proven & all_hold(is_good | ~is_row)
    norm = tl.max(row_bounds, axis=1, keep_dims=True)
    condition = tl.max(images, axis=1, keep_dims=True)
    proof = (matrix, inverse, row_bounds, norm, is_row)

    are_proven = is_proven
    are_nearest = tl.full((SYSTEMS, 1, 1), True, tl.int1)
    steps_of_system = tl.full((SYSTEMS, 1, 1), 1.0, tl.float64)
    for side in range(sides):
        # B in scale: its column, then so that R B lies in [1/4, 1/2)
        place = (system * N + rows) * sides + side
        right = tl.load(b + place, mask=is_system & is_row, other=0.0)
        are_proven = are_proven & all_hold(are_moderate(right))
        right = right * row_in_scale
        of_side = power_above(tl.max(tl.abs(right), axis=1, keep_dims=True))
        right = right * (1.0 / of_side)
        start = times(inverse, along_columns(right))
        in_unit = 0.5 / power_above(tl.max(tl.abs(start), axis=1, keep_dims=True))
        is_in_reach = (in_unit <= BOUNDS.most_unit) & (
            in_unit >= 1.0 / BOUNDS.most_unit
        )
        are_proven = are_proven & is_in_reach
        high, low, left, error, steps = _refined(
            proof, right * in_unit, start * in_unit, is_proven, BOUNDS
        )
        is_sharp = _is_sharp(high, error, BOUNDS.sharp, BOUNDS.negligible)
        are_proven = are_proven & is_sharp
        steps_of_system = tl.maximum(steps_of_system, steps)

        radius_in_unit, is_nearest = _rounded(high, low, left, error, BOUNDS)
        are_nearest = are_nearest & all_hold(is_nearest)

        # In the units of the system as it came, where no bit is lost
        factor = (of_side / in_unit) * of_unknowns
        back = 1.0 / factor
        x_of_system = high * factor
        radius_of_system = radius_in_unit * factor
        is_exact = x_of_system * back == high
        is_exact = is_exact & (radius_of_system * back == radius_in_unit)
        are_proven = are_proven & all_hold(is_exact | ~is_row)
        tl.store(x + place, x_of_system, mask=is_system & is_row)
        tl.store(radius + place, radius_of_system, mask=is_system & is_row)

    status = are_proven.to(tl.float64) * (1.0 + are_nearest.to(tl.float64))
    facts = proofs + system * 4
    tl.store(facts, status, mask=is_system)
    tl.store(facts + 1, condition, mask=is_system)
    tl.store(facts + 2, norm, mask=is_system)
    tl.store(facts + 3, steps_of_system, mask=is_system)


_launch = Launch(solved_systems_kernel)


def solved_systems(
    a: Buffer, b: Buffer, bounds: Bounds
) -> tuple[Buffer, Buffer, Buffer]:
    """(x, radius, proofs) of A x = b.

    Parameters
    ----------
    a, b : contiguous tensors of float64, shapes (batch, n, n) and (batch, n, k)
    bounds : Bounds
        For n rows.

    Returns
    -------
    x, radius : of the shape of b
    proofs : shape (batch, 4)
    """
    batch, n, sides = b.shape
    tile = tile_of(n)
    x = b.launches.empty(b.shape, torch.float64)
    radius = b.launches.empty(b.shape, torch.float64)
    proofs = b.launches.empty((batch, 4), torch.float64)
    _launch(
        (triton.cdiv(batch, tile.systems),),
        a,
        b,
        x,
        radius,
        proofs,
        batch,
        sides,
        BOUNDS=bounds,
        SYSTEMS=tile.systems,
        ROWS=tile.rows,
        num_warps=tile.warps,
        enable_fp_fusion=False,
    )
    return x, radius, proofs
