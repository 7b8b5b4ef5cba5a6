"""Determinants and definiteness of stacks of small matrices, by the theorem and the bounds
of core/small_factors.c.

A program has some matrices, in tiles as tiles.py has them. Elimination in double words
gives P S = L U - E for S, the matrix in scale, and bounds of the rows of E; bounds of the
inverses of L and U tell how far det S is from the product of the pivots. Without exchanges
a matrix stops at its first pivot that is not certainly positive, and its leading minor up to
there is bounded. `m` is the number of rows of that minor.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, attr-defined, misc, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hifigemm.kernels.products.epilogue import two_product
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import power_of_two, two_sum
from hifigemm.kernels.runtime.launch import Launch
from hifigemm.kernels.systems.tiles import (
    all_hold,
    along_columns,
    are_moderate,
    column_of,
    in_scale,
    pivot_of,
    power_below,
    row_of,
    tile_of,
    times,
    with_rows_exchanged,
)
from hifigemm.kernels.vectors.statistics import (
    NO_LOWEST,
    biased_exponent,
    exponent_of,
    lowest_power,
)
from hifigemm.numerics.bits import LEAST

UNKNOWN = 2.0
"""The answer for a matrix of which nothing is certain."""
_UNKNOWN = tl.constexpr(UNKNOWN)
_LEAST = tl.constexpr(LEAST)
_UNIT = tl.constexpr(2.0**-53)
_UNIT_OF_PAIR = tl.constexpr(2.0**-106)
"""u^2, of which errors of double words are multiples."""
_UNDERFLOWS = tl.constexpr(2.0**-800)
_MOST = tl.constexpr(2.0**100)
"""More than a bound loses to underflow where factors are below 2^210 and bounds below
_MOST.
"""
_LARGEST_EXPONENT = tl.constexpr(1000)
"""Of linalg/determinant.py."""


@triton.jit
def _above(x, ROUNDINGS: tl.constexpr, UNDERFLOWS: tl.constexpr):
    """Twin: linalg.upward.above."""
    FACTOR: tl.constexpr = 1.0 + (ROUNDINGS + 4) * 2.0**-52
    return x * FACTOR + (2.0 * UNDERFLOWS + _LEAST)


@triton.jit
def _factors(high, rows, columns, N: tl.constexpr, EXCHANGES: tl.constexpr):
    """(high, low, errors, sign, m): L without its diagonal and U in double words, bounds of
    the rows of E, and the sign of P.
    """
    low = tl.zeros_like(high)
    errors = tl.full((high.shape[0], high.shape[1], 1), _UNIT_OF_PAIR, tl.float64)
    sign = tl.full((high.shape[0], 1, 1), 1.0, tl.float64)
    m = tl.full((high.shape[0], 1, 1), N, tl.int32)
    is_open = m > 0
    for k in range(N):
        is_k = rows == k
        is_column = columns == k
        if EXCHANGES:
            pivot_row = pivot_of(column_of(high, is_column), rows, k)
            is_pivot = rows == pivot_row
            high = with_rows_exchanged(high, is_pivot, is_k)
            low = with_rows_exchanged(low, is_pivot, is_k)
            errors = with_rows_exchanged(errors, is_pivot, is_k)
            sign = tl.where(pivot_row == k, sign, -sign)
        x = column_of(high, is_column)
        x_low = column_of(low, is_column)

        # Any other number serves as a pivot: the difference is at most 3 times it
        pivot = row_of(x, is_k)
        pivot_low = row_of(x_low, is_k)
        least = row_of(errors, is_k)
        is_replaced = ~(tl.abs(pivot) >= least)
        is_last = m < 0
        if not EXCHANGES:
            is_last = is_open & ~(pivot >= least)
            m = tl.where(is_last, k + 1, m)
        pivot = tl.where(is_replaced, least, pivot)
        pivot_low = tl.where(is_replaced, 0.0, pivot_low)
        is_changed = is_replaced & is_open & is_k
        errors += tl.where(is_changed, 3.0 * least, 0.0)
        high = tl.where(is_changed & is_column, pivot, high)
        low = tl.where(is_changed & is_column, 0.0, low)
        is_open = is_open & ~is_last

        # l = x / pivot in double words. The remainder of x / pivot is a float64 number
        is_below = (rows > k) & (x != 0.0) & is_open
        quotient = x / pivot
        product, error = two_product(quotient, pivot)
        rest = ((x - product) - error) + (x_low - quotient * pivot_low)
        second = rest / pivot
        factor = quotient + second
        factor_low = second - (factor - quotient)
        errors += tl.where(is_below, 16.0 * _UNIT_OF_PAIR * tl.abs(x), 0.0)

        # Row i less l times row k
        row = row_of(high, is_k)
        product, error = two_product(factor, row)
        error += factor * row_of(low, is_k) + factor_low * row
        is_updated = is_below & (columns > k)
        sizes = tl.where(is_updated, tl.abs(high) + 4.0 * tl.abs(product), 0.0)
        sizes = tl.sum(sizes, axis=2, keep_dims=True)
        errors += tl.where(is_below, 4.0 * _UNIT_OF_PAIR * sizes, 0.0)
        total, rest = two_sum(high, -product)
        rest += low - error
        total, rest = two_sum(total, rest)
        is_factor = is_below & is_column
        high = tl.where(is_updated, total, tl.where(is_factor, factor, high))
        low = tl.where(is_updated, rest, tl.where(is_factor, factor_low, low))
    return high, low, errors, sign, m


@triton.jit
def _sizes_of_inverse(
    factors, v, m, rows, columns, N: tl.constexpr, IS_LOWER: tl.constexpr
):
    """(|X|, |X| v) for an inverse X of L or U by substitution with their high words."""
    inverse = ((rows == columns) & (rows < m)).to(tl.float64)
    inverse = tl.broadcast_to(inverse, factors.shape)
    image = tl.zeros_like(v)
    for step in range(N):
        k = N - 1 - step if IS_LOWER else step
        is_column = columns == k
        row = row_of(factors, rows == k)
        value = column_of(inverse, is_column)
        if IS_LOWER:
            is_open = columns < k
        else:
            is_open = columns > k
            value = value / column_of(row, is_column)
        value = tl.where(m > k, value, 0.0)
        inverse = tl.where(is_open, inverse - value * row, inverse)
        inverse = tl.where(is_column, tl.abs(value), inverse)
        image += tl.abs(value) * row_of(v, rows == k)
    return inverse, image


@triton.jit
def _bound_of_solution(
    factors, v, m, rows, columns, N: tl.constexpr, IS_LOWER: tl.constexpr
):
    """(y, is_known): y >= |T^-1| v for v >= 0, T being L or U of m rows, as the function of
    this name in core/small_factors.c has it.
    """
    is_row = rows < m
    v = tl.where(is_row, v, 0.0)
    inverse, image = _sizes_of_inverse(factors, v, m, rows, columns, N, IS_LOWER)
    sizes_of_factor = tl.abs(factors)
    if IS_LOWER:
        sizes_of_factor = tl.where(columns < rows, sizes_of_factor, 0.0)
        sizes_of_factor += ((columns == rows) & is_row).to(tl.float64)
    else:
        sizes_of_factor = tl.where(columns >= rows, sizes_of_factor, 0.0)
    sizes_of_factor = tl.where(is_row & (columns < m), sizes_of_factor, 0.0)

    y = tl.where(is_row, _above(image, N + 1, _UNDERFLOWS), 0.0)
    sizes = times(sizes_of_factor, along_columns(y))
    y += 2.0**-30 * times(inverse, along_columns(sizes))
    sizes = times(sizes_of_factor, along_columns(y))
    sizes = times(inverse, along_columns(sizes))
    error = _above((N + 2) * _UNIT * sizes, 2 * N + 4, _UNDERFLOWS)
    is_known = all_hold(((error <= 0.5 * y) & (y < _MOST)) | ~is_row)
    share = tl.max(tl.where(is_row, error / y, 0.0), axis=1, keep_dims=True)
    y = tl.where(is_row, _above(y / (1.0 - share), 3, 0.0), 0.0)
    return y, is_known


@triton.jit
def _product_of_pivots(high, low, sign, m, rows, columns, N: tl.constexpr):
    """(x, y, exponent): (x + y) 2^exponent is the product of m pivots up to 8 m u^2 of
    itself, 1/2 <= |x| <= 2. Each product errs by at most 7 u^2 of itself [JMP17, algorithm
    10]; powers of two are exact.
    """
    x = sign
    y = tl.zeros_like(sign)
    biased = tl.zeros_like(m)
    for k in range(N):
        is_pivot = (rows == k) & (columns == k)
        pivot = row_of(column_of(high, is_pivot), rows == k)
        pivot_low = row_of(column_of(low, is_pivot), rows == k)
        product, error = two_product(x, pivot)
        error += x * pivot_low + y * pivot
        back = 1.0 / power_below(product)
        total = product + error
        is_counted = m > k
        x = tl.where(is_counted, total * back, x)
        y = tl.where(is_counted, (error - (total - product)) * back, y)
        biased += tl.where(is_counted, biased_exponent(product), 0)
    return x, y, biased - 1023 * m


@triton.jit
def _lowest_bit(x):
    """The exponent of the lowest bit of numbers; a large one for zeros."""
    power = lowest_power(x)
    return tl.where(x == 0.0, NO_LOWEST, exponent_of(power) - 1)


@triton.jit
def _lowest_bit_of_minor(scaled, m, rows, columns):
    """An e for which the leading minor of m rows of S is a multiple of 2^e: rows, and then
    columns, are integers times powers of two.
    """
    is_inside = (rows < m) & (columns < m)
    bits = tl.where(is_inside, _lowest_bit(scaled), NO_LOWEST)
    of_rows = tl.min(bits, axis=2, keep_dims=True)
    is_number = is_inside & (scaled != 0.0)
    of_columns = tl.where(is_number, bits - of_rows, NO_LOWEST)
    of_columns = tl.min(of_columns, axis=1, keep_dims=True)
    total = tl.sum(tl.where(rows < m, of_rows, 0), axis=1, keep_dims=True)
    return total + tl.sum(tl.where(columns < m, of_columns, 0), axis=2, keep_dims=True)


@triton.jit
def _next(x, IS_UP: tl.constexpr):
    """The next float64 of a normal number, above or below it."""
    outward = tl.where(x > 0.0, 1, -1).to(tl.int64)
    bits = x.to(tl.int64, bitcast=True)
    bits = bits + outward if IS_UP else bits - outward
    return bits.to(tl.float64, bitcast=True)


@triton.jit(do_not_specialize=["count"])
def small_minors_kernel(
    a,
    facts,
    count,
    N: tl.constexpr,
    EXCHANGES: tl.constexpr,
    SYSTEMS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Twins: tell_determinant and, without EXCHANGES, tell_definiteness in
    core/small_factors.c; four facts of each matrix (count, N, N), of which the first one
    tells definiteness.
    """
    first = tl.program_id(0).to(tl.int64) * SYSTEMS
    system = first + tl.arange(0, SYSTEMS)[:, None, None]
    rows = tl.arange(0, ROWS)[None, :, None]
    columns = tl.arange(0, ROWS)[None, None, :]
    is_system = system < count
    is_entry = is_system & (rows < N) & (columns < N)
    start = a + system * (N * N)
    matrix = tl.load(start + rows * N + columns, mask=is_entry, other=0.0)
    is_moderate = all_hold(are_moderate(matrix))
    scaled, of_rows, of_columns = in_scale(matrix)
    biased = tl.sum(biased_exponent(of_rows), axis=1, keep_dims=True)
    biased += tl.sum(biased_exponent(of_columns), axis=2, keep_dims=True)
    of_scales = biased - 2 * ROWS * 1023

    high, low, errors, sign, m = _factors(scaled, rows, columns, N, EXCHANGES)
    is_row = rows < m
    has_errors = all_hold((errors < 1.0) | ~is_row)
    y, is_known = _bound_of_solution(high, errors, m, rows, columns, N, True)
    w, is_second_known = _bound_of_solution(high, y, m, rows, columns, N, False)
    is_known = is_moderate & has_errors & is_known & is_second_known

    # |det(I - K)| lies within (1 -+ share), or below the product
    share = tl.sum(w, axis=1, keep_dims=True)
    bound = tl.full(share.shape, 1.0, tl.float64)
    for k in range(N):
        bound *= 1.0 + row_of(w, rows == k)
    x, rest, exponent = _product_of_pivots(high, low, sign, m, rows, columns, N)
    size = tl.abs(x)
    of_pivots = 8.0 * N * _UNIT_OF_PAIR
    error = _above(size * (share * (1.0 + share) + of_pivots), N + 6, 0.0)
    is_close = share < 0.5
    error = tl.where(is_close, error, _above(size * bound, 2 * N + 4, 0.0))
    x = tl.where(is_close, x, 0.0)
    rest = tl.where(is_close, rest, 0.0)
    is_known = is_known & (error < float("inf"))

    # Whether the minor can be no number but x
    lowest = _lowest_bit_of_minor(scaled, m, rows, columns) - exponent
    is_multiple = (x == 0.0) | (_lowest_bit(x) >= lowest)
    gap = _above(tl.abs(rest) + error, 1, 0.0)
    is_multiple = is_multiple & (biased_exponent(gap) - 1023 < lowest)

    place = facts + system * 4
    if EXCHANGES:
        is_above = rest - error > 0.0
        is_below = rest + error < 0.0
        is_known = is_known & (is_above | is_below | is_multiple)
        lower = tl.where(is_below, _next(x, False), x)
        upper = tl.where(is_above, _next(x, True), x)

        # The determinant has the exponent of its smaller neighbour
        power = exponent + of_scales
        smaller = tl.minimum(tl.abs(lower), tl.abs(upper))
        exponent = biased_exponent(smaller) - 1023 + power
        is_large = (exponent < -_LARGEST_EXPONENT) | (exponent > _LARGEST_EXPONENT)
        exponent = tl.where(is_large & (x != 0.0), exponent, 0)
        factor = power_of_two(tl.where(x == 0.0, 0, power - exponent))
        tl.store(place, is_known.to(tl.float64), mask=is_system)
        tl.store(place + 1, lower * factor, mask=is_system)
        tl.store(place + 2, upper * factor, mask=is_system)
        tl.store(place + 3, exponent.to(tl.float64), mask=is_system)
    else:
        across = tl.load(start + columns * N + rows, mask=is_entry, other=0.0)
        is_symmetric = all_hold(matrix == across)
        has_diagonal = all_hold((matrix > 0.0) | (rows != columns) | (rows >= N))
        is_negative = is_known & ((x < 0.0) | ((x == 0.0) & is_multiple))
        is_negative = is_negative | (~has_diagonal & is_moderate)
        is_positive = is_known & (x > 0.0) & has_diagonal
        answer = tl.where(is_positive, 1.0, _UNKNOWN)
        answer = tl.where(is_negative, 0.0, answer)
        tl.store(place, tl.where(is_symmetric, answer, _UNKNOWN), mask=is_system)


_launch = Launch(small_minors_kernel)


def facts_of_minors(a: Buffer, exchanges: bool) -> tuple[Buffer]:
    """Four facts of each matrix: `core.neighbours_of_determinants` has all of them, and
    without exchanges `core.definiteness` the first one.

    Parameters
    ----------
    a : contiguous tensor of float64, shape (batch, n, n)
    """
    batch, n, _ = a.shape
    tile = tile_of(n)
    facts: Buffer = a.launches.empty((batch, 4), torch.float64)
    _launch(
        (triton.cdiv(batch, tile.systems),),
        a,
        facts,
        batch,
        N=n,
        EXCHANGES=exchanges,
        SYSTEMS=tile.systems,
        ROWS=tile.rows,
        num_warps=tile.warps,
        enable_fp_fusion=False,
    )
    return (facts,)
