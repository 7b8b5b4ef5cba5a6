"""Matrices with known character, and pairs (a, b) whose exact product is known to be hard.

Every generator takes an explicit ``numpy.random.Generator``; the same generator state gives the same matrix. dtype is
float32 or float64 (float16 works where its range suffices); all entries are finite. Pairs have the shapes (m, k) and
(k, n); where a product cancels, the inner index is shuffled, alike in both, so that no order of summation is favoured.

References: [MOOI20] doi:10.1007/978-3-030-50743-5_12, [OY22] doi:10.1177/10943420221090256, [VLVJ23]
doi:10.1145/3624062.3624084.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

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
    "random_floats",
    "row_span",
    "subnormal",
    "ties",
    "underflowing",
    "uniform",
    "vandermonde",
]

Shape = tuple[int, ...]
Pair = tuple[NDArray[Any], NDArray[Any]]
Range = tuple[int, int]

EXPONENT_FAMILIES: dict[str, tuple[Range, Range]] = {
    "type1": ((-15, 14), (-15, 14)),
    "type2": ((-35, -15), (-35, -15)),
    "type3": ((-100, -35), (-100, -35)),
    "type4": ((-15, 14), (-100, -35)),
}
"""Exponent ranges (low, high) of A and B, after [OY22]: the range of FP16, below it, far below it, first by third."""


def random_signs(rng: np.random.Generator, shape: Shape) -> NDArray[np.int64]:
    """Return +1 and -1 with equal probability."""
    return 1 - 2 * rng.integers(0, 2, shape)


def random_floats(
    rng: np.random.Generator, shape: Shape, exponent: ArrayLike, dtype: DTypeLike = np.float64
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
    return exp_rand(rng, shape, info.minexp - info.nmant, info.maxexp - 1, dtype)


def subnormal(rng: np.random.Generator, shape: Shape, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return nonzero subnormal numbers of random sign, their leading bits uniform over all positions."""
    info = np.finfo(np.dtype(dtype))
    return exp_rand(rng, shape, info.minexp - info.nmant, info.minexp - 1, dtype)


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


def exponent_family(
    rng: np.random.Generator, family: str, m: int, k: int, n: int, dtype: DTypeLike = np.float32
) -> Pair:
    """Return a pair with random signs, uniform significands and exponents uniform over EXPONENT_FAMILIES[family]."""
    left, right = EXPONENT_FAMILIES[family]
    return exp_rand(rng, (m, k), *left, dtype), exp_rand(rng, (k, n), *right, dtype)


def cancelling(
    rng: np.random.Generator,
    m: int,
    k: int,
    n: int,
    dtype: DTypeLike = np.float64,
    *,
    span_bits: int = 40,
    perturb: bool = False,
) -> Pair:
    """Return [X, X] and [[Y], [-Y]]: the exact product is zero in every entry, whatever the sizes of the terms.

    Parameters
    ----------
    rng : numpy.random.Generator
    m, k, n : int
        Odd k has one column of a left over, which is zero.
    dtype : float32 or float64
    span_bits : int
        Exponents of X and Y are uniform over [-span_bits // 2, span_bits // 2].
    perturb : bool
        Move every entry of the second X by one unit in its last place up, down or not at all: the exact product is then
        about u |A||B|, all that is left of it lies below what a native product resolves.
    """
    half, limit = k // 2, span_bits // 2
    x, y = exp_rand(rng, (m, half), -limit, limit, dtype), exp_rand(rng, (half, n), -limit, limit, dtype)
    again = np.nextafter(x, x * rng.integers(0, 3, x.shape).astype(dtype)) if perturb else x
    a = np.hstack([x, again, np.zeros((m, k - 2 * half), dtype)])
    b = np.vstack([y, -y, exp_rand(rng, (k - 2 * half, n), -limit, limit, dtype)])
    return _shuffle(rng, a, b)


