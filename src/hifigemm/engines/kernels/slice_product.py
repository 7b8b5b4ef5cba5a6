"""The product of operands in INT8 slices, scaled and rounded once: schemes.ozaki1 on the device, bit for bit.

C = 2**shift sum_{s < S} 2**(row_exponent + col_exponent - beta s) sum_{p + q = s} A_p B_q in one launch. Every diagonal
s holds s + 1 pairs of slices, which lie one after the other along k on both sides, the left ones in order and the right
ones in reverse: it is one INT8 product of length (s + 1) k. An INT32 accumulator takes 130944 of k (1023 blocks of
128), |w| <= 128.

Up to three diagonals with 3 k <= 130944 stay in INT32 tiles of their own, so that a slice is loaded once for all its
pairs. More are made one after the other, as far as an accumulator goes, and added to 64-bit words as
V = sum_s D_s 2**(beta (S - 1 - s)), the first word waiting in memory while the last is made. V has at most two words,
V = H 2**T + L, which become four integers that float64 holds; one addition rounds their sum.

Tiles with a row or column that holds an Inf or NaN, and float64 results that may leave the normal range, are rounded
again row by row from the words.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels.common import place_of, power_of_two
from hifigemm.engines.kernels.launch import Launch, empty, operand_arguments
from hifigemm.engines.kernels.rounding import round_integer
from hifigemm.engines.kernels.slices import PITCH, Slices
from hifigemm.engines.kernels.special import nonfinite_product
from hifigemm.engines.kernels.tiles import ProductShape, Tile, gpu_of, tile_for
from hifigemm.engines.kernels.vector_tiles import NOT_FINITE
from hifigemm.numerics.slicing import words_of_diagonals

K_BLOCK = 1023 * 128
"""Longest sum of INT8 products that INT32 holds, in blocks of 128."""
_TOGETHER = 3
"""Most diagonals that are made side by side."""
_SIGN = tl.constexpr(-1 << 63)
_HALF = tl.constexpr(2.0**32)
_WHOLE = tl.constexpr(2.0**64)


@dataclass(frozen=True)
class _Kind:
    """What the kernel knows of the slices when it is compiled: diagonals in all and in the first word, bits, result."""

    count: int
    high: int
    beta: int
    together: bool
    k_block: int
    single: bool


@triton.jit
def _tile_at(kept, TILE: tl.constexpr):
    """Addresses of a tile that lies row by row."""
    return kept + tl.arange(0, TILE.block_m)[:, None] * TILE.block_n + tl.arange(0, TILE.block_n)[None, :]


@triton.jit
def _together(left, right, pitch, KIND: tl.constexpr, TILE: tl.constexpr):
    """Up to three diagonals that are made side by side, INT32; operands are columns of addresses of their rows."""
    BLOCK_M: tl.constexpr = TILE.block_m
    BLOCK_N: tl.constexpr = TILE.block_n
    zero = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    first, second, third = zero, zero, zero
    ks = tl.arange(0, TILE.block_k)[None, :]
    last = (KIND.count - 1) * pitch
    for at in range(0, pitch, TILE.block_k):
        x = tl.load(left + (at + ks))
        y = tl.trans(tl.load(right + (last + at + ks)))
        first = tl.dot(x, y, first, out_dtype=tl.int32)
        if KIND.count > 1:
            x_next = tl.load(left + (pitch + at + ks))
            y_next = tl.trans(tl.load(right + (last - pitch + at + ks)))
            second = tl.dot(x, y_next, second, out_dtype=tl.int32)
            second = tl.dot(x_next, y, second, out_dtype=tl.int32)
            if KIND.count > 2:
                third = tl.dot(x_next, y_next, third, out_dtype=tl.int32)
                third = tl.dot(x, tl.trans(tl.load(right + (at + ks))), third, out_dtype=tl.int32)
                third = tl.dot(tl.load(left + (2 * pitch + at + ks)), y, third, out_dtype=tl.int32)
    sums = (first,)
    if KIND.count > 1:
        sums += (second,)
    if KIND.count > 2:
        sums += (third,)
    return sums


@triton.jit
def _one_by_one(left, right, pitch, kept, KIND: tl.constexpr, TILE: tl.constexpr):
    """The last word of V; the first one is left at `kept` where there are two."""
    BLOCK_M: tl.constexpr = TILE.block_m
    BLOCK_N: tl.constexpr = TILE.block_n
    ks = tl.arange(0, TILE.block_k)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int64)
    for s in range(KIND.count):
        if KIND.high < KIND.count:  # noqa: SIM102 - known when the kernel is compiled
            if s == KIND.high:
                tl.store(_tile_at(kept, TILE), total)
                total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int64)
        total = total << KIND.beta
        reverse = right + (KIND.count - 1 - s) * pitch
        length = (s + 1) * pitch
        for start in range(0, length, KIND.k_block):
            stop = tl.minimum(start + KIND.k_block, length)
            sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
            for at in range(start, stop, TILE.block_k):
                x = tl.load(left + (at + ks))
                y = tl.load(reverse + (at + ks))
                sums = tl.dot(x, tl.trans(y), sums, out_dtype=tl.int32)
            total += sums.to(tl.int64)
    return total


@triton.jit
def _wide(high, low, T: tl.constexpr):
    """H 2**T + L as X 2**64 + Y, Y signed; 0 <= T < 64."""
    if T == 0:
        return high, low
    else:
        shifted = high << T
        total = shifted + low
        carried = total.to(tl.uint64, bitcast=True) < shifted.to(tl.uint64, bitcast=True)
        above = (high >> (64 - T)) + (low >> 63) + carried.to(tl.int64)
        return above + (total < 0).to(tl.int64), total


@triton.jit
def _joined(sums, BETA: tl.constexpr):
    """sum_s sums[s] 2**(beta (last - s)) in INT64."""
    total = sums[0].to(tl.int64)
    for i in tl.static_range(1, len(sums)):
        total = (total << BETA) + sums[i].to(tl.int64)
    return total


@triton.jit
def _row_of(sums, own):
    """The row of each tile that the mask marks."""
    found = ()
    for i in tl.static_range(len(sums)):
        found += (tl.sum(tl.where(own, sums[i], 0), axis=0),)
    return found


@triton.jit
def _rounded(above, low, WIDE: tl.constexpr, SINGLE: tl.constexpr):
    """above 2**64 + low, |above| < 2**41, rounded once to float64: to nearest, or with SINGLE to odd."""
    s = (low >> 32).to(tl.int32).to(tl.float64) * _HALF
    rest = (low & 0xFFFFFFFF).to(tl.uint32).to(tl.float64)
    if WIDE:
        # Every term is a multiple of 2**32 until `rest` is added, and what a first sum leaves is below 2**53.
        top = above.to(tl.float64) * _WHOLE
        total = top + s
        rest += (top - total) + s
        s = total
    value = s + rest
    if SINGLE:
        lost = rest - (value - s)
        bits = value.to(tl.int64, bitcast=True)
        bits -= ((lost != 0.0) & ((lost < 0.0) != (value < 0.0))).to(tl.int64)
        value = (bits | (lost != 0.0).to(tl.int64)).to(tl.float64, bitcast=True)
    return value


@triton.jit
def _value(sums, kept, exponent, KIND: tl.constexpr):
    """V 2**exponent, rounded once, from INT32 sums or a word, and the first word at `kept` where there are two."""
    low = _joined(sums, KIND.beta)
    above = low
    if KIND.high < KIND.count:
        above, low = _wide(tl.load(kept), low, KIND.beta * (KIND.count - KIND.high))
    value = _rounded(above, low, KIND.high < KIND.count, KIND.single) * power_of_two(exponent)
    return value.to(tl.float32 if KIND.single else tl.float64)


@triton.jit(do_not_specialize=["m", "n", "k", "shift", "tiles_m", "tiles_n", "num_tiles"])
def slice_product_kernel(
    left, right, out, words, operands, shift, m, n, k, pitch, tiles_m, tiles_n, num_tiles,
    KIND: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Tiles of all matrices of a stack; `words` holds a tile for each program where V has two; see `slice_product`."""
    BLOCK_M: tl.constexpr = TILE.block_m
    BLOCK_N: tl.constexpr = TILE.block_n
    LOW: tl.constexpr = KIND.count - KIND.high
    left_planes, left_batch, left_exponents, left_exponents_batch = left
    right_planes, right_batch, right_exponents, right_exponents_batch = right
    c, out_batch, out_row, out_column = out
    for index in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        plane, tile_m, tile_n = place_of(index, tiles_m, tiles_n, TILE.group)
        z, row0 = plane.to(tl.int64), tile_m * BLOCK_M
        kept = words
        if LOW > 0:
            kept += tl.program_id(0).to(tl.int64) * (BLOCK_M * BLOCK_N)
        rows = row0 + tl.arange(0, BLOCK_M)
        columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        row_length = pitch * KIND.count
        x = left_planes + z * left_batch + (tl.minimum(rows, m - 1).to(tl.int64) * row_length)[:, None]
        y = right_planes + z * right_batch + (tl.minimum(columns, n - 1).to(tl.int64) * row_length)[:, None]
        if KIND.together:
            sums = _together(x, y, pitch, KIND, TILE)
        else:
            sums = (_one_by_one(x, y, pitch, kept, KIND, TILE),)
        row_exponents = left_exponents + z * left_exponents_batch
        column_exponents = right_exponents + z * right_exponents_batch
        e = tl.load(row_exponents + rows, mask=rows < m, other=0)
        f = tl.load(column_exponents + columns, mask=columns < n, other=0)
        to = c + z * out_batch
        base = shift - KIND.beta * (KIND.count - 1)
        least = tl.min(e) + tl.min(f) + base
        rare = (tl.min(e) == NOT_FINITE) | (tl.min(f) == NOT_FINITE)
        if not KIND.single:
            rare |= (least < -1022) | (tl.max(e) + tl.max(f) + base > 1023)
        if not rare:
            exponent = (e + base)[:, None] + f[None, :]
            if KIND.single:
                # Outside of this range results are zeros or Inf in float32.
                exponent = tl.minimum(tl.maximum(exponent, -1022), 1023)
            value = _value(sums, _tile_at(kept, TILE), exponent, KIND)
            place = to + rows[:, None].to(tl.int64) * out_row + columns[None, :].to(tl.int64) * out_column
            tl.store(place, value, mask=(rows < m)[:, None] & (columns < n)[None, :])
        else:
            inside = columns < n
            a, a_batch, a_row, a_k, b, b_batch, b_k, b_column = operands
            b_columns = b + z * b_batch + columns.to(tl.int64) * b_column
            for i in range(0, tl.minimum(BLOCK_M, m - row0)):
                row = tl.cast(row0 + i, tl.int64)
                low = _joined(_row_of(sums, (rows == row0 + i)[:, None]), KIND.beta)
                above = tl.zeros_like(low)
                if LOW > 0:
                    above, low = _wide(tl.load(kept + i * BLOCK_N + tl.arange(0, BLOCK_N)), low, KIND.beta * LOW)
                own = tl.load(row_exponents + row)
                marked = (own == NOT_FINITE) | (f == NOT_FINITE)
                exponent = tl.where(marked, 0, own + f + base) + 64
                # Exponents beyond +-4000 give what these give.
                exponent = tl.minimum(tl.maximum(exponent, -4000), 4000)
                value = round_integer(above.to(tl.float64), low ^ _SIGN, (), exponent, KIND.single, 64, 32)
                if tl.max(marked.to(tl.int32)) > 0:
                    a_row_at = a + z * a_batch + row * a_row
                    filled = nonfinite_product(a_row_at, b_columns, k, a_k, b_k, inside, 1)
                    value = tl.where(marked, filled, value)
                place = to + row * out_row + columns.to(tl.int64) * out_column
                tl.store(place, value.to(c.dtype.element_ty), mask=inside)


