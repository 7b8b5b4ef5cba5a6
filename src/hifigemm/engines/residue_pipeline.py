"""Ozaki scheme II on a GPU: residues of both operands, INT8 products, reconstruction, in three launches for short k.

The functions bear the names of the plain ones that they replace, and return the same bits. Residues stay in the layout
of the kernels, in which rows are padded; arrays that are seen outside are views without the padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from hifigemm.engine import Engine, WholeProduct
from hifigemm.engines.device_array import DeviceArray, unwrap, wrap
from hifigemm.engines.host_copy import HostCopy, check_not_capturing, send
from hifigemm.engines.kernels import crt, native_gemm, residue_gemm, scaled_residues
from hifigemm.engines.kernels import required_bits as required_bits_kernel
from hifigemm.engines.kernels.error_ratio import RATIO_UNIT, error_ratio, error_ratio_bits
from hifigemm.engines.kernels.launch import empty, spoil_recording
from hifigemm.engines.outputs import combined, output_for
from hifigemm.exceptions import HopeError
from hifigemm.formats import Format
from hifigemm.numerics.bits import Array
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.numerics.estimates import MAGNITUDE_TERMS
from hifigemm.numerics.residues import ModuliSet, moduli_set
from hifigemm.numerics.scaling import Scale, norm_bits, required_bits, required_bits_of_vectors
from hifigemm.plan import Block, Plan, Split

__all__ = ["OVERRIDES", "check_ratio", "stages", "whole_product"]

Tensor = Any
Place = tuple[slice, ...]
"""Matrices of a stack first, rows or columns of them last; see `Block.places`."""
Residues = tuple[Tensor, Tensor]
"""Parts of an operand and the scale exponents of its vectors."""
_ROWS, _COLUMNS = 128, 256
_FEW_TERMS_FROM = 2**36
"""m n k of products that take so long that a part of a look saves more than the launch of a second one costs."""


def whole_product(plan: Plan) -> WholeProduct | None:
    """All of a plan with fast scaling that judges nothing; one whose count may turn out too small is one block."""
    if plan.scheme.name != "ozaki2" or not plan.fused or plan.certifies:
        return None
    if not (plan.gated or plan.hopeful):
        return partial(_whole, plan)
    if not plan.is_whole:
        return None
    return partial(_gated if plan.gated else _hopeful, plan)


def _whole(
    plan: Plan,
    a: Array,
    b: Array,
    shift: int,
    epilogue: Epilogue,
    splits: tuple[Split | None, Split | None],
    target: Array | None,
) -> Array:
    """Block by block; residues that the block before has made already are used again."""
    operands, (made, used, balances) = (unwrap(a), unwrap(b)), _most_moduli(plan)
    target, own = _target(plan, operands[0], target), _in_kernel(epilogue)
    kept: list[tuple[Place, Residues]] = []
    for block in plan.blocks():
        places, (x, y) = block.places(*operands), block.operands(*operands)
        ready = [None if split is None else _residues_from(split, at) for split, at in zip(splits, places, strict=True)]
        for i in range(len(kept)):
            if kept[i][0] == places[i]:
                ready[i] = kept[i][1]
        kept = []  # what is not used again makes room
        residues = _residues_of((x, y), made, balances, ready)
        c = None if own.c is None else unwrap(own.c)[block.entries]
        out = unwrap(target)[block.entries]
        first = [(_first(planes, made, used), scale) for planes, scale in residues]
        _entries_of((x, y), first, used, out, shift, own, c)
        if plan.outliers is not None:
            _outlier_entries(plan, block, (x, y), residues, out, shift, own, c)
        kept = list(zip(places, residues, strict=True))
        del ready, residues, first  # room for those of the next block
    return _applied(target, own, epilogue)


def _most_moduli(plan: Plan) -> tuple[ModuliSet, ModuliSet, tuple[int, int]]:
    """Of all rows and columns but the wide ones: the moduli that residues are made of, those used, the balances."""
    if plan.outliers is None:
        moduli = _moduli_of(plan)
        return moduli, moduli, (plan.balance, -plan.balance)
    wide = plan.outliers
    balances = wide.balance - wide.lowered, -wide.balance - wide.lowered
    return moduli_set(wide.shared, False), moduli_set(wide.num_moduli, False), balances


def _first(planes: Tensor, made: ModuliSet, used: ModuliSet) -> Tensor:
    """The residues for the moduli that are used, the first of those that were made."""
    return planes if used is made else planes[:, : len(used.moduli)]


def _entries_of(
    operands: tuple[Tensor, Tensor],
    residues: Sequence[Residues],
    moduli: ModuliSet,
    out: Tensor,
    shift: int,
    epilogue: Epilogue,
    c: Tensor,
    predicate: residue_gemm.Predicate | None = None,
) -> None:
    """Products of residues, none where the predicate does not hold, and what they stand for."""
    products = _multiply(residues[0][0], residues[1][0], moduli, predicate)
    _reconstruct(products, [scale for _, scale in residues], moduli, operands, out, shift, epilogue, c)


def _outlier_entries(
    plan: Plan,
    block: Block,
    operands: tuple[Tensor, Tensor],
    residues: Sequence[Residues],
    out: Tensor,
    shift: int,
    epilogue: Epilogue,
    c: Tensor,
) -> None:
    """Write the entries of the wide rows and columns of a block over; see `Outliers`.

    Those of wide rows in wide columns come last: they are wrong among those of either.
    """
    spoil_recording()  # what is gathered is no launch of ours
    wide: Any = plan.outliers
    (x, y), every, shared = operands, slice(None), moduli_set(wide.shared, False)
    inside = _inside(wide.rows, block.rows), _inside(wide.cols, block.cols)
    i, j = (torch.tensor(at, dtype=torch.int64, device=x.device) for at in inside)
    up = wide.balance + wide.lowered, -wide.balance + wide.lowered
    even = plan.balance, -plan.balance
    cases: list[tuple[Any, ...]] = [
        ((every, i, every), shared, up, [None, residues[1]]),
        ((every, every, j), shared, up, [residues[0], None]),
        ((every, i[:, None], j), _moduli_of(plan), even, [None, None]),
    ]
    for number, (where, moduli, balances, ready) in enumerate(cases):
        pair = x if number == 1 else x[:, i], y if number == 0 else y[:, :, j]
        values = x.new_empty((1, pair[0].shape[1], pair[1].shape[2]))
        if values.numel():
            made = _residues_of(pair, moduli, balances, ready)
            _entries_of(pair, made, moduli, values, shift, epilogue, None if c is None else c[where])
            out[where] = values
            del made  # room for the next


def _inside(vectors: tuple[int, ...], part: slice) -> list[int]:
    """Those of the vectors that lie in a part, counted from its first."""
    return [i - part.start for i in vectors if part.start <= i < part.stop]


def _hopeful(
    plan: Plan,
    a: Array,
    b: Array,
    shift: int,
    epilogue: Epilogue,
    splits: tuple[Split | None, Split | None],
    target: Array | None,
) -> Array:
    """Products that are made only where the plan's moduli suffice for the error ratio; else HopeError.

    Everything is put on its way, and the host waits for the ratio alone. Where the moduli do not suffice for it, the
    device makes no products, and what is written is no result.
    """
    check_not_capturing()
    target, own = _target(plan, unwrap(a), target), _in_kernel(epilogue)
    operands, moduli = (unwrap(a), unwrap(b)), _moduli_of(plan)
    planes, scales, sizes = scaled_residues.sized_residues(((operands[0], 2), (operands[1], 1)), moduli)
    bits = error_ratio_bits(sizes, _few_terms(plan))
    ratio = send(bits)
    del sizes  # room for the products
    residues = [(x, scale.exponent) for x, scale in zip(planes, scales, strict=True)]
    c = None if own.c is None else unwrap(own.c)
    _entries_of(operands, residues, moduli, unwrap(target), shift, own, c, (bits, 0, _most_bits(plan)))
    check_ratio(plan, ratio)
    return _applied(target, own, epilogue)


def _few_terms(plan: Plan) -> tuple[int, int] | None:
    """A part of the terms of large products, and the largest bits of a ratio; None where all are looked at at once.

    From half of the terms ratios come out twice as large; with phi = 0.5 real operands leave more than that, 1.5 bits
    at least, and a look is a product itself. Complex ones leave 1.0 to 1.1 bits, so that five eighths are looked at.
    """
    p = plan.problem
    few = -(-p.k * (5 if p.is_complex else 4) // 1024) * 128
    saves = few < min(-(-p.k // 128) * 128, MAGNITUDE_TERMS)
    return (few, _most_bits(plan)) if saves and p.multiplications >= _FEW_TERMS_FROM else None


def _target(plan: Plan, left: Tensor, target: Array | None) -> Array:
    p = plan.problem
    if target is not None:
        return target
    made: Array = wrap(torch.empty((p.batch, p.m, p.n), dtype=left.dtype, device=left.device))
    return made


def _in_kernel(epilogue: Epilogue) -> Epilogue:
    """What the reconstruction applies itself: moderate scalars."""
    return epilogue if epilogue.is_moderate else PLAIN


def _applied(target: Array, own: Epilogue, epilogue: Epilogue) -> Array:
    """The result after what the reconstruction left of the epilogue."""
    if own is PLAIN and epilogue is not PLAIN:
        epilogue.apply(target)
    return target


def _reconstruct(
    products: Tensor,
    scales: Sequence[Tensor],
    moduli: ModuliSet,
    operands: tuple[Tensor, Tensor],
    out: Tensor,
    shift: int,
    epilogue: Epilogue,
    c: Tensor,
) -> None:
    crt.reconstruct(
        products,
        (scales[0], scales[1]),
        moduli,
        out,
        shift=shift,
        alpha=epilogue.alpha.real,
        beta=epilogue.beta.real,
        c=c,
        operands=operands,
    )


def _gated(
    plan: Plan,
    a: Array,
    b: Array,
    shift: int,
    epilogue: Epilogue,
    splits: tuple[Split | None, Split | None],
    target: Array | None,
) -> Array:
    """By the plan's moduli where they suffice for the error ratio, else by FP64 sums; the host never learns which.

    The two conditions exclude each other, so exactly one of reconstruction and FP64 product writes.
    """
    left, right = unwrap(a), unwrap(b)
    moduli, most = _moduli_of(plan), _most_bits(plan)
    planes, scales, sizes = scaled_residues.sized_residues(((left, 2), (right, 1)), moduli)
    bits = error_ratio_bits(sizes)
    del sizes  # room for the products
    predicate = bits, 0, most
    products = _multiply(planes[0], planes[1], moduli, predicate)
    out = output_for(plan.problem, left.device, epilogue, target)
    crt.reconstruct(
        products,
        (scales[0].exponent, scales[1].exponent),
        moduli,
        out,
        shift=shift,
        operands=(left, right),
        predicate=predicate,
    )
    native_gemm.fp64_product(left, right, out, (bits, most + 1, residue_gemm.LARGEST), shift)
    return combined(out, plan.problem, epilogue, target)


def _moduli_of(plan: Plan) -> ModuliSet:
    scheme: Any = plan.scheme
    return moduli_set(scheme.count, plan.problem.is_complex)


def _most_bits(plan: Plan) -> int:
    """The bits of the largest error ratio, in units of RATIO_UNIT, for which moduli keep the target; -1 for none.

    No target is kept where |A||B| may be 0, be it as large as it likes.
    """
    largest = min(plan.scheme.largest_ratio(plan) / RATIO_UNIT, float(np.finfo(np.float64).max))
    return int(np.float64(largest).view(np.int64)) if largest >= 0 else -1


def check_ratio(plan: Plan, ratio: HostCopy) -> None:
    """Wait for the error ratio and raise HopeError where the plan's moduli do not suffice for it."""
    (found,) = ratio.wait(np.float64)
    seen = found * RATIO_UNIT
    if not plan.scheme.suffices(plan, seen):
        raise HopeError(seen)


