"""Kernels that replace plain functions, with the same bits, for plans that are
carried out step by step on a GPU.

Residues stay in the layout of the kernels, in which rows are padded; arrays that are
seen outside are views without the padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hifigemm.base.formats import FP32, Format
from hifigemm.engines.cuda.ozaki2 import padded, padded_shape, products_of
from hifigemm.engines.cuda.required_bits import (
    inner_inspection_of,
    required_bits_of,
)
from hifigemm.engines.cuda.slice_counts import num_slices_of
from hifigemm.engines.device_array import DeviceArray, check_not_capturing, unwrap, wrap
from hifigemm.kernels.endings.crt import crt as crt_kernel
from hifigemm.kernels.endings.mirror import mirror as mirror_kernel
from hifigemm.kernels.endings.rounding import Targets
from hifigemm.kernels.endings.scalar_sums import (
    rounded_sum_of_pair as rounded_sum_of_pair_kernel,
)
from hifigemm.kernels.products import error_ratio as error_ratio_kernel
from hifigemm.kernels.runtime.launch import scalar
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.kernels.sums.rounded_sums import rounded_sums as rounded_sums_kernel
from hifigemm.kernels.vectors import block_norms as block_norms_kernel
from hifigemm.kernels.vectors import inner_scaling as inner_scaling_kernel
from hifigemm.kernels.vectors import required_bits as required_bits_kernel
from hifigemm.kernels.vectors.scaled_residues import (
    VectorScale,
    norm_scales,
)
from hifigemm.kernels.vectors.scaled_residues import (
    scaled_residues as scaled_residues_kernel,
)
from hifigemm.numerics.bits import Array, real_components
from hifigemm.numerics.blocking import product_shape
from hifigemm.numerics.error_ratio import error_ratio
from hifigemm.numerics.estimates import published_num_slices
from hifigemm.numerics.inner_scaling import (
    WIDE_GAP,
    inner_exponents,
    inner_required_bits,
    sampled_gap,
)
from hifigemm.numerics.integer_sums import Rounding
from hifigemm.numerics.residue_products import (
    ExactProduct,
    crt,
    residue_gemm,
    scaled_residues,
)
from hifigemm.numerics.residues import ModuliSet, moduli_set
from hifigemm.numerics.rounded_sums import Addend, rounded_sums
from hifigemm.numerics.scalar_sums import lost_bits, rounded_sum_of_pair
from hifigemm.numerics.scaling import (
    Scale,
    block_norms,
    lowest_bits,
    norm_bits,
    norm_scale,
    required_bits,
    required_bits_of_vectors,
)
from hifigemm.numerics.symmetric import mirror
from hifigemm.numerics.three_words import CertifiedValues


def _norm_scale(
    x: Array, axis: int, moduli: ModuliSet, balance: int, block_entries: int
) -> Scale:
    """numerics.scaling.norm_scale; vectors with an Inf or NaN are marked by the
    exponent NOT_FINITE.
    """
    (found,) = run_recorded(
        norm_scales, ((unwrap(x), axis),), moduli, (balance, balance)
    )
    exponent, nearest = (
        wrap(y.to(kind).unsqueeze(axis))
        for y, kind in zip(found, _SCALE_DTYPES, strict=True)
    )
    return Scale(exponent, nearest, axis, norm_bits(moduli, balance))


_SCALE_DTYPES = (torch.int64, torch.bool)


def _block_norms(x: Array, axis: int, block_entries: int) -> tuple[Array, Array]:
    """numerics.scaling.block_norms of a stack of one."""
    sums, exponents = block_norms_kernel.block_norms(unwrap(x), axis)
    return wrap(sums), wrap(exponents)


def _lowest_bits(x: Array, axis: int, block_entries: int) -> Array:
    """numerics.scaling.lowest_bits of a stack of one; Inf and NaN count as zeros."""
    return wrap(block_norms_kernel.lowest_bits(unwrap(x), axis))


def _scaled_residues(
    x: Array, scale: Scale, moduli: ModuliSet, block_entries: int
) -> Array:
    """numerics.residue_products.scaled_residues, rows padded behind the view that is
    returned.
    """
    tensor, axis = unwrap(x), scale.axis
    shape = tensor.shape[0], tensor.shape[3 - axis]
    exponent, nearest = (
        unwrap(y).flatten(1).to(torch.int32).expand(shape).contiguous()
        for y in (scale.exponent, scale.nearest)
    )
    (planes,), _ = run_recorded(
        scaled_residues_kernel,
        ((tensor, axis),),
        moduli,
        (VectorScale(exponent, nearest),),
        bits=scale.bits,
    )
    return wrap(planes[..., : tensor.shape[axis]])


def _residue_gemm(
    left: Array, right: Array, moduli: ModuliSet, exact: ExactProduct
) -> Array:
    """numerics.residue_products.residue_gemm, rows padded behind the view that is
    returned.
    """
    x, y = padded(unwrap(left)), padded(unwrap(right))
    products = run_recorded(products_of, x, y, moduli)
    return wrap(products[:, :, : x.shape[2], : y.shape[2]])


def _crt(
    products: Array,
    unit_left: Array,
    unit_right: Array,
    shift: int,
    moduli: ModuliSet,
    fmt: Format,
    block_entries: int,
) -> Array:
    """numerics.residue_products.crt."""
    x = unwrap(products)
    batch, count, m, n = x.shape
    if x.stride(3) != 1 or x.stride(2) % padded_shape(1, 1)[1]:
        padded = x.new_empty((batch, count, m, padded_shape(m, n)[1]))
        padded[..., :n] = x
        x = padded
    else:
        x = x.as_strided((batch, count, m, x.stride(2)), x.stride())
    scales = _exponents(unit_left, m), _exponents(unit_right, n)
    out = torch.empty(
        (batch, m, n),
        dtype=_result_dtype(fmt, count > len(moduli.moduli)),
        device=x.device,
    )
    run_recorded(crt_kernel, x, scales, moduli, Targets(out), shift=shift)
    return wrap(torch.view_as_real(out).flatten(2) if out.is_complex() else out)


def _result_dtype(fmt: Format, is_complex: bool) -> torch.dtype:
    if fmt.t == 24:
        return torch.complex64 if is_complex else torch.float32
    return torch.complex128 if is_complex else torch.float64


def _exponents(unit: Array, vectors: int) -> Tensor:
    """Scale exponents from the units of integers; those of the components of a complex
    entry are equal.
    """
    return (
        -unwrap(unit)
        .flatten(1)[:, :: unit.size // (len(unit) * vectors)]
        .to(torch.int32)
    )


def _required_bits(
    a: Array, b: Array, most: int, block_entries: int
) -> tuple[int, int] | None:
    """numerics.scaling.required_bits; placeholders for operands that are not read lie
    on the host.
    """
    if not (isinstance(a, DeviceArray) and isinstance(b, DeviceArray)):
        return required_bits(a, b, most, block_entries)
    left, right = unwrap(a), unwrap(b)
    return required_bits_of(left, right, most)(left, right)


def _published_num_slices(
    a: Array, b: Array, slice_bits: int, u: float, block_entries: int
) -> tuple[int, bool]:
    """numerics.estimates.published_num_slices; complex operands, empty ones and those
    that need many slices are looked at by the plain function.
    """
    is_large = isinstance(a, DeviceArray) and isinstance(b, DeviceArray)
    if is_large and a.dtype.kind == "f" and a.size and b.size:
        left, right = unwrap(a), unwrap(b)
        count = num_slices_of(left, right, slice_bits, u)(left, right)
        if count is not None:
            return count
    return published_num_slices(a, b, slice_bits, u, block_entries)


def _error_ratio(
    a: Array, b: Array, exact: ExactProduct, block_entries: int, entries: int
) -> float:
    """numerics.error_ratio.error_ratio."""
    check_not_capturing()
    return error_ratio_kernel.error_ratio(
        unwrap(a), unwrap(b), moduli_set(2, a.dtype.kind == "c")
    )


def _required_bits_of_vectors(
    a: Array, b: Array, block_entries: int
) -> tuple[Array, Array]:
    """numerics.scaling.required_bits_of_vectors, on the host; the kernel takes one
    matrix times another.
    """
    if (
        not (isinstance(a, DeviceArray) and isinstance(b, DeviceArray))
        or max(len(a), len(b)) > 1
    ):
        return required_bits_of_vectors(a, b, block_entries)
    check_not_capturing()
    found = run_recorded(required_bits_kernel.launch_each, unwrap(a), unwrap(b))
    return required_bits_kernel.required_bits_of_vectors_from(
        found.cpu().numpy(), a.shape[1], b.shape[2]
    )


def _rounded_sums(
    a: Array,
    b: Array,
    fmt: Format,
    *,
    shift: int = 0,
    addend: Addend | None = None,
    result: str = "array",
) -> tuple[Array, Array | None]:
    """numerics.rounded_sums.rounded_sums, in the form that its shape suggests."""
    left, right = unwrap(a), unwrap(b)
    shape = product_shape(a, b)
    values = torch.empty(shape, dtype=_result_dtype(fmt, False), device=left.device)
    second = None if result == "array" else torch.empty_like(values)
    if addend is None:
        targets = Targets(values, Rounding(result), second=second)
    else:
        rounding = Rounding(result, True, addend.exponent, addend.sign)
        targets = Targets(values, rounding, unwrap(addend.c), second)
    run_recorded(rounded_sums_kernel, left, right, targets, shift=shift)
    return wrap(values), None if second is None else wrap(second)


def _sampled_gap(a: Array, b: Array, d: Array | None = None) -> int:
    """numerics.inner_scaling.sampled_gap; waits for the device."""
    if not (isinstance(a, DeviceArray) and isinstance(b, DeviceArray)):
        return sampled_gap(a, b, d)
    check_not_capturing()
    left, right = unwrap(a), unwrap(b)
    gap = torch.zeros(1, dtype=torch.int64, device=left.device)
    exponents = None if d is None else unwrap(d).to(torch.int32)
    run_recorded(inner_scaling_kernel.sampled_gap, left, right, gap, exponents)
    return int(gap)


def _inner_exponents(a: Array, b: Array, block_entries: int) -> Array:
    """numerics.inner_scaling.inner_exponents."""
    if not (isinstance(a, DeviceArray) and isinstance(b, DeviceArray)):
        return inner_exponents(a, b, block_entries)
    left = unwrap(a)
    wide = torch.full((1,), WIDE_GAP, dtype=torch.int64, device=left.device)
    kernel = inner_scaling_kernel.inner_exponents
    exponents = run_recorded(kernel, left, unwrap(b), wide)
    return wrap(exponents[: left.shape[2]].to(torch.int64))


def _inner_required_bits(
    a: Array, b: Array, limit: int, block_entries: int
) -> tuple[int, int] | None:
    """numerics.inner_scaling.inner_required_bits, by one wait for the device."""
    if not (isinstance(a, DeviceArray) and isinstance(b, DeviceArray)):
        return inner_required_bits(a, b, limit, block_entries)
    left, right = unwrap(a), unwrap(b)
    bits, _ = inner_inspection_of(left, right, limit)(left, right)
    return bits


def _mirror(x: Array, conjugate: bool) -> None:
    """numerics.symmetric.mirror."""
    run_recorded(mirror_kernel, unwrap(x), conjugate)


def _rounded_sum_of_pair(
    high: Array,
    low: Array,
    alpha: complex,
    c: Array | None,
    beta: complex,
    fmt: Format,
    has_all_bits: bool,
) -> CertifiedValues:
    """numerics.scalar_sums.rounded_sum_of_pair; one certificate stands for all."""
    if isinstance(alpha, complex) or isinstance(beta, complex):
        return rounded_sum_of_pair(high, low, alpha, c, beta, fmt, has_all_bits)
    lost = 0.0 if has_all_bits else lost_bits(alpha)
    x, y = (unwrap(real_components(part)) for part in (high, low))
    z = None if c is None or beta == 0 else unwrap(real_components(c))
    values, is_open = run_recorded(
        rounded_sum_of_pair_kernel,
        x,
        y,
        scalar(0),
        z,
        scalar(1),
        scalar(2),
        fmt is FP32,
        scalars=(alpha, beta, lost),
    )
    return CertifiedValues(wrap(values), wrap(is_open == 0))


OVERRIDES: dict[Callable[..., Any], Callable[..., Any]] = {
    norm_scale: _norm_scale,
    block_norms: _block_norms,
    lowest_bits: _lowest_bits,
    scaled_residues: _scaled_residues,
    residue_gemm: _residue_gemm,
    crt: _crt,
    error_ratio: _error_ratio,
    mirror: _mirror,
    published_num_slices: _published_num_slices,
    rounded_sums: _rounded_sums,
    rounded_sum_of_pair: _rounded_sum_of_pair,
    required_bits: _required_bits,
    required_bits_of_vectors: _required_bits_of_vectors,
    sampled_gap: _sampled_gap,
    inner_exponents: _inner_exponents,
    inner_required_bits: _inner_required_bits,
}
"""By the plain function."""
