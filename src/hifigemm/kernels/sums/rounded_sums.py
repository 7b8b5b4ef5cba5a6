"""Sums of products, each rounded once, for any operands.

The steps are those of numerics/rounded_sums.py, which has the bounds and their proofs.
A program makes a tile of the result. It adds all terms in a quick form first: one word,
a biased word with its remainder, or two words. Entries whose rounding the bound of that
form leaves open are NaN. A second launch, `finish_entries`, completes what any kernel
has left open: with three words, of rows and columns that powers of two bring near
one size. What is open then, of a few entries in millions, is added as an integer of all the bits
there are. So every entry is right, no certificate waits for the host, and the launches
go into CUDA graphs.

The terms of an entry are added one after the other, by the thread that has the entry.
A step takes a column of the tile of A and a row of that of B, each thread its own few
numbers of them from the L1 cache, so that nothing passes through shared memory. Triton
lets threads load them so where a vector is shorter than the threads of a program.

Triton fuses products and sums unless it is told not to, and then a TwoSum is no TwoSum:
`enable_fp_fusion=False`. The rounding error of a product is a fused multiply-add with
the negative product, which is made from the negative entry of A, as a minus sign in
front of a tensor is a subtraction from zero. In the interpreter, whose fused operations
round twice, the error comes from halves of the factors [Dekker].
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from hifigemm.base.formats import FP32, FP64
from hifigemm.kernels.endings.rounding import (
    Targets,
    finite,
    nearest_finite,
    neighbour,
    with_addend,
)
from hifigemm.kernels.endings.underflow import Underflow, open_by_underflow
from hifigemm.kernels.runtime.common import (
    place_of,
    power_of_two,
    sign_of_finite,
    two_sum,
)
from hifigemm.kernels.runtime.launch import Launch, Strided, strided
from hifigemm.kernels.runtime.tiles import Tile, gpu_of, tile_of_sums
from hifigemm.kernels.sums.exact_entries import exact_entry
from hifigemm.kernels.vectors.embedding import as_real
from hifigemm.kernels.vectors.statistics import (
    biased_exponent,
    entries_of,
    lowest_bit,
)
from hifigemm.numerics.rounded_sums import MAX_TERMS, form_for

_UNIT = tl.constexpr(2.0**-53)
_UNDERFLOW = tl.constexpr(2.0**-1020)
"""More than a term loses where it is subnormal."""
_UNDERFLOW_OF_ENTRIES = tl.constexpr(2.0**-590)
"""More than a term loses where a factor of it is subnormal after scaling."""
_SPLITTER = tl.constexpr(2.0**27 + 1.0)
"""Veltkamp's factor: it cuts 53 bits into 26 and 26 and a sign."""
_NO_BIT = tl.constexpr(1 << 20)
"""The lowest bit of a vector of zeros."""
_INFINITE = tl.constexpr(2047)
"""The biased exponent of Inf and NaN."""
_DEPTH = tl.constexpr(8)
"""Terms whose exponents are read together."""
_LARGEST_SCALE = tl.constexpr(1021)
"""Rows and columns are multiplied by 2**-1021 to 2**1021, which are normal numbers."""
_ROOM = tl.constexpr(480)
"""Without C, the largest entries of rows and columns lie near 2**480 then."""
_LEAST_UNIT, _LARGEST_UNIT = tl.constexpr(-900), tl.constexpr(970)
"""Exponents of the unit of exact sums."""
_NO_UNIT = tl.constexpr(-(1 << 20))


@triton.jit
def _minus_product(a, b, FMA: tl.constexpr):
    """-fl(a b), and a b - fl(a b): twin numerics.eft.two_product."""
    if FMA:
        minus = (-a) * b
        error = tl.fma(a + tl.zeros_like(minus), b + tl.zeros_like(minus), minus)
    else:
        product = a * b
        minus = -product
        t = _SPLITTER * a
        a_high = t - (t - a)
        a_low = a - a_high
        t = _SPLITTER * b
        b_high = t - (t - b)
        b_low = b - b_high
        excess = ((product - a_high * b_high) - a_low * b_high) - a_high * b_low
        error = a_low * b_low - excess
    return minus, error


@triton.jit
def _with_term(a, b, sums, FORM: tl.constexpr, FMA: tl.constexpr):
    """The words of a sum and the sum of magnitudes, with the terms a b added."""
    high, middle, low, size = sums
    if FORM == "one word":
        # Products of numbers of float32 are float64.
        product = a * b
        return high + product, middle, low, size + tl.abs(product)
    minus, error = _minus_product(a, b, FMA)
    if FORM == "biased":
        # The unit of high is the same all the time, so that high - s is exact; what the
        # product has below that unit is rounded once.
        if FMA:
            ab = a + tl.zeros_like(minus), b + tl.zeros_like(minus)
            s = tl.fma(ab[0], ab[1], high)
            low += tl.fma(ab[0], ab[1], high - s)
        else:
            s = high - minus
            low += ((high - s) - minus) + error
        return s, middle, low, size
    # TwoSum of high and the product.
    s = high - minus
    t = s - high
    lost = (high - (s - t)) - (minus + t)
    if FORM == "two words":
        return s, middle, low + (lost + error), size + tl.abs(minus)
    middle, first_loss = two_sum(middle, lost)
    middle, second_loss = two_sum(middle, error)
    return s, middle, low + (first_loss + second_loss), size + tl.abs(minus)


