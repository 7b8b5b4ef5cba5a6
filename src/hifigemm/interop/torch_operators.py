"""`torch.ops.hifigemm.matmul` and `gemm`: products that PyTorch differentiates,
batches, traces and compiles.

Accuracy and scheme are arguments of the operators: graphs, caches of graphs and
backward threads carry them.

    D = alpha A B + beta C,  dA = conj(alpha) dD B^H,  dB = conj(alpha) A^H dD,  dC = conj(beta) dD,
    and for tangents  D' = alpha A' B + beta C' + alpha A B'.

Every product of a derivative is one of the same operator, so that derivatives of any
order have the accuracy asked for.

The rules stand at the Autograd key. `torch.library.register_autograd` has none for
tangents, and what `torch.autograd.Function` does under transforms of `torch.func`
cannot be compiled: the operators therefore take duals apart by themselves, and apply a
function of one level, as functorch does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hifigemm.accuracy import Accuracy
from hifigemm.interop import kernels
from hifigemm.interop import torch_private as private
from hifigemm.interop.arguments import (
    accuracy_from,
    accuracy_text,
    scheme_from,
    scheme_text,
)
from hifigemm.schemes import Scheme

_POLICY = "str? accuracy=None, str scheme='auto', int? workspace=None"
_ARGUMENTS = {
    "matmul": f"Tensor a, Tensor b, *, {_POLICY}",
    "bmm": f"Tensor a, Tensor b, *, {_POLICY}",
    "gemm": f"Tensor a, Tensor b, Tensor? c=None, *, Scalar alpha=1, Scalar beta=0, {_POLICY}",
}
_LIBRARY = torch.library.Library("hifigemm", "DEF")
for _name, _arguments in _ARGUMENTS.items():
    for _schema in (
        f"{_name}({_arguments}) -> Tensor",
        f"{_name}.out({_arguments}, Tensor(a!) out) -> Tensor(a!)",
    ):
        _LIBRARY.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))
_matmul: Any = torch.ops.hifigemm.matmul.default
_gemm: Any = torch.ops.hifigemm.gemm.default
_NARROW = torch.float16, torch.bfloat16

Tensors = tuple[Tensor | None, ...]
"""A, B, and for gemm C; where there is no C, or no tangent, None."""


@private.untraced
def _kernel(
    function: Callable[..., Tensor], *tensors: Tensor | None, **options: Any
) -> Tensor:
    """What an operator makes of tensors of which nothing but their entries is asked."""
    _check(*tensors)
    if "accuracy" in options:
        options["accuracy"] = accuracy_from(options["accuracy"])
    if "scheme" in options:
        options["scheme"] = scheme_from(options["scheme"])
    numbers = [x.detach() if x is not None and x.requires_grad else x for x in tensors]
    with private.without_autocast():
        return function(*numbers, **options)


def _shape(*tensors: Tensor | None, alpha: Any = 1, beta: Any = 0, **_: Any) -> Tensor:
    """A tensor like the product, without numbers."""
    a, b = _check(*tensors)
    stack = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    dtype = torch.promote_types(a.dtype, b.dtype)
    if len(tensors) > 2 and tensors[2] is not None and beta != 0:
        dtype = torch.promote_types(dtype, tensors[2].dtype)
    return a.new_empty(
        (*stack, a.shape[-2], b.shape[-1]),
        dtype=torch.float32 if dtype in _NARROW else dtype,
    )


def _check(*tensors: Tensor | None) -> tuple[Tensor, Tensor]:
    a, b = tensors[:2]
    if (
        a is None
        or b is None
        or a.dim() < 2
        or b.dim() < 2
        or a.shape[-1] != b.shape[-2]
    ):
        shapes = " and ".join(
            str(None if x is None else tuple(x.shape)) for x in (a, b)
        )
        raise RuntimeError(f"hifigemm: no product of matrices of shapes {shapes}")
    return a, b


def gradient_of(g: Tensor, x: Tensor) -> Tensor:
    """What is left of a gradient for an operand that was repeated, real or of another
    dtype.
    """
    if g.shape != x.shape:
        g = g.sum_to_size(x.shape)
    if g.is_complex() and not x.is_complex():
        g = g.real
    return g.to(x.dtype)


def _conjugate(x: Any) -> Any:
    return x.conjugate() if isinstance(x, complex) else x


def _product(
    operator: Any,
    a: Tensor,
    b: Tensor,
    options: dict[str, Any],
    *,
    conjugate: bool = False,
) -> Tensor:
    """alpha A B, or conj(alpha) A B, without C."""
    if operator is _gemm:
        alpha = options.get("alpha", 1)
        options = options | {
            "alpha": _conjugate(alpha) if conjugate else alpha,
            "beta": 0,
        }
    made: Tensor = operator(a, b, **options)
    return made


def _tangent(
    operator: Any, tensors: Tensors, tangents: Tensors, options: dict[str, Any]
) -> Tensor:
    """alpha A' B + alpha A B' + beta C'; None stands for a zero, and one of the
    tangents is no zero.
    """
    (a, b, *_), (da, db, *rest) = tensors, tangents
    pairs = ((da, b), (a, db))
    terms = [
        _product(operator, x, y, options)
        for x, y in pairs
        if x is not None and y is not None
    ]
    if rest and rest[0] is not None:
        dc = rest[0] * options.get("beta", 0)
        terms.append(
            dc if terms else dc + torch.zeros_like(_shape(*tensors, **options))
        )
    return sum(terms[1:], terms[0])


class _Rules:
    """Derivatives of an operator; its arguments are the operator, dispatch keys,
    options, and the tensors.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.operator, _, ctx.options, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (a, b, *c), product = (
            ctx.saved_tensors,
            partial(_product, ctx.operator, options=ctx.options, conjugate=True),
        )
        wanted, of_c = ctx.needs_input_grad[3:], None
        left = gradient_of(product(g, b.mH), a) if wanted[0] else None
        right = gradient_of(product(a.mH, g), b) if wanted[1] else None
        if c and wanted[2]:
            of_c = gradient_of(g * _conjugate(ctx.options.get("beta", 0)), c[0])
        return (None, None, None, left, right, *(of_c for _ in c))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return _tangent(ctx.operator, ctx.saved_tensors, tangents[3:], ctx.options)


