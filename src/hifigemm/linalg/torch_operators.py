"""`torch.ops.hifigemm.solve`, `lstsq` and `slogdet`: verified answers that PyTorch
differentiates, batches, traces and compiles.

Systems
    A X = B,  dB = A^-H dX,  dA = -dB X^H,  and for tangents  X' = A^-1 (B' - A' X).
Least squares, and least norm
    X = A^+ B. For m > n, with R = B - A X, and for m < n, with A^H Y = X, the change of
    the pseudoinverse (eq. 4.12 of [GP73]) gives

        X' = A^+ (B' - A' X + (A^H)^+ A'^H R)              and
        X' = A^+ (B' - A' X - A A'^H Y) + A'^H Y,

    and, read from right to left, with U = (A^H)^+ dX,

        dB = U,  dA = R (A^+ U)^H - U X^H                  and
        dB = U,  dA = Y (dX - A^H U)^H - U X^H.

    (A^H A)^-1 = A^+ (A^H)^+ is made by two problems, none of which has a condition that
    is squared. The rounding of X changes R by A times something; that is found, and taken
    out, by another solution. dX - A^H U is treated alike.
Determinants
    With t = tr(A^-1 A') the logarithm has the tangent Re t and the sign s that of i s Im t.
    So dA = (dL + i Im(dS conj s)) A^-H for the gradients dL of the logarithm and dS of
    the sign.

Each system of a derivative is solved by one of the same operators, so it is verified
too, and raises VerificationError where nothing can be proven. Radii have no
derivatives. The rules stand at the Autograd key, as those of
`differentiable.torch_operators` and for the reasons told there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hifigemm.base.exceptions import VerificationError
from hifigemm.base.transforms import belongs_to_torch
from hifigemm.differentiable import torch_operators as products
from hifigemm.differentiable import torch_private as private
from hifigemm.differentiable.torch_private import DispatchKeySet, OpOverload
from hifigemm.linalg.least_squares import least_squares_of_numbers
from hifigemm.linalg.log_determinant import LogDeterminant, log_determinant_of_numbers
from hifigemm.linalg.solution import VerifiedSolution, solution_of_numbers
from hifigemm.running.calls import without_gradient

_LIBRARY = torch.library.Library("hifigemm", "FRAGMENT")
for _schema in (
    "solve(Tensor a, Tensor b, str? accuracy=None) -> (Tensor x, Tensor radius)",
    "lstsq(Tensor a, Tensor b) -> (Tensor x, Tensor radius)",
    "slogdet(Tensor a) -> (Tensor sign, Tensor logabsdet, Tensor radius, Tensor sign_radius)",
):
    _LIBRARY.define(
        _schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.cudagraph_unsafe)
    )
_solve: OpOverload = torch.ops.hifigemm.solve.default
_lstsq: OpOverload = torch.ops.hifigemm.lstsq.default
_slogdet: OpOverload = torch.ops.hifigemm.slogdet.default

Tensors = tuple[Tensor, ...]
Tangents = tuple[Tensor | None, ...]
"""Of operands, None for a zero; one of them is no zero."""


@dataclass(frozen=True, eq=False)
class _Rules:
    """What an operator computes, and how it is differentiated. Its arguments are tensors,
    then options.
    """

    operator: OpOverload
    operands: int
    """How many arguments are tensors."""
    differentiable: int
    """How many results, the first ones, have derivatives."""
    numbers: Callable[..., Tensors]
    """The results for operands whose operations nothing records, and options."""
    empty_results: Callable[..., Tensors]
    """Tensors like the results, without numbers."""
    gradients: Callable[..., Tangents]
    """Of operands, for operands, results that have derivatives, their gradients and
    options. `wants_a` is False where the first one is not needed.
    """
    tangents: Callable[..., Tensors]
    """Of the results that have derivatives, for operands, results, tangents of the
    operands and options.
    """

    def split(self, arguments: tuple[Any, ...]) -> tuple[Tensors, tuple[Any, ...]]:
        """The tensors, and what follows them."""
        return arguments[: self.operands], arguments[self.operands :]


class _Derivatives:
    """Derivatives of an operator; the arguments are its rules, dispatch keys, options and
    the operands.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.rules, _, ctx.options, *operands = inputs
        count = ctx.rules.differentiable
        ctx.mark_non_differentiable(*output[count:])
        ctx.save_for_backward(*operands, *output[:count])
        ctx.save_for_forward(*operands, *output[:count])

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Tensor | None, ...]:
        rules = ctx.rules
        operands, results = rules.split(ctx.saved_tensors)
        gradients = rules.gradients(
            operands,
            results,
            g[: rules.differentiable],
            *ctx.options,
            wants_a=ctx.needs_input_grad[3],
        )
        of_operands = [
            None if gradient is None else products.gradient_of(gradient, x)
            for gradient, x in zip(gradients, operands, strict=True)
        ]
        return None, None, None, *of_operands

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        rules = ctx.rules
        operands, results = rules.split(ctx.saved_tensors)
        of_results = rules.tangents(operands, results, tangents[3:], *ctx.options)
        radii = len(rules.operator._schema.returns) - rules.differentiable
        return *of_results, *(None,) * radii


