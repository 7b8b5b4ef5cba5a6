"""Tensors: the bits of NumPy arrays, gradients, tensors out."""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
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
    "tensordot": (
        lambda a, b, **options: hnp.tensordot(a, b, ([2, 0], [0, 1]), **options),
        ((2, 3, 4), (4, 2, 5)),
    ),
    "einsum": (
        lambda a, b, **options: hnp.einsum("iij,...jk->k...i", a, b, **options),
        ((3, 3, 4), (2, 4, 5)),
    ),
    "sums": (
        lambda a, b, **options: hnp.einsum("ij,jk->k", a, b, **options),
        ((3, 4), (4, 1)),
    ),
    "power": (lambda a, **options: hnp.matrix_power(a, 2, **options), ((2, 3, 3),)),
    "syrk": (hnp.syrk, ((2, 5, 3),)),
    "herk": (hnp.herk, ((2, 5, 3),)),
}


def operands(shapes, dtype=np.float64):
    rng = np.random.default_rng(0)
    x = [rng.standard_normal(s) * np.exp(3 * rng.standard_normal(s)) for s in shapes]
    return [
        (
            y + 1j * rng.standard_normal(y.shape) if np.dtype(dtype).kind == "c" else y
        ).astype(dtype)
        for y in x
    ]


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
        made, report = function(
            *map(torch.from_numpy, arrays), **options, return_report=True
        )
        assert isinstance(made, torch.Tensor)
        assert (
            made.resolve_conj().numpy().tobytes()
            == np.ascontiguousarray(expected).tobytes()
        )
        assert tuple(made.shape) == expected.shape
        assert str(report)


def test_chains_have_the_bits_of_arrays():
    arrays = operands(((3, 4), (4, 2), (2, 5)))
    tensors = [torch.from_numpy(x) for x in arrays]
    for call in (
        lambda x: hnp.multi_dot(x, scheme="ozaki1"),
        lambda x: hnp.einsum("ij,jk,kl", *x, scheme="ozaki1"),
    ):
        np.testing.assert_array_equal(call(tensors).numpy(), call(arrays))
    identity = hnp.matrix_power(torch.ones((2, 3, 3)), 0)
    assert torch.equal(identity, torch.eye(3).expand(2, 3, 3))


@pytest.mark.thinned(7)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_gradients_flow(name, dtype):
    function, shapes = CALLS[name]
    tensors = [
        torch.from_numpy(x / abs(x).max()).requires_grad_()
        for x in operands(shapes, dtype)
    ]
    assert torch.autograd.gradcheck(function, tensors)


def test_gradients_of_chains():
    tensors = [
        torch.from_numpy(x / abs(x).max()).requires_grad_()
        for x in operands(((3, 3), (3, 3), (3, 2)))
    ]
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
    with pytest.raises(
        TypeError, match="out has dtype float64; the result has dtype float32"
    ):
        hnp.dot(a, a.T, torch.empty((2, 2), dtype=torch.float64))
    with pytest.raises(TypeError, match="requires a gradient"):
        hnp.dot(a.requires_grad_(), torch.ones(3), torch.empty(2))


def test_out_may_share_the_memory_of_an_operand():
    a = torch.arange(9.0).reshape(3, 3)
    want = a.mT.clone()
    assert hnp.einsum("ij->ji", a, out=a) is a
    assert torch.equal(a, want)
    x = torch.arange(10.0)
    hnp.einsum("i->i", x[:-1], out=x[1:])
    assert torch.equal(x, torch.tensor([0.0, *range(9)]))
    for function in (
        hnp.dot,
        hnp.outer,
        lambda a, b, out: hnp.einsum("ij,jk", a, b, out=out),
    ):
        x, y = torch.arange(9.0).reshape(3, 3), torch.ones((3, 3))
        given = (x[0], x[1]) if function is hnp.outer else (x, y)
        want = torch.from_numpy(
            np.array(function(*(t.numpy().copy() for t in given), out=None))
        )
        assert torch.equal(function(*given, out=x), want)


SPARSE = {
    "coo": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "mkldnn": lambda: torch.eye(3).to_mkldnn(),
}


