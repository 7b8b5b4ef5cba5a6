"""Inputs of [MOOI20] with the same bits on every processor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["phi_matrix"]

_exp = np.vectorize(math.exp, otypes=[float])
"""The exponential of the C library: NumPy's has other last bits where there is AVX-512."""


def phi_matrix(rng: np.random.Generator, shape: tuple[int, ...], phi: float) -> Any:
    """(rand - 0.5) exp(phi randn), as `hifigemm.testing.matrices.phi_matrix` but for
    last bits.
    """
    rand = rng.random(shape)
    return (rand - 0.5) * _exp(phi * rng.standard_normal(shape))
