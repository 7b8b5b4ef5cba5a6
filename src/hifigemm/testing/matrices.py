"""Matrices of the papers, and what generators of harder ones are made of.

Every generator takes an explicit ``numpy.random.Generator``; the same generator state
gives the same matrix. dtype is float32 or float64 (float16 works where its range
suffices); all entries are finite.

References: [MOOI20] doi:10.1007/978-3-030-50743-5_12, [OY22]
doi:10.1177/10943420221090256.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

Shape = tuple[int, ...]
Pair = tuple[NDArray[Any], NDArray[Any]]
Range = tuple[int, int]

EXPONENT_FAMILIES: dict[str, tuple[Range, Range]] = {
    "type1": ((-15, 14), (-15, 14)),
    "type2": ((-35, -15), (-35, -15)),
    "type3": ((-100, -35), (-100, -35)),
    "type4": ((-15, 14), (-100, -35)),
}
"""Exponent ranges (low, high) of A and B, after [OY22]: the range of FP16, below it,
far below it, and the first range for A with the third for B.
"""


def random_signs(rng: np.random.Generator, shape: Shape) -> NDArray[np.int64]:
    """Return +1 and -1 with equal probability."""
    return 1 - 2 * rng.integers(0, 2, shape)


def random_floats(
    rng: np.random.Generator,
    shape: Shape,
    exponent: ArrayLike,
    dtype: DTypeLike = np.float64,
) -> NDArray[Any]:
    """Return random signs and uniform significands in [1, 2) of all t bits, times
    ``2**exponent``.

    Below the normal range the significand is cut to the bits that dtype has there,
    finally to zero.

    Parameters
    ----------
    rng : numpy.random.Generator
        The same state gives the same matrix.
    shape : tuple of int
    exponent : array_like of int
        Broadcast to the shape; each is at most the largest of dtype.
    dtype : dtype
        float32 or float64; float16 if its range suffices.

    Examples
    --------
    >>> import numpy as np
    >>> from hifigemm.testing import random_floats
    >>> x = random_floats(np.random.default_rng(0), (2, 3), 10)
    >>> bool((abs(x) >= 2.0**10).all() and (abs(x) < 2.0**11).all())
    True
    """
    info = np.finfo(np.dtype(dtype))
    exponent = np.broadcast_to(exponent, shape)
    significand = rng.integers(1 << info.nmant, 2 << info.nmant, shape)
    fraction_bits = np.clip(exponent - info.minexp + info.nmant, -1, info.nmant)
    significand >>= info.nmant - fraction_bits
    signed = random_signs(rng, shape) * significand
    return np.ldexp(signed, exponent - fraction_bits).astype(dtype)


def phi_matrix(
    rng: np.random.Generator, shape: Shape, phi: float, dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """Return ``(rand - 0.5) * exp(phi * randn)``, rand uniform on [0, 1), randn standard
    normal ([MOOI20], section 4).

    Values beyond the range of dtype become its largest ones.

    Parameters
    ----------
    rng : numpy.random.Generator
        The same state gives the same matrix.
    shape : tuple of int
    phi : float
        Widens the range of exponents: 0.1, 1 and 2 in the paper.
    dtype : dtype
        float32 or float64; float16 if its range suffices.

    Examples
    --------
    >>> import numpy as np
    >>> from hifigemm.testing import phi_matrix
    >>> phi_matrix(np.random.default_rng(0), (100, 50), phi=2.0).shape
    (100, 50)
    """
    largest = float(np.finfo(np.dtype(dtype)).max)
    rand = rng.random(shape)
    randn = rng.standard_normal(shape)
    growth = np.exp(np.clip(phi * randn, -700.0, 700.0))
    return np.clip((rand - 0.5) * growth, -largest, largest).astype(dtype)


def uniform(
    rng: np.random.Generator,
    shape: Shape,
    low: float = -1.0,
    high: float = 1.0,
    dtype: DTypeLike = np.float64,
) -> NDArray[Any]:
    """Return entries drawn uniformly from [low, high) in float64, then rounded to
    dtype.

    Parameters
    ----------
    rng : numpy.random.Generator
        The same state gives the same matrix.
    shape : tuple of int
    low, high : float
        The ends of the interval.
    dtype : dtype
        float32 or float64; float16 if its range suffices.

    Examples
    --------
    >>> import numpy as np
    >>> from hifigemm.testing import uniform
    >>> uniform(np.random.default_rng(0), (2, 3), dtype=np.float32).dtype
    dtype('float32')
    """
    return rng.uniform(low, high, shape).astype(dtype)


def exp_rand(
    rng: np.random.Generator,
    shape: Shape,
    low: int,
    high: int,
    dtype: DTypeLike = np.float64,
) -> NDArray[Any]:
    """Return random signs, uniform significands in [1, 2), exponents uniform over the
    integers low..high ([OY22]).

    All t bits of the significand are random; subnormal results have fewer. The four
    families of the paper are in `EXPONENT_FAMILIES`.

    Parameters
    ----------
    rng : numpy.random.Generator
        The same state gives the same matrix.
    shape : tuple of int
    low, high : int
        The least and the largest exponent.
    dtype : dtype
        float32 or float64; float16 if its range suffices.

    Examples
    --------
    >>> import numpy as np
    >>> from hifigemm.testing import exp_rand
    >>> x = exp_rand(np.random.default_rng(0), (100, 50), -15, 14)
    >>> bool(abs(x).min() >= 2.0**-15 and abs(x).max() < 2.0**15)
    True
    """
    exponents = rng.integers(low, high, shape, endpoint=True)
    return random_floats(rng, shape, exponents, dtype)


def hilbert(n: int, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return the n x n Hilbert matrix 1 / (i + j + 1), i and j from 0, each entry
    rounded to dtype.

    Parameters
    ----------
    n : int
        Rows and columns.
    dtype : dtype
        float16, float32 or float64.

    Examples
    --------
    >>> from hifigemm.testing import hilbert
    >>> hilbert(2)
    array([[1.        , 0.5       ],
           [0.5       , 0.33333333]])
    """
    index = np.arange(n)
    return np.reciprocal((index[:, None] + index + 1).astype(dtype))


