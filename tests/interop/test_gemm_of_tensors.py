"""gemm of tensors that PyTorch follows: vectors, matrices and stacks, alpha and beta of
every type, C that is read and C that is not.

Operands hold small integers, of which every product and sum is exact: results and
derivatives have to be equal to those of PyTorch's own einsum.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from torch.autograd import forward_ad  # noqa: E402
from torch.func import functionalize, grad, jacfwd, jacrev, jvp, vmap  # noqa: E402

from hifigemm.differentiable import torch_operators  # noqa: E402, F401

pytestmark = pytest.mark.filterwarnings(
    "ignore:Attempted to insert a get_attr Node:UserWarning"
)  # of what torch itself does

FORMULAS = {
    "vector vector": ((5,), (5,), "k,k->", ((),)),
    "vector matrix": ((5,), (5, 3), "k,kn->n", ((3,), (1,), ())),
    "matrix vector": ((4, 5), (5,), "mk,k->m", ((4,), (1,), ())),
    "matrix matrix": ((4, 5), (5, 3), "mk,kn->mn", ((4, 3), (3,), (4, 1), ())),
    "vector stack": ((5,), (2, 5, 3), "k,skn->sn", ((2, 3), (3,), (2, 1), ())),
    "stack vector": ((2, 4, 5), (5,), "smk,k->sm", ((2, 4), (4,), (2, 1))),
    "stack matrix": ((2, 4, 5), (5, 3), "smk,kn->smn", ((2, 4, 3), (4, 3), (3,))),
    "matrix stack": ((4, 5), (2, 5, 3), "mk,skn->smn", ((2, 4, 3), (2, 1, 3), ())),
    "stack stack": ((2, 4, 5), (2, 5, 3), "smk,skn->smn", ((1, 4, 3), (2, 4, 1))),
    "twofold stack": (
        (2, 1, 4, 5),
        (3, 5, 2),
        "spmk,rkn->srmn",
        ((3, 4, 2), (2, 1, 1, 2)),
    ),
    "no terms": ((4, 0), (0,), "mk,k->m", ((4,), ())),
}
"""Shapes of A and B, the product as einsum has it, shapes of C."""
DTYPES = {
    "float64": (torch.float64, torch.float64, torch.float64),
    "float32": (torch.float32, torch.float32, torch.float32),
    "complex128": (torch.complex128, torch.complex128, torch.complex128),
    "complex64": (torch.complex64, torch.complex64, torch.complex64),
    "real A": (torch.float64, torch.complex128, torch.complex128),
    "real C": (torch.complex128, torch.complex128, torch.float64),
    "complex C": (torch.float64, torch.float64, torch.complex128),
    "wide C": (torch.float32, torch.float32, torch.float64),
    "narrow": (torch.bfloat16, torch.bfloat16, torch.float32),
}
SCALARS = {
    "float": 2.5,
    "int": -3,
    "bool": True,
    "zero": 0,
    "float64": np.float64(-0.75),
    "float32": np.float32(1.5),
    "int64": np.int64(7),
    "int8": np.int8(-2),
    "bool_": np.bool_(True),
    "array of NumPy": np.array(3.0),
    "tensor": torch.tensor(-2.0),
    "tensor of integers": torch.tensor(3),
    "half tensor": torch.tensor(0.5, dtype=torch.bfloat16),
}
COMPLEX_SCALARS = {
    "complex": 2 - 1j,
    "complex64": np.complex64(1 + 3j),
    "complex tensor": torch.tensor(-1 + 2j),
}


def integers(rng, shape, dtype):
    x = rng.integers(-4, 5, shape) + 0j
    if dtype.is_complex:
        x = x + 1j * rng.integers(-4, 5, shape)
    x = torch.from_numpy(np.asarray(x))
    return (x if dtype.is_complex else x.real).to(dtype)


def real(x):
    """A sum that gives every entry and component a gradient of its own."""
    x = x * x
    return (x.real + 2 * x.imag if x.is_complex() else x).sum()


def same(one, other):
    one, other = (torch.utils._pytree.tree_leaves(x) for x in (one, other))
    assert len(one) == len(other)
    for x, y in zip(one, other, strict=True):
        assert x.dtype is y.dtype
        assert x.shape == y.shape
        assert torch.equal(x, y)


def number(x):
    return x.item() if hasattr(x, "item") else x


class Case:
    """Random operands of a formula, with alpha and beta, and gemm of PyTorch for them."""

    def __init__(self, formula, dtypes, shape_of_c, alpha, beta, seed=0):
        shape_a, shape_b, self.einsum, _ = FORMULAS[formula]
        rng = np.random.default_rng([seed, *shape_a, *shape_b, *shape_of_c])
        shapes = shape_a, shape_b, shape_of_c
        self.operands = tuple(
            integers(rng, shape, dtype)
            for shape, dtype in zip(shapes, DTYPES[dtypes], strict=True)
        )
        self.directions = tuple(integers(rng, x.shape, x.dtype) for x in self.operands)
        self.alpha = alpha
        self.beta = beta

    def gemm(self, a, b, c):
        return hg.gemm(a, b, c, alpha=self.alpha, beta=self.beta, accuracy="correct")

    def reference(self, a, b, c):
        alpha, beta = number(self.alpha), number(self.beta)
        dtype = torch.promote_types(a.dtype, b.dtype)
        if beta != 0:
            dtype = torch.promote_types(dtype, c.dtype)
        dtype = torch.promote_types(dtype, torch.float32)
        if dtype is torch.bfloat16:
            dtype = torch.float32
        result = alpha * torch.einsum(self.einsum, a.to(dtype), b.to(dtype))
        return result if beta == 0 else result + beta * c.to(dtype)


def cases():
    """Every formula and dtype with every shape of C, and scalars that take turns."""
    result = []
    count = 0
    for formula, (*_, shapes_of_c) in FORMULAS.items():
        for name, dtypes in DTYPES.items():
            is_complex = any(x.is_complex for x in dtypes)
            scalars = SCALARS | COMPLEX_SCALARS if is_complex else SCALARS
            names = list(scalars)
            alpha = names[count % len(names)]
            beta = names[(count * 7 + 3) % len(names)]
            if scalars[beta] == 0 and not (
                dtypes[0].is_complex or dtypes[1].is_complex
            ):
                alpha = "int"
            shape = shapes_of_c[count % len(shapes_of_c)]
            args = formula, name, shape, scalars[alpha], scalars[beta], count
            result.append(pytest.param(args, id=f"{formula}-{name}-{alpha}-{beta}"))
            count += 1
    return result


@pytest.fixture(params=cases())
def case(request):
    return Case(*request.param)


def gradients(f, case):
    leaves = [x.clone().requires_grad_() for x in case.operands]
    result = f(*leaves)
    return result.detach(), torch.autograd.grad(
        real(result), leaves, allow_unused=True, materialize_grads=f == case.reference
    )


def second_gradients(f, case):
    leaves = [x.clone().requires_grad_() for x in case.operands[:2]]
    result = real(f(*leaves, case.operands[2]))
    first = torch.autograd.grad(result, leaves, create_graph=True)
    return torch.autograd.grad(sum(real(x) for x in first), leaves)


def tangents(f, case, which):
    with forward_ad.dual_level():
        duals = [
            forward_ad.make_dual(x, dx) if i in which else x
            for i, (x, dx) in enumerate(
                zip(case.operands, case.directions, strict=True)
            )
        ]
        primal, tangent = forward_ad.unpack_dual(f(*duals))
        return primal, torch.zeros_like(primal) if tangent is None else tangent


def batches(f, case, which):
    """vmap over a last axis of some operands."""
    pairs = zip(case.operands, case.directions, strict=True)
    operands = [
        torch.stack([x, dx], -1) if i in which else x for i, (x, dx) in enumerate(pairs)
    ]
    axes = tuple(-1 if i in which else None for i in range(3))
    return vmap(f, in_dims=axes)(*operands)


WHICH = ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))


@pytest.mark.thinned(5)
def test_values_and_gradients_are_those_of_einsum(case):
    same(gradients(case.gemm, case), gradients(case.reference, case))


@pytest.mark.thinned(5)
def test_second_gradients_are_those_of_einsum(case):
    wide = [torch.promote_types(x.dtype, torch.float64) for x in case.operands]
    case.operands = tuple(x.to(y) for x, y in zip(case.operands, wide, strict=True))
    same(second_gradients(case.gemm, case), second_gradients(case.reference, case))


@pytest.mark.thinned(5)
def test_tangents_are_those_of_einsum(case):
    for which in WHICH:
        same(tangents(case.gemm, case, which), tangents(case.reference, case, which))
    # torch.func.jvp multiplies numbers without axes by Python's in float64
    values, derivatives = jvp(case.reference, case.operands, case.directions)
    same(
        jvp(case.gemm, case.operands, case.directions),
        (values, derivatives.to(values.dtype)),
    )


@pytest.mark.thinned(5)
def test_batches_are_those_of_einsum(case):
    for which in WHICH:
        same(batches(case.gemm, case, which), batches(case.reference, case, which))


def vector_case(alpha=3.0, beta=-0.5, dtypes="float64", formula="matrix vector"):
    return Case(formula, dtypes, FORMULAS[formula][3][0], alpha, beta)


EVERY = {
    "check_forward_ad": True,
    "check_batched_grad": True,
    "check_batched_forward_grad": True,
}


@pytest.mark.thinned(7)
@pytest.mark.parametrize("dtypes", ["float64", "complex128", "real A", "complex C"])
@pytest.mark.parametrize("formula", ["vector vector", "matrix vector", "vector stack"])
def test_derivatives_are_those_of_differences(formula, dtypes):
    alpha, beta = (0.3, -1.7) if dtypes == "float64" else (0.3 - 1j, 1.25 + 0.5j)
    case = vector_case(alpha, beta, dtypes, formula)
    leaves = [x.clone().requires_grad_() for x in case.operands]
    assert torch.autograd.gradcheck(case.gemm, leaves, **EVERY)
    assert torch.autograd.gradgradcheck(case.gemm, leaves, check_fwd_over_rev=True)


TRANSFORMS = {
    "grad": lambda f: grad(lambda *x: real(f(*x)), argnums=(0, 1, 2)),
    "jacrev": lambda f: jacrev(f, argnums=(0, 1, 2)),
    "jacfwd": lambda f: jacfwd(f, argnums=(0, 1, 2)),
    "jacfwd of jacrev": lambda f: jacfwd(jacrev(f, argnums=1), argnums=0),
    "vmap of grad": lambda f: vmap(
        grad(lambda *x: real(f(*x)), argnums=(0, 1, 2)), in_dims=(None, None, 0)
    ),
    "grad of vmap": lambda f: grad(lambda *x: real(vmap(f)(*x)), argnums=(0, 1, 2)),
    "functionalize": functionalize,
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("beta", [0, 2, torch.tensor(-1.0)], ids=str)
@pytest.mark.parametrize("formula", ["vector vector", "vector matrix", "matrix vector"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_are_those_of_einsum(transform, formula, beta):
    """A tensor as alpha or beta that no transform follows is a number."""
    case = vector_case(torch.tensor(2.0), beta, formula=formula)
    operands = list(case.operands)
    if transform == "grad of vmap":
        operands = [torch.stack([x, x + 1]) for x in operands]
    if transform == "vmap of grad":
        operands[2] = torch.stack([operands[2], operands[2] - 1])
    apply = TRANSFORMS[transform]
    same(apply(case.gemm)(*operands), apply(case.reference)(*operands))


def test_a_residual_has_gradients():
    rng = np.random.default_rng(1)
    a, x, b = (integers(rng, s, torch.float64) for s in ((6, 6), (6,), (6,)))
    leaves = [y.requires_grad_() for y in (a, x, b)]
    residual = hg.gemm(a, x, b, alpha=-1, beta=1, accuracy="correct")
    same(residual, b - a @ x)
    same(
        torch.autograd.grad(real(residual), leaves),
        torch.autograd.grad(real(b - a @ x), leaves),
    )


@pytest.mark.parametrize("beta", [0, 0.0, -0.0, False, np.float32(0), torch.tensor(0)])
@pytest.mark.parametrize("formula", ["vector vector", "matrix vector", "stack stack"])
def test_what_beta_does_not_read_has_a_gradient_of_zeros(formula, beta):
    case = vector_case(2.0, beta, formula=formula)
    a, b, _ = case.operands
    for c in (torch.full(case.operands[2].shape, torch.nan), torch.ones(7, 7) * 1j):
        leaf = c.requires_grad_()
        want = 2 * torch.einsum(case.einsum, a, b)
        # A and B are followed or not, and calls like earlier ones no less.
        for operands in ((a, b), (a, b), (a.clone().requires_grad_(), b)):
            result = case.gemm(*operands, leaf)
            same(result.detach(), want)
            assert result.requires_grad
            (gradient,) = torch.autograd.grad(result.sum(), leaf)
            same(gradient, torch.zeros_like(c))
        with torch.no_grad():
            assert not case.gemm(a, b, leaf).requires_grad
        same(
            jvp(lambda c: case.gemm(a, b, c), (c.detach(),), (c.detach(),))[1], 0 * want
        )
        with pytest.raises(
            TypeError, match=r"c requires a gradient.*return_report=True"
        ):
            hg.gemm(a, b, leaf, beta=beta, return_report=True)
        hg.gemm(a, b, leaf.detach(), beta=beta, return_report=True)
        with pytest.raises(
            TypeError, match=r"c requires a gradient.*return_report=True"
        ):
            hg.gemm(a, b, leaf, beta=beta, return_report=True)


def compiled(f, **options):
    torch.compiler.reset()
    return torch.compile(f, backend="aot_eager", fullgraph=True, **options)


@pytest.mark.thinned(7)
@pytest.mark.parametrize("is_tracked", [False, True], ids=["numbers", "tracked"])
@pytest.mark.parametrize("name", [*SCALARS, "complex"])
def test_scalars_of_compiled_programs(name, is_tracked):
    """Whatever the type: as arguments, from outside, made inside."""
    x = (SCALARS | COMPLEX_SCALARS)[name]
    dtypes = "complex128" if name == "complex" else "float64"
    case = vector_case(x, x, dtypes)

    def gemm(a, b, c, alpha, beta):
        return hg.gemm(a, b, c, alpha=alpha, beta=beta, accuracy="correct")

    as_arguments = compiled(gemm)
    from_outside = compiled(case.gemm)

    def programs(a, b, c):
        yield from_outside(a, b, c)
        yield as_arguments(a, b, c, x, x)
        yield as_arguments(a, b, c, 2.0, x)
        yield as_arguments(a, b, c, x, 0.5)

    wants = [case, case, *(vector_case(*y, dtypes) for y in ((2.0, x), (x, 0.5)))]
    operands = [y.clone().requires_grad_(is_tracked) for y in case.operands]
    for result, want in zip(programs(*operands), wants, strict=True):
        same(result.detach(), want.reference(*case.operands))
        if is_tracked:
            found = torch.autograd.grad(real(result), operands)
            same(found, gradients(want.reference, want)[1])
    torch.compiler.reset()


@pytest.mark.thinned(4)
@pytest.mark.parametrize("formula", FORMULAS)
def test_compiled_programs_of_vectors(formula):
    case = vector_case(3.0, -2.0, formula=formula)
    program = compiled(case.gemm, dynamic=True)
    assert case.gemm(*case.operands).equal(program(*case.operands))
    operands = [x.clone().requires_grad_() for x in case.operands]
    found = torch.autograd.grad(real(program(*operands)), operands)
    same(found, gradients(case.reference, case)[1])
    tangent = compiled(lambda *x: jvp(case.gemm, x, case.directions))
    same(tangent(*case.operands), jvp(case.reference, case.operands, case.directions))
    torch.compiler.reset()


def test_programs_read_tensors_as_alpha_and_beta_when_they_run():
    case = vector_case()
    gemm = compiled(lambda a, b, c, x, y: hg.gemm(a, b, c, alpha=x[0], beta=y.sum()))
    for x, y in ((2.0, 3.0), (-0.5, 0.0), (0.0, 1.0)):
        want = vector_case(x, y).reference(*case.operands)
        same(gemm(*case.operands, torch.tensor([x]), torch.tensor([[y]])), want)
    torch.compiler.reset()


def test_exported_programs_hold_gemm_of_vectors():
    case = vector_case(np.float32(1.5), 2)

    class Module(torch.nn.Module):
        def forward(self, a, b, c):
            return case.gemm(a, b, c)

    program = torch.export.export(Module(), case.operands).module()
    same(program(*case.operands), case.reference(*case.operands))


FOLLOWED = {
    "gradient": lambda f, x: f(x.requires_grad_()),
    "func.grad": lambda f, x: grad(lambda x: f(x).sum())(x),
    "jvp": lambda f, x: jvp(f, (x,), (x,)),
    "vmap": lambda f, x: vmap(f)(torch.stack([x, x])),
    "compiled": lambda f, x: compiled(f)(x.requires_grad_()),
}


@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("way", FOLLOWED)
def test_alpha_and_beta_that_are_followed_are_refused(way, name):
    a, b, c = vector_case().operands
    scalars = {"alpha": 2.0, "beta": 3.0}

    def gemm(x):
        return hg.gemm(a, b, c, **(scalars | {name: x}))

    error = RuntimeError if way == "compiled" else TypeError
    with pytest.raises(
        error, match=rf"{name} (requires a gradient|is inside a transf)"
    ):
        FOLLOWED[way](gemm, torch.tensor(2.0))
    torch.compiler.reset()


def test_scalars_that_are_no_numbers_of_float64_are_refused():
    a, b, c = (x.requires_grad_() for x in vector_case().operands)
    for x in (2**53 + 1, np.int64(2**60 + 1), torch.tensor(2**60 + 1), Fraction(1, 3)):
        with pytest.raises(ValueError, match=r"alpha = .* is not a float64 number"):
            hg.gemm(a, b, c, alpha=x, beta=1)
    for x in ("1", None, [1.0], np.ones(2), torch.ones(2)):
        with pytest.raises(TypeError, match=r"beta = .*expected a number"):
            hg.gemm(a, b, c, beta=x)
    with pytest.raises(TypeError, match="alpha = 1j is complex"):
        hg.gemm(a, b, c, alpha=1j)


SHAPES = {
    "C of a vector": ((4, 5), (5,), (5,), r"c has shape \(5,\); the result.*\(4,\)"),
    "a column": ((4, 5), (5,), (4, 1), r"c has shape \(4, 1\); the result.*\(4,\)"),
    "C of a number": (
        (5,),
        (5,),
        (1,),
        r"c has shape \(1,\); the result has shape \(\)",
    ),
    "C of a row": ((5,), (5, 3), (1, 3), r"c has shape \(1, 3\); the result.*\(3,\)"),
    "sums": ((4, 5), (4,), (4,), r"\(4, 5\) .*\(4, ?1?\)"),
    "scalars": ((), (4,), (4,), "a is a scalar"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_do_not_fit_are_refused(name):
    *shapes, message = SHAPES[name]
    a, b, c = (torch.ones(x, dtype=torch.float64, requires_grad=True) for x in shapes)
    with pytest.raises((ValueError, RuntimeError), match=message):
        hg.gemm(a, b, c, beta=1.0)
    for x in (a, a.detach()):
        with pytest.raises(ValueError, match="needs two dimensions"):
            hg.gemm(x, b, trans_a="T", trans_b="C")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("is_tracked", [False, True])
def test_nested_tensors_are_refused_with_a_way_out(layout, is_tracked):
    parts = [torch.ones(n, 4, dtype=torch.float64) for n in (2, 3)]
    x = torch.nested.nested_tensor(parts, layout=layout, requires_grad=is_tracked)
    y = torch.ones(4, 4, dtype=torch.float64)
    message = r"nested tensor, whose entries are not in dense memory: .*unbind\(\)"
    for call in (
        lambda: hg.matmul(x, y),
        lambda: hg.matmul(y, x, accuracy="correct"),
        lambda: hg.gemm(x, y, alpha=3),
        lambda: hg.gemm(y, y, x, beta=1.0),
        lambda: hg.numpy.einsum("bij,jk->bik", x, y),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    parts = x.detach().unbind()
    assert [hg.matmul(z, y).shape for z in parts] == [(2, 4), (3, 4)]
    assert hg.matmul(x.detach().to_padded_tensor(0.0), y).shape == (2, 3, 4)
