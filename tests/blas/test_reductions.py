"""Dot products and norms."""

from __future__ import annotations

import zlib
from fractions import Fraction

import numpy as np
import pytest

from tests.blas.cases import pair_of, stored_vector
from tests.blas.routines import (
    COMPLEX_DOTS,
    DTYPES,
    INTERFACES,
    REDUCTIONS,
    is_exported,
    reduce,
)
from tests.exact_values import components, exact_entries, rounded_once

DOTS = [name for name in REDUCTIONS if "dot" in name]
SUMS = [name for name in REDUCTIONS if "asum" in name]
NORMS = [name for name in REDUCTIONS if "nrm2" in name]


def result_dtype(name):
    """The dtype of what a function returns."""
    if name in COMPLEX_DOTS:
        return np.dtype(DTYPES[name[0]])
    return np.dtype(np.float32 if name[0] == "s" else np.float64)


def draws(name, count=30):
    """An interface, a generator, and two vectors of equal length, for each of many calls."""
    interfaces = [x for x in INTERFACES if is_exported(x, name)]
    for index in range(count):
        rng = np.random.default_rng([index, zlib.crc32(name.encode())])
        n = int(2 ** rng.uniform(0, 11 if index % 10 == 0 else 6))
        x, y = pair_of(rng, 1, n, 1, DTYPES[REDUCTIONS[name]])
        yield interfaces[index % len(interfaces)], rng, np.ascontiguousarray(x.T), y


@pytest.mark.parametrize("name", DOTS)
def test_dot_products_are_rounded_once(library, name):
    dtype = result_dtype(name)
    for interface, rng, x, y in draws(name):
        addend = float(rng.choice([0.0, 1.5, -1e-20])) if name == "sdsdot" else 0.0
        addend = float(np.float32(addend))
        vectors = [stored_vector(rng, v) for v in (x, y)]
        left = x.conj().T if name.endswith("c") else x.T
        exact = exact_entries(left, y)
        exact[0] += Fraction(addend)
        expected = np.array([rounded_once(v, dtype.type(0).real.dtype) for v in exact])
        result = reduce(
            library, interface, name, len(x), [(v.data, v.ld) for v in vectors], addend
        )
        assert result.dtype == dtype
        expected = expected.astype(dtype.type(0).real.dtype).view(dtype)[0]
        assert result.tobytes() == expected.tobytes(), (interface, result, expected)


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_magnitudes_are_rounded_once(library, name):
    dtype = np.dtype(np.float32 if name in ("sasum", "scasum") else np.float64)
    for interface, rng, x, _ in draws(name):
        vector = stored_vector(rng, x)
        exact = sum(abs(v) for v in components(x))
        result = reduce(
            library, interface, name, len(x), [(vector.data, abs(vector.ld))]
        )
        assert float(result) == rounded_once(Fraction(exact), dtype)
        # As in the reference BLAS a negative increment gives zero.
        assert reduce(library, interface, name, len(x), [(vector.data, -1)]) == 0.0


@pytest.mark.parametrize("name", NORMS)
def test_norms_are_faithful(library, name):
    """The norm lies between the neighbours of the result, or is the result."""
    dtype = np.dtype(np.float32 if name in ("snrm2", "scnrm2") else np.float64)
    for interface, rng, x, _ in draws(name):
        vector = stored_vector(rng, x)
        square = Fraction(sum(v * v for v in components(x)))
        result = dtype.type(
            reduce(library, interface, name, len(x), [(vector.data, vector.ld)])
        )
        if np.isinf(result):
            assert square > Fraction(float(np.finfo(dtype).max)) ** 2
            continue
        below = np.nextafter(result, dtype.type(0))
        above = np.nextafter(result, dtype.type(np.inf))
        assert Fraction(float(below)) ** 2 < square or square == 0
        assert np.isinf(above) or square < Fraction(float(above)) ** 2


def test_norms_that_are_numbers_are_exact(library):
    x = np.array([3.0, 4.0]) * 2.0**600
    assert reduce(library, INTERFACES[0], "dnrm2", 2, [(x, 1)]) == 5.0 * 2.0**600
    tiny = np.array([3.0, 4.0]) * 2.0**-1074
    assert reduce(library, INTERFACES[0], "dnrm2", 2, [(tiny, 1)]) == 5.0 * 2.0**-1074


def test_empty_vectors_give_zero_or_the_addend(library):
    x = np.array([np.nan], np.float32)
    for name in ("sdot", "cdotu", "dsdot", "sasum", "snrm2"):
        count = 1 if name in ("sasum", "snrm2") else 2
        assert reduce(library, INTERFACES[1], name, 0, [(x, 1)] * count) == 0
    assert reduce(library, INTERFACES[0], "sdsdot", 0, [(x, 1)] * 2, 2.5) == 2.5


def test_increments_of_zero_repeat_an_entry(library):
    x, y = np.array([3.0]), np.arange(5.0)
    assert reduce(library, INTERFACES[0], "ddot", 5, [(x, 0), (y, 1)]) == 30.0


def test_lengths_of_64_bits_are_read_in_full(library):
    x, n = np.ones(1), 1 - 2**32  # 1 in 32 bits
    assert reduce(library, INTERFACES[2], "ddot", n, [(x, 1), (x, 1)]) == 0.0
    assert reduce(library, INTERFACES[6], "ddot", n, [(x, 1), (x, 1)]) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cdotc", "zdotu"])
def test_complex_vectors_that_are_too_long_for_copies_are_added_in_pieces(
    library, name
):
    dtype, n = DTYPES[name[0]], 2**26 + 3
    x, y = np.array([1e-20 + 3j], dtype), np.array([5 - 1e-20j], dtype)
    left = x.conj() if name.endswith("c") else x
    exact = [n * value for value in exact_entries(left[:, None], y[:, None])]
    expected = [rounded_once(value, x.real.dtype) for value in exact]
    result = reduce(library, INTERFACES[2], name, n, [(x, 0), (y, 0)])
    assert [float(result.real), float(result.imag)] == expected
