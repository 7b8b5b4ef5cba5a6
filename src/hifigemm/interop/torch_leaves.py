"""Kernels in the place of PyTorch's own matrix products, for the tensors of a CPU or of
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
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hifigemm.engines import library_product
from hifigemm.interop import kernels
from hifigemm.interop import torch_private as private
from hifigemm.interop.policy import LEVELS, Policy, aside, current_policy
from hifigemm.interop.summary import Row, timed
from hifigemm.interop.torch_replacements import Kernel, Replacements


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
"""Those that others put kernels in front of, PyTorch's own bmm in Triton among them."""


def register(*, thoroughly: bool = False) -> None:
    """Put the kernels in their places, in front of those that are there; see
    `Replacements.register`.
    """
    _REPLACEMENTS.register(thoroughly=thoroughly)
    library_product.aside = aside


def unregister() -> bool:
    """Take the kernels away again; False where another library stands in front of some,
    which may call them.
    """
    is_gone = _REPLACEMENTS.unregister()
    if is_gone:
        library_product.aside = nullcontext
    return is_gone


def _kernel(operation: _Operation, overload: str, previous: Kernel) -> Kernel:
    """The kernel of one operator."""

    def kernel(keys: Any, *given: Any, **options: Any) -> Any:
        policy = current_policy()
        if policy is not None:
            policy.has_seen_product()
        if policy is not None and not policy.hands_on:
            c, a, b = given[:3] if operation.adds else (None, *given[:2])
            why = _handed_on(operation, overload, policy, a, b, c, options)
            rows = _rows(operation, policy, a, b, why) if policy.summaries else []
            if not why:
                value = partial(_value, operation, policy, a, b, c, options)
                made = timed(rows, "seconds", a.device, value) if rows else value()
                if any(row.calls == 1 for row in rows):
                    native = partial(
                        _natively, overload, previous, keys, given, options
                    )
                    timed(rows, "native_seconds", a.device, native)
            for row in rows:
                row.calls += 1
            if not why:
                return _delivered(overload, given[0], made, options)
        return _REPLACEMENTS.hand_on(
            previous, operation.name + overload, keys, given, options
        )

    return kernel


_REPLACEMENTS = Replacements(
    {
        operation.name + overload: partial(_kernel, operation, overload)
        for operation in _OPERATIONS
        for overload in operation.overloads
    },
    _OFTEN_REPLACED,
)


def _rows(
    operation: _Operation, policy: Policy, a: Tensor, b: Tensor, why: str
) -> list[Row]:
    """The rows of the policy's summaries that a product belongs to."""
    name = operation.name.strip("_")

    def row() -> Row:
        scheme = "handed on", why
        if not why:
            plan = kernels.make_plan(
                *_factors(operation, a, b),
                accuracy=policy.accuracy,
                scheme=policy.scheme,
            )
            scheme = str(plan.scheme), plan.reason
        return Row(
            name,
            str(a.dtype)[6:],
            a.device.type,
            (tuple(a.shape), tuple(b.shape)),
            *scheme,
        )

    key = (
        name,
        a.dtype,
        a.device.type,
        a.shape,
        b.shape,
        why or (policy.accuracy, str(policy.scheme)),
    )
    return [summary.row(key, row) for summary in policy.summaries]


def _natively(
    overload: str,
    previous: Callable[..., Any],
    keys: Any,
    given: Any,
    options: dict[str, Any],
) -> None:
    """The same product by the kernel that was there before, for its time; nothing is
    overwritten.
    """
    if overload == "_":
        given = given[0].clone(), *given[1:]
    if "out" in options:
        options = options | {"out": torch.empty_like(options["out"])}
    previous(keys, *given, **options)


