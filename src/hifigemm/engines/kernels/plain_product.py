"""Products in FP32 outside the tensor cores, where the bits that words lose say so: the last choice made on the device.

Terms are added one after the other with fused multiply-adds, whatever their exponents; sums over- and underflow as in
a library's FP32 product.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels.launch import Launch
from hifigemm.engines.kernels.words_kernels import losses_in_range

__all__ = ["fp32_product"]

_BLOCK_M, _BLOCK_N, _BLOCK_K = 64, 64, 16


@triton.jit(do_not_specialize=["shift", "loss_from", "loss_to", "tiles_n"])
def _product_kernel(
    losses,
    loss_from,
    loss_to,
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
    """One tile of the product of one matrix of the stack."""
    if not losses_in_range(losses, loss_from, loss_to):
        return
    z = tl.program_id(1).to(tl.int64)
    rows = (tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    cols = (tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    inside_m, inside_n = (rows < m)[:, None], (cols < n)[None, :]
    left += z * left_batch + rows[:, None] * left_row
    right += z * right_batch + cols[None, :] * right_col
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        h = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        a = tl.load(left + h[None, :] * left_k, mask=inside_m & (h < k)[None, :], other=0.0).to(tl.float32)
        b = tl.load(right + h[:, None] * right_k, mask=inside_n & (h < k)[:, None], other=0.0).to(tl.float32)
        total = tl.dot(a, b, total, input_precision="ieee")
    factor = ((tl.maximum(tl.minimum(shift, 1023), -1022) + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)
    result = (total.to(tl.float64) * factor).to(tl.float32)
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
    batch, m, n = out.shape
    if out.numel() == 0:
        return
    tiles_m, tiles_n = -(-m // _BLOCK_M), -(-n // _BLOCK_N)
    operands: list[Any] = []
    for x in (left, right):
        stack, *rest = x.stride()
        operands += [x, stack if x.shape[0] > 1 else 0, *rest]
    _launch(
        (tiles_m * tiles_n, batch),
        *(lost, *losses, *operands, out, *out.stride(), shift, m, n, left.shape[2], tiles_n),
        BLOCK_M=_BLOCK_M,
        BLOCK_N=_BLOCK_N,
        BLOCK_K=_BLOCK_K,
        num_warps=4,
        num_stages=2,
    )
