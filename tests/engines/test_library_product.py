"""PyTorch's own product stays its own inside of scopes, and is that of torch.matmul."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from hifigemm.engines import library_product  # noqa: E402
from hifigemm.engines.library_product import library_matmul  # noqa: E402


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(shape, dtype=torch.float64, generator=generator)
        for shape in ((40, 70), (70, 60))
    ]


def test_the_product_is_that_of_torch(pair):
    a, b = pair
    want = torch.matmul(a, b)
    assert torch.equal(library_matmul(a, b), want)
    out = torch.empty(40, 60, dtype=torch.float64)
    assert library_matmul(a, b, out) is out
    assert torch.equal(out, want)


def test_a_scope_does_not_reach_it(pair):
    a, b = pair
    want = torch.matmul(a, b)
    with hg.emulate("correct"):
        assert not torch.equal(a @ b, want)
        assert torch.equal(library_matmul(a, b), want)
        assert not torch.equal(a @ b, want)
    hg.uninstall()


def test_the_product_is_made_in_the_context_of_whoever_puts_kernels(pair, monkeypatch):
    seen = []

    @contextmanager
    def aside():
        seen.append("begins")
        yield
        seen.append("ends")

    monkeypatch.setattr(library_product, "aside", aside)
    library_matmul(*pair)
    assert seen == ["begins", "ends"]