def _handed_on(
    operation: _Operation,
    overload: str,
    policy: Policy,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    options: Any,
) -> str:
    """Why a product is handed on, errors in the call among them, which PyTorch names
    better; empty where it is made.
    """
    dtype, (left, right), p, q = a.dtype, operation.ranks, a.shape, b.shape
    if dtype not in LEVELS:
        return f"dtype {str(dtype)[6:]}"
    if (
        len(p) != left
        or len(q) != right
        or p[-1] != q[1 if right == 3 else 0]
        or (left == 3 and p[0] != q[0])
    ):
        return "shapes do not match"
    m, n, k = (p[-2] if left > 1 else 1), (q[-1] if right > 1 else 1), p[-1]
    size = policy.least_size(dtype, on_cpu=not a.is_cuda)
    if size is None:
        return "native products keep the level of their dtype, and no scheme is faster on a CPU"
    if m * n * k < size**3:
        return f"m n k = {m * n * k} < {size}**3"
    if min(a.numel(), b.numel()) == 0 or options.get("alpha", 1) == 0:
        return "nothing to multiply"
    out = options.get("out")
    for x in (a, b, c, out):
        if x is None:
            continue
        if x.dtype is not dtype or x.device != a.device:
            return "dtypes or devices differ"
        if x.layout is not torch.strided or private.is_zero_tensor(x):
            return "a tensor without dense memory"
    if c is not None:
        shape = (
            *((p[0],) if operation.name == "baddbmm" else ()),
            m,
            *((n,) if right > 1 else ()),
        )
        missing = len(shape) - c.dim()
        fits = missing >= 0 and all(
            x in (1, y) for x, y in zip(c.shape, shape[missing:], strict=True)
        )
        if not fits or (overload == "_" and tuple(c.shape) != shape):
            return "shapes do not match"
        for x in (options[name] for name in ("alpha", "beta") if name in options):
            if isinstance(x, complex) and x.imag and not dtype.is_complex:
                return "a complex scalar for real matrices"
            if torch.finfo(dtype).max < abs(x) < float("inf"):
                return "a scalar beyond the range of the dtype"
    return ""


def _factors(operation: _Operation, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The matrices, stacks or vectors that are multiplied, with nothing left to be done
    to their entries.
    """
    if operation.name == "vdot" and a.is_complex():
        a = a.conj()
    x, y = (t.detach().resolve_conj().resolve_neg() for t in (a, b))
    if operation.name == "addbmm":
        x, y = x.transpose(0, 1).reshape(x.shape[1], -1), y.reshape(-1, y.shape[2])
    return x, y


def _value(
    operation: _Operation,
    policy: Policy,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    options: Any,
) -> Tensor:
    """The result of an operator."""
    with private.without_autocast():
        try:
            made: Tensor = kernels.matmul(
                *_factors(operation, a, b),
                policy.accuracy,
                policy.scheme,
                workspace=policy.workspace,
            )
        except TypeError as error:
            # which an operator sign of Python would take for operands that it does not
            # know
            raise RuntimeError(f"hifigemm: {error}") from error
        if c is None:
            return made
        alpha, beta = (
            _scalar(options.get(name, 1), made) for name in ("alpha", "beta")
        )
        if beta == 0:
            made = made if alpha == 1 else made * alpha
        else:
            c = c.detach()
            made = torch.add(c if beta == 1 else c * beta, made, alpha=alpha)
        if operation.name == "_addmm_activation":
            approximate = "tanh" if made.is_cuda else "none"
            gelu = torch.nn.functional.gelu
            made = (
                gelu(made, approximate=approximate)
                if options.get("use_gelu", False)
                else made.relu()
            )
        return made


def _scalar(x: Any, made: Tensor) -> Any:
    """A scalar as PyTorch adds with it: True is 1, and what multiplies real matrices
    has no imaginary part.
    """
    if isinstance(x, bool):
        return int(x)
    return x.real if isinstance(x, complex) and not made.is_complex() else x


def _delivered(overload: str, c: Tensor, made: Tensor, options: Any) -> Tensor:
    """The result where the overload wants it."""
    if overload == "_":
        return c.copy_(made)
    out: Tensor | None = options.get("out")
    if out is None:
        return made
    if out.shape != made.shape:
        if out.numel():
            warnings.warn(
                "An output with one or more elements was resized since it had shape "
                f"{list(out.shape)}, which does not match the required output shape {list(made.shape)}.",
                stacklevel=2,
            )
        out.resize_(made.shape)
    return out.copy_(made)
