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

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from hifigemm.differentiable import torch_private as private
from hifigemm.differentiable.arguments import (
    accuracy_from,
    accuracy_text,
    scheme_from,
    scheme_text,
)
from hifigemm.differentiable.torch_private import DispatchKeySet, OpOverload
from hifigemm.model.accuracy import Accuracy
from hifigemm.operands.operands import (
    check_addend,
    check_transpose,
    name_of_dtype,
    result_dtype,
)
from hifigemm.operands.out_dtype import as_out_dtype, dtype_of_product
from hifigemm.running.calls import without_gradient
from hifigemm.running.gemm import gemm_of_numbers, key_of_gemm
from hifigemm.running.keys import key_of
from hifigemm.running.products import product_of_numbers
from hifigemm.schemes import Scheme

_WIDE = (torch.float32, torch.float64, torch.complex64, torch.complex128)
"""Dtypes whose products have the same dtype."""
_POLICY = (
    "str? accuracy=None, str scheme='auto', int? workspace=None, "
    "ScalarType? out_dtype=None"
)
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
_matmul: OpOverload = torch.ops.hifigemm.matmul.default
_gemm: OpOverload = torch.ops.hifigemm.gemm.default

Tensors = tuple[Tensor | None, ...]
"""A, B, and for gemm C; where there is no C, or no tangent, None."""
Multiply = Callable[[], Tensor]
"""Makes the result of an operator for tensors that it holds."""


@private.untraced
def _kernel(
    function: Callable[..., Tensor], *tensors: Tensor | None, **options: Any
) -> Tensor:
    """The result of an operator for tensors whose derivatives are dealt with."""
    _checked_matrices(*tensors)
    if "accuracy" in options:
        options["accuracy"] = accuracy_from(options["accuracy"])
    if "scheme" in options:
        options["scheme"] = scheme_from(options["scheme"])
    numbers = map(without_gradient, tensors)
    with private.without_autocast():
        return function(*numbers, **options)


def _empty_result(
    *tensors: Tensor | None,
    alpha: Any = 1,
    beta: Any = 0,
    out_dtype: torch.dtype | None = None,
    **_: Any,
) -> Tensor:
    """A tensor of the shape and dtype of the product, with any entries."""
    a, b = _checked_matrices(*tensors)
    stack = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = *stack, a.shape[-2], b.shape[-1]
    c = tensors[2] if len(tensors) > 2 else None
    dtypes = [a.dtype, b.dtype]
    if c is not None and not private.is_zero(beta):
        check_addend(tuple(c.shape), shape)
        dtypes.append(c.dtype)
    dtype = _dtype_of_result(*dtypes)
    if out_dtype is not None:
        dtype_of_product(np.dtype(_name_of(dtype)), as_out_dtype(out_dtype))
        dtype = out_dtype
    return a.new_empty(shape, dtype=dtype)


def _name_of(dtype: torch.dtype) -> str:
    """The name of a dtype, such as "float64"."""
    return str(dtype).removeprefix("torch.")


def _dtype_of_result(*dtypes: torch.dtype) -> torch.dtype:
    """The dtype of a product, by the rules of NumPy."""
    # NumPy does not have bfloat16, which float32 holds.
    known = [torch.float32 if x is torch.bfloat16 else x for x in dtypes]
    dtype = np.result_type(*map(_name_of, known))
    if dtype.kind not in "biu":
        dtype = result_dtype(dtype)
    result: torch.dtype = getattr(torch, dtype.name)
    return result


def _checked_matrices(*tensors: Tensor | None) -> tuple[Tensor, Tensor]:
    """A and B; RuntimeError unless they are matrices, or stacks of them, that fit."""
    a, b = tensors[:2]
    if a is not None and b is not None:
        are_matrices = a.dim() >= 2 and b.dim() >= 2
        if are_matrices and a.shape[-1] == b.shape[-2]:
            return a, b
    shape_of_a = None if a is None else tuple(a.shape)
    shape_of_b = None if b is None else tuple(b.shape)
    raise RuntimeError(
        f"hifigemm: no product of matrices of shapes {shape_of_a} and {shape_of_b}"
    )


