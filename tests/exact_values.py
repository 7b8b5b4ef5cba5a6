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
