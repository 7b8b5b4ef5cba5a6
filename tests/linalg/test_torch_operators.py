"""Derivatives, transforms and compiled forms of verified solutions: those of
torch.linalg.solve.
"""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm import linalg

torch = pytest.importorskip("torch")
from torch.autograd import forward_ad, gradcheck, gradgradcheck  # noqa: E402
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap  # noqa: E402

from hifigemm.linalg import torch_operators  # noqa: E402, F401

pytestmark = pytest.mark.filterwarnings(
    "ignore:Attempted to insert a get_attr Node:UserWarning"
)  # of what torch itself does


def x_of(a, b, accuracy=None):
    return linalg.solve(a, b, accuracy=accuracy).x


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


def test_inverses_have_gradients():
    assert gradcheck(lambda a: linalg.inv(a).x, drawn(3, 3, requires_grad=True))


def test_a_gradient_is_verified_or_raises():
    # A can be inverted in two words; its right side for the gradient overflows there
    a = torch.diag(torch.tensor([1.0, 1e-200], dtype=torch.float64)).requires_grad_()
    x = x_of(a, torch.tensor([1.0, 0.0], dtype=torch.float64))
    with pytest.raises(linalg.VerificationError, match="beyond the range"):
        x.backward(torch.tensor([0.0, 1e200], dtype=torch.float64))


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0), (2, 1)])
@pytest.mark.parametrize("is_vector", [False, True])
def test_vmap(in_dims, is_vector):
    shape = {0: (3, 4), 1: (4, 3), None: (4,)}[in_dims[1]]
    if not is_vector:
        shape = (*shape, 2)
    a = drawn(*{0: (3, 4, 4), 2: (4, 4, 3), None: (4, 4)}[in_dims[0]])
    b = drawn(*shape)
    same(vmap(x_of, in_dims)(a, b), vmap(torch.linalg.solve, in_dims)(a, b))


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


def test_the_operator_keeps_the_rules_of_torch():
    operands = drawn(4, 4, requires_grad=True), drawn(4, 2, requires_grad=True)
    torch.library.opcheck(torch.ops.hifigemm.solve.default, operands)


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
        linalg.lstsq(a, a)


def test_errors_are_those_of_torch():
    a = torch.ones((2, 2), dtype=torch.float64, requires_grad=True)
    with pytest.raises(torch.linalg.LinAlgError, match="nonsingular"):
        linalg.solve(a, a)
    with pytest.raises(np.linalg.LinAlgError, match="square"):
        linalg.solve(torch.ones((2, 3), requires_grad=True), torch.ones(2))
    with pytest.raises(hg.PlanError, match="accuracy"):
        linalg.solve(a, a, accuracy=1e-3)