@pytest.mark.parametrize("layout", SPARSE)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_tensors_without_dense_memory_are_refused_in_plain_words(layout):
    x, dense = SPARSE[layout](), torch.ones((3, 3))
    calls = (
        lambda: hnp.dot(x, dense), lambda: hnp.vdot(dense, x), lambda: hnp.einsum("ij->ji", x), lambda: hnp.syrk(x),
        lambda: hnp.matrix_power(x, 0), lambda: hnp.multi_dot([dense, x, dense]), lambda: hnp.dot(dense, dense, x),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(
            TypeError,
            match=r"is a tensor of layout .*, whose entries are not in dense memory",
        ):
            call()


@pytest.mark.slow
def test_second_derivatives_of_complex_products():
    z, w = (
        torch.from_numpy(x).requires_grad_()
        for x in operands(((3,), (3,)), np.complex128)
    )
    for function in (hnp.vdot, hnp.vecdot, lambda a, b: hnp.vecmat(a, b[:, None] * b)):
        assert torch.autograd.gradgradcheck(function, (z, w), check_fwd_over_rev=True)
    x, z = torch.from_numpy(operands(((3,),))[0]), z.detach()

    def value(x, product):
        return product(x * z, z).imag ** 2 + product(z, x).real.sin()

    def native(x, y):
        return (x.conj() * y).sum()

    for transform in (
        torch.func.hessian,
        lambda f: torch.func.jacrev(torch.func.jacrev(f)),
    ):
        found, want = (
            transform(lambda x, p=p: value(x, p))(x) for p in (hnp.vdot, native)
        )
        torch.testing.assert_close(found, want)


COMPILED = CALLS | {
    "multi_dot": (
        lambda *x, **_: hnp.multi_dot(x, scheme="ozaki1"),
        ((3, 4), (4, 5), (5,)),
    ),
    "einsum of three": (
        lambda *x, **_: hnp.einsum("ij,jk,k->i", *x, scheme="ozaki1"),
        ((3, 4), (4, 5), (5,)),
    ),
    "diagonal": (lambda a, **options: hnp.einsum("ii->i", a, **options), ((3, 3),)),
    "power 0": (lambda a, **options: hnp.matrix_power(a, 0, **options), ((2, 3, 3),)),
    "power 1": (lambda a, **options: hnp.matrix_power(a, 1, **options), ((2, 3, 3),)),
    "power 5": (lambda a, **_: hnp.matrix_power(a, 5, scheme="ozaki1"), ((2, 3, 3),)),
}
DYNAMIC = [name for name in COMPILED if name != "einsum of three"]
"""Those whose graph needs no numbers as lengths, as the order of the products of einsum
does.
"""


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    ("name", "dynamic"),
    [*((name, False) for name in COMPILED), *((x, True) for x in DYNAMIC)],
)
def test_compiled_functions_are_one_graph_with_the_eager_bits(name, dynamic):
    function, shapes = COMPILED[name]
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *x: function(*x, accuracy="correct"),
        backend="eager",
        fullgraph=True,
        dynamic=dynamic,
    )
    for dtype in (np.float32, np.complex128):
        tensors = [torch.from_numpy(x) for x in operands(shapes, dtype)]
        found, want = compiled(*tensors), function(*tensors, accuracy="correct")
        assert found.dtype == want.dtype
        assert torch.equal(found, want)


@pytest.mark.slow
def test_compiled_functions_promote_and_have_gradients():
    torch._dynamo.reset()
    a, b, c = (torch.from_numpy(x) for x in operands(((3, 4), (4, 2), (2,))))
    given = (a.float(), b, c.bfloat16())

    def chain(*x):
        return hnp.einsum("ij,jk,k->i", *x, accuracy="fp64")

    assert torch.equal(
        torch.compile(chain, backend="eager", fullgraph=True)(*given), chain(*given)
    )
    b.requires_grad_()

    def loss(b):
        return hnp.syrk(b, accuracy="correct").sum() + hnp.vdot(b, b)

    (want,) = torch.autograd.grad(loss(b), b)
    (found,) = torch.autograd.grad(
        torch.compile(loss, backend="aot_eager", fullgraph=True)(b), b
    )
    assert torch.equal(found, want)


CHAINS = {
    "multi_dot": (
        lambda *x, **options: hnp.multi_dot(x, **options),
        ((3, 4), (4, 5), (5, 2)),
    ),
    "einsum": (
        lambda *x, **options: hnp.einsum("ij,jk,kl->il", *x, **options),
        ((3, 4), (4, 5), (5, 2)),
    ),
    "power": (lambda a, **options: hnp.matrix_power(a, 3, **options), ((3, 3),)),
}


@pytest.mark.thinned(5)
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize(
    "dtypes", [("float64",) * 3, ("float32", "bfloat16", "float64")]
)
def test_numbers_are_shared_among_the_products_of_a_chain(name, dtypes):
    """Eager and compiled, by the shares of arrays of NumPy."""
    function, shapes = CHAINS[name]
    arrays = operands(shapes, np.float64)
    tensors = []
    for x, dtype in zip(arrays, dtypes, strict=False):
        tensors.append(torch.from_numpy(x).to(getattr(torch, dtype)))
    value, report = function(*tensors, accuracy=1e-6, return_report=True)
    u = torch.finfo(value.dtype).eps / 2
    assert report.bound <= 1e-6 + u

    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *x: function(*x, accuracy=1e-6), backend="eager", fullgraph=True
    )
    assert torch.equal(compiled(*tensors), value)

    # Beyond the roundings in between, three factors are rounded once, outside of a graph.
    beyond = torch.compile(lambda *x: function(*x, accuracy=1e-25), backend="eager")
    assert torch.equal(beyond(*tensors), function(*tensors, accuracy=1e-25))

    def of_four(x):
        return hnp.matrix_power(x, 4, accuracy=1e-25)

    for call in (torch.compile(of_four, backend="eager"), of_four):
        with pytest.raises(hg.PlanError, match=r"accuracy=1e-25: .* takes 2 products"):
            call(tensors[0][:3, :3])