def _residues_from(split: Split, place: Place) -> Residues:
    """Those of a split for some rows or columns."""
    split = split.take(place[0], place[-1])
    scale = _exponents(split.unit, split.vectors)
    if "marked" in split.facts:
        scale.masked_fill_(unwrap(split.facts["marked"]).flatten(1), scaled_residues.NOT_FINITE)
    return _padded(unwrap(split.planes)), scale


def _residues_of(
    operands: tuple[Tensor, Tensor],
    moduli: ModuliSet,
    balances: tuple[int, int],
    ready: Sequence[Residues | None],
) -> list[Residues]:
    """Residues of both operands, in one launch for those that are not ready."""
    missing = [i for i in range(2) if ready[i] is None]
    made: Any = ((), ())
    if missing:
        sides = tuple((operands[i], 2 - i) for i in missing)
        made = scaled_residues.scaled_residues(sides, moduli, balances=tuple(balances[i] for i in missing))
    fresh = iter([(planes, scale.exponent) for planes, scale in zip(*made, strict=True)])
    return [next(fresh) if each is None else each for each in ready]


def _padded(planes: Tensor) -> Tensor:
    """Residues (batch, L, vectors, k) with the zeros behind k that their rows are padded with, up to the next row."""
    return planes.as_strided((*planes.shape[:3], planes.stride(2)), planes.stride())


