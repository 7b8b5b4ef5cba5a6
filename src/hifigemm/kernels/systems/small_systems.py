"""Stacks of small systems, solved and proven: linalg.stacks.solved_systems.

A program has some systems, and goes over their right sides one by one. Its arrays are those
of the twin, padded to a power of two of rows: matrices have the axes systems, rows and
columns, and a vector lies along the rows or along the columns. The inverses are those of an
elimination. Sums are made in another order than those of the twin, which changes bounds by
some roundings, and no number that is certain to be the nearest one.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, attr-defined, misc, no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import power_of_two, two_sum
from hifigemm.kernels.runtime.launch import Launch
from hifigemm.kernels.vectors.statistics import exponent_or, magnitude_bits
from hifigemm.numerics.equilibration import MODERATE

_MODERATE = tl.constexpr(MODERATE)
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
    # limits of |I - R A|, of the condition and of the number of steps
    good_norm: float
    most_condition: float
    most_steps: int
    # parts of an entry, and of the largest one, that an error may be
    sharp: float
    sharper: float
    negligible: float
    # of the radius, and of `low` in the test for the nearest number
    upward: float
    share_of_low: float


@triton.jit
def _along_columns(x):
    """A vector along the rows as one along the columns."""
    return tl.permute(x, (0, 2, 1))


@triton.jit
def _times(a, x):
    """A x along the rows, x along the columns."""
    return tl.sum(a * x, axis=2, keep_dims=True)


@triton.jit
def _hold(conditions):
    """True for a system where a condition holds for all of its rows."""
    return tl.min(conditions.to(tl.int32), axis=1, keep_dims=True) > 0


@triton.jit
def _exponent(x):
    """Smallest e with x < 2**e, and 0 for a zero."""
    return exponent_or(magnitude_bits(x), 0)


@triton.jit
def _are_moderate(x):
    """True for zeros and moderate numbers."""
    size = tl.abs(x)
    return ((size <= _MODERATE) & (size >= 1.0 / _MODERATE)) | (size == 0.0)


@triton.jit
def _row_of(a, is_row):
    """The row of each matrix for which a condition holds, along the columns."""
    return tl.sum(tl.where(is_row, a, 0.0), axis=1, keep_dims=True)


@triton.jit
def _inverse(a, rows, columns, n):
    """R by elimination with the largest pivot of each column."""
    rest = a
    inverse = ((rows == columns) & (rows < n)).to(tl.float64)
    inverse = tl.broadcast_to(inverse, a.shape)
    for p in range(n):
        # The row with the largest pivot changes places with row p
        column = tl.sum(tl.where(columns == p, rest, 0.0), axis=2, keep_dims=True)
        sizes = tl.abs(column)
        may_be_pivot = (rows >= p) & (sizes >= 0.0)
        sizes = tl.where(may_be_pivot, sizes, -1.0)
        pivot = tl.argmax(sizes, axis=1, keep_dims=True)
        is_pivot = rows == pivot
        is_p = rows == p
        pivot_row = _row_of(rest, is_pivot)
        pivot_row_of_inverse = _row_of(inverse, is_pivot)
        rest = tl.where(is_pivot, _row_of(rest, is_p), rest)
        inverse = tl.where(is_pivot, _row_of(inverse, is_p), inverse)
        column = tl.where(is_pivot, _row_of(column, is_p), column)

        # It is divided by the pivot, and the others lose their entry in column p
        pivot = tl.sum(tl.where(columns == p, pivot_row, 0.0), axis=2, keep_dims=True)
        factor = 1.0 / pivot
        pivot_row = pivot_row * factor
        pivot_row_of_inverse = pivot_row_of_inverse * factor
        rest = tl.where(is_p, pivot_row, rest - column * pivot_row)
        inverse = tl.where(
            is_p, pivot_row_of_inverse, inverse - column * pivot_row_of_inverse
        )
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
    x1 = _cut(x, STEP)
    left = x - x1
    x2 = _cut(left, STEP_2)
    left, error_of_left = two_sum(left - x2, low)
    x3 = _cut(left, STEP_3)
    x4 = (left - x3) + error_of_left

    # -A in slices, and what these leave
    minus = -a
    a1 = _cut(minus, STEP)
    left_by_one = minus - a1
    a2 = _cut(left_by_one, STEP_2)
    left_by_two = left_by_one - a2
    a3 = _cut(left_by_two, STEP_3)
    left_by_three = left_by_two - a3

    # What exact sums cancel to, and the digits that are left
    last = left_by_three * x1 + left_by_two * x2 + left_by_one * x3 + minus * x4
    low_digits = tl.sum(last, axis=2, keep_dims=True)
    q, error = two_sum(b, _times(a1, x1))
    low_digits += error
    rounded = tl.abs(error)
    q, error = two_sum(q, tl.sum(a2 * x1 + a1 * x2, axis=2, keep_dims=True))
    low_digits += error
    rounded += tl.abs(error)
    q, error = two_sum(q, tl.sum(a3 * x1 + a2 * x2 + a1 * x3, axis=2, keep_dims=True))
    low_digits += error
    rounded += tl.abs(error)
    q += low_digits

    # Their bound, and where nothing was rounded
    sizes = tl.abs(left_by_three) * BOUNDS.unit_of_matrix
    terms = sizes * (tl.abs(x1) * BOUNDS.unit_of_solution)
    sizes = tl.abs(left_by_two) * BOUNDS.unit_of_matrix
    terms += sizes * (tl.abs(x2) * BOUNDS.unit_of_solution)
    sizes = tl.abs(left_by_one) * BOUNDS.unit_of_matrix
    terms += sizes * (tl.abs(x3) * BOUNDS.unit_of_solution)
    sizes = tl.abs(minus) * BOUNDS.unit_of_matrix
    terms += sizes * (tl.abs(x4) * BOUNDS.unit_of_solution)
    terms = tl.sum(terms, axis=2, keep_dims=True)
    is_zero = _hold(((tl.abs(q) + rounded) + terms) == 0.0)
    errors = rounded * BOUNDS.share_of_digits + terms * BOUNDS.share_of_terms
    return q, errors + BOUNDS.underflows_of_residual, is_zero


@triton.jit
def _step(system, b, x, low, BOUNDS: tl.constexpr):
    """Twin: linalg.stacks._step. (x, low, left, error), along the rows as b, x and
    `low` are.
    """
    a, inverse, row_bounds, norm, is_row = system
    along = _along_columns(x), _along_columns(low)
    q, errors, is_zero = _residual(a, b, along[0], along[1], BOUNDS)

    # The update R q, and its error
    d = _times(inverse, _along_columns(q))
    sizes = tl.abs(q) * (BOUNDS.gamma + _UNIT) + errors
    images = _times(tl.abs(inverse), _along_columns(sizes))
    error_of_d = images * BOUNDS.factor_of_update + BOUNDS.offset_of_update
    y = tl.abs(d) + error_of_d
    largest_error = tl.max(y, axis=1, keep_dims=True) / (1.0 - norm)
    error = error_of_d + largest_error * row_bounds
    error = error * BOUNDS.factor_of_error + BOUNDS.offset_of_error
    error = tl.where(is_zero | ~is_row, 0.0, error)

    # Slices of larger numbers are not exact
    has_bound = _hold(tl.abs(x) <= 1.0)
    error = tl.where(has_bound, error, float("nan"))
    low, left = two_sum(low, d)
    x, low = two_sum(x, low)
    return x, low, left, error


@triton.jit
def _is_sharp(x, error, SHARE: tl.constexpr, NEGLIGIBLE: tl.constexpr):
    """Twin: linalg.stacks._is_sharp."""
    sizes = tl.abs(x)
    negligible = tl.max(sizes, axis=1, keep_dims=True) * NEGLIGIBLE
    return _hold(error <= tl.maximum(sizes * SHARE, negligible))


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
        is_open = is_open | ~_hold(is_same)
    return is_open & is_proven


@triton.jit
def _refined(system, b, x, is_proven, BOUNDS: tl.constexpr):
    """Twin: linalg.stacks._refined. (x, low, left, error, steps)."""
    x, low, left, error = _step(system, b, x, tl.zeros_like(x), BOUNDS)
    is_open = _are_open(x, low, error, is_proven, True, BOUNDS)
    steps = tl.full(is_open.shape, 1.0, tl.float64)
    number = 1
    while (number < BOUNDS.most_steps) & (tl.max(is_open.to(tl.int32)) > 0):
        # Words that may stand for a zero are none in this step
        start = _without_zeros(x, error)
        start_low = _without_zeros(low, error)
        next_x, next_low, next_left, next_error = _step(
            system, b, start, start_low, BOUNDS
        )
        x = tl.where(is_open, next_x, x)
        low = tl.where(is_open, next_low, low)
        left = tl.where(is_open, next_left, left)
        error = tl.where(is_open, next_error, error)
        steps += is_open.to(tl.float64)
        is_open = _are_open(x, low, error, is_proven, False, BOUNDS)
        number += 1
    return x, low, left, error, steps


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
    system = tl.program_id(0) * SYSTEMS + tl.arange(0, SYSTEMS)[:, None, None]
    rows = tl.arange(0, ROWS)[None, :, None]
    columns = tl.arange(0, ROWS)[None, None, :]
    is_system = system < count
    is_row = rows < N
    system = system.to(tl.int64)

    # A in scale. Systems beyond the last one are zeros
    entries = a + (system * N + rows) * N + columns
    matrix = tl.load(entries, mask=is_system & is_row & (columns < N), other=0.0)
    is_moderate = tl.min(_are_moderate(matrix).to(tl.int32), axis=2, keep_dims=True)
    is_proven = _hold(is_moderate)
    largest = tl.max(tl.abs(matrix), axis=2, keep_dims=True)
    row_in_scale = power_of_two(-_exponent(largest))
    matrix = matrix * row_in_scale
    column_exponents = _exponent(tl.max(tl.abs(matrix), axis=1, keep_dims=True))
    matrix = matrix * power_of_two(-column_exponents)
    # The unknowns of columns are the rows of X
    column_exponents = tl.permute(column_exponents, (0, 2, 1))

    # The proof
    inverse = _inverse(matrix, rows, columns, N)
    row_sums = tl.sum(tl.abs(matrix), axis=2, keep_dims=True)
    images = _times(tl.abs(inverse), _along_columns(row_sums))
    deviations = tl.zeros((SYSTEMS, ROWS, 1), tl.float64)
    for j in range(N):
        is_column = columns == j
        column = tl.sum(tl.where(is_column, matrix, 0.0), axis=2, keep_dims=True)
        deviation = _times(inverse, _along_columns(column)) - (rows == j).to(tl.float64)
        deviations += tl.abs(deviation)
    terms = deviations + BOUNDS.gamma * images + _UNIT
    row_bounds = terms * BOUNDS.factor_of_contraction + BOUNDS.offset_of_contraction
    # NaN is no bound
    is_good = (row_bounds < BOUNDS.good_norm) & (images <= BOUNDS.most_condition)
    is_proven = is_proven & _hold(is_good | ~is_row)
    norm = tl.max(row_bounds, axis=1, keep_dims=True)
    condition = tl.max(images, axis=1, keep_dims=True)
    proof = (matrix, inverse, row_bounds, norm, is_row)

    are_proven = is_proven
    are_nearest = is_proven
    most_steps = tl.full((SYSTEMS, 1, 1), 1.0, tl.float64)
    for side in range(sides):
        # B in scale: its column, then so that R B lies in [1/4, 1/2)
        place = (system * N + rows) * sides + side
        right = tl.load(b + place, mask=is_system & is_row, other=0.0)
        are_proven = are_proven & _hold(_are_moderate(right))
        right = right * row_in_scale
        column = _exponent(tl.max(tl.abs(right), axis=1, keep_dims=True))
        right = right * power_of_two(-column)
        start = _times(inverse, _along_columns(right))
        shift = -1 - _exponent(tl.max(tl.abs(start), axis=1, keep_dims=True))
        in_scale = power_of_two(shift)
        high, low, left, error, steps = _refined(
            proof, right * in_scale, start * in_scale, is_proven, BOUNDS
        )
        is_sharp = _is_sharp(high, error, BOUNDS.sharp, BOUNDS.negligible)
        are_proven = are_proven & is_sharp
        most_steps = tl.maximum(most_steps, steps)

        # The nearest number is `high` where all numbers so close round to it
        error = error + tl.abs(left)
        size_of_low = tl.abs(low)
        margin = error * BOUNDS.upward + size_of_low * BOUNDS.share_of_low
        is_nearest = high + (low - margin) == high
        is_nearest = is_nearest & (high + (low + margin) == high)
        are_nearest = are_nearest & _hold(is_nearest | (error == 0.0))

        # In the units of the system as it came, where no bit is lost
        exponent = column - column_exponents - shift
        factor = power_of_two(exponent)
        back = power_of_two(-exponent)
        radius_in_scale = (error + size_of_low) * BOUNDS.upward
        x_of_system = high * factor
        radius_of_system = radius_in_scale * factor
        is_exact = x_of_system * back == high
        is_exact = is_exact & (radius_of_system * back == radius_in_scale)
        are_proven = are_proven & _hold(is_exact | ~is_row)
        tl.store(x + place, x_of_system, mask=is_system & is_row)
        tl.store(radius + place, radius_of_system, mask=is_system & is_row)

    status = are_proven.to(tl.float64) * (1.0 + are_nearest.to(tl.float64))
    facts = proofs + system * 4
    tl.store(facts, status, mask=is_system)
    tl.store(facts + 1, condition, mask=is_system)
    tl.store(facts + 2, norm, mask=is_system)
    tl.store(facts + 3, most_steps, mask=is_system)


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
    rows = triton.next_power_of_2(n)
    # Entries of a matrix in each thread of a warp: quickest on an H200
    entries = 32 * (4 if n <= 4 else 8)
    systems = max(entries // rows**2, 1)
    x = b.launches.empty(b.shape, torch.float64)
    radius = b.launches.empty(b.shape, torch.float64)
    proofs = b.launches.empty((batch, 4), torch.float64)
    _launch(
        (triton.cdiv(batch, systems),),
        a,
        b,
        x,
        radius,
        proofs,
        batch,
        sides,
        BOUNDS=bounds,
        SYSTEMS=systems,
        ROWS=rows,
        num_warps=max(rows**2 // entries, 1),
        enable_fp_fusion=False,
    )
    return x, radius, proofs
