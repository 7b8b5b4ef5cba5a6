"""Products of DTensors inside `hifigemm.emulate`: ``@``, linear and their derivatives.

DTensor itself would cut them up, multiply the shards by the kernels of the drop-in and
add partial sums up in the dtype of the result: other bits for other meshes. Handlers in
the place of mm and addmm make whole products instead. The handlers of stacks and
vectors give each sum to one rank.

A compiler traces the operations on the shards of DTensors. That leaves no product of
DTensors in its graph, and other bits without a word. The handlers therefore raise an
error in a trace, so that torch.compile ends its graph before a product and calls the
product as it stands. Graphs that are older than the handlers are dropped.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from hifigemm.base.exceptions import PlanError
from hifigemm.differentiable import torch_private as private
from hifigemm.differentiable.torch_private import OpOverload
from hifigemm.distributed.api import matmul
from hifigemm.distributed.method import SCHEMES
from hifigemm.interop.policy import NARROW, SERVED, Policy, current_policy
from hifigemm.interop.summary import Row
from hifigemm.schemes import as_scheme

_aten: Any = torch.ops.aten
_mm: Any = _aten.mm.default
"""The operator that `hifigemm.distributed.matmul` replaces."""
_PRODUCTS = (
    _mm,
    _aten.bmm.default,
    _aten.mv.default,
    _aten.dot.default,
    _aten.vdot.default,
)
"""Operators that are one product."""
_SUMS = {
    _aten.addmm.default: _mm,
    _aten.baddbmm.default: _aten.bmm.default,
    _aten.addmv.default: _aten.mv.default,
}
"""Operators that are a product plus C, with the operators of their products."""
_is_registered = False
"""True once the handlers replace the operators."""


def register() -> None:
    """Replace PyTorch's operators of DTensors by the handlers."""
    global _is_registered
    if _is_registered:
        return
    _is_registered = True
    for operator in _PRODUCTS:
        private.handle_on_meshes(operator, _handle_product)
    for operator in _SUMS:
        private.handle_on_meshes(operator, _handle_sum)
    if dist.is_initialized() and "torch._dynamo" in sys.modules:
        torch.compiler.reset()


