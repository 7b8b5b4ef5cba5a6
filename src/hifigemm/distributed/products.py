"""Products of matrices on a mesh of processes, with the bits of one device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from hifigemm.base.exceptions import PlanError
from hifigemm.base.settings import is_strict
from hifigemm.base.store import keep, kept, once
from hifigemm.differentiable import torch_private as private
from hifigemm.distributed.collectives import agree, largest, result_or_error
from hifigemm.distributed.layout import (
    Layout,
    MeshProduct,
    Placements,
    candidates,
    extent,
)
from hifigemm.distributed.memory import Memory, memory_of, of_sums, share
from hifigemm.distributed.method import (
    Method,
    bits_of,
    error_ratio_of,
    expected_planes,
    library_and_engine,
    method_for,
    method_for_ratio,
    ratio_from,
)
from hifigemm.distributed.panels import panel_seconds_of
from hifigemm.distributed.part import (
    Arrived,
    KeptProducts,
    LocalProducts,
    Moves,
    Pair,
    Wire,
    moves_of,
    travelling,
    visit_pairs,
    wire_of,
)
from hifigemm.distributed.sums import PartialSums
from hifigemm.engines.device_ops import NUMPY_DTYPES, TORCH_DTYPES
from hifigemm.model.accuracy import Accuracy, Invariant, Relative, Target, resolve
from hifigemm.model.engine import report_of
from hifigemm.model.invariance import CHOSEN, dependence
from hifigemm.model.plan import Decision, Report
from hifigemm.model.problem import Problem
from hifigemm.operands.operands import check_scalars
from hifigemm.running.gemm import as_scalar, gemm_of_numbers
from hifigemm.running.keys import layout_of_tensors
from hifigemm.running.request import Request
from hifigemm.running.scaled_sums import needs_one_rounding, with_room_for_rounding
from hifigemm.schemes import Scheme

_DTYPES = torch.float32, torch.float64, torch.complex64, torch.complex128
_PLAIN = {type(None), int, float, complex, bool, str, Relative, Invariant}
"""Types of accuracies, scalars and workspaces whose value is all that they are."""


@dataclass(frozen=True)
class MeshPlan:
    """The plan of a product on a mesh; printable.

    Attributes
    ----------
    problem : Problem
        Shapes and dtype of the product.
    method : Method
        The scheme, and the values on which the ranks agree.
    target : Target
        The accuracy.
    layout : Layout
        The part of the product that each rank computes, and the data that it receives.
    memory : Memory
        Bytes that a rank holds.
    wire : str
        How panels travel, as all ranks have agreed; "" if no panel travels.
    """

    problem: Problem
    method: Method
    target: Target
    layout: Layout
    memory: Memory
    wire: str = ""

    def __str__(self) -> str:
        method = str(self.method)
        if self.method.waits:
            method = f"Ozaki2(scaling='fast'), its count agreed for {self.target}"
        lines = [
            "MeshPlan",
            f"  problem  {self.problem}",
            f"  method   {method}",
            f"  layout   {self.layout}",
            f"  memory   {self.memory}",
        ]
        if self.wire:
            lines.append(f"  wire     {self.wire}")
        return "\n".join(lines)


@dataclass(frozen=True)
class MeshOptions:
    """The options of a call, the same on every rank."""

    accuracy: Accuracy = None
    scheme: str | Scheme = "auto"
    placements: Placements | None = None
    workspace: int | None = None
    alpha: complex = 1.0
    beta: complex = 0.0
    # the operands may have sums that are still pending, as PyTorch leaves gradients
    of_gradients: bool = False

    def with_numbers(self) -> MeshOptions:
        """The same with alpha and beta as numbers of Python."""
        if type(self.alpha) is float and type(self.beta) is float:
            return self
        return replace(
            self,
            alpha=as_scalar(self.alpha, "alpha"),
            beta=as_scalar(self.beta, "beta"),
        )


@dataclass(eq=False)
class MeshCall:
    """A call whose operands and options are checked, with what its first run leaves for
    later ones of its kind.
    """

    plans: tuple[MeshPlan, ...]  # the cheapest first
    request: str  # what all ranks have to ask for alike
    moves: Moves | None = None
    products: dict[Method, KeptProducts] = field(default_factory=dict)
    # of the result, by its placements
    makers: dict[Placements, Callable[[Tensor], DTensor]] = field(default_factory=dict)

    @property
    def in_panels(self) -> MeshPlan:
        """The cheapest plan without sums over ranks."""
        return next(x for x in self.plans if "k" not in x.layout.roles)


def call_of(
    a: DTensor, b: DTensor, c: DTensor | None, out: DTensor | None, options: MeshOptions
) -> MeshCall:
    """The plans for these operands, the cheapest first, on which all ranks agree.

    If one rank raises an error, all ranks do.
    """
    key = _key_of(a, b, c, out, options)
    call: MeshCall | None = None if key is None else kept(key)
    if call is not None:
        agree(a.device_mesh, None, call.request)
        return call

    plans, error = result_or_error(_plans_of_rank, a, b, c, out, options)
    mesh: DeviceMesh | None = None
    facts = []
    for name, x in (("a", a), ("b", b), ("c", c), ("out", out)):
        if isinstance(x, DTensor):
            facts.append(f"{name} {tuple(x.shape)} {x.dtype} {x.placements}")
            if mesh is None:
                mesh = x.device_mesh
    # No other rank waits for one without a coordinate on the mesh.
    if mesh is None or mesh.get_coordinate() is None:
        raise error or TypeError("no operand is a DTensor")
    request = f"{', '.join(facts)}, {options}"
    agree(mesh, error, request)
    call = MeshCall(plans, request)
    if key is not None:
        keep(key, call, "mesh")
    return call


def _key_of(
    a: DTensor, b: DTensor, c: DTensor | None, out: DTensor | None, options: MeshOptions
) -> Hashable:
    """All that is read of a call but the entries; None where a later call may find
    something else.
    """
    operands: list[Hashable] = []
    shards: list[Tensor | None] = []
    for x in (a, b, c, out):
        if x is None:
            operands.append(None)
            shards.append(None)
            continue
        if not isinstance(x, DTensor) or private.in_forward_ad():
            return None
        local = x._local_tensor
        shards.append(local)
        facts = x.device_mesh, x.placements, x.shape, x.dtype, local.shape, local.dtype
        operands.append(facts)
    numbers = options.accuracy, options.workspace, options.alpha, options.beta
    types = tuple(map(type, numbers))
    if not set(types) <= _PLAIN:
        return None
    of_a, of_b, _, of_out = shards
    layout = layout_of_tensors(of_a, of_b, of_out)
    if layout is None:
        return None
    return "mesh call", layout, is_strict(), types, options, *operands


def plan_with_wire(a: DTensor, b: DTensor, options: MeshOptions) -> MeshPlan:
    """The plan of a product, and how its panels travel."""
    plan = call_of(a, b, None, None, options).plans[0]
    if "k" in plan.layout.roles or not plan.problem.multiplications:
        return plan
    moves = moves_of(a, b, plan.layout, options.workspace)
    return replace(plan, wire=wire_of(moves, a.device_mesh, options.workspace))


def _plans_of_rank(
    a: DTensor, b: DTensor, c: DTensor | None, out: DTensor | None, options: MeshOptions
) -> tuple[MeshPlan, ...]:
    """The plans for the operands and options as this rank sees them.

    Raises PlanError, AccuracyError, TypeError or ValueError: see `api.matmul`.
    """
    Request(options.accuracy, options.scheme, workspace=options.workspace)
    options = options.with_numbers()
    problem = _checked_problem(a, b, c, out, options)
    placements = _checked_placements(out, options, a.device_mesh)

    # Plans do not depend on the entries, nor on the memory that is free.
    mesh = a.device_mesh
    alpha = options.alpha
    scalars = _Scalars(
        reads_product=alpha != 0,
        is_complex=isinstance(alpha, complex),
        is_plain=alpha == 1 and (options.beta == 0 or c is None),
    )
    call = _PlanKey(
        problem,
        options.accuracy,
        options.scheme,
        options.workspace,
        device=mesh.device_type,
        mesh=tuple(mesh.shape),
        left=a.placements,
        right=b.placements,
        result=placements,
        scalars=scalars,
    )
    key = "mesh", type(options.accuracy), call
    return once(key, lambda: _plans(call), "mesh")


class _Scalars(NamedTuple):
    """What plans have to know of alpha and beta."""

    reads_product: bool
    is_complex: bool
    is_plain: bool  # the product alone is the result


class _PlanKey(NamedTuple):
    """What the plans of a product depend on."""

    problem: Problem
    accuracy: Accuracy
    scheme: str | Scheme
    workspace: int | None
    device: str
    mesh: tuple[int, ...]
    left: Placements
    right: Placements
    result: Placements | None
    scalars: _Scalars


def _plans(call: _PlanKey) -> tuple[MeshPlan, ...]:
    """The plans of all layouts that the workspace allows, the quickest first."""
    problem = call.problem
    accuracy = call.accuracy
    if not call.scalars.is_plain:
        target = resolve(accuracy, problem.fmt, problem.k)
        if needs_one_rounding(target, problem.fmt):
            accuracy = "correct"
        accuracy = with_room_for_rounding(accuracy, problem.fmt)
    method, target = method_for(problem, accuracy, call.scheme)
    planes = expected_planes(method, problem, target)
    product = MeshProduct(
        shape=(problem.m, problem.n, problem.k),
        itemsize=problem.dtype.itemsize,
        mesh=call.mesh,
        left=call.left,
        right=call.right,
        result=call.result,
        planes=planes,
        device=call.device,
        panel_seconds=panel_seconds_of(method, call.workspace),
    )
    adds = _may_add_partial_sums(method, problem, call.scalars)
    limit = call.workspace
    plans = []
    for layout in candidates(product, adds=adds):
        if limit is None or "k" not in layout.roles or of_sums(layout, planes) <= limit:
            memory = memory_of(layout, product, limit)
            plans.append(MeshPlan(problem, method, target, layout, memory))
    return tuple(plans)


def _checked_problem(
    a: DTensor, b: DTensor, c: DTensor | None, out: DTensor | None, options: MeshOptions
) -> Problem:
    """The problem of operands that fit each other, and out and the scalars too."""
    for name, x in (("a", a), ("b", b), ("c", c), ("out", out)):
        if x is not None or name in "ab":
            _check_operand(name, x, a)
    if a.shape[1] != b.shape[0]:
        raise ValueError(
            f"a has shape {tuple(a.shape)} and b has shape {tuple(b.shape)}: {a.shape[1]} != {b.shape[0]}"
        )
    dtypes = {x.dtype for x in (a, b, c) if x is not None}
    dtype: Any = reduce(torch.promote_types, dtypes)
    problem = Problem(1, a.shape[0], b.shape[1], a.shape[1], NUMPY_DTYPES[dtype])
    for name, x in (("c", c), ("out", out)):
        if x is not None and tuple(x.shape) != (problem.m, problem.n):
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}; the result has shape {(problem.m, problem.n)}"
            )
    if out is not None and out.dtype != dtype:
        raise TypeError(f"out has dtype {out.dtype}; the result has dtype {dtype}")
    check_scalars(problem.dtype, alpha=options.alpha, beta=options.beta)
    if options.beta != 0 and c is None:
        raise ValueError(f"beta = {options.beta} needs c")
    return problem


def _checked_placements(
    out: DTensor | None, options: MeshOptions, mesh: DeviceMesh
) -> Placements | None:
    """Placements that the caller wants of C, by `placements` or `out`; None for any.

    Raises PlanError: placements that are none, that the mesh does not have, or that
    differ from those of `out`.
    """
    placements: Any = options.placements
    if out is not None:
        if placements not in (None, out.placements):
            raise PlanError(
                f"placements={placements} differ from those of out, {out.placements}"
            )
        return out.placements  # checked with the operands
    if placements is None:
        return None
    is_sequence = isinstance(placements, tuple)
    if not is_sequence or not all(isinstance(p, Placement) for p in placements):
        raise PlanError(
            f"placements={placements!r}: expected a sequence of Shard(0), Shard(1) and Replicate()"
        )
    if len(placements) != mesh.ndim:
        raise PlanError(
            f"placements has {len(placements)} placements; the mesh has {mesh.ndim} dimensions"
        )
    _check_placements("placements", placements)
    return placements


def _may_add_partial_sums(method: Method, problem: Problem, scalars: _Scalars) -> bool:
    """True if partial sums give the bits of `gemm` on one device.

    With some alpha and beta, `gemm` rounds A B and the sum with C otherwise.
    """
    if not (problem.multiplications and scalars.reads_product and method.adds):
        return False
    return not scalars.is_complex if method.is_fixed else scalars.is_plain


def _check_operand(name: str, x: object, first: DTensor) -> None:
    """Raise an error unless x is a plain matrix on the mesh of the first operand.

    It is a TypeError, ValueError or PlanError.
    """
    if not isinstance(x, DTensor):
        raise TypeError(
            f"{name} is a {type(x).__name__}: expected a DTensor; DTensor.from_local makes one of a shard"
        )
    if x.device_mesh != first.device_mesh:
        raise ValueError(
            f"{name} lies on the mesh {x.device_mesh}, a on {first.device_mesh}"
        )
    if x is first:
        _check_mesh(name, x.device_mesh)
    if x.ndim != 2:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}; products on a mesh are of two-dimensional matrices"
        )
    if x.dtype not in _DTYPES:
        raise TypeError(
            f"{name} has dtype {x.dtype}; expected float32, float64, complex64 or complex128"
        )
    if private.in_forward_ad() and forward_ad.unpack_dual(x).tangent is not None:
        raise TypeError(
            f"{name} has a tangent (forward_ad), which would be lost: pass {name}.detach()"
        )
    _check_placements(name, x.placements)

    # The shard of this rank.
    local = x._local_tensor
    expected = _local_shape(x.shape, x.placements, x.device_mesh)
    if tuple(local.shape) != expected or local.dtype != x.dtype:
        raise ValueError(
            f"{name} is {tuple(x.shape)} of {x.dtype} as {x.placements}, so this rank should hold {expected}; it holds "
            f"{tuple(local.shape)} of {local.dtype}"
        )


def _check_mesh(name: str, mesh: DeviceMesh) -> None:
    """Raise an error unless products can be made on the mesh of an operand.

    It is a TypeError, ValueError or PlanError.
    """
    if mesh.ndim > 2:
        raise PlanError(
            f"{name} lies on a mesh of {mesh.ndim} dimensions; expected one or two, see DeviceMesh._flatten"
        )
    if mesh.get_coordinate() is None:
        raise ValueError(
            f"this rank is not on the mesh of {name}, {mesh}: only its ranks multiply"
        )
    if mesh.device_type not in ("cpu", "cuda"):
        raise TypeError(
            f"{name} lies on devices of type {mesh.device_type}; expected cpu or cuda"
        )
    for dim in range(mesh.ndim):
        if (mesh.mesh.diff(dim=dim) < 0).any():
            raise ValueError(
                f"{name} lies on {mesh} of ranks {mesh.mesh.tolist()}, which are not in ascending order: PyTorch sorts "
                "the ranks of a group, so its collectives would mix up the shards"
            )


def _check_placements(name: str, placements: Placements) -> None:
    """Raise PlanError unless each placement is Shard(0), Shard(1) or Replicate()."""
    for p in placements:
        if p.is_partial():
            raise PlanError(
                f"{name} is {p}: its values still have to be summed, which rounds, so the bits of the operand are not "
                "known; redistribute it first"
            )
        if not (type(p) is Replicate or (type(p) is Shard and p.dim in (0, 1))):
            raise PlanError(
                f"{name} is placed as {p}; expected Shard(0), Shard(1) or Replicate()"
            )


@dataclass(frozen=True)
class _LocalResult:
    """This rank's part of C, and how it was computed."""

    values: Tensor
    method: Method  # with the count on which the ranks agreed
    # the most that a pair of panels took; 0 if no report was requested
    num_products: int
    wire: str = ""  # how panels have travelled


