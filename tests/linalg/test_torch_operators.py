"""Derivatives, transforms and compiled forms of verified answers: those of
torch.linalg.solve, lstsq and slogdet.
"""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm import linalg
from tests.linalg.worst_arithmetic import fractions

torch = pytest.importorskip("torch")
from torch.autograd import forward_ad, gradcheck, gradgradcheck  # noqa: E402
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap  # noqa: E402

from hifigemm.linalg import torch_operators  # noqa: E402, F401

pytestmark = pytest.mark.filterwarnings(
    "ignore:Attempted to insert a get_attr Node:UserWarning"
)  # of what torch itself does


def x_of(a, b, accuracy=None):
    return linalg.solve(a, b, accuracy=accuracy).x


def least_squares_of(a, b):
    return linalg.lstsq(a, b).x


def by_pseudoinverse(a, b):
    return torch.linalg.pinv(a) @ b


def parts_of_log(a):
    """The sign and the logarithm."""
    d = linalg.slogdet(a)
    return d.sign, d.logabsdet


def drawn(*shape, dtype=torch.float64, requires_grad=False):
    generator = torch.Generator().manual_seed(len(shape))
    x = torch.randn(shape, dtype=dtype, generator=generator)
    return x.requires_grad_(requires_grad)


def same(x, y):
    torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


