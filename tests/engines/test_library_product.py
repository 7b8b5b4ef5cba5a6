"""PyTorch's own product stays its own inside of scopes, and is that of torch.matmul."""

from __future__ import annotations

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from hifigemm.engines.library_product import (  # noqa: E402
    in_library_product,
    library_matmul,
)


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


def test_a_thread_is_in_a_library_product_until_that_ends_or_raises(pair):
    a, b = pair
    assert not in_library_product()
    with pytest.raises(RuntimeError):
        library_matmul(a, a)
    assert not in_library_product()
    library_matmul(a, b)
    assert not in_library_product()


def test_no_policy_holds_inside_a_library_product(pair, monkeypatch):
    from hifigemm.interop.policy import current_policy

    policies = []
    mm = torch.mm

    def watched(x, y, out=None):
        policies.append(current_policy())
        return mm(x, y, out=out)

    a, b = pair
    with hg.emulate("correct"):
        a @ b
        assert current_policy() is not None
        monkeypatch.setattr(torch, "mm", watched)
        library_matmul(a, b)
        assert current_policy() is not None
    assert policies == [None]
