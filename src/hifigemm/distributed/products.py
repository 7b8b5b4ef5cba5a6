"""Products of matrices that are spread over the processes of a mesh, with the bits of
one device.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from hifigemm.accuracy import Accuracy, Target
from hifigemm.distributed.collectives import agree, caught, largest
from hifigemm.distributed.layout import Layout, Placements, candidates, extent
from hifigemm.distributed.memory import UNDER_WAY, Memory, memory_of, of_sums, share
from hifigemm.distributed.method import (
    Method,
    bits_of,
    decided,
    error_ratio_of,
    expected_planes,
    library_and_engine,
    method_for,
    ratio_from,
)
from hifigemm.distributed.panels import Panel, panel_here, panels_of
from hifigemm.distributed.sums import summed
from hifigemm.distributed.walk import Arrived, LocalProducts, walk
from hifigemm.engines.device_ops import NUMPY_DTYPES, TORCH_DTYPES
from hifigemm.exceptions import PlanError
from hifigemm.gemm import as_scalar, gemm_of_numbers
from hifigemm.interop import torch_private as private
from hifigemm.interop.policy import LEVELS
from hifigemm.operands import check_scalars
from hifigemm.plan import Decision, Report
from hifigemm.problem import Problem
from hifigemm.request import Request
from hifigemm.schemes import Scheme


@dataclass(frozen=True)
class MeshPlan:
    """What `matmul` does for operands on a mesh; printable."""

    problem: Problem
    method: Method
    target: Target
    layout: Layout
    memory: Memory

    def __str__(self) -> str:
        count = (
            f"Ozaki2(scaling='fast'), its count agreed for {self.target}"
            if self.method.waits
            else str(self.method)
        )
        lines = (
            ("problem", str(self.problem)),
            ("method", count),
            ("layout", str(self.layout)),
            ("memory", str(self.memory)),
        )
        return "\n".join(
            ["MeshPlan", *(f"  {name:<7}  {text}" for name, text in lines)]
        )


@dataclass(frozen=True)
class Asked:
    """The options of a call, the same on every rank."""

    accuracy: Accuracy = None
    scheme: str | Scheme = "auto"
    placements: Placements | None = None
    workspace: int | None = None
    alpha: complex = 1.0
    beta: complex = 0.0
    # the operands may have sums that are still pending, as PyTorch leaves gradients
    of_gradients: bool = False

    def with_numbers(self) -> Asked:
        """The same with alpha and beta as numbers of Python."""
        return replace(
            self,
            alpha=as_scalar(self.alpha, "alpha"),
            beta=as_scalar(self.beta, "beta"),
        )


def planned(a: Any, b: Any, c: Any, out: Any, asked: Asked) -> list[MeshPlan]:
    """The plans for these operands, the cheapest first, after all ranks agree that
    there is one.

    Raises what any rank refuses, on every rank.
    """
    plans, error = caught(_checked, a, b, c, out, asked)
    spread = {
        name: x
        for name, x in (("a", a), ("b", b), ("c", c), ("out", out))
        if isinstance(x, DTensor)
    }
    mesh = next((x.device_mesh for x in spread.values()), None)
    if mesh is None or mesh.get_coordinate() is None:  # nobody waits for this rank
        raise error or TypeError("no operand is a DTensor")
    facts = [
        f"{name} {tuple(x.shape)} {x.dtype} {x.placements}"
        for name, x in spread.items()
    ]
    agree(mesh, error, f"{', '.join(facts)}, {asked}")
    return plans


def _checked(a: Any, b: Any, c: Any, out: Any, asked: Asked) -> list[MeshPlan]:
    """The plans for operands and options that are right by themselves."""
    Request(asked.accuracy, asked.scheme, workspace=asked.workspace)
    asked = asked.with_numbers()
    for name, x in (("a", a), ("b", b), ("c", c), ("out", out)):
        if x is not None or name in "ab":
            _check_operand(name, x, a)
    if a.shape[1] != b.shape[0]:
        raise ValueError(
            f"a has shape {tuple(a.shape)} and b has shape {tuple(b.shape)}: {a.shape[1]} != {b.shape[0]}"
        )
    kinds = {x.dtype for x in (a, b, c) if x is not None}
    dtype: Any = reduce(torch.promote_types, kinds)
    problem = Problem(1, a.shape[0], b.shape[1], a.shape[1], NUMPY_DTYPES[dtype])
    for name, x in (("c", c), ("out", out)):
        if x is not None and tuple(x.shape) != (problem.m, problem.n):
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}; the result has shape {(problem.m, problem.n)}"
            )
    if out is not None and out.dtype != dtype:
        raise TypeError(f"out has dtype {out.dtype}; the result has dtype {dtype}")
    check_scalars(problem.dtype, alpha=asked.alpha, beta=asked.beta)
    if asked.beta != 0 and c is None:
        raise ValueError(f"beta = {asked.beta} needs c")
    result = asked.placements
    if out is not None:
        if result not in (None, out.placements):
            raise PlanError(
                f"placements={result} differ from those of out, {out.placements}"
            )
        result = out.placements
    mesh = a.device_mesh
    if result is not None:
        _check_placements("placements", result, mesh)
    method, target = method_for(problem, asked.accuracy, asked.scheme)
    planes = expected_planes(method, problem, target)
    layouts = candidates(
        *(
            (problem.m, problem.n, problem.k),
            problem.dtype.itemsize,
            tuple(mesh.shape),
            a.placements,
            b.placements,
        ),
        *(result, planes, mesh.device_type),
        adds=_adds(method, problem, asked, c),
    )
    limit = asked.workspace
    layouts = [
        x
        for x in layouts
        if limit is None or "k" not in x.roles or of_sums(x, planes) <= limit
    ]
    held = [
        memory_of(
            layout, problem.dtype.itemsize, a.placements, b.placements, planes, limit
        )
        for layout in layouts
    ]
    return [
        MeshPlan(problem, method, target, *found)
        for found in zip(layouts, held, strict=True)
    ]


def _adds(method: Method, problem: Problem, asked: Asked, c: Any) -> bool:
    """Whether partial sums end as `gemm` of one device ends; it has ways of its own for
    some alpha and beta.
    """
    scaled = asked.alpha != 1 or (asked.beta != 0 and c is not None)
    plain = not isinstance(asked.alpha, complex) if method.is_fixed else not scaled
    return problem.multiplications > 0 and method.adds and plain and asked.alpha != 0


def _check_operand(name: str, x: Any, first: Any) -> None:
    if not isinstance(x, DTensor):
        raise TypeError(
            f"{name} is a {type(x).__name__}: expected a DTensor; DTensor.from_local makes one of a shard"
        )
    if x.device_mesh != first.device_mesh:
        raise ValueError(
            f"{name} lies on the mesh {x.device_mesh}, a on {first.device_mesh}"
        )
    mesh = x.device_mesh
    if mesh.ndim > 2:
        raise PlanError(
            f"{name} lies on a mesh of {mesh.ndim} dimensions; expected one or two, see DeviceMesh._flatten"
        )
    if mesh.get_coordinate() is None:
        raise ValueError(
            f"this rank has no place on the mesh of {name}, {mesh}: only its ranks multiply"
        )
    if mesh.device_type not in ("cpu", "cuda"):
        raise TypeError(
            f"{name} lies on devices of type {mesh.device_type}; expected cpu or cuda"
        )
    if any((mesh.mesh.diff(dim=i) < 0).any() for i in range(mesh.ndim)):
        raise ValueError(
            f"{name} lies on {mesh} of ranks {mesh.mesh.tolist()}, which do not ascend: PyTorch sorts the ranks of a "
            "group, so that its own collectives mix the shards up"
        )
    if x.ndim != 2:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}; products on a mesh are of two-dimensional matrices"
        )
    if x.dtype not in LEVELS:
        raise TypeError(
            f"{name} has dtype {x.dtype}; expected float32, float64, complex64 or complex128"
        )
    if private.in_forward_ad() and forward_ad.unpack_dual(x).tangent is not None:
        raise TypeError(
            f"{name} has a tangent (forward_ad), which would be lost: pass {name}.detach()"
        )
    _check_placements(name, x.placements, mesh)
    local, at = x._local_tensor, mesh.get_coordinate() or ()
    span = [extent(x.shape[i], i, x.placements, mesh.shape, at) for i in (0, 1)]
    expected = tuple(s.stop - s.start for s in span)
    if tuple(local.shape) != expected or local.dtype != x.dtype:
        raise ValueError(
            f"{name} is {tuple(x.shape)} of {x.dtype} as {x.placements}, so this rank should hold {expected}; it holds "
            f"{tuple(local.shape)} of {local.dtype}"
        )


def _check_placements(name: str, placements: Any, mesh: DeviceMesh) -> None:
    """Raise PlanError for placements that are none of a matrix, or that leave values to
    be added or reordered.
    """
    if not isinstance(placements, tuple) or not all(
        isinstance(p, Placement) for p in placements
    ):
        raise PlanError(
            f"{name}={placements!r}: expected a sequence of Shard(0), Shard(1) and Replicate()"
        )
    if len(placements) != mesh.ndim:
        raise PlanError(
            f"{name} has {len(placements)} placements; the mesh has {mesh.ndim} dimensions"
        )
    for p in placements:
        if p.is_partial():
            raise PlanError(
                f"{name} is {p}: its values are still to be added up, which rounds, so their sum is no operand with "
                "known bits; redistribute it first"
            )
        if not (type(p) is Replicate or (type(p) is Shard and p.dim in (0, 1))):
            raise PlanError(
                f"{name} is placed as {p}; expected Shard(0), Shard(1) or Replicate()"
            )


def multiply(
    a: Any, b: Any, c: Any, out: Any, asked: Asked, *, return_report: bool
) -> tuple[DTensor, Report | None]:
    """alpha A B + beta C in the layout that is asked for, and its report."""
    started = time.perf_counter()
    plans = planned(a, b, c, out, asked)
    plan, asked = plans[0], asked.with_numbers()
    dtype = TORCH_DTYPES[plan.problem.dtype]
    a, b, c = (
        None if x is None else x.detach().to(dtype)
        for x in (a, b, c if asked.beta != 0 else None)
    )
    if asked.alpha == 0 or plan.problem.k == 0:
        found: Any = _without_product(c, plan, asked, a)
    else:
        found = (
            _by_sums(a, b, c, out, plan, asked) if "k" in plan.layout.roles else None
        )
        if found is None:
            plan = next(x for x in plans if "k" not in x.layout.roles)
            found = _by_panels(a, b, c, out, plan, asked)
    local, method, count = found
    result = _delivered(local, plan, out, a)
    report = (
        _report(plan, method, count, time.perf_counter() - started, local)
        if return_report
        else None
    )
    return result, report


def _by_sums(
    a: DTensor,
    b: DTensor,
    c: DTensor | None,
    out: DTensor | None,
    plan: MeshPlan,
    asked: Asked,
) -> tuple[Tensor, Method, int] | None:
    """As `_by_panels`, by partial sums over k; None where the operands do not allow
    it.
    """
    layout = plan.layout
    own = None if c is None else c.redistribute(placements=layout.own).to_local()
    local = _room(a, b, own, out, layout)
    scalars = asked.alpha, asked.beta, asked.workspace
    method = summed(a, b, own, local, layout, plan.method, plan.problem, *scalars)
    if method is None:
        return None
    return (
        local,
        method,
        expected_planes(replace(method, accuracy=None), plan.problem, plan.target),
    )


def _by_panels(
    a: DTensor,
    b: DTensor,
    c: DTensor | None,
    out: DTensor | None,
    plan: MeshPlan,
    asked: Asked,
) -> tuple[Tensor, Method, int]:
    """The part of C of this rank, the method in the end, and the products that were
    made.
    """
    layout, method, mesh, limit = (
        plan.layout,
        plan.method,
        a.device_mesh,
        asked.workspace,
    )
    room = share(limit, "panels")
    width = (
        None
        if room is None
        else max(room // (UNDER_WAY * plan.problem.k * a.dtype.itemsize), 1)
    )
    ahead = None if limit is None else 1

    def sides() -> tuple[list[Panel], list[Panel]]:
        both = layout.gathered[0] > 0 and layout.gathered[1] > 0
        return panels_of(a, 0, layout.left, width, coarse=both), panels_of(
            b, 1, layout.right, width, coarse=False
        )

    left, right = sides()
    own = None if c is None else c.redistribute(placements=layout.own).to_local()
    if method.waits:
        method, left, right = _agreed(plan, left, right, ahead, asked, mesh)
        if limit is not None:
            left, right = sides()
    local = _room(a, b, own, out, layout)
    products = LocalProducts(method, local, asked.alpha, asked.beta, own, limit)
    error = walk(left, right, ahead, products)
    if limit is not None or not method.is_fixed:  # a rank may refuse what others do not
        agree(mesh, error)
    elif error is not None:
        raise error
    return local, method, products.num_products


def _agreed(
    plan: MeshPlan,
    left: list[Panel],
    right: list[Panel],
    ahead: int | None,
    asked: Asked,
    mesh: DeviceMesh,
) -> tuple[Method, list[Panel], list[Panel]]:
    """The method for the largest error ratio of all pairs of panels; what arrived stays
    where there is room for it.
    """
    worst = 0.0
    here: tuple[dict[int, Arrived], dict[int, Arrived]] = {}, {}

    def look(x: Arrived, y: Arrived) -> None:
        nonlocal worst
        if asked.workspace is None:
            for side, panel in zip(here, (x, y), strict=True):
                side[panel.at.start] = panel
        worst = max(
            worst,
            error_ratio_of(x.x, y.x, plan.problem, share(asked.workspace, "products")),
        )

    error = walk(left, right, ahead, look)
    found = largest(mesh, [bits_of(worst), error is not None])
    if found[1]:
        agree(mesh, error)
    method = decided(plan.problem, plan.target, ratio_from(found[0]))
    arrived = [
        [panel_here(p.at, p.x) for _, p in sorted(side.items())] for side in here
    ]
    return method, arrived[0], arrived[1]


def _shape(layout: Layout, mesh: DeviceMesh) -> tuple[int, ...]:
    """That of this rank's part of C."""
    place = list(mesh.get_coordinate() or ())
    spans = [
        extent(size, i, layout.own, mesh.shape, place)
        for i, size in enumerate(layout.shape[:2])
    ]
    return tuple(span.stop - span.start for span in spans)


