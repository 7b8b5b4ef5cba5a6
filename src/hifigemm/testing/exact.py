"""Exact matrix products in integers, their rounding, and errors held against them: the
arithmetic of `reference`.

Idea
    Every finite binary float is an integer times a power of two, so with one exponent
    for each row of A and one for each column of B, A = diag(2**row_exponent) A', B = B'
    diag(2**col_exponent) with integer A', B', and (A B)_ij = (A' B')_ij
    2**(row_exponent_i + col_exponent_j) holds without rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

Backend = Literal["flint", "python"]

Excess = tuple[int, int]
"""A nonnegative error and the |A||B| that it is held against, both times the same
positive number.
"""


@dataclass(frozen=True)
class ExactMatrix:
    """An m x n matrix without rounding errors.

    It is ``(real + 1j * imag) * 2**(row_exponent[:, None] + col_exponent)``.

    Attributes
    ----------
    real, imag : array of Python integers
        imag is None for a real matrix.
    row_exponent, col_exponent : array of int64
        Shapes (m,) and (n,).
    """

    real: NDArray[Any]
    imag: NDArray[Any] | None
    row_exponent: NDArray[np.int64]
    col_exponent: NDArray[np.int64]

    @property
    def exponent(self) -> NDArray[np.int64]:
        """The exponent of the power of two that scales each integer, shape (m, n)."""
        return self.row_exponent[:, None] + self.col_exponent

    @property
    def parts(self) -> list[NDArray[Any]]:
        """The integers of each real component."""
        return [self.real] if self.imag is None else [self.real, self.imag]

    def fraction(self, i: int, j: int) -> tuple[Fraction, Fraction]:
        """Real and imaginary part of entry (i, j)."""
        scale = Fraction(2) ** int(self.row_exponent[i] + self.col_exponent[j])
        imag = 0 if self.imag is None else self.imag[i, j]
        return self.real[i, j] * scale, imag * scale

    def round(self, dtype: DTypeLike) -> NDArray[Any]:
        """Round each real component once, to nearest, ties to even. For a complex
        matrix the dtype is complex.
        """
        rounded = np.empty(self.exponent.shape, dtype)
        for part, integers in zip(components(rounded), self.parts, strict=True):
            part[...] = round_integers(integers, self.exponent, part.dtype)
        return rounded

    def subtracted_from(self, c: NDArray[Any]) -> NDArray[Any]:
        """Return c - this matrix, rounded once to float64 (complex128). c is finite,
        and complex if this matrix is.
        """
        difference = np.empty(c.shape, np.result_type(c, np.float64))
        pairs = zip(components(difference), components(c), strict=True)
        for (target, part), integers in zip(pairs, self.parts, strict=True):
            # Both terms at the lower one of their exponents.
            c_integers, c_exponent = integers_and_exponents(part)
            low = np.minimum(c_exponent, self.exponent)
            c_shift = (c_exponent - low).astype(object)
            shift = (self.exponent - low).astype(object)
            aligned = (c_integers.astype(object) << c_shift) - (integers << shift)
            target[...] = round_integers(aligned, low, np.float64)
        return difference


def components(x: NDArray[Any]) -> list[NDArray[Any]]:
    """The real components of an array: itself, or its real and its imaginary part."""
    return [x.real, x.imag] if x.dtype.kind == "c" else [x]


def integers_and_exponents(
    x: NDArray[Any],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (integers, exponents), both int64 and of x's shape, with
    x = integers * 2**exponents.

    The integers are odd or zero; the exponent of a zero is 0. x is real and finite, at
    most float64.
    """
    fraction, exponent = np.frexp(np.asarray(x, np.float64))
    integers = np.ldexp(fraction, 53).astype(np.int64)
    is_zero = integers == 0
    lowest_bit = (integers & -integers).astype(np.float64)
    trailing_zeros = np.frexp(lowest_bit)[1] - 1
    trailing_zeros[is_zero] = 0
    exponents = exponent.astype(np.int64) - 53 + trailing_zeros
    return integers >> trailing_zeros, np.where(is_zero, 0, exponents)


