"""alpha T + beta C rounded once from a pair of T: numerics.scalar_sums.

FMA contraction must be off (enable_fp_fusion=False): the error-free transformations do
not survive it.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hifigemm.kernels.products.epilogue import two_product
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import two_sum
from hifigemm.kernels.runtime.launch import Launch, Scalar, float64_bits

_BLOCK = 1024
"""Entries of a tile."""
_SMALLEST = tl.constexpr(2.0**-900)
"""Products above it have errors that float64 holds."""
_LARGEST = tl.constexpr(2.0**990)
"""Factors and products below it have halves that do not overflow."""
_UNIT = tl.constexpr(2.0**-53)
_MOST_ROUNDINGS = tl.constexpr(16.0 * 2.0**-53)
"""The roundings of the sum of errors are at most this times their magnitudes."""


@triton.jit
def _with_multiple(s, x, total, low, size, is_certain):
    """A sum with s x added, the errors so far and their magnitudes, and True where no
    product has lost a bit.
    """
    product, product_error = two_product(s, x)
    product_size = tl.abs(product)
    in_range = (product_size >= _SMALLEST) & (product_size < _LARGEST)
    in_range = in_range & (tl.abs(x) < _LARGEST)
    total, sum_error = two_sum(total, product)
    low = low + (sum_error + product_error)
    size = size + (tl.abs(sum_error) + tl.abs(product_error))
    return total, low, size, is_certain & (in_range | (x == 0.0))


@triton.jit
def _above(x):
    """The next float64 above a finite x."""
    bits = x.to(tl.int64, bitcast=True)
    # Bits grow with the magnitude; above both zeros lies the smallest number.
    neighbour = bits + tl.where(x > 0.0, 1, -1)
    return tl.where(x == 0.0, 1, neighbour).to(tl.float64, bitcast=True)


@triton.jit
def _below(x):
    """The next float64 below a finite x."""
    return -_above(-x)


@triton.jit(do_not_specialize=["alpha_bits", "beta_bits", "lost_bits"])
def _rounded_sum_kernel(
    high,
    low,
    c,
    values,
    is_open,
    alpha_bits: tl.int64,
    beta_bits: tl.int64,
    lost_bits: tl.int64,
    entries,
    HAS_C: tl.constexpr,
    SINGLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Twin: numerics.scalar_sums.rounded_sum_of_pair, for real scalars.

    A tile is BLOCK of the entries, which are contiguous; each program makes one.
    """
    # The scalars come as integers, as kernels get floats in FP32 only.
    alpha = tl.cast(alpha_bits, tl.int64).to(tl.float64, bitcast=True)
    beta = tl.cast(beta_bits, tl.int64).to(tl.float64, bitcast=True)
    lost = tl.cast(lost_bits, tl.int64).to(tl.float64, bitcast=True)
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < entries
    x = tl.load(high + index, mask=inside, other=0.0)
    y = tl.load(low + index, mask=inside, other=0.0)

    # The products, added with their errors.
    zero = tl.zeros_like(x)
    sums = _with_multiple(alpha, x, zero, zero, zero, inside)
    sums = _with_multiple(alpha, y, sums[0], sums[1], sums[2], sums[3])
    if HAS_C:
        addend = tl.load(c + index, mask=inside, other=0.0)
        sums = _with_multiple(beta, addend, sums[0], sums[1], sums[2], sums[3])
    total, errors, size, is_certain = sums

    # All numbers within the margin have to round alike.
    margin = tl.abs(alpha * y) * _UNIT + size * _MOST_ROUNDINGS + lost
    lower = total + (errors - margin)
    upper = total + (errors + margin)
    if SINGLE:
        # Both have been rounded to float64. One number further out they are bounds,
        # which may be rounded again.
        lower = _below(lower).to(tl.float32)
        upper = _above(upper).to(tl.float32)
    is_certain = is_certain & (lower == upper)
    if not SINGLE:
        is_certain = is_certain & (tl.abs(upper) < float("inf"))
    tl.store(values + index, upper, mask=inside)
    is_left = inside & (is_certain == 0)
    if tl.max(is_left.to(tl.int32)) > 0:
        # All programs that store here store the same.
        tl.store(is_open, 1)


_launch = Launch(_rounded_sum_kernel)


def rounded_sum_of_pair(
    high: Buffer,
    low: Buffer,
    alpha: float | Scalar,
    c: Buffer | None,
    beta: float | Scalar,
    lost: float | Scalar,
    is_single: bool,
) -> tuple[Buffer, Buffer]:
    """alpha T + beta C rounded once to float64 or float32, where that is certain.

    Parameters
    ----------
    high, low, c : float64 tensors of one shape, contiguous; c may be None
        The pair of T, and C.
    alpha, beta, lost : float
        See `numerics.scalar_sums`; none of alpha and beta is 0 where it is read.
    is_single : bool
        Whether results are float32.

    Returns
    -------
    values
        Of their shape; an entry that is not certain means nothing.
    is_open : int32 tensor of one entry
        0 where all of them are certain.
    """
    dtype = torch.float32 if is_single else torch.float64
    values: Buffer = high.launches.empty(high.shape, dtype)
    is_open: Buffer = high.launches.zeros((1,), torch.int32)
    _launch(
        (triton.cdiv(high.numel(), _BLOCK),),
        high,
        low,
        c,
        values,
        is_open,
        float64_bits(alpha),
        float64_bits(beta),
        float64_bits(lost),
        high.numel(),
        HAS_C=c is not None,
        SINGLE=is_single,
        BLOCK=_BLOCK,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return values, is_open
