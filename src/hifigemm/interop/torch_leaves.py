"""Kernels that replace PyTorch's own matrix products, for the tensors of a CPU or of
a GPU.

They stand at the keys of devices, below derivatives, batching, autocast and compilers,
which PyTorch goes on doing by itself: matmul, einsum, linear, tensordot, their
derivatives and compiled programs end in these operators. A kernel hands on what its
policy leaves alone to the one that was there before it.

    mm, bmm, mv, dot, vdot: the product.   addmm, baddbmm, addmv, addbmm: beta C + alpha P, P the product rounded first,

so that a compiled program, which joins ``a @ b + c`` to one operator, has the bits of
the one that is not compiled.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hifigemm.base.exceptions import PlanError
from hifigemm.differentiable import torch_private as private
from hifigemm.differentiable.torch_private import DispatchKeySet
from hifigemm.interop.policy import NARROW, SERVED, Policy, current_policy
from hifigemm.interop.summary import Row, timed
from hifigemm.interop.torch_replacements import Kernel, Replacements
from hifigemm.running.plans import plan_of_numbers
from hifigemm.running.products import product_of_numbers


@dataclass(frozen=True)
class _Operation:
    """An operator of PyTorch and the ranks of its factors."""

    name: str
    ranks: tuple[int, int]
    overloads: tuple[str, ...] = ("", ".out")
    adds: bool = False  # the first argument is C


_OPERATIONS = (
    _Operation("mm", (2, 2)),
    _Operation("bmm", (3, 3)),
    _Operation("mv", (2, 1)),
    _Operation("dot", (1, 1)),
    _Operation("vdot", (1, 1)),
    _Operation("addmm", (2, 2), ("", ".out", "_"), adds=True),
    _Operation("baddbmm", (3, 3), ("", ".out", "_"), adds=True),
    _Operation("addbmm", (3, 3), ("", ".out", "_"), adds=True),
    _Operation("addmv", (2, 1), ("", ".out", "_"), adds=True),
    _Operation("_addmm_activation", (2, 2), adds=True),
)
_OFTEN_REPLACED = "mm", "bmm", "addmm"
"""Operators in front of whose kernels other libraries put theirs, and PyTorch its own
bmm in Triton.
"""


def register(*, thoroughly: bool = False) -> None:
    """Put the kernels in their places, in front of those that are there; see
    `Replacements.register`.
    """
    _REPLACEMENTS.register(thoroughly=thoroughly)


def unregister() -> bool:
    """Take the kernels away again; False where another library stands in front of some,
    which may call them.
    """
    return _REPLACEMENTS.unregister()


def _kernel(operation: _Operation, overload: str, previous: Kernel) -> Kernel:
    """The kernel of one operator."""
    name = operation.name + overload

    def kernel(keys: DispatchKeySet, *arguments: Any, **options: Any) -> Any:
        policy = current_policy()
        if policy is not None:
            policy.has_seen_product()
        if policy is None or policy.hands_on:
            return _REPLACEMENTS.hand_on(previous, name, keys, arguments, options)

        # A reason for handing the product on, and the rows of summaries for it.
        if operation.adds:
            c, a, b = arguments[:3]
        else:
            c = None
            a, b = arguments[:2]
        reason = _reason_to_hand_on(operation, overload, policy, a, b, c, options)
        if reason and policy.is_invariant and _is_rounded(a):
            raise PlanError(
                f"{name} in an invariant scope: {reason}, so PyTorch computes the product, in an order that depends on "
                "its shape; convert the operands, or multiply outside the scope"
            )
        rows = _rows(operation, policy, a, b, reason) if policy.summaries else []
        if reason:
            for row in rows:
                row.calls += 1
            return _REPLACEMENTS.hand_on(previous, name, keys, arguments, options)

        # The product, and behind some of a kind a native one for its time.
        value = partial(_value, operation, policy, a, b, c, options)
        result = timed(rows, "seconds", a.device, value) if rows else value()
        compared = [row for row in rows if row.is_to_be_compared]
        if compared:
            native = partial(_natively, overload, previous, keys, arguments, options)
            timed(compared, "native_seconds", a.device, native)
        for row in rows:
            row.calls += 1
        return _delivered(overload, arguments[0], result, options)

    return kernel


_REPLACEMENTS = Replacements(
    {
        operation.name + overload: partial(_kernel, operation, overload)
        for operation in _OPERATIONS
        for overload in operation.overloads
    },
    _OFTEN_REPLACED,
)


def _is_rounded(a: Tensor) -> bool:
    """True for floats of dtypes that this library does not multiply."""
    is_float = a.is_floating_point() or a.is_complex()
    return is_float and a.dtype not in SERVED


def _rows(
    operation: _Operation, policy: Policy, a: Tensor, b: Tensor, reason: str
) -> list[Row]:
    """The rows of the policy's summaries that a product belongs to.

    `reason` says why it is handed on; it is empty if the product is made here.
    """
    name = operation.name.strip("_")

    def row() -> Row:
        scheme = "handed on"
        reason_of_scheme = reason
        if not reason:
            x, y = _factors(operation, a, b)
            plan = plan_of_numbers(x, y, accuracy=policy.accuracy, scheme=policy.scheme)
            scheme = str(plan.scheme)
            reason_of_scheme = plan.reason
        return Row(
            operation=name,
            dtype=_dtype_name(a),
            device=a.device.type,
            shapes=(tuple(a.shape), tuple(b.shape)),
            scheme=scheme,
            reason=reason_of_scheme,
        )

    kind = reason or (policy.accuracy, str(policy.scheme))
    key = name, a.dtype, a.device.type, a.shape, b.shape, kind
    return [summary.row(key, row) for summary in policy.summaries]


def _dtype_name(x: Tensor) -> str:
    """The name of a dtype, such as "float64"."""
    return str(x.dtype).removeprefix("torch.")


def _natively(
    overload: str,
    previous: Callable[..., Any],
    keys: DispatchKeySet,
    arguments: Any,
    options: dict[str, Any],
) -> None:
    """Make the same product by the kernel that was there before, for its time; nothing
    is overwritten.
    """
    if overload == "_":
        arguments = arguments[0].clone(), *arguments[1:]
    if "out" in options:
        options = options | {"out": torch.empty_like(options["out"])}
    previous(keys, *arguments, **options)


def _reason_to_hand_on(
    operation: _Operation,
    overload: str,
    policy: Policy,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    options: dict[str, Any],
) -> str:
    """Why a product is handed on, errors in the call among them, which PyTorch names
    better; empty where it is made.
    """
    dtype = a.dtype
    if dtype not in SERVED:
        return f"dtype {_dtype_name(a)}"
    if not _factors_fit(operation, a, b):
        return "shapes do not match"

    # Small products are native.
    rank_of_a, rank_of_b = operation.ranks
    k = a.shape[-1]
    m = a.shape[-2] if rank_of_a > 1 else 1
    n = b.shape[-1] if rank_of_b > 1 else 1
    size = policy.least_size(dtype, on_cpu=not a.is_cuda)
    if size is None and dtype in NARROW:
        return f"native products are usual for {_dtype_name(a)}"
    if size is None:
        return "native products keep the level of their dtype, and no scheme is faster on a CPU"
    if m * n * k < size**3:
        return f"m n k = {m * n * k} < {size}**3"
    if min(a.numel(), b.numel()) == 0 or options.get("alpha", 1) == 0:
        return "nothing to multiply"

    # All tensors are of one kind.
    for x in (a, b, c, options.get("out")):
        if x is None:
            continue
        if x.dtype is not dtype or x.device != a.device:
            return "dtypes or devices differ"
        if x.layout is not torch.strided or private.is_zero_tensor(x):
            return "a tensor without dense memory"
    if c is None:
        return ""

    shape: tuple[int, ...] = (m, n) if rank_of_b > 1 else (m,)
    if operation.name == "baddbmm":
        shape = a.shape[0], m, n
    if not _addend_fits(tuple(c.shape), shape, overload):
        return "shapes do not match"

    for name in ("alpha", "beta"):
        scalar = options.get(name, 1)
        if isinstance(scalar, complex) and scalar.imag and not dtype.is_complex:
            return "a complex scalar for real matrices"
        if torch.finfo(dtype).max < abs(scalar) < float("inf"):
            return "a scalar beyond the range of the dtype"
    return ""


def _factors_fit(operation: _Operation, a: Tensor, b: Tensor) -> bool:
    """True if the factors have the ranks of the operation, and fit each other."""
    rank_of_a, rank_of_b = operation.ranks
    if a.dim() != rank_of_a or b.dim() != rank_of_b:
        return False
    if rank_of_a < 3:
        return a.shape[-1] == b.shape[0]
    batch_of_a, _, k = a.shape
    batch_of_b, rows_of_b, _ = b.shape
    return batch_of_a == batch_of_b and k == rows_of_b


def _addend_fits(
    shape_of_c: tuple[int, ...], shape: tuple[int, ...], overload: str
) -> bool:
    """True if C can be broadcast to the result, or has its shape where it is it."""
    if overload == "_":
        return shape_of_c == shape
    num_axes = len(shape_of_c)
    if num_axes > len(shape):
        return False
    last_axes = shape[len(shape) - num_axes :]
    pairs = zip(shape_of_c, last_axes, strict=True)
    return all(length in (1, full_length) for length, full_length in pairs)


def _factors(operation: _Operation, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The matrices, stacks or vectors that are multiplied, in memory as they are: no
    views that are to be conjugated or negated.
    """
    if operation.name == "vdot" and a.is_complex():
        a = a.conj()
    x = a.detach().resolve_conj().resolve_neg()
    y = b.detach().resolve_conj().resolve_neg()
    if operation.name == "addbmm":
        # The sum of products of a stack is one product of its matrices side by side.
        x = x.transpose(0, 1).reshape(x.shape[1], -1)
        y = y.reshape(-1, y.shape[2])
    return x, y


