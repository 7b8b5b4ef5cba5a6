"""Calls of the functions of the BLAS that return a number, each judged exactly."""

from __future__ import annotations

import ctypes
from fractions import Fraction
from typing import Any

import numpy as np

from tests.blas.cases import pair_of, stored_vector
from tests.blas.routines import (
    COMPLEX_DOTS,
    DTYPES,
    INTERFACES,
    REDUCTIONS,
    Interface,
    is_exported,
    reduce,
)
from tests.exact_values import components, exact_entries, rounded_once

# Ties of magnitude, zeros of both signs, and what comparisons have rules for.
FEW = (0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 1e-42, np.inf, -np.inf, np.nan)


def reduction_fault(library: ctypes.CDLL, rng: Any, name: str) -> str | None:
    """What is wrong with the result of one call with any vectors, or None."""
    interface = INTERFACES[int(rng.integers(len(INTERFACES)))]
    if not is_exported(interface, name):
        interface = INTERFACES[2]
    n = int(2 ** rng.uniform(0, 11 if rng.random() < 0.1 else 6))
    if name.endswith("amax"):
        fault = _index_fault(library, interface, rng, name, n)
    else:
        x, y = pair_of(rng, 1, n, 1, DTYPES[REDUCTIONS[name]])
        x = np.ascontiguousarray(x.T)
        if "dot" in name:
            fault = _dot_fault(library, interface, rng, name, x, y)
        elif "asum" in name:
            fault = _sum_fault(library, interface, rng, name, x)
        else:
            fault = _norm_fault(library, interface, rng, name, x)
    return fault and f"{interface}: {name}: {fault}"


def _dot_fault(
    library: ctypes.CDLL,
    interface: Interface,
    rng: Any,
    name: str,
    x: np.ndarray,
    y: np.ndarray,
) -> str | None:
    """Dot products are rounded once."""
    dtype = _result_dtype(name)
    addend = float(rng.choice([0.0, 1.5, -1e-20])) if name == "sdsdot" else 0.0
    addend = float(np.float32(addend))
    vectors = [stored_vector(rng, v) for v in (x, y)]
    exact = exact_entries(x.conj().T if name.endswith("c") else x.T, y)
    exact[0] += Fraction(addend)
    real = np.empty(0, dtype).real.dtype
    expected = np.array([rounded_once(v, real) for v in exact], real).view(dtype)[0]
    pairs = [(v.data, v.ld) for v in vectors]
    result = reduce(library, interface, name, len(x), pairs, addend)
    if result.dtype == dtype and result.tobytes() == expected.tobytes():
        return None
    return f"{result!r} is not {expected!r}"


def _sum_fault(
    library: ctypes.CDLL, interface: Interface, rng: Any, name: str, x: np.ndarray
) -> str | None:
    """Sums of magnitudes are rounded once; as in the reference BLAS a negative increment
    gives zero.
    """
    vector = stored_vector(rng, x)
    exact = Fraction(sum(abs(v) for v in components(x)))
    expected = rounded_once(exact, _result_dtype(name)) if vector.ld > 0 else 0.0
    result = reduce(library, interface, name, len(x), [(vector.data, vector.ld)])
    return None if float(result) == expected else f"{result!r} is not {expected!r}"


def _norm_fault(
    library: ctypes.CDLL, interface: Interface, rng: Any, name: str, x: np.ndarray
) -> str | None:
    """A norm lies between the neighbours of the result, or is the result."""
    dtype = _result_dtype(name)
    vector = stored_vector(rng, x)
    square = Fraction(sum(v * v for v in components(x)))
    result = reduce(library, interface, name, len(x), [(vector.data, vector.ld)])
    result = dtype.type(result)
    if np.isinf(result):
        is_right = square > Fraction(float(np.finfo(dtype).max)) ** 2
    else:
        with np.errstate(over="ignore"):
            below = np.nextafter(result, dtype.type(0))
            above = np.nextafter(result, dtype.type(np.inf))
        is_right = Fraction(float(below)) ** 2 < square or square == 0
        is_right &= bool(np.isinf(above)) or square < Fraction(float(above)) ** 2
    return None if is_right else f"{result!r} is not next to the root of {square}"


def _index_fault(
    library: ctypes.CDLL, interface: Interface, rng: Any, name: str, n: int
) -> str | None:
    """The first entry of the largest magnitude is found; no increment below 1 has one."""
    x = _entries_with_ties(rng, n, DTYPES[REDUCTIONS[name]])
    vector = stored_vector(rng, x[:, None])
    result = reduce(library, interface, name, n, [(vector.data, vector.ld)])
    first = 0 if interface.is_c else 1
    expected = _plain_index(x) + first if vector.ld > 0 else 0
    return None if result == expected else f"{result} is not {expected} for {x}"


def _result_dtype(name: str) -> np.dtype[Any]:
    if name in COMPLEX_DOTS:
        return np.dtype(DTYPES[name[0]])
    return np.dtype(np.float32 if name[0] == "s" else np.float64)


def _plain_index(x: np.ndarray) -> int:
    """The definition, entry by entry: from 0 on."""
    with np.errstate(over="ignore"):
        magnitudes = np.abs(x.real)
        if x.dtype.kind == "c":
            magnitudes = magnitudes + np.abs(x.imag)
    leader = 0
    for i in range(1, len(x)):
        if magnitudes[i] > magnitudes[leader]:
            leader = i
    return leader


def _entries_with_ties(rng: Any, n: int, dtype: Any) -> np.ndarray:
    """Numbers of a few values, with ties, or of any value."""
    parts = rng.choice(FEW, (2, n), p=[0.1] * len(FEW))
    if rng.random() < 0.3:
        parts = rng.standard_normal((2, n)) * 10.0 ** rng.integers(-30, 30, (2, n))
    elif rng.random() < 0.6:
        parts = np.where(np.isfinite(parts), parts, 1.0)
    x = np.zeros(n, dtype)
    x.real = parts[0]
    if x.dtype.kind == "c":
        x.imag = parts[1]
    return x