def gradient_of(g: Tensor, x: Tensor) -> Tensor:
    """The gradient g of a product, summed and converted to the shape and dtype of an
    operand.
    """
    if g.shape != x.shape:
        g = g.sum_to_size(x.shape)
    if g.is_complex() and not x.is_complex():
        g = g.real
    return g if g.dtype is x.dtype else g.to(x.dtype)


def _conjugate(x: Any) -> Any:
    """The conjugate of a number of Python."""
    return x.conjugate() if isinstance(x, complex) else x


def _product(
    operator: OpOverload,
    a: Tensor,
    b: Tensor,
    options: dict[str, Any],
    *,
    conjugate: bool = False,
    like: Tensor | None = None,
) -> Tensor:
    """alpha A B, or conj(alpha) A B, without C, in the dtype of the product; in the dtype
    of `like` where that is narrower, so that it is rounded once.
    """
    options = options | {"out_dtype": _narrower_dtype(a, b, like)}
    if operator is _gemm:
        alpha = options.get("alpha", 1)
        if conjugate:
            alpha = _conjugate(alpha)
        options = options | {"alpha": alpha, "beta": 0.0}
    return _called(operator, a, b, **options)


def _narrower_dtype(a: Tensor, b: Tensor, like: Tensor | None) -> torch.dtype | None:
    """The dtype of a tensor that has the shape of A B and a narrower dtype; None for
    others.
    """
    if like is None or like.dtype is a.dtype is b.dtype in _WIDE:
        return None
    if like.is_complex() != (a.is_complex() or b.is_complex()):
        return None
    dtype = _dtype_of_result(a.dtype, b.dtype)
    if like.dtype is dtype or like.shape != _shape_of_product(a, b):
        return None
    return like.dtype


def _called(operator: OpOverload, *tensors: Tensor | None, **options: Any) -> Tensor:
    """An operator, past the dispatcher where that has nothing to do but derivatives."""
    multiply = None
    if not torch.compiler.is_compiling():
        multiply = _PLAIN_PRODUCTS[operator](*tensors, **options)
    result: Tensor
    if multiply is None:
        result = operator(*tensors, **options)
    elif private.is_differentiated(*tensors):
        result = _Product.apply(operator, multiply, options, *tensors)
    else:
        result = multiply()
    return result


@private.untraced
def _plain_matmul(
    a: Tensor,
    b: Tensor,
    *,
    accuracy: str | None = None,
    scheme: str = "auto",
    workspace: int | None = None,
    out_dtype: torch.dtype | None = None,
) -> Multiply | None:
    """The product of tensors that are no more than their entries, without derivatives;
    None for others.
    """
    arguments = accuracy_from(accuracy), scheme_from(scheme)
    with torch.no_grad():
        key = key_of(a, b, None, *arguments, None, workspace, out_dtype=out_dtype)
    if key is None:
        return None
    policy = *arguments, None, None, None, workspace
    return partial(product_of_numbers, a, b, *policy, out_dtype=out_dtype, key=key)


@private.untraced
def _plain_gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    accuracy: str | None = None,
    scheme: str = "auto",
    workspace: int | None = None,
    out_dtype: torch.dtype | None = None,
) -> Multiply | None:
    """alpha A B + beta C, as `_plain_matmul` gives A B."""
    arguments = accuracy_from(accuracy), scheme_from(scheme)
    if beta == 0:
        c = None
    with torch.no_grad():
        policy = *arguments, None, workspace, False, "array", "", None, out_dtype
        kind = key_of_gemm((a, b, c, None), (alpha, beta), ("N", "N"), policy)
    if kind[0] is None:
        return None
    return partial(
        gemm_of_numbers,
        a,
        b,
        c,
        *arguments,
        workspace,
        alpha=alpha,
        beta=beta,
        out_dtype=out_dtype,
        key_and_arguments=kind,
    )


