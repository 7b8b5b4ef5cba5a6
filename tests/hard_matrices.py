"""Hard matrices, and pairs whose exact product is known to be hard: cancellation, ties,
overflow and underflow.

Those of `hifigemm.testing.matrices` and of the experiments are offered here too. The
same holds of all: an explicit generator, dtype float32 or float64, finite entries.
Pairs have the shapes (m, k) and (k, n). Where a product cancels, the inner index is
shuffled, alike in both, so that no order of summation is favoured.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from experiments.forward_errors import mean_of_uniforms  # noqa: F401
from experiments.grading import subnormal, vandermonde  # noqa: F401
from hifigemm.testing.matrices import (  # noqa: F401
    EXPONENT_FAMILIES,
    as_complex,
    exp_rand,
    exponent_family,
    hilbert,
    inverse_hilbert,
    phi_matrix,
    random_floats,
    random_signs,
    uniform,
)

Shape = tuple[int, ...]
Pair = tuple[NDArray[Any], NDArray[Any]]


def full_range(
    rng: np.random.Generator, shape: Shape, dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """Return finite values whose exponents are uniform over the whole range of dtype,
    subnormals included.
    """
    info = np.finfo(np.dtype(dtype))
    return exp_rand(rng, shape, info.minexp - info.nmant, info.maxexp - 1, dtype)


def row_span(
    rng: np.random.Generator,
    shape: Shape,
    span_bits: int,
    dtype: DTypeLike = np.float64,
) -> NDArray[Any]:
    """Return rows whose largest entry is about 2**span_bits times the smallest.
    Transpose it for a right operand.

    The exponents of a row are uniform over span_bits + 1 values around 0; each row with
    at least two entries has both extremes.

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
        raise ValueError(
            f"span_bits = {span_bits} is not within 0..{info.maxexp - info.minexp - 1} for {dtype}"
        )
    exponent = rng.integers(0, span_bits, shape, endpoint=True)
    if shape[1] >= 2:
        exponent[:, 0], exponent[:, 1] = 0, span_bits
    return random_floats(
        rng, shape, rng.permuted(exponent, axis=1) - span_bits // 2, dtype
    )


def badly_scaled(
    rng: np.random.Generator,
    shape: Shape,
    low: int,
    high: int,
    dtype: DTypeLike = np.float64,
) -> NDArray[Any]:
    """Return D_r U D_c, U uniform on (-1, 1), D_r and D_c powers of two with exponents
    uniform over low..high.

    Neither scale is lost to a scheme that scales rows and columns; the one on the inner
    dimension widens every row.
    """
    rows = rng.integers(low, high, (shape[0], 1), endpoint=True)
    cols = rng.integers(low, high, shape[1], endpoint=True)
    return np.ldexp(rng.uniform(-1.0, 1.0, shape), rows + cols).astype(dtype)


def graded(
    rng: np.random.Generator,
    shape: Shape,
    low: int,
    high: int,
    dtype: DTypeLike = np.float64,
) -> NDArray[Any]:
    """Return U with U_ij about 2**(r_i + s_j): both exponents fall evenly from high
    (first) to low (last).
    """
    rows, cols = (
        np.rint(np.linspace(high, low, size)).astype(np.int64) for size in shape
    )
    return np.ldexp(
        rng.uniform(0.5, 1.0, shape) * random_signs(rng, shape), rows[:, None] + cols
    ).astype(dtype)


def with_units(a: NDArray[Any], b: NDArray[Any], span: int) -> Pair:
    """Return A D and D**-1 B, whose product is A B, for powers of two D over `span`
    bits: in an order that looks random, always the same for one k.
    """
    exponents = np.round(np.linspace(-span / 2, span / 2, a.shape[1])).astype(int)
    np.random.default_rng(0).shuffle(exponents)
    d = np.ldexp(1.0, exponents)
    return (a * d).astype(a.dtype), (b / d[:, None]).astype(b.dtype)


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
    """Return [X, X] and [[Y], [-Y]]: the exact product is zero in every entry, whatever
    the sizes of the terms.

    Parameters
    ----------
    rng : numpy.random.Generator
    m, k, n : int
        Odd k has one column of a left over, which is zero.
    dtype : float32 or float64
    span_bits : int
        Exponents of X and Y are uniform over [-span_bits // 2, span_bits // 2].
    perturb : bool
        Move every entry of the second X by one unit in its last place up, down or not
        at all: the exact product is then about u |A||B|, all that is left of it lies
        below what a native product resolves.
    """
    half, limit = k // 2, span_bits // 2
    x = exp_rand(rng, (m, half), -limit, limit, dtype)
    y = exp_rand(rng, (half, n), -limit, limit, dtype)
    again = (
        np.nextafter(x, x * rng.integers(0, 3, x.shape).astype(dtype)) if perturb else x
    )
    a = np.hstack([x, again, np.zeros((m, k - 2 * half), dtype)])
    b = np.vstack([y, -y, exp_rand(rng, (k - 2 * half, n), -limit, limit, dtype)])
    return _shuffle(rng, a, b)


