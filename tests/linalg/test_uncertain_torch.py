"""Radii of tensors: the bits of NumPy, errors of PyTorch, no gradients."""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm import linalg

torch = pytest.importorskip("torch")


def drawn():
    """A stack of matrices and one right side, with radii that broadcast."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((3, 5, 5))
    b = rng.standard_normal(5)
    return a, b, rng.uniform(0.0, 1e-4, (5, 5)), rng.uniform(0.0, 1e-4, 5)


def test_tensors_give_tensors_with_the_bits_of_numpy():
    arrays = drawn()
    a, b, a_radius, b_radius = map(torch.from_numpy, arrays)
    pairs = (
        (
            linalg.solve(a, b, a_radius=a_radius, b_radius=b_radius),
            linalg.solve(*arrays[:2], a_radius=arrays[2], b_radius=arrays[3]),
        ),
        (
            linalg.solve(a, b, a_radius=1e-4, b_radius=np.float64(1e-5)),
            linalg.solve(*arrays[:2], a_radius=1e-4, b_radius=1e-5),
        ),
        (
            linalg.solve(a, b, a_radius=torch.tensor(1e-4, dtype=torch.float64)),
            linalg.solve(*arrays[:2], a_radius=1e-4),
        ),
        (
            linalg.inv(a, a_radius=a_radius.bfloat16()),
            linalg.inv(arrays[0], a_radius=a_radius.bfloat16().double().numpy()),
        ),
    )
    for got, want in pairs:
        assert isinstance(got.radius, torch.Tensor)
        np.testing.assert_array_equal(got.x.numpy(), want.x)
        np.testing.assert_array_equal(got.radius.numpy(), want.radius)


def test_errors_are_those_of_torch_and_have_the_factor():
    a = 4.0 * torch.eye(2, dtype=torch.float64)
    with pytest.raises(torch.linalg.LinAlgError) as error:
        linalg.solve(a, a, a_radius=4.0)
    assert 0.49 < error.value.proven_factor < 0.5
    with pytest.raises(ValueError, match="1 negative"):
        linalg.solve(a, a, a_radius=torch.tensor([-1.0, 1.0]))
    with pytest.raises(TypeError, match="a_radius is a ndarray"):
        linalg.solve(a, a, a_radius=np.ones((2, 2)))


def test_solutions_with_radii_have_no_gradients():
    a = torch.eye(2, dtype=torch.float64, requires_grad=True)
    b = torch.ones(2, dtype=torch.float64)
    for function in (
        lambda: linalg.solve(a, b, a_radius=0.1),
        lambda: linalg.solve(b.diag(), a, b_radius=torch.ones(2)),
        lambda: linalg.solve(b.diag(), b, a_radius=a),
        lambda: linalg.inv(a, a_radius=0.1),
    ):
        with pytest.raises(TypeError, match="requires a gradient"):
            function()
    with pytest.raises(TypeError, match=r"torch\.func"):
        torch.func.vmap(lambda x: linalg.inv(x, a_radius=0.1).x)(a.detach()[None])
    with torch.no_grad():
        assert (linalg.solve(a, b, a_radius=0.1).radius > 0.2).all()


def test_a_radius_of_the_number_zero_leaves_gradients():
    a = torch.eye(2, dtype=torch.float64, requires_grad=True)
    linalg.solve(a, torch.ones(2, dtype=torch.float64), a_radius=0.0).x.sum().backward()
    assert (a.grad == -1.0).all()
