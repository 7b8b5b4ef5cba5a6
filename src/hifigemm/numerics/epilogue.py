"""alpha T + beta C for a product T that is already rounded."""

from __future__ import annotations

import math

import numpy as np

from hifigemm.numerics.bits import Array
from hifigemm.numerics.eft import two_product, two_sum

__all__ = ["combine", "power_of_two_exponent"]


def power_of_two_exponent(alpha: complex) -> int | None:
    """e where alpha = +-2**e, else None."""
    if isinstance(alpha, complex) or alpha == 0 or not math.isfinite(alpha):
        return None
    mantissa, exponent = math.frexp(alpha)
    return exponent - 1 if abs(mantissa) == 0.5 else None


def combine(t: Array, alpha: complex, c: Array | None, beta: complex) -> Array:
    """alpha t + beta c in the dtype of t.

    For real scalars each product and the sum are made with their errors (float64), or in float64 (float32), so that the
    result is alpha t + beta c rounded with an error of little more than half a unit in its last place. Where an
    intermediate overflows, the plain expression stands. A zero alpha t is +0. Complex scalars take the plain complex
    expression.
    """
    with np.errstate(all="ignore"):
        if isinstance(alpha, complex) or isinstance(beta, complex):
            plain = t * t.dtype.type(alpha)
            return plain if c is None else plain + c.astype(t.dtype) * t.dtype.type(beta)
        real = t.real.dtype
        x = np.ascontiguousarray(t).view(real).astype(np.float64)
        if c is None:
            return (alpha * x + 0.0).astype(real).view(t.dtype).reshape(t.shape)
        y = np.array(np.broadcast_to(c, t.shape), t.dtype, order="C", ndmin=1).view(real).astype(np.float64)
        plain = alpha * x + beta * y
        p, p_error = two_product(np.float64(alpha), x)
        q, q_error = two_product(np.float64(beta), y)
        s, s_error = two_sum(p, q)
        s += s_error + (p_error + q_error)
        return np.where(np.isfinite(s), s, plain).astype(real).view(t.dtype).reshape(t.shape)