def _value(
    operation: _Operation,
    policy: Policy,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    options: dict[str, Any],
) -> Tensor:
    """The result of an operator.

    Sums with C of 16 bits are made in float32, and rounded to 16 bits at last.
    """
    is_narrow = a.dtype in NARROW
    out_dtype = a.dtype if is_narrow and c is None else None
    with private.without_autocast():
        x, y = _factors(operation, a, b)
        try:
            result: Tensor = product_of_numbers(
                x,
                y,
                policy.accuracy,
                policy.scheme,
                workspace=policy.workspace,
                out_dtype=out_dtype,
            )
        except TypeError as error:
            # Python would take a TypeError of `@` for operands without that operator.
            raise RuntimeError(f"hifigemm: {error}") from error
        if c is None:
            return result

        # alpha P + beta C, as PyTorch adds.
        alpha = _scalar(options.get("alpha", 1), result)
        beta = _scalar(options.get("beta", 1), result)
        if beta != 0:
            c = c.detach().to(result.dtype)
            result = torch.add(c if beta == 1 else c * beta, result, alpha=alpha)
        elif alpha != 1:
            result = result * alpha
        if operation.name == "_addmm_activation":
            result = _activated(result, options)
        return result.to(a.dtype)


def _activated(x: Tensor, options: dict[str, Any]) -> Tensor:
    """x after the activation that `_addmm_activation` asks for."""
    if not options.get("use_gelu", False):
        return x.relu()
    approximate = "tanh" if x.is_cuda else "none"
    return torch.nn.functional.gelu(x, approximate=approximate)


def _scalar(x: Any, product: Tensor) -> Any:
    """A scalar as PyTorch adds with it: True is 1, and a factor of real matrices has no
    imaginary part.
    """
    if isinstance(x, bool):
        return int(x)
    if isinstance(x, complex) and not product.is_complex():
        return x.real
    return x


def _delivered(
    overload: str, c: Tensor, result: Tensor, options: dict[str, Any]
) -> Tensor:
    """The result in the tensor that the overload writes to."""
    if overload == "_":
        return c.copy_(result)
    out: Tensor | None = options.get("out")
    if out is None:
        return result
    if out.shape != result.shape:
        if out.numel():
            warnings.warn(
                "An output with one or more elements was resized since it had shape "
                f"{list(out.shape)}, which does not match the required output shape {list(result.shape)}.",
                stacklevel=2,
            )
        out.resize_(result.shape)
    return out.copy_(result)