def multiply(
    a: DTensor,
    b: DTensor,
    c: DTensor | None,
    out: DTensor | None,
    options: MeshOptions,
    *,
    return_report: bool,
) -> tuple[DTensor, Report | None]:
    """alpha A B + beta C in the placements that the caller wants, and its report."""
    start = time.perf_counter()
    call = call_of(a, b, c, out, options)
    plan = call.plans[0]
    options = options.with_numbers()

    # Operands in the dtype of the result; C only if it is read.
    dtype = TORCH_DTYPES[plan.problem.dtype]
    a = _in_dtype(a, dtype)
    b = _in_dtype(b, dtype)
    c = None if c is None or options.beta == 0 else _in_dtype(c, dtype)

    # Partial sums where the plan has them and the operands allow it, else panels.
    result: _LocalResult | None = None
    if options.alpha == 0 or plan.problem.k == 0:
        result = _without_product(c, plan, options, a)
    elif "k" in plan.layout.roles:
        result = _by_sums(a, b, c, out, plan, options)
    if result is None:
        plan = call.in_panels
        result = _by_panels(a, b, c, out, call, options, counts_products=return_report)

    value = _as_dtensor(result.values, call, plan.layout, out, a)
    if not return_report:
        return value, None
    is_final = options.alpha == 1 and c is None
    return value, _report(plan, result, time.perf_counter() - start, is_final)


