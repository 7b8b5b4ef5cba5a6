"""Kernels in the place of PyTorch's products: results have the bits of
`hifigemm.matmul`, and all else is PyTorch's own.
"""

from __future__ import annotations

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from torch.func import vmap  # noqa: E402

from tests.interop.scopes import CORRECT, exact, scope_without_products  # noqa: E402

pytestmark = pytest.mark.usefixtures("native_afterwards")

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]


def added(c, product, alpha, beta):
    return torch.add(c * beta, product, alpha=alpha)


def flat(a, b):
    """The factors of addbmm."""
    return a.transpose(0, 1).reshape(a.shape[1], -1), b.reshape(-1, b.shape[2])


PRODUCTS = {
    "mm": (((5, 70), (70, 6)), lambda a, b: exact(a, b)),
    "bmm": (((3, 5, 70), (3, 70, 6)), lambda a, b: exact(a, b)),
    "mv": (((5, 70), (70,)), lambda a, b: exact(a, b)),
    "dot": (((70,), (70,)), lambda a, b: exact(a, b)),
    "vdot": (((70,), (70,)), lambda a, b: exact(a.conj(), b)),
}


SUMS = {
    "addmm": ((5, 6), ((5, 70), (70, 6)), exact),
    "baddbmm": ((3, 5, 6), ((3, 5, 70), (3, 70, 6)), exact),
    "addbmm": ((5, 6), ((3, 5, 30), (3, 30, 6)), lambda a, b: exact(*flat(a, b))),
    "addmv": ((5,), ((5, 70), (70,)), exact),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, dtype, random):
    (shape, other), reference = PRODUCTS[name]
    a, b = random(*shape, dtype=dtype), random(*other, dtype=dtype)
    want = reference(a, b)
    function = getattr(torch, name)
    with hg.emulate("correct"):
        assert torch.equal(function(a, b), want)
        for out in (
            torch.empty_like(want),
            torch.empty(0, dtype=dtype, device=a.device),
        ):
            assert function(a, b, out=out) is out
            assert torch.equal(out, want)
        strided = torch.full((*want.shape, 2), 7, dtype=dtype, device=a.device)
        function(a, b, out=strided[..., 0])
    assert torch.equal(strided[..., 0], want)
    assert (strided[..., 1] == 7).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "scalars", [{}, {"alpha": -3}, {"beta": 0.3}, {"alpha": 0.5, "beta": -2}], ids=str
)
@pytest.mark.parametrize("name", SUMS)
def test_sums_round_the_product_first(name, scalars, dtype, random):
    shape, factors, reference = SUMS[name]
    c, (a, b) = random(*shape, dtype=dtype), (random(*x, dtype=dtype) for x in factors)
    alpha, beta = scalars.get("alpha", 1), scalars.get("beta", 1)
    want = added(c, reference(a, b), alpha, beta)
    with hg.emulate("correct"):
        assert torch.equal(getattr(torch, name)(c, a, b, **scalars), want)
        out = torch.empty_like(c)
        getattr(torch, name)(c, a, b, **scalars, out=out)
        assert torch.equal(out, want)
        assert getattr(c, f"{name}_")(a, b, **scalars) is c
    assert torch.equal(c, want)


def test_a_row_is_added_to_each_row_and_activated(random):
    a, b, c = random(5, 70), random(70, 6), random(6)
    want = exact(a, b) + c
    with hg.emulate("correct"):
        assert torch.equal(torch.nn.functional.linear(a, b.mT, c), want)
        assert torch.equal(torch._addmm_activation(c, a, b), want.relu())
        gelu = torch.nn.functional.gelu(
            want, approximate="tanh" if a.is_cuda else "none"
        )
        assert torch.equal(torch._addmm_activation(c, a, b, use_gelu=True), gelu)


def test_beta_zero_does_not_read_the_addend(random):
    a = random(5, 70)
    b = random(70, 6)
    c = torch.full((5, 6), torch.nan, dtype=torch.float64)
    c = c.to(a.device)
    with hg.emulate("correct"):
        assert torch.equal(torch.addmm(c, a, b, beta=0), exact(a, b))
        assert torch.equal(torch.addmm(c, a, b, beta=0, alpha=2), 2 * exact(a, b))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a.mT.mT @ b[:, ::2],
        lambda a, b: a.conj() @ b,
        lambda a, b: a @ b.mH.mT,
        lambda a, b: (a.conj().imag.to(a.dtype)) @ b,
        lambda a, b: torch.einsum("ik,kj->ji", a, b),
        lambda a, b: torch.tensordot(a, b, 1),
        lambda a, b: torch.linalg.multi_dot([a, b, b.mT]),
        lambda a, b: a.expand(2, 5, 70) @ b,
        lambda a, b: torch.inner(a, b.mT),
        lambda a, b: vmap(lambda x: x @ b)(a),
    ],
)
def test_programs_of_products_are_correctly_rounded_ones(function, random):
    """Lazy conjugates and signs, strides, and the functions that end in products: equal
    to the same in long doubles.
    """
    a, b = random(5, 70, dtype=torch.complex128), random(70, 6, dtype=torch.complex128)
    native = function(a, b)
    with hg.emulate("correct", summary=True) as products:
        got = function(a, b)
    assert sum(row.calls for row in products.rows if row.scheme != "handed on") >= 1
    assert got.shape == native.shape
    size = native.abs().max()
    assert (got - native).abs().max() <= 70**2 * 2.0**-52 * size