OPERANDS = {
    "vector": ((4, 4), (4,)),
    "matrix": ((4, 4), (4, 2)),
    "stack": ((3, 4, 4), (3, 4, 2)),
    "one matrix": ((4, 4), (3, 4, 2)),
    "one side": ((3, 4, 4), (4,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("shapes", OPERANDS.values(), ids=OPERANDS)
def test_gradients_of_every_order_and_mode(shapes, dtype):
    a, b = (drawn(*shape, dtype=dtype, requires_grad=True) for shape in shapes)
    assert gradcheck(x_of, (a, b), check_forward_ad=True)
    assert gradgradcheck(x_of, (a, b))


RECTANGLES = {
    "tall, vector": ((4, 2), (4,)),
    "tall, matrix": ((4, 2), (4, 3)),
    "tall, stack": ((2, 4, 2), (2, 4, 3)),
    "tall, one matrix": ((4, 2), (2, 4, 1)),
    "tall, one side": ((2, 4, 2), (4,)),
    "wide, vector": ((2, 4), (2,)),
    "wide, matrix": ((2, 4), (2, 2)),
    "wide, stack": ((2, 2, 4), (2, 2, 2)),
    "wide, one side": ((2, 2, 4), (2,)),
    "square": ((3, 3), (3, 2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("shapes", RECTANGLES.values(), ids=RECTANGLES)
def test_gradients_of_least_squares_of_every_order_and_mode(shapes, dtype):
    a, b = (drawn(*shape, dtype=dtype, requires_grad=True) for shape in shapes)
    assert gradcheck(least_squares_of, (a, b), check_forward_ad=True)
    assert gradgradcheck(least_squares_of, (a, b))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3), (1, 1)])
def test_gradients_of_logarithms_of_every_order_and_mode(shape, dtype):
    a = drawn(*shape, dtype=dtype, requires_grad=True)
    assert gradcheck(parts_of_log, a, check_forward_ad=True)
    assert gradgradcheck(parts_of_log, a)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("shapes", RECTANGLES.values(), ids=RECTANGLES)
def test_gradients_of_least_squares_are_those_of_torch(shapes, dtype):
    pairs = []
    for function in (least_squares_of, by_pseudoinverse):
        a, b = (drawn(*shape, dtype=dtype, requires_grad=True) for shape in shapes)
        x = function(a, b)
        (x * drawn(*x.shape, dtype=dtype)).abs().sum().backward()
        pairs.append((a.grad, b.grad))
    for x, y in zip(*pairs):
        same(x, y)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_gradients_of_logarithms_are_those_of_torch(dtype):
    pairs = []
    for function in (parts_of_log, torch.linalg.slogdet):
        a = drawn(3, 4, 4, dtype=dtype, requires_grad=True)
        sign, logarithm = function(a)
        ((sign * drawn(3, dtype=dtype)).real + 3.0 * logarithm).sum().backward()
        pairs.append(a.grad)
    same(*pairs)


def test_gradients_of_narrow_tensors_are_rounded_from_wide_ones():
    a = drawn(3, 3).float().requires_grad_()
    d = linalg.slogdet(a)
    d.logabsdet.backward()
    assert d.logabsdet.dtype == torch.float64
    inverse = linalg.inv(a.detach().double()).x
    assert torch.equal(a.grad, inverse.T.float())
    _, tangent = jvp(
        lambda a: linalg.slogdet(a).logabsdet, (a.detach(),), (a.detach(),)
    )
    same(tangent, torch.tensor(3.0, dtype=torch.float64))


@pytest.mark.parametrize("condition", [1e3, 1e11, 1e19])
@pytest.mark.parametrize("is_wide", [False, True])
def test_gradients_of_least_squares_lose_no_digits_to_the_condition(is_wide, condition):
    # Against the formulas in fractions, with a residual as large as b
    exact = pytest.importorskip("tests.linalg.exact_least_squares")
    rng = np.random.default_rng(5)
    a = exact.nearly_dependent(rng, 8, 3, condition)
    b, g = rng.standard_normal((8, 1)), rng.standard_normal((3, 1))
    if is_wide:
        a, b, g = a.T, g, b
    tensor = torch.from_numpy(np.ascontiguousarray(a)).requires_grad_()
    linalg.lstsq(tensor, torch.from_numpy(b)).x.backward(torch.from_numpy(g))

    a, b, g = (np.array(fractions(x)) for x in (a, b, g))
    gradient, bound = exact.gradient_of_least_squares(a, b, g)
    error = np.array(fractions(tensor.grad.numpy())) - gradient
    assert (abs(error) <= bound).all()


def test_gradients_are_those_of_torch_and_radii_have_none():
    pairs = []
    for solve in (x_of, lambda a, b: torch.linalg.solve(a, b)):
        a, b = drawn(4, 4, requires_grad=True), drawn(4, 2, requires_grad=True)
        (solve(a, b) ** 3).sum().backward()
        pairs.append((a.grad, b.grad))
    for x, y in zip(*pairs):
        same(x, y)
    solution = linalg.solve(drawn(4, 4, requires_grad=True), drawn(4, 2))
    assert solution.x.requires_grad
    assert not solution.radius.requires_grad


def test_real_operands_of_complex_systems_have_real_gradients():
    a = drawn(3, 3, requires_grad=True)
    b = drawn(3, 1, dtype=torch.complex128, requires_grad=True)
    x_of(a, b).abs().sum().backward()
    assert a.grad.dtype == torch.float64
    other = a.detach().clone().requires_grad_()
    torch.linalg.solve(other.to(b.dtype), b.detach()).abs().sum().backward()
    same(a.grad, other.grad)


def test_real_operands_of_complex_least_squares_have_real_gradients():
    for m, n in ((4, 2), (2, 4)):
        a = drawn(m, n, requires_grad=True)
        b = drawn(m, 1, dtype=torch.complex128)
        least_squares_of(a, b).abs().sum().backward()
        other = a.detach().clone().requires_grad_()
        by_pseudoinverse(other.to(b.dtype), b).abs().sum().backward()
        same(a.grad, other.grad)


def test_inverses_have_gradients():
    assert gradcheck(lambda a: linalg.inv(a).x, drawn(3, 3, requires_grad=True))


def test_a_gradient_is_verified_or_raises():
    # A can be inverted in two words; its right side for the gradient overflows there
    a = torch.diag(torch.tensor([1.0, 1e-200], dtype=torch.float64)).requires_grad_()
    x = x_of(a, torch.tensor([1.0, 0.0], dtype=torch.float64))
    with pytest.raises(linalg.VerificationError, match="beyond the range"):
        x.backward(torch.tensor([0.0, 1e200], dtype=torch.float64))


def test_a_gradient_of_a_singular_determinant_raises():
    a = torch.stack([torch.eye(2), torch.ones((2, 2))]).double().requires_grad_()
    d = linalg.slogdet(a)
    assert d.sign.tolist() == [1.0, 0.0]
    assert d.logabsdet[1] == -torch.inf
    with pytest.raises(linalg.VerificationError, match="singular"):
        d.logabsdet[0].backward()


def test_a_gradient_without_full_rank_raises():
    a = torch.ones((3, 2), dtype=torch.float64, requires_grad=True)
    with pytest.raises(torch.linalg.LinAlgError, match="full rank"):
        linalg.lstsq(a, torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0), (2, 1)])
@pytest.mark.parametrize("is_vector", [False, True])
def test_vmap(in_dims, is_vector):
    shape = {0: (3, 4), 1: (4, 3), None: (4,)}[in_dims[1]]
    if not is_vector:
        shape = (*shape, 2)
    a = drawn(*{0: (3, 4, 4), 2: (4, 4, 3), None: (4, 4)}[in_dims[0]])
    b = drawn(*shape)
    same(vmap(x_of, in_dims)(a, b), vmap(torch.linalg.solve, in_dims)(a, b))


def test_vmap_of_least_squares_and_logarithms():
    a, b = drawn(3, 4, 2), drawn(3, 4)
    same(vmap(least_squares_of)(a, b), vmap(by_pseudoinverse)(a, b))
    ours = vmap(least_squares_of, (None, 0))(a[0], b)
    same(ours, vmap(by_pseudoinverse, (None, 0))(a[0], b))
    stack = drawn(4, 4, 3)
    ours = vmap(parts_of_log, -1)(stack)
    for x, y in zip(ours, vmap(torch.linalg.slogdet, -1)(stack)):
        same(x, y)


def test_transforms_of_transforms():
    a, b = drawn(3, 3), drawn(3)

    def loss(solve, a):
        return (solve(a, b) ** 2).sum()

    for transform in (grad, jacrev, jacfwd, hessian, lambda f: jacfwd(jacrev(f))):
        ours = transform(lambda a: loss(x_of, a))(a)
        same(ours, transform(lambda a: loss(torch.linalg.solve, a))(a))
    stack = drawn(2, 3, 3)
    ours = vmap(grad(lambda a: loss(x_of, a)))(stack)
    same(ours, vmap(grad(lambda a: loss(torch.linalg.solve, a)))(stack))
    ours = jvp(x_of, (a, b), (drawn(3, 3), drawn(3)))
    theirs = jvp(torch.linalg.solve, (a, b), (drawn(3, 3), drawn(3)))
    for x, y in zip(ours, theirs):
        same(x, y)


@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (3, 3)])
def test_transforms_of_transforms_of_least_squares_and_logarithms(shape):
    a, b = drawn(*shape), drawn(shape[0])
    pairs = [
        (
            lambda a: (least_squares_of(a, b) ** 2).sum(),
            lambda a: (by_pseudoinverse(a, b) ** 2).sum(),
        )
    ]
    if shape[0] == shape[1]:
        logarithms = (linalg.slogdet, torch.linalg.slogdet)
        pairs.append([lambda a, f=f: f(a).logabsdet ** 2 for f in logarithms])
    for pair in pairs:
        for transform in (grad, jacrev, jacfwd, hessian, lambda f: jacfwd(jacrev(f))):
            ours, theirs = (transform(function)(a) for function in pair)
            same(ours, theirs)
        stack = torch.stack([a, 2.0 * a + 1.0])
        ours, theirs = (vmap(grad(function))(stack) for function in pair)
        same(ours, theirs)


