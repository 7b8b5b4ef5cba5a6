"""Pairs (A, B), square, on which a componentwise promise |C - AB| <= r |A||B| is put to
the test.

Products that are accurate for the largest entries of rows and columns alone fail on
most of them. [DHKLLRV26] grades an implementation by the growth over n of the largest
|C - AB| / (u |A||B|); the families below are named after what makes that hard. All
finite, float64, results normal numbers or zeros that are exact.

References: [DHKLLRV26] arXiv:2609.12307, [MOOI20] doi:10.1007/978-3-030-50743-5_12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hifigemm.testing.matrices import exp_rand, hilbert, phi_matrix, uniform

__all__ = ["FAMILIES", "SPAN", "make_pair", "subnormal", "vandermonde"]

Shape = tuple[int, ...]
Pair = tuple[NDArray[Any], NDArray[Any]]

SPAN = 500
"""Exponents of scales lie within -SPAN..SPAN, so that products of two scales and sums
of them do not overflow.
"""


def subnormal(
    rng: np.random.Generator, shape: Shape, dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """Return nonzero subnormal numbers of random sign, their leading bits uniform over
    all positions.
    """
    info = np.finfo(np.dtype(dtype))
    return exp_rand(rng, shape, info.minexp - info.nmant, info.minexp - 1, dtype)


def vandermonde(
    rng: np.random.Generator, shape: Shape, dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """Return x_i**j with nodes x_i uniform on [-1, 1): rows that fall off
    geometrically, all at different rates.
    """
    nodes = rng.uniform(-1.0, 1.0, shape[0])
    return np.vander(nodes, shape[1], increasing=True).astype(dtype)


def reciprocal_circulants(rng: np.random.Generator, n: int) -> Pair:
    """Row i of A is v shifted by i, column j of B is 1/v shifted by j, v of all sizes
    from 2**-SPAN to 2**SPAN.

    Every term of a diagonal entry is 1 but for a rounding, so the entry is n up to n u,
    while row and column hold factors of 2**SPAN: what is small beside the largest
    entries of row and column is the whole result. After the tests of [DHKLLRV26] that
    tell products apart which are accurate in norms only.
    """
    v = exp_rand(rng, (n,), -SPAN, SPAN - 1)
    shifts = (np.arange(n) - np.arange(n)[:, None]) % n
    return v[shifts], np.reciprocal(v)[shifts].T.copy()


def scaled_rows_and_columns(rng: np.random.Generator, n: int) -> Pair:
    """Rows of A and columns of B times powers of two from 2**-SPAN to 2**SPAN; entries
    uniform on (-1, 1) before.
    """
    rows, cols = _powers(rng, (n, 1)), _powers(rng, (1, n))
    return uniform(rng, (n, n)) * rows, uniform(rng, (n, n)) * cols


def scaled_inner_dimension(rng: np.random.Generator, n: int) -> Pair:
    """A D and D**-1 B, D powers of two from 2**-SPAN to 2**SPAN: the product of A and
    B, uniform on (-1, 1).
    """
    inner = _powers(rng, (n,))
    return uniform(rng, (n, n)) * inner, uniform(rng, (n, n)) / inner[:, None]


def alternating_hilbert(rng: np.random.Generator, n: int) -> Pair:
    """The Hilbert matrix, and the same with the signs of a chessboard, as its inverse
    has them.
    """
    x = hilbert(n)
    return x, x * (1 - 2 * (np.add.outer(np.arange(n), np.arange(n)) % 2))


def scaled_blocks(
    rng: np.random.Generator, n: int, count: int = 8, span: int = 60
) -> Pair:
    """Blocks, count x count of them, each times its own power of two from 2**-span to
    2**span.
    """
    at = np.arange(n) * count // n

    def one() -> NDArray[Any]:
        scales = np.ldexp(1.0, rng.integers(-span, span, (count, count), endpoint=True))
        return uniform(rng, (n, n)) * scales[np.ix_(at, at)]

    return one(), one()


def subnormal_and_large(rng: np.random.Generator, n: int) -> Pair:
    """Subnormal numbers in A, numbers from 2**500 to 2**1000 in B."""
    return subnormal(rng, (n, n)), exp_rand(rng, (n, n), 500, 1000)


def _powers(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    return np.ldexp(1.0, rng.integers(-SPAN, SPAN, shape, endpoint=True))


def _both(
    generate: Callable[..., NDArray[Any]], *parameters: float
) -> Callable[[np.random.Generator, int], Pair]:
    return lambda rng, n: (
        generate(rng, (n, n), *parameters),
        generate(rng, (n, n), *parameters),
    )


FAMILIES: dict[str, Callable[[np.random.Generator, int], Pair]] = {
    "uniform": _both(uniform),
    **{f"phi {phi:g}": _both(phi_matrix, phi) for phi in (0.5, 1.0, 2.0, 4.0, 8.0)},
    "Hilbert": alternating_hilbert,
    "Vandermonde": lambda rng, n: (
        vandermonde(rng, (n, n)),
        vandermonde(rng, (n, n)).T.copy(),
    ),
    "rows, columns scaled": scaled_rows_and_columns,
    "blocks scaled": scaled_blocks,
    "subnormal": subnormal_and_large,
    "inner dimension scaled": scaled_inner_dimension,
    "circulants": reciprocal_circulants,
}
"""Functions (rng, n) by name, about in order of what they take."""


def make_pair(family: str, n: int, seed: int = 0) -> Pair:
    """A and B of a family, n x n; the same for the same arguments."""
    return FAMILIES[family](np.random.default_rng([seed, n, *family.encode()]), n)