@triton.jit
def _loaded(left, right, factors, FORM: tl.constexpr, UNROLL: tl.constexpr):
    """UNROLL terms of all rows and columns, times factors in the form of three words."""
    rows, row_step = left
    columns, column_step = right
    row_terms = ()
    column_terms = ()
    for i in tl.static_range(UNROLL):
        a = tl.load(rows + i * row_step).to(tl.float64)
        b = tl.load(columns + i * column_step).to(tl.float64)
        if FORM == "three words":
            a *= factors[0]
            b *= factors[1]
        row_terms = row_terms + (a,)  # noqa: RUF005
        column_terms = column_terms + (b,)  # noqa: RUF005
    return row_terms, column_terms


@triton.jit
def _sums(
    left,
    right,
    k,
    factors,
    start,
    FORM: tl.constexpr,
    FMA: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Twin: numerics.rounded_sums.chained. Words and magnitudes with all terms added.

    `left` and `right` are the addresses of the first entries of the vectors, and the
    step from one term to the next; factors multiply vectors in the form of three words.
    The words and the sum of magnitudes `start` with what is added first.
    """
    rows, row_step = left
    columns, column_step = right
    high, middle, low, size = start
    # UNROLL terms are loaded together, while those before them are added; the others
    # come one by one.
    groups = k // UNROLL
    if groups > 0:
        next_a, next_b = _loaded(left, right, factors, FORM, UNROLL)
        for group in range(groups):
            a = next_a
            b = next_b
            # The last group is loaded once more, as nothing lies behind it.
            is_last = group == groups - 1
            rows += tl.where(is_last, 0, UNROLL * row_step)
            columns += tl.where(is_last, 0, UNROLL * column_step)
            next_a, next_b = _loaded(
                (rows, row_step), (columns, column_step), factors, FORM, UNROLL
            )
            for i in tl.static_range(UNROLL):
                high, middle, low, size = _with_term(
                    a[i][:, None], b[i][None, :], (high, middle, low, size), FORM, FMA
                )
        rows += UNROLL * row_step
        columns += UNROLL * column_step
    for _ in range(k % UNROLL):
        a = tl.load(rows).to(tl.float64)
        b = tl.load(columns).to(tl.float64)
        if FORM == "three words":
            a *= factors[0]
            b *= factors[1]
        high, middle, low, size = _with_term(
            a[:, None], b[None, :], (high, middle, low, size), FORM, FMA
        )
        rows += row_step
        columns += column_step
    return high, middle, low, size


@triton.jit
def _extremes(
    vectors,
    step,
    k,
    COUNT: tl.constexpr,
    AXIS: tl.constexpr,
    LOWEST: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The largest biased exponent of each of COUNT vectors, and their lowest bits.

    The vectors lie along AXIS of tiles of DEPTH terms. Lowest bits are those of zeros
    unless LOWEST.
    """
    h = tl.arange(0, DEPTH)
    if AXIS == 1:
        places = vectors[:, None] + (h * step)[None, :]
        largest = tl.zeros([COUNT, DEPTH], tl.int32)
    else:
        places = vectors[None, :] + (h * step)[:, None]
        largest = tl.zeros([DEPTH, COUNT], tl.int32)
    lowest = largest + _NO_BIT
    for start in range(0, k, DEPTH):
        inside = h < k - start
        if AXIS == 1:
            x = tl.load(places, mask=inside[None, :], other=0.0).to(tl.float64)
        else:
            x = tl.load(places, mask=inside[:, None], other=0.0).to(tl.float64)
        largest = tl.maximum(largest, biased_exponent(x))
        if LOWEST:
            lowest = tl.minimum(lowest, lowest_bit(x, _NO_BIT))
        places += DEPTH * step
    return tl.max(largest, axis=AXIS), tl.min(lowest, axis=AXIS)


@triton.jit
def _scale(top, ROOM: tl.constexpr):
    """Twin: numerics.rounded_sums._scale, for largest biased exponents."""
    scale = top - 1023 - ROOM
    return tl.minimum(tl.maximum(scale, -_LARGEST_SCALE), _LARGEST_SCALE)


@triton.jit
def _unit_bit(bit, scale):
    """Twin: numerics.rounded_sums._unit_bit, for lowest bits."""
    return tl.where(bit - scale < -1000, _NO_UNIT, bit - scale)


@triton.jit
def _have_terms(left, right, k):
    """1 for entries with a term that has no factor 0, else 0."""
    rows, row_step = left
    columns, column_step = right
    have_terms = tl.zeros([rows.shape[0], columns.shape[0]], tl.int32)
    for _ in range(k):
        has_row = (tl.load(rows) != 0).to(tl.int32)
        has_column = (tl.load(columns) != 0).to(tl.int32)
        have_terms |= has_row[:, None] & has_column[None, :]
        rows += row_step
        columns += column_step
    return have_terms


@triton.jit
def _times_power(x, e):
    """x 2**e in float64 for |e| <= 4000; rounded once where it is subnormal and |x| is
    2**-850 or more.
    """
    # Four exponents whose sum is e: their powers of two are normal numbers.
    for i in tl.static_range(4):
        x *= power_of_two((e + i) >> 2)
    return x


@triton.jit
def _to_odd(x, behind):
    """Twin: numerics.three_words.to_odd."""
    bits = x.to(tl.int64, bitcast=True)
    step = tl.where((behind > 0) == (x > 0), 1, -1).to(tl.int64)
    moves = (behind != 0) & ((bits & 1) == 0)
    return (bits + tl.where(moves, step, 0)).to(tl.float64, bitcast=True)


@triton.jit
def _normalised(high, middle, low):
    """Twin: numerics.three_words.normalised."""
    middle, low = two_sum(middle, low)
    high, middle = two_sum(high, middle)
    middle, low = two_sum(middle, low)
    high, middle = two_sum(high, middle)
    return high, middle, low


@triton.jit
def _rounded_words(high, middle, low, err, exact, exponent, SINGLE: tl.constexpr):
    """Twin: numerics.rounded_sums.rounded_words.

    Values times 2**exponent rounded once, in float64, and where they are certain.
    """
    # The margin has room for the roundings of err; 2**-51 of a word covers what lies
    # behind the word, and the rounding of both ends.
    margin = err * (1.0 + 2.0**-20)
    is_nonzero = exact | (tl.abs(high) - tl.abs(middle) > margin)
    if SINGLE:
        margin += tl.abs(high) * 2.0**-51
        values = _times_power(_to_odd(high, middle), exponent).to(tl.float32)
        least = _times_power(high - margin, exponent).to(tl.float32)
        most = _times_power(high + margin, exponent).to(tl.float32)
        certain = exact | ((least == most) & is_nonzero)
        return tl.where(high == 0, 0.0, values.to(tl.float64)), certain
    # Results below the normal numbers are rounded at the unit of a number that is added
    # and taken away again: the smallest normal number, with the sign of the sum. Their
    # sum is at most twice that number, so that its unit is that of subnormal results.
    smallest = power_of_two(tl.minimum(tl.maximum(-1022 - exponent, -1022), 1023))
    is_below = (high == smallest) & (middle < 0) | (high == -smallest) & (middle > 0)
    is_small = (tl.abs(high) < smallest) | is_below
    bias = tl.where(is_small, tl.where(high < 0, -smallest, smallest), 0.0)
    high_word, rest = two_sum(bias, high)
    rest, lost = two_sum(rest, middle)
    rest, lost = two_sum(rest, lost + low)
    margin += tl.abs(rest) * 2.0**-51
    odd = _to_odd(rest, lost)
    rounded = high_word + odd
    is_same = (high_word + (odd - margin) == rounded) & (
        high_word + (odd + margin) == rounded
    )
    values = _times_power(rounded - bias, exponent)
    # A negative sum that rounds to zero is -0, an exact zero +0.
    sign = high.to(tl.int64, bitcast=True) & (-1 << 63)
    signed_zero = sign.to(tl.float64, bitcast=True)
    values = tl.where(values == 0, signed_zero, values)
    return tl.where(high == 0, 0.0, values), exact | (is_same & is_nonzero)


@triton.jit
def _quick_sums(
    left,
    right,
    k,
    addend,
    scaling,
    log_terms,
    FORM: tl.constexpr,
    SINGLE: tl.constexpr,
    HAS_C: tl.constexpr,
    FMA: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Twin: numerics.rounded_sums.quick_sums. Rounded values, and where they are
    certain.

    `left` and `right` are as for `_sums`; `scaling` are the exponent of C, that of the
    result, and the sign of A B.
    """
    rows, row_step = left
    columns, column_step = right
    c_exponent, shift, sign = scaling
    COUNT_M: tl.constexpr = rows.shape[0]
    COUNT_N: tl.constexpr = columns.shape[0]
    num_terms = k.to(tl.float64)
    zeros = tl.zeros([COUNT_M, COUNT_N], tl.float64)
    start = zeros
    if HAS_C:
        start = _times_power(addend, c_exponent)
    # The sums, with a bound of what they err by.
    if FORM == "biased":
        row_top, _ = _extremes(rows, row_step, k, COUNT_M, 1, False, _DEPTH)
        column_top, _ = _extremes(columns, column_step, k, COUNT_N, 0, False, _DEPTH)
        # Terms lie below 2**grid, as a biased exponent e stands for numbers below
        # 2**(e - 1022); with log_terms all sums of them do. From 3 2**grid on a sum
        # stays between 2 2**grid and 4 2**grid, where its unit is the same.
        grid = row_top[:, None] + column_top[None, :] - 2044
        if HAS_C:
            grid = tl.maximum(grid, biased_exponent(start) - 1022)
        grid += log_terms
        in_range = (grid > -800) & (grid < 1000)
        bias = 3.0 * power_of_two(tl.where(in_range, grid, 0))
        biased = bias + start
        start_sums = (biased, zeros, start - (biased - bias), zeros)
        high, _, low, _ = _sums(
            left, right, k, (1.0, 1.0), start_sums, FORM, FMA, UNROLL
        )
        high = high - bias
        err = (num_terms + 1.0) * (num_terms + 4.0) * (bias * 2.0**-107)
        err = tl.where(in_range, err, float("nan"))
    else:
        start_sums = (start, zeros, zeros, tl.abs(start))
        high, _, low, size = _sums(
            left, right, k, (1.0, 1.0), start_sums, FORM, FMA, UNROLL
        )
        if FORM == "one word":
            err = (num_terms + 4.0) * _UNIT * size
        else:
            factor = (num_terms + 5.0) * _UNIT
            err = 0.51 * factor * factor * size
    err += (num_terms + 1.0) * _UNDERFLOW

    # They are rounded where neither they nor results are near the ends of the range.
    high, low = two_sum(high * sign, low * sign)
    values = _times_power(high, shift)
    in_range = (tl.abs(high) >= 2.0**-900) & (tl.abs(high) < 2.0**1000)
    in_range &= (tl.abs(values) >= 2.0**-900) & (tl.abs(values) < 2.0**1000)
    if SINGLE:
        margin = err * (1.0 + 2.0**-20) + tl.abs(high) * 2.0**-51
        values = values.to(tl.float32).to(tl.float64)
        least = _times_power(high - margin, shift).to(tl.float32)
        most = _times_power(high + margin, shift).to(tl.float32)
        is_certain = (least == most) & (values != 0)
    else:
        is_certain = high + (low - err) == high + (low + err)
    return values, is_certain & in_range


@triton.jit
def _sums_in_three_words(
    left,
    right,
    k,
    addend,
    scaling,
    RESULT: tl.constexpr,
    SINGLE: tl.constexpr,
    HAS_C: tl.constexpr,
    FMA: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Twin: numerics.rounded_sums.sums_in_three_words. Both values of all entries, and
    where they are still open.

    The arguments are those of `_quick_sums`. Entries of vectors with an Inf or NaN are
    not open.
    """
    rows, row_step = left
    columns, column_step = right
    c_exponent, shift, sign = scaling
    COUNT_M: tl.constexpr = rows.shape[0]
    COUNT_N: tl.constexpr = columns.shape[0]
    num_terms = k.to(tl.float64)
    zeros = tl.zeros([COUNT_M, COUNT_N], tl.float64)
    # Powers of two that bring the largest entries of all vectors near one size.
    ROOM: tl.constexpr = 0 if HAS_C else _ROOM
    row_top, row_bit = _extremes(rows, row_step, k, COUNT_M, 1, True, _DEPTH)
    column_top, column_bit = _extremes(
        columns, column_step, k, COUNT_N, 0, True, _DEPTH
    )
    row_scale = _scale(row_top, ROOM)
    column_scale = _scale(column_top, ROOM)
    scale = row_scale[:, None] + column_scale[None, :]
    start = zeros
    if HAS_C:
        start = _times_power(addend, c_exponent - scale)
    factors = (power_of_two(-row_scale), power_of_two(-column_scale))
    start_sums = (start, zeros, zeros, tl.abs(start))
    high, middle, low, size = _sums(
        left, right, k, factors, start_sums, "three words", FMA, UNROLL
    )
    high, middle, low = _normalised(high * sign, middle * sign, low * sign)

    # Terms are multiples of a unit: words that stay below 2**53 of it lose nothing.
    row_unit = _unit_bit(row_bit, row_scale)
    unit_bit = row_unit[:, None] + _unit_bit(column_bit, column_scale)[None, :]
    if HAS_C:
        lowest_of_addend = lowest_bit(addend, _NO_BIT)
        unit_bit = tl.minimum(unit_bit, lowest_of_addend + c_exponent - scale)
    unit_bit = tl.minimum(unit_bit, _LARGEST_UNIT)
    power = power_of_two(tl.maximum(unit_bit, _LEAST_UNIT))
    unit = tl.where(unit_bit > _LEAST_UNIT, power, 0.0)
    factor = (num_terms + 5.0) * _UNIT
    is_exact = factor * factor * size <= unit * (2.0**51)
    is_exact &= (unit > 0) & (tl.abs(high) < 2.0**1000)
    loses_entries = (row_scale > 0)[:, None] | (column_scale > 0)[None, :]
    loss = tl.where(loses_entries, _UNDERFLOW_OF_ENTRIES, _UNDERFLOW)
    err = factor * factor * factor * size + (num_terms + 1.0) * loss
    err = tl.where(is_exact, 0.0, err)
    exponent = scale + shift
    values, is_certain = _rounded_words(
        high, middle, low, err, is_exact, exponent, SINGLE
    )
    second_values = zeros
    if RESULT != "array":
        # What is left of the sums, in three words: it is rounded once more, or its sign
        # tells on which side of the value the sum lies.
        near = values
        if RESULT == "enclosure":
            near = nearest_finite(near, SINGLE)
        high, lost = two_sum(high, -_times_power(near, -exponent))
        middle, lost = two_sum(middle, lost)
        high, middle, low = _normalised(high, middle, low + lost)
        if RESULT == "pair":
            second_values, is_second_certain = _rounded_words(
                high, middle, low, err, is_exact, exponent, SINGLE
            )
            is_certain &= is_second_certain | (tl.abs(values) == float("inf"))
        else:
            is_certain &= is_exact | (
                tl.abs(high) - tl.abs(middle) > err * (1.0 + 2.0**-20)
            )
            side = (high > 0).to(tl.int32) - (high < 0).to(tl.int32)
            values = neighbour(near, tl.minimum(side, 0), SINGLE)
            second_values = neighbour(near, tl.maximum(side, 0), SINGLE)

    # Rows and columns with an Inf or NaN.
    is_marked = (row_top == _INFINITE)[:, None] | (column_top == _INFINITE)[None, :]
    pattern = zeros
    if tl.max(is_marked.to(tl.int32)) > 0:
        for h in range(k):
            step = tl.cast(h, tl.int64)
            a = sign_of_finite(tl.load(rows + step * row_step).to(tl.float64))
            b = sign_of_finite(tl.load(columns + step * column_step).to(tl.float64))
            pattern += (a[:, None] * b[None, :]) * sign
    values = tl.where(is_marked, pattern, values)
    second_values = tl.where(is_marked, pattern, second_values)
    is_open = (is_certain | is_marked) == 0
    if not HAS_C:
        # A sum of zeros is exact if each term has a factor 0.
        is_unknown = is_open & (size == 0)
        if tl.max(is_unknown.to(tl.int32)) > 0:
            have_terms = _have_terms((rows, row_step), (columns, column_step), k)
            is_open &= (is_unknown & (have_terms == 0)) == 0
    return values, second_values, is_open


@triton.jit
def _by_all_bits(
    left,
    right,
    k,
    c,
    scaling,
    RESULT: tl.constexpr,
    SINGLE: tl.constexpr,
    LANES: tl.constexpr,
):
    """Both values of an entry, from the integer of all its bits.

    The arguments are those of `_quick_sums` for one row and one column. Lane 0 of the
    further terms holds C, and lane 1 what is taken away for the second value.
    """
    row, row_step = left
    column, column_step = right
    c_exponent, shift, sign = scaling
    lanes = tl.arange(0, LANES)
    extra = tl.where(lanes == 0, c, tl.zeros([LANES], tl.float64))
    extra_exponent = tl.where(lanes == 0, c_exponent, tl.zeros([LANES], tl.int32))
    value, side, pattern = exact_entry(
        row, row_step, column, column_step, k, extra, extra_exponent, shift,
        SINGLE, LANES,
    )  # fmt: skip
    # An exact zero has no sign.
    value = tl.where(side == 0, 0.0, value * sign)
    pattern *= sign
    if SINGLE:
        value = value.to(tl.float32).to(tl.float64)
    second_value = value
    if RESULT != "array":
        near = value
        if RESULT == "enclosure":
            near = nearest_finite(near, SINGLE)
        is_finite = tl.abs(near) < float("inf")
        extra = tl.where(lanes == 1, tl.where(is_finite, -near * sign, 0.0), extra)
        extra_exponent = tl.where(lanes == 1, -shift, extra_exponent)
        second_value, side, _ = exact_entry(
            row, row_step, column, column_step, k, extra, extra_exponent, shift,
            SINGLE, LANES,
        )  # fmt: skip
        second_value = tl.where(side == 0, 0.0, second_value * sign)
        if RESULT == "enclosure":
            side = tl.where(sign < 0, -side, side)
            value = neighbour(near, tl.minimum(side, 0), SINGLE)
            second_value = neighbour(near, tl.maximum(side, 0), SINGLE)
    # The pattern of Inf and NaN is 0 where there are none.
    is_special = pattern != 0
    value = tl.where(is_special, pattern, value)
    return value, tl.where(is_special, pattern, second_value)


@triton.jit
def _tile_of(index, m, n, TILE: tl.constexpr):
    """Matrix of the stack, rows, columns, and which entries lie inside, of a tile.

    Rows and columns beyond the last one repeat it.
    """
    BLOCK_M: tl.constexpr = TILE.block_m
    BLOCK_N: tl.constexpr = TILE.block_n
    z, tile_m, tile_n = place_of(
        index, tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), TILE.group
    )
    i = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    j = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (i < m)[:, None] & (j < n)[None, :]
    i = tl.minimum(i, m - 1).to(tl.int64)
    j = tl.minimum(j, n - 1).to(tl.int64)
    return z.to(tl.int64), i, j, inside


@triton.jit
def _addend_of(c, scaling, z, i, j, COUNT_M: tl.constexpr, COUNT_N: tl.constexpr):
    """The entries of a tile of C with its sign; zeros where there is no C."""
    addend = tl.zeros([COUNT_M, COUNT_N], tl.float64)
    if c.entries is not None:
        entries = tl.load(entries_of(c, z, i, j)).to(tl.float64)
        addend = entries * tl.cast(scaling.c_sign, tl.int32).to(tl.float64)
    return addend


class _Scaling(NamedTuple):
    """Powers of two of C and of the result; the signs of C and of A B."""

    c_exponent: int
    c_sign: int
    shift: int
    sign: int


@triton.jit(
    do_not_specialize=[
        "left",
        "right",
        "out",
        "c",
        "scaling",
        "m",
        "n",
        "k",
        "log_terms",
    ]
)
def _quick_kernel(
    left,
    right,
    out,
    c,
    scaling,
    m,
    n,
    k,
    log_terms,
    FORM: tl.constexpr,
    FMA: tl.constexpr,
    TILE: tl.constexpr,
):
    """Twin: numerics.rounded_sums.quick_sums. Values; those that are not certain are
    open, as NaN.

    A tile has TILE.block_m x TILE.block_n entries of one matrix of the stack, and
    TILE.block_k terms are loaded together. Each program makes one tile, in the order of
    `place_of`, and no two write to the same entries.
    """
    BLOCK_M: tl.constexpr = TILE.block_m
    BLOCK_N: tl.constexpr = TILE.block_n
    SINGLE: tl.constexpr = out.entries.dtype.element_ty == tl.float32
    HAS_C: tl.constexpr = c.entries is not None
    z, i, j, inside = _tile_of(tl.program_id(0), m, n, TILE)

    # C, which is the first term of all. The sum with the sign of A B is that sign times
    # the sum with C times it.
    sign = tl.cast(scaling.sign, tl.int32).to(tl.float64)
    addend = _addend_of(c, scaling, z, i, j, BLOCK_M, BLOCK_N)
    rows = left.entries + z * left.batch + i * left.row
    columns = right.entries + z * right.batch + j * right.column
    values, is_certain = _quick_sums(
        (rows, tl.cast(left.column, tl.int64)),
        (columns, tl.cast(right.row, tl.int64)),
        k,
        finite(addend) * sign,
        (scaling.c_exponent, scaling.shift, sign),
        log_terms,
        FORM,
        SINGLE,
        HAS_C,
        FMA,
        TILE.block_k,
    )
    if HAS_C:
        values = with_addend(values, addend)
    values = tl.where(is_certain, values, float("nan"))
    tl.store(
        entries_of(out, z, i, j), values.to(out.entries.dtype.element_ty), mask=inside
    )


@triton.jit(
    do_not_specialize=[
        "left",
        "right",
        "out",
        "second",
        "c",
        "scaling",
        "m",
        "n",
        "k",
        "tiles",
        "triangle",
        "underflow",
    ]
)
def _finish_kernel(
    left,
    right,
    out,
    second,
    c,
    scaling,
    m,
    n,
    k,
    tiles,
    triangle,
    underflow,
    counts,
    RESULT: tl.constexpr,
    FEW: tl.constexpr,
    FMA: tl.constexpr,
    TILE: tl.constexpr,
):
    """Twin: numerics.rounded_sums.sums_in_three_words, then exact integers.

    Programs walk over the tiles of the stack and complete the entries that are open:
    those of `out` that are not finite, or that `underflow` opens, and all entries of a
    pair or an enclosure. The launch before wrote `out`; a tile is read and written by
    one program alone. Only entries on and below the diagonal are looked at where
    `triangle` is 1, on and above it for -1. `counts`, or None, gets two numbers for each
    tile with open entries: how many these are, and how many took all their bits.
    """
    BLOCK_M: tl.constexpr = TILE.block_m
    BLOCK_N: tl.constexpr = TILE.block_n
    SINGLE: tl.constexpr = out.entries.dtype.element_ty == tl.float32
    HAS_C: tl.constexpr = c.entries is not None
    sign = tl.cast(scaling.sign, tl.int32).to(tl.float64)
    exponents_and_sign = scaling.c_exponent, scaling.shift, sign
    row_step = tl.cast(left.column, tl.int64)
    column_step = tl.cast(right.row, tl.int64)
    threshold = 0.0
    if underflow is not None:
        threshold, is_any_open = open_by_underflow(underflow)
        tiles = tl.where(is_any_open, tiles, 0)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        z, i, j, inside = _tile_of(tile, m, n, TILE)
        places_out = entries_of(out, z, i, j)
        values = tl.zeros([BLOCK_M, BLOCK_N], tl.float64)
        second_values = values
        is_open = inside
        if RESULT == "array":
            values = tl.load(places_out).to(tl.float64)
            is_kept = (tl.abs(values) >= threshold) & (tl.abs(values) < float("inf"))
            is_open = inside & (is_kept == 0)
            is_open &= (i[:, None] - j[None, :]) * triangle >= 0
        num_open = tl.sum(is_open.to(tl.int32))
        if num_open > 0:
            rows = left.entries + z * left.batch
            columns = right.entries + z * right.batch
            addend = _addend_of(c, scaling, z, i, j, BLOCK_M, BLOCK_N)
            signed_addend = finite(addend) * sign
            if RESULT == "array":
                # A NaN of C stays.
                is_open &= addend == addend
                num_open = tl.sum(is_open.to(tl.int32))
            # A few entries take less time by all their bits than a tile in three words.
            if num_open > FEW:
                words, second_values, is_left = _sums_in_three_words(
                    (rows + i * left.row, row_step),
                    (columns + j * right.column, column_step),
                    k,
                    signed_addend,
                    exponents_and_sign,
                    RESULT,
                    SINGLE,
                    HAS_C,
                    FMA,
                    TILE.block_k,
                )
                if HAS_C:
                    words = with_addend(words, addend)
                values = tl.where(is_open, words, values)
                is_open &= is_left

            # All bits of the entries that are left, one entry after the other.
            num_left = tl.sum(is_open.to(tl.int32))
            if counts is not None:
                tl.store(counts + 2 * tile, num_open)
                tl.store(counts + 2 * tile + 1, num_left)
            index = (
                tl.arange(0, BLOCK_M)[:, None] * BLOCK_N
                + tl.arange(0, BLOCK_N)[None, :]
            )
            for _ in range(num_left):
                entry = tl.min(tl.where(is_open, index, BLOCK_M * BLOCK_N))
                is_entry = index == entry
                is_open &= is_entry == 0
                row = tl.max(tl.where(is_entry, i[:, None], 0))
                column = tl.max(tl.where(is_entry, j[None, :], 0))
                value, second_value = _by_all_bits(
                    (rows + row * left.row, row_step),
                    (columns + column * right.column, column_step),
                    k,
                    tl.sum(tl.where(is_entry, signed_addend, 0.0)),
                    exponents_and_sign,
                    RESULT,
                    SINGLE,
                    32 * TILE.warps,
                )
                if HAS_C:
                    value = with_addend(value, tl.sum(tl.where(is_entry, addend, 0.0)))
                values = tl.where(is_entry, value, values)
                second_values = tl.where(is_entry, second_value, second_values)

            tl.store(places_out, values.to(out.entries.dtype.element_ty), mask=inside)
            if RESULT != "array":
                if RESULT == "pair":
                    # Nothing is left of what is not finite.
                    is_finite = tl.abs(values) < float("inf")
                    second_values = tl.where(is_finite, second_values, 0.0)
                dtype: tl.constexpr = second.entries.dtype.element_ty
                tl.store(
                    entries_of(second, z, i, j), second_values.to(dtype), mask=inside
                )


_quick: Any = Launch(_quick_kernel)
_finish: Any = Launch(_finish_kernel)
_FEW = 8
"""Open entries of a tile that take less time by all their bits, one after the other,
than the tile takes in three words: 5,000 and 350,000 cycles for 1024 terms, estimated.
"""
_ALL = 2**30
"""More entries than a tile has."""
_PROGRAMS = 8
"""Programs for each multiprocessor that look for open entries: they are few."""


def rounded_sums(
    left: Any,
    right: Any,
    targets: Targets,
    *,
    shift: int = 0,
    form: str | None = None,
    tile: Tile | None = None,
    few: int = _FEW,
    counts: Any = None,
) -> None:
    """Write 2**shift (sign A B + c_sign 2**c_exponent C), rounded once.

    An exact zero is +0; a negative sum that rounds to zero is -0. Entries of vectors
    with an Inf or NaN are those of `numerics.special.fill_nonfinite`; what is not
    finite of C is added to the rounded sum of all else.

    Parameters
    ----------
    left, right : tensors (batch or 1, m, k) and (batch or 1, k, n), any strides
        float64 or float32, k at most `numerics.rounded_sums.MAX_TERMS`.
    targets : Targets
        Of the same dtype, any strides. The sum goes to `out`, which shares no memory
        with `c`; what is left of it, rounded once, to `second`, 0 where `out` is not
        finite. For an enclosure both are the numbers next to the exact sum from below
        and above.
    form, tile
        The form that comes first and the tile; by default chosen from the shape.
    few, counts
        See `finish_entries`.
    """
    if targets.out.numel() == 0:
        return
    arguments = _arguments(left, right, targets, shift, tile)
    # Pairs and enclosures have no quick form: all their entries are open.
    if targets.rounding.result == "array":
        k = left.shape[2]
        if form is None:
            form = form_for(k, FP32 if targets.out.dtype is torch.float32 else FP64)
        log_terms = (k + 1).bit_length()
        _quick(
            (arguments.num_tiles,),
            arguments.left,
            arguments.right,
            arguments.out,
            arguments.c,
            arguments.scaling,
            *arguments.sizes,
            log_terms,
            FORM=form,
            FMA=targets.out.is_cuda,
            **_constants(arguments.tile),
        )
    _launch_finish(arguments, targets, few, counts)


def finish_entries(
    left: Any,
    right: Any,
    targets: Targets,
    *,
    shift: int = 0,
    triangle: bool = False,
    few: int = _FEW,
    counts: Any = None,
    underflow: Underflow | None = None,
) -> None:
    """Complete the open entries of `targets.out`, as `rounded_sums` makes them.

    Entries that are not finite are open, but for a NaN of C; others stay as they are.

    Parameters
    ----------
    left, right, targets, shift
        See `rounded_sums`; k may exceed its limit. Complex operands, too, without a C;
        rows of a complex `out` are contiguous.
    triangle : bool
        Leave out what lies above the diagonal.
    few : int
        So many open entries of a tile take all their bits at once.
    counts : int32 tensor (tiles, 2), or None
        For each tile with open entries, it gets their number and the number of those
        that took all their bits.
    underflow : Underflow, optional
        Of `out`; entries in which underflow may count are open, too.
    """
    if targets.out.numel() == 0:
        return
    left, right, out = as_real(left, right, targets.out)
    targets = targets._replace(out=out)
    # The bound of three words holds for so many terms.
    if left.shape[2] > MAX_TERMS:
        few = _ALL
    arguments = _arguments(left, right, targets, shift, None)
    _launch_finish(arguments, targets, few, counts, triangle, underflow)


class _Arguments(NamedTuple):
    """What the launches share: operands and results as kernels take them."""

    left: Strided
    right: Strided
    out: Strided
    second: Strided
    c: Strided
    scaling: _Scaling
    sizes: tuple[int, int, int]  # m, n and k
    tile: Tile
    num_tiles: int
    is_transposed: bool


def _arguments(
    left: Any, right: Any, targets: Targets, shift: int, tile: Tile | None
) -> _Arguments:
    """The arguments of a product, or of the transposed one."""
    rounding = targets.rounding
    batch, m, n = targets.out.shape
    c = None if targets.c is None else targets.c.expand(batch, m, n)
    x, y = strided(left), strided(right)
    results = strided(targets.out), strided(targets.second), strided(c)
    # Neighbouring threads have neighbouring columns: where those of B lie apart and the
    # rows of A do not, the transposed product is made.
    is_transposed = y.column != 1 and x.row == 1
    if is_transposed:
        x, y = y.transposed, x.transposed
        m, n = n, m
        results = tuple(matrices.transposed for matrices in results)
    if tile is None:
        tile = tile_of_sums(batch, m, n, gpu_of(targets.out.device).num_sms)
    return _Arguments(
        x,
        y,
        *results,
        scaling=_Scaling(rounding.c_exponent, rounding.c_sign, shift, rounding.sign),
        sizes=(m, n, left.shape[2]),
        tile=tile,
        num_tiles=batch * -(-m // tile.block_m) * -(-n // tile.block_n),
        is_transposed=is_transposed,
    )


def _launch_finish(
    arguments: _Arguments,
    targets: Targets,
    few: int,
    counts: Any,
    triangle: bool = False,
    underflow: Underflow | None = None,
) -> None:
    """Launch the kernel that completes what is open."""
    # Open entries are few, but for pairs and enclosures.
    programs = arguments.num_tiles
    if targets.rounding.result == "array":
        programs = min(programs, _PROGRAMS * gpu_of(targets.out.device).num_sms)
    # Three words take more registers: what one warp makes of a tile in the quick form
    # is shared by four then.
    tile = arguments.tile
    if tile.warps == 1:
        tile = replace(tile, warps=4)
    _finish(
        (programs,),
        arguments.left,
        arguments.right,
        arguments.out,
        arguments.second,
        arguments.c,
        arguments.scaling,
        *arguments.sizes,
        arguments.num_tiles,
        (-1 if arguments.is_transposed else 1) if triangle else 0,
        underflow,
        counts,
        RESULT=targets.rounding.result,
        FEW=few,
        FMA=targets.out.is_cuda,
        **_constants(tile),
    )


def _constants(tile: Tile) -> dict[str, Any]:
    """Constants of compilation of a kernel whose programs make such tiles."""
    return {
        "TILE": tile,
        "num_warps": tile.warps,
        "num_stages": 1,
        "enable_fp_fusion": False,
    }
