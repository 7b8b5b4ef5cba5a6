"""Random stacks of small matrices full of special values, and what IEEE arithmetic
makes of their products.

The oracle shares nothing with the library. An entry of a product is NaN if a term is
NaN (0 times Inf among them) or if there are terms +Inf and -Inf; it is an infinity if
infinite terms have one sign; otherwise it is finite, unless its exact value rounds to
Inf. That is what any order of summation gives, but for sums that overflow on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["SHAPES", "assert_special_values", "draw", "embedded", "operands", "pattern"]

SHAPES = [(m, k, n) for m in range(1, 6) for k in range(1, 6) for n in range(1, 6)]
_SHARES = np.array([0.0, 0.02, 0.1, 0.4, 0.8])
"""Of Inf and NaN among the entries of a matrix."""
_SLACK = 2.0**-40
"""More than the rounding of the oracle's own sums of at most ten terms."""


def _finite_pool(dtype, wide):
    info = np.finfo(dtype)
    pool = [0.0, -0.0, 1.0, -1.0, 0.75, -3.0]
    if wide:
        tiny, huge = float(info.smallest_normal), float(info.max)
        subnormal = float(info.smallest_subnormal)
        pool += [
            subnormal,
            -subnormal,
            -tiny / 2,
            tiny - subnormal,
            tiny,
            -tiny,
            huge,
            -huge,
            huge / 2,
            -huge / 64,
        ]
    return np.array(pool)


def _real(rng, shape, dtype, wide):
    pool, special = _finite_pool(dtype, wide), np.array([np.inf, -np.inf, np.nan])
    x = np.where(
        rng.random(shape) < 0.5, rng.uniform(-1, 1, shape), rng.choice(pool, shape)
    )
    share = rng.choice(_SHARES, (shape[0], 1, 1))
    return np.where(rng.random(shape) < share, rng.choice(special, shape), x).astype(
        dtype
    )


def draw(rng, shape, dtype, wide):
    """A stack (batch, rows, columns); `wide` adds subnormal numbers and those near the
    largest.
    """
    dtype = np.dtype(dtype)
    if dtype.kind != "c":
        return _real(rng, shape, dtype, wide)
    x = np.empty(shape, dtype)
    for part in (x.real, x.imag):
        part[...] = _real(rng, shape, part.dtype, wide)
    return x


def operands(seed, products, num_shapes, dtype, wide):
    """Pairs of stacks: so many products altogether, of shapes from 1 to 5 drawn without
    repetition.
    """
    rng = np.random.default_rng(seed)
    for at in rng.choice(len(SHAPES), num_shapes, replace=False):
        (m, k, n), batch = SHAPES[at], products // num_shapes
        yield (
            draw(rng, (batch, m, k), dtype, wide),
            draw(rng, (batch, k, n), dtype, wide),
        )


@dataclass
class _Sums:
    """Real products (batch, m, n): NaN, Inf or 0 for the pattern; the exact sums and
    sums of magnitudes of the finite.

    The latter are in units of 2**exponent.
    """

    pattern: np.ndarray
    value: np.ndarray
    size: np.ndarray
    exponent: np.ndarray


def _sums(a, b):
    x, y = a.astype(np.float64)[:, :, :, None], b.astype(np.float64)[:, None]
    infinite = np.isinf(x) | np.isinf(y)
    nan = np.isnan(x) | np.isnan(y) | (infinite & ((x == 0) | (y == 0)))
    negative = np.signbit(x) ^ np.signbit(y)
    plus, minus = (
        (infinite & ~nan & sign).any(axis=2) for sign in (~negative, negative)
    )
    pattern = np.where(plus, np.inf, np.where(minus, -np.inf, 0.0))
    pattern[nan.any(axis=2) | (plus & minus)] = np.nan
    finite = np.isfinite(x) & np.isfinite(y)
    (p, e), (q, f) = (
        np.frexp(np.where(finite, x, 0.0)),
        np.frexp(np.where(finite, y, 0.0)),
    )
    exponent = np.where(p * q == 0, -5000, e + f)
    top = exponent.max(axis=2, keepdims=True)
    terms = np.ldexp(p * q, np.maximum(exponent - top, -1000))
    return _Sums(pattern, terms.sum(axis=2), abs(terms).sum(axis=2), top[:, :, 0])


def embedded(a, b):
    """Real operands whose products are the real and the imaginary parts of a
    product.
    """
    left = np.concatenate([a.real, a.imag], axis=2)
    return (left, np.concatenate([b.real, -b.imag], axis=1)), (
        left,
        np.concatenate([b.imag, b.real], axis=1),
    )


def pattern(a, b):
    """Inf and NaN of a product of stacks, and 0 for every component that is finite
    unless it overflows.
    """
    if "c" not in (a.dtype.kind, b.dtype.kind):
        return _sums(a, b).pattern
    re, im = (_sums(*pair).pattern for pair in embedded(a, b))
    return np.stack([re, im], axis=-1).view(np.complex128)[..., 0]


def _assert_real(found, a, b, bound):
    exact = _sums(a, b)
    special = exact.pattern != 0
    np.testing.assert_array_equal(
        found[special].astype(np.float64), exact.pattern[special]
    )
    assert not np.isnan(found[~special]).any()
    if not np.isfinite(bound):
        return
    emax = np.finfo(found.dtype).maxexp
    slack = (bound + _SLACK) * exact.size
    with np.errstate(over="ignore"):  # of bounds that say nothing
        surely, possibly = (
            np.ldexp(abs(exact.value) + s, np.clip(exact.exponent - emax, -1000, 1000))
            for s in (-slack, slack)
        )
    infinite = np.isinf(found)
    assert infinite[~special & (surely > 1)].all()
    assert not infinite[~special & (possibly < 1 - 2 * np.finfo(found.dtype).eps)].any()
    overflowed = ~special & infinite & (abs(exact.value) > slack)
    assert (np.signbit(found) == np.signbit(exact.value))[overflowed].all()


def assert_special_values(found, a, b, bound=np.inf):
    """Inf and NaN are where they belong, for results of a promise of `bound`; inf:
    overflow to Inf is not judged.
    """
    if found.dtype.kind != "c":
        _assert_real(found, a, b, bound)
        return
    for part, pair in zip((found.real, found.imag), embedded(a, b)):
        _assert_real(part, *pair, bound)