def _room(
    a: DTensor, b: DTensor, c: Tensor | None, out: DTensor | None, layout: Layout
) -> Tensor:
    """Memory for this rank's part of C: that of `out`, where it fits and no operand
    lies there.
    """
    local, shape = a.to_local(), _shape(layout, a.device_mesh)
    if out is None or out.placements != layout.own:
        return local.new_empty(shape)
    target = out.to_local()
    read = {
        x.untyped_storage().data_ptr()
        for x in (local, b.to_local(), *([] if c is None else [c]))
    }
    return (
        local.new_empty(shape)
        if target.untyped_storage().data_ptr() in read
        else target
    )


def _without_product(
    c: DTensor | None, plan: MeshPlan, asked: Asked, a: DTensor
) -> tuple[Tensor, Method, int]:
    """beta C, or zeros, where there is nothing to multiply."""
    layout, local = plan.layout, a.to_local()
    m, n = _shape(layout, a.device_mesh)
    own = None if c is None else c.redistribute(placements=layout.own).to_local()
    made = gemm_of_numbers(
        local.new_empty((m, 0)),
        local.new_empty((0, n)),
        own,
        beta=asked.beta if own is not None else 0.0,
    )
    return made, replace(plan.method, waits=False), 0


def _delivered(
    local: Tensor, plan: MeshPlan, out: DTensor | None, a: DTensor
) -> DTensor:
    """The result as it is asked for."""
    layout = plan.layout
    shape = layout.shape[:2]
    made = DTensor.from_local(
        local,
        a.device_mesh,
        layout.own,
        run_check=False,
        shape=torch.Size(shape),
        stride=(shape[1], 1),
    ).redistribute(placements=layout.result)
    if out is None:
        return made
    target = out.to_local()
    if target.data_ptr() != made.to_local().data_ptr() or not target.numel():
        with torch.no_grad():
            target.copy_(made.to_local())
    return out


def _report(
    plan: MeshPlan, method: Method, count: int, seconds: float, local: Tensor
) -> Report:
    """What was done and what is promised."""
    engine = library_and_engine(local)[1]
    correct = (
        method.accuracy == "correct"
        or getattr(method.scheme, "mode", None) == "correct"
    )
    promised = plan.method.waits or method.accuracy is not None
    bound = 0.0 if correct else plan.target.r if promised else math.inf
    if method.is_fixed:
        count = expected_planes(method, plan.problem, plan.target)
    reason = f"{method}" + (
        f", agreed by all ranks for {plan.target}" if plan.method.waits else ""
    )
    decision = Decision(
        method.scheme,
        count,
        bound,
        correct,
        plan.problem.k,
        False,
        f"{reason}; {plan.layout}",
    )
    return Report(engine.name, engine.device, 0, seconds, lambda: decision)
