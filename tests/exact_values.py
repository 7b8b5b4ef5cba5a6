"""Exact entries of small products as fractions, re and im side by side."""

from __future__ import annotations

from fractions import Fraction
from operator import mul

import numpy as np


def components(x):
    """Real entries of a result, re and im of a complex one in turn."""
    x = np.ascontiguousarray(x)
    return [
        Fraction(v) if np.isfinite(v) else v
        for v in x.view(x.real.dtype).astype(np.float64).ravel().tolist()
    ]


def numerators(x):
    """(re, im, denominator): a matrix as rows of Python integers over one power of
    two.
    """
    parts = [
        [[v.as_integer_ratio() for v in row] for row in part.astype(float).tolist()]
        for part in (x.real, x.imag)
    ]
    denominator = max((d for part in parts for row in part for _, d in row), default=1)
    return (
        *([[n * (denominator // d) for n, d in row] for row in part] for part in parts),
        denominator,
    )


def as_fraction(z):
    """(re, im) of a finite number."""
    return Fraction(float(z.real)), Fraction(float(z.imag))


def times(s, z):
    """s z of two numbers, a scalar or a pair (re, im) each, as such a pair."""
    re, im = s if isinstance(s, tuple) else as_fraction(complex(s))
    x, y = z
    return re * x - im * y, re * y + im * x


def exact_entries(a, b):
    """The entries of a @ b, matrices with finite entries, as `components` of the result
    lists them.
    """
    (left_re, left_im, left), (right_re, right_im, right) = (
        numerators(a),
        numerators(b.T),
    )
    is_complex, found = np.result_type(a, b).kind == "c", []
    for p, q in zip(left_re, left_im, strict=True):
        for r, s in zip(right_re, right_im, strict=True):
            re = sum(map(mul, p, r)) - sum(map(mul, q, s))
            im = sum(map(mul, p, s)) + sum(map(mul, q, r))
            found += [
                Fraction(x, left * right) for x in ([re, im] if is_complex else [re])
            ]
    return found


def rounded_once(x: Fraction, dtype) -> float:
    """x rounded once, ties to even; the sign of a value that underflows stays."""
    limits = np.finfo(dtype)
    return rounded_to_format(x, limits.nmant + 1, int(limits.minexp), limits.maxexp - 1)


def rounded_to_format(x: Fraction, t: int, emin: int, emax: int) -> float:
    """x rounded once to t bits, the last of which is 2**(emin - t + 1) or more; Inf from
    2**(emax + 1) on.
    """
    if x == 0:
        return 0.0
    magnitude = abs(x)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, emin) - t + 1)
    rounded = round(magnitude / unit) * unit  # Python rounds ties to even
    value = np.inf if rounded >= Fraction(2) ** (emax + 1) else float(rounded)
    return float(np.copysign(value, float(x > 0) - 0.5))


def same_bits(x, y) -> bool:
    """True if both have one dtype and the same bits, signs of zeros included."""
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


@np.errstate(over="ignore")  # beside the largest number lies Inf
def values_of_kind(exact, kind, dtype, shape):
    """The two arrays of "nearest", "pair" or "enclosure", the second one None for the
    first kind, of exact entries.

    An exact zero is +0. A zero that another value rounds to, or that lies next to it,
    has the sign of the value.
    """
    first = [rounded_once(x, dtype) for x in exact]
    second = None
    largest = float(np.finfo(dtype).max)
    if kind == "pair":
        second = [
            rounded_once(x - Fraction(y), dtype) if np.isfinite(y) else 0.0
            for x, y in zip(exact, first, strict=True)
        ]
    elif kind == "enclosure":
        near = [min(max(y, -largest), largest) for y in first]
        below = [np.nextafter(dtype(y), dtype(-np.inf)) for y in near]
        above = [np.nextafter(dtype(y), dtype(np.inf)) for y in near]
        triples = list(zip(exact, near, strict=True))
        is_less = [x < Fraction(y) for x, y in triples]
        is_more = [x > Fraction(y) for x, y in triples]
        first = np.where(is_less, below, near)
        second = np.where(is_more, above, near)
    return tuple(
        None if x is None else np.array(x, dtype).reshape(shape)
        for x in (first, second)
    )


def rounded_sum(a, b, c, alpha, beta):
    """alpha A B + beta C of finite matrices, every real component rounded once."""
    dtype = np.result_type(a, b)
    real = np.empty(0, dtype).real.dtype
    expected = np.zeros((a.shape[0], b.shape[1]), dtype)
    is_complex = dtype.kind == "c"
    products = iter(exact_entries(a, b))
    for at in np.ndindex(expected.shape):
        product = next(products), next(products) if is_complex else Fraction(0)
        addend = (Fraction(0), Fraction(0)) if c is None else as_fraction(c[at])
        terms = zip(times(alpha, product), times(beta, addend), strict=True)
        re, im = (x + y for x, y in terms)
        expected.real[at] = rounded_once(re, real)
        if is_complex:
            expected.imag[at] = rounded_once(im, real)
    return expected


def exact_results(a, b, kind="nearest", *, alpha=1.0, beta=0.0, c=None):
    """The arrays of one of the kinds of `values_of_kind` of alpha a @ b + beta c, for
    real scalars and matrices whose results have one dtype.
    """
    exact = [Fraction(alpha) * x for x in exact_entries(a, b)]
    if c is not None:
        addend = components(c)
        exact = [x + Fraction(beta) * y for x, y in zip(exact, addend, strict=True)]
    dtype = np.result_type(a, b)
    width = 2 if dtype.kind == "c" else 1
    shape = a.shape[0], width * b.shape[1]
    arrays = values_of_kind(exact, kind, np.finfo(dtype).dtype.type, shape)
    return tuple(x.view(dtype) for x in arrays if x is not None)
