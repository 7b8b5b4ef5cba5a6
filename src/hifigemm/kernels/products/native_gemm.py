"""Products in FP32 or FP64 where a number on the device says so: the last choice made
there.

Terms are added with fused multiply-adds, whatever their exponents; sums over- and
underflow as in a library's product. FP32 stays outside the tensor cores; FP64 goes to
them where Triton compiles it for them (sm_80, sm_90).

Complex products are four real ones of tiles of components, re = A_re B_re - A_im B_im
and im = A_re B_im + A_im B_re. Both components of an entry lie in the same sector of
memory, which comes from the L1 cache for the second of them.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import Predicate, holds, place_of
from hifigemm.kernels.runtime.launch import Launch, real_view, strided
from hifigemm.kernels.runtime.tiles import NATIVE, Tile
from hifigemm.kernels.vectors.words import losses_in_range


@triton.jit
def _power_of_two(e):
    """2.0**e, a subnormal number below 2**-1022, for -1074 <= e <= 1023.

    Other e give the nearest of these.
    """
    e = tl.maximum(tl.minimum(e, 1023), -1074).to(tl.int64)
    # 2**(e + 1074) is the fraction of a subnormal power; normal ones have e + 1023
    # behind 52 bits of fraction.
    bits = tl.where(
        e < -1022, tl.full((), 1, tl.int64) << tl.maximum(e + 1074, 0), (e + 1023) << 52
    )
    return bits.to(tl.float64, bitcast=True)


@triton.jit
def _place(x, i, j, i_stride, j_stride, WIDTH: tl.constexpr, FLIPPED: tl.constexpr):
    """Addresses of the first components of entries (i, j).

    They form a tile of (j, i) where FLIPPED.
    """
    if FLIPPED:
        return x + (j[:, None] * j_stride + i[None, :] * i_stride) * WIDTH
    else:
        return x + (i[:, None] * i_stride + j[None, :] * j_stride) * WIDTH


@triton.jit
def _load(x, i, j, EVEN: tl.constexpr, FLIPPED: tl.constexpr):
    """A tile of (i, j) from the addresses of `_place`, zeros outside unless EVEN.

    i and j say which rows and columns lie inside.
    """
    if FLIPPED:
        if EVEN:
            return tl.trans(tl.load(x))
        else:
            return tl.trans(tl.load(x, mask=j[:, None] & i[None, :], other=0.0))
    elif EVEN:
        return tl.load(x)
    else:
        return tl.load(x, mask=i[:, None] & j[None, :], other=0.0)


@triton.jit(do_not_specialize=["shift", "predicate"])
def _native_kernel(
    left,
    right,
    out,
    shift,
    m,
    n,
    k,
    predicate,
    LOSSES: tl.constexpr,
    WIDTH: tl.constexpr,
    LEFT_FLIPPED: tl.constexpr,
    RIGHT_FLIPPED: tl.constexpr,
    EVEN: tl.constexpr,
    TILE: tl.constexpr,
):
    """Without a twin of equal bits: numerics.bounds.native_bound limits its errors.

    A tile has TILE.block_m x TILE.block_n entries of one matrix of the stack. Entries
    have WIDTH components, strides count entries. EVEN: m, n and k are multiples of the
    tile. Nothing where the predicate does not hold, whose number an earlier launch has
    written; with LOSSES it is about the bits that words have lost.
    """
    if LOSSES:
        if not losses_in_range(
            predicate.number, predicate.lower_limit, predicate.upper_limit
        ):
            return
    elif not holds(predicate):
        return
    BLOCK_M: tl.constexpr = TILE.block_m
    BLOCK_N: tl.constexpr = TILE.block_n
    BLOCK_K: tl.constexpr = TILE.block_k
    SUM: tl.constexpr = tl.float32 if LOSSES else tl.float64
    # The tile of this program, in the order of `place_of`, and the addresses of its
    # first block of k in both operands. Only this program writes to the tile.
    left, left_batch, left_row, left_k = left
    right, right_batch, right_k, right_col = right
    out, out_batch, out_row, out_col = out
    z, tile_m, tile_n = place_of(
        tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), TILE.group
    )
    z = z.to(tl.int64) * WIDTH
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    cols = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    h = tl.arange(0, BLOCK_K).to(tl.int64)
    a_at = _place(left + z * left_batch, rows, h, left_row, left_k, WIDTH, LEFT_FLIPPED)
    b_at = _place(
        right + z * right_batch, h, cols, right_k, right_col, WIDTH, RIGHT_FLIPPED
    )
    a_step = tl.cast(left_k, tl.int64) * (BLOCK_K * WIDTH)
    b_step = tl.cast(right_k, tl.int64) * (BLOCK_K * WIDTH)
    # Sums in FP32 on words' way, in FP64 otherwise. The imaginary ones are not used
    # where entries have one component.
    re = tl.zeros([BLOCK_M, BLOCK_N], SUM)
    im = tl.zeros([BLOCK_M, BLOCK_N], SUM)
    # One block of k after the other: four real products for complex entries. The order
    # is fixed, so that equal operands give equal bits.
    for start in range(0, k, BLOCK_K):
        # Entries beyond k are zeros in both operands, and add nothing.
        inside = h < k - start
        a = _load(a_at, rows < m, inside, EVEN, LEFT_FLIPPED).to(SUM)
        b = _load(b_at, inside, cols < n, EVEN, RIGHT_FLIPPED).to(SUM)
        re = tl.dot(a, b, re, input_precision="ieee", out_dtype=SUM)
        if WIDTH == 2:
            a_im = _load(a_at + 1, rows < m, inside, EVEN, LEFT_FLIPPED)
            b_im = _load(b_at + 1, inside, cols < n, EVEN, RIGHT_FLIPPED)
            im = tl.dot(a, b_im, im, input_precision="ieee", out_dtype=SUM)
            im = tl.dot(a_im, b, im, input_precision="ieee", out_dtype=SUM)
            re = tl.dot(-a_im, b_im, re, input_precision="ieee", out_dtype=SUM)
        a_at += a_step
        b_at += b_step
    # The power of two in float64, where that of an FP32 sum is exact; one rounding to
    # the result's format.
    factor = _power_of_two(shift)
    target = _place(out + z * out_batch, rows, cols, out_row, out_col, WIDTH, False)
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    tl.store(target, (re.to(tl.float64) * factor).to(out.dtype.element_ty), mask=inside)
    if WIDTH == 2:
        tl.store(target + 1, im * factor, mask=inside)


_product = Launch(_native_kernel)


def fp32_product(
    left: Buffer,
    right: Buffer,
    out: Buffer,
    lost: Buffer,
    losses: tuple[int, int],
    shift: int = 0,
) -> None:
    """out = 2**shift A B, where words that lost (2,) bits did so in range(*losses)
    together.

    Parameters
    ----------
    left, right : tensors (batch or 1, m, k) and (batch or 1, k, n), any strides
        float32, float16 or bfloat16.
    out : float32 tensor (batch, m, n), any strides
    """
    _multiply(left, right, out, Predicate(lost, *losses), shift, NATIVE["fp32"], 1)


def fp64_product(
    left: Buffer,
    right: Buffer,
    out: Buffer,
    predicate: Predicate,
    shift: int = 0,
) -> None:
    """out = 2**shift A B, where the predicate holds.

    Each component of the result errs as a sum of its k products, 2 k for complex
    operands, in some order; see numerics.bounds.native_bound.

    Parameters
    ----------
    left, right : tensors (batch or 1, m, k) and (batch or 1, k, n), any strides
        float64 or complex128, without lazy conjugation.
    out : tensor (batch, m, n) of the same dtype, any strides
    predicate : Predicate
        `out` stays as it is unless the entry lies within the limits.
    shift : int
        From -1074 to 1023.
    """
    if out.is_complex():
        _multiply(left, right, out, predicate, shift, NATIVE["fp64, complex"], 2)
        return
    tile = NATIVE["fp64"]
    if not _even(out, left, tile):
        tile = NATIVE["fp64, edges"]
    _multiply(left, right, out, predicate, shift, tile, 1)


def _even(out: Buffer, left: Buffer, tile: Tile) -> bool:
    """True if tiles cover a product exactly."""
    (_, m, n), k = out.shape, left.shape[2]
    return m % tile.block_m == n % tile.block_n == k % tile.block_k == 0


def _multiply(
    left: Buffer,
    right: Buffer,
    out: Buffer,
    predicate: Predicate,
    shift: int,
    tile: Tile,
    width: int,
) -> None:
    """Launch the kernel for entries of `width` components."""
    batch, m, n = out.shape
    if out.numel() == 0:
        return
    # Neighbouring threads load along the axis with unit stride or, where components lie
    # two apart, along the first one.
    left_flipped, right_flipped = (
        width == 2 and x.stride(2) < x.stride(1) for x in (left, right)
    )
    _product(
        (batch * -(-m // tile.block_m) * -(-n // tile.block_n),),
        strided(left),
        strided(right),
        (real_view(out), *out.stride()),
        shift,
        m,
        n,
        left.shape[2],
        predicate,
        LOSSES=out.dtype is torch.float32,
        WIDTH=width,
        LEFT_FLIPPED=left_flipped,
        RIGHT_FLIPPED=right_flipped,
        EVEN=_even(out, left, tile),
        TILE=tile,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
