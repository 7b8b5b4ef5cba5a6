"""Error-free transformations of sums and products in float64.

Exact when the thread rounds to nearest, see numerics.subnormals.

References
    Ogita, Rump, Oishi: Accurate sum and dot product, SISC 26 (2005),
    doi:10.1137/030601818 [ORO05], gives all three algorithms.
"""

from __future__ import annotations

from hifigemm.numerics.bits import Array

_SPLITTER = 2.0**27 + 1.0
"""2**27 + 1: halves of 26 bits hold 53 bits, as the low one has a sign of its own."""


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """(s, e) with s = fl(a + b) and s + e = a + b exactly, barring overflow (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _halves(a: Array) -> tuple[Array, Array]:
    """a = high + low with at most 26 significand bits each, |a| < 2**996 (Veltkamp)."""
    t = _SPLITTER * a
    high = t - (t - a)
    return high, a - high


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """(p, e) with p = fl(a * b) and p + e = a * b exactly (Dekker).

    Exact when a, b and p are below 2**996 in magnitude and e does not underflow.
    """
    p = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    excess = ((p - a_high * b_high) - a_low * b_high) - a_high * b_low
    return p, a_low * b_low - excess
