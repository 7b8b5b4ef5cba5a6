"""Functions that return a number: dot products, sums, norms and indices."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from tests.blas.reductions import reduction_fault
from tests.blas.routines import DTYPES, INTERFACES, REDUCTIONS, reduce
from tests.exact_values import exact_entries, rounded_once


@pytest.mark.parametrize("name", REDUCTIONS)
def test_numbers_are_what_the_exact_ones_round_to(library, name):
    """Dot products and sums rounded once, norms next to the exact one, first indices."""
    for draw in range(400 if name.endswith("amax") else 30):
        rng = np.random.default_rng([draw, zlib.crc32(name.encode())])
        assert reduction_fault(library, rng, name) is None, draw


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