class _Product(_Rules, private.SingleLevelFunction):
    """The derivatives that PyTorch itself takes."""

    @staticmethod
    def forward(
        operator: Any, keys: Any, options: dict[str, Any], *tensors: Tensor | None
    ) -> Tensor:
        made: Tensor = private.below_autograd(operator, keys, *tensors, **options)
        return made


class _Level(_Rules, private.SingleLevelFunction):
    """Those of one transform of `torch.func`; the ones outside of it still
    differentiate what it does.
    """

    @staticmethod
    def forward(
        operator: Any, keys: Any, options: dict[str, Any], *tensors: Tensor | None
    ) -> Tensor:
        with private.differentiating_outside():
            made: Tensor = private.below_autograd(operator, keys, *tensors, **options)
        return made


@private.untraced
def _differentiable(
    operator: Any, keys: Any, *tensors: Tensor | None, **options: Any
) -> Tensor:
    """An operator at the Autograd key."""
    made: Tensor
    if not private.in_functorch():
        if private.is_differentiated(*tensors):
            made = _Product.apply(operator, keys, options, *tensors)
        elif private.reaches_device(keys):
            made = _KERNELS[operator](*tensors, **options)
        else:
            made = private.below_autograd(operator, keys, *tensors, **options)
        return made
    if private.in_forward_ad():
        duals = [
            (None, None) if x is None else forward_ad.unpack_dual(x) for x in tensors
        ]
        primals, tangents = zip(*duals, strict=True)
        if any(x is not None for x in tangents):
            made = operator(*primals, **options)
            return forward_ad.make_dual(
                made, _tangent(operator, primals, tangents, options)
            )
    with private.single_level():
        made = _Level.apply(operator, keys, options, *tensors)
    return made


def _batched(
    operator: Any,
    info: Any,
    in_dims: tuple[int | None, ...],
    *tensors: Tensor | None,
    **options: Any,
) -> tuple[Tensor, int]:
    """An operator under vmap: one more dimension of the stack."""
    given = [(x, at) for x, at in zip(tensors, in_dims, strict=False) if x is not None]
    rank = max(x.dim() - (at is not None) for x, at in given)

    def stacked(x: Tensor, at: int | None) -> Tensor:
        if at is None:
            return x
        x = x.movedim(at, 0)
        return x.reshape(x.shape[0], *(1,) * (rank - x.dim() + 1), *x.shape[1:])

    made: Tensor = operator(*(stacked(x, at) for x, at in given), **options)
    return made, 0