def ties(
    rng: np.random.Generator, m: int, k: int, n: int, dtype: DTypeLike = np.float64, *, nudge_bits: int = 0
) -> Pair:
    """Return a pair whose exact product lies, in every entry, midway between two adjacent numbers of dtype.

    One term of each sum is the product of two odd integers that has exactly t + 1 bits; the others are of comparable
    size and cancel exactly. Rows and columns are scaled by powers of two within 2**-20..2**20.

    Parameters
    ----------
    rng : numpy.random.Generator
    m, k, n : int
        k at least 1, at least 2 with a nudge.
    dtype : float32 or float64
    nudge_bits : int
        If positive, one more term moves every entry off its midpoint by 2**-nudge_bits of the entry or less, up or
        down: rounding twice, or without all bits, goes wrong in about half of the entries. 26 to 200 for float32,
        55 to 1900 for float64.
    """
    t = np.finfo(np.dtype(dtype)).nmant + 1
    if k < 1 + bool(nudge_bits) or 0 < nudge_bits < t + 2:
        raise ValueError(f"no ties of {t} bits for k = {k} and nudge_bits = {nudge_bits}")
    left_bits = (t + 1) // 2
    rows, cols = (rng.integers(-20, 21, size) for size in ((m, 1), (1, n)))
    blocks_a = [_odd(rng, (m, 1), left_bits) * 2.0**-left_bits]
    blocks_b = [_odd(rng, (1, n), t + 1 - left_bits) * 2.0 ** -(t + 1 - left_bits)]
    if nudge_bits:
        blocks_a.append(random_signs(rng, (m, 1)) * 2.0 ** -(nudge_bits // 2 + 1))
        blocks_b.append(random_signs(rng, (1, n)) * 2.0 ** -(nudge_bits - nudge_bits // 2 + 1))
    noise = cancelling(rng, m, k - len(blocks_a), n, dtype, span_bits=4)
    a = np.ldexp(np.hstack([*blocks_a, noise[0]]), rows).astype(dtype)
    b = np.ldexp(np.vstack([*blocks_b, noise[1]]), cols).astype(dtype)
    return _shuffle(rng, a, b)


def overflowing(rng: np.random.Generator, m: int, k: int, n: int, dtype: DTypeLike = np.float64) -> Pair:
    """Return a pair with exact results on both sides of the overflow threshold, and partial sums far beyond it.

    With k >= 2 the results of most rows are +-(largest + d ulp / 4), d an integer from -3 to 6: rounded they are the
    largest number for d <= 1 and Inf from d = 2, the exact midpoint, on. One row in four is scaled down by 2**-1 to
    2**-30, so its results are ordinary. The remaining terms overflow one by one and cancel exactly, so that native
    products give Inf or NaN. With k = 1 the products lie within a factor of four around the threshold.
    """
    info = np.finfo(np.dtype(dtype))
    t, emax = info.nmant + 1, info.maxexp - 1
    if k < 2:
        return exp_rand(rng, (m, k), 1, 1, dtype), exp_rand(rng, (k, n), emax - 2, emax - 1, dtype)
    half = emax // 2
    scale = np.where(rng.random((m, 1)) < 0.25, -rng.integers(1, 31, (m, 1)), 0)
    # Units of the second term: ulp / 4 = 2**(emax - t - 1), split over both factors.
    main_a = np.hstack([np.full((m, 1), 2.0**half), rng.integers(0, 4, (m, 1)) * 2.0 ** (half - t)])
    largest = np.ldexp(float(2**t - 1), emax - (t - 1) - half)
    main_b = np.vstack([np.full((1, n), largest), rng.integers(-1, 3, (1, n)) * 2.0 ** (emax - half - 1)])
    signs = random_signs(rng, (m, 1))
    noise = cancelling(rng, m, k - 2, n, dtype, span_bits=2)
    a = np.ldexp(np.hstack([main_a * signs, np.ldexp(noise[0].astype(np.float64), emax - 2)]), scale).astype(dtype)
    b = np.vstack([main_b, np.ldexp(noise[1].astype(np.float64), half)]).astype(dtype)
    return _shuffle(rng, a, b)


def underflowing(rng: np.random.Generator, m: int, k: int, n: int, dtype: DTypeLike = np.float64) -> Pair:
    """Return a pair with results around and below the smallest normal number, from zero on.

    The terms of one column of the product are within a factor of 2**9 of each other; the columns spread evenly from
    2**-8 of the smallest subnormal to 2**8 times the smallest normal number. Every other row and column has
    significands of two bits, so that exact results midway between two subnormals are common.
    """
    info = np.finfo(np.dtype(dtype))
    middle = info.minexp // 2
    columns = rng.integers(info.minexp - info.nmant - 6 - middle, info.minexp - middle, (1, n), endpoint=True)
    a = exp_rand(rng, (m, k), middle - 2, middle + 2, dtype)
    b = random_floats(rng, (k, n), columns + rng.integers(0, 4, (k, n)), dtype)
    for x in (a[::2], b[:, ::2]):
        significand, exponent = np.frexp(x)
        x[:] = np.ldexp(np.rint(4 * significand), exponent - 2)
    return a, b


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


def _odd(rng: np.random.Generator, shape: Shape, bits: int) -> NDArray[np.int64]:
    """Odd integers of random sign in [3/4, 1) 2**bits: a product of two has as many bits as both together."""
    return random_signs(rng, shape) * (2 * rng.integers(3 << (bits - 3), 4 << (bits - 3), shape) + 1)


def _shuffle(rng: np.random.Generator, a: NDArray[Any], b: NDArray[Any]) -> Pair:
    order = rng.permutation(a.shape[1])
    return a[:, order], b[order]