def integer_rows(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return (integers, row_exponent) with x = diag(2**row_exponent) integers, for
    finite real x of shape (m, k).

    The exponents are the largest possible ones, so the integers are as small as they
    can be: the bits of a row's integers span only what the row itself spans. They are
    int64 where all fit, else Python int (dtype object).
    """
    integers, exponent = integers_and_exponents(x)
    is_zero = integers == 0

    # The lowest exponent of each row; 0 for rows of zeros.
    unreachable = np.iinfo(np.int64).max
    exponent_or_none = np.where(is_zero, unreachable, exponent)
    row_exponent = exponent_or_none.min(axis=1, initial=unreachable)
    row_exponent[row_exponent == unreachable] = 0

    shift = np.where(is_zero, 0, exponent - row_exponent[:, None])
    length = np.frexp(integers.astype(np.float64))[1] + shift
    if length.max(initial=0) <= 62:
        return integers << shift, row_exponent
    return integers.astype(object) << shift.astype(object), row_exponent


def integer_product(
    a: NDArray[Any], b: NDArray[Any], backend: Backend | None = None
) -> NDArray[Any]:
    """Multiply matrices of int64 or Python int without rounding or wrapping: an array
    of Python int (dtype object).

    The backend None takes python-flint where it is installed.
    """
    m, k = a.shape
    n = b.shape[1]
    product = np.full((m, n), 0, object)
    if 0 in (m, k, n):
        return product
    if backend == "flint" or (backend is None and find_spec("flint") is not None):
        from flint import fmpz_mat

        left = fmpz_mat(m, k, a.ravel().tolist())
        right = fmpz_mat(k, n, b.ravel().tolist())
        exact = left * right
        product.ravel()[:] = list(map(int, exact.entries()))
        return product
    return np.asarray(a.astype(object) @ b.astype(object), object)


def round_integers(
    integers: NDArray[Any], exponent: NDArray[np.int64], dtype: DTypeLike
) -> NDArray[Any]:
    """Round integers * 2**exponent once to a real dtype: to nearest, ties to even,
    subnormals kept, overflow to Inf.

    An exact zero gives +0; a negative value that underflows gives -0.
    """
    dtype = np.dtype(dtype)

    def nearest(n: int, e: int) -> float:
        dropped = abs(n).bit_length() - 53
        if dtype != np.float64 and dropped > 0:
            # Rounded to odd at 53 bits: the rounding to a format with two bits less
            # than that decides all by itself.
            magnitude = abs(n) >> dropped
            magnitude |= magnitude << dropped != abs(n)
            n = magnitude if n > 0 else -magnitude
            e += dropped
        try:
            # both are rounded once by Python
            return n / (1 << -e) if e < 0 else float(n << e)
        except OverflowError:
            return math.inf if n > 0 else -math.inf

    numerators = integers.ravel().tolist()
    exponents = exponent.ravel().tolist()
    values = list(map(nearest, numerators, exponents))
    with np.errstate(over="ignore"):
        return np.array(values, np.float64).reshape(integers.shape).astype(dtype)


def ratio(excess: Excess) -> float:
    """Return the excess as a float64: 0/0 is 0, x/0 is Inf."""
    numerator, denominator = excess
    if numerator <= 0:
        return 0.0
    try:
        return numerator / denominator
    except (ZeroDivisionError, OverflowError):
        return float("inf")


def excesses(
    c: NDArray[Any],
    integers: NDArray[Any],
    sizes: NDArray[Any],
    exponent: NDArray[np.int64],
    rounding: bool,
) -> Iterator[Excess]:
    """Yield an excess for each entry of the real c: of its error against
    v = integers * 2**exponent.

    |A||B| is sizes * 2**exponent. NaN errs without limit, an infinity by what v lacks
    of the threshold from which on it rounds to infinity. `rounding` forgives
    max(u |v|, half the smallest subnormal) of c's dtype.
    """
    info = np.finfo(c.dtype)
    t = info.nmant + 1
    smallest_exponent = info.minexp - info.nmant
    threshold = (2 << t) - 1, int(info.maxexp) - t - 1

    c_integers, c_exponent = integers_and_exponents(np.where(np.isfinite(c), c, 0))
    columns = (c, c_integers, c_exponent, integers, sizes, exponent)
    lists = [x.ravel().tolist() for x in columns]
    # The entry m 2**e of c, the exact value n 2**g and its |A||B|, size 2**g.
    for value, m, e, n, size, g in zip(*lists, strict=True):
        if math.isnan(value):
            yield 1, 0
            continue

        # An infinity stands for the threshold, beyond which no value is wrong.
        is_infinite = math.isinf(value)
        if is_infinite:
            m, e = threshold
            n = n if value > 0 else -n
        allowance = 0
        allowance_exponent = g
        if rounding and not is_infinite:
            allowance, allowance_exponent = _last_rounding(n, g, t, smallest_exponent)

        # The error less the allowance, in units of the lowest of the exponents.
        low = min(e if m else g, g, allowance_exponent)
        error = -(n << g - low)
        if m:
            error += m << e - low
        if not is_infinite:
            error = abs(error)
        error -= allowance << allowance_exponent - low
        yield max(error, 0), size << g - low


def _last_rounding(n: int, g: int, t: int, smallest_exponent: int) -> tuple[int, int]:
    """max(u |v|, half the smallest subnormal) for v = n 2**g: an integer and the
    exponent of its power of two.
    """
    is_subnormal = n == 0 or g + n.bit_length() <= smallest_exponent + t - 1
    if is_subnormal:
        return 1, smallest_exponent - 1
    return abs(n), g - t
