"""Tensors: the bits of NumPy arrays, gradients, tensors out."""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm.numpy as hnp
from hifigemm.functions import symmetric

torch = pytest.importorskip("torch")

CALLS = {
    "matmul": (hnp.matmul, ((3, 4), (4, 5))),
    "dot": (hnp.dot, ((2, 3, 4), (2, 4, 5))),
    "dot of vectors": (hnp.dot, ((4,), (4,))),
    "inner": (hnp.inner, ((2, 3, 4), (5, 4))),
    "outer": (hnp.outer, ((2, 3), (4,))),
    "vdot": (hnp.vdot, ((2, 3), (2, 3))),
    "vecdot": (hnp.vecdot, ((3, 1, 4), (2, 4))),
    "matvec": (hnp.matvec, ((2, 3, 4), (4,))),
    "vecmat": (hnp.vecmat, ((4,), (2, 4, 3))),
    "tensordot": (lambda a, b, **options: hnp.tensordot(a, b, ([2, 0], [0, 1]), **options), ((2, 3, 4), (4, 2, 5))),
    "einsum": (lambda a, b, **options: hnp.einsum("iij,...jk->k...i", a, b, **options), ((3, 3, 4), (2, 4, 5))),
    "sums": (lambda a, b, **options: hnp.einsum("ij,jk->k", a, b, **options), ((3, 4), (4, 1))),
    "power": (lambda a, **options: hnp.matrix_power(a, 2, **options), ((2, 3, 3),)),
    "syrk": (hnp.syrk, ((2, 5, 3),)),
    "herk": (hnp.herk, ((2, 5, 3),)),
}


def operands(shapes, dtype=np.float64):
    rng = np.random.default_rng(0)
    x = [rng.standard_normal(s) * np.exp(3 * rng.standard_normal(s)) for s in shapes]
    return [(y + 1j * rng.standard_normal(y.shape) if np.dtype(dtype).kind == "c" else y).astype(dtype) for y in x]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(symmetric, "SMALLEST", 2)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_tensors_have_the_bits_of_arrays(name, dtype):
    function, shapes = CALLS[name]
    arrays = operands(shapes, dtype)
    for options in ({"accuracy": "correct"}, {"scheme": "ozaki1"}):
        expected = np.asarray(function(*arrays, **options))
        made, report = function(*map(torch.from_numpy, arrays), **options, return_report=True)
        assert isinstance(made, torch.Tensor)
        assert made.resolve_conj().numpy().tobytes() == np.ascontiguousarray(expected).tobytes()
        assert tuple(made.shape) == expected.shape
        assert str(report)


def test_chains_have_the_bits_of_arrays():
    arrays = operands(((3, 4), (4, 2), (2, 5)))
    tensors = [torch.from_numpy(x) for x in arrays]
    for call in (lambda x: hnp.multi_dot(x, scheme="ozaki1"), lambda x: hnp.einsum("ij,jk,kl", *x, scheme="ozaki1")):
        np.testing.assert_array_equal(call(tensors).numpy(), call(arrays))
    identity = hnp.matrix_power(torch.ones((2, 3, 3)), 0)
    assert torch.equal(identity, torch.eye(3).expand(2, 3, 3))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_gradients_flow(name, dtype):
    function, shapes = CALLS[name]
    tensors = [torch.from_numpy(x / abs(x).max()).requires_grad_() for x in operands(shapes, dtype)]
    assert torch.autograd.gradcheck(function, tensors)


def test_gradients_of_chains():
    tensors = [torch.from_numpy(x / abs(x).max()).requires_grad_() for x in operands(((3, 3), (3, 3), (3, 2)))]
    assert torch.autograd.gradcheck(lambda *x: hnp.multi_dot(x), tensors)
    assert torch.autograd.gradcheck(lambda *x: hnp.einsum("ij,jk,kl->l", *x), tensors)
    assert torch.autograd.gradcheck(lambda x: hnp.matrix_power(x, 5), tensors[:1])


def test_out_and_refusals():
    a = torch.ones((2, 3))
    out = torch.empty((2, 2))
    assert hnp.einsum("ij,kj->ik", a, a, out=out) is out
    assert (out == 3).all()
    with pytest.raises(TypeError, match="operands of different libraries"):
        hnp.dot(a, np.ones(3))
    with pytest.raises(TypeError, match="b is a list; expected an array of torch"):
        hnp.dot(a, [1.0, 2.0, 3.0])
    with pytest.raises(TypeError, match="out has dtype float64; the result has dtype float32"):
        hnp.dot(a, a.T, torch.empty((2, 2), dtype=torch.float64))
    with pytest.raises(TypeError, match="requires a gradient"):
        hnp.dot(a.requires_grad_(), torch.ones(3), torch.empty(2))
