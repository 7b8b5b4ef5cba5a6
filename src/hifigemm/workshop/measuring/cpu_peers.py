"""Other packages that multiply more accurately than a BLAS on a CPU, as peers.

Products of matrices: python-flint's balls (arb) and mpmath, from 212 bits, with which
sums that cancel by a hundred bits round correctly still, and accupy's Dot2. Dot
products: accupy, and Python's `math.fsum` and `math.sumprod`. All begin and end with
arrays of NumPy.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import Workload

Array = NDArray[np.float64]

BITS = 212
"""Precision of python-flint and mpmath: twice that of a product of two float64."""

LARGEST = {"python-flint": 2**21, "mpmath": 2**15, "accupy": 2**21}
"""Multiplications of products of matrices, at most: larger ones take seconds."""

MODULES = {"python-flint": "flint"}
"""Modules of packages that have another name."""


def by_flint(a: Array, b: Array) -> Array:
    """A B by python-flint: from arrays to balls, their product, and back."""
    flint = import_module("flint")
    flint.ctx.prec = BITS
    product = flint.arb_mat(a.tolist()) * flint.arb_mat(b.tolist())
    return np.array([[float(ball) for ball in row] for row in product.tolist()])


def by_mpmath(a: Array, b: Array) -> Array:
    """A B by mpmath: from arrays to matrices, their product, and back."""
    mpmath = import_module("mpmath")
    mpmath.mp.prec = BITS
    product = mpmath.matrix(a.tolist()) * mpmath.matrix(b.tolist())
    return np.array(product.tolist(), dtype=float)


def by_accupy(a: Array, b: Array) -> Array:
    """A B by Dot2 of accupy: as if in twice the precision, rounded once."""
    product: Array = import_module("accupy").kdot(a, b, K=2)
    return np.asarray(product)


def by_fsum(a: Array, b: Array) -> Array:
    """The dot product of a row and a column, by `math.fsum` of products and their
    errors: correctly rounded.

    Errors of products by Dekker's splitting, for entries below 2**996.
    """
    x = a[0]
    y = b[:, 0]
    products = x * y
    x_high, x_low = _halves(x)
    y_high, y_low = _halves(y)
    excess = ((products - x_high * y_high) - x_low * y_high) - x_high * y_low
    errors = x_low * y_low - excess
    terms = np.concatenate([products, errors])
    return np.array([[math.fsum(terms.tolist())]])


def _halves(x: Array) -> tuple[Array, Array]:
    """x = high + low with 26 bits each, by Dekker's splitting."""
    scaled = x * 134217729.0  # 2**27 + 1
    high = scaled - (scaled - x)
    return high, x - high


def by_sumprod(a: Array, b: Array) -> Array:
    """The dot product of a row and a column by `math.sumprod`: as if in three words."""
    sumprod: Callable[..., float] = math.sumprod  # type: ignore[attr-defined, unused-ignore]
    return np.array([[sumprod(a[0].tolist(), b[:, 0].tolist())]])


PRODUCTS = {"python-flint": by_flint, "mpmath": by_mpmath, "accupy": by_accupy}
DOT_PRODUCTS = {"fsum": by_fsum, "sumprod": by_sumprod}


def is_there(name: str) -> bool:
    """True if a peer can be used here."""
    if name == "sumprod":
        return sys.version_info >= (3, 12)
    return name == "fsum" or find_spec(MODULES.get(name, name)) is not None


def multiplies(name: str, device: str, load: Workload) -> bool:
    """True if a peer multiplies this in a time that a benchmark has."""
    if device != "cpu" or load.batch != 1 or load.dtype != "float64":
        return False
    if name in DOT_PRODUCTS:
        return load.m == load.n == 1
    return load.m * load.n * load.k <= LARGEST[name]


def prepare(
    function: Callable[[Array, Array], Array], a: Any, b: Any, out: Any
) -> Callable[[], object]:
    """What writes A B into `out`."""

    def run() -> None:
        out[...] = function(a, b)

    return run


def facts() -> list[tuple[str, Any, Any, Any]]:
    """The fields of a `Peer` for each of these packages."""
    fields = []
    for name, function in {**PRODUCTS, **DOT_PRODUCTS}.items():
        available = partial(is_there, name)
        supports = partial(multiplies, name)
        fields.append((name, available, supports, partial(prepare, function)))
    return fields
