"""Enclosures of all singular values, against exact characteristic polynomials."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flint")

from experiments.spectra import MATRICES, Spectrum, rectangular
from hifigemm import linalg
from hifigemm.linalg import decompositions, separated, singular_values

SHARE = 2.0**-20


def enclosed(a):
    """The enclosure of a matrix, judged."""
    result = linalg.svdvals(a)
    ascending = result.values[::-1], result.radius[::-1]
    assert Spectrum(a, is_singular=True).misses(*ascending) == []
    assert (np.diff(result.values) <= 0.0).all()
    return result


@pytest.mark.parametrize("family", MATRICES)
def test_no_singular_value_is_missed(family):
    for seed in range(12):
        enclosed(rectangular(family, np.random.default_rng([1, seed])))


def solver_with_noise(monkeypatch, rng, a, noise):
    """The solver of the library, with vectors and values that are far off."""
    largest = np.maximum(np.abs(a.real), np.abs(a.imag)).max()
    tall = a if a.shape[0] >= a.shape[1] else a.conj().T
    scaled = tall / 2.0 ** np.frexp(largest)[1]
    u, s, vh = np.linalg.svd(scaled, full_matrices=False)
    s = np.sort(s * np.abs(1.0 + noise * rng.standard_normal(len(s))))[::-1]
    u = u + noise * rng.standard_normal(u.shape)
    v = vh.conj().T + noise * rng.standard_normal(vh.shape)
    monkeypatch.setattr(singular_values, "singular_vectors", lambda _: (u, s, v))


@pytest.mark.parametrize("family", ["normal", "complex", "geometric series"])
@pytest.mark.parametrize("noise", [1e-12, 1e-9, 1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_no_value_is_missed_by_vectors_that_are_far_off(
    monkeypatch, steps, noise, family
):
    """Radii are then what the theorems say, and not last bits."""
    monkeypatch.setattr(separated, "STEPS", steps)
    for seed in range(12):
        rng = np.random.default_rng([2, seed])
        a = rectangular(family, rng)
        solver_with_noise(monkeypatch, rng, a, noise)
        enclosed(a)


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("family", ["normal", "complex", "clusters"])
def test_products_may_err_by_all_that_they_are_allowed_to(
    monkeypatch, family, direction
):
    def worst(a, b):
        return a @ b + direction * SHARE * (np.abs(a) @ np.abs(b))

    for module in (decompositions, singular_values, separated):
        monkeypatch.setattr(module, "matmul", worst)
    for module in (decompositions, singular_values):
        monkeypatch.setattr(module, "share_of_product", lambda *_: 1.001 * SHARE)
    for noise in (1e-9, 1e-5, 1e-3):
        for seed in range(12):
            rng = np.random.default_rng([3, seed])
            a = rectangular(family, rng)
            solver_with_noise(monkeypatch, rng, a, noise)
            enclosed(a)


@pytest.mark.parametrize("angle", [1e-6, 1e-4])
def test_the_inequality_is_sharp_for_the_larger_of_two_values(monkeypatch, angle):
    """A^H A = diag(1, 4), and the first vector is off by an angle: its Rayleigh quotient
    is 4 c^2 + s^2, and the bound is at most (theta + mu) / (lambda + mu) times the
    error, over 7/8 for the weights.
    """
    c, s = np.cos(angle), np.sin(angle)
    v = np.array([[s, c], [c, -s]])
    solver = (v * [1.0, 1.0], np.array([0.5, 0.25]), v)
    monkeypatch.setattr(separated, "STEPS", 0)
    monkeypatch.setattr(singular_values, "singular_vectors", lambda _: solver)
    result = enclosed(np.diag([1.0, 2.0]))
    errors = np.abs(result.values - [2.0, 1.0])
    assert (errors > 0.5 * s * s).all()
    assert (result.radius <= 4.0 * errors).all()


def test_the_first_radius_is_sharp(monkeypatch):
    solver = (np.eye(2), np.array([0.5 + 1e-6, 0.5]), np.eye(2))
    monkeypatch.setattr(singular_values, "singular_vectors", lambda _: solver)
    result = enclosed(np.eye(2))
    np.testing.assert_allclose(result.radius, 2e-6, rtol=1e-6)


@pytest.mark.parametrize(("m", "n"), [(5, 5), (8, 4), (3, 8), (60, 20)])
def test_separated_values_are_known_to_a_unit(m, n):
    rng = np.random.default_rng([4, m])
    count = min(m, n)
    u, _ = np.linalg.qr(rng.standard_normal((m, count)))
    v, _ = np.linalg.qr(rng.standard_normal((n, count)))
    a = (u * np.geomspace(1.0, 1e-12, count)) @ v.T
    result = linalg.svdvals(a) if max(m, n) > 8 else enclosed(a)
    assert (result.radius <= np.spacing(result.values)).all()


def test_matrices_without_full_rank_have_sharp_nonzero_values():
    rng = np.random.default_rng(5)
    a = rng.integers(-9, 10, (7, 3)) @ rng.integers(-9, 10, (3, 6)).astype(float)
    result = enclosed(a)
    assert (result.radius[:3] <= np.spacing(result.values[:3])).all()
    assert (result.values[3:] <= 1e-12).all()


def test_dtypes_and_shapes_are_those_of_numpy():
    a = np.array([[2, 1, 0], [1, 2, 5]])
    for dtype in (np.float32, np.float64, np.complex64, np.complex128, np.int8):
        result = linalg.svdvals(a.astype(dtype))
        expected = np.linalg.svdvals(a.astype(dtype))
        assert result.values.dtype == result.radius.dtype == expected.dtype
        np.testing.assert_allclose(result.values, expected, rtol=1e-5)
    stack = np.broadcast_to(a.astype(float), (3, 0, 2, 3))
    assert linalg.svdvals(stack).values.shape == (3, 0, 2)
    for shape in ((5, 0, 3), (2, 0), (0, 0)):
        expected = np.linalg.svdvals(np.ones(shape)).shape
        assert linalg.svdvals(np.ones(shape)).radius.shape == expected
    with pytest.raises(np.linalg.LinAlgError, match=r"\(3,\)"):
        linalg.svdvals(np.ones(3))


def test_stacks_fail_matrix_by_matrix():
    a = np.stack([np.eye(2), np.full((2, 2), np.inf), np.diag([1.0, 5.0])])
    with pytest.raises(linalg.VerificationError, match="1 of 3") as error:
        linalg.svdvals(a)
    assert error.value.solution.values[2].tolist() == [5.0, 1.0]
    assert np.isinf(error.value.solution.radius[1]).all()


def test_values_out_of_order_prove_nothing(monkeypatch):
    solver = (np.eye(2), np.array([1.0, 2.0]), np.eye(2))
    monkeypatch.setattr(singular_values, "singular_vectors", lambda _: solver)
    with pytest.raises(linalg.VerificationError, match="order"):
        linalg.svdvals(np.eye(2))


@pytest.mark.parametrize("index", [0, 2])
def test_vectors_that_are_not_orthonormal_prove_nothing(monkeypatch, index):
    solver = [np.eye(2), np.array([0.5, 0.5]), np.eye(2)]
    solver[index] = 1.2 * np.eye(2)
    monkeypatch.setattr(singular_values, "singular_vectors", lambda _: solver)
    with pytest.raises(linalg.VerificationError, match="orthonormal"):
        linalg.svdvals(np.eye(2))
