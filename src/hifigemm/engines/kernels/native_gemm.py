"""Products in FP32 or FP64 where a number on the device says so: the last choice made there.

Terms are added with fused multiply-adds, whatever their exponents; sums over- and underflow as in a library's product.
FP32 stays outside the tensor cores; FP64 goes to them where Triton compiles it for them (sm_80, sm_90).

Complex products are four real ones of tiles of components, re = A_re B_re - A_im B_im and im = A_re B_im + A_im B_re.
Both components of an entry lie in the same sector of memory, which comes from the L1 cache for the second of them.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels.launch import Launch, operand_arguments, real_view
from hifigemm.engines.kernels.predicate import Predicate, holds
from hifigemm.engines.kernels.tile_order import place_of
from hifigemm.engines.kernels.words import losses_in_range

__all__ = ["fp32_product", "fp64_product"]

_BLOCK_M, _BLOCK_N, _BLOCK_K = 64, 64, 16
_GROUP = 8


@triton.jit
def _power_of_two(e):
    """2.0**e, a subnormal number below 2**-1022, for -1074 <= e <= 1023; the nearest of these for other e."""
    e = tl.maximum(tl.minimum(e, 1023), -1074).to(tl.int64)
    bits = tl.where(e < -1022, tl.full((), 1, tl.int64) << tl.maximum(e + 1074, 0), (e + 1023) << 52)
    return bits.to(tl.float64, bitcast=True)


@triton.jit(do_not_specialize=["shift", "first", "last", "tiles_n"])
def _fp32_kernel(
    lost,
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
    """One tile of the product of one matrix of the stack in FP32."""
    if not losses_in_range(lost, first, last):
        return
    tiles = tl.cdiv(m, BLOCK_M) * tiles_n
    z = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    rows = (tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    cols = (tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    inside_m, inside_n = (rows < m)[:, None], (cols < n)[None, :]
    left += z * left_batch + rows[:, None] * left_row
    right += z * right_batch + cols[None, :] * right_col
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        h = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        a = tl.load(left + h[None, :] * left_k, mask=inside_m & (h < k)[None, :], other=0.0).to(tl.float32)
        b = tl.load(right + h[:, None] * right_k, mask=inside_n & (h < k)[:, None], other=0.0).to(tl.float32)
        total = tl.dot(a, b, total, input_precision="ieee", out_dtype=tl.float32)
    result = (total.to(tl.float64) * _power_of_two(shift)).to(tl.float32)
    to = out + z * out_batch + rows[:, None] * out_row + cols[None, :] * out_col
    tl.store(to, result, mask=inside_m & inside_n)


@triton.jit
def _place(x, i, j, i_stride, j_stride, WIDTH: tl.constexpr, FLIPPED: tl.constexpr):
    """Addresses of the first components of entries (i, j), as a tile of (j, i) where FLIPPED."""
    if FLIPPED:
        return x + (j[:, None] * j_stride + i[None, :] * i_stride) * WIDTH
    else:
        return x + (i[:, None] * i_stride + j[None, :] * j_stride) * WIDTH


@triton.jit
def _load(x, i, j, EVEN: tl.constexpr, FLIPPED: tl.constexpr):
    """What lies at addresses of `_place` as a tile of (i, j), zeros outside unless EVEN; i and j say what is inside."""
    if FLIPPED:
        if EVEN:
            return tl.trans(tl.load(x))
        else:
            return tl.trans(tl.load(x, mask=j[:, None] & i[None, :], other=0.0))
    elif EVEN:
        return tl.load(x)
    else:
        return tl.load(x, mask=i[:, None] & j[None, :], other=0.0)


@triton.jit(do_not_specialize=["shift", "least", "most", "m", "n"])
def _fp64_kernel(
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
    predicate,
    least,
    most,
    WIDTH: tl.constexpr,
    LEFT_FLIPPED: tl.constexpr,
    RIGHT_FLIPPED: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One tile of the product of one matrix of the stack; entries have WIDTH components, strides count entries.

    EVEN: m, n and k are multiples of the tile. Nothing where the predicate does not hold.
    """
    if not holds(predicate, least, most):
        return
    z, tile_m, tile_n = place_of(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP)
    z = z.to(tl.int64) * WIDTH
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    cols = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    h = tl.arange(0, BLOCK_K).to(tl.int64)
    a_at = _place(left + z * left_batch, rows, h, left_row, left_k, WIDTH, LEFT_FLIPPED)
    b_at = _place(right + z * right_batch, h, cols, right_k, right_col, WIDTH, RIGHT_FLIPPED)
    a_step = tl.cast(left_k, tl.int64) * (BLOCK_K * WIDTH)
    b_step = tl.cast(right_k, tl.int64) * (BLOCK_K * WIDTH)
    re = tl.zeros([BLOCK_M, BLOCK_N], tl.float64)
    im = tl.zeros([BLOCK_M, BLOCK_N], tl.float64)
    for start in range(0, k, BLOCK_K):
        inside = h < k - start
        a = _load(a_at, rows < m, inside, EVEN, LEFT_FLIPPED)
        b = _load(b_at, inside, cols < n, EVEN, RIGHT_FLIPPED)
        re = tl.dot(a, b, re, input_precision="ieee", out_dtype=tl.float64)
        if WIDTH == 2:
            a_im = _load(a_at + 1, rows < m, inside, EVEN, LEFT_FLIPPED)
            b_im = _load(b_at + 1, inside, cols < n, EVEN, RIGHT_FLIPPED)
            im = tl.dot(a, b_im, im, input_precision="ieee", out_dtype=tl.float64)
            im = tl.dot(a_im, b, im, input_precision="ieee", out_dtype=tl.float64)
            re = tl.dot(-a_im, b_im, re, input_precision="ieee", out_dtype=tl.float64)
        a_at += a_step
        b_at += b_step
    factor = _power_of_two(shift)
    to = _place(out + z * out_batch, rows, cols, out_row, out_col, WIDTH, False)
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    tl.store(to, re * factor, mask=inside)
    if WIDTH == 2:
        tl.store(to + 1, im * factor, mask=inside)


