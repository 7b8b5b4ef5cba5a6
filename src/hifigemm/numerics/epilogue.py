"""alpha T + beta C for a product T that is already rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hifigemm.numerics.bits import Array
from hifigemm.numerics.eft import two_product, two_sum

__all__ = ["PLAIN", "Epilogue", "combine", "power_of_two_exponent"]


def power_of_two_exponent(alpha: complex) -> int | None:
    """e where alpha = +-2**e, else None."""
    if isinstance(alpha, complex) or alpha == 0 or not math.isfinite(alpha):
        return None
    mantissa, exponent = math.frexp(alpha)
    return exponent - 1 if abs(mantissa) == 0.5 else None


@dataclass(frozen=True)
class Epilogue:
    """alpha T + beta C, done to a product T that is already rounded.

    Attributes
    ----------
    alpha, beta : float or complex
    c : array or None
        Shape of T; None where beta is 0.
    """

    alpha: complex = 1.0
    beta: complex = 0.0
    c: Array | None = None

    @property
    def idle(self) -> bool:
        """T is the result."""
        return self.alpha == 1.0 and self.c is None

    def apply(self, t: Array) -> Array:
        """alpha t + beta c: see `combine`."""
        return t if self.idle else combine(t, self.alpha, self.c, self.beta)


PLAIN = Epilogue()


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
        x = np.ascontiguousarray(t, like=t).view(real).astype(np.float64)
        if c is None:
            return (alpha * x + 0.0).astype(real).view(t.dtype).reshape(t.shape)
        y = np.array(np.broadcast_to(c, t.shape), t.dtype, order="C", ndmin=1, like=t).view(real).astype(np.float64)
        plain = alpha * x + beta * y
        p, p_error = two_product(np.float64(alpha), x)
        q, q_error = two_product(np.float64(beta), y)
        s, s_error = two_sum(p, q)
        s += s_error + (p_error + q_error)
        return np.where(np.isfinite(s), s, plain).astype(real).view(t.dtype).reshape(t.shape)
