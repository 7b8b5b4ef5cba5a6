"""PyTorch tensors on the CPU: what comes in goes out, with the bits of NumPy arrays."""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from tests.planning import forbid_plans  # noqa: E402


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((4,), (4,)),
        ((4,), (4, 3)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((0, 4), (4, 2)),
        ((3, 0), (0, 2)),
    ],
)
def test_shapes_are_those_of_torch_matmul(a, b):
    a, b = torch.rand(a, dtype=torch.float64), torch.rand(b, dtype=torch.float64)
    for options in ({}, {"accuracy": "correct"}):
        c = hg.matmul(a, b, **options)
        assert isinstance(c, torch.Tensor)
        assert (c.shape, c.dtype) == (torch.matmul(a, b).shape, torch.float64)


def test_strides_conjugates_and_mixed_dtypes(assert_same_bits):
    x = torch.rand(6, 8, dtype=torch.complex128)
    y = torch.rand(3, dtype=torch.float32).expand(6, 3)
    c = hg.matmul(x.mH[::2], y, accuracy="correct")
    assert_same_bits(
        c.numpy(), hg.matmul(x.numpy().conj().T[::2], y.numpy(), accuracy="correct")
    )


def test_out_is_filled_and_returned():
    a, b = torch.rand(3, 4, dtype=torch.float64), torch.rand(4, 5, dtype=torch.float64)
    out = torch.full((5, 3), torch.nan, dtype=torch.float64).T
    assert hg.matmul(a, b, out=out) is out
    torch.testing.assert_close(out, a @ b)
    with pytest.raises(ValueError, match=r"\(2, 5\)"):
        hg.matmul(a, b, out=out[:2])
    with pytest.raises(TypeError, match="float32"):
        hg.matmul(a, b, out=out.float())


def test_gemm_takes_tensors(assert_same_bits):
    a, b, c = (torch.rand(4, 4, dtype=torch.float64) for _ in range(3))
    options = {
        "alpha": -0.3,
        "beta": 2.0,
        "trans_a": "T",
        "trans_b": "C",
        "accuracy": "correct",
    }
    found = hg.gemm(a, b, c, **options)
    assert_same_bits(found.numpy(), hg.gemm(a.numpy(), b.numpy(), c.numpy(), **options))


def test_libraries_are_not_mixed():
    a = torch.rand(3, 3, dtype=torch.float64)
    for other in ({"b": a.numpy()}, {"b": a, "out": np.empty((3, 3))}):
        with pytest.raises(TypeError, match="different libraries"):
            hg.matmul(a, **other)
    with pytest.raises(TypeError, match="list"):
        hg.matmul(a, [[1.0], [2.0], [3.0]])


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (lambda: torch.rand(3, 3, dtype=torch.float64).to_sparse(), "sparse"),
        (lambda: torch.rand(3, 3, device="meta"), "meta"),
    ],
)
def test_tensors_that_cannot_be_multiplied_are_refused(tensor, message):
    with pytest.raises(TypeError, match=message):
        hg.matmul(tensor(), tensor())


def test_gradients_are_no_matter_under_no_grad():
    a = torch.rand(3, 3, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        assert not hg.matmul(a, a).requires_grad


def test_prepared_tensors_stand_for_the_operand(assert_same_bits):
    a = torch.rand(6, 20, dtype=torch.float64)
    b = torch.rand(20, 7, dtype=torch.float64)
    plan = hg.make_plan(a, b, scheme=hg.Ozaki2(scaling="fast"), accuracy="correct")
    assert plan.engine == "torch"
    left = hg.prepare(a, "left", plan=plan)
    assert_same_bits(
        hg.matmul(left, b).numpy(), hg.matmul(a.numpy(), b.numpy(), accuracy="correct")
    )
    with pytest.raises(TypeError, match="different libraries"):
        hg.matmul(left, b.numpy())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accuracy": 1e-12},
        {"accuracy": "correct"},
        {"scheme": hg.Ozaki2(num_moduli=14, scaling="fast")},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=str)
def test_a_second_product_of_prepared_tensors_plans_nothing(
    assert_same_bits, monkeypatch, options, dtype
):
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(6, 20, dtype=dtype, generator=generator)
    b = torch.randn(20, 7, dtype=dtype, generator=generator)
    c = torch.zeros(6, 7, dtype=dtype)
    want = hg.matmul(a, b, **options).numpy()
    left = hg.prepare(a, "left", **options)
    right = hg.prepare(b, "right", **options)
    pairs = (left, b), (a, right), (left, right)
    calls = [lambda x=x, y=y: hg.matmul(x, y) for x, y in pairs]
    calls += [lambda x=x, y=y: hg.matmul(x, y, out=c) for x, y in pairs]
    calls += [lambda x=x, y=y: hg.gemm(x, y, alpha=2.0) / 2.0 for x, y in pairs]
    for call in calls:
        call()
    forbid_plans(monkeypatch)
    for call in calls:
        assert_same_bits(call().numpy(), want)


CHANGES = {
    "in place": lambda a: a.fill_(7.0),
    "through NumPy": lambda a: a.numpy().fill(7.0),
    "through data": lambda a: a.data.fill_(7.0),
    "by a product": lambda a: hg.matmul(
        torch.ones_like(a), torch.ones(a.shape[1], a.shape[1], dtype=a.dtype), out=a
    ),
}


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "scheme",
    ["native", "ozaki1", "ozaki2", hg.Ozaki2(num_moduli=14, scaling="fast")],
    ids=str,
)
def test_later_changes_of_a_tensor_do_not_reach_the_prepared_operand(
    scheme, dtype, how
):
    a, b = torch.rand(6, 20, dtype=dtype), torch.rand(20, 7, dtype=torch.float64)
    plan = hg.make_plan(a, b, scheme=scheme)
    left, want = hg.prepare(a, "left", plan=plan), hg.matmul(a, b, plan=plan)
    CHANGES[how](a)
    assert torch.equal(hg.matmul(left, b), want)
    with torch.inference_mode():
        x = torch.rand(6, 20, dtype=dtype)
        left, want = hg.prepare(x, "left", plan=plan), hg.matmul(x, b, plan=plan)
        CHANGES[how](x)
        assert torch.equal(hg.matmul(left, b), want)


def test_a_result_in_out_is_a_change_that_torch_counts():
    a, x = torch.eye(2, dtype=torch.float64), torch.ones(2, 2, dtype=torch.float64)
    w = torch.full((2, 2), 2.0, dtype=torch.float64, requires_grad=True)
    y = (w * x).sum()
    before = x._version
    assert hg.matmul(a, a, out=x) is x
    assert x._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
