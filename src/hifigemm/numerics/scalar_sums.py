"""alpha T + beta C rounded once, from a pair for T, where that is certain.

Idea
    A pair (high, low) of T = A B is the nearest float64 and that of what it leaves. The
    products of scalars with high, low and C are made with their errors and added by
    TwoSums; the errors are added in a second number, as in Dot2 of [ORO05].
Exact when
    Entries and products are below 2**990, and a product that is not zero is 2**-900 or
    more, so that its error is a float64. For others nothing is certain; nor is it for
    scalars so large that their halves overflow, which makes the errors NaN.
Bound
    T - high - low is at most half a unit in the last place of low, u |low| with u =
    2**-53. Where terms of A B have bits below 2**-1074, it may be 2**-1075 though low is
    0. The second number is a sum of at most six pairs of errors: with the rounding of
    pairs, sums and bounds it errs by less than 16 u times the sum of their magnitudes.
References
    [ORO05] Ogita, Rump, Oishi: Accurate sum and dot product, SISC 26 (2005),
    doi:10.1137/030601818.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from hifigemm.base.formats import FP32, Format
from hifigemm.numerics.bits import LEAST, Array, real_components
from hifigemm.numerics.eft import two_product, two_sum
from hifigemm.numerics.epilogue import Term, real_terms, side_by_side
from hifigemm.numerics.three_words import CertifiedValues

_UNIT = 2.0**-53
_SMALLEST = 2.0**-900
_LARGEST = 2.0**990


def rounded_sum_of_pair(
    high: Array,
    low: Array,
    alpha: complex,
    c: Array | None,
    beta: complex,
    fmt: Format,
    has_all_bits: bool,
) -> CertifiedValues:
    """alpha T + beta C rounded once to `fmt`, FP64 or FP32, and which components of it
    are certain; an exact zero is +0.

    Parameters
    ----------
    high, low : stacks of float64 or complex128
        The pair of T.
    alpha, beta : finite scalars, alpha not zero
    c : stack of their shape and dtype, or None
    has_all_bits : bool
        True if no term of T has bits below 2**-1074.

    Returns
    -------
    values, certified
        Real components, re and im side by side along the last axis.
    """
    lost = 0.0 if has_all_bits else lost_bits(alpha)
    pairs = [(alpha, high), (alpha, low)]
    if c is not None:
        pairs.append((beta, c))
    if not (isinstance(alpha, complex) or isinstance(beta, complex)):
        # Real and imaginary parts are entries like all others.
        terms = [(s, real_components(x)) for s, x in pairs]
        return _rounded(terms, np.abs(alpha * terms[1][1]), lost, fmt)

    # re and im are sums of two products for each scalar.
    re_terms, im_terms = real_terms(pairs)
    size = abs(alpha.real) + abs(alpha.imag)
    rest = size * np.maximum(np.abs(low.real), np.abs(low.imag))
    re = _rounded(re_terms, rest, lost, fmt)
    im = _rounded(im_terms, rest, lost, fmt)
    values = side_by_side(re.values, im.values)
    return CertifiedValues(values, side_by_side(re.certified, im.certified))


def lost_bits(alpha: complex) -> float:
    """What pairs may lack of alpha T because no float64 holds it."""
    return 4.0 * LEAST * max(abs(alpha.real), abs(alpha.imag), 1.0)


def _rounded(
    terms: list[Term], rest: Array, lost: float, fmt: Format
) -> CertifiedValues:
    """The sum of s x over all terms, rounded once to `fmt`.

    The terms err by u times `rest`, and by what is lost.
    """
    total = np.zeros_like(rest)
    low = np.zeros_like(rest)
    magnitude = np.zeros_like(rest)
    is_certain = rest == rest
    for s, x in terms:
        if s == 0:
            continue
        product, product_error = two_product(cast(Array, np.float64(s)), x)
        product_size = np.abs(product)
        in_range = (product_size >= _SMALLEST) & (product_size < _LARGEST)
        in_range &= np.abs(x) < _LARGEST
        is_certain &= in_range | (x == 0)
        total, sum_error = two_sum(total, product)
        low = low + (sum_error + product_error)
        magnitude = magnitude + (np.abs(sum_error) + np.abs(product_error))

    # All numbers within the margin have to round alike.
    margin = rest * _UNIT + magnitude * (16.0 * _UNIT) + lost
    lower = total + (low - margin)
    upper = total + (low + margin)
    if fmt is not FP32:
        is_certain &= (lower == upper) & np.isfinite(upper)
        return CertifiedValues(upper, is_certain)
    # Neighbours leave no room for a first rounding: midpoints of floats are not certain.
    infinity = np.float64(np.inf)
    lower = np.nextafter(lower, -infinity).astype(np.float32)
    upper = np.nextafter(upper, infinity).astype(np.float32)
    is_certain &= lower == upper
    return CertifiedValues(upper, is_certain)
