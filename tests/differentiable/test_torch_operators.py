"""The operator of PyTorch: its derivatives, transforms, traces and compiled forms are
those of torch.matmul.

Operands hold small integers, of which every product and sum is exact: results have to
be equal.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.differentiable.arguments import (
    accuracy_text,
    scheme_text,
)

torch = pytest.importorskip("torch")
from torch.autograd import forward_ad  # noqa: E402
from torch.func import (  # noqa: E402
    functionalize,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
    vmap,
)
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from hifigemm.differentiable import torch_operators  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:Attempted to insert a get_attr Node:UserWarning"
)  # of what torch itself does

OPERATOR = torch.ops.hifigemm.matmul
product = partial(hg.matmul, accuracy="correct")
DTYPES = {
    "real": (torch.float64, torch.float64),
    "complex": (torch.complex128, torch.complex128),
    "real times complex": (torch.float64, torch.complex128),
    "single": (torch.float32, torch.float32),
}
SHAPES = {
    "matrices": ((3, 4), (4, 2)),
    "stacks": ((2, 3, 4), (2, 4, 2)),
    "broadcast": ((3, 4), (2, 4, 2)),
    "broadcast twice": ((3, 1, 1, 2), (2, 2, 3)),
    "one column": ((3, 4), (4, 1)),
    "empty sums": ((3, 0), (0, 2)),
}


def integers(shape, dtype, seed):
    """Integers of one digit, with imaginary parts of their own."""
    rng = np.random.default_rng([seed, *shape])
    x = rng.integers(-9, 10, shape) + (
        1j * rng.integers(-9, 10, shape) if dtype.is_complex else 0
    )
    return torch.from_numpy(np.asarray(x)).to(dtype)


def reference(a, b):
    dtype = torch.promote_types(a.dtype, b.dtype)
    return torch.matmul(a.to(dtype), b.to(dtype))


def real(x):
    """A sum that gives every entry and component a gradient of its own."""
    x = x * x
    return (x.real + 2 * x.imag if x.is_complex() else x).sum()


@pytest.fixture(params=SHAPES)
def shapes(request):
    return SHAPES[request.param]


@pytest.fixture(params=DTYPES)
def pair(request, shapes):
    return tuple(
        integers(s, d, i)
        for i, (s, d) in enumerate(zip(shapes, DTYPES[request.param], strict=True))
    )


def same(one, other):
    """Both results, of any structure, are equal and of one dtype."""
    one, other = (torch.utils._pytree.tree_leaves(x) for x in (one, other))
    assert len(one) == len(other)
    for x, y in zip(one, other, strict=True):
        assert x.dtype is y.dtype
        assert x.shape == y.shape
        assert torch.equal(x, y)


def leaves(pair):
    return [x.clone().requires_grad_() for x in pair]


def gradients(f, pair):
    a, b = leaves(pair)
    return torch.autograd.grad(real(f(a, b)), (a, b))


def one_gradient(f, pair):
    a, b = pair
    b = b.clone().requires_grad_()
    return torch.autograd.grad(real(f(a, b)), b)


def second_gradients(f, pair):
    a, b = leaves(pair)
    first = torch.autograd.grad(real(f(a, b)), (a, b), create_graph=True)
    return torch.autograd.grad(sum(real(x) for x in first), (a, b))


def batched_gradients(f, pair):
    a, b = leaves(pair)
    c = f(a, b)
    vectors = torch.stack([integers(c.shape, c.dtype, seed) for seed in range(3)])
    return torch.autograd.grad(c, (a, b), vectors, is_grads_batched=True)


def tangents(f, pair, which=(True, True)):
    with forward_ad.dual_level():
        duals = [
            forward_ad.make_dual(x, x + 1) if own else x
            for x, own in zip(pair, which, strict=True)
        ]
        return tuple(forward_ad.unpack_dual(f(*duals)))


def tangents_of_gradients(f, pair):
    a, b = leaves(pair)
    with forward_ad.dual_level():
        c = f(forward_ad.make_dual(a, a.detach() + 1), b)
        return torch.autograd.grad(real(forward_ad.unpack_dual(c).tangent), (a, b))


def functional(transform):
    """A transform of torch.func of a function of both operands."""

    def apply(f, pair):
        return transform(f)(*pair)

    return apply


def twofold(pair, axes=(0, 0)):
    """Both operands and what follows them, side by side along an axis each."""
    return [torch.stack((x, x + 1), axis) for x, axis in zip(pair, axes, strict=True)]


def nested_jvp(f, pair):
    a, b = pair

    def inner(x):
        return jvp(lambda y: f(x, y), (b,), (b + 2,))[1]

    return jvp(inner, (a,), (a - 1,))


def both(f):
    """Of two operands that are real or complex alike."""
    return lambda a, b: real(f(a, b))


TRANSFORMS = {
    "forward": lambda f, pair: f(*pair),
    "gradients": gradients,
    "one gradient": one_gradient,
    "second gradients": second_gradients,
    "batched gradients": batched_gradients,
    "tangents": tangents,
    "a tangent of the left operand": partial(tangents, which=(True, False)),
    "a tangent of the right operand": partial(tangents, which=(False, True)),
    "gradients of tangents": tangents_of_gradients,
    "inference": lambda f, pair: torch.inference_mode()(f)(*pair),
    "no gradients": lambda f, pair: torch.no_grad()(f)(*leaves(pair)),
    "func.grad": functional(lambda f: grad(both(f), argnums=(0, 1))),
    "func.vjp": lambda f, pair: vjp(f, *pair)[1](f(*pair) + 1),
    "func.jvp": lambda f, pair: jvp(f, pair, tuple(x + 1 for x in pair)),
    "nested jvp": nested_jvp,
    "functionalize": functional(functionalize),
    "linearize": lambda f, pair: linearize(f, *pair)[1](*(x + 1 for x in pair)),
    "vmap": lambda f, pair: vmap(f)(*twofold(pair)),
    "vmap, left": lambda f, pair: vmap(f, in_dims=(0, None))(twofold(pair)[0], pair[1]),
    "vmap, right": lambda f, pair: vmap(f, in_dims=(None, 1))(
        pair[0], twofold(pair, (0, 1))[1]
    ),
    "vmap, other axes": lambda f, pair: vmap(f, in_dims=(1, -1))(
        *twofold(pair, (1, -1))
    ),
    "nested vmap": lambda f, pair: vmap(vmap(f, in_dims=(0, None)), in_dims=(None, 0))(
        *twofold(pair)
    ),
    "vmap of grad": lambda f, pair: vmap(grad(both(f), argnums=(0, 1)))(*twofold(pair)),
    "vmap of jvp": lambda f, pair: vmap(lambda a, b: jvp(f, (a, b), (a + 1, b)))(
        *twofold(pair)
    ),
    "grad of vmap": lambda f, pair: grad(
        lambda a, b: real(vmap(f)(*twofold((a, b)))), argnums=(0, 1)
    )(*pair),
}


@pytest.mark.thinned(7)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_are_those_of_matmul(transform, pair):
    same(TRANSFORMS[transform](product, pair), TRANSFORMS[transform](reference, pair))


def combined(a, b):
    """-2 A B + 3 C, where C repeats the sums of the rows of A."""
    alpha, beta = (
        (-2.0, 3.0)
        if torch.promote_types(a.dtype, b.dtype).is_complex is False
        else (-2j, 3 - 1j)
    )
    return hg.gemm(a, b, a.sum(-1, keepdim=True), alpha=alpha, beta=beta)


def combined_reference(a, b):
    alpha, beta = (
        (-2.0, 3.0)
        if torch.promote_types(a.dtype, b.dtype).is_complex is False
        else (-2j, 3 - 1j)
    )
    return alpha * reference(a, b) + beta * a.sum(-1, keepdim=True)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize("name", ["matrices", "broadcast"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_gemm(transform, name, kind):
    dtype = DTYPES[kind][0]
    pair = tuple(integers(shape, dtype, i) for i, shape in enumerate(SHAPES[name]))
    same(
        TRANSFORMS[transform](combined, pair),
        TRANSFORMS[transform](combined_reference, pair),
    )


def test_transposes_and_what_beta_does_not_read():
    a, b = (
        integers(shape, torch.complex128, i).requires_grad_()
        for i, shape in enumerate(((4, 3), (2, 4)))
    )
    c = torch.full((3, 2), torch.nan, dtype=torch.complex128, requires_grad=True)
    got = hg.gemm(a, b, c, alpha=2.0, trans_a="T", trans_b="C")
    want = 2 * (a.mT @ b.mH)
    same(got, want)
    same(
        torch.autograd.grad(real(got), (a, b)), torch.autograd.grad(real(want), (a, b))
    )


def test_gemm_passes_the_checks_of_pytorch():
    gemm = torch.ops.hifigemm.gemm
    for dtype, alpha, beta in (
        (torch.float64, 0.5, -2.0),
        (torch.complex128, 0.5 - 1j, 2 + 0.25j),
    ):
        a, b, c = (
            torch.rand(s, dtype=dtype, requires_grad=True)
            for s in ((2, 2, 3), (3, 2), (2, 1))
        )

        def scaled(a, b, c, alpha=alpha, beta=beta):
            return gemm(a, b, c, alpha=alpha, beta=beta)

        every = {
            "check_forward_ad": True,
            "check_batched_grad": True,
            "check_batched_forward_grad": True,
        }
        assert torch.autograd.gradcheck(scaled, (a, b, c), **every)
        assert torch.autograd.gradgradcheck(scaled, (a, b, c), check_fwd_over_rev=True)
        torch.library.opcheck(gemm.default, (a, b, c), {"alpha": alpha, "beta": beta})
        torch.library.opcheck(gemm.default, (a, b))


JACOBIANS = {
    "jacfwd": lambda f: jacfwd(f, argnums=(0, 1)),
    "jacrev": lambda f: jacrev(f, argnums=(0, 1)),
    "hessian": lambda f: hessian(lambda a, b: (f(a, b) ** 2).sum(), argnums=(0, 1)),
    "jacrev of jacrev": lambda f: jacrev(
        jacrev(lambda a, b: (f(a, b) ** 2).sum(), argnums=(0, 1)), argnums=(0, 1)
    ),
    "jacfwd of jacfwd": lambda f: jacfwd(jacfwd(f, argnums=0), argnums=1),
    "jacrev of jacfwd": lambda f: jacrev(jacfwd(f, argnums=0), argnums=1),
    "grad of a tangent": lambda f: grad(
        lambda a, b: (jvp(lambda x: f(x, b), (a,), (a + 1,))[1] ** 2).sum(), (0, 1)
    ),
}


@pytest.mark.thinned(5)
@pytest.mark.parametrize("jacobian", JACOBIANS)
def test_jacobians_are_those_of_matmul(jacobian, shapes):
    pair = [integers(shape, torch.float64, i) for i, shape in enumerate(shapes)]
    same(JACOBIANS[jacobian](product)(*pair), JACOBIANS[jacobian](reference)(*pair))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_derivatives_are_those_of_differences(dtype):
    a, b = (
        x.requires_grad_()
        for x in (torch.rand(2, 2, 3, dtype=dtype), torch.rand(3, 2, dtype=dtype))
    )
    every = {
        "check_forward_ad": True,
        "check_batched_grad": True,
        "check_batched_forward_grad": True,
    }
    assert torch.autograd.gradcheck(product, (a, b), **every)
    assert torch.autograd.gradgradcheck(product, (a, b), check_fwd_over_rev=True)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("scheme", ["auto", "Ozaki2(num_moduli=14, scaling='fast')"])
def test_operators_pass_the_checks_of_pytorch(shapes, scheme):
    for dtype in (torch.float64, torch.complex64):
        pair = [integers(shape, dtype, i) for i, shape in enumerate(shapes)]
        for operands in (pair, [x.requires_grad_() for x in pair]):
            torch.library.opcheck(OPERATOR.default, operands, {"scheme": scheme})


def test_results_are_those_of_matmul_of_this_library(make_pair, assert_same_bits):
    a, b = (torch.from_numpy(x) for x in make_pair("phi_4", 30, 40, 20))
    for accuracy, scheme in (
        (None, "auto"),
        ("correct", "auto"),
        (1e-18, "ozaki2"),
        (None, hg.Ozaki1(num_slices=3)),
    ):
        got = OPERATOR(
            a, b, accuracy=accuracy_text(accuracy), scheme=scheme_text(scheme)
        )
        assert_same_bits(
            got.numpy(), hg.matmul(a, b, accuracy=accuracy, scheme=scheme).numpy()
        )
    x, y = (v.to(torch.bfloat16) for v in (a, b))
    assert torch.equal(OPERATOR(x, y), hg.matmul(x, y))


def test_products_of_derivatives_have_the_accuracy_that_was_asked_for(make_pair):
    a, b = (
        torch.from_numpy(x).requires_grad_()
        for x in make_pair("cancelling", 20, 30, 25)
    )
    g = torch.from_numpy(make_pair("phi_4", 20, 4, 25)[0] @ np.ones((4, 25)))
    left, right = torch.autograd.grad(product(a, b), (a, b), g)
    with torch.no_grad():
        same(
            (left, right),
            (
                hg.matmul(g, b.mT, accuracy="correct"),
                hg.matmul(a.mT, g, accuracy="correct"),
            ),
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("other", [torch.bfloat16, torch.float32, torch.float64])
def test_gradients_of_16_bits_are_rounded_once(dtype, other):
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(5, 30, generator=generator).to(dtype).requires_grad_()
    b = torch.randn(30, 4, generator=generator).to(other).requires_grad_()
    for out_dtype in (None, torch.bfloat16, torch.float64):
        c = product(a, b, out_dtype=out_dtype)
        assert out_dtype in (None, c.dtype)
        g = torch.randn(5, 4, generator=generator).to(c.dtype)
        left, right = torch.autograd.grad(c, (a, b), g)
        with torch.no_grad():
            options = {"accuracy": "correct"}
            assert torch.equal(c, hg.matmul(a, b, out_dtype=out_dtype, **options))
            same(left, hg.matmul(g, b.mT, out_dtype=dtype, **options))
            same(right, hg.matmul(a.mT, g, out_dtype=other, **options))
    # Gradients that are summed have the dtype of the operand all the same.
    stack = a.detach()[None].repeat(3, 1, 1)
    product(stack, b, out_dtype=dtype).float().sum().backward()
    assert b.grad.dtype is other


@pytest.mark.parametrize("transform", ["vmap", "jvp", "grad", "compile", "export"])
def test_transforms_keep_the_dtype_that_is_asked(transform):
    generator = torch.Generator().manual_seed(2)
    a, b, c = (
        torch.randn(shape, generator=generator).bfloat16()
        for shape in ((5, 30), (30, 4), (5, 4))
    )
    options = {"accuracy": "correct", "out_dtype": torch.float16}

    def sum_with_c(a, b, c):
        return hg.gemm(a, b, c, alpha=0.3, beta=2.0, **options)

    for function, operands in (
        (partial(hg.matmul, **options), (a, b)),
        (sum_with_c, (a, b, c)),
    ):
        want = function(*operands)
        assert want.dtype is torch.float16
        if transform == "vmap":
            axes = (0, *(None for _ in operands[1:]))
            stack = torch.stack([a, 2 * a])
            found = torch.vmap(function, axes)(stack, *operands[1:])
            same(found[0], want)
        elif transform == "jvp":
            found, tangent = torch.func.jvp(function, operands, operands)
            same(found, want)
            assert tangent.dtype is torch.float16
        elif transform == "grad":
            gradient = torch.func.grad(lambda *x, f=function: f(*x).float().sum())
            assert gradient(*operands).dtype is torch.bfloat16
        elif transform == "compile":
            compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
            x = a.clone().requires_grad_()
            found = compiled(x, *operands[1:])
            same(found.detach(), want)
            found.float().sum().backward()
            assert x.grad.dtype is torch.bfloat16
        else:

            class Module(torch.nn.Module):
                def forward(self, *x, f=function):
                    return f(*x)

            program = torch.export.export(Module(), operands)
            same(program.module()(*operands), want)


def test_backward_passes_of_other_threads_know_the_accuracy():
    """The graph carries it: what a thread has set does not count."""
    from threading import Thread

    a, b = (torch.rand(9, 9, dtype=torch.float64, requires_grad=True) for _ in range(2))
    c, found = product(a, b).sum(), []
    thread = Thread(target=lambda: found.extend(torch.autograd.grad(c, (a, b))))
    thread.start()
    thread.join()
    ones = torch.ones(9, 9, dtype=torch.float64)
    with torch.no_grad():
        same(
            found,
            [
                hg.matmul(ones, b.mT, accuracy="correct"),
                hg.matmul(a.mT, ones, accuracy="correct"),
            ],
        )


def test_autocast_leaves_operands_as_they_are():
    pair = [integers((4, 4), torch.float32, i) * 1.0001 for i in range(2)]
    want = product(*pair)
    with torch.autocast("cpu", torch.bfloat16):
        same(product(*pair), want)
        same(gradients(product, pair), gradients(product, pair))


@pytest.mark.parametrize("accuracy", [None, "correct"])
@pytest.mark.parametrize("is_sum", [False, True], ids=["matmul", "gemm"])
def test_derivatives_of_plain_tensors_go_past_the_dispatcher(
    accuracy, is_sum, monkeypatch
):
    a, b, c, g = (torch.rand(6, 6, dtype=torch.float64) for _ in range(4))
    b = torch.nn.Parameter(b)

    def f(x, y):
        if is_sum:
            return hg.gemm(x, y, c, alpha=0.5, beta=2.0, accuracy=accuracy)
        return hg.matmul(x, y, accuracy=accuracy)

    def both():
        x = a.clone().requires_grad_()
        result = f(x, b)
        return result.detach(), *torch.autograd.grad(result, (x, b), g)

    want = both()

    def fail(*args, **options):
        raise AssertionError("the kernel of the operator was called")

    for operator in list(torch_operators._KERNELS):
        monkeypatch.setitem(torch_operators._KERNELS, operator, fail)
    same(both(), want)
    with torch.no_grad():
        factor = 0.5 if is_sum else 1.0
        same(want[1], factor * hg.matmul(g, b.mT, accuracy=accuracy))


def squared(a, b):
    c = product(a, b)
    return product(c.mT, c)


@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_functions_hold_one_graph_and_the_same_bits(dynamic):
    torch.compiler.reset()
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    counted = torch.compile(squared, backend=count, fullgraph=True, dynamic=dynamic)
    compiled = torch.compile(
        squared, backend="aot_eager", fullgraph=True, dynamic=dynamic
    )
    for n in (5, 7, 9):
        a, b = leaves(
            [
                torch.rand(n, 6, dtype=torch.float64),
                torch.rand(6, 4, dtype=torch.float64),
            ]
        )
        for f in (counted, compiled):
            same(f(a, b), squared(a, b))
            same(
                torch.autograd.grad(f(a, b).sum(), (a, b)),
                torch.autograd.grad(squared(a, b).sum(), (a, b)),
            )
    assert len(graphs) <= (1 if dynamic else 2)  # the second is one for all sizes
    torch.compiler.reset()


@pytest.mark.parametrize("transform", ["func.jvp", "vmap", "func.grad", "func.vjp"])
def test_compiled_transforms(transform):
    torch.compiler.reset()
    pair = tuple(integers(s, torch.float64, i) for i, s in enumerate(SHAPES["stacks"]))
    compiled = torch.compile(
        lambda a, b: TRANSFORMS[transform](product, (a, b)),
        backend="aot_eager",
        fullgraph=True,
    )
    same(compiled(*pair), TRANSFORMS[transform](reference, pair))
    torch.compiler.reset()


def test_tangents_pass_through_compiled_functions():
    torch.compiler.reset()
    pair = [integers(s, torch.float64, i) for i, s in enumerate(SHAPES["matrices"])]
    same(
        tangents(torch.compile(product, backend="aot_eager"), pair),
        tangents(reference, pair),
    )
    torch.compiler.reset()


def test_graphs_hold_the_operator():
    class Module(torch.nn.Module):
        def forward(self, a, b):
            return squared(a, b)

    a, b = torch.rand(3, 4, dtype=torch.float64), torch.rand(4, 2, dtype=torch.float64)
    exported = torch.export.export(Module(), (a, b))
    for graph in (exported.graph, make_fx(squared)(a, b).graph):
        assert sum(node.target is OPERATOR.default for node in graph.nodes) == 2
    same(exported.module()(a, b), squared(a, b))


def test_tensors_without_numbers_have_shapes_and_dtypes():
    from torch._subclasses import FakeTensorMode

    for dtypes in (
        (torch.float64, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.complex64, torch.float64),
    ):
        pair = [
            integers(s, d, i)
            for i, (s, d) in enumerate(zip(SHAPES["broadcast"], dtypes, strict=True))
        ]
        want = OPERATOR(*pair)
        with FakeTensorMode() as mode:
            made = OPERATOR(*(mode.from_tensor(x) for x in pair))
        for found in (made, OPERATOR(*(x.to("meta") for x in pair))):
            assert (found.shape, found.dtype) == (want.shape, want.dtype)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (((3, 4), (5, 2)), r"\(3, 4\) and \(5, 2\)"),
        (((4,), (4, 2)), r"\(4,\) and \(4, 2\)"),
        (((3, 4), (4,)), r"\(3, 4\) and \(4,\)"),
        (((2, 3, 4), (3, 4, 2)), "broadcast"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes, said):
    for device in ("cpu", "meta"):
        with pytest.raises((RuntimeError, ValueError), match=said):
            OPERATOR(
                *(
                    torch.zeros(shape, dtype=torch.float64, device=device)
                    for shape in shapes
                )
            )


@pytest.mark.parametrize("pair", DTYPES)
def test_results_are_written_to_out(pair):
    a, b = (
        integers(shape, dtype, 3)
        for shape, dtype in zip(SHAPES["stacks"], DTYPES[pair], strict=True)
    )
    want, operators = reference(a, b), torch.ops.hifigemm
    assert torch.equal(operators.bmm(a, b, accuracy="correct"), want)
    c = integers(want.shape, want.dtype, 4)
    calls = {
        "matmul": (
            lambda out: operators.matmul(a, b, accuracy="correct", out=out),
            want,
        ),
        "bmm": (lambda out: operators.bmm(a, b, accuracy="correct", out=out), want),
        "gemm": (
            lambda out: operators.gemm(
                a, b, c, alpha=2, beta=-1, accuracy="correct", out=out
            ),
            2 * want - c,
        ),
    }
    for call, value in calls.values():
        out = torch.empty_like(want)
        assert call(out) is out
        assert torch.equal(out, value)

        def program(call=call, like=want):
            out = torch.empty_like(like)
            call(out)
            return out * 2

        compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(), 2 * value)
        assert torch.equal(functionalize(program)(), 2 * value)
        torch.compiler.reset()


def test_wrong_results_and_stacks_are_refused():
    a, b = (integers(shape, torch.float64, 5) for shape in SHAPES["stacks"])
    operators = torch.ops.hifigemm
    with pytest.raises(RuntimeError, match=r"\(2, 3, 4\) and \(4, 2\)"):
        operators.bmm(a, b[0])
    with pytest.raises(ValueError, match=r"\(3,\); the result has shape \(2, 3, 2\)"):
        operators.matmul(a, b, out=torch.empty(3, dtype=torch.float64))
    with pytest.raises(RuntimeError, match=r"out is torch\.float32"):
        operators.matmul(
            a.to("meta"), b.to("meta"), out=torch.empty(2, 3, 2, device="meta")
        )
    with pytest.raises(RuntimeError, match="no derivatives"):
        operators.matmul(
            a.requires_grad_(), b, out=torch.empty(2, 3, 2, dtype=torch.float64)
        )


def test_opcheck_of_stacks_and_of_results_given():
    a, b = (integers(shape, torch.float64, 6) for shape in SHAPES["stacks"])
    torch.library.opcheck(torch.ops.hifigemm.bmm.default, (a, b))
    for operator in (torch.ops.hifigemm.matmul.out, torch.ops.hifigemm.bmm.out):
        torch.library.opcheck(
            operator, (a, b), {"out": torch.empty(2, 3, 2, dtype=torch.float64)}
        )