def inverse_hilbert(n: int) -> NDArray[np.float64]:
    """Return the inverse of the n x n Hilbert matrix: exact integers, each rounded to
    float64.

    Exact up to n = 12, where the largest entry has 48 bits before its trailing zeros;
    rounded from n = 13 on. Condition number about 2^(5 n).

    Parameters
    ----------
    n : int
        Rows and columns.

    Examples
    --------
    >>> from hifigemm.testing import inverse_hilbert
    >>> inverse_hilbert(2)
    array([[ 4., -6.],
           [-6., 12.]])
    """
    inverse = np.empty((n, n))
    for i, j in np.ndindex(n, n):
        magnitude = i + j + 1
        magnitude *= math.comb(n + i, n - j - 1)
        magnitude *= math.comb(n + j, n - i - 1)
        magnitude *= math.comb(i + j, i) ** 2
        inverse[i, j] = float(-magnitude if (i + j) % 2 else magnitude)
    return inverse


def exponent_family(
    rng: np.random.Generator,
    family: str,
    m: int,
    k: int,
    n: int,
    dtype: DTypeLike = np.float32,
) -> Pair:
    """Return a pair with random signs, uniform significands and exponents uniform over
    ``EXPONENT_FAMILIES[family]``.

    Parameters
    ----------
    rng : numpy.random.Generator
        The same state gives the same matrix.
    family : "type1", "type2", "type3" or "type4"
        A name of `EXPONENT_FAMILIES`.
    m, k, n : int
        The shapes are (m, k) and (k, n).
    dtype : dtype
        float32 or float64; float16 if its range suffices.

    Examples
    --------
    >>> import numpy as np
    >>> from hifigemm.testing import exponent_family
    >>> a, b = exponent_family(np.random.default_rng(0), "type4", 2, 3, 4)
    >>> a.shape, b.shape
    ((2, 3), (3, 4))
    """
    left, right = EXPONENT_FAMILIES[family]
    return exp_rand(rng, (m, k), *left, dtype), exp_rand(rng, (k, n), *right, dtype)


def as_complex(
    generate: Callable[..., Any], rng: np.random.Generator, *args: Any, **kwargs: Any
) -> Any:
    """Return re + i im with re and im from two independent calls of a generator.

    float32 gives complex64, float64 complex128.

    Parameters
    ----------
    generate : callable
        Called twice as ``generate(rng, *args, **kwargs)``. It may return one matrix, or
        a pair, of which both members become complex.
    rng : numpy.random.Generator
        The same state gives the same matrix.
    *args, **kwargs
        Further arguments of the generator.

    Examples
    --------
    >>> import numpy as np
    >>> from hifigemm.testing import as_complex, uniform
    >>> as_complex(uniform, np.random.default_rng(0), (2, 3)).dtype
    dtype('complex128')
    """
    real = generate(rng, *args, **kwargs)
    imag = generate(rng, *args, **kwargs)
    if isinstance(real, tuple):
        return tuple(_join(re, im) for re, im in zip(real, imag, strict=True))
    return _join(real, imag)


def _join(real: NDArray[Any], imag: NDArray[Any]) -> NDArray[Any]:
    joined = np.empty(real.shape, np.result_type(real, np.complex64))
    joined.real = real
    joined.imag = imag
    return joined