_PLAIN_PRODUCTS: dict[OpOverload, Callable[..., Multiply | None]] = {
    _matmul: _plain_matmul,
    _gemm: _plain_gemm,
}


def _tangent(
    operator: OpOverload, tensors: Tensors, tangents: Tensors, options: dict[str, Any]
) -> Tensor:
    """alpha A' B + alpha A B' + beta C'; None stands for a zero, and one of the
    tangents is no zero.
    """
    a, b, *addends = tensors
    da, db, *addend_tangents = tangents
    assert a is not None
    assert b is not None
    terms = []
    if addends and addends[0] is not None:
        # A term may be smaller than the result, or of a narrower dtype, as C may be.
        in_product = options | {"out_dtype": None}
        zeros = torch.zeros_like(_empty_result(*tensors, **in_product))
        terms.append(zeros)
        a = a.to(zeros.dtype)
        b = b.to(zeros.dtype)
    for x, y in ((da, b), (a, db)):
        if x is not None and y is not None:
            terms.append(_product(operator, x, y, options))
    beta = options.get("beta", 0)
    if addend_tangents and addend_tangents[0] is not None and not private.is_zero(beta):
        terms.append(addend_tangents[0] * beta)
    tangent = sum(terms[1:], terms[0])
    out_dtype = options.get("out_dtype")
    return tangent if out_dtype is None else tangent.to(out_dtype)


def _result(
    operator: OpOverload,
    keys: DispatchKeySet,
    *tensors: Tensor | None,
    **options: Any,
) -> Tensor:
    """The result of an operator behind the autograd keys among `keys`."""
    if private.reaches_device(keys):
        return _KERNELS[operator](*tensors, **options)
    result: Tensor = private.below_autograd(operator, keys, *tensors, **options)
    return result