def _in_dtype(x: DTensor, dtype: torch.dtype) -> DTensor:
    """x without its gradient, in a dtype; an operation of DTensors takes its time."""
    x = x.detach() if x.requires_grad else x
    return x if x.dtype == dtype else x.to(dtype)


def _by_sums(
    a: DTensor,
    b: DTensor,
    c: DTensor | None,
    out: DTensor | None,
    plan: MeshPlan,
    options: MeshOptions,
) -> _LocalResult | None:
    """This rank's part of C by partial sums over k.

    None if the operands do not allow it.
    """
    layout = plan.layout
    local_c = _local_part(c, layout)
    shape = _local_shape(layout.shape[:2], layout.own, a.device_mesh)
    values = _empty_result(a, b, local_c, out, layout, shape)
    sums = PartialSums(
        plan.method,
        plan.problem,
        layout,
        options.alpha,
        options.beta,
        options.workspace,
    )
    method = sums.write(a, b, local_c, values)
    if method is None:
        return None
    with_count = replace(method, accuracy=None)
    num_products = expected_planes(with_count, plan.problem, plan.target)
    return _LocalResult(values, method, num_products)


def _by_panels(
    a: DTensor,
    b: DTensor,
    c: DTensor | None,
    out: DTensor | None,
    call: MeshCall,
    options: MeshOptions,
    *,
    counts_products: bool,
) -> _LocalResult:
    """This rank's part of C by products of one operand and the panels of the other."""
    plan = call.in_panels
    layout = plan.layout
    limit = options.workspace
    mesh = a.device_mesh
    if call.moves is None:
        call.moves = moves_of(a, b, layout, limit)
    moves = call.moves
    local_c = _local_part(c, layout)

    def multiplied(wire: Wire | Arrived, method: Method) -> _LocalResult:
        # What this rank has no memory for, others still wait for.
        values, error = result_or_error(
            _empty_result, a, b, local_c, out, layout, moves.shape
        )
        products = LocalProducts(
            method,
            values,
            moves,
            options.alpha,
            options.beta,
            local_c,
            limit,
            counts_products,
            call.products.setdefault(method, KeptProducts()),
        )
        error = visit_pairs(wire, moves, products, products.begin, error)
        # A rank may raise an error that other ranks do not have.
        if limit is not None or not method.is_fixed:
            agree(mesh, error)
        elif error is not None:
            raise error
        wire_name = wire_of(moves, mesh, limit) if counts_products else ""
        return _LocalResult(values, method, products.num_products, wire_name)

    if not plan.method.waits:
        with travelling(a, b, moves, limit) as wire:
            return multiplied(wire, plan.method)

    # The count depends on the operands. With a workspace, panels are not kept for that
    # and travel again.
    with travelling(a, b, moves, limit) as wire:
        arrived = wire if limit is not None else Arrived(wire)
        method = _agree_on_method(plan, arrived, moves, limit, mesh)
        if limit is None:
            return multiplied(arrived, method)
    with travelling(a, b, moves, limit) as wire:
        return multiplied(wire, method)