_launch: Any = Launch(slice_product_kernel)


def slice_product(
    left: Slices,
    right: Slices,
    out: torch.Tensor,
    k: int,
    *,
    shift: int = 0,
    operands: tuple[torch.Tensor, torch.Tensor] | None = None,
    config: Tile | None = None,
) -> None:
    """out = 2**shift times the diagonals s < S of the product, rounded once, on torch's current stream.

    Parameters
    ----------
    left, right : Slices
        S slices of the same bits each.
    out : float32 or float64 tensor (batch, m, n), any strides
    k : int
        Inner dimension.
    shift : int
    operands : tensors (batch or 1, m, k) and (batch or 1, k, n), any strides, or None
        A and B themselves, read where a row or column holds an Inf or NaN; None where there are none.
    config : Tile, optional
        Otherwise `tile_for` chooses.
    """
    (_, m, count, pitch), n, beta = left.planes.shape, right.planes.shape[1], left.beta
    words = words_of_diagonals(k, count, beta)
    if words is None:
        raise ValueError(f"two words do not hold {count} diagonals of {beta} bits with k = {k}")
    _check(left, right, out)
    if out.numel() == 0:
        return
    together, gpu = count <= _TOGETHER and count * pitch <= K_BLOCK, gpu_of(out.device)
    shape = ProductShape(m, n, k, out.shape[0], "few slices" if together else "slices")
    tile = config or tile_for(shape, gpu)
    tiles_m, tiles_n = -(-m // tile.block_m), -(-n // tile.block_n)
    num_tiles = out.shape[0] * tiles_m * tiles_n
    programs = min(num_tiles, gpu.num_sms * _resident(tile))
    kept = out  # not read where one word holds the sums
    if len(words) == 2:
        kept = empty((programs, tile.block_m, tile.block_n), torch.int64, out)
    sides = []
    for x in (left, right):
        batches = (x.planes.stride(0), x.exponents.stride(0)) if x.planes.shape[0] > 1 else (0, 0)
        sides.append((x.planes, batches[0], x.exponents, batches[1]))
    _launch(
        (programs,),
        *(*sides, (out, *out.stride()), kept, tuple(operand_arguments(operands))),
        *(shift, m, n, k, pitch, tiles_m, tiles_n, num_tiles),
        KIND=_Kind(count, words[0], beta, together, K_BLOCK, out.dtype is torch.float32),
        TILE=tile,
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=False,
    )


def _resident(tile: Tile) -> int:
    """Programs that a multiprocessor holds at a time, by its registers."""
    return max(1, 256 // (32 * tile.warps)) if tile.area < 128 * 128 else 1


def _check(left: Slices, right: Slices, out: torch.Tensor) -> None:
    """Raise ValueError where `slice_product` does not take these arguments."""
    if left.planes.shape[2:] != right.planes.shape[2:] or left.beta != right.beta or left.planes.shape[3] % PITCH:
        raise ValueError(
            f"slices {tuple(left.planes.shape)} of {left.beta} bits and {tuple(right.planes.shape)} of {right.beta}"
        )
    if out.dtype not in (torch.float32, torch.float64) or out.shape[1:] != (
        left.planes.shape[1],
        right.planes.shape[1],
    ):
        raise ValueError(
            f"a {out.dtype} result of shape {tuple(out.shape)} for {left.planes.shape[1]} x {right.planes.shape[1]}"
        )
    if any(side.planes.shape[0] not in (1, out.shape[0]) for side in (left, right)):
        raise ValueError(f"stacks of {left.planes.shape[0]} and {right.planes.shape[0]} for one of {out.shape[0]}")
