"""alpha T + beta C for a product T that is already rounded.

Idea
    Every product of a scalar and an entry is computed with its error, and so is every
    sum; the errors are added at last.
Exact when
    Never; the result errs by half a unit in its last place and terms of second order.
Error
    Let n <= 4 be the number of products s_i x_i of an entry, M the sum of their
    magnitudes and u = 2**-53. The errors of products and sums are added with rounding.
    So the result errs by at most u |result| + n**2 u**2 M, as Dot2 of [ORO05], and by
    four of the smallest subnormal numbers for each product below 2**-969, whose error
    underflows.
Two ways
    The first way applies the transformations to the numbers as they are. The halves of
    a factor from 2**996 on, products and sums may then overflow though the result does
    not. Their infinities reach the result or make it NaN, so that a finite entry has
    the error above.

    Entries that are not finite go the second way: scalars become their mantissas,
    entries are multiplied by the power of two that gives the largest product of this
    entry a magnitude of 2**958 to 2**960, and the sum by the inverse power. Then no
    half (2**987), product or sum (2**962) overflows. Multiplication by powers of two is
    exact unless a number becomes subnormal: the products lose less than 2**-2030 M, and
    the sum is rounded once more only where the result is subnormal. Each entry has a
    power of its own, so that no scalar, however large, costs another entry its digits.
References
    [ORO05] Ogita, Rump, Oishi: Accurate sum and dot product, SISC 26 (2005),
    doi:10.1137/030601818.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple, cast

import numpy as np

from hifigemm.numerics.bits import Array, power_of_two, scale_entries
from hifigemm.numerics.blocking import parts_of
from hifigemm.numerics.eft import two_product, two_sum
from hifigemm.numerics.embedding import unembed

_TOP_EXPONENT = 960
"""Exponent of the largest product of an entry in the second way."""

_ZERO_EXPONENT = -4000
"""Exponent of a product that is 0: below that of every other one."""

_LEAST = 2.0**-30
_GREATEST = 2.0**30
"""Kernels need no scaling of scalars between these magnitudes."""

_MIN_SCALAR_EXPONENT = -1000
"""Exponent down to which beta takes a power of two; C takes the remaining power."""

Term = tuple[float, Array]
"""A product s x of a scalar and an array of entries."""


def frexp(alpha: complex) -> tuple[complex, int]:
    """(mantissa, exponent) with alpha = mantissa 2**exponent exactly.

    The larger component of the mantissa lies in [1, 2), while mantissas of NumPy lie in
    [1/2, 1). The pair is (alpha, 0) where no such mantissa is exact, and for 0, Inf and
    NaN.
    """
    if not isinstance(alpha, complex):
        if alpha == 0 or not math.isfinite(alpha):
            return alpha, 0
        half, exponent = math.frexp(alpha)
        return 2.0 * half, exponent - 1

    parts = (alpha.real, alpha.imag)
    largest = max(map(abs, parts))
    if largest == 0 or not all(map(math.isfinite, parts)):
        return alpha, 0

    exponent = math.frexp(largest)[1] - 1
    scaled = [math.ldexp(x, -exponent) for x in parts]
    # The smaller component may lose bits to underflow.
    if [math.ldexp(x, exponent) for x in scaled] != list(parts):
        return alpha, 0
    return complex(*scaled), exponent


def has_common_exponent(alpha: complex) -> bool:
    """False if `frexp` finds no mantissa: A B may then underflow before alpha is
    applied.
    """
    mantissa, _ = frexp(alpha)
    largest = max(abs(mantissa.real), abs(mantissa.imag))
    is_special = largest == 0 or not math.isfinite(largest)
    return is_special or 1 <= largest < 2


def is_moderate(x: complex) -> bool:
    """True for a real scalar that is 0 or near 1 in magnitude."""
    return not isinstance(x, complex) and (x == 0 or _LEAST <= abs(x) <= _GREATEST)


class Epilogue(NamedTuple):
    """alpha T + beta C for a product T that is already rounded."""

    alpha: complex = 1.0
    beta: complex = 0.0
    c: Array | None = None  # of the shape of T; None where beta is 0

    @property
    def idle(self) -> bool:
        """True if T itself is the result."""
        return self.alpha == 1.0 and self.c is None

    def times_power(self, e: int) -> Epilogue:
        """The epilogue with 2**e alpha instead of alpha.

        It gives the same result for T 2**-e.
        """
        return self._replace(alpha=scalar_times_power(self.alpha, e))

    def of_c_times_power(self, e: int) -> Epilogue:
        """The epilogue with 2**e beta C instead of beta C, for e <= 0.

        beta takes the power, but what would make it subnormal goes to C.
        """
        if self.c is None:
            return self
        exponent = math.frexp(max(abs(self.beta.real), abs(self.beta.imag)))[1]
        e_of_beta = max(e, min(_MIN_SCALAR_EXPONENT - exponent, 0))
        return self._replace(
            beta=scalar_times_power(self.beta, e_of_beta),
            c=scale_entries(self.c, e - e_of_beta),
        )

    @property
    def is_moderate(self) -> bool:
        """True if both scalars are real, and 0 or near 1 in magnitude.

        Kernels then take the second way with the scalars as they are.
        """
        return is_moderate(self.alpha) and is_moderate(self.beta)

    def apply(self, t: Array) -> Array:
        """alpha t + beta c in the memory of a stack t (batch, m, n)."""
        return t if self.idle else combine_stacks(t, self.alpha, self.c, self.beta)

    def without_product(self, t: Array) -> Array:
        """beta c in the memory of zeros t, where there is no product.

        A -0 of c keeps its sign for beta = 1.
        """
        if self.c is not None:
            for part in parts_of(t):
                t[part] = combine(self.c[part], self.beta, None, 0.0, zero=-0.0)
        return t


PLAIN = Epilogue()
"""T as it is."""


def scalar_times_power(x: complex, e: int) -> complex:
    """x 2**e, real where x is real."""
    re = math.ldexp(x.real, e)
    im = math.ldexp(x.imag, e)
    return complex(re, im) if isinstance(x, complex) else re


def combine_stacks(t: Array, alpha: complex, c: Array | None, beta: complex) -> Array:
    """`combine` of stacks (batch, m, n), part by part in the memory of t."""
    for part in parts_of(t):
        addend = None if c is None else c[part]
        t[part] = combine(t[part], alpha, addend, beta)
    return t


def combine(
    t: Array, alpha: complex, c: Array | None, beta: complex, zero: float = 0.0
) -> Array:
    """alpha t + beta c in the dtype of t; c broadcasts to its shape.

    All products and sums are computed with their errors, in float64, so that every real
    component is rounded with an error of little more than half a unit in its last place
    (float32: rounded once more). What a zero scalar, or a zero component of one,
    multiplies is not read, so that its NaN has no effect. Finite entries and scalars
    never give NaN. A zero alpha t is +0; with `zero` = -0.0 it keeps its sign.
    """
    real = t.real.dtype
    with np.errstate(all="ignore"):
        # Scalars with their matrices, which are contiguous.
        pairs: list[tuple[complex, Array]] = [(alpha, np.ascontiguousarray(t, like=t))]
        if c is not None:
            c = np.broadcast_to(c, t.shape)
            pairs.append((beta, np.array(c, t.dtype, order="C", ndmin=1, like=t)))

        if not (isinstance(alpha, complex) or isinstance(beta, complex)):
            # Real and imaginary parts are entries like all others.
            terms = [(s, z.view(real).astype(np.float64)) for s, z in pairs]
            result = _sum_of_products(terms, zero)
        else:
            result = _complex_sum(pairs, zero)
        result = result.astype(real)
        if t.dtype != real:
            result = unembed(result)
        return result.reshape(t.shape)


def signed_zeros(c: Array, beta: complex) -> tuple[Array, Array]:
    """Real components of beta c, and True for those all of whose terms are zeros."""
    sums = combine(c, beta, None, 0.0, zero=-0.0)
    components = sums.view(sums.real.dtype)
    re_is_zero = c.real == 0
    if c.dtype.kind != "c":
        return components, re_is_zero
    im_is_zero = c.imag == 0
    skips_re, skips_im = beta.real == 0, beta.imag == 0
    are_zeros = np.empty(components.shape, bool, like=components)
    are_zeros[..., 0::2] = (re_is_zero | skips_re) & (im_is_zero | skips_im)
    are_zeros[..., 1::2] = (im_is_zero | skips_re) & (re_is_zero | skips_im)
    return components, are_zeros


def _complex_sum(pairs: list[tuple[complex, Array]], zero: float) -> Array:
    """Sum of s z over complex scalars and matrices (s, z), in float64, re and im of an
    entry side by side along the last axis.
    """
    re_terms, im_terms = real_terms(pairs)
    return side_by_side(
        _sum_of_products(re_terms, zero), _sum_of_products(im_terms, zero)
    )


def real_terms(
    pairs: Sequence[tuple[complex, Array]],
) -> tuple[list[Term], list[Term]]:
    """re and im of the sum of s z over all pairs (s, z) as sums of real products in
    float64, two for each pair.
    """
    re_terms: list[Term] = []
    im_terms: list[Term] = []
    for s, z in pairs:
        re = z.real.astype(np.float64)
        im = z.imag.astype(np.float64)
        re_terms += [(s.real, re), (-s.imag, im)]
        im_terms += [(s.real, im), (s.imag, re)]
    return re_terms, im_terms


def side_by_side(re: Array, im: Array) -> Array:
    """The entries of re and im in turn along the last axis."""
    components = np.empty((*re.shape, 2), re.dtype, like=re)
    components[..., 0] = re
    components[..., 1] = im
    return components.reshape(*re.shape[:-1], 2 * re.shape[-1])


def _sum_of_products(terms: Sequence[Term], zero: float) -> Array:
    """Sum of s x over all terms (s, x) with s != 0, by one of the two ways above.

    `zero` is added to a single product: +0 makes -0 positive, -0 leaves it.
    """
    nonzero = [(s, x) for s, x in terms if s != 0]
    if not nonzero:
        entries = terms[0][1]
        return np.zeros(entries.shape, like=entries)
    if len(nonzero) == 1:
        s, x = nonzero[0]
        return s * x + zero
    if not all(math.isfinite(s) for s, _ in nonzero):
        return reduce(np.add, [s * x for s, x in nonzero])

    # The first way, which is enough if all results are finite. Arrays of a device are
    # not asked, as that would wait for it.
    direct_sums = _compensated_sum(nonzero)
    is_finite = np.isfinite(direct_sums)
    if isinstance(direct_sums, np.ndarray) and is_finite.all():
        return direct_sums

    # The second way for finite entries. Beside an infinity what is finite counts for
    # nothing, even if its product overflows.
    has_finite_terms = reduce(np.bitwise_and, [np.isfinite(x) for _, x in nonzero])
    infinite_sums = reduce(
        np.add, [np.where(np.isfinite(x), 0.0, s * x) for s, x in nonzero]
    )
    other_sums = np.where(has_finite_terms, _scaled_sum(nonzero), infinite_sums)
    return np.where(is_finite, direct_sums, other_sums)


def _scaled_sum(terms: Sequence[Term]) -> Array:
    """Sum of s x over all terms, whose products are scaled for each entry.

    The power of two puts the largest product of the entry near 2**960.
    """
    # The exponent of each product, and of the largest one of each entry.
    mantissas: list[tuple[float, Array]] = []
    exponents: list[Array] = []
    for s, x in terms:
        scalar, scalar_exponent = math.frexp(s)
        entries, entry_exponents = np.frexp(x)
        exponent = entry_exponents.astype(np.int64) + scalar_exponent
        mantissas.append((scalar, entries))
        exponents.append(np.where(x == 0, _ZERO_EXPONENT, exponent))
    top = reduce(np.maximum, exponents)

    # The sum of products that are scaled alike, and the inverse power at last.
    scaled_terms = [
        (scalar, _times_power(entries, exponent - top + _TOP_EXPONENT))
        for (scalar, entries), exponent in zip(mantissas, exponents, strict=True)
    ]
    return _times_power(_compensated_sum(scaled_terms), top - _TOP_EXPONENT)


def _times_power(x: Array, e: Array) -> Array:
    """x 2**e for e up to 2046 and |x| up to 2**969, rounded once.

    Below 2**-2044 nothing is left of such an x.
    """
    e = np.maximum(e, -2044)
    half = e >> 1
    return x * power_of_two(half) * power_of_two(e - half)


def _compensated_sum(terms: Sequence[Term]) -> Array:
    """Sum of s x over all terms by Dot2 of [ORO05], which adds the errors at last."""
    products = [two_product(cast(Array, np.float64(s)), x) for s, x in terms]
    value, low = products[0]
    for product, product_error in products[1:]:
        value, sum_error = two_sum(value, product)
        low = sum_error + (low + product_error)
    return value + low
