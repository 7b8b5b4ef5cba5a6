"""`torch.ops.hifigemm.solve`: verified solutions that PyTorch differentiates, batches,
traces and compiles.

    A X = B,  dB = A^-H dX,  dA = -dB X^H,  and for tangents  X' = A^-1 (B' - A' X).

Each system of a derivative is solved by the same operator, so it is verified too, and
raises VerificationError where nothing can be proven. Radii have no derivatives. The
rules stand at the Autograd key, as those of `differentiable.torch_operators` and for the
reasons told there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hifigemm.differentiable import torch_operators as products
from hifigemm.differentiable import torch_private as private
from hifigemm.differentiable.torch_private import DispatchKeySet, OpOverload
from hifigemm.linalg.solution import solution_of_numbers
from hifigemm.running.calls import without_gradient

_LIBRARY = torch.library.Library("hifigemm", "FRAGMENT")
_LIBRARY.define(
    "solve(Tensor a, Tensor b, str? accuracy=None) -> (Tensor x, Tensor radius)",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.cudagraph_unsafe),
)
_solve: OpOverload = torch.ops.hifigemm.solve.default


def _shape(a: Tensor, b: Tensor, accuracy: str | None = None) -> tuple[Tensor, Tensor]:
    """Tensors like x and its radius, without numbers."""
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    stack = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = a.new_empty((*stack, *b.shape[-2:]), dtype=dtype)
    return x, x.real.new_empty(x.shape)


def _tangent(
    a: Tensor,
    da: Tensor | None,
    db: Tensor | None,
    x: Tensor,
    accuracy: str | None,
) -> Tensor:
    """A^-1 (B' - A' X), one of the tangents being no zero."""
    side = torch.zeros_like(x) if db is None else db
    if da is not None:
        side = side - products.matmul(da, x, None, "auto", None)
    tangent: Tensor = _solve(a, side, accuracy)[0]
    return tangent


class _Rules:
    """Derivatives of x; the arguments are A, B, the accuracy and dispatch keys."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        a, b, ctx.accuracy, _ = inputs
        x, radius = output
        ctx.mark_non_differentiable(radius)
        ctx.save_for_backward(a, b, x)
        ctx.save_for_forward(a, b, x)

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        a, b, x = ctx.saved_tensors
        b_gradient, _ = _solve(a.mH, g, ctx.accuracy)
        a_gradient = None
        if ctx.needs_input_grad[0]:
            a_gradient = -products.matmul(b_gradient, x.mH, None, "auto", None)
            a_gradient = products.gradient_of(a_gradient, a)
        return a_gradient, products.gradient_of(b_gradient, b), None, None

    @staticmethod
    def jvp(
        ctx: Any, da: Tensor | None, db: Tensor | None, *_: Any
    ) -> tuple[Tensor, None]:
        a, _b, x = ctx.saved_tensors
        return _tangent(a, da, db, x, ctx.accuracy), None


class _Solution(_Rules, private.SingleLevelFunction):
    """The derivatives that PyTorch itself takes."""

    @staticmethod
    def forward(
        a: Tensor, b: Tensor, accuracy: str | None, keys: DispatchKeySet
    ) -> Any:
        return private.below_autograd(_solve, keys, a, b, accuracy)


class _Level(_Rules, private.SingleLevelFunction):
    """The derivatives of one transform of `torch.func`; transforms outside of it still
    differentiate what it does.
    """

    @staticmethod
    def forward(
        a: Tensor, b: Tensor, accuracy: str | None, keys: DispatchKeySet
    ) -> Any:
        with private.differentiating_outside():
            return private.below_autograd(_solve, keys, a, b, accuracy)


@private.untraced
def _differentiable(
    keys: DispatchKeySet, a: Tensor, b: Tensor, accuracy: str | None = None
) -> tuple[Tensor, Tensor]:
    """The operator at the Autograd key."""
    if not private.in_functorch():
        if private.is_differentiated(a, b):
            x, radius = _Solution.apply(a, b, accuracy, keys)
        else:
            x, radius = private.below_autograd(_solve, keys, a, b, accuracy)
        return x, radius

    # Inside a transform of torch.func duals are taken apart here.
    if private.in_forward_ad():
        a, da = forward_ad.unpack_dual(a)
        b, db = forward_ad.unpack_dual(b)
        if da is not None or db is not None:
            x, radius = _solve(a, b, accuracy)
            tangent = _tangent(a, da, db, x, accuracy)
            return forward_ad.make_dual(x, tangent), radius
    with private.single_level():
        x, radius = _Level.apply(a, b, accuracy, keys)
    return x, radius


def _batched(
    info: Any,
    in_dims: tuple[int | None, ...],
    a: Tensor,
    b: Tensor,
    accuracy: str | None = None,
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """The operator under vmap: one more dimension of the stack."""
    operands = products.stacked([(a, in_dims[0]), (b, in_dims[1])])
    return _solve(*operands, accuracy), (0, 0)


@private.untraced
def _kernel(a: Tensor, b: Tensor, accuracy: str | None = None) -> tuple[Tensor, Tensor]:
    """The solution of tensors whose operations nothing records."""
    numbers = map(without_gradient, (a, b))
    with private.without_autocast():
        operands = dict(zip(("a", "b"), numbers))
        solution = solution_of_numbers(operands, accuracy, False)
    return solution.x, solution.radius


_LIBRARY.impl("solve", _kernel, "CompositeExplicitAutograd")
_LIBRARY.impl("solve", _differentiable, "Autograd", with_keyset=True)
torch.library.register_fake("hifigemm::solve", _shape, lib=_LIBRARY)
torch.library.register_vmap("hifigemm::solve", _batched, lib=_LIBRARY)


def solve(a: Tensor, b: Tensor, accuracy: str | None) -> tuple[Tensor, Tensor]:
    """x and radius by the operator; b is a vector or matrices."""
    if b.dim() != 1:
        x, radius = _solve(a, b, accuracy)
        return x, radius
    x, radius = _solve(a, b[:, None], accuracy)
    return x[..., 0], radius[..., 0]


def inv(a: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse and its radius by the operator."""
    x, radius = _solve(a, torch.eye(a.shape[-1], dtype=a.dtype, device=a.device))
    return x, radius
