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