def _multiply(
    left: Tensor, right: Tensor, moduli: ModuliSet, predicate: residue_gemm.Predicate | None = None
) -> Tensor:
    """Residues of the products of padded planes: int8 (batch, L, m_pad, n_pad), undefined without the predicate."""
    shape = max(len(left), len(right)), left.shape[1], *_padded_shape(left.shape[2], right.shape[2])
    products = empty(shape, torch.int8, left.device)
    residue_gemm.multiply_residues(
        left, right, _constants(moduli, left.shape[1], left.device), products, predicate=predicate
    )
    return products


def _padded_shape(m: int, n: int) -> tuple[int, int]:
    return -(-m // _ROWS) * _ROWS, -(-n // _COLUMNS) * _COLUMNS


def _constants(moduli: ModuliSet, num_planes: int, device: Any) -> Tensor:
    """What the product kernel knows of the moduli of all planes."""
    return residue_gemm.residue_constants(moduli.of_planes(num_planes), device)


def _norm_scale(x: Array, axis: int, moduli: ModuliSet, balance: int, block_entries: int) -> Scale:
    """numerics.scaling.norm_scale; vectors with an Inf or NaN are marked by the exponent NOT_FINITE."""
    (found,) = scaled_residues.norm_scales(((unwrap(x), axis),), moduli, (balance, balance))
    exponent, nearest = (wrap(y.to(kind).unsqueeze(axis)) for y, kind in zip(found, _SCALE_DTYPES, strict=True))
    return Scale(exponent, nearest, axis, norm_bits(moduli, balance))


_SCALE_DTYPES = (torch.int64, torch.bool)


def _scaled_residues(x: Array, scale: Scale, moduli: ModuliSet, block_entries: int) -> Array:
    """schemes.residue_products.scaled_residues, rows padded behind the view that is returned."""
    tensor, axis = unwrap(x), scale.axis
    exponent, nearest = (unwrap(y).flatten(1).to(torch.int32) for y in (scale.exponent, scale.nearest))
    given = scaled_residues.VectorScale(exponent, nearest)
    (planes,), _ = scaled_residues.scaled_residues(((tensor, axis),), moduli, (given,), bits=scale.bits)
    return wrap(planes[..., : tensor.shape[axis]])


def _multiply_planes(left: Array, right: Array, moduli: ModuliSet, engine: Engine) -> Array:
    """schemes.residue_products.multiply_planes, rows padded behind the view that is returned."""
    x, y = _padded(unwrap(left)), _padded(unwrap(right))
    return wrap(_multiply(x, y, moduli)[:, :, : x.shape[2], : y.shape[2]])


def _rounded_integers(
    products: Array, unit_left: Array, unit_right: Array, shift: int, moduli: ModuliSet, fmt: Format, block_entries: int
) -> Array:
    """schemes.residue_products.rounded_integers."""
    x = unwrap(products)
    batch, count, m, n = x.shape
    if x.stride(3) != 1 or x.stride(2) % _COLUMNS:
        padded = x.new_empty((batch, count, m, _padded_shape(m, n)[1]))
        padded[..., :n] = x
        x = padded
    else:
        x = x.as_strided((batch, count, m, x.stride(2)), x.stride())
    scales = _exponents(unit_left, m), _exponents(unit_right, n)
    out = torch.empty((batch, m, n), dtype=_result_dtype(fmt, count > len(moduli.moduli)), device=x.device)
    crt.reconstruct(x, scales, moduli, out, shift=shift)
    return wrap(torch.view_as_real(out).flatten(2) if out.is_complex() else out)


def _result_dtype(fmt: Format, is_complex: bool) -> torch.dtype:
    if fmt.t == 24:
        return torch.complex64 if is_complex else torch.float32
    return torch.complex128 if is_complex else torch.float64


def _exponents(unit: Array, vectors: int) -> Tensor:
    """Scale exponents from the units of integers; those of the components of a complex entry are equal."""
    return -unwrap(unit).flatten(1)[:, :: unit.size // (len(unit) * vectors)].to(torch.int32)


def _required_bits(a: Array, b: Array, most: int, block_entries: int) -> tuple[int, int] | None:
    """numerics.scaling.required_bits; operands that stand in for those nobody reads lie on the host."""
    if not (isinstance(a, DeviceArray) and isinstance(b, DeviceArray)):
        return required_bits(a, b, most, block_entries)
    check_not_capturing()
    found = send(required_bits_kernel.launch(unwrap(a), unwrap(b), most)).wait(np.int32)
    return required_bits_kernel.required_bits_from(found, most)


def _error_ratio(a: Array, b: Array, engine: Engine, block_entries: int, entries: int) -> float:
    """schemes.certify.error_ratio."""
    return error_ratio(unwrap(a), unwrap(b), moduli_set(2, a.dtype.kind == "c"))


def _required_bits_of_vectors(a: Array, b: Array, block_entries: int) -> tuple[Array, Array]:
    """numerics.scaling.required_bits_of_vectors, on the host."""
    if not (isinstance(a, DeviceArray) and isinstance(b, DeviceArray)):
        return required_bits_of_vectors(a, b, block_entries)
    check_not_capturing()
    found = required_bits_kernel.launch_each(unwrap(a), unwrap(b)).cpu().numpy()
    return required_bits_kernel.required_bits_of_vectors_from(found, a.shape[1], b.shape[2])


OVERRIDES: dict[str, Callable[..., Any]] = {
    "norm_scale": _norm_scale,
    "scaled_residues": _scaled_residues,
    "multiply_planes": _multiply_planes,
    "rounded_integers": _rounded_integers,
    "error_ratio": _error_ratio,
    "required_bits": _required_bits,
    "required_bits_of_vectors": _required_bits_of_vectors,
}
"""Fused versions by the name of the plain function."""


def stages(plan: Plan, a: Array, b: Array) -> Sequence[tuple[str, Callable[[], object], float, float]]:
    """The launches of a whole product: name, call, bytes that must move, operations of the INT8 unit.

    Those for rows and columns that are set apart are not among them.
    """
    p, left, right = plan.problem, unwrap(a), unwrap(b)
    (made, moduli, balances), size, width = _most_moduli(plan), p.dtype.itemsize, 2 if p.is_complex else 1
    operands, result = p.batch * (p.m * p.k + p.k * p.n), p.batch * p.m * p.n
    work, sides = 2.0 * p.multiplications, ((left, 2), (right, 1))
    whole, scales = scaled_residues.scaled_residues(sides, made, balances=balances)
    planes = [_first(x, made, moduli) for x in whole]
    products, count, planes = _multiply(planes[0], planes[1], moduli), planes[0].shape[1], whole[0].shape[1]
    out = torch.empty((p.batch, p.m, p.n), dtype=left.dtype, device=left.device)
    constants = _constants(moduli, count, left.device)
    exponents = scales[0].exponent, scales[1].exponent
    found: list[tuple[str, Callable[[], object], float, float]] = []
    most = plan.scheme.most_required_bits(plan)
    if most is not None:
        look = (
            partial(required_bits_kernel.launch, left, right, most)
            if plan.outliers is None
            else partial(required_bits_kernel.launch_each, left, right)
        )
        found.append(("look at bits", look, size * operands, 0.0))
    if plan.hopeful:
        sizes = scaled_residues.sized_residues(sides, moduli)[2]
        moved = (size + planes + width) * operands
        found.append(
            ("scaling, residues, magnitudes", lambda: scaled_residues.sized_residues(sides, moduli), moved, 0.0)
        )
        few = _few_terms(plan)
        share = 1.0 if few is None else min(few[0] / p.k, 1.0)
        looked = share * width * operands, share * width**2 * work
        found.append(("look at magnitudes", lambda: error_ratio_bits(sizes, few), *looked))
    else:
        run = partial(scaled_residues.scaled_residues, sides, made, balances=balances)
        found.append(("scaling and residues", run, (size + planes) * operands, 0.0))
    return [
        *found,
        (
            "INT8 products",
            lambda: residue_gemm.multiply_residues(planes[0], planes[1], constants, products),
            count * (operands + result),
            work * count,
        ),
        (
            "reconstruction",
            lambda: crt.reconstruct(products, exponents, moduli, out, operands=(left, right)),
            (size + count) * result,
            0.0,
        ),
    ]
