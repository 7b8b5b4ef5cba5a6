"""Tensors on the CPU: results of their library, and its errors."""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm import linalg

torch = pytest.importorskip("torch")


def test_tensors_give_tensors_with_the_bits_of_numpy():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((3, 5, 5)), rng.standard_normal((5, 2))
    solution = linalg.solve(torch.from_numpy(a), torch.from_numpy(b))
    other = linalg.solve(a, b)
    assert isinstance(solution.x, torch.Tensor)
    assert (solution.x.numpy() == other.x).all()
    assert (solution.radius.numpy() == other.radius).all()
    assert solution.radius.shape == (3, 5, 2)


def test_errors_are_those_of_torch_as_well():
    a = torch.ones((2, 2), dtype=torch.float64)
    for kind in (torch.linalg.LinAlgError, linalg.VerificationError):
        with pytest.raises(kind, match="nonsingular"):
            linalg.solve(a, torch.ones(2, dtype=torch.float64))
    stack = torch.stack([a, torch.eye(2, dtype=torch.float64)])
    with pytest.raises(torch.linalg.LinAlgError) as error:
        linalg.solve(stack, torch.ones(2, dtype=torch.float64))
    assert isinstance(error.value.solution.x, torch.Tensor)
