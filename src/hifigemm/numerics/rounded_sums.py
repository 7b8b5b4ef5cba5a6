"""Sums of products 2**shift (A B + s C), rounded once, term by term in words.

Idea
    Each term is a product p and its error e, p + e = a b [ORO05, TwoProduct]. A sum in
    one or two words, which is quick, comes first, with a bound err of what it errs by.
    Where numbers within err do not round alike, three words take its place, of rows and
    columns times powers of two: their largest entries lie near 2**480 then, so that
    hardly a product underflows, or near 1 if there is a C. What is still open then is a
    few entries in millions, or ties of many bits: these are added as integers of all
    their bits.
Notation
    u = 2**-53, k terms, M = |A||B| + |s C|, `size` the computed sum of magnitudes, eta
    = 2**-1020 (k + 1), which is more than what is lost where a term is subnormal. An
    entry that a negative power of two makes subnormal loses 2**-1075 at most, times an
    entry below 2**481: eta is 2**-590 (k + 1) then. C is the first term, so that there
    are k + 1 sums.
Bound
    *One word*, for float32: products are exact, each of k + 1 sums errs by u M at most.
    err = (k + 4) u size + eta; size >= (1 - (k + 1) u) M.

    *Two words*: high = fl(high + p) loses q, low adds fl(q + e). |q| <= u |high| and
    |e| <= u |p|, so that after i terms |low| <= u (i + 2) M to first order, and the
    roundings of fl(q + e), at most 2 u u M, and of low sum to (k**2 + 9 k + 8) / 2 u**2
    M, C counted as a term. err = 0.51 (k + 5)**2 u**2 size + eta has room for terms of
    higher order, k u <= 2**-29, and for the rounding of low - err and low + err.

    *A biased word*: high starts at 3 2**g, 2**g above all partial sums, and keeps the
    unit 2**(g - 51): high - fl(high + a b) is exact, and what the product has below the
    unit, at most 2**(g - 52), is rounded once and added to low. Both roundings of k + 1
    terms sum to (k + 1)(k + 4) / 2 u 2**(g - 52). err is half as much again, + eta.

    *Three words*: low adds fl(r + r'), the losses of the two sums of the middle word,
    |r| <= u |middle| <= u u (i + 2) M. By the argument of two words all roundings sum
    to less than (k + 5)**3 u**3 M. Where (k + 5)**2 u**2 size <= 2**51 times the unit
    of which all terms are multiples, low stays below 2**53 of it, nothing is rounded,
    and err is 0; so it is for zeros and ties of moderate length. Without C, err is also
    0 where each term has a factor 0.
References
    [ORO05] Ogita, Rump, Oishi: Accurate sum and dot product, doi:10.1137/030601818.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hifigemm.base.formats import FP32, Format
from hifigemm.numerics.bits import (
    Array,
    ceil_log2,
    lowest_bit,
    power_of_two,
    scale_by_power,
)
from hifigemm.numerics.blocking import product_shape
from hifigemm.numerics.eft import two_product, two_sum
from hifigemm.numerics.rounding_formats import result_dtype
from hifigemm.numerics.special import fill_nonfinite, nonfinite_vectors
from hifigemm.numerics.three_words import neighbours, normalised, to_odd

if TYPE_CHECKING:
    from fractions import Fraction

MAX_TERMS = 2**24
"""The bounds hold for so many terms."""
BIASED_TERMS = 512
"""Terms up to which a biased word comes first. Its bound grows with the square of k. For
float64 it takes 6 to 18 % less than two words up to n = 512 on an H200, alone and in
batches, and half as much again at 1024; for float32 40 % less at n = 256 and 512 on an
H100. With exponents of phi = 8 one float32 entry of 2,000 is open at k = 1024.
"""
ONE_WORD_TERMS = 128
"""Terms up to which sums of one word come first for float32: 12 to 18 of 2**20 entries
are open at k = 64, 190 at 512, where two words take 0.17 ms on an H200 and one word
with the tiles that are made again 0.42 ms.
"""
_UNIT = 2.0**-53
_UNDERFLOW = 2.0**-1020
_UNDERFLOW_OF_ENTRIES = 2.0**-590
_LARGEST_SCALE = 1021
"""Rows and columns are multiplied by 2**-1021 to 2**1021."""
_ROOM = 480
"""Sums of MAX_TERMS products of two numbers below 2**481 stay below 2**1000."""
_LEAST_UNIT, _LARGEST_UNIT = -900, 970
"""Exponents of the unit of exact sums. Errors of their terms are normal numbers."""
_NO_UNIT = -(2**20)


class Addend(NamedTuple):
    """sign 2**exponent C, for C of the shape of the result."""

    c: Array
    exponent: int
    sign: int


class Sums(NamedTuple):
    """hi + mid + lo of A B + s C, and a bound of what they err by."""

    high: Array
    middle: Array
    low: Array
    err: Array


def form_for(k: int, fmt: Format) -> str:
    """The form of sums of k terms that comes first."""
    if fmt is FP32 and k <= ONE_WORD_TERMS:
        return "one word"
    return "biased" if k <= BIASED_TERMS else "two words"


def rounded_sums(
    a: Array,
    b: Array,
    fmt: Format,
    *,
    shift: int = 0,
    addend: Addend | None = None,
    result: str = "array",
    form: str | None = None,
) -> tuple[Array, Array | None]:
    """2**shift (A B + s C) rounded once, and a second array for other results.

    The result "pair" adds what is left of the sum, rounded once, 0 where the value is
    not finite. "enclosure" gives the numbers next to the exact sum instead, from below
    and above. An exact zero is +0; a negative sum that rounds to zero is -0.

    Parameters
    ----------
    a, b : arrays (batch or 1, m, k) and (batch or 1, k, n)
        float64 or float32, k at most MAX_TERMS.
    """
    with np.errstate(all="ignore"):
        is_open = np.ones(product_shape(a, b), bool)
        values = np.zeros(is_open.shape)
        second_values = np.zeros(is_open.shape)
        finite = None if addend is None else _finite(addend)

        # Sums in one or two words settle most of the values.
        if result == "array":
            form = form or form_for(a.shape[2], fmt)
            values, is_certain = quick_sums(a, b, fmt, shift, finite, form)
            is_open = ~is_certain

        # Three words settle nearly all others, and both values of a pair or enclosure.
        if is_open.any():
            settled, second_values, is_certain = sums_in_three_words(
                a, b, fmt, shift, finite, result
            )
            values = np.where(is_open, settled, values)
            is_open = is_open & ~is_certain

        # The few that are left are added as integers of all their bits.
        rows = nonfinite_vectors(a, 2)
        cols = nonfinite_vectors(b, 1)
        is_open = is_open & ~(rows | cols)
        for entry in zip(*np.nonzero(is_open), strict=True):
            values[entry], second_values[entry] = by_all_bits(
                a, b, fmt, shift, finite, result, entry
            )

        # Infinities and NaNs are those of IEEE arithmetic, which have no remainder.
        fill_nonfinite(values, a, b, rows, cols)
        if result == "enclosure":
            fill_nonfinite(second_values, a, b, rows, cols)
        if addend is not None:
            c = addend.c.astype(np.float64, copy=False)
            values = np.where(np.isfinite(c), values, values + addend.sign * c)
        if result == "pair":
            second_values = np.where(np.isfinite(values), second_values, 0.0)

        dtype = result_dtype(fmt)
        if result == "array":
            return values.astype(dtype), None
        return values.astype(dtype), second_values.astype(dtype)


def _finite(addend: Addend) -> Addend:
    """The addend in float64, with zeros for infinities and NaNs."""
    c = np.where(np.isfinite(addend.c), addend.c, 0).astype(np.float64)
    return Addend(c, addend.exponent, addend.sign)


def quick_sums(
    a: Array, b: Array, fmt: Format, shift: int, addend: Addend | None, form: str
) -> tuple[Array, Array]:
    """Values rounded once, in float64, and where that is certain."""
    start = np.zeros(product_shape(a, b))
    if addend is not None:
        signed = addend.sign * addend.c
        start = start + scale_by_power(signed, np.array(addend.exponent))
    if form == "biased":
        high, low, err = _biased_sums(a, b, start, has_addend=addend is not None)
    else:
        high, low, err = _plain_sums(a, b, start, form)

    # They are rounded where neither they nor results are near the ends of the range.
    high, low = two_sum(high, low)
    values = scale_by_power(high, np.array(shift))
    in_range = np.ones(values.shape, bool)
    for x in (high, values):
        magnitude = np.abs(x)
        in_range &= (magnitude >= 2.0**-900) & (magnitude < 2.0**1000)
    if fmt is not FP32:
        is_certain = high + (low - err) == high + (low + err)
        return values, is_certain & in_range

    # float32 is certain where both ends of an interval around the sum round alike.
    margin = err * (1.0 + 2.0**-20) + np.abs(high) * 2.0**-51
    power = np.array(shift)
    values = values.astype(np.float32)
    lower = scale_by_power(high - margin, power).astype(np.float32)
    upper = scale_by_power(high + margin, power).astype(np.float32)
    is_certain = (lower == upper) & (values != 0) & in_range
    return values.astype(np.float64), is_certain


def _plain_sums(
    a: Array, b: Array, start: Array, form: str
) -> tuple[Array, Array, Array]:
    """high, low and err of A B + start in one or two words."""
    k = a.shape[2]
    zeros = np.zeros(start.shape)
    words = start, zeros, zeros, np.abs(start)
    high, _, low, size = chained(a, b, words, form)
    if form == "one word":
        err = (k + 4.0) * _UNIT * size
    else:
        factor = (k + 5.0) * _UNIT
        err = 0.51 * factor * factor * size
    return high, low, err + (k + 1.0) * _UNDERFLOW


def _biased_sums(
    a: Array, b: Array, start: Array, *, has_addend: bool
) -> tuple[Array, Array, Array]:
    """high, low and err of A B + start in a biased word; err is NaN where the bias is
    out of range.
    """
    k = a.shape[2]
    zeros = np.zeros(start.shape)

    # 2**grid lies above all partial sums.
    grid = _biased_exponents(a, 2) + _biased_exponents(b, 1) - 2044
    grid = grid + np.zeros(start.shape, np.int64)
    if has_addend:
        grid = np.maximum(grid, _biased_exponent(start) - 1022)
    grid += ceil_log2(k + 2)
    in_range = (grid > -800) & (grid < 1000)
    bias = 3.0 * power_of_two(np.where(in_range, grid, 0))

    # What the biased word has no room for of C begins the low word.
    biased = bias + start
    low = start - (biased - bias)
    high, _, low, _ = chained(a, b, (biased, zeros, low, zeros), "biased")

    # The bias is 3 2**grid: 2**-107 of it is 1.5 times u 2**(grid - 52) / 2.
    err = (k + 1.0) * (k + 4.0) * (bias * 2.0**-107)
    err = np.where(in_range, err, np.nan)
    return high - bias, low, err + (k + 1.0) * _UNDERFLOW


def chained(
    a: Array, b: Array, words: tuple[Array, Array, Array, Array], form: str
) -> tuple[Array, Array, Array, Array]:
    """Three words and the sum of magnitudes with all terms added, one after the other.

    Two words are the first and the last.
    """
    high, middle, low, size = words
    x = a.astype(np.float64, copy=False)
    y = b.astype(np.float64, copy=False)
    for h in range(a.shape[2]):
        product, error = two_product(x[:, :, h, None], y[:, h, None, :])
        # The error of a product of float32 is 0, and one word loses that of its sum.
        if form == "one word":
            high = high + product
        elif form == "biased":
            # The word keeps its unit, so (high - s) + product is what it has not taken,
            # rounded once.
            s = high + product
            low = low + (((high - s) + product) + error)
            high = s
        else:
            high, loss = two_sum(high, product)
            if form == "two words":
                low = low + (loss + error)
            else:
                # What the high word loses goes to the middle one, what that loses to low.
                middle, loss_of_sum = two_sum(middle, loss)
                middle, loss_of_product = two_sum(middle, error)
                low = low + (loss_of_sum + loss_of_product)
        size = size + np.abs(product)
    return high, middle, low, size


def sums_in_three_words(
    a: Array, b: Array, fmt: Format, shift: int, addend: Addend | None, result: str
) -> tuple[Array, Array, Array]:
    """Both values, in float64, and where both are certain."""
    room = _ROOM if addend is None else 0
    row_scale = _scale(a, 2, room)
    column_scale = _scale(b, 1, room)
    scale = row_scale + column_scale
    sums, is_exact = _scaled_sums(a, b, addend, row_scale, column_scale)
    high, middle, low, err = sums
    exponent = scale + shift + np.zeros(high.shape, np.int64)
    values, is_certain = rounded_words(sums, is_exact, exponent, fmt)
    if result == "array":
        return values, np.zeros(high.shape), is_certain

    # What is left of the sums, in three words: it is rounded once more, or its sign
    # tells on which side of the value the sum lies.
    near = values
    if result == "enclosure":
        near = _nearest_finite(near, fmt)
    high, loss = two_sum(high, -_times_power(near, -exponent))
    middle, loss = two_sum(middle, loss)
    high, middle, low = normalised(high, middle, low + loss)
    if result == "pair":
        remainders = Sums(high, middle, low, err)
        low_values, is_low_certain = rounded_words(remainders, is_exact, exponent, fmt)
        return values, low_values, is_certain & (is_low_certain | np.isinf(values))
    margin = err * (1.0 + 2.0**-20)
    is_certain &= is_exact | (np.abs(high) - np.abs(middle) > margin)
    lower, upper = _neighbours(near, np.sign(high), fmt)
    return lower, upper, is_certain


def _scaled_sums(
    a: Array, b: Array, addend: Addend | None, row_scale: Array, column_scale: Array
) -> tuple[Sums, Array]:
    """2**-scale (A B + s C) for scale = row_scale + column_scale, in three words, and
    where they are exact.
    """
    k = a.shape[2]
    scale = row_scale + column_scale
    zeros = np.zeros(product_shape(a, b))
    start = zeros
    if addend is not None:
        exponent = addend.exponent - scale + np.zeros(zeros.shape, np.int64)
        start = zeros + _times_power(addend.sign * addend.c, exponent)
    x = a.astype(np.float64) * power_of_two(-row_scale)
    y = b.astype(np.float64) * power_of_two(-column_scale)
    words = start, zeros, zeros, np.abs(start)
    high, middle, low, size = chained(x, y, words, "three words")
    high, middle, low = normalised(high, middle, low)

    # Terms are multiples of a unit: words that stay below 2**53 of it lose nothing.
    unit_bit = _unit_bit(a, 2, row_scale) + _unit_bit(b, 1, column_scale)
    if addend is not None:
        c_bit = lowest_bit(addend.c[..., None], -1)[..., 0] + addend.exponent
        unit_bit = np.minimum(unit_bit, c_bit - scale)
    unit_bit = np.minimum(unit_bit, _LARGEST_UNIT) + np.zeros(zeros.shape, np.int64)
    has_unit = unit_bit > _LEAST_UNIT
    unit = np.where(has_unit, power_of_two(np.maximum(unit_bit, _LEAST_UNIT)), 0.0)
    factor = (k + 5.0) * _UNIT
    is_exact = factor * factor * size <= unit * 2.0**51
    is_exact &= has_unit & (np.abs(high) < 2.0**1000)
    if addend is None:
        num_terms = (a != 0).astype(np.float64) @ (b != 0).astype(np.float64)
        is_exact |= num_terms == 0

    loss = np.where(
        (row_scale > 0) | (column_scale > 0), _UNDERFLOW_OF_ENTRIES, _UNDERFLOW
    )
    err = factor * factor * factor * size + (k + 1.0) * loss
    err = np.where(is_exact, 0.0, err)
    return Sums(high, middle, low, err), is_exact


def rounded_words(
    sums: Sums, is_exact: Array, exponent: Array, fmt: Format
) -> tuple[Array, Array]:
    """Values times 2**exponent, rounded once, in float64, and where that is certain."""
    high, middle, low, err = sums
    margin = err * (1.0 + 2.0**-20)
    is_nonzero = is_exact | (np.abs(high) - np.abs(middle) > margin)
    if fmt is FP32:
        margin = margin + np.abs(high) * 2.0**-51
        values = _times_power(to_odd(high, middle), exponent).astype(np.float32)
        lower = _times_power(high - margin, exponent).astype(np.float32)
        upper = _times_power(high + margin, exponent).astype(np.float32)
        is_certain = is_exact | ((lower == upper) & is_nonzero)
        return np.where(high == 0, 0.0, values.astype(np.float64)), is_certain

    # Results below the normal numbers are rounded at the unit of a number that is added
    # and taken away again: the smallest normal number, with the sign of the sum. Their
    # sum is at most twice that number, so that its unit is that of subnormal results.
    smallest = power_of_two(np.clip(-1022 - exponent, -1022, 1023))
    is_just_below = (high == smallest) & (middle < 0)
    is_just_above = (high == -smallest) & (middle > 0)
    is_small = (np.abs(high) < smallest) | is_just_below | is_just_above
    bias = np.where(is_small, np.copysign(smallest, high), 0.0)
    high_word, low_word = two_sum(bias, high)
    low_word, loss = two_sum(low_word, middle)
    low_word, loss = two_sum(low_word, loss + low)
    margin = margin + np.abs(low_word) * 2.0**-51
    odd = to_odd(low_word, loss)
    rounded = high_word + odd
    is_same = high_word + (odd - margin) == rounded
    is_same &= high_word + (odd + margin) == rounded
    values = _times_power(rounded - bias, exponent)
    # A negative sum that rounds to zero is -0, an exact zero +0.
    values = np.where((values == 0) & (high < 0), -0.0, values)
    values = np.where(high == 0, 0.0, values)
    return values, is_exact | (is_same & is_nonzero)


def by_all_bits(
    a: Array,
    b: Array,
    fmt: Format,
    shift: int,
    addend: Addend | None,
    result: str,
    entry: tuple[Any, ...],
) -> tuple[float, float]:
    """Both values of an entry, from its exact sum."""
    from fractions import Fraction

    # The exact sum, in fractions of Python's integers.
    z, i, j = entry
    row = a[z % len(a), i].astype(np.float64).tolist()
    column = b[z % len(b), :, j].astype(np.float64).tolist()
    total = Fraction(0)
    for x, y in zip(row, column, strict=True):
        total += Fraction(x) * Fraction(y)
    if addend is not None:
        c = np.broadcast_to(addend.c, product_shape(a, b))
        total += Fraction(float(c[entry])) * addend.sign * _power(addend.exponent)
    total *= _power(shift)

    # The number that is nearest, and for a pair that of what it leaves.
    value = _nearest(total, fmt)
    if result == "array" or (result == "pair" and math.isinf(value)):
        return value, 0.0
    if result == "pair":
        return value, _nearest(total - Fraction(value), fmt)

    # The ends of an enclosure: the sign of what is left says which neighbour it takes.
    near = _nearest_finite(np.array(value), fmt)
    remainder = total - Fraction(float(near))
    side = np.array(int(remainder > 0) - int(remainder < 0))
    lower, upper = _neighbours(near, side, fmt)
    return float(lower), float(upper)


def _power(exponent: int) -> Fraction:
    """2**exponent."""
    from fractions import Fraction

    return Fraction(2) ** exponent


def _nearest(x: Fraction, fmt: Format) -> float:
    """The nearest number of the format, ties to even; -0 for what rounds to zero from
    below.
    """
    if x == 0:
        return 0.0
    # The unit of the last place, from the exponent of x.
    magnitude = abs(x)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < _power(exponent)
    unit = _power(max(exponent, fmt.emin) - fmt.t + 1)
    nearest = round(magnitude / unit) * unit
    largest = float(np.finfo(result_dtype(fmt)).max)
    value = math.inf
    if nearest <= largest:
        value = nearest.numerator / nearest.denominator
    return value if x > 0 else -value


def _nearest_finite(x: Array, fmt: Format) -> Array:
    """x, or the largest number of the format instead of an infinity."""
    largest = float(np.finfo(result_dtype(fmt)).max)
    return np.where(np.isinf(x), np.copysign(largest, x), x)


def _neighbours(near: Array, side: Array, fmt: Format) -> tuple[Array, Array]:
    """The numbers next to sums that lie on this side of their nearest number, -1, 0 or
    1.
    """
    lower, upper = neighbours(near.astype(result_dtype(fmt)), side)
    return lower.astype(np.float64), upper.astype(np.float64)


def _biased_exponent(x: Array) -> Array:
    """The biased exponents of float64 entries, without a sign."""
    bits = np.ascontiguousarray(x, np.float64).view(np.int64)
    exponents: Array = (bits >> 52) & 0x7FF
    return exponents


def _biased_exponents(x: Array, axis: int) -> Array:
    """The largest biased exponent of the vectors along an axis, which remains."""
    return _biased_exponent(x).max(axis=axis, keepdims=True, initial=0)


def _scale(x: Array, axis: int, room: int) -> Array:
    """Exponents of the powers of two that bring vectors near 2**room, with a minus
    sign.
    """
    exponents = _biased_exponents(x, axis) - 1023 - room
    return np.clip(exponents, -_LARGEST_SCALE, _LARGEST_SCALE)


def _unit_bit(x: Array, axis: int, scale: Array) -> Array:
    """Exponent of a unit of the vectors times 2**-scale; `_NO_UNIT` where entries may
    become subnormal.
    """
    bit = lowest_bit(x, axis) - scale
    return np.where(bit < -1000, _NO_UNIT, bit)


def _times_power(x: Array, e: Array) -> Array:
    """x 2**e for |e| <= 4000, rounded once where |x| >= 2**-850."""
    for i in range(4):
        x = x * power_of_two((e + i) >> 2)
    return x
