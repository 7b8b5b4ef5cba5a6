"""Products of DTensors inside `hifigemm.emulate`: ``@``, linear and their derivatives
on meshes.

DTensor itself would cut them up, multiply the shards by the kernels of the drop-in and
add partial sums up in the dtype of the result: other bits for other meshes. Handlers in
the place of mm and addmm give whole products instead; those of stacks and vectors see
to it that each sum is made by one rank.

A compiler traces DTensors by what becomes of their shards, which leaves no product of
DTensors in its graph, and other bits without a word. The handlers therefore refuse to
be traced, so that torch.compile ends its graph before a product and calls it as it
stands; graphs that are older than the handlers are given up.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from hifigemm.distributed.api import matmul
from hifigemm.distributed.method import SCHEMES
from hifigemm.exceptions import PlanError
from hifigemm.interop import torch_private as private
from hifigemm.interop.policy import LEVELS, Policy, current_policy
from hifigemm.interop.summary import Row
from hifigemm.schemes.auto import as_scheme

_aten: Any = torch.ops.aten
_mm: Any = _aten.mm.default
_PRODUCTS = (
    _mm,
    _aten.bmm.default,
    _aten.mv.default,
    _aten.dot.default,
    _aten.vdot.default,
)
_SUMS = {
    _aten.addmm.default: _mm,
    _aten.baddbmm.default: _aten.bmm.default,
    _aten.addmv.default: _aten.mv.default,
}
"""Sums with C, and their products."""
_is_registered = False


def register() -> None:
    """Put the handlers in their places."""
    global _is_registered
    if not _is_registered:
        _is_registered = True
        for operators, handler in ((_PRODUCTS, _made), (_SUMS, _added)):
            for operator in operators:
                private.handle_on_meshes(operator, handler)
        if dist.is_initialized() and "torch._dynamo" in sys.modules:
            torch.compiler.reset()


@private.untraced
def _made(operator: Any, args: Any, kwargs: Any) -> Any:
    """A B."""
    _check_untraced(operator, *args)
    policy = current_policy()
    if policy is None or not _is_asked_for(policy, *args):
        return private.made_by_dtensor(operator, args, kwargs)
    return _product(policy, operator, *args)


@private.untraced
def _added(operator: Any, args: Any, kwargs: Any) -> Any:
    """beta C + alpha A B with the product rounded first, as the drop-in makes it for
    tensors of one device.
    """
    _check_untraced(operator, *args)
    policy = current_policy()
    c, a, b = args
    alpha, beta = (kwargs.get(name, 1) for name in ("alpha", "beta"))
    is_sum = isinstance(c, DTensor) and c.dtype == a.dtype and alpha != 0
    if policy is None or not is_sum or not _is_asked_for(policy, a, b):
        return private.made_by_dtensor(operator, args, kwargs)
    made = _product(policy, _SUMS[operator], a, b)
    if beta == 0:
        return made if alpha == 1 else made * alpha
    return torch.add(c if beta == 1 else c * beta, made, alpha=alpha)


def _check_untraced(operator: Any, *tensors: Any) -> None:
    """Raise NotImplementedError in a trace, whatever the policy is now: another one may
    hold when the graph runs.
    """
    if any(
        isinstance(x, DTensor) and x.dtype in LEVELS and private.is_traced(x)
        for x in tensors
    ):
        raise NotImplementedError(
            f"{operator} of DTensors is no part of a graph once hifigemm makes such products"
        )


def _is_asked_for(policy: Policy, a: Any, b: Any) -> bool:
    """Whether the product is made here; PyTorch's own way is left what no policy asks
    for, and its own errors.
    """
    if policy.hands_on or not all(
        isinstance(x, DTensor) and x.dtype in LEVELS for x in (a, b)
    ):
        return False
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.dtype != b.dtype or a.shape[-1] != inner or a.device_mesh != b.device_mesh:
        return False
    size = policy.least_size(a.dtype, on_cpu=a.device_mesh.device_type == "cpu")
    rows, cols = (a.shape[-2] if a.ndim > 1 else 1), (b.shape[-1] if b.ndim > 1 else 1)
    return size is not None and bool(rows * inner * cols >= size**3)


class _Cut(NamedTuple):
    """An axis of A B that the ranks of a mesh dimension may share: its length, and the
    placements where they do.
    """

    length: int
    left: Placement
    right: Placement
    result: Placement


_WHOLE = _Cut(0, Replicate(), Replicate(), Replicate())


def _product(policy: Policy, operator: Any, a: DTensor, b: DTensor) -> DTensor:
    """A B in placements that follow from those of A and B, so that views of the result
    are those that PyTorch has.

    Stacks, vectors, meshes of more dimensions and schemes that `matmul` of meshes does
    not take are redistributed, so that each entry is made by one rank, by the drop-in.
    """
    policy.has_seen_product()
    a, b = (_in_plain_shards(x.detach()) for x in (a, b))
    cuts = _shared_axes(a, b)
    results = [cut.result for cut in cuts]
    scheme = as_scheme(policy.scheme)
    if (
        operator != _mm
        or a.device_mesh.ndim > 2
        or not (scheme is None or isinstance(scheme, SCHEMES))
    ):
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
    for summary in policy.summaries:
        key = (
            "mesh",
            a.dtype,
            a.device_mesh.device_type,
            a.shape,
            b.shape,
            policy.accuracy,
            str(policy.scheme),
        )
        summary.row(key, partial(_row, a, b)).calls += 1
    options: Any = {
        "accuracy": policy.accuracy,
        "scheme": policy.scheme,
        "workspace": policy.workspace,
    }
    try:
        return matmul(a, b, **options, placements=results)
    except (PlanError, TypeError, ValueError) as error:
        # which an operator sign of Python might take for its own
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
    """x with pending sums added up, and whole where its shards are strided, as views of
    several axes leave them.
    """
    placements = [
        p if type(p) in (Shard, Replicate) else Replicate() for p in x.placements
    ]
    return (
        x if placements == list(x.placements) else x.redistribute(placements=placements)
    )


def _shared_axes(a: DTensor, b: DTensor) -> list[_Cut]:
    """The axis that each dimension of the mesh cuts: one that it cuts in A or B
    already, never the inner dimension.

    An axis that is shorter than the number of its ranks stays whole, as DTensor itself
    leaves it.
    """
    axes = _axes(a, b)
    num_ranks = [1] * len(axes)
    cuts = []
    for size, placements in zip(
        a.device_mesh.shape, zip(a.placements, b.placements, strict=True), strict=True
    ):
        cut = _WHOLE
        for i, axis in enumerate(axes):
            is_cut = any(
                p.is_shard() and p == q
                for p, q in zip(placements, axis[1:3], strict=True)
            )
            if is_cut and num_ranks[i] * size <= axis.length:
                num_ranks[i] *= size
                cut = axis
                break
        cuts.append(cut)
    return cuts


def _axes(a: DTensor, b: DTensor) -> list[_Cut]:
    """The axes of A B: the stack, the rows of A and the columns of B, as far as there
    are any.
    """
    axes = []
    if a.ndim == 3:
        axes.append(_Cut(a.shape[0], Shard(0), Shard(0), Shard(0)))
    if a.ndim > 1:
        rows = Shard(a.ndim - 2)
        axes.append(_Cut(a.shape[-2], rows, Replicate(), rows))
    if b.ndim > 1:
        cols = Shard(b.ndim - 1)
        axes.append(_Cut(b.shape[-1], Replicate(), cols, cols))
    return axes