def test_conjugates_and_signs_that_wait_have_the_bits_of_those_that_do_not(random):
    a, b = random(5, 70, dtype=torch.complex128), random(70, 6, dtype=torch.complex128)
    with hg.emulate("correct"):
        assert torch.equal(
            a.conj() @ b.mH.mT, exact(a.conj().resolve_conj(), b.conj().resolve_conj())
        )
        x, y = a.conj().imag, b.conj().imag
        assert x.is_neg()
        assert torch.equal(x @ y, exact(x.resolve_neg(), y.resolve_neg()))


def test_gradients_of_any_order_are_products_of_the_scope(random):
    a = random(5, 70).requires_grad_()
    b = random(70, 6).requires_grad_()
    g = random(5, 6)
    with hg.emulate("correct"):
        (of_a, of_b) = torch.autograd.grad(a @ b, (a, b), g)
        (again,) = torch.autograd.grad(
            torch.autograd.grad(a @ b, a, g.requires_grad_(), create_graph=True)[
                0
            ].sum(),
            g,
        )
        tangent = torch.func.jvp(lambda x: x @ b, (a,), (b.mT[:5],))[1]
    assert torch.equal(of_a, exact(g, b.mT))
    assert torch.equal(of_b, exact(a.mT, g))
    assert torch.equal(again, exact(torch.ones_like(a), b))
    assert torch.equal(tangent, exact(b.mT[:5], b))


NARROW = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_16_bits_are_rounded_once(name, dtype, random):
    (shape, other), _ = PRODUCTS[name]
    a, b = (random(*x, dtype=torch.float32).to(dtype) for x in (shape, other))
    want = hg.matmul(a, b, accuracy="correct", out_dtype=dtype)
    assert want.dtype is dtype
    function = getattr(torch, name)
    with hg.emulate("correct", strict=True):
        assert torch.equal(function(a, b), want)
        assert torch.equal(function(a, b, out=torch.empty_like(want)), want)
    with hg.emulate(1e-3, strict=True):
        want = hg.matmul(a, b, accuracy=1e-3, out_dtype=dtype)
        assert torch.equal(function(a, b), want)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_16_bits_are_made_in_float32(name, dtype, random):
    shape, factors, _ = SUMS[name]
    c, a, b = (random(*x, dtype=torch.float32).to(dtype) for x in (shape, *factors))
    x, y = flat(a, b) if name == "addbmm" else (a, b)
    product = hg.matmul(x, y, accuracy="correct")
    assert product.dtype is torch.float32
    want = added(c.float(), product, -1.5, 0.5).to(dtype)
    function = getattr(torch, name)
    with hg.emulate("correct", strict=True):
        assert torch.equal(function(c, a, b, alpha=-1.5, beta=0.5), want)
        method = getattr(c, f"{name}_")
        assert torch.equal(method(a, b, alpha=-1.5, beta=0.5), want)


def test_gradients_of_16_bits_are_products_of_the_scope_too(random):
    a = random(5, 70, dtype=torch.float32).bfloat16().requires_grad_()
    b = random(70, 6, dtype=torch.float32).bfloat16().requires_grad_()
    g = random(5, 6, dtype=torch.float32).bfloat16()
    options = {"accuracy": "correct", "out_dtype": torch.bfloat16}
    with hg.emulate("correct"):
        (a @ b).backward(g)
    with torch.no_grad():
        assert torch.equal(a.grad, hg.matmul(g, b.mT, **options))
        assert torch.equal(b.grad, hg.matmul(a.mT, g, **options))


