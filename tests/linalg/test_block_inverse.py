"""Inverses by blocks are as good as those of the library."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hifigemm.linalg import block_inverse  # noqa: E402
from hifigemm.linalg.block_inverse import inverse_by_blocks  # noqa: E402


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 16 rows, from inverses of 4."""
    monkeypatch.setattr(block_inverse, "BLOCK", 16)
    monkeypatch.setattr(block_inverse, "_START", 4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 48, 80])
def test_rows_are_inverse_ones(n, dtype):
    generator = torch.Generator().manual_seed(n)
    a = torch.randn((n, n), dtype=dtype, generator=generator)
    for layout in (a, a.T.contiguous().T):
        x = inverse_by_blocks(layout)
        of_library = torch.linalg.inv(layout)
        eye = torch.eye(n, dtype=dtype)
        error = (x @ layout - eye).abs().max()
        error_of_library = (of_library @ layout - eye).abs().max()
        assert error <= 100.0 * error_of_library + 1e-15


def test_a_pivot_of_zero_leaves_numbers_that_are_not_finite():
    x = inverse_by_blocks(torch.zeros((20, 20), dtype=torch.float64))
    assert not torch.isfinite(x).any()


@pytest.mark.parametrize("nugget", [1e-9, 1e-12])
def test_smooth_kernels_lose_no_digits_to_blocks(nugget):
    # Blocks of U are nearly singular: products with their inverses alone leave nothing
    places = torch.linspace(0.0, 1.0, 160, dtype=torch.float64)
    a = torch.exp(-((10.0 * (places[:, None] - places)) ** 2))
    a += nugget * torch.eye(160, dtype=torch.float64)
    eye = torch.eye(160, dtype=torch.float64)
    x = inverse_by_blocks(a.T).T
    of_library = torch.linalg.inv(a.T).T
    error_of_library = (of_library @ a - eye).abs().sum(dim=1).max()
    assert (x @ a - eye).abs().sum(dim=1).max() <= 30.0 * error_of_library