def span_pair(rng: np.random.Generator, n: int, span: int, *, opposite: bool) -> Pair:
    """Return A D and D^-1 B, or A D and B, for powers of two D whose exponents are
    uniform over span + 1 values.

    Parameters
    ----------
    rng : numpy.random.Generator
        The same state gives the same matrix.
    n : int
        Rows and columns of both.
    span : int
        The width of the exponents of D in bits.
    opposite : bool
        True for A D and D^-1 B, whose product is A B.

    Examples
    --------
    >>> import numpy as np
    >>> from hifigemm.testing import span_pair
    >>> a, b = span_pair(np.random.default_rng(0), 20, span=60, opposite=True)
    >>> bool(abs(a).max() > 2.0**15 and abs(a @ b).max() < 2.0**15)
    True
    """
    a, b = _phi_pair(rng, n, 0.5)
    exponent = rng.integers(0, span, n, endpoint=True) - span // 2
    if opposite:
        b = np.ldexp(b, -exponent[:, None])
    return np.ldexp(a, exponent), b


def _phi_pair(rng: np.random.Generator, n: int, phi: float) -> Pair:
    return phi_matrix(rng, (n, n), phi), phi_matrix(rng, (n, n), phi)


def _one_large_column(rng: np.random.Generator, n: int) -> Pair:
    a, b = _phi_pair(rng, n, 0.5)
    a[:, n // 2] *= 2.0**60
    return a, b


def _one_large_entry(rng: np.random.Generator, n: int) -> Pair:
    a, b = _phi_pair(rng, n, 0.5)
    a[n // 3, n // 2] *= 2.0**300
    return a, b


def _few_large_entries(rng: np.random.Generator, n: int) -> Pair:
    a, b = _phi_pair(rng, n, 0.5)
    a[rng.random((n, n)) < 1e-4] *= 2.0**80
    return a, b


def _graded_rows(rng: np.random.Generator, n: int) -> Pair:
    """Rows of A and columns of B times powers of two over 60 bits, which scaling takes
    out again.
    """
    a, b = _phi_pair(rng, n, 0.5)
    row_exponents = rng.integers(-30, 30, n, endpoint=True)
    column_exponents = rng.integers(-30, 30, n, endpoint=True)
    return np.ldexp(a, row_exponents[:, None]), np.ldexp(b, column_exponents)


def _orthogonal(rng: np.random.Generator, n: int) -> Pair:
    """Q^T and Q, whose product is nearly the identity: all other entries cancel."""
    q = np.linalg.qr(phi_matrix(rng, (n, n), 0.5))[0]
    return np.ascontiguousarray(q.T), q


def _short_integers(rng: np.random.Generator, n: int) -> Pair:
    a = rng.integers(-(2**20), 2**20, (n, n))
    b = rng.integers(-(2**20), 2**20, (n, n))
    return a.astype(np.float64), b.astype(np.float64)


def _underflowing(rng: np.random.Generator, n: int) -> Pair:
    """Products of about 2**-1020, some of which are subnormal numbers."""
    a, b = _phi_pair(rng, n, 0.5)
    return a * 2.0**-510, b * 2.0**-510


COST_FAMILIES: dict[str, Callable[[np.random.Generator, int], Pair]] = {
    "phi 0.5": partial(_phi_pair, phi=0.5),
    "phi 1": partial(_phi_pair, phi=1.0),
    "phi 2": partial(_phi_pair, phi=2.0),
    "phi 4": partial(_phi_pair, phi=4.0),
    "phi 8": partial(_phi_pair, phi=8.0),
    "phi 20": partial(_phi_pair, phi=20.0),
    "phi 60": partial(_phi_pair, phi=60.0),
    "A D, D^-1 B over 60 bits": partial(span_pair, span=60, opposite=True),
    "A D, D^-1 B over 200 bits": partial(span_pair, span=200, opposite=True),
    "A D, B over 60 bits": partial(span_pair, span=60, opposite=False),
    "A D, B over 200 bits": partial(span_pair, span=200, opposite=False),
    "one column of A times 2^60": _one_large_column,
    "one entry of A times 2^300": _one_large_entry,
    "one entry of A in 10^4 times 2^80": _few_large_entries,
    "rows graded": _graded_rows,
    "Q^T Q": _orthogonal,
    "Hilbert": lambda rng, n: (hilbert(n), hilbert(n)),
    "integers of 20 bits": _short_integers,
    "products near underflow": _underflowing,
}
"""Pairs of n x n matrices on which a product may cost more than on others: from tame
data to wide exponents everywhere, along the inner dimension or in one place, and data
that are short, that cancel or that underflow.
"""
