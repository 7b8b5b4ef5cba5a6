"""Products in FP32 or FP64 where a number on the device says so: the last choice made there.

Terms are added with fused multiply-adds, whatever their exponents; sums over- and underflow as in a library's product.
FP32 stays outside the tensor cores; FP64 goes to them where Triton compiles it for them (sm_80, sm_90).
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels.launch import Launch
from hifigemm.engines.kernels.residue_gemm import Predicate, holds
from hifigemm.engines.kernels.words_kernels import losses_in_range

__all__ = ["fp32_product", "fp64_product"]

_BLOCK_M, _BLOCK_N, _BLOCK_K = 64, 64, 16


@triton.jit
def _is_taken(predicate, first, last):
    """Whether an int64 predicate is in first .. last, or the lost bits of two operands are in range(first, last)."""
    if predicate.dtype.element_ty == tl.int64:
        return holds(predicate, first, last)
    else:
        return losses_in_range(predicate, first, last)


@triton.jit
def _power_of_two(e):
    """2.0**e, a subnormal number below 2**-1022, for -1074 <= e <= 1023; the nearest of these for other e."""
    e = tl.maximum(tl.minimum(e, 1023), -1074).to(tl.int64)
    bits = tl.where(e < -1022, tl.full((), 1, tl.int64) << tl.maximum(e + 1074, 0), (e + 1023) << 52)
    return bits.to(tl.float64, bitcast=True)


@triton.jit(do_not_specialize=["shift", "first", "last", "tiles_n"])
def _product_kernel(
    predicate,
    first,
    last,
    left,
    left_batch,
    left_row,
    left_k,
    right,
    right_batch,
    right_k,
    right_col,
    out,
    out_batch,
    out_row,
    out_col,
    shift,
    m,
    n,
    k,
    tiles_n,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One tile of the product of one matrix of the stack, in the type of the output."""
    if not _is_taken(predicate, first, last):
        return
    TYPE: tl.constexpr = out.dtype.element_ty
    tiles = tl.cdiv(m, BLOCK_M) * tiles_n
    z = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    rows = (tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    cols = (tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    inside_m, inside_n = (rows < m)[:, None], (cols < n)[None, :]
    left += z * left_batch + rows[:, None] * left_row
    right += z * right_batch + cols[None, :] * right_col
    total = tl.zeros([BLOCK_M, BLOCK_N], TYPE)
    for start in range(0, k, BLOCK_K):
        h = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        a = tl.load(left + h[None, :] * left_k, mask=inside_m & (h < k)[None, :], other=0.0).to(TYPE)
        b = tl.load(right + h[:, None] * right_k, mask=inside_n & (h < k)[:, None], other=0.0).to(TYPE)
        total = tl.dot(a, b, total, input_precision="ieee", out_dtype=TYPE)
    result = (total.to(tl.float64) * _power_of_two(shift)).to(TYPE)
    to = out + z * out_batch + rows[:, None] * out_row + cols[None, :] * out_col
    tl.store(to, result, mask=inside_m & inside_n)


_launch: Any = Launch(_product_kernel)


def fp32_product(
    left: torch.Tensor,
    right: torch.Tensor,
    out: torch.Tensor,
    lost: torch.Tensor,
    losses: tuple[int, int],
    shift: int = 0,
) -> None:
    """out = 2**shift A B on torch's current stream, where words that lost (2,) bits did so in range(*losses) together.

    Parameters
    ----------
    left, right : float32, float16 or bfloat16 tensors (batch or 1, m, k) and (batch or 1, k, n), any strides
    out : float32 tensor (batch, m, n), any strides
    """
    _product(left, right, out, (lost, *losses), shift)


def fp64_product(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, predicate: Predicate, shift: int = 0
) -> None:
    """out = 2**shift A B on torch's current stream, where the predicate holds.

    Parameters
    ----------
    left, right : float64 tensors (batch or 1, m, k) and (batch or 1, k, n), any strides
    out : float64 tensor (batch, m, n), any strides
    predicate : (int64 tensor of one entry, least, most)
        `out` stays as it is unless least <= predicate <= most.
    shift : int
        From -1074 to 1023.
    """
    _product(left, right, out, predicate, shift)


def _product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, predicate: Predicate, shift: int) -> None:
    batch, m, n = out.shape
    if out.numel() == 0:
        return
    tiles_m, tiles_n = -(-m // _BLOCK_M), -(-n // _BLOCK_N)
    operands: list[Any] = []
    for x in (left, right):
        stack, *rest = x.stride()
        operands += [x, stack if x.shape[0] > 1 else 0, *rest]
    _launch(
        (batch * tiles_m * tiles_n,),
        *(*predicate, *operands, out, *out.stride(), shift, m, n, left.shape[2], tiles_n),
        BLOCK_M=_BLOCK_M,
        BLOCK_N=_BLOCK_N,
        BLOCK_K=_BLOCK_K,
        num_warps=4,
        num_stages=2,
    )