@private.untraced
def _handle_product(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A B, by the policy that holds now, or by PyTorch."""
    _check_untraced(operator, *args)
    policy = current_policy()
    if policy is None or not _is_emulated(policy, *args):
        return private.made_by_dtensor(operator, args, kwargs)
    return _product(policy, operator, *args)


@private.untraced
def _handle_sum(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """beta C + alpha A B with the product rounded first, as on one device."""
    _check_untraced(operator, *args)
    policy = current_policy()
    c, a, b = args
    alpha = kwargs.get("alpha", 1)
    beta = kwargs.get("beta", 1)
    is_sum = isinstance(c, DTensor) and c.dtype == a.dtype and alpha != 0
    if policy is None or not is_sum or not _is_emulated(policy, a, b):
        return private.made_by_dtensor(operator, args, kwargs)
    product = _product(policy, _SUMS[operator], a, b)
    if beta == 0:
        return product if alpha == 1 else product * alpha
    return torch.add(c if beta == 1 else c * beta, product, alpha=alpha)


def _check_untraced(operator: OpOverload, *tensors: object) -> None:
    """Raise NotImplementedError in a trace.

    The policy does not matter: another one may hold when the graph runs.
    """
    for x in tensors:
        if isinstance(x, DTensor) and x.dtype in SERVED and private.is_traced(x):
            raise NotImplementedError(
                f"{operator} of DTensors is no part of a graph once hifigemm makes such products"
            )


def _is_emulated(policy: Policy, a: Any, b: Any) -> bool:
    """True if the policy asks for this product.

    PyTorch makes all others, and raises its own errors for operands that do not fit.
    """
    if policy.hands_on:
        return False
    for x in (a, b):
        if not isinstance(x, DTensor) or x.dtype not in SERVED:
            return False
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.dtype != b.dtype or a.shape[-1] != inner or a.device_mesh != b.device_mesh:
        return False
    size = policy.least_size(a.dtype, on_cpu=a.device_mesh.device_type == "cpu")
    rows = a.shape[-2] if a.ndim > 1 else 1
    cols = b.shape[-1] if b.ndim > 1 else 1
    return size is not None and bool(rows * inner * cols >= size**3)


class _ShardedAxis(NamedTuple):
    """An axis of A B that the ranks along a dimension of the mesh may share."""

    length: int
    left: Placement  # placements of A, B and the result if they share it
    right: Placement
    result: Placement


_WHOLE = _ShardedAxis(0, Replicate(), Replicate(), Replicate())
"""No axis is shared: each rank has all of A B."""


def _product(policy: Policy, operator: OpOverload, a: DTensor, b: DTensor) -> DTensor:
    """A B in placements that follow from the placements of A and B.

    So the views that PyTorch takes of the result exist. Operands of `mm` go to `matmul`
    of meshes. Stacks, vectors, operands of 16 bits, on meshes of more than two
    dimensions, and of schemes that it does not take, are redistributed, so that each entry is computed by
    one rank, by the drop-in.
    """
    policy.has_seen_product()
    a = _in_plain_shards(a.detach())
    b = _in_plain_shards(b.detach())
    cuts = _shared_axes(a, b)
    results = [cut.result for cut in cuts]
    scheme = as_scheme(policy.scheme)
    is_taken = scheme is None or isinstance(scheme, SCHEMES)
    is_taken &= a.dtype not in NARROW
    if operator != _mm or a.device_mesh.ndim > 2 or not is_taken:
        left = a.redistribute(placements=[cut.left for cut in cuts]).to_local()
        right = b.redistribute(placements=[cut.right for cut in cuts]).to_local()
        shape = (*a.shape[:-1], *(b.shape[-1:] if b.ndim > 1 else ()))
        strides = torch.empty(shape, device="meta").stride()
        # DTensor's own rules would weigh costs again, and might cut the inner
        # dimension.
        return DTensor.from_local(
            operator(left, right),
            a.device_mesh,
            results,
            run_check=False,
            shape=torch.Size(shape),
            stride=strides,
        )

    device = a.device_mesh.device_type
    for summary in policy.summaries:
        options = (policy.accuracy, str(policy.scheme))
        key = ("mesh", a.dtype, device, a.shape, b.shape, *options)
        summary.row(key, partial(_row, a, b)).calls += 1
    scheme_or_name: Any = policy.scheme
    try:
        return matmul(
            a,
            b,
            accuracy=policy.accuracy,
            scheme=scheme_or_name,
            workspace=policy.workspace,
            placements=results,
        )
    except (PlanError, TypeError, ValueError) as error:
        # The sign @ of Python would take a TypeError for its own.
        raise RuntimeError(f"hifigemm: {error}") from error


def _row(a: DTensor, b: DTensor) -> Row:
    """The row of a summary for a product that all ranks of a mesh make together."""
    shapes = tuple(a.shape), tuple(b.shape)
    size = " x ".join(str(count) for count in a.device_mesh.shape)
    reason = f"made on a mesh of {size} ranks; hifigemm.distributed.make_plan says how"
    return Row(
        "mm", str(a.dtype)[6:], a.device_mesh.device_type, shapes, "on a mesh", reason
    )


def _in_plain_shards(x: DTensor) -> DTensor:
    """x with pending sums added up, and without strided shards.

    Views of several axes leave strided shards; such a dimension of the mesh gets all of
    x.
    """
    placements = [
        p if type(p) in (Shard, Replicate) else Replicate() for p in x.placements
    ]
    if placements == list(x.placements):
        return x
    return x.redistribute(placements=placements)


def _shared_axes(a: DTensor, b: DTensor) -> list[_ShardedAxis]:
    """For each dimension of the mesh the axis of A B that it cuts.

    It is one that it cuts in A or B already, never the inner dimension. An axis that is
    shorter than the number of its ranks stays whole, as DTensor itself leaves it.
    """
    axes = _axes(a, b)
    num_ranks = [1] * len(axes)
    cuts = []
    for size, p, q in zip(a.device_mesh.shape, a.placements, b.placements, strict=True):
        cut = _WHOLE
        for i, axis in enumerate(axes):
            is_cut_in_a = p.is_shard() and p == axis.left
            is_cut_in_b = q.is_shard() and q == axis.right
            fits = num_ranks[i] * size <= axis.length
            if (is_cut_in_a or is_cut_in_b) and fits:
                num_ranks[i] *= size
                cut = axis
                break
        cuts.append(cut)
    return cuts


def _axes(a: DTensor, b: DTensor) -> list[_ShardedAxis]:
    """The axes of A B: a stack, the rows of A and the columns of B, if there are any."""
    axes = []
    if a.ndim == 3:
        axes.append(_ShardedAxis(a.shape[0], Shard(0), Shard(0), Shard(0)))
    if a.ndim > 1:
        rows = Shard(a.ndim - 2)
        axes.append(_ShardedAxis(a.shape[-2], rows, Replicate(), rows))
    if b.ndim > 1:
        cols = Shard(b.ndim - 1)
        axes.append(_ShardedAxis(b.shape[-1], Replicate(), cols, cols))
    return axes