def test_tangents_of_tangents():
    # That of torch.linalg.solve itself is half of it in PyTorch 2.11
    a, b = drawn(3, 3), drawn(3)

    def second(function):
        def tangent(x):
            return jvp(lambda a: function(a, b), (x,), (a,))[1]

        return jvp(tangent, (a,), (a.T,))[1]

    same(second(x_of), second(lambda a, b: torch.linalg.inv(a) @ b))


def test_tangents_without_transforms():
    a, b = drawn(3, 3), drawn(3)
    with forward_ad.dual_level():
        x = x_of(forward_ad.make_dual(a, a.T), b)
        tangent = forward_ad.unpack_dual(x).tangent
        other = torch.linalg.solve(forward_ad.make_dual(a, a.T), b)
        same(tangent, forward_ad.unpack_dual(other).tangent)


def test_compiled_programs_have_one_node_and_gradients():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def program(a, b):
        solution = linalg.solve(a, 2.0 * b, accuracy="correct")
        return solution.x + 1.0, solution.radius

    a, b = drawn(4, 4, requires_grad=True), drawn(4)
    x, radius = program(a, b)
    expected = linalg.solve(a.detach(), 2.0 * b, accuracy="correct")
    assert torch.equal(x, expected.x + 1.0)
    assert torch.equal(radius, expected.radius)
    x.sum().backward()
    other = a.detach().clone().requires_grad_()
    torch.linalg.solve(other, 2.0 * b).sum().backward()
    same(a.grad, other.grad)


