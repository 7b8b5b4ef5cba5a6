"""Sums of the products of FP16, BF16 or FP64 slices over their diagonals: exact
integers, which leave the chip once a diagonal.

Slices hold integers of at most h = 2**(beta - 1). The unit adds as many products in
FP32 or FP64 as stay exact, a window of k, and what it then holds goes into integers in
registers, for FP64 slices into those in memory: INT32 for FP16 and BF16, INT64 for FP64.
The pairs p + q = s of a diagonal lie one after the other along k on both sides, see
`slices.py`.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hifigemm.kernels.products.int8_product import wrapped
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import place_of
from hifigemm.kernels.runtime.launch import Launch
from hifigemm.kernels.runtime.tiles import SLICES, SMALL_SLICES, Tile, gpu_of
from hifigemm.kernels.vectors.slices import PITCH, Slices

_EXACT = {torch.float16: 2**24, torch.bfloat16: 2**24, torch.float64: 2**53}
"""Integers up to here are added without rounding."""


@triton.jit(do_not_specialize=["m", "n", "parts", "first_k", "length", "max_k"])
def slice_gemm_kernel(
    left,
    right,
    out,
    m,
    n,
    n_stored,
    parts,
    first_k,
    length,
    less_k,
    max_k,
    ends,
    WINDOW: tl.constexpr,
    TILE: tl.constexpr,
):
    """Twin: the sums of diagonals of schemes.ozaki1.Ozaki1.

    A program makes a tile of block_m x block_n entries of a plane (z, l): part l of
    matrix z takes `less_k` entries less than part l - 1, those on the right begin as
    many further on, and at most `max_k`. WINDOW terms are added by the unit. `ends`,
    unless it is None, comes from an earlier launch, and says how many slices of each
    side are not zeros. The entries lie `first_k` behind the first ones of the slices.
    """
    BLOCK_M: tl.constexpr = TILE.block_m
    BLOCK_N: tl.constexpr = TILE.block_n
    BLOCK_K: tl.constexpr = TILE.block_k
    left, left_batch, left_row = left
    right, right_batch, right_row = right
    out, out_batch, out_part, out_row = out
    # Programs count the tiles of a plane, then the planes: part l of matrix z. The
    # longest parts come first. No two programs write to the same entries.
    plane, tile_m, tile_n = place_of(
        tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), TILE.group
    )
    l = plane % parts
    z = (plane // parts).to(tl.int64)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    x = left + z * left_batch + (wrapped(rows, m) * left_row)[:, None] + ks[None, :]
    y = right + z * right_batch + (wrapped(columns, n) * right_row)[None, :]
    y += ks[:, None] + l * less_k
    target = out + z * out_batch + tl.cast(l, tl.int64) * out_part
    target = target + rows[:, None].to(tl.int64) * out_row + columns[None, :]
    stored = (rows[:, None] < m) & (columns[None, :] < n_stored)
    IS_DOUBLE: tl.constexpr = left.dtype.element_ty == tl.float64
    UNIT: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    end = tl.minimum(length - l * less_k, max_k)
    first_begin = 0
    if ends is not None:
        # Pairs (p, s - p) of diagonal s = parts - 1 - l, slices beyond the ends left
        # out.
        s = parts - 1 - l + first_k // less_k
        first = tl.maximum(s + 1 - tl.load(ends + 1), 0)
        # The compiler is to see that addresses are aligned.
        first_begin = tl.maximum(first * less_k - first_k, 0) // 128 * 128
        last = tl.minimum(s + 1, tl.load(ends))
        end = tl.minimum(end, last * less_k - first_k)
    if IS_DOUBLE:
        # Registers do not hold INT64 beside FP64: these sums grow in memory, once in a
        # window, which takes long enough. Loads and stores share their addresses, and
        # so their layout: a thread reads what it has written itself.
        tl.store(target, tl.zeros([BLOCK_M, BLOCK_N], tl.int64), mask=stored)
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
    for begin in range(first_begin, end, WINDOW):
        # No sum of so many products is rounded.
        exact = tl.zeros([BLOCK_M, BLOCK_N], UNIT)
        # No mask: slices end in zeros up to a multiple of 128, which BLOCK_K divides.
        for start in range(begin, tl.minimum(begin + WINDOW, end), BLOCK_K):
            start = tl.multiple_of(start, BLOCK_K)
            exact = tl.dot(
                tl.load(x + start),
                tl.load(y + start),
                exact,
                input_precision="ieee",
                out_dtype=UNIT,
            )
        if IS_DOUBLE:
            earlier = tl.load(target, mask=stored, other=0)
            tl.store(target, earlier + exact.to(tl.int64), mask=stored)
        else:
            sums += exact.to(tl.int32)
    if not IS_DOUBLE:
        tl.store(target, sums, mask=stored)


_launch = Launch(slice_gemm_kernel)


def diagonals(
    left: Slices,
    right: Slices,
    k: int,
    *,
    config: Tile | None = None,
    ends: Buffer | None = None,
) -> list[Buffer]:
    """Integer sums of the products A_p B_q of slices over the diagonals p + q = s.

    Parameters
    ----------
    left, right : Slices
        S slices of the same bits in the same floating-point format.
    k : int
        Inner dimension.
    config : Tile, optional
        Otherwise from `tiles.SLICES`.
    ends : int32 tensor of two entries, optional
        How many slices of each side are not zeros.

    Returns
    -------
    list of int32 tensors, or one int64 tensor (batch, parts, m, n_pad)
        Part l is the diagonal s = S - 1 - l, its first terms in the first tensor,
        further ones in the next; only [:m, :n] means anything.
    """
    (left_batch, m, count, pitch), n = left.planes.shape, right.planes.shape[1]
    batch = max(left_batch, right.planes.shape[0])
    dtype = left.planes.dtype
    tile = config or tile_of(left.planes, m, n, batch * count)
    is_double = dtype is torch.float64
    window, k_block = windows(dtype, left.beta, k)
    row = count * pitch
    columns = -(-n // 128) * 128
    pieces = []
    for start in range(0, row, row if is_double else k_block):
        parts = count - start // pitch
        shape = (batch, parts, m, columns)
        out = left.planes.launches.empty(
            shape, torch.int64 if is_double else torch.int32
        )
        x, y = (s.planes.view(-1)[start:] for s in (left, right))
        batches = (
            (m * row if left_batch > 1 else 0),
            (n * row if len(right.planes) > 1 else 0),
        )
        tiles = -(-m // tile.block_m) * -(-n // tile.block_n)
        _launch(
            (batch * parts * tiles,),
            (x, batches[0], row),
            (y, batches[1], row),
            (out, *out.stride()[:3]),
            m,
            n,
            columns,
            parts,
            start,
            row - start,
            pitch,
            row if is_double else k_block,
            ends,
            WINDOW=window,
            TILE=tile,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        pieces.append(out)
    return pieces


def windows(dtype: torch.dtype, beta: int, k: int) -> tuple[int, int]:
    """Stored entries along k that the unit adds without rounding, and INT32 holds.

    Both are multiples of 128, the first one a power of two up to 2048. A stored slice of
    fewer terms ends in zeros, so that 128 entries hold no more than k terms.
    """
    square = 4 ** (beta - 1)
    terms = square * min(k, PITCH)
    window = min(max(_EXACT[dtype] // terms, 1), 2048 // PITCH)
    return 2 ** (window.bit_length() - 1) * PITCH, (2**31 - 1) // terms * PITCH


def tile_of(like: Buffer, m: int, n: int, planes: int) -> Tile:
    """The tile for slices of this dtype: a small one where large ones leave processors
    idle.
    """
    name = str(like.dtype).removeprefix("torch.")
    tile = SLICES[name]
    tiles = -(-m // tile.block_m) * -(-n // tile.block_n) * planes
    return tile if tiles >= gpu_of(like.device).num_sms else SMALL_SLICES[name]