_KERNELS = {
    _matmul: partial(_kernel, kernels.matmul),
    _gemm: partial(_kernel, kernels.gemm),
}
for _name, _operator in (("matmul", _matmul), ("gemm", _gemm)):
    _LIBRARY.impl(_name, _KERNELS[_operator], "CompositeExplicitAutograd")
    _LIBRARY.impl(
        _name, partial(_differentiable, _operator), "Autograd", with_keyset=True
    )
    torch.library.register_fake(f"hifigemm::{_name}", _shape, lib=_LIBRARY)
    torch.library.register_vmap(
        f"hifigemm::{_name}", partial(_batched, _operator), lib=_LIBRARY
    )


def _bmm(operator: Any, a: Tensor, b: Tensor, **options: Any) -> Tensor:
    """The products of two stacks of equal length, as torch.bmm takes them."""
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0]:
        raise RuntimeError(
            f"hifigemm: no stacks of as many matrices: {tuple(a.shape)} and {tuple(b.shape)}"
        )
    made: Tensor = operator(a, b, **options)
    return made


def _written(
    operator: Any, *tensors: Tensor | None, out: Tensor, **options: Any
) -> Tensor:
    """An operator whose result is written to a tensor, for what only traces, and
    tensors of any key.
    """
    _check_out(*tensors, out)
    like = _shape(*tensors, **options)
    if out.shape != like.shape or out.dtype != like.dtype:
        raise RuntimeError(
            f"hifigemm: out is {out.dtype} of shape {tuple(out.shape)}, the result {like.dtype} of {tuple(like.shape)}"
        )
    return out.copy_(operator(*tensors, **options))


def _written_on_device(
    operator: Any, *tensors: Tensor | None, out: Tensor, **options: Any
) -> Tensor:
    """The same for tensors of a device, with no result beside `out`."""
    _check_out(*tensors, out)
    _KERNELS[operator](*tensors, out=out.detach(), **options)
    return out


def _check_out(*tensors: Tensor | None) -> None:
    if torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in tensors
    ):
        raise RuntimeError(
            "hifigemm: a product with out= has no derivatives, but one of its tensors requires a gradient"
        )


_LIBRARY.impl(
    "bmm", partial(_bmm, torch.ops.hifigemm.matmul.default), "CompositeImplicitAutograd"
)
for _key in ("CompositeImplicitAutograd", "Functionalize"):
    _LIBRARY.impl("bmm.out", partial(_bmm, torch.ops.hifigemm.matmul.out), _key)
for _name, _operator in (("matmul", _matmul), ("gemm", _gemm)):
    for _key in ("CompositeImplicitAutograd", "Functionalize"):
        _LIBRARY.impl(f"{_name}.out", partial(_written, _operator), _key)
    for _key in private.DEVICE_KEYS:
        _LIBRARY.impl(f"{_name}.out", partial(_written_on_device, _operator), _key)


def matmul(
    a: Tensor,
    b: Tensor,
    accuracy: Accuracy,
    scheme: str | Scheme,
    workspace: int | None,
) -> Tensor:
    """The operator for operands of any shapes that `hifigemm.matmul` takes."""
    left, right = (a[None] if a.dim() == 1 else a), (b[:, None] if b.dim() == 1 else b)
    made: Tensor = _matmul(left, right, **_policy(accuracy, scheme, workspace))
    if b.dim() == 1:
        made = made[..., 0]
    return (
        made[..., 0]
        if b.dim() == a.dim() == 1
        else made[..., 0, :]
        if a.dim() == 1
        else made
    )


def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    accuracy: Accuracy,
    scheme: str | Scheme,
    workspace: int | None,
    **scalars: Any,
) -> Tensor:
    """The operator for matrices and stacks of them; `scalars` are alpha and beta."""
    made: Tensor = _gemm(a, b, c, **scalars, **_policy(accuracy, scheme, workspace))
    return made


def _policy(
    accuracy: Accuracy, scheme: str | Scheme, workspace: int | None
) -> dict[str, Any]:
    """The arguments that all operators share, as they take them."""
    return {
        "accuracy": accuracy_text(accuracy),
        "scheme": scheme_text(scheme),
        "workspace": workspace,
    }