def _agree_on_method(
    plan: MeshPlan,
    wire: Wire | Arrived,
    moves: Moves,
    workspace: int | None,
    mesh: DeviceMesh,
) -> Method:
    """The method for the largest error ratio of all pairs of all ranks."""
    largest_ratio = 0.0

    def note_ratio(pair: Pair) -> None:
        nonlocal largest_ratio
        limit = share(workspace, "products")
        ratio = error_ratio_of(*pair.operands, plan.problem, limit)
        largest_ratio = max(largest_ratio, ratio)

    error = visit_pairs(wire, moves, note_ratio)
    ratio_bits, has_error = largest(mesh, [bits_of(largest_ratio), error is not None])
    if has_error:
        agree(mesh, error)
    return method_for_ratio(plan.problem, plan.target, ratio_from(ratio_bits))


def _local_shape(
    shape: Sequence[int], placements: Placements, mesh: DeviceMesh
) -> tuple[int, int]:
    """Shape of this rank's part of a matrix with these placements."""
    coordinate = mesh.get_coordinate() or ()
    rows = extent(shape[0], 0, placements, mesh.shape, coordinate)
    cols = extent(shape[1], 1, placements, mesh.shape, coordinate)
    return rows.stop - rows.start, cols.stop - cols.start


def _local_part(c: DTensor | None, layout: Layout) -> Tensor | None:
    """This rank's part of C, in the placements in which the products leave C."""
    if c is None:
        return None
    if c.placements != layout.own:
        c = c.redistribute(placements=layout.own)
    return c.to_local()


