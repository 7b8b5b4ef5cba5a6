"""Single matrices with known character. Pairs with a known product are in `pairs`, and are offered here too.

Every generator takes an explicit ``numpy.random.Generator``; the same generator state gives the same matrix. dtype is
float32 or float64 (float16 works where its range suffices); all entries are finite.

References: [MOOI20] doi:10.1007/978-3-030-50743-5_12, [OY22] doi:10.1177/10943420221090256, [VLVJ23]
doi:10.1145/3624062.3624084.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .floats import random_floats, random_signs
from .pairs import EXPONENT_FAMILIES, cancelling, exponent_family, overflowing, ties, underflowing

__all__ = [
    "EXPONENT_FAMILIES",
    "as_complex",
    "badly_scaled",
    "cancelling",
    "exp_rand",
    "exponent_family",
    "full_range",
    "graded",
    "hilbert",
    "inverse_hilbert",
    "mean_of_uniforms",
    "overflowing",
    "phi_matrix",
    "row_span",
    "subnormal",
    "ties",
    "underflowing",
    "uniform",
    "vandermonde",
]

Shape = tuple[int, ...]


def phi_matrix(rng: np.random.Generator, shape: Shape, phi: float, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return (rand - 0.5) * exp(phi * randn), rand uniform on [0, 1), randn standard normal ([MOOI20], section 4).

    phi widens the exponent range: 0.1, 1 and 2 in the paper. Values beyond the range of dtype become its largest ones.
    """
    largest = float(np.finfo(np.dtype(dtype)).max)
    rand, randn = rng.random(shape), rng.standard_normal(shape)
    growth = np.exp(np.clip(phi * randn, -700.0, 700.0))
    return np.clip((rand - 0.5) * growth, -largest, largest).astype(dtype)


def uniform(
    rng: np.random.Generator, shape: Shape, low: float = -1.0, high: float = 1.0, dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """Return entries drawn uniformly from [low, high) in float64, then rounded to dtype."""
    return rng.uniform(low, high, shape).astype(dtype)


def exp_rand(
    rng: np.random.Generator, shape: Shape, low: int, high: int, dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """Return random signs, uniform significands in [1, 2), exponents uniform over the integers low..high ([OY22]).

    All t bits of the significand are random; subnormal results have what bits there are. The four families of the paper
    are in `EXPONENT_FAMILIES`.
    """
    return random_floats(rng, shape, rng.integers(low, high, shape, endpoint=True), dtype)


def mean_of_uniforms(rng: np.random.Generator, shape: Shape, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return the mean of two uniforms on [-0.5, 0.5) for each entry: the inputs of [VLVJ23]."""
    first, second = rng.uniform(-0.5, 0.5, shape), rng.uniform(-0.5, 0.5, shape)
    return ((first + second) / 2).astype(dtype)


def hilbert(n: int, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return the n x n Hilbert matrix 1 / (i + j + 1), i and j from 0, each entry rounded to dtype."""
    index = np.arange(n)
    return np.reciprocal((index[:, None] + index + 1).astype(dtype))


def inverse_hilbert(n: int) -> NDArray[np.float64]:
    """Return the inverse of the n x n Hilbert matrix: exact integers, each rounded to float64.

    Exact up to n = 12, where the largest entry has 48 bits before its trailing zeros; rounded from n = 13 on. Condition
    number about 2**(5 n).
    """
    inverse = np.empty((n, n))
    for i, j in np.ndindex(n, n):
        binomials = math.comb(n + i, n - j - 1) * math.comb(n + j, n - i - 1) * math.comb(i + j, i) ** 2
        inverse[i, j] = float((-1) ** (i + j) * (i + j + 1) * binomials)
    return inverse


def full_range(rng: np.random.Generator, shape: Shape, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return finite values whose exponents are uniform over the whole range of dtype, subnormals included."""
    info = np.finfo(np.dtype(dtype))
    return random_floats(rng, shape, rng.integers(info.minexp - info.nmant, info.maxexp, shape), dtype)


def subnormal(rng: np.random.Generator, shape: Shape, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return nonzero subnormal numbers of random sign, their leading bits uniform over all positions."""
    info = np.finfo(np.dtype(dtype))
    return random_floats(rng, shape, rng.integers(info.minexp - info.nmant, info.minexp, shape), dtype)


def row_span(rng: np.random.Generator, shape: Shape, span_bits: int, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return rows whose largest entry is about 2**span_bits times the smallest. Transpose it for a right operand.

    The exponents of a row are uniform over span_bits + 1 values around 0; each row with at least two entries has both
    extremes.

    Parameters
    ----------
    rng : numpy.random.Generator
    shape : (rows, columns)
    span_bits : int
        At most 2045 for float64 and 253 for float32, so that every entry is normal.
    dtype : float32 or float64
    """
    info = np.finfo(np.dtype(dtype))
    if not 0 <= span_bits < info.maxexp - info.minexp:
        raise ValueError(f"span_bits = {span_bits} is not within 0..{info.maxexp - info.minexp - 1} for {dtype}")
    exponent = rng.integers(0, span_bits, shape, endpoint=True)
    if shape[1] >= 2:
        exponent[:, 0], exponent[:, 1] = 0, span_bits
    return random_floats(rng, shape, rng.permuted(exponent, axis=1) - span_bits // 2, dtype)


def badly_scaled(
    rng: np.random.Generator, shape: Shape, low: int, high: int, dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """Return D_r U D_c, U uniform on (-1, 1), D_r and D_c powers of two with exponents uniform over low..high.

    Neither scale is lost to a scheme that scales rows and columns; the one on the inner dimension widens every row.
    """
    rows, cols = rng.integers(low, high, (shape[0], 1), endpoint=True), rng.integers(low, high, shape[1], endpoint=True)
    return np.ldexp(rng.uniform(-1.0, 1.0, shape), rows + cols).astype(dtype)


def graded(rng: np.random.Generator, shape: Shape, low: int, high: int, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return U with U_ij about 2**(r_i + s_j): both exponents fall evenly from high (first) to low (last)."""
    rows, cols = (np.rint(np.linspace(high, low, size)).astype(np.int64) for size in shape)
    return np.ldexp(rng.uniform(0.5, 1.0, shape) * random_signs(rng, shape), rows[:, None] + cols).astype(dtype)


def vandermonde(rng: np.random.Generator, shape: Shape, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return x_i**j with nodes x_i uniform on [-1, 1): rows that fall off geometrically, all at different rates."""
    nodes = rng.uniform(-1.0, 1.0, shape[0])
    return np.vander(nodes, shape[1], increasing=True).astype(dtype)


def as_complex(generate: Callable[..., Any], rng: np.random.Generator, *args: Any, **kwargs: Any) -> Any:
    """Return re + i im with re and im from two independent calls generate(rng, *args, **kwargs).

    Works for generators of one matrix and, member by member, for generators of pairs. float32 gives complex64, float64
    complex128.
    """
    real, imag = generate(rng, *args, **kwargs), generate(rng, *args, **kwargs)
    if isinstance(real, tuple):
        return tuple(_join(re, im) for re, im in zip(real, imag, strict=True))
    return _join(real, imag)


def _join(real: NDArray[Any], imag: NDArray[Any]) -> NDArray[Any]:
    joined = np.empty(real.shape, np.result_type(real, np.complex64))
    joined.real, joined.imag = real, imag
    return joined