@pytest.mark.parametrize(
    ("why", "options", "function"),
    [
        ("m n k = 60 < 4**3", {"min_size": 4}, lambda x: x(3, 5) @ x(5, 4)),
        (
            "m n k = 60 < 128**3",
            {"min_size": 128, "accuracy": "fp64"},
            lambda x: x(3, 5) @ x(5, 4),
        ),
        (
            "native products are usual for bfloat16",
            {},
            lambda x: x(3, 5).bfloat16() @ x(5, 4).bfloat16(),
        ),
        ("nothing to multiply", CORRECT, lambda x: x(3, 0) @ x(0, 4)),
        (
            "nothing to multiply",
            CORRECT,
            lambda x: torch.addmm(x(3, 4), x(3, 5), x(5, 4), alpha=0),
        ),
    ],
)
def test_what_is_handed_on_has_the_bits_of_pytorch(why, options, function, random):
    state = torch.random.get_rng_state()

    def made():
        torch.random.set_rng_state(state)
        return function(
            lambda *shape: torch.randn(*shape, dtype=torch.float64).to(random(1).device)
        )

    native = made()
    with hg.emulate(**options, summary=True) as products:
        assert torch.equal(made(), native)
    (row,) = products.rows
    assert (row.scheme, row.reason, row.calls) == ("handed on", why, 1)
    assert why in str(products)


@pytest.mark.parametrize(
    "function",
    [
        lambda: torch.mm(torch.ones(2, 3), torch.ones(2, 3)),
        lambda: torch.mm(torch.ones(2, 3), torch.ones(3, 2).double()),
        lambda: torch.addmm(torch.ones(3, 2, 2), torch.ones(2, 3), torch.ones(3, 2)),
        lambda: torch.ones(1, 2).addmm_(torch.ones(2, 3), torch.ones(3, 2)),
        lambda: torch.mm(
            torch.ones(2, 3), torch.ones(3, 2), out=torch.ones(2, 2).int()
        ),
        lambda: torch.dot(torch.ones(2), torch.ones(3)),
    ],
)
def test_wrong_calls_fail_as_they_do_in_pytorch(function):
    with pytest.raises(Exception) as native:  # noqa: PT011, whatever PyTorch raises
        function()
    with hg.emulate("correct"), pytest.raises(type(native.value)) as found:
        function()
    assert str(found.value) == str(native.value)


def test_sparse_meta_and_fake_tensors_are_those_of_pytorch():
    from torch._subclasses.fake_tensor import FakeTensorMode

    a, b = torch.randn(5, 7), torch.randn(7, 4)
    sparse = a.to_sparse() @ b
    with scope_without_products("correct"):
        assert (a.to("meta") @ b.to("meta")).shape == (5, 4)
        assert torch.equal(a.to_sparse() @ b, sparse)
        with FakeTensorMode() as mode:
            assert (mode.from_tensor(a) @ mode.from_tensor(b)).shape == (5, 4)


def test_autocast_has_its_way_with_operators_and_not_with_emulated_products():
    a, b = torch.randn(5, 70), torch.randn(70, 6)
    with (
        hg.emulate("correct", summary=True) as products,
        torch.autocast("cpu", torch.bfloat16),
    ):
        product = a @ b
        assert product.dtype is torch.bfloat16
        assert torch.equal(hg.matmul(a, b, accuracy="correct"), exact(a, b))
    x, y = a.bfloat16(), b.bfloat16()
    options = {"accuracy": "correct", "out_dtype": torch.bfloat16}
    assert torch.equal(product, hg.matmul(x, y, **options))
    assert [row.dtype for row in products.rows] == ["bfloat16"]


def test_errors_of_a_forced_scheme_come_through_an_operator_sign():
    a, b = torch.randn(5, 70), torch.randn(70, 6)
    with (
        hg.emulate("correct", scheme=hg.Native()),
        pytest.raises((hg.AccuracyError, hg.PlanError)),
    ):
        a @ b


def test_scalars_as_pytorch_takes_them(random):
    a, b, c = random(5, 70), random(70, 6), random(5, 6)
    with hg.emulate("correct"):
        assert torch.equal(torch.addmm(c, a, b, alpha=True, beta=False), exact(a, b))
        assert torch.equal(
            torch.addmm(c, a, b, alpha=complex(2, 0)), c + 2 * exact(a, b)
        )
        with pytest.raises(RuntimeError):
            torch.addmm(c, a, b, alpha=1j)
        with pytest.raises(RuntimeError):
            torch.addmm(c.float(), a.float(), b.float(), beta=1e300)


def test_results_that_are_not_empty_are_resized_with_a_warning(random):
    a, b = random(5, 70), random(70, 6)
    with (
        hg.emulate("correct"),
        pytest.warns(UserWarning, match="output with one or more elements was resized"),
    ):
        assert torch.equal(torch.mm(a, b, out=a.new_zeros(3, 3)), exact(a, b))
