"""Sums of products in three words with a bound: |C + A B - (hi + mid + lo)| <= err.

Idea
    The operands are cut in five parts as in double_double.py. All pairs of parts on a
    diagonal i + j = d < 4 stand side by side along k, so each diagonal is one product,
    and exact. The pairs with i + j = 4 take the last part of A and what is left of B,
    and are rounded. C, the four diagonals and the rounded product are added by a
    cascade of TwoSums [ORO05, Alg. 4.8 with K = 3]: what a sum loses goes into the next
    word. Where that is nothing, and no rounded product has a nonzero term, the three
    words are the exact sum, and err is 0.
Notation
    u = 2**-53, E and F the powers of two above the entries of a row and of a column,
    beta the bits of a slice, s = 2**-(beta + 1), k at most K_CHUNK terms at a time.
Exact when
    A part is a multiple of 2**-beta s**i E, of magnitude at most s**i E, so that a
    diagonal is a sum of at most 4 k integers up to 4**beta in units of 4**-beta s**d E
    F: 4 k 4**beta <= 2**53. The units are no smaller than 2**-1022, as E and F lie
    within 2**-450 and 2**450; for others err is NaN, so that no comparison holds.
Bound
    With z terms that are not zero the rounded product errs by at most (z + 2) u
    sum_i max |a_i| sum |r_(4-i)|; z terms that underflow or are flushed, by 2**-1022
    of a factor up to 2**450, err by less than z u 2**-500. It is exact where the sum
    is at most 2**52 units, the unit of an entry being that of its row times that of its
    column: so it is for operands whose exponents lie close together. With N summands of
    M = |C| + 2 k E F at most in all, `mid` gets N errors up to u M, `lo` as many up to
    N u u M; `lo` is rounded N times, by N u N u u M each. Both constants below have
    room for the rounding of err itself.
References
    [ORO05] Ogita, Rump, Oishi: Accurate sum and dot product, doi:10.1137/030601818.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from hifigemm.base.formats import FP32, Format
from hifigemm.numerics.bits import Array, ceil_log2, lowest_bit, scale_by_power
from hifigemm.numerics.blocking import product_shape
from hifigemm.numerics.eft import two_sum
from hifigemm.numerics.subnormals import matmul

PARTS = 5
"""Parts of an operand: 53 bits and more than 50 that exponents may be apart."""
K_CHUNK = 512
"""Terms that are cut together, so that parts of rows and columns stay in the cache."""
NUM_PRODUCTS = PARTS * (PARTS + 1) // 2
"""Products of size m n k that the diagonals amount to."""
SIDE = 256
"""Rows and columns of a block of the result."""

_BETA = (53 - ceil_log2(4 * K_CHUNK)) // 2
_STEP = 2.0 ** -(_BETA + 1)
_RANGE = 450
_UNIT = 2.0**-53
_NORMAL = 2.0**-1022
_FLUSHED = 2.0**-500
"""Far more than u**-1 times what a term changes by, if it or an operand is flushed."""
_LARGEST = 2.0**1000
"""For entries of C below that no sum overflows, on which TwoSum rests."""


class Words(NamedTuple):
    """hi + mid + lo, each word the nearest float64 of itself and those behind it, and a
    bound of what they err by.
    """

    hi: Array
    mid: Array
    lo: Array
    err: Array  # 0 where the words are exact, NaN where nothing is known


class RoundedSums(NamedTuple):
    """Sums rounded as one of the kinds of `certified_sums`, and how that was done."""

    first: Array  # the nearest numbers, or those from below of an enclosure
    second: Array | None  # the remainders of a pair, or the numbers from above
    certified: Array  # True where both are certain
    reason: str
    num_products: int  # of size m n k, of the operands as they are


class CertifiedValues(NamedTuple):
    """Roundings or signs of sums, and which of them are proven to be right."""

    values: Array
    certified: Array  # bool, of the shape of the values


def certified_sums(
    a: Array, b: Array, c: Array | None, shift: int, fmt: Format, kind: str
) -> RoundedSums:
    """2**shift (A B + C) rounded to `fmt`, once, where that is certain.

    kind is "nearest"; "pair": the nearest number and that of what it leaves, 0 where it
    is infinite; or "enclosure": the numbers next to the sum, equal where it is one.
    Operands as for `sums`. Engines may have a version of their own, with the same
    certified entries or more.
    """
    words = sums(a, b, c, shift)
    first, certified = rounded(words, fmt)
    second = None
    if kind == "pair":
        is_finite = np.isfinite(first)
        # What the nearest number leaves is rounded once more.
        low, is_low_certain = rounded(remainders(words, first), fmt)
        second = np.where(is_finite, low, low.dtype.type(0))
        certified &= is_low_certain | ~is_finite
    elif kind == "enclosure":
        largest = np.finfo(first.dtype).max
        near = np.clip(first, -largest, largest)
        # The sign of what it leaves tells which neighbour is the other end.
        side, is_side_certain = signs(remainders(words, near))
        first, second = neighbours(near, side)
        certified &= is_side_certain
    reason = "operands in five parts, whose sums in three words are rounded once"
    return RoundedSums(first, second, certified, reason, NUM_PRODUCTS)


def neighbours(near: Array, side: Array) -> tuple[Array, Array]:
    """The floats below and above values that lie on this side of their nearest float,
    -1, 0 or 1; both are that float for 0.
    """
    infinity = near.dtype.type(np.inf)
    lower = np.where(side < 0, np.nextafter(near, -infinity), near)
    upper = np.where(side > 0, np.nextafter(near, infinity), near)
    return lower, upper


def sums(a: Array, b: Array, c: Array | None, shift: int = 0) -> Words:
    """2**shift (A B + C) in three words.

    Parameters
    ----------
    a, b : float32 or float64 arrays, shapes (batch or 1, m, k) and (batch or 1, k, n)
        Finite entries.
    c : float64 array, shape (batch, m, n), or None
        Finite entries.
    """
    batch, m, n = product_shape(a, b)
    words = Words(*(np.empty((batch, m, n)) for _ in Words._fields))
    for cols in _slices(n, SIDE):
        shape = batch, m, min(cols.stop, n) - cols.start
        start = np.zeros(shape) if c is None else c[:, :, cols].copy()
        total = _Total(start)
        for terms in _slices(a.shape[2], K_CHUNK):
            columns = _Columns(b[:, terms, cols])
            for rows in _slices(m, SIDE):
                total.add(rows, _Rows(a[:, rows, terms]), columns)
        block = _scaled(total.words(), shift)
        for word, values in zip(words, block, strict=True):
            word[:, :, cols] = values
    return words


def rounded(words: Words, fmt: Format) -> CertifiedValues:
    """The sums rounded once to `fmt`, FP64 or FP32, and which of them are certain.

    Exact words need no test. For others all numbers within err have to round alike.
    """
    hi, mid, lo, err = words
    is_exact = err == 0
    if fmt is not FP32:
        # mid, made odd where lo is not 0, lies on the side of each midpoint of two
        # floats on which mid + lo lies.
        odd = to_odd(mid, lo)
        values = hi + odd
        margin = err * (1.0 + 2.0**-20) + np.abs(mid) * 2.0**-51
        is_certain = hi + (odd - margin) == values
        is_certain &= hi + (odd + margin) == values
        # An exact zero is +0.
        return CertifiedValues(values + 0.0, is_exact | is_certain)

    # For the same reason hi is made odd before it is rounded to float32.
    values = (to_odd(hi, mid) + 0.0).astype(np.float32)
    margin = err * (1.0 + 2.0**-20) + np.abs(hi) * 2.0**-51
    lower = (hi - margin).astype(np.float32)
    upper = (hi + margin).astype(np.float32)
    is_certain = (lower == upper) & (values != 0)
    return CertifiedValues(values, is_exact | is_certain)


def remainders(words: Words, values: Array) -> Words:
    """The sums less their rounded values, in three words.

    hi and a finite value are so close that their difference is a float64.
    """
    hi, mid, lo, err = words
    difference = hi - values.astype(np.float64, copy=False)
    hi, mid, lo = normalised(difference, mid, lo)
    return Words(hi, mid, lo, err)


def signs(words: Words) -> CertifiedValues:
    """-1, 0 or 1, the signs of the sums."""
    hi, mid, _, err = words
    magnitude = np.abs(hi) - np.abs(mid)
    is_exact = err == 0
    is_certain = magnitude > err * (1.0 + 2.0**-20)
    return CertifiedValues(np.sign(hi), is_exact | is_certain)


def open_block(is_certain: Array) -> tuple[Any, Array, Array]:
    """Rows and columns (batch, m, n) that hold an entry that is not certain, and the
    index of the block that they make.
    """
    rows = np.flatnonzero(~is_certain.all(axis=(0, 2)))
    cols = np.flatnonzero(~is_certain.all(axis=(0, 1)))
    return np.ix_(np.arange(len(is_certain)), rows, cols), rows, cols


class _Total:
    """C and what is added to it: three words, and a bound of what they err by."""

    def __init__(self, c: Array) -> None:
        self.high = c
        self.middle = np.zeros(c.shape)
        self.low = np.zeros(c.shape)
        self.has_lost = np.zeros(c.shape, bool)
        self.magnitude = np.abs(c)
        self.err = np.where(self.magnitude < _LARGEST, 0.0, np.nan)
        self.num_summands = 1

    def add(self, row_block: slice, rows: _Rows, columns: _Columns) -> None:
        """Add the product of some rows and a chunk of the columns."""
        k = columns.k
        index = slice(None), row_block
        high = self.high[index]
        middle = self.middle[index]
        low = self.low[index]
        has_lost = self.has_lost[index]

        # The diagonals, largest first: exact products, added by a cascade.
        for d in range(PARTS - 1):
            left = rows.parts[:, :, : (d + 1) * k]
            right = columns.parts[:, (PARTS - 1 - d) * k :]
            high, error = two_sum(high, matmul(left, right, may_flush=True))
            middle, error = two_sum(middle, error)
            low, error = two_sum(low, error)
            has_lost |= error != 0

        # The last diagonal is rounded.
        last = matmul(rows.parts, columns.remainders, may_flush=True)
        middle, error = two_sum(middle, last)
        low, error = two_sum(low, error)
        has_lost |= error != 0

        self.high[index] = high
        self.middle[index] = middle
        self.low[index] = low
        self.err[index] += _last_error(rows, columns)
        self.magnitude[index] += 2 * k * np.matmul(rows.top, columns.top)
        if row_block.start == 0:
            self.num_summands += PARTS

    def words(self) -> Words:
        """The sum in three words."""
        losses = 2.0 * self.num_summands**3 * _UNIT**3 * self.magnitude
        err = self.err + np.where(self.has_lost, losses, 0.0 * self.magnitude)
        hi, mid, lo = normalised(self.high, self.middle, self.low)
        return Words(hi, mid, lo, err)


class _Rows:
    """Some rows of A in parts: a_0, a_1, ... side by side along k.

    `unit` is the power of two of which all entries of a row are multiples.
    """

    def __init__(self, x: Array) -> None:
        batch, m, k = x.shape
        self.top, x = _largest(x, 2)
        self.parts = np.empty((batch, m, PARTS * k))
        self.largest = np.empty((batch, m, PARTS))
        for i, (part, _) in enumerate(_cut(x, self.top)):
            self.parts[:, :, i * k : (i + 1) * k] = part
            self.largest[:, :, i] = np.abs(part).max(axis=2)
        self.has_terms = (self.largest > 0).astype(np.float64)
        self.unit = _unit(x, 2)


class _Columns:
    """Columns of B in parts: ..., b_1, b_0 one below the other.

    In the same order: what is left of B in front of each part, its terms that are not
    zero, and the sums of their magnitudes. `unit` is that of the columns.
    """

    def __init__(self, x: Array) -> None:
        batch, self.k, n = x.shape
        self.top, x = _largest(x, 1)
        self.parts = np.empty((batch, PARTS * self.k, n))
        self.remainders = np.empty((batch, PARTS * self.k, n))
        self.num_terms = np.empty((batch, PARTS, n))
        self.sums = np.empty((batch, PARTS, n))
        for i, (part, remainder) in enumerate(_cut(x, self.top)):
            position = PARTS - 1 - i
            terms = slice(position * self.k, (position + 1) * self.k)
            self.parts[:, terms] = part
            self.remainders[:, terms] = remainder
            self.num_terms[:, position] = np.count_nonzero(remainder, axis=1)
            self.sums[:, position] = np.abs(remainder).sum(axis=1)
        self.unit = _unit(x, 1)


def _last_error(rows: _Rows, columns: _Columns) -> Array:
    """A bound of what the rounded product errs by; 0 where it is exact, NaN where an
    exponent is out of range.
    """
    num_terms = np.matmul(rows.has_terms, columns.num_terms)
    magnitudes = np.matmul(rows.largest, columns.sums)
    unit = rows.unit * columns.unit
    # Where all units are normal numbers, nothing is subnormal.
    is_normal = (unit >= _NORMAL) & (rows.unit >= _NORMAL) & (columns.unit >= _NORMAL)
    flushed = np.where(is_normal, 0.0, _FLUSHED)
    bound = 2.0 * _UNIT * (num_terms + 2) * (magnitudes + flushed)
    # Multiples of a unit below 2**53 of it are added without rounding in any order.
    is_exact = (magnitudes <= 2.0**52 * unit) & is_normal
    is_exact |= num_terms == 0
    return np.where(is_exact, 0.0, bound) + 0.0 * rows.top * columns.top


def _largest(x: Array, axis: int) -> tuple[Array, Array]:
    """The powers of two above the entries of each vector, and the vectors in float64;
    NaN, and zeros in their place, where exponents are out of range.
    """
    x = x.astype(np.float64, copy=False)
    exponent = np.frexp(np.abs(x).max(axis=axis, keepdims=True))[1]
    is_outside = np.abs(exponent) > _RANGE
    if not is_outside.any():
        return np.ldexp(1.0, exponent), x
    largest = np.ldexp(1.0, np.where(is_outside, 0, exponent))
    return np.where(is_outside, np.nan, largest), np.where(is_outside, 0.0, x)


def _unit(x: Array, axis: int) -> Array:
    """The power of two of which the entries of a vector are multiples; a large one for
    zeros.
    """
    return np.ldexp(1.0, np.minimum(lowest_bit(x, axis), 1000))


def _cut(x: Array, largest: Array) -> Iterator[tuple[Array, Array]]:
    """Each part of x, and what is left of x in front of it; the last part is all of
    that.
    """
    # x + sigma has the unit of the grid, as |x| <= sigma / 3.
    sigma = np.where(np.isnan(largest), 1.0, largest) * (1.5 * 2.0**53 * _STEP)
    for _ in range(PARTS - 1):
        part = (x + sigma) - sigma
        yield part, x
        x = x - part
        sigma = sigma * _STEP
    yield x, x


def normalised(high: Array, middle: Array, low: Array) -> tuple[Array, Array, Array]:
    """The same sum, each word the nearest float64 of itself and those behind it."""
    middle, low = two_sum(middle, low)
    high, middle = two_sum(high, middle)
    middle, low = two_sum(middle, low)
    high, middle = two_sum(high, middle)
    return high, middle, low


def _scaled(words: Words, shift: int) -> Words:
    """The words times 2**shift; err is NaN where one of them is rounded by that."""
    if not shift:
        return words
    power = np.array(shift)
    inverse_power = np.array(-shift)
    scaled = Words(*(scale_by_power(x, power) for x in words))
    hi, mid, lo, err = scaled

    # Each word has to come back, and a bound that is not 0 must not become 0.
    is_exact = np.isfinite(hi)
    for word, scaled_word in zip(words[:3], scaled[:3], strict=True):
        is_exact &= scale_by_power(scaled_word, inverse_power) == word
    is_exact &= (err == 0) == (words.err == 0)
    return Words(hi, mid, lo, np.where(is_exact, err, np.nan))


def to_odd(x: Array, remainder: Array) -> Array:
    """x + remainder rounded to odd: x where it is exact, else its neighbour with an odd
    last bit; the remainder is below half a unit in the last place of x.
    """
    is_even = (np.ascontiguousarray(x).view(np.int64) & 1) == 0
    neighbour = np.nextafter(x, np.copysign(np.inf, remainder))
    return np.where((remainder != 0) & is_even, neighbour, x)


def _slices(n: int, length: int) -> Iterator[slice]:
    """0 .. n in steps."""
    for start in range(0, n, length):
        yield slice(start, min(start + length, n))
