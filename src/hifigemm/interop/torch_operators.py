"""`torch.ops.hifigemm.matmul`: a product that PyTorch differentiates, batches, traces and compiles.

Accuracy and scheme are arguments of the operator: graphs, their caches and backward passes in other threads carry them.

    C = A B,  dA = dC B^H,  dB = A^H dC,  and for tangents  C' = A' B + A B';

every product of a derivative is one of the same operator, so that derivatives of any order have the accuracy asked for.

The rules stand at the Autograd key. `torch.library.register_autograd` has none for tangents, and what
`torch.autograd.Function` does under transforms of `torch.func` cannot be compiled: the operator therefore takes duals
apart by itself, and applies a function of one level, as functorch does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hifigemm.accuracy import Accuracy
from hifigemm.interop import kernels
from hifigemm.interop import torch_private as private
from hifigemm.interop.arguments import accuracy_from, accuracy_text, scheme_from, scheme_text
from hifigemm.schemes import Scheme

_LIBRARY = torch.library.Library("hifigemm", "DEF")
_LIBRARY.define(
    "matmul(Tensor a, Tensor b, *, str? accuracy=None, str scheme='auto', int? workspace=None) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_matmul: Any = torch.ops.hifigemm.matmul.default
_NARROW = torch.float16, torch.bfloat16


def _kernel(
    a: Tensor, b: Tensor, *, accuracy: str | None = None, scheme: str = "auto", workspace: int | None = None
) -> Tensor:
    """The product of tensors of which nothing but their entries is asked."""
    _check(a, b)
    asked = accuracy_from(accuracy), scheme_from(scheme)
    with private.without_autocast():
        made: Tensor = kernels.matmul(a.detach(), b.detach(), *asked, workspace=workspace)
    return made


def _shape(a: Tensor, b: Tensor, **_: Any) -> Tensor:
    """A tensor like the product, without numbers."""
    _check(a, b)
    stack = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    dtype = torch.promote_types(a.dtype, b.dtype)
    return a.new_empty((*stack, a.shape[-2], b.shape[-1]), dtype=torch.float32 if dtype in _NARROW else dtype)


def _check(a: Tensor, b: Tensor) -> None:
    if a.dim() < 2 or b.dim() < 2 or a.shape[-1] != b.shape[-2]:
        raise RuntimeError(f"hifigemm::matmul: no product of matrices of shapes {tuple(a.shape)} and {tuple(b.shape)}")


def _gradient(g: Tensor, x: Tensor) -> Tensor:
    """What is left of a gradient for an operand that was repeated, real or of another dtype."""
    if g.shape != x.shape:
        g = g.sum_to_size(x.shape)
    if g.is_complex() and not x.is_complex():
        g = g.real
    return g.to(x.dtype)


def _tangent(a: Tensor, b: Tensor, da: Tensor | None, db: Tensor | None, options: dict[str, Any]) -> Tensor:
    """A' B + A B'; None stands for a zero, and one of them is no zero."""
    terms = [_matmul(x, y, **options) for x, y in ((da, b), (a, db)) if x is not None and y is not None]
    return terms[0] if len(terms) == 1 else terms[0] + terms[1]


class _Rules:
    """Derivatives of a product; its arguments are the operands, the dispatch keys and the options."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, b, _, ctx.options = inputs
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        a, b = ctx.saved_tensors
        of_a, of_b = ctx.needs_input_grad[:2]
        left = _gradient(_matmul(g, b.mH, **ctx.options), a) if of_a else None
        right = _gradient(_matmul(a.mH, g, **ctx.options), b) if of_b else None
        return left, right, None, None

    @staticmethod
    def jvp(ctx: Any, da: Tensor | None, db: Tensor | None, *_: None) -> Tensor:
        a, b = ctx.saved_tensors
        return _tangent(a, b, da, db, ctx.options)


class _Product(_Rules, private.SingleLevelFunction):
    """The derivatives that PyTorch itself takes."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, keys: Any, options: dict[str, Any]) -> Tensor:
        made: Tensor = private.below_autograd(_matmul, keys, a, b, **options)
        return made


class _Level(_Rules, private.SingleLevelFunction):
    """Those of one transform of `torch.func`; the ones outside of it still differentiate what it does."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, keys: Any, options: dict[str, Any]) -> Tensor:
        with private.differentiating_outside():
            made: Tensor = private.below_autograd(_matmul, keys, a, b, **options)
        return made


def _differentiable(keys: Any, a: Tensor, b: Tensor, **options: Any) -> Tensor:
    """The operator at the Autograd key."""
    made: Tensor
    if not private.in_functorch():
        if private.is_differentiated(a, b):
            made = _Product.apply(a, b, keys, options)
        else:
            made = private.below_autograd(_matmul, keys, a, b, **options)
        return made
    if private.in_forward_ad():
        (a, da), (b, db) = forward_ad.unpack_dual(a), forward_ad.unpack_dual(b)
        if da is not None or db is not None:
            return forward_ad.make_dual(_matmul(a, b, **options), _tangent(a, b, da, db, options))
    with private.single_level():
        made = _Level.apply(a, b, keys, options)
    return made


def _batched(info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor, **options: Any) -> tuple[Tensor, int]:
    """The operator under vmap: one more dimension of the stack."""
    rank = max(x.dim() - (at is not None) for x, at in zip((a, b), in_dims, strict=False))

    def stacked(x: Tensor, at: int | None) -> Tensor:
        if at is None:
            return x
        x = x.movedim(at, 0)
        return x.reshape(x.shape[0], *(1,) * (rank - x.dim() + 1), *x.shape[1:])

    made: Tensor = _matmul(stacked(a, in_dims[0]), stacked(b, in_dims[1]), **options)
    return made, 0


_LIBRARY.impl("matmul", _kernel, "CompositeExplicitAutograd")
_LIBRARY.impl("matmul", _differentiable, "Autograd", with_keyset=True)
torch.library.register_fake("hifigemm::matmul", _shape, lib=_LIBRARY)
torch.library.register_vmap("hifigemm::matmul", _batched, lib=_LIBRARY)


def matmul(a: Tensor, b: Tensor, accuracy: Accuracy, scheme: str | Scheme, workspace: int | None) -> Tensor:
    """The operator for operands of any shapes that `hifigemm.matmul` takes."""
    left, right = (a[None] if a.dim() == 1 else a), (b[:, None] if b.dim() == 1 else b)
    made: Tensor = _matmul(
        left, right, accuracy=accuracy_text(accuracy), scheme=scheme_text(scheme), workspace=workspace
    )
    if b.dim() == 1:
        made = made[..., 0]
    return made[..., 0] if b.dim() == a.dim() == 1 else made[..., 0, :] if a.dim() == 1 else made