class _Answer(_Derivatives, private.SingleLevelFunction):
    """The derivatives that PyTorch itself takes."""

    @staticmethod
    def forward(
        rules: _Rules, keys: DispatchKeySet, options: tuple[Any, ...], *operands: Tensor
    ) -> Any:
        return private.below_autograd(rules.operator, keys, *operands, *options)


class _Level(_Derivatives, private.SingleLevelFunction):
    """The derivatives of one transform of `torch.func`; transforms outside of it still
    differentiate what it does.
    """

    @staticmethod
    def forward(
        rules: _Rules, keys: DispatchKeySet, options: tuple[Any, ...], *operands: Tensor
    ) -> Any:
        with private.differentiating_outside():
            return private.below_autograd(rules.operator, keys, *operands, *options)


@private.untraced
def _differentiable(rules: _Rules, keys: DispatchKeySet, *arguments: Any) -> Tensors:
    """An operator at the Autograd key."""
    operands, options = rules.split(arguments)
    results: Tensors
    if not private.in_functorch():
        if private.is_differentiated(*operands):
            results = _Answer.apply(rules, keys, options, *operands)
        else:
            results = private.below_autograd(rules.operator, keys, *arguments)
        return results

    # Inside a transform of torch.func duals are taken apart here.
    if private.in_forward_ad():
        primals, tangents = zip(*map(forward_ad.unpack_dual, operands), strict=True)
        if any(tangent is not None for tangent in tangents):
            results = rules.operator(*primals, *options)
            count = rules.differentiable
            of_results = rules.tangents(primals, results[:count], tangents, *options)
            duals = map(forward_ad.make_dual, results[:count], of_results)
            return *duals, *results[count:]
    with private.single_level():
        results = _Level.apply(rules, keys, options, *operands)
    return results


def _batched(
    rules: _Rules, info: Any, in_dims: tuple[int | None, ...], *arguments: Any
) -> tuple[Tensors, tuple[int, ...]]:
    """An operator under vmap: one more dimension of the stack."""
    operands, options = rules.split(arguments)
    stacks = products.stacked(list(zip(operands, in_dims, strict=False)))
    results: Tensors = rules.operator(*stacks, *options)
    return results, (0,) * len(results)


@private.untraced
def _kernel(rules: _Rules, *arguments: Any) -> Tensors:
    """The results for tensors whose operations nothing records."""
    operands, options = rules.split(arguments)
    with private.without_autocast():
        return rules.numbers(*map(without_gradient, operands), *options)


def _empty_solution(a: Tensor, b: Tensor, *_: Any) -> Tensors:
    """Tensors like x and its radius, without numbers."""
    dtype = torch.float32
    for operand in (a, b):
        is_integer = not (operand.is_floating_point() or operand.is_complex())
        number = torch.float64 if is_integer else operand.dtype
        dtype = torch.promote_types(dtype, number)
    stack = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = a.new_empty((*stack, a.shape[-1], b.shape[-1]), dtype=dtype)
    return x, x.real.new_empty(x.shape)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """A B with the default accuracy."""
    return products.matmul(a, b, None, "auto", None)


def _solution(a: Tensor, b: Tensor, accuracy: str | None = None) -> Tensors:
    """x and radius of a system of numbers."""
    solution = solution_of_numbers({"a": a, "b": b}, accuracy, False)
    return solution.x, solution.radius


