"""Exact entries of small products as fractions, re and im side by side."""

from __future__ import annotations

from fractions import Fraction

import numpy as np


def components(x):
    """Real entries of a result, re and im of a complex one in turn."""
    x = np.ascontiguousarray(x)
    return [Fraction(v) if np.isfinite(v) else v for v in x.view(x.real.dtype).astype(np.float64).ravel().tolist()]


def exact_entries(a, b):
    """The entries of a @ b, matrices with finite entries, as `components` of the result lists them."""
    found = []
    for row in a:
        for column in b.T:
            re = im = Fraction(0)
            for x, y in zip(row.tolist(), column.tolist(), strict=True):
                p, q = complex(x), complex(y)
                re += Fraction(p.real) * Fraction(q.real) - Fraction(p.imag) * Fraction(q.imag)
                im += Fraction(p.real) * Fraction(q.imag) + Fraction(p.imag) * Fraction(q.real)
            found += [re, im] if np.result_type(a, b).kind == "c" else [re]
    return found
