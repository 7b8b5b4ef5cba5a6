"""Random floating-point numbers with chosen exponents: what the generators are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

__all__ = ["random_floats", "random_signs"]


def random_signs(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return +1 and -1 with equal probability."""
    return 1 - 2 * rng.integers(0, 2, shape)


def random_floats(
    rng: np.random.Generator, shape: tuple[int, ...], exponent: ArrayLike, dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """Return random signs and uniform significands in [1, 2) of all t bits, times 2**exponent.

    Below the normal range the significand is cut to the bits that dtype has there, in the end to zero.

    Parameters
    ----------
    rng : numpy.random.Generator
    shape : tuple of int
    exponent : array_like of int, broadcastable to shape
        Below the largest exponent of dtype plus one.
    dtype : float16, float32 or float64
    """
    info = np.finfo(np.dtype(dtype))
    exponent = np.broadcast_to(exponent, shape)
    significand = rng.integers(1 << info.nmant, 2 << info.nmant, shape)
    fraction_bits = np.clip(exponent - info.minexp + info.nmant, -1, info.nmant)
    significand >>= info.nmant - fraction_bits
    return np.ldexp(random_signs(rng, shape) * significand, exponent - fraction_bits).astype(dtype)
