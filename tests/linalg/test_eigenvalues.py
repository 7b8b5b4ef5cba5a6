"""Enclosures of all eigenvalues, against exact characteristic polynomials."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flint")

from experiments.spectra import MATRICES, Spectrum, hermitian
from hifigemm import linalg
from hifigemm.linalg import decompositions, eigenvalues, separated

SHARE = 2.0**-20


def enclosed(a):
    """The enclosure of a matrix, judged."""
    result = linalg.eigvalsh(a)
    assert Spectrum(a, is_singular=False).misses(result.values, result.radius) == []
    assert (np.diff(result.values) >= 0.0).all()
    return result


@pytest.mark.parametrize("family", MATRICES)
def test_no_eigenvalue_is_missed(family):
    for seed in range(12):
        enclosed(hermitian(family, np.random.default_rng([1, seed])))


def solver_with_noise(monkeypatch, rng, a, noise):
    """The solver of the library, with vectors and values that are far off."""
    largest = np.maximum(np.abs(a.real), np.abs(a.imag)).max()
    d, x = np.linalg.eigh(a / 2.0 ** np.frexp(largest)[1])
    d = np.sort(d * (1.0 + noise * rng.standard_normal(len(d))))
    x = x + noise * rng.standard_normal(x.shape)
    monkeypatch.setattr(eigenvalues, "eigenvectors", lambda _: (d, x))


@pytest.mark.parametrize("family", ["normal", "complex", "geometric series"])
@pytest.mark.parametrize("noise", [1e-12, 1e-9, 1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_no_eigenvalue_is_missed_by_vectors_that_are_far_off(
    monkeypatch, steps, noise, family
):
    """Radii are then what the theorems say, and not last bits."""
    monkeypatch.setattr(separated, "STEPS", steps)
    for seed in range(12):
        rng = np.random.default_rng([2, seed])
        a = hermitian(family, rng)
        solver_with_noise(monkeypatch, rng, a, noise)
        enclosed(a)


@pytest.mark.parametrize("angle", [1e-6, 1e-4])
def test_the_inequality_of_kato_and_temple_is_sharp_for_two_values(monkeypatch, angle):
    c, s = np.cos(angle), np.sin(angle)
    rotation = np.array([[c, -s], [s, c]])
    d = np.array([0.25, 0.5])
    monkeypatch.setattr(separated, "STEPS", 0)
    monkeypatch.setattr(eigenvalues, "eigenvectors", lambda _: (d, rotation))
    result = enclosed(np.diag([1.0, 2.0]))
    errors = np.abs(result.values - [1.0, 2.0])
    np.testing.assert_allclose(errors, s * s, rtol=1e-3)
    assert (result.radius <= 1.01 * errors).all()


def test_the_radius_of_a_cluster_is_sharp(monkeypatch):
    d = np.array([0.5, 0.5 + 1e-6])
    monkeypatch.setattr(eigenvalues, "eigenvectors", lambda _: (d, np.eye(2)))
    result = enclosed(np.eye(2))
    np.testing.assert_allclose(result.radius, 2e-6, rtol=1e-6)


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("family", ["normal", "complex", "clusters"])
def test_products_may_err_by_all_that_they_are_allowed_to(
    monkeypatch, family, direction
):
    def worst(a, b):
        return a @ b + direction * SHARE * (np.abs(a) @ np.abs(b))

    for module in (decompositions, eigenvalues, separated):
        monkeypatch.setattr(module, "matmul", worst)
    for module in (decompositions, eigenvalues):
        monkeypatch.setattr(module, "share_of_product", lambda *_: 1.001 * SHARE)
    for noise in (1e-9, 1e-5):
        for seed in range(12):
            rng = np.random.default_rng([3, seed])
            a = hermitian(family, rng)
            solver_with_noise(monkeypatch, rng, a, noise)
            enclosed(a)


def test_separated_eigenvalues_are_known_to_half_a_unit():
    rng = np.random.default_rng(4)
    for n in (2, 5, 8, 40):
        q, _ = np.linalg.qr(rng.standard_normal((n, n)))
        a = (q * np.geomspace(1.0, 1e-12, n)) @ q.T
        a = np.tril(a) + np.tril(a, -1).T
        result = linalg.eigvalsh(a) if n > 8 else enclosed(a)
        assert (result.radius <= 0.75 * np.spacing(np.abs(result.values))).all()


def test_clusters_keep_the_radius_of_the_norm():
    a = np.diag([1.0, 1.0, 1.0 + 2.0**-52, -3.0])
    result = enclosed(a)
    assert (result.radius <= 1e-14).all()
    q, _ = np.linalg.qr(np.random.default_rng(5).standard_normal((6, 6)))
    b = np.tril(q @ np.diag([1.0, 1, 1, 1, 2, 2]) @ q.T)
    result = enclosed(b + np.tril(b, -1).T)
    assert (result.radius <= 1e-14).all()


def test_dtypes_and_shapes_are_those_of_numpy():
    a = np.array([[2, 1], [1, 2]])
    for dtype in (np.float32, np.float64, np.complex64, np.complex128, np.int8):
        result = linalg.eigvalsh(a.astype(dtype))
        expected = np.linalg.eigvalsh(a.astype(dtype))
        assert result.values.dtype == result.radius.dtype == expected.dtype
    stack = np.broadcast_to(a.astype(float), (3, 0, 2, 2))
    assert linalg.eigvalsh(stack).values.shape == (3, 0, 2)
    assert linalg.eigvalsh(np.ones((5, 0, 0))).radius.shape == (5, 0)
    result = linalg.eigvalsh([[7.5]])
    assert result.values.tolist() == [7.5]
    assert result.radius[0] <= 1e-320


def test_float32_radii_have_the_rounding_of_the_value():
    a = np.array([[1, 1], [1, 3]], np.float32)
    result = enclosed(a)
    distance = np.abs(result.values.astype(float) - (2.0 + np.array([-1, 1]) * 2**0.5))
    assert (distance <= result.radius.astype(float)).all()
    assert (result.radius <= 0.51 * np.spacing(result.values)).all()


def test_stacks_fail_matrix_by_matrix():
    a = np.stack([np.eye(2), np.full((2, 2), np.nan), np.diag([1.0, 5.0])])
    with pytest.raises(linalg.VerificationError, match="1 of 3") as error:
        linalg.eigvalsh(a)
    solution = error.value.solution
    assert solution.values[0].tolist() == [1.0, 1.0]
    assert np.isnan(solution.values[1]).all()
    assert np.isinf(solution.radius[1]).all()
    assert solution.values[2].tolist() == [1.0, 5.0]


def test_what_is_not_hermitian_raises():
    with pytest.raises(ValueError, match=r"2 entries.*\(0, 1\): 1.0 and 2.0"):
        linalg.eigvalsh([[1.0, 1.0], [2.0, 1.0]])
    with pytest.raises(np.linalg.LinAlgError, match="square"):
        linalg.eigvalsh(np.ones((2, 3)))


def test_eigenvalues_beyond_the_range_raise():
    a = np.full((2, 2), 1.5e308)
    with pytest.raises(linalg.VerificationError, match="1 of 2 values"):
        linalg.eigvalsh(a)
    assert np.isfinite(linalg.eigvalsh(a / 2.0).values).all()


@pytest.mark.parametrize("values", [[2.0, 1.0], [1.0, np.nan]])
def test_values_out_of_order_prove_nothing(monkeypatch, values):
    solver = lambda _: (np.array(values), np.eye(2))  # noqa: E731
    monkeypatch.setattr(eigenvalues, "eigenvectors", solver)
    with pytest.raises(linalg.VerificationError, match="order"):
        linalg.eigvalsh(np.diag([1.0, 2.0]))


def test_dependent_vectors_prove_nothing(monkeypatch):
    solver = lambda _: (np.array([0.25, 0.5]), np.ones((2, 2)) / 2**0.5)  # noqa: E731
    monkeypatch.setattr(eigenvalues, "eigenvectors", solver)
    with pytest.raises(linalg.VerificationError, match="independent"):
        linalg.eigvalsh(np.diag([1.0, 2.0]))


def test_a_solver_that_fails_is_no_proof(monkeypatch):
    def fails(_):
        raise np.linalg.LinAlgError("no convergence")

    monkeypatch.setattr(np.linalg, "eigh", fails)
    with pytest.raises(linalg.VerificationError, match="no convergence"):
        linalg.eigvalsh(np.eye(2))
