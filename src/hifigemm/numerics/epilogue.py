"""alpha T + beta C for a product T that is already rounded.

Idea
    Every product of a scalar and an entry is made with its error, and so is every sum;
    the errors are added at last.
Exact when
    Never; the result errs by half a unit in its last place and terms of second order.
Error
    Let n <= 4 be the number of products s_i x_i of an entry, M the sum of their
    magnitudes and u = 2**-53. Products and sums are made with their errors, which are
    added with rounding: that errs by u |result| + n**2 u**2 M at most, Dot2 of [ORO05],
    and by four of the smallest subnormal numbers for each product below 2**-969, whose
    error underflows.
Two ways
    Halves of a factor from 2**996 on, products and sums may overflow though the result
    does not. Their infinities reach the result or make it NaN, so that an entry that is
    finite by the first way has the error above. An entry that is not goes the second
    way: scalars become their mantissas, entries are multiplied by the power of two that
    gives the largest product of this entry a magnitude of 2**958 to 2**960, and the sum
    by the inverse power. Then no half (2**987), product or sum (2**962) overflows.
    Multiplication by powers of two is exact but where a number becomes subnormal: what
    the products lose so lies below 2**-2030 M, and the sum is rounded once more only
    where the result is subnormal. Other entries have no part in the power, so that no
    scalar, however large, costs an entry its digits.
References
    [ORO05] Ogita, Rump, Oishi: Accurate sum and dot product, SISC 26 (2005),
    doi:10.1137/030601818.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import cast

import numpy as np

from hifigemm.numerics.bits import Array, power_of_two, scale_entries
from hifigemm.numerics.blocking import parts_of
from hifigemm.numerics.eft import two_product, two_sum
from hifigemm.numerics.embedding import unembed

_RAISED = 960
"""Exponent of the largest product of an entry in the second way."""
_ZERO = -4000
"""Exponent of a product that is 0: below that of every other one."""
_MODERATE = 30
_LOWEST = -1000
"""Exponent down to which a scalar takes a power of two; entries take what is left."""

Term = tuple[float, Array]


def frexp(alpha: complex) -> tuple[complex, int]:
    """(mantissa, exponent) with alpha = mantissa 2**exponent exactly, the larger
    component of the mantissa in [1, 2).

    The exponent is 0 where no such pair is exact, and for 0, Inf and NaN. Mantissas of
    NumPy lie in [1/2, 1) instead.
    """
    parts = (alpha.real, alpha.imag)
    largest = max(map(abs, parts))
    if largest == 0 or not all(map(math.isfinite, parts)):
        return alpha, 0
    exponent = math.frexp(largest)[1] - 1
    scaled = [math.ldexp(x, -exponent) for x in parts]
    if any(math.ldexp(x, exponent) != y for x, y in zip(scaled, parts, strict=True)):
        return alpha, 0
    return (complex(*scaled) if isinstance(alpha, complex) else scaled[0]), exponent


@dataclass(frozen=True)
class Epilogue:
    """alpha T + beta C, done to a product T that is already rounded."""

    alpha: complex = 1.0
    beta: complex = 0.0
    c: Array | None = None  # of the shape of T; None where beta is 0

    @property
    def idle(self) -> bool:
        """T is the result."""
        return self.alpha == 1.0 and self.c is None

    def times_power(self, e: int) -> Epilogue:
        """The same of T 2**-e, for a T that is not scaled yet."""
        re, im = math.ldexp(self.alpha.real, e), math.ldexp(self.alpha.imag, e)
        return replace(
            self, alpha=complex(re, im) if isinstance(self.alpha, complex) else re
        )

    def of_c_times_power(self, e: int) -> Epilogue:
        """The same of C 2**e with e <= 0; C takes what would make beta subnormal."""
        if self.c is None:
            return self
        exponent = math.frexp(max(abs(self.beta.real), abs(self.beta.imag)))[1]
        kept = max(e, min(_LOWEST - exponent, 0))
        re, im = math.ldexp(self.beta.real, kept), math.ldexp(self.beta.imag, kept)
        beta = complex(re, im) if isinstance(self.beta, complex) else re
        return replace(self, beta=beta, c=scale_entries(self.c, e - kept))

    @property
    def is_moderate(self) -> bool:
        """Both scalars are real and near 1, or 0: kernels then take the second way with
        the scalars as they are.
        """
        return all(
            not isinstance(x, complex)
            and (x == 0 or 2.0**-_MODERATE <= abs(x) <= 2.0**_MODERATE)
            for x in (self.alpha, self.beta)
        )

    def apply(self, t: Array) -> Array:
        """alpha t + beta c in the memory of a stack t (batch, m, n): see `combine`."""
        if not self.idle:
            for part in parts_of(t):
                t[part] = combine(
                    t[part],
                    self.alpha,
                    None if self.c is None else self.c[part],
                    self.beta,
                )
        return t

    def without_product(self, t: Array) -> Array:
        """beta c in the memory of zeros t, where there is no product: -0 stays what it
        is for beta = 1.
        """
        if self.c is not None:
            for part in parts_of(t):
                t[part] = combine(self.c[part], self.beta, None, 0.0, zero=-0.0)
        return t


PLAIN = Epilogue()


def combine(
    t: Array, alpha: complex, c: Array | None, beta: complex, zero: float = 0.0
) -> Array:
    """alpha t + beta c in the dtype of t; c broadcasts to its shape.

    Made with the errors of all products and sums, in float64, so that every real
    component is rounded with an error of little more than half a unit in its last place
    (float32: rounded once more). Scalars, and components of them, that are 0 do not
    read what they multiply. Finite entries and scalars never give NaN. A zero alpha t
    is +0; with `zero` = -0.0 it keeps its sign.
    """
    real = t.real.dtype
    with np.errstate(all="ignore"):
        y = (
            None
            if c is None
            else np.array(
                np.broadcast_to(c, t.shape), t.dtype, order="C", ndmin=1, like=t
            )
        )
        x = np.ascontiguousarray(t, like=t)
        if not (isinstance(alpha, complex) or isinstance(beta, complex)):
            entries = [z.view(real).astype(np.float64) for z in (x, y) if z is not None]
            terms = [
                (s, z) for s, z in zip((alpha, beta), entries, strict=False) if s != 0
            ]
            found = _sum_of_products(terms, entries[0], zero)
        else:
            re: list[Term] = []
            im: list[Term] = []
            for s, z in ((alpha, x), (beta, y)):
                if z is not None:
                    first, second = z.real.astype(np.float64), z.imag.astype(np.float64)
                    re += [(s.real, first), (-s.imag, second)]
                    im += [(s.real, second), (s.imag, first)]
            found = np.empty((*x.shape, 2), like=x.real)
            for i, terms in enumerate((re, im)):
                found[..., i] = _sum_of_products(
                    [term for term in terms if term[0] != 0], re[0][1], zero
                )
            found = found.reshape(*x.shape[:-1], 2 * x.shape[-1])
        found = found.astype(real)
        return (found if t.dtype == real else unembed(found)).reshape(t.shape)


def _sum_of_products(terms: Sequence[Term], like: Array, zero: float) -> Array:
    """The sum of s x over all terms (s, x) with its error; zeros of the shape of `like`
    for none.
    """
    if not terms:
        return np.zeros(like.shape, like=like)
    if len(terms) == 1:
        return terms[0][0] * terms[0][1] + zero
    if not all(math.isfinite(s) for s, _ in terms):
        return reduce(np.add, [s * x for s, x in terms])
    near = _compensated(terms)
    finite = np.isfinite(near)
    if isinstance(near, np.ndarray) and finite.all():
        return near
    known = reduce(np.bitwise_and, [np.isfinite(x) for _, x in terms])
    # Beside an infinity what is finite counts for nothing, even if its product
    # overflows.
    endless = reduce(np.add, [np.where(np.isfinite(x), 0.0, s * x) for s, x in terms])
    return np.where(finite, near, np.where(known, _scaled_sum(terms), endless))


def _scaled_sum(terms: Sequence[Term]) -> Array:
    """The sum of s x over all terms, with a power of two for each entry that keeps its
    largest product in range.
    """
    # The exponent of each product, and of the largest one of each entry.
    mantissas: list[tuple[float, Array]] = []
    exponents: list[Array] = []
    for s, x in terms:
        scalar, scalar_exponent = math.frexp(s)
        entries, entry_exponents = np.frexp(x)
        mantissas.append((scalar, entries))
        exponents.append(
            np.where(x == 0, _ZERO, entry_exponents.astype(np.int64) + scalar_exponent)
        )
    top = reduce(np.maximum, exponents)

    # The sum of products that are scaled alike, and the inverse power at last.
    scaled = [
        (scalar, _times_power(entries, exponent - top + _RAISED))
        for (scalar, entries), exponent in zip(mantissas, exponents, strict=True)
    ]
    return _times_power(_compensated(scaled), top - _RAISED)


def _times_power(x: Array, e: Array) -> Array:
    """x 2**e for e up to 2046, rounded once; below 2**-2044 nothing is left of any x up
    to 2**969.
    """
    e = np.maximum(e, -2044)
    half = e >> 1
    return x * power_of_two(half) * power_of_two(e - half)


def _compensated(terms: Sequence[Term]) -> Array:
    (value, low), *rest = (two_product(cast(Array, np.float64(s)), x) for s, x in terms)
    for p, error in rest:
        value, lost = two_sum(value, p)
        low = lost + (low + error)
    return value + low