def test_compiled_least_squares_and_logarithms():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def program(a, b):
        gram = linalg.slogdet(a.mH @ a)
        return linalg.lstsq(a, b).x.sum() + gram.logabsdet

    a, b = drawn(4, 2, requires_grad=True), drawn(4)
    program(a, b).backward()
    other = a.detach().clone().requires_grad_()
    logarithm = torch.linalg.slogdet(other.mH @ other).logabsdet
    (by_pseudoinverse(other, b).sum() + logarithm).backward()
    same(a.grad, other.grad)


OPERATORS = {
    "solve": ((4, 4), (4, 2)),
    "lstsq": ((4, 3), (4, 2)),
    "slogdet": ((2, 4, 4),),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_operators_keep_the_rules_of_torch(name, dtype):
    operands = [
        drawn(*shape, dtype=dtype, requires_grad=True) for shape in OPERATORS[name]
    ]
    operator = getattr(torch.ops.hifigemm, name).default
    torch.library.opcheck(operator, tuple(operands))


def test_traced_results_for_integers_have_the_dtype_of_solutions():
    a, b = torch.tensor([[2, 0], [0, 4]]), torch.ones((2, 1))
    program = torch.export.export(_Quotient(), (a, b))
    (x,) = (out.meta["val"] for out in program.graph.output_node().args[0])
    assert x.dtype == linalg.solve(a, b).x.dtype == torch.float64


class _Quotient(torch.nn.Module):
    def forward(self, a, b):
        return linalg.solve(a, b).x


def test_reports_and_other_functions_have_no_gradients():
    a = torch.eye(2, dtype=torch.float64, requires_grad=True)
    with pytest.raises(TypeError, match="requires a gradient"):
        linalg.solve(a, a, return_report=True)
    for function in (
        linalg.det,
        linalg.is_positive_definite,
        linalg.eigvalsh,
        linalg.svdvals,
        linalg.cond,
    ):
        with pytest.raises(TypeError, match="requires a gradient"):
            function(a)
    with pytest.raises(TypeError, match="requires a gradient"):
        linalg.lstsq(a, a, return_report=True)
    with pytest.raises(TypeError, match="use slogdet"):
        linalg.det(a)


def test_errors_are_those_of_torch():
    a = torch.ones((2, 2), dtype=torch.float64, requires_grad=True)
    with pytest.raises(torch.linalg.LinAlgError, match="nonsingular"):
        linalg.solve(a, a)
    with pytest.raises(np.linalg.LinAlgError, match="square"):
        linalg.solve(torch.ones((2, 3), requires_grad=True), torch.ones(2))
    with pytest.raises(hg.PlanError, match="accuracy"):
        linalg.solve(a, a, accuracy=1e-3)
