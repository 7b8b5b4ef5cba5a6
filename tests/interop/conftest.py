"""What tests of PyTorch's products in scopes share."""

from __future__ import annotations

import pytest

import hifigemm as hg
from tests.distributed.conftest import one_rank  # noqa: F401, a fixture


@pytest.fixture
def native_afterwards():
    """PyTorch makes its own products again after the test."""
    yield
    hg.uninstall()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def random(request):
    """Random tensors, so many that native sums are not correctly rounded."""
    import torch

    generator = torch.Generator(request.param).manual_seed(1)

    def make(*shape, dtype=torch.float64):
        return torch.randn(
            *shape, dtype=dtype, device=request.param, generator=generator
        )

    return make
