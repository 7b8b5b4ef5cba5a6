"""Error-free transformations of sums and products in float64."""

from __future__ import annotations

from hifigemm.numerics.bits import Array

_SPLITTER = 2.0**27 + 1.0


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """(s, e) with s = fl(a + b) and s + e = a + b exactly, barring overflow (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _halves(a: Array) -> tuple[Array, Array]:
    """a = high + low with at most 26 significand bits each (Veltkamp), |a| < 2**996."""
    t = _SPLITTER * a
    high = t - (t - a)
    return high, a - high


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """(p, e) with p = fl(a * b) and p + e = a * b exactly, barring overflow and
    underflow (Dekker).
    """
    p = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    return p, a_low * b_low - (
        ((p - a_high * b_high) - a_low * b_high) - a_high * b_low
    )
