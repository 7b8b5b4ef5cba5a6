"""Operands whose sums cancel, and exact sums over products."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np


def hostile(rng, shape, dtype):
    """Numbers of 60 binades whose sums cancel: each is there with both signs, but for
    one odd one.
    """
    dtype = np.dtype(dtype)
    real = dtype.type(0).real.dtype
    size = math.prod(shape) * (2 if dtype.kind == "c" else 1)
    half = np.ldexp(
        rng.uniform(0.5, 1, size // 2), rng.integers(-30, 30, size // 2)
    ).astype(real)
    x = rng.permutation(np.concatenate([half, -half, np.ones(size % 2, real)]))
    return x.view(dtype).reshape(shape)


def exact_einsum(subscripts, *operands):
    """The sum over products in fractions, real operands, each real component rounded
    once.
    """
    as_fractions = [
        np.array([Fraction(float(y)) for y in x.ravel()], object).reshape(x.shape)
        for x in operands
    ]
    exact = np.asarray(np.einsum(subscripts, *as_fractions), object)
    numbers = [Fraction(y) for y in exact.ravel().tolist()]
    return np.array([float(y) for y in numbers]).reshape(exact.shape)