def _empty_result(
    a: DTensor,
    b: DTensor,
    c: Tensor | None,
    out: DTensor | None,
    layout: Layout,
    shape: tuple[int, int],
) -> Tensor:
    """Memory for this rank's part of the result, of this shape.

    It is that of `out`, if its placements fit and no operand lies there.
    """
    local_a = a.to_local()
    if out is not None and out.placements == layout.own:
        target = out.to_local()
        operands = [local_a, b.to_local()] + ([] if c is None else [c])
        addresses = [x.untyped_storage().data_ptr() for x in operands]
        if target.untyped_storage().data_ptr() not in addresses:
            return target
    return local_a.new_empty(shape)


def _without_product(
    c: DTensor | None, plan: MeshPlan, options: MeshOptions, a: DTensor
) -> _LocalResult:
    """beta C, or zeros, as there is nothing to multiply."""
    layout = plan.layout
    local_a = a.to_local()
    local_c = _local_part(c, layout)
    m, n = _local_shape(layout.shape[:2], layout.own, a.device_mesh)
    values = gemm_of_numbers(
        local_a.new_empty((m, 0)),
        local_a.new_empty((0, n)),
        local_c,
        beta=0.0 if local_c is None else options.beta,
        accuracy=options.accuracy,
    )
    return _LocalResult(values, replace(plan.method, waits=False), 0)