class _Rules:
    """Derivatives of an operator; its arguments are the operator, what multiplies,
    options, and the tensors.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.operator, _, ctx.options, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        a, b, *addends = ctx.saved_tensors
        product = partial(_product, ctx.operator, options=ctx.options, conjugate=True)
        # What stands before the tensors has no gradients.
        wants_a, wants_b, *wants_c = ctx.needs_input_grad[3:]
        a_gradient = None
        b_gradient = None
        if wants_a:
            a_gradient = gradient_of(product(g, b.mH, like=a), a)
        if wants_b:
            b_gradient = gradient_of(product(a.mH, g, like=b), b)
        if not addends:
            return None, None, None, a_gradient, b_gradient
        c_gradient = None
        if wants_c[0]:
            beta = ctx.options.get("beta", 0)
            if private.is_zero(beta):
                c_gradient = torch.zeros_like(addends[0])
            else:
                c_gradient = gradient_of(g * _conjugate(beta), addends[0])
        return None, None, None, a_gradient, b_gradient, c_gradient

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        return _tangent(ctx.operator, ctx.saved_tensors, tangents[3:], ctx.options)


class _Product(_Rules, private.SingleLevelFunction):
    """The derivatives that PyTorch itself takes."""

    @staticmethod
    def forward(
        operator: OpOverload,
        multiply: Multiply,
        options: dict[str, Any],
        *tensors: Tensor | None,
    ) -> Tensor:
        return multiply()


class _Level(_Rules, private.SingleLevelFunction):
    """The derivatives of one level of `torch.func`. Outer levels differentiate through
    it.
    """

    @staticmethod
    def forward(
        operator: OpOverload,
        multiply: Multiply,
        options: dict[str, Any],
        *tensors: Tensor | None,
    ) -> Tensor:
        with private.differentiating_outside():
            return multiply()


@private.untraced
def _differentiable(
    operator: OpOverload, keys: DispatchKeySet, *tensors: Tensor | None, **options: Any
) -> Tensor:
    """An operator at the Autograd key."""
    if not private.in_functorch():
        if private.is_differentiated(*tensors):
            multiply = partial(_result, operator, keys, *tensors, **options)
            result: Tensor = _Product.apply(operator, multiply, options, *tensors)
            return result
        return _result(operator, keys, *tensors, **options)

    # Inside a transform of torch.func duals are taken apart here.
    if private.in_forward_ad():
        duals = [
            (None, None) if x is None else forward_ad.unpack_dual(x) for x in tensors
        ]
        primals, tangents = zip(*duals, strict=True)
        if any(x is not None for x in tangents):
            result = operator(*primals, **options)
            tangent = _tangent(operator, primals, tangents, options)
            return forward_ad.make_dual(result, tangent)
    multiply = partial(private.below_autograd, operator, keys, *tensors, **options)
    with private.single_level():
        result = _Level.apply(operator, multiply, options, *tensors)
    return result


def _batched(
    operator: OpOverload,
    info: Any,
    in_dims: tuple[int | None, ...],
    *tensors: Tensor | None,
    **options: Any,
) -> tuple[Tensor, int]:
    """An operator under vmap: one more dimension of the stack."""
    pairs: list[Any] = list(zip(tensors, in_dims, strict=False))
    a, b, *addends = pairs
    if a[1] is None and b[1] is None:
        # C alone has the axis.
        a = a[0].expand(info.batch_size, *a[0].shape), 0
    reads_c = any(x is not None for x, _ in addends) and not private.is_zero(
        options.get("beta", 0)
    )
    if reads_c:
        result: Tensor = operator(*stacked([a, b, *addends]), **options)
    else:
        c = [x for x, _ in addends]
        result = operator(*stacked([a, b]), *c, **options)
    return result, 0


def stacked(operands: Sequence[tuple[Tensor, int | None]]) -> list[Tensor]:
    """Operands with the axis over which vmap maps in front of stacks of equal rank;
    those without such an axis, None, as they are.
    """
    rank = max(x.dim() - (axis is not None) for x, axis in operands)
    result = []
    for x, axis in operands:
        if axis is not None:
            x = x.movedim(axis, 0)
            # Axes of length one take the place of those that x lacks.
            while x.dim() <= rank:
                x = x.unsqueeze(1)
        result.append(x)
    return result


_KERNELS = {
    _matmul: partial(_kernel, product_of_numbers),
    _gemm: partial(_kernel, gemm_of_numbers),
}
for _name, _operator in (("matmul", _matmul), ("gemm", _gemm)):
    _LIBRARY.impl(_name, _KERNELS[_operator], "CompositeExplicitAutograd")
    _LIBRARY.impl(
        _name, partial(_differentiable, _operator), "Autograd", with_keyset=True
    )
    torch.library.register_fake(f"hifigemm::{_name}", _empty_result, lib=_LIBRARY)
    torch.library.register_vmap(
        f"hifigemm::{_name}", partial(_batched, _operator), lib=_LIBRARY
    )


def _bmm(operator: OpOverload, a: Tensor, b: Tensor, **options: Any) -> Tensor:
    """The products of two stacks of equal length, as torch.bmm takes them."""
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0]:
        raise RuntimeError(
            f"hifigemm: stacks of different numbers of matrices: {tuple(a.shape)} and {tuple(b.shape)}"
        )
    result: Tensor = operator(a, b, **options)
    return result


def _written(
    operator: OpOverload, *tensors: Tensor | None, out: Tensor, **options: Any
) -> Tensor:
    """An operator whose result is copied to `out`, for tracing and for tensors of any
    dispatch key.
    """
    _check_out(*tensors, out)
    like = _empty_result(*tensors, **options)
    if out.shape != like.shape or out.dtype != like.dtype:
        raise RuntimeError(
            f"hifigemm: out is {out.dtype} of shape {tuple(out.shape)}, the result {like.dtype} of {tuple(like.shape)}"
        )
    return out.copy_(operator(*tensors, **options))


def _written_on_device(
    operator: OpOverload, *tensors: Tensor | None, out: Tensor, **options: Any
) -> Tensor:
    """An operator that writes its result to `out` directly, for tensors of a device."""
    _check_out(*tensors, out)
    _KERNELS[operator](*tensors, out=out.detach(), **options)
    return out


def _check_out(*tensors: Tensor | None) -> None:
    """Raise RuntimeError if a product with out= would have to be differentiated."""
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
    out_dtype: Any = None,
) -> Tensor:
    """The operator for operands of any shapes that `hifigemm.matmul` takes."""
    left, right = _as_matrices(a, b)
    policy = _policy(accuracy, scheme, workspace, out_dtype)
    result = _called(_matmul, left, right, **policy)
    return _without_added_axes(result, a, b)


def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    accuracy: Accuracy,
    scheme: str | Scheme,
    workspace: int | None,
    out_dtype: Any = None,
    *,
    alpha: complex,
    beta: complex,
    trans_a: str,
    trans_b: str,
) -> Tensor:
    """The operator for operands of any shapes that `hifigemm.gemm` takes."""
    a = _transposed(a, trans_a, "a")
    b = _transposed(b, trans_b, "b")
    left, right = _as_matrices(a, b)
    if c is not None:
        is_vector = a.dim() == 1 or b.dim() == 1
        if is_vector and not torch.compiler.is_compiling() and beta != 0:
            check_addend(tuple(c.shape), _shape_of_product(a, b))
        c = _with_added_axes(c, a, b)
    policy = _policy(accuracy, scheme, workspace, out_dtype)
    result = _called(_gemm, left, right, c, alpha=alpha, beta=beta, **policy)
    return _without_added_axes(result, a, b)


def _as_matrices(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """A and B, a vector A as a row and a vector B as a column."""
    for x, name in ((a, "a"), (b, "b")):
        if x.dim() == 0:
            raise ValueError(
                f"{name} is a scalar; matmul takes arrays of one or more dimensions"
            )
    left = a[None] if a.dim() == 1 else a
    right = b[:, None] if b.dim() == 1 else b
    return left, right


def _shape_of_product(a: Tensor, b: Tensor) -> tuple[int, ...]:
    """The shape of the product of vectors, matrices and stacks that fit."""
    stack = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    columns = b.shape[-1:] if b.dim() > 1 else ()
    return *stack, *a.shape[-2:-1], *columns


def _with_added_axes(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """C with the axes that the result of `_as_matrices` has beyond the product."""
    if c.dim() == 0:
        return c
    if b.dim() == 1:
        c = c[..., None]
    return c[..., None, :] if a.dim() == 1 else c


def _without_added_axes(result: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The product without the axes that `_as_matrices` has added."""
    if b.dim() == 1:
        result = result[..., 0]
        return result[..., 0] if a.dim() == 1 else result
    return result[..., 0, :] if a.dim() == 1 else result


