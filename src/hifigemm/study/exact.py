"""Exact matrix products in integers: the arithmetic below the oracle in `reference`.

Idea
    Every finite binary float is an integer times a power of two, so with one exponent for each row of A and one for
    each column of B, A = diag(2**row_exponent) A', B = B' diag(2**col_exponent) with integer A', B', and
    (A B)_ij = (A' B')_ij 2**(row_exponent_i + col_exponent_j) holds without rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["Backend", "ExactMatrix", "integer_product", "integer_rows", "integers_and_exponents", "round_integers"]

Backend = Literal["flint", "python"]

KEPT_BITS = 62
"""Leading bits that survive before rounding, the last one sticky: more than 53 + 2, and room in an int64."""


@dataclass(frozen=True)
class ExactMatrix:
    """An m x n matrix without rounding errors: (real + i imag) * 2**(row_exponent[:, None] + col_exponent).

    Parameters
    ----------
    real : ndarray of object (Python int), shape (m, n)
    imag : ndarray of object (Python int), shape (m, n), or None
        None for a real matrix.
    row_exponent : ndarray of int64, shape (m,)
    col_exponent : ndarray of int64, shape (n,)
    """

    real: NDArray[Any]
    imag: NDArray[Any] | None
    row_exponent: NDArray[np.int64]
    col_exponent: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, int]:
        """(m, n)."""
        return self.row_exponent.size, self.col_exponent.size

    @property
    def exponent(self) -> NDArray[np.int64]:
        """Power of two that each integer is multiplied with, shape (m, n)."""
        return self.row_exponent[:, None] + self.col_exponent

    def fraction(self, i: int, j: int) -> tuple[Fraction, Fraction]:
        """Real and imaginary part of entry (i, j)."""
        scale = Fraction(2) ** int(self.row_exponent[i] + self.col_exponent[j])
        return self.real[i, j] * scale, (0 if self.imag is None else self.imag[i, j]) * scale

    def round(self, dtype: DTypeLike) -> NDArray[Any]:
        """Round each real component once, to nearest, ties to even. A real matrix may be asked for a complex dtype."""
        dtype = np.dtype(dtype)
        if self.imag is not None and dtype.kind != "c":
            raise TypeError(f"a complex matrix cannot be rounded to {dtype}")
        if dtype.kind != "c":
            return round_integers(self.real, self.exponent, dtype)
        rounded = np.zeros(self.shape, dtype)
        rounded.real = round_integers(self.real, self.exponent, rounded.real.dtype)
        if self.imag is not None:
            rounded.imag = round_integers(self.imag, self.exponent, rounded.real.dtype)
        return rounded


def integers_and_exponents(x: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (integers, exponents), both int64 and of x's shape, with x = integers * 2**exponents.

    The integers are odd or zero; the exponent of a zero is 0. x is real and finite, at most float64.
    """
    fraction, exponent = np.frexp(np.asarray(x, np.float64))
    integers = np.ldexp(fraction, 53).astype(np.int64)
    trailing_zeros = np.frexp((integers & -integers).astype(np.float64))[1] - 1
    zero = integers == 0
    trailing_zeros[zero] = 0
    return integers >> trailing_zeros, np.where(zero, 0, exponent.astype(np.int64) - 53 + trailing_zeros)


def integer_rows(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return (integers, row_exponent) with x = diag(2**row_exponent) integers.

    The exponents are the largest possible ones, so the integers are as small as they can be: the bits of a row's
    integers span only what the row itself spans. They are int64 where all fit, else Python int (dtype object).

    Parameters
    ----------
    x : ndarray of float16, float32 or float64, shape (m, k)
        Finite.
    """
    integers, exponent = integers_and_exponents(x)
    unreachable = np.iinfo(np.int64).max
    row_exponent = np.where(integers == 0, unreachable, exponent).min(axis=1, initial=unreachable)
    row_exponent[row_exponent == unreachable] = 0
    shift = np.where(integers == 0, 0, exponent - row_exponent[:, None])
    length = np.frexp(integers.astype(np.float64))[1] + shift
    if length.max(initial=0) <= 62:
        return integers << shift, row_exponent
    return integers.astype(object) << shift.astype(object), row_exponent


@cache
def default_backend() -> Backend:
    """Return "flint" where python-flint is installed, else "python". Both give the same integers."""
    return "python" if find_spec("flint") is None else "flint"


def integer_product(a: NDArray[Any], b: NDArray[Any], backend: Backend | None = None) -> NDArray[Any]:
    """Multiply integer matrices without rounding or wrapping.

    Parameters
    ----------
    a, b : ndarray of int64 or of object (Python int), shapes (m, k) and (k, n)
    backend : "flint", "python" or None
        None takes python-flint where it is installed.

    Returns
    -------
    ndarray of object (Python int), shape (m, n)
    """
    (m, k), n = a.shape, b.shape[1]
    product = np.full((m, n), 0, object)
    if 0 in (m, k, n):
        return product
    if (backend or default_backend()) == "flint":
        from flint import fmpz_mat

        exact = fmpz_mat(m, k, a.ravel().tolist()) * fmpz_mat(k, n, b.ravel().tolist())
        product.ravel()[:] = list(map(int, exact.entries()))
        return product
    return np.asarray(a.astype(object) @ b.astype(object), object)


def _leading_bits(n: int) -> tuple[int, int, int]:
    """Return (first KEPT_BITS bits of |n|, all lower ones or-ed into the last; number of dropped bits; bit length)."""
    n = abs(n)
    length = n.bit_length()
    dropped = length - KEPT_BITS
    if dropped <= 0:
        return n, 0, length
    leading = n >> dropped
    return leading | (leading << dropped != n), dropped, length


def round_integers(integers: NDArray[Any], exponent: NDArray[np.int64], dtype: DTypeLike) -> NDArray[Any]:
    """Round integers * 2**exponent once to a real dtype: to nearest, ties to even, subnormals kept, overflow to Inf.

    An exact zero gives +0; a negative value that underflows gives -0.

    Parameters
    ----------
    integers : ndarray of object (Python int)
    exponent : ndarray of int64, same shape
    dtype : float16, float32 or float64
    """
    info = np.finfo(np.dtype(dtype))
    t, smallest_exponent = info.nmant + 1, info.minexp - info.nmant
    leading_bits = [_leading_bits(n) for n in integers.ravel()]
    leading, dropped, length = np.array(leading_bits, np.int64).reshape(-1, 3).T
    low_exponent = exponent.ravel() + dropped
    unit_exponent = np.maximum(exponent.ravel() + length - t, smallest_exponent)
    # A shift of 63 stands for all longer ones: leading < 2**62 is below half a unit then, and rounds to zero.
    shift = np.clip(unit_exponent - low_exponent, 0, 63)
    quotient = leading >> shift
    rest = leading - (quotient << shift)
    half = np.int64(1) << np.maximum(shift - 1, 0)
    quotient += (rest > half) | ((rest == half) & (quotient % 2 == 1))
    with np.errstate(over="ignore"):
        # Exact in float64 for every dtype here, up to the overflow that is meant to happen.
        scale = np.where(shift == 0, low_exponent, unit_exponent)
        magnitude = np.ldexp(quotient.astype(np.float64), scale.astype(np.int32)).astype(dtype)
    negative = np.array([n < 0 for n in integers.ravel()], bool)
    return np.where(negative, -magnitude, magnitude).reshape(integers.shape)
