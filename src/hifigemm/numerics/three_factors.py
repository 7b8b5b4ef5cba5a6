"""Rounding of A B C once: from sums whose error is bounded, and from integers.

Idea
    D = high + low + t with |t| <= bound. Rounding is monotone: where both ends of that
    interval round to one number, D does [Ziv91]. Entries that no bound settles are sums
    of integers, as each factor is integers times one power of two.
Exact when
    Sums of two numbers are rounded once, to nearest, and do not overflow. `bound` has
    room for the rounding of low -+ bound: at least 2 u |low|, or low and bound are 0.
    For results on a coarser grid, those of float32 and subnormal ones, the ends are
    rounded outwards first, so that the interval only grows.
References
    [Ziv91] Ziv: Fast evaluation of elementary mathematical functions with correctly
    rounded last bit, doi:10.1145/114697.116813.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hifigemm.numerics.bits import Array, real_components
from hifigemm.numerics.eft import two_sum

_LEADING_BITS = -1 << 39
"""Sign, exponent and the 13 stored bits that lead a significand of float64."""
_FEWER_BITS = 2.0**-1021
"""Below twice the smallest normal number, results may have fewer than 53 bits."""


class Grid(NamedTuple):
    """Where results are rounded: numbers x of float64 stand for x 2**exponent."""

    exponent: int
    dtype: Any  # float32 or float64, of real components

    def rounded(self, x: Array) -> Array:
        """x 2**exponent, rounded once where that is a float64 or rounds to float32."""
        scaled = np.ldexp(x, np.array(self.exponent)) if self.exponent else x
        return scaled.astype(self.dtype, copy=False)

    def has_all_bits(self, values: Array) -> Array:
        """True for results that hold all 53 bits of the numbers that round to them."""
        if self.dtype != np.float64:
            return np.zeros(values.shape, bool, like=values)
        if self.exponent == 0:
            return np.ones(values.shape, bool, like=values)
        return np.abs(values) >= _FEWER_BITS

    def same(
        self, lower: tuple[Array, Array], upper: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """Two sums of float64 numbers, lower <= upper, rounded to results, and True
        where these have the same bits.
        """
        first = self.rounded(lower[0] + lower[1])
        last = self.rounded(upper[0] + upper[1])
        has_all_bits = self.has_all_bits(first) & self.has_all_bits(last)
        if not has_all_bits.all():
            outer_first = self.rounded(_outwards(*lower, -np.inf))
            outer_last = self.rounded(_outwards(*upper, np.inf))
            first = np.where(has_all_bits, first, outer_first)
            last = np.where(has_all_bits, last, outer_last)
        bits = np.int32 if self.dtype == np.float32 else np.int64
        is_certain = (first.view(bits) == last.view(bits)) & (first == first)
        return first, is_certain


def leading_bits(x: Array) -> Array:
    """Real numbers cut to 14 bits; 0 for Inf and NaN."""
    cut = (x.view(np.int64) & _LEADING_BITS).view(np.float64)
    return np.where(np.isfinite(cut), cut, 0.0)


def rounded_within(
    high: Array, low: Array, bound: Array, grid: Grid
) -> tuple[Array, Array]:
    """The results to which high + low rounds, and True where all numbers within `bound`
    of it do.

    See "Exact when" for what `bound` has room for.
    """
    return grid.same((high, low - bound), (high, low + bound))


def _outwards(x: Array, y: Array, end: float) -> Array:
    """x + y, rounded towards -Inf or Inf."""
    total, error = two_sum(x, y)
    is_short = error < 0 if end < 0 else error > 0
    return np.where(is_short, np.nextafter(total, end), total)


class _Integers(NamedTuple):
    """Real components as integers of Python: x = parts 2**exponent."""

    parts: list[Array]  # re, and im of complex numbers
    exponent: int


def _integers(x: Array) -> _Integers:
    """Finite float64 or complex128 numbers as integers."""
    components = real_components(x)
    mantissas, exponents = np.frexp(components)
    is_zero = components == 0
    exponents = np.where(is_zero, 0, exponents.astype(np.int64) - 53)
    lowest = int(exponents.min(initial=0, where=~is_zero))
    shifts = np.where(is_zero, 0, exponents - lowest).astype(object)
    integers = np.ldexp(mantissas, 53).astype(np.int64).astype(object) << shifts
    if x.dtype.kind != "c":
        return _Integers([integers], lowest)
    return _Integers([integers[..., 0::2], integers[..., 1::2]], lowest)


def _dot(x: list[Any], y: list[Any]) -> list[Any]:
    """x y of arrays of integers given by their real components."""
    if len(x) == 1:
        return [x[0] @ y[0]]
    (a, b), (c, d) = x, y
    return [a @ c - b @ d, a @ d + b @ c]


class ExactProducts:
    """Entries of (A B) C by integers.

    Parameters
    ----------
    a, b, c : float64 or complex128 arrays, shapes (p, m, k), (p, k, l), (q, h, n)
        Finite entries; p and q matrices.
    middle : int array, shape (q, r, h)
        The entry of A B, counted in (p, m, l), that stands at each place of the left
        factor of the second product.
    """

    def __init__(self, a: Array, b: Array, c: Array, middle: Array) -> None:
        self._a, self._b, self._c = (_integers(x) for x in (a, b, c))
        self._shape = len(a), a.shape[1], b.shape[2]
        self._middle = middle
        self._entries: dict[tuple[int, int], dict[int, list[Any]]] = {}

    def components(self, matrix: int, row: int, col: int) -> list[tuple[int, int]]:
        """Real components of an entry as (integer, exponent): integer 2**exponent."""
        places = self._middle[matrix, row]
        num_parts = len(self._a.parts)
        left: list[Any] = [np.empty(len(places), object) for _ in range(num_parts)]
        for i, entry in enumerate(self._entries_of(places)):
            for part, value in zip(left, entry, strict=True):
                part[i] = value
        right = [part[matrix, :, col] for part in self._c.parts]
        exponent = self._a.exponent + self._b.exponent + self._c.exponent
        return [(int(value), exponent) for value in _dot(left, right)]

    def _entries_of(self, places: Array) -> list[list[Any]]:
        """The entries of A B at these places."""
        matrices, rows, cols = np.unravel_index(places, self._shape)
        entries = []
        for matrix, row, col in zip(
            matrices.tolist(), rows.tolist(), cols.tolist(), strict=True
        ):
            entries.append(self._row(matrix, row, matrices, rows, cols)[col])
        return entries

    def _row(
        self, matrix: int, row: int, matrices: Array, rows: Array, cols: Array
    ) -> dict[int, list[Any]]:
        """The entries of a row of A B, those at the given places at least."""
        entries = self._entries.setdefault((matrix, row), {})
        in_row = (matrices == matrix) & (rows == row)
        missing = [x for x in sorted(set(cols[in_row].tolist())) if x not in entries]
        if missing:
            left = [part[matrix, row] for part in self._a.parts]
            right = [part[matrix][:, missing] for part in self._b.parts]
            values = _dot(left, right)
            for i, col in enumerate(missing):
                entries[col] = [part[i] for part in values]
        return entries


def nearest(integer: int, exponent: int, dtype: Any) -> float:
    """integer 2**exponent, rounded once to float32 or float64, ties to even.

    A zero has the sign of what rounds to it; 0 itself gives +0.
    """
    fmt = np.finfo(dtype)
    if integer == 0:
        return 0.0
    magnitude = abs(integer)

    # The last place of the result, and what lies below it.
    top = magnitude.bit_length() + exponent
    unit = max(top - fmt.nmant - 1, int(fmt.minexp) - fmt.nmant)
    drop = unit - exponent
    if drop > 0:
        half = 1 << (drop - 1)
        quotient = magnitude >> drop
        remainder = magnitude & ((1 << drop) - 1)
        quotient += remainder > half or (remainder == half and quotient & 1)
    else:
        quotient = magnitude << -drop
    value = float("inf")
    if quotient.bit_length() + unit <= fmt.maxexp:
        value = float(np.ldexp(float(quotient), unit))
    return value if integer > 0 else -value