def _transposed(x: Tensor, trans: str, name: str) -> Tensor:
    """op(x) for a letter of the BLAS, as a view."""
    check_transpose(trans, name)
    if trans == "N":
        return x
    if x.dim() < 2:
        raise ValueError(
            f"trans_{name}={trans!r} needs two dimensions, {name} has shape {tuple(x.shape)}"
        )
    return x.mT if trans == "T" else x.mH


def _policy(
    accuracy: Accuracy,
    scheme: str | Scheme,
    workspace: int | None,
    out_dtype: Any = None,
) -> dict[str, Any]:
    """The arguments that all operators share, as they take them."""
    policy: dict[str, Any] = {
        "accuracy": accuracy_text(accuracy),
        "scheme": scheme_text(scheme),
        "workspace": workspace,
    }
    if out_dtype is not None:
        policy["out_dtype"] = as_torch_dtype(out_dtype)
    return policy


def as_torch_dtype(out_dtype: Any) -> torch.dtype:
    """The dtype of PyTorch behind an `out_dtype`; TypeError where there is none."""
    if isinstance(out_dtype, torch.dtype):
        return out_dtype
    dtype = as_out_dtype(out_dtype)
    assert dtype is not None
    result: torch.dtype = getattr(torch, name_of_dtype(dtype))
    return result