def _gradients_of_solution(
    operands: Tensors, results: Tensors, g: Tensors, *options: Any, wants_a: bool
) -> Tangents:
    """-dB X^H and A^-H dX."""
    a, _ = operands
    (x,) = results
    b_gradient, _ = _solve(a.mH, g[0], *options)
    a_gradient = -_product(b_gradient, x.mH) if wants_a else None
    return a_gradient, b_gradient


def _tangents_of_solution(
    operands: Tensors, results: Tensors, tangents: Tangents, *options: Any
) -> Tensors:
    """A^-1 (B' - A' X)."""
    a, _ = operands
    side = _tangent_of_side(results[0], tangents)
    tangent, _ = _solve(a, side, *options)
    return (tangent,)


def _tangent_of_side(x: Tensor, tangents: Tangents) -> Tensor:
    """B' - A' X."""
    da, db = tangents
    if da is None:
        assert db is not None
        return db
    product = _product(da, x)
    return -product if db is None else db - product


def _least_squares(a: Tensor, b: Tensor) -> Tensors:
    """x and radius of a problem of numbers."""
    solution = least_squares_of_numbers(a, b, False)
    return solution.x, solution.radius


def _gradients_of_least_squares(
    operands: Tensors, results: Tensors, g: Tensors, *, wants_a: bool
) -> Tangents:
    """The gradients of A and B at the head of this file."""
    a, b = operands
    (x,) = results
    m, n = a.shape[-2:]
    u, _ = _lstsq(a.mH, g[0])
    if not wants_a:
        return None, u
    # Both of its products are one of columns beside each other.
    left = -u
    right = x
    if m > n:
        residual, w = _residual_and_solution(a, x, b, u)
        left = torch.cat((residual, left), -1)
        right = torch.cat((w, right), -1)
    elif m < n:
        residual, y = _residual_and_solution(a.mH, u, g[0], x)
        left = torch.cat((y, left), -1)
        right = torch.cat((residual, right), -1)
    return _product(left, right.mH), u


def _tangents_of_least_squares(
    operands: Tensors, results: Tensors, tangents: Tangents
) -> Tensors:
    """The tangent of x at the head of this file."""
    a, b = operands
    (x,) = results
    m, n = a.shape[-2:]
    da, _ = tangents
    side = _tangent_of_side(x, tangents)
    outside = None  # what lies outside of the row space of A
    if da is not None and m > n:
        near = _difference(b, a, x)
        residual = _difference(near, a, _lstsq(a, near)[0])
        side = side + _lstsq(a.mH, _product(da.mH, residual))[0]
    elif da is not None and m < n:
        y, _ = _lstsq(a.mH, x)
        outside = _product(da.mH, y)
        side = side - _product(a, outside)
    tangent, _ = _lstsq(a, side)
    return (tangent if outside is None else tangent + outside,)


def _residual_and_solution(
    a: Tensor, x: Tensor, b: Tensor, other: Tensor
) -> tuple[Tensor, Tensor]:
    """B - A X for X = A^+ B, and A^+ times another right side, for m > n.

    X is rounded, which changes the residual by the condition times the unit. That change
    is A times something, so it is found as another solution of least squares.
    """
    near = _difference(b, a, x)
    solutions, _ = _lstsq(a, torch.cat((near, other), -1))
    change, solution = solutions.split((near.shape[-1], other.shape[-1]), -1)
    return _difference(near, a, change), solution


def _difference(c: Tensor, a: Tensor, x: Tensor) -> Tensor:
    """C - A X, rounded once."""
    return products.gemm(
        a, x, c, "correct", "auto", None, alpha=-1.0, beta=1.0, trans_a="N", trans_b="N"
    )


def _log_determinant(a: Tensor) -> Tensors:
    """The sign of a determinant, its logarithm, and their radii, of numbers."""
    try:
        return _on_device_of(a, log_determinant_of_numbers(a))
    except VerificationError as error:
        if isinstance(error.solution, LogDeterminant):
            error.solution = LogDeterminant(*_on_device_of(a, error.solution))
        raise


