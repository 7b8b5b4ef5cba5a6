"""Ozaki scheme II on a GPU: residues of both operands, INT8 products, reconstruction, in three launches for short k.

The functions bear the names of the plain ones that they replace, and return the same bits. Residues stay in the layout
of the kernels, in which rows are padded; arrays that are seen outside are views without the padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from hifigemm.engine import Engine, WholeProduct
from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.engines.kernels import int8_product, reconstruction, vectors
from hifigemm.engines.kernels.launch import empty
from hifigemm.engines.kernels.looks import error_ratio, ratio_of
from hifigemm.exceptions import HopeError, PlanError
from hifigemm.formats import Format
from hifigemm.numerics.bits import Array
from hifigemm.numerics.epilogue import Epilogue
from hifigemm.numerics.residues import ModuliSet, moduli_set
from hifigemm.numerics.scaling import Scale, norm_bits
from hifigemm.plan import Plan, Split

__all__ = ["OVERRIDES", "stages", "whole_product"]

Tensor = Any
_PITCH = 16
_ROWS, _COLUMNS = 128, 256


def whole_product(plan: Plan) -> WholeProduct | None:
    """All of a plan with fast scaling that judges nothing and is one block."""
    p = plan.problem
    if plan.scheme.name != "ozaki2" or not plan.fused or plan.judged or p.is_complex:
        return None
    return partial(_whole, plan) if plan.block_shape == (p.batch, p.m, p.n) else None


def _whole(
    plan: Plan,
    a: Array,
    b: Array,
    shift: int,
    epilogue: Epilogue,
    splits: tuple[Split | None, Split | None],
    target: Array | None,
) -> Array:
    left, right = unwrap(a), unwrap(b)
    moduli = moduli_set(plan.num_products, False)
    balances = plan.balance, -plan.balance
    if plan.hopeful and torch.cuda.is_current_stream_capturing():
        raise PlanError("while a graph is captured, a count cannot come from the operands: give num_moduli")
    parts: Sequence[Tensor]
    ratio: Tensor = None
    if plan.hopeful:
        parts, found, sizes = vectors.sized_residues(((left, 2), (right, 1)), moduli, balances)
        scales, ratio = [scale.exponent for scale in found], ratio_of(sizes)
    else:
        parts, scales = _residues_of(left, right, moduli, balances, splits)
    products = _multiply(parts[0], parts[1], moduli)
    p = plan.problem
    if target is None:
        target = wrap(torch.empty((p.batch, p.m, p.n), dtype=left.dtype, device=left.device))
    c = None if epilogue.c is None else unwrap(epilogue.c.astype(a.dtype, copy=False))
    reconstruction.reconstruct(
        products,
        (scales[0], scales[1]),
        moduli,
        unwrap(target),
        shift=shift,
        alpha=epilogue.alpha.real,
        beta=epilogue.beta.real,
        c=c,
        operands=(left, right),
    )
    # Everything is on its way; only now the host waits for what the operands told.
    if ratio is not None and not plan.scheme.suffices(plan, seen := float(ratio)):
        raise HopeError(seen)
    return target


def _residues_of(
    left: Tensor,
    right: Tensor,
    moduli: ModuliSet,
    balances: tuple[int, int],
    splits: tuple[Split | None, Split | None],
) -> tuple[Sequence[Tensor], list[Tensor]]:
    """Parts and scale exponents of both operands, from their splits where they are at hand."""
    parts: list[Tensor] = [None, None]
    scales: list[Tensor] = [None, None]
    missing = []
    for i, (x, split) in enumerate(zip((left, right), splits, strict=True)):
        if split is None:
            missing.append((i, (x, 2 - i), balances[i]))
        else:
            parts[i], scales[i] = _padded(unwrap(split.parts)), -unwrap(split.unit).to(torch.int32).flatten(1)
            if "marked" in split.facts:
                scales[i].masked_fill_(unwrap(split.facts["marked"]).flatten(1), vectors.NOT_FINITE)
    if missing:
        places, operands, own = zip(*missing, strict=True)
        made, exponents = vectors.scaled_residues(operands, moduli, balances=own)
        for i, part, scale in zip(places, made, exponents, strict=True):
            parts[i], scales[i] = part, scale.exponent
    return parts, scales


def _padded(parts: Tensor) -> Tensor:
    """Residues (batch, L, vectors, k) with the zeros behind k that their rows are padded with."""
    return parts.as_strided((*parts.shape[:3], -(-parts.shape[3] // _PITCH) * _PITCH), parts.stride())


def _multiply(left: Tensor, right: Tensor, moduli: ModuliSet) -> Tensor:
    """Residues of the products of padded parts: int8 (batch, L, m_pad, n_pad)."""
    shape = max(len(left), len(right)), left.shape[1], *_padded_shape(left.shape[2], right.shape[2])
    products = empty(shape, torch.int8, left.device)
    int8_product.multiply_residues(left, right, _constants(moduli, left.shape[1], left.device), products)
    return products


def _padded_shape(m: int, n: int) -> tuple[int, int]:
    return -(-m // _ROWS) * _ROWS, -(-n // _COLUMNS) * _COLUMNS


def _constants(moduli: ModuliSet, num_parts: int, device: Any) -> Tensor:
    """What the product kernel knows of the moduli of all parts."""
    return int8_product.residue_constants(moduli.of_parts(num_parts), device)


def _norm_scale(x: Array, axis: int, moduli: ModuliSet, balance: int, part: int) -> Scale:
    """numerics.scaling.norm_scale; vectors with an Inf or NaN are marked by the exponent NOT_FINITE."""
    (found,) = vectors.norm_scales(((unwrap(x), axis),), moduli, (balance, balance))
    exponent, nearest = (wrap(y.to(kind).unsqueeze(axis)) for y, kind in zip(found, _SCALE_DTYPES, strict=True))
    return Scale(exponent, nearest, axis, norm_bits(moduli, balance))


_SCALE_DTYPES = (torch.int64, torch.bool)


def _scaled_residues(x: Array, scale: Scale, moduli: ModuliSet, part: int) -> Array:
    """schemes.residue_products.scaled_residues, rows padded behind the view that is returned."""
    tensor, axis = unwrap(x), scale.axis
    exponent, nearest = (unwrap(y).flatten(1).to(torch.int32) for y in (scale.exponent, scale.nearest))
    given = vectors.VectorScale(exponent, nearest)
    (parts,), _ = vectors.scaled_residues(((tensor, axis),), moduli, (given,), bits=scale.bits)
    return wrap(parts[..., : tensor.shape[axis]])


def _multiply_parts(left: Array, right: Array, moduli: ModuliSet, engine: Engine) -> Array:
    """schemes.residue_products.multiply_parts, rows padded behind the view that is returned."""
    x, y = _padded(unwrap(left)), _padded(unwrap(right))
    return wrap(_multiply(x, y, moduli)[:, :, : x.shape[2], : y.shape[2]])


def _rounded_integers(
    residues: Array, unit_left: Array, unit_right: Array, shift: int, moduli: ModuliSet, fmt: Format, part: int
) -> Array:
    """schemes.residue_products.rounded_integers."""
    products = unwrap(residues)
    batch, count, m, n = products.shape
    if products.stride(3) != 1 or products.stride(2) % _COLUMNS:
        padded = products.new_empty((batch, count, m, _padded_shape(m, n)[1]))
        padded[..., :n] = products
        products = padded
    else:
        products = products.as_strided((batch, count, m, products.stride(2)), products.stride())
    scales = [-unwrap(unit).flatten(1).to(torch.int32) for unit in (unit_left, unit_right)]
    out = torch.empty((batch, m, n), dtype=torch.float32 if fmt.t == 24 else torch.float64, device=products.device)
    reconstruction.reconstruct(products, (scales[0], scales[1]), moduli, out, shift=shift)
    return wrap(out)


def _error_ratio(a: Array, b: Array, engine: Engine, part: int, entries: int) -> float:
    """schemes.promise.error_ratio of real operands."""
    return error_ratio(unwrap(a), unwrap(b), moduli_set(2, False))


OVERRIDES: dict[str, Callable[..., Any]] = {
    "norm_scale": _norm_scale,
    "scaled_residues": _scaled_residues,
    "multiply_parts": _multiply_parts,
    "rounded_integers": _rounded_integers,
    "error_ratio": _error_ratio,
}
"""Fused versions by the name of the plain function."""


def stages(plan: Plan, a: Array, b: Array) -> Sequence[tuple[str, Callable[[], object], float, float]]:
    """The launches of a whole product: name, call, bytes that must move, operations of the plan's product."""
    p, count, left, right = plan.problem, plan.num_products, unwrap(a), unwrap(b)
    moduli, size = moduli_set(count, False), p.dtype.itemsize
    operands, result = p.batch * (p.m * p.k + p.k * p.n), p.batch * p.m * p.n
    parts, scales = vectors.scaled_residues(((left, 2), (right, 1)), moduli)
    products = _multiply(parts[0], parts[1], moduli)
    out = torch.empty((p.batch, p.m, p.n), dtype=left.dtype, device=left.device)
    constants = _constants(moduli, count, left.device)
    exponents = scales[0].exponent, scales[1].exponent
    return [
        (
            "scaling and residues",
            lambda: vectors.scaled_residues(((left, 2), (right, 1)), moduli),
            (size + count) * operands,
            0.0,
        ),
        (
            "INT8 products",
            lambda: int8_product.multiply_residues(parts[0], parts[1], constants, products),
            count * (operands + result),
            2.0 * p.batch * p.m * p.n * p.k * count,
        ),
        (
            "reconstruction",
            lambda: reconstruction.reconstruct(products, exponents, moduli, out, operands=(left, right)),
            (size + count) * result,
            0.0,
        ),
    ]