def _as_dtensor(
    local: Tensor, call: MeshCall, layout: Layout, out: DTensor | None, a: DTensor
) -> DTensor:
    """The result in the placements that the caller wants; in `out` if it is given."""
    make = call.makers.get(layout.own)
    if make is None:
        make = private.maker_of_matrices(
            a.device_mesh, layout.own, layout.shape[:2], local.dtype
        )
        call.makers[layout.own] = make
    result = make(local)
    if layout.result != layout.own:
        result = result.redistribute(placements=layout.result)
    if out is None:
        return result
    target = out.to_local()
    source = result.to_local()
    if target.data_ptr() != source.data_ptr() or not target.numel():
        with torch.no_grad():
            target.copy_(source)
    return out


def _report(
    plan: MeshPlan, result: _LocalResult, seconds: float, is_final: bool
) -> Report:
    """The report of a product on a mesh, which is final if it is rounded no more."""
    _, engine = library_and_engine(result.values)
    method = result.method
    scheme = method.scheme
    rounds_once = scheme is not None and scheme.rounds_once
    is_correct = method.accuracy == "correct" or rounds_once
    bound = math.inf
    if is_correct:
        bound = 0.0
    elif plan.method.waits or method.accuracy is not None:
        bound = plan.target.r
    if not (is_correct or is_final):
        bound += 2.0 * plan.problem.fmt.u

    num_products = result.num_products
    if method.is_fixed:
        num_products = expected_planes(method, plan.problem, plan.target)
    reason = str(method)
    if plan.method.waits:
        reason += f", agreed by all ranks for {plan.target}"
    reason += f"; {plan.layout}"
    if result.wire:
        reason += f"; by {result.wire}"
    bits = CHOSEN
    if not plan.method.waits:
        bits = dependence(
            plan.problem, plan.target, scheme, scheme, sees_operands=False
        )
    decision = Decision(
        scheme=method.scheme,
        num_products=num_products,
        bound=bound,
        correct=is_correct,
        k_block=plan.problem.k,
        native=False,
        reason=reason,
        normwise=plan.target.normwise,
        dependence=bits,
    )
    return report_of(engine, decision, seconds=seconds)
