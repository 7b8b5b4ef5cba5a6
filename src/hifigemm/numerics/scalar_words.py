"""s X as an exact sum of words, for a scalar s that is no power of two.

Idea
    s = M 2**e with an odd integer M of at most 53 bits. Dekker's product gives
    M 2**-d x = p + q exactly for an entry x, so that s X = (P + Q) 2**(e + d). A complex
    s is the sum of its components, the second of which turns X by i.
Exact when
    X is a multiple of 2**l, and l - d >= -1074: nothing is lost below, as M is an
    integer. p and the halves of x stay below 2**1024. If the largest entries need a
    division that the smallest ones do not bear, entries of magnitude 1 and more get
    words apart from the others.
Cost
    Two words for each component of s, one where M x needs no second word, twice as many
    for matrices of the whole range.
References
    [ORO05] Ogita, Rump, Oishi: Accurate sum and dot product, SISC 26 (2005),
    doi:10.1137/030601818, for the product.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import numpy as np

from hifigemm.numerics.bits import Array, lowest_bit, real_components, scale_entries
from hifigemm.numerics.eft import two_product

_LEAST_EXPONENT = -1074
"""Exponent of the smallest float64."""
_TOP = 1020
"""Products stay below 2**1020, which leaves room for the sums of Dekker's product."""
_SPLITTER_BITS = 28
"""The halves of an entry are made from its product with 2**27 + 1."""
_ANYWHERE = 10_000
"""Powers of two by which zeros can be multiplied: more than any matrix allows."""


class Word(NamedTuple):
    """The matrix x 2**exponent."""

    x: Array
    exponent: int


def words_of_multiple(s: complex, x: Array) -> list[Word]:
    """Words that sum to s X exactly.

    s is finite, X finite, of float64 or complex128, and s is real where X is. s = 0 has
    no words.
    """
    words = []
    if s.real != 0:
        words += _words_of_real_multiple(s.real, x)
    if s.imag != 0:
        words += _words_of_real_multiple(s.imag, _times_i(x))
    return words


def _words_of_real_multiple(s: float, x: Array) -> list[Word]:
    """Words of s X for a real s that is not 0."""
    numerator, denominator = s.as_integer_ratio()
    trailing_zeros = (numerator & -numerator).bit_length() - 1
    mantissa = numerator >> trailing_zeros
    exponent = trailing_zeros - (denominator.bit_length() - 1)
    if abs(mantissa) == 1:
        return [Word(x if mantissa > 0 else -x, exponent)]

    # X and M can be divided by 2**room in all before a bit is lost. X is where halves of
    # its entries would overflow, M so that words are of the size of X and do not either.
    components = real_components(x)
    down, up = powers_in_range(components)
    room = -down
    of_x = max(_SPLITTER_BITS - up, 0)
    bits = mantissa.bit_length()
    of_m = min(bits - 1, room - of_x)
    if of_m < max(bits + 1024 - _TOP - up - of_x, 0):
        is_large = np.abs(components) >= 1.0
        parts = np.where(is_large, components, 0.0), np.where(is_large, 0.0, components)
        split = [part.view(x.dtype).reshape(x.shape) for part in parts]
        return [word for part in split for word in _words_of_real_multiple(s, part)]
    if of_x:
        components = scale_entries(components, -of_x)

    factor = np.float64(math.ldexp(mantissa, -of_m))
    product, error = two_product(cast(Array, factor), components)
    exponent += of_x + of_m
    needed = [product, error] if (error != 0).any() else [product]
    return [Word(part.view(x.dtype).reshape(x.shape), exponent) for part in needed]


def powers_in_range(x: Array) -> tuple[int, int]:
    """The least and the largest e for which x 2**e loses no bit and does not overflow."""
    components = real_components(x).reshape(-1)
    largest = float(np.abs(components).max(initial=0))
    if largest == 0.0:
        return -_ANYWHERE, _ANYWHERE
    _, top = np.frexp(largest)
    lowest = int(lowest_bit(components, 0)[0])
    return _LEAST_EXPONENT - lowest, 1024 - int(top)


def sum_by_integers(
    alpha: complex,
    a: Array,
    b: Array,
    beta: complex,
    c: Array | None,
    *,
    to_odd: bool = False,
) -> Array:
    """alpha a b + beta c rounded once, to nearest or to odd, by Python's integers; for
    matrices so far apart that no float64 words hold their multiples.

    a (batch or 1, m, k), b (batch or 1, k, n) and c (batch, m, n) are of float64 or
    complex128, and finite.
    """
    a_re, a_im = _integers(a.real), _integers(a.imag)
    b_re, b_im = _integers(b.real), _integers(b.imag)
    t = (
        np.matmul(a_re, b_re) - np.matmul(a_im, b_im),
        np.matmul(a_re, b_im) + np.matmul(a_im, b_re),
    )
    re, im = _times(alpha, t)
    if c is not None:
        unit = 1 << -_LEAST_EXPONENT
        of_c = _times(beta, (_integers(c.real) * unit, _integers(c.imag) * unit))
        re = re + of_c[0]
        im = im + of_c[1]

    # All integers are in units of 2**-1074 for each of their three factors.
    rounded = _odd_quotients if to_odd else _quotients
    values = np.empty(re.shape, a.dtype)
    values.real = rounded(re, 1 << -3 * _LEAST_EXPONENT)
    if a.dtype.kind == "c":
        values.imag = rounded(im, 1 << -3 * _LEAST_EXPONENT)
    return values


def _times(s: complex, x: tuple[Array, Array]) -> tuple[Array, Array]:
    """The real and the imaginary part of s x 2**1074, all in integers."""
    s_re, s_im = _integer(s.real), _integer(s.imag)
    re, im = x
    return s_re * re - s_im * im, s_re * im + s_im * re


def _integer(x: float) -> int:
    """x 2**1074."""
    numerator, denominator = float(x).as_integer_ratio()
    return numerator << -_LEAST_EXPONENT >> (denominator.bit_length() - 1)


_integers = np.frompyfunc(_integer, 1, 1)
"""Entries times 2**1074, as Python's integers."""


@np.vectorize(otypes=[np.float64])
def _quotients(numerator: int, denominator: int) -> float:
    """The quotient rounded once, as Python rounds it."""
    try:
        return numerator / denominator
    except OverflowError:
        return np.inf if numerator > 0 else -np.inf


@np.vectorize(otypes=[np.float64])
def _odd_quotients(numerator: int, denominator: int) -> float:
    """The quotient by a power of two, rounded to odd: to the neighbour among float64
    whose last bit is odd, where it is no float64.
    """
    magnitude = abs(numerator)
    excess = magnitude.bit_length() - 53
    # No bit below 2**-1074 is left, and 53 bits at most.
    excess = max(excess, denominator.bit_length() - 1 + _LEAST_EXPONENT, 0)
    significand = magnitude >> excess
    if significand << excess != magnitude:
        significand |= 1
    try:
        rounded = (significand << excess) / denominator
    except OverflowError:
        rounded = np.inf
    return -rounded if numerator < 0 else rounded


def _times_i(x: Array) -> Array:
    """i X without a product."""
    turned = np.empty(x.shape, x.dtype, like=x)
    components = turned.view(x.real.dtype)
    components[..., 0::2] = -x.imag
    components[..., 1::2] = x.real
    return turned
