"""Matrices become symmetric or Hermitian by their lower triangles alone."""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.numerics.symmetric import mirror

DTYPES = np.float32, np.float64, np.complex64, np.complex128


def stack(dtype, batch=2, n=5):
    """Matrices without any symmetry, with an Inf below and a NaN above a diagonal."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal((batch, n, n)).astype(dtype)
    if x.dtype.kind == "c":
        x.imag = rng.standard_normal(x.shape)
    if n > 2:
        x[0, 2, 0] = np.inf
        x[0, 0, 1] = np.nan
    return x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_entries_above_the_diagonal_are_those_below(dtype, n):
    x = stack(dtype, n=n)
    before = x.copy()
    mirror(x, False)
    for i in range(n):
        for j in range(n):
            lower = before[:, max(i, j), min(i, j)]
            assert x[:, i, j].tobytes() == lower.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_hermitian_matrices_have_conjugates_above_and_a_real_diagonal(dtype, n):
    x = stack(dtype, n=n)
    before = x.copy()
    mirror(x, True)
    for i in range(n):
        assert x[:, i, i].tobytes() == before[:, i, i].real.astype(dtype).tobytes()
        for j in range(i):
            assert x[:, i, j].tobytes() == before[:, i, j].tobytes()
            assert x[:, j, i].tobytes() == before[:, i, j].conj().tobytes()


def test_transposed_memory_is_written_in_place():
    x = stack(np.float64).swapaxes(1, 2)
    copy = x.copy()
    mirror(x, False)
    mirror(copy, False)
    np.testing.assert_array_equal(x, copy)