def ties(
    rng: np.random.Generator,
    m: int,
    k: int,
    n: int,
    dtype: DTypeLike = np.float64,
    *,
    nudge_bits: int = 0,
) -> Pair:
    """Return a pair whose exact product lies, in every entry, midway between two
    adjacent numbers of dtype.

    One term of each sum is the product of two odd integers that has exactly t + 1 bits;
    the others are of comparable size and cancel exactly. Rows and columns are scaled by
    powers of two within 2**-20..2**20.

    Parameters
    ----------
    rng : numpy.random.Generator
    m, k, n : int
        k at least 1, at least 2 with a nudge.
    dtype : float32 or float64
    nudge_bits : int
        If positive, one more term moves every entry off its midpoint by 2**-nudge_bits
        of the entry or less, up or down: rounding twice, or without all bits, goes
        wrong in about half of the entries. 26 to 200 for float32, 55 to 1900 for
        float64.
    """
    t = np.finfo(np.dtype(dtype)).nmant + 1
    if k < 1 + bool(nudge_bits) or 0 < nudge_bits < t + 2:
        raise ValueError(
            f"no ties of {t} bits for k = {k} and nudge_bits = {nudge_bits}"
        )
    left_bits = (t + 1) // 2
    rows, cols = (rng.integers(-20, 21, size) for size in ((m, 1), (1, n)))
    blocks_a = [_odd(rng, (m, 1), left_bits) * 2.0**-left_bits]
    blocks_b = [_odd(rng, (1, n), t + 1 - left_bits) * 2.0 ** -(t + 1 - left_bits)]
    if nudge_bits:
        blocks_a.append(random_signs(rng, (m, 1)) * 2.0 ** -(nudge_bits // 2 + 1))
        blocks_b.append(
            random_signs(rng, (1, n)) * 2.0 ** -(nudge_bits - nudge_bits // 2 + 1)
        )
    noise = cancelling(rng, m, k - len(blocks_a), n, dtype, span_bits=4)
    a = np.ldexp(np.hstack([*blocks_a, noise[0]]), rows).astype(dtype)
    b = np.ldexp(np.vstack([*blocks_b, noise[1]]), cols).astype(dtype)
    return _shuffle(rng, a, b)


def overflowing(
    rng: np.random.Generator, m: int, k: int, n: int, dtype: DTypeLike = np.float64
) -> Pair:
    """Return a pair with exact results on both sides of the overflow threshold, and
    partial sums far beyond it.

    With k >= 2 the results of most rows are +-(largest + d ulp / 4), d an integer from
    -3 to 6: rounded they are the largest number for d <= 1 and Inf from d = 2, the
    exact midpoint, on. One row in four is scaled down by 2**-1 to 2**-30, so its
    results are ordinary. The remaining terms overflow one by one and cancel exactly, so
    that native products give Inf or NaN. With k = 1 the products lie within a factor of
    four around the threshold.
    """
    info = np.finfo(np.dtype(dtype))
    t, emax = info.nmant + 1, info.maxexp - 1
    if k < 2:
        return exp_rand(rng, (m, k), 1, 1, dtype), exp_rand(
            rng, (k, n), emax - 2, emax - 1, dtype
        )
    half = emax // 2
    scale = np.where(rng.random((m, 1)) < 0.25, -rng.integers(1, 31, (m, 1)), 0)
    # Units of the second term: ulp / 4 = 2**(emax - t - 1), split over both factors.
    main_a = np.hstack(
        [np.full((m, 1), 2.0**half), rng.integers(0, 4, (m, 1)) * 2.0 ** (half - t)]
    )
    largest = np.ldexp(float(2**t - 1), emax - (t - 1) - half)
    main_b = np.vstack(
        [
            np.full((1, n), largest),
            rng.integers(-1, 3, (1, n)) * 2.0 ** (emax - half - 1),
        ]
    )
    signs = random_signs(rng, (m, 1))
    noise = cancelling(rng, m, k - 2, n, dtype, span_bits=2)
    a = np.ldexp(
        np.hstack([main_a * signs, np.ldexp(noise[0].astype(np.float64), emax - 2)]),
        scale,
    ).astype(dtype)
    b = np.vstack([main_b, np.ldexp(noise[1].astype(np.float64), half)]).astype(dtype)
    return _shuffle(rng, a, b)


def underflowing(
    rng: np.random.Generator, m: int, k: int, n: int, dtype: DTypeLike = np.float64
) -> Pair:
    """Return a pair with results around and below the smallest normal number, from zero
    on.

    The terms of one column of the product are within a factor of 2**9 of each other;
    the columns spread evenly from 2**-8 of the smallest subnormal to 2**8 times the
    smallest normal number. Every other row and column has significands of two bits, so
    that exact results midway between two subnormals are common.
    """
    info = np.finfo(np.dtype(dtype))
    middle = info.minexp // 2
    columns = rng.integers(
        info.minexp - info.nmant - 6 - middle,
        info.minexp - middle,
        (1, n),
        endpoint=True,
    )
    a = exp_rand(rng, (m, k), middle - 2, middle + 2, dtype)
    b = random_floats(rng, (k, n), columns + rng.integers(0, 4, (k, n)), dtype)
    for x in (a[::2], b[:, ::2]):
        significand, exponent = np.frexp(x)
        x[:] = np.ldexp(np.rint(4 * significand), exponent - 2)
    return a, b


def vanishing(
    rng: np.random.Generator, m: int, k: int, n: int, dtype: DTypeLike = np.float64
) -> Pair:
    """Return [X, X'] and [[Y], [-Y']], X and X' subnormal and Y, Y' of any exponent:
    what the products leave is 0 or a few bits, most often below the smallest number.

    X' and Y' differ from X and Y by one unit in few entries. Odd k has one column of a
    left over, which is zero.
    """
    info = np.finfo(np.dtype(dtype))
    least = info.minexp - info.nmant
    half = k // 2
    # Significands of all lengths, half of them long: sums in words are not exact then.
    dropped = int(rng.choice([rng.integers(0, 3), rng.integers(0, info.nmant)]))
    bound = 2 ** (info.nmant - dropped)
    x = rng.integers(-bound, bound, (m, half))
    y = rng.integers(-bound, bound, (half, n))
    again_x = x + rng.integers(-1, 2, x.shape) * (rng.random(x.shape) < 0.3)
    again_y = y + rng.integers(-1, 2, y.shape) * (rng.random(y.shape) < 0.1)
    a = np.hstack([x, again_x, np.zeros((m, k - 2 * half))])
    b = np.vstack([y, -again_y, np.ones((k - 2 * half, n))])
    exponent = least + int(rng.integers(0, 2) * rng.integers(0, info.maxexp))
    return _shuffle(
        rng, np.ldexp(a, least).astype(dtype), np.ldexp(b, exponent).astype(dtype)
    )


def half_the_smallest(
    rng: np.random.Generator, m: int, k: int, n: int, dtype: DTypeLike = np.float64
) -> Pair:
    """Return a pair whose products are multiples, by integers up to 16, of 2**-6 to 1
    times the smallest subnormal number: zeros, ties at half of it, and what lies beside
    them.
    """
    info = np.finfo(np.dtype(dtype))
    least = info.minexp - info.nmant
    of_a = least // 2 + int(rng.integers(-30, 31))
    of_b = least - of_a - rng.integers(0, 7, (1, n))
    a = np.ldexp(rng.integers(-4, 5, (m, k)).astype(float), of_a)
    b = np.ldexp(rng.integers(-4, 5, (k, n)).astype(float), of_b)
    return a.astype(dtype), b.astype(dtype)


def signed_zeros(
    rng: np.random.Generator, m: int, k: int, n: int, dtype: DTypeLike = np.float64
) -> Pair:
    """Return zeros of both signs beside plus and minus one power of two for each
    operand: results are exact zeros, or a few units of 1/8 to 4 times the smallest
    subnormal number.
    """
    info = np.finfo(np.dtype(dtype))
    least = info.minexp - info.nmant
    of_a = least // 2 + int(rng.integers(-30, 31))
    of_b = least - of_a - int(rng.integers(-2, 4))
    units_of_a, units_of_b = (
        rng.choice([0.0, -0.0, 1.0, -1.0], shape) for shape in ((m, k), (k, n))
    )
    return (
        np.ldexp(units_of_a, of_a).astype(dtype),
        np.ldexp(units_of_b, of_b).astype(dtype),
    )


def _odd(rng: np.random.Generator, shape: Shape, bits: int) -> NDArray[np.int64]:
    """Odd integers of random sign in [3/4, 1) 2**bits: a product of two has as many
    bits as both together.
    """
    return random_signs(rng, shape) * (
        2 * rng.integers(3 << (bits - 3), 4 << (bits - 3), shape) + 1
    )


def _shuffle(rng: np.random.Generator, a: NDArray[Any], b: NDArray[Any]) -> Pair:
    order = rng.permutation(a.shape[1])
    return a[:, order], b[order]
