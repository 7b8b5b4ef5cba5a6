"""Inf and NaN are taken out and filled in."""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.numerics.special import (
    clean,
    clean_components,
    fill_nonfinite,
    nonfinite_vectors,
)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_clean_replaces_whole_entries_and_copies(dtype):
    x = np.array([[1.0, np.inf, np.nan, -np.inf, 0.0]], dtype)
    if x.dtype.kind == "c":
        x.imag[0] = [2, 3, 4, 5, np.nan]
    y = clean(x)
    assert y.dtype == x.dtype
    expected = [[1.0, 0, 0, 0, 0]] if x.dtype.kind == "f" else [[1 + 2j, 0, 0, 0, 0]]
    np.testing.assert_array_equal(y, expected)
    assert not np.shares_memory(x, y)
    np.testing.assert_array_equal(clean(np.array([1, 2])), [1, 2])


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_clean_components_keeps_the_finite_parts_of_entries(dtype):
    x = np.array([[1.0, np.inf, np.nan]], dtype)
    expected = np.array([[1.0, 0.0, 0.0]], dtype)
    if x.dtype.kind == "c":
        x.imag[0] = [np.inf, 2.0, np.nan]
        expected.imag[0] = [0.0, 2.0, 0.0]
    np.testing.assert_array_equal(clean_components(x), expected, strict=True)


def test_marked_vectors_are_those_with_non_finite_entries():
    x = np.zeros((2, 3, 4))
    x[0, 1, 2], x[1, 0, 0] = np.inf, np.nan
    np.testing.assert_array_equal(
        nonfinite_vectors(x, 2)[..., 0], [[False, True, False], [True, False, False]]
    )
    np.testing.assert_array_equal(
        nonfinite_vectors(x, 1)[:, 0],
        [[False, False, True, False], [True] + [False] * 3],
    )


def test_only_marked_outputs_are_overwritten():
    a, b = np.ones((1, 3, 2)), np.ones((2, 2, 3))
    a[0, 1, 0] = np.inf
    b[1, 0, 2] = np.nan
    values = np.full((2, 3, 3), 7.0)
    fill_nonfinite(values, a, b, nonfinite_vectors(a, 2), nonfinite_vectors(b, 1))
    np.testing.assert_array_equal(values[0], [[7, 7, 7], [np.inf] * 3, [7, 7, 7]])
    np.testing.assert_array_equal(
        values[1], [[7, 7, np.nan], [np.inf, np.inf, np.nan], [7, 7, np.nan]]
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_finite_terms_do_not_make_an_infinity_a_nan(dtype):
    largest = np.finfo(dtype).max
    a = np.array([[[largest, largest, -np.inf]]], dtype)
    b = np.array([[[largest], [largest], [1.0]]], dtype)
    values = np.zeros((1, 1, 1), dtype)
    fill_nonfinite(values, a, b, nonfinite_vectors(a, 2), nonfinite_vectors(b, 1))
    assert values[0, 0, 0] == -np.inf


@pytest.mark.parametrize("dtype", [np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize(("left", "right"), [(3, 3), (1, 3), (3, 1), (1, 1)])
def test_every_matrix_of_a_stack_has_the_marks_of_its_operands(dtype, left, right):
    """Against sums of signs in plain Python: entries of 1 and -1, so that no finite sum
    overflows.
    """

    def sign(p):
        return np.sign(p) if np.isfinite(p) else p

    rng = np.random.default_rng([left, right])
    a, b = (
        rng.choice([-1.0, 1.0], s).astype(dtype) for s in ((left, 3, 4), (right, 4, 2))
    )
    a[-1, 1, 2], a[0, 2, 0], b[-1, 3, 1], b[0, 0, 0] = -np.inf, np.nan, np.inf, -np.inf
    if dtype != np.float64:
        a.imag[0, 0, 1], b.imag[-1, 2, 0] = np.inf, 2.0
    values = np.full((max(left, right), 3, 2), 7, dtype)
    fill_nonfinite(values, a, b, nonfinite_vectors(a, 2), nonfinite_vectors(b, 1))
    for z, i, j in np.ndindex(values.shape):
        x, y = a[min(z, left - 1), i], b[min(z, right - 1), :, j]
        if np.isfinite(x).all() and np.isfinite(y).all():
            assert values[z, i, j] == 7
            continue
        terms = [
            tuple(map(sign, (p.real, p.imag, q.real, q.imag)))
            for p, q in zip(x.tolist(), y.tolist(), strict=True)
        ]
        with np.errstate(all="ignore"):
            if dtype == np.float64:
                np.testing.assert_array_equal(
                    values[z, i, j], sum(p * r for p, _, r, _ in terms)
                )
            else:
                np.testing.assert_array_equal(
                    values[z, i, j].real, sum(p * r - q * s for p, q, r, s in terms)
                )
                np.testing.assert_array_equal(
                    values[z, i, j].imag, sum(p * s + q * r for p, q, r, s in terms)
                )
