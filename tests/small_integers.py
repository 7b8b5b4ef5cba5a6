"""Operands of small integers, whose products every scheme makes exactly, and the
schemes and dtypes to make them with.
"""

from __future__ import annotations

import numpy as np

import hifigemm as hg

DTYPES = ("float32", "float64", "complex64", "complex128")


SCHEMES = (
    "auto",
    "native",
    "ozaki1",
    hg.Ozaki1(product="fp64"),
    hg.Ozaki1(mode="dp"),
    "ozaki2",
    hg.Ozaki2(scaling="fast"),
)


def small_integers(shape, dtype, seed=0):
    """Exact in every scheme, so that results can be compared with NumPy's."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-4, 5, shape).astype(dtype)
    return x + 1j * rng.integers(-4, 5, shape) if x.dtype.kind == "c" else x
