"""matmul, gemm and make_plan of DTensors, and their derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.placement_types import Placement

from hifigemm.base.transforms import opaque
from hifigemm.differentiable import torch_private as private
from hifigemm.distributed.products import (
    MeshOptions,
    MeshPlan,
    multiply,
    plan_with_wire,
)
from hifigemm.model.accuracy import Accuracy
from hifigemm.numerics.subnormals import ieee_arithmetic
from hifigemm.schemes import Scheme


@opaque
def matmul(
    a: DTensor,
    b: DTensor,
    *,
    accuracy: Accuracy = None,
    scheme: str | Scheme = "auto",
    out: DTensor | None = None,
    placements: Sequence[Placement] | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """A B of matrices on a mesh of processes, with the same bits for every mesh and
    layout.

    All ranks of the mesh call it with the same options. If one rank fails, all ranks
    raise an error before anything is sent.

    Parameters
    ----------
    a, b : DTensor, shapes (m, k) and (k, n)
        float32, float64, complex64 or complex128, on one mesh of one or two dimensions,
        with placements `Shard` and `Replicate`; shards may be uneven or empty. If your
        program has shards but no DTensors, use ``DTensor.from_local``.
    accuracy : None, float, "fp32", "fp64", "correct" or Relative
        As for `hifigemm.matmul`. "correct" and `Relative` round every entry correctly.
        For all others the ranks agree on a number of moduli, by the largest error ratio
        of the whole product, as one GPU does; if no number suffices, entries are
        rounded correctly. The library never takes the native product, because its bits
        depend on shapes.
    scheme : "auto", ``Ozaki2(num_moduli, scaling="fast")`` or ``Ozaki1(product, num_slices)``
        An explicit count gives the bits of `hifigemm.matmul` with that scheme.
    out : DTensor, optional
        Receives the result, in its placements; may be an operand.
    placements : sequence of Shard and Replicate, optional
        The placements of the result. None leaves it where the products put it, see
        `make_plan`.
    workspace : int, optional
        Limit in bytes for the panels, residues and products of each rank; a product may
        take half of it. Operands, the result and data that travel as a whole do not
        count, see `MeshPlan.memory`. The limit changes no bit.
    return_report : bool
        Return (result, Report); ``report.reason`` has the layout, the bytes on the wire
        and the seconds of the model.

    Returns
    -------
    DTensor, or (DTensor, Report)

    Raises
    ------
    PlanError
        Placements such as `Partial`, schemes whose bits depend on the mesh, unknown
        options. If another rank failed: its error, with the number of the rank.
    AccuracyError
        The scheme that you named does not keep the accuracy.
    TypeError, ValueError
        Dtypes, shapes or meshes do not fit.

    Examples
    --------
    >>> from torch.distributed.tensor import Shard, distribute_tensor  # doctest: +SKIP
    >>> a = distribute_tensor(x, mesh, [Shard(0)])  # doctest: +SKIP
    >>> b = distribute_tensor(y, mesh, [Shard(0)])  # doctest: +SKIP
    >>> c = hifigemm.distributed.matmul(a, b, accuracy="correct")  # doctest: +SKIP
    """
    options = MeshOptions(accuracy, scheme, _tuple(placements), workspace)
    return _product(a, b, None, out, options, return_report)


@opaque
def gemm(
    a: DTensor,
    b: DTensor,
    c: DTensor | None = None,
    *,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    accuracy: Accuracy = None,
    scheme: str | Scheme = "auto",
    out: DTensor | None = None,
    placements: Sequence[Placement] | None = None,
    workspace: int | None = None,
    return_report: bool = False,
) -> Any:
    """alpha A B + beta C with the bits of `hifigemm.gemm`.

    Transposes of DTensors are views.

    Parameters
    ----------
    a, b, accuracy, scheme, out, placements, workspace, return_report
        As for `matmul`.
    c : DTensor, shape (m, n), optional
        Not read when beta is 0.
    alpha, beta : scalar
        As for `hifigemm.gemm`. alpha = 0 does not read A and B.

    Returns
    -------
    DTensor, or (DTensor, Report)

    Examples
    --------
    >>> residual = hifigemm.distributed.gemm(
    ...     a, x, b, alpha=-1.0, beta=1.0, accuracy="correct"
    ... )  # doctest: +SKIP
    """
    options = MeshOptions(accuracy, scheme, _tuple(placements), workspace, alpha, beta)
    return _product(a, b, c, out, options, return_report)


@opaque
def make_plan(
    a: DTensor,
    b: DTensor,
    *,
    accuracy: Accuracy = None,
    scheme: str | Scheme = "auto",
    placements: Sequence[Placement] | None = None,
    workspace: int | None = None,
) -> MeshPlan:
    """The plan of `matmul` for these operands; all ranks of the mesh call it.

    Parameters
    ----------
    a, b, accuracy, scheme, placements, workspace
        As for `matmul`. The shards may be on the device "meta".

    Returns
    -------
    MeshPlan
        ``print(plan)`` shows the part of each rank, the bytes that it receives and
        holds, and the seconds of the model.

    Examples
    --------
    >>> print(hifigemm.distributed.make_plan(a, b))  # doctest: +SKIP
    """
    options = MeshOptions(accuracy, scheme, _tuple(placements), workspace)
    return plan_with_wire(a, b, options)


def _tuple(placements: Sequence[Placement] | None) -> tuple[Placement, ...] | None:
    """A sequence of placements as a tuple; anything else as it is."""
    return tuple(placements) if isinstance(placements, Sequence) else placements


@opaque
def _product(
    a: DTensor,
    b: DTensor,
    c: DTensor | None,
    out: DTensor | None,
    options: MeshOptions,
    return_report: bool,
) -> Any:
    """alpha A B + beta C, differentiable if an operand requires a gradient."""
    tensors = [x for x in (a, b, c, out) if isinstance(x, torch.Tensor)]
    is_tracked = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if is_tracked or private.in_functorch():
        if out is not None or return_report:
            raise TypeError(
                "an operand requires a gradient, which `out` and reports do not have: use torch.no_grad()"
            )
        return _Differentiable.apply(a, b, c, options)
    with torch.no_grad(), ieee_arithmetic():
        result, report = multiply(a, b, c, out, options, return_report=return_report)
    return (result, report) if return_report else result


class _Differentiable(torch.autograd.Function):
    """alpha A B + beta C, with products on the mesh as derivatives.

    They have the same options. It has no rule for tangents: DTensor has no operators that make them.
    """

    @staticmethod
    def forward(
        a: DTensor, b: DTensor, c: DTensor | None, options: MeshOptions
    ) -> DTensor:
        if options.of_gradients:
            a = without_partial(a)
            b = without_partial(b)
        with ieee_arithmetic():
            result, _ = multiply(a, b, c, None, options, return_report=False)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: DTensor) -> None:
        a, b, c, ctx.options = inputs
        ctx.save_for_backward(a, b)
        ctx.placements_and_dtype_of_c = None if c is None else (_placements(c), c.dtype)

    @staticmethod
    def backward(
        ctx: Any, gradient: DTensor
    ) -> tuple[DTensor | None, DTensor | None, DTensor | None, None]:
        a, b = ctx.saved_tensors
        needs_da, needs_db, needs_dc, _ = ctx.needs_input_grad
        options = ctx.options.with_numbers()

        def product(x: DTensor, y: DTensor, like: DTensor) -> DTensor:
            """conj(alpha) x y, placed as `like` is and in its dtype."""
            product_options = replace(
                options,
                placements=_placements(like),
                alpha=options.alpha.conjugate(),
                beta=0.0,
                of_gradients=True,
            )
            return _product(x, y, None, None, product_options, False).to(like.dtype)

        da = product(gradient, _adjoint(b), a) if needs_da else None
        db = product(_adjoint(a), gradient, b) if needs_db else None
        dc = None
        if needs_dc and ctx.placements_and_dtype_of_c is not None:
            placements, dtype = ctx.placements_and_dtype_of_c
            dc = gradient * options.beta.conjugate()
            # Inside a transform of torch.func it keeps its placements.
            if isinstance(dc, DTensor):
                dc = dc.redistribute(placements=placements)
            dc = dc.to(dtype)
        return da, db, dc, None


def _placements(x: DTensor) -> tuple[Placement, ...]:
    """Placements of x without pending sums.

    In a transform of torch.func they are those of the tensor for which x stands.
    """
    placements = private.innermost(x).placements
    return tuple(Replicate() if p.is_partial() else p for p in placements)


def without_partial(x: DTensor) -> DTensor:
    """x without pending sums, which PyTorch adds up in the dtype of x."""
    if not any(p.is_partial() for p in x.placements):
        return x
    return x.redistribute(placements=_placements(x))


def _adjoint(x: DTensor) -> Any:
    """The conjugate transpose."""
    return x.transpose(0, 1).conj() if x.is_complex() else x.transpose(0, 1)