def _on_device_of(a: Tensor, d: LogDeterminant) -> Tensors:
    """Numbers or arrays of NumPy as tensors."""
    dtype = torch.complex128 if a.is_complex() else torch.float64
    sign = torch.as_tensor(d.sign, dtype=dtype, device=a.device)
    others = [
        torch.as_tensor(x, dtype=torch.float64, device=a.device)
        for x in (d.logabsdet, d.radius, d.sign_radius)
    ]
    return sign, *others


def _empty_log_determinant(a: Tensor) -> Tensors:
    """Tensors like the results of slogdet, without numbers."""
    dtype = torch.complex128 if a.is_complex() else torch.float64
    sign = a.new_empty(a.shape[:-2], dtype=dtype)
    real = torch.float64
    return sign, *(a.new_empty(sign.shape, dtype=real) for _ in range(3))


def _wide(x: Tensor) -> Tensor:
    """A tensor in float64 or complex128."""
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def _gradients_of_log_determinant(
    operands: Tensors, results: Tensors, g: Tensors, *, wants_a: bool
) -> Tangents:
    """(dL + i Im(dS conj s)) A^-H."""
    (a,) = operands
    sign, _ = results
    of_sign, factor = g
    if a.is_complex():
        factor = torch.complex(factor, (of_sign * sign.conj()).imag)
    inverse = inv(_wide(a).mH).x
    return (factor[..., None, None] * inverse,)


def _tangents_of_log_determinant(
    operands: Tensors, results: Tensors, tangents: Tangents
) -> Tensors:
    """i s Im t, and Re t."""
    (a,) = operands
    sign, _ = results
    (da,) = tangents
    assert da is not None
    x, _ = _solve(_wide(a), _wide(da))
    trace = x.diagonal(dim1=-2, dim2=-1).sum(-1)
    if not a.is_complex():
        return torch.zeros_like(sign), trace
    return 1j * sign * trace.imag, trace.real


for _rules in (
    _Rules(
        operator=_solve,
        operands=2,
        differentiable=1,
        numbers=_solution,
        empty_results=_empty_solution,
        gradients=_gradients_of_solution,
        tangents=_tangents_of_solution,
    ),
    _Rules(
        operator=_lstsq,
        operands=2,
        differentiable=1,
        numbers=_least_squares,
        empty_results=_empty_solution,
        gradients=_gradients_of_least_squares,
        tangents=_tangents_of_least_squares,
    ),
    _Rules(
        operator=_slogdet,
        operands=1,
        differentiable=2,
        numbers=_log_determinant,
        empty_results=_empty_log_determinant,
        gradients=_gradients_of_log_determinant,
        tangents=_tangents_of_log_determinant,
    ),
):
    _name = _rules.operator._schema.name
    _short = _name.removeprefix("hifigemm::")
    _LIBRARY.impl(_short, partial(_kernel, _rules), "CompositeExplicitAutograd")
    _LIBRARY.impl(
        _short, partial(_differentiable, _rules), "Autograd", with_keyset=True
    )
    torch.library.register_fake(_name, _rules.empty_results, lib=_LIBRARY)
    torch.library.register_vmap(_name, partial(_batched, _rules), lib=_LIBRARY)


def solve(a: Tensor, b: Tensor, accuracy: str | None) -> VerifiedSolution:
    """x and radius by the operator; b is a vector or matrices."""
    return _of_vector_or_matrices(_solve, a, b, accuracy)


def lstsq(a: Tensor, b: Tensor) -> VerifiedSolution:
    """x and radius by the operator; b is a vector or matrices."""
    return _of_vector_or_matrices(_lstsq, a, b)


def _of_vector_or_matrices(
    operator: OpOverload, a: Tensor, b: Tensor, *options: Any
) -> VerifiedSolution:
    """x and radius by an operator that takes matrices."""
    if b.dim() != 1:
        return VerifiedSolution(*operator(a, b, *options))
    x, radius = operator(a, b[:, None], *options)
    return VerifiedSolution(x[..., 0], radius[..., 0])


def inv(a: Tensor) -> VerifiedSolution:
    """The inverse and its radius by the operator."""
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    return VerifiedSolution(*_solve(a, eye))


def slogdet(a: Tensor) -> LogDeterminant:
    """The logarithm of a determinant in float64 or complex128, by the operator where
    that has more to do than to compute it.
    """
    if not belongs_to_torch(a):
        return LogDeterminant(*_log_determinant(a))
    return LogDeterminant(*_slogdet(a))
