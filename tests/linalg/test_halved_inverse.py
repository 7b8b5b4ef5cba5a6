"""Inverses by halves: as good as the condition of the first half allows, or none."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hifigemm.engines.device_array import unwrap, wrap  # noqa: E402
from hifigemm.linalg import arrays, block_inverse  # noqa: E402
from hifigemm.linalg.halved_inverse import inverse_by_halves  # noqa: E402


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 16 rows, from inverses of 4."""
    monkeypatch.setattr(block_inverse, "BLOCK", 16)
    monkeypatch.setattr(block_inverse, "_START", 4)


def normal(n, dtype=torch.float64):
    """Of normal numbers."""
    generator = torch.Generator().manual_seed(n)
    return torch.randn((n, n), dtype=dtype, generator=generator)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("n", [2, 3, 31, 64, 81])
def test_rows_are_inverse_ones(n, dtype):
    a = normal(n, dtype)
    eye = torch.eye(n, dtype=dtype)
    for layout in (a, a.T.contiguous().T):
        x = inverse_by_halves(layout)
        assert (layout @ x - eye).abs().sum(dim=1).max() < 1e-9


def test_a_singular_first_half_has_no_inverse_by_halves():
    a = normal(64)
    a[:32, :32] = 0.0
    assert inverse_by_halves(a) is None
    a[:32, :32] = 1.0 + 1e-12 * normal(32)
    assert inverse_by_halves(a) is None


def test_a_poor_inverse_is_none():
    # A first half that is good, and a second one that loses all digits
    left, _, right = torch.linalg.svd(normal(64))
    a = left @ torch.diag(torch.logspace(0.0, -17.0, 64, dtype=torch.float64)) @ right
    a[:32, :32] += torch.eye(32, dtype=torch.float64)
    gap = a @ torch.linalg.inv(a) - torch.eye(64, dtype=torch.float64)
    assert gap.abs().max() < 1e-3
    a[32:] = a[:32] + 1e-16 * a[32:]
    assert inverse_by_halves(a) is None


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_that_are_not_finite_have_none(value):
    for place in (0, 63):
        a = normal(64)
        a[place, place] = value
        assert inverse_by_halves(a) is None


def test_other_ways_follow(monkeypatch):
    # Where halves are no way, the inverse is that by blocks
    calls = []

    def none(a):
        calls.append(len(a))

    monkeypatch.setattr(arrays, "inverse_by_halves", none)
    monkeypatch.setattr(arrays, "_is_large", lambda tensor, n: True)
    a = normal(40)
    x = arrays.inverse(wrap(a))
    assert calls == [40]
    assert (a @ unwrap(x) - torch.eye(40, dtype=torch.float64)).abs().max() < 1e-9