_fp32: Any = Launch(_fp32_kernel)
_fp64: Any = Launch(_fp64_kernel)


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
    _fp32(
        (batch * tiles_m * tiles_n,),
        *(lost, *losses, *operand_arguments((left, right)), out, *out.stride(), shift, m, n, left.shape[2], tiles_n),
        BLOCK_M=_BLOCK_M,
        BLOCK_N=_BLOCK_N,
        BLOCK_K=_BLOCK_K,
        num_warps=4,
        num_stages=2,
    )


def fp64_product(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, predicate: Predicate, shift: int = 0
) -> None:
    """out = 2**shift A B on torch's current stream, where the predicate holds.

    Each component of the result errs as a sum of its k products, 2 k for complex operands, in some order; see
    numerics.bounds.native_bound.

    Parameters
    ----------
    left, right : float64 or complex128 tensors (batch or 1, m, k) and (batch or 1, k, n), any strides
        Without lazy conjugation.
    out : tensor (batch, m, n) of the same dtype, any strides
    predicate : (int64 tensor of one entry, least, most)
        `out` stays as it is unless least <= predicate <= most.
    shift : int
        From -1074 to 1023.
    """
    batch, m, n = out.shape
    if out.numel() == 0:
        return
    arguments, k, width, target = operand_arguments((left, right)), left.shape[2], 1, out
    if out.is_complex():
        width, target = 2, real_view(out)
        arguments[0], arguments[4] = real_view(left), real_view(right)
    block_n = _BLOCK_N // width
    even = m % _BLOCK_M == n % block_n == k % _BLOCK_K == 0
    # Neighbouring threads load along the axis with unit stride or, where components lie two apart, along the first one.
    left_flipped, right_flipped = (width == 2 and x.stride(2) < x.stride(1) for x in (left, right))
    _fp64(
        (batch * -(-m // _BLOCK_M) * -(-n // block_n),),
        *(*arguments, target, *out.stride(), shift, m, n, k, *predicate),
        WIDTH=width,
        LEFT_FLIPPED=left_flipped,
        RIGHT_FLIPPED=right_flipped,
        EVEN=even,
        BLOCK_M=_BLOCK_M,
        BLOCK_N=block_n,
        BLOCK_K=_BLOCK_K,
        GROUP=_GROUP,
        num_warps=warps_for(width, even=even),
        num_stages=4 if width == 1 else 3,
    )


def warps_for(width: int, *, even: bool) -> int:
    """Warps of a program of `fp64_product`.

    Two warps and four stages reach 53 TFLOP/s on an H100 at n = 4096, cuBLAS 56; four warps and two stages reach 34.
    The registers of two warps do not hold masks, or the addresses of both components, beside the sums.
    """
    return 2 if width == 1 and even else 4
