"""The product of operands in INT8 slices, scaled and rounded once: schemes.ozaki1 on
the device, bit for bit.

C = 2**shift sum_{s < S} 2**(row_exponent + col_exponent - beta s) D_s,
D_s = sum_{p + q = s} A_p B_q. Every diagonal s holds s + 1 pairs of slices, which lie
one after the other along k on both sides, the left ones in order and the right ones in
reverse: D_s is one INT8 product of length (s + 1) k, see `residue_gemm.diagonals`. A
second launch adds them to V = sum_s D_s 2**(beta (S - 1 - s)) in two 64-bit words,
V = H 2**T + L, which become four integers that float64 holds; one addition rounds their
sum.

Parts of a row with an Inf or NaN, and float64 results that may leave the normal range,
are rounded from the words.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels.common import power_of_two
from hifigemm.engines.kernels.launch import Launch, operand_arguments
from hifigemm.engines.kernels.residue_gemm import K_BLOCK, diagonals
from hifigemm.engines.kernels.rounding import round_integer
from hifigemm.engines.kernels.slices import Slices
from hifigemm.engines.kernels.special import nonfinite_product
from hifigemm.engines.kernels.tiles import Tile
from hifigemm.engines.kernels.vector_tiles import NOT_FINITE
from hifigemm.numerics.slicing import words_of_diagonals

_BLOCK = 128
"""Columns of a program, which is a warp."""
_SIGN = tl.constexpr(-1 << 63)
_HALF = tl.constexpr(2.0**32)
_WHOLE = tl.constexpr(2.0**64)


@dataclass(frozen=True)
class _Kind:
    """What the kernel knows of the sums when it is compiled."""

    # how many diagonals, the longest first, have a first, a second, ... sum
    parts: tuple[int, ...]
    low: int  # diagonals in the second word
    beta: int  # bits of a slice
    single: bool  # results are float32, else float64


@triton.jit
def _word(
    sums, z, at, part, FIRST: tl.constexpr, LAST: tl.constexpr, KIND: tl.constexpr
):
    """sum_l D_l 2**(beta (l - FIRST)) over the parts FIRST <= l < LAST, in INT64."""
    total = tl.zeros(at.shape, tl.int64)
    for i in tl.static_range(LAST - FIRST):
        total = total << KIND.beta
        for piece in tl.static_range(len(KIND.parts)):
            if KIND.parts[piece] > LAST - 1 - i:
                total += tl.load(
                    sums[2 * piece]
                    + z * sums[2 * piece + 1]
                    + (LAST - 1 - i) * part
                    + at
                ).to(tl.int64)
    return total


@triton.jit
def _wide(high, low, T: tl.constexpr):
    """H 2**T + L as X 2**64 + Y, Y signed; 0 < T < 64."""
    shifted = high << T
    total = shifted + low
    carried = total.to(tl.uint64, bitcast=True) < shifted.to(tl.uint64, bitcast=True)
    above = (high >> (64 - T)) + (low >> 63) + carried.to(tl.int64)
    return above + (total < 0).to(tl.int64), total


@triton.jit
def _rounded(above, low, WIDE: tl.constexpr, SINGLE: tl.constexpr):
    """above 2**64 + low, |above| < 2**41, rounded once to float64: to nearest, or with
    SINGLE to odd.
    """
    s = (low >> 32).to(tl.int32).to(tl.float64) * _HALF
    rest = (low & 0xFFFFFFFF).to(tl.uint32).to(tl.float64)
    if WIDE:
        # Every term is a multiple of 2**32 until `rest` is added, and what a first sum
        # leaves is below 2**53.
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


@triton.jit(do_not_specialize=["shift", "m", "k", "row_sums", "part_sums"])
def slice_product_kernel(
    sums,
    left,
    right,
    out,
    operands,
    shift,
    m,
    n,
    k,
    row_sums,
    part_sums,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A part of a row; see `slice_product`. Rows of sums are `row_sums` apart,
    diagonals `part_sums`.
    """
    tiles = tl.cdiv(n, BLOCK)
    row = tl.program_id(0) // tiles
    z = (row // m).to(tl.int64)
    i = tl.cast(row % m, tl.int64)
    columns = (tl.program_id(0) - row * tiles) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < n
    row_exponents, row_exponents_batch = left
    column_exponents, column_exponents_batch = right
    e = tl.load(row_exponents + z * row_exponents_batch + i)
    f = tl.load(
        column_exponents + z * column_exponents_batch + columns, mask=inside, other=0
    )
    at = i * row_sums + columns
    part = tl.cast(part_sums, tl.int64)
    low = _word(sums, z, at, part, 0, KIND.low if KIND.low > 0 else KIND.parts[0], KIND)
    above = tl.zeros_like(low)
    if KIND.low > 0:
        above, low = _wide(
            _word(sums, z, at, part, KIND.low, KIND.parts[0], KIND),
            low,
            KIND.beta * KIND.low,
        )
    base = e + shift - KIND.beta * (KIND.parts[0] - 1)
    rare = (e == NOT_FINITE) | (tl.min(f) == NOT_FINITE)
    if not KIND.single:
        rare |= (base + tl.min(f) < -1022) | (base + tl.max(f) > 1023)
    c, out_batch, out_row, out_column = out
    place = c + z * out_batch + i * out_row + columns.to(tl.int64) * out_column
    if not rare:
        # Outside of this range results are zeros or Inf in float32.
        exponent = tl.minimum(tl.maximum(base + f, -1022), 1023)
        value = _rounded(above, low, KIND.low > 0, KIND.single) * power_of_two(exponent)
        tl.store(place, value.to(c.dtype.element_ty), mask=inside)
    else:
        marked = (e == NOT_FINITE) | (f == NOT_FINITE)
        # Exponents beyond +-4000 give what these give.
        exponent = tl.minimum(
            tl.maximum(tl.where(marked, 0, base + f) + 64, -4000), 4000
        )
        value = round_integer(
            above.to(tl.float64), low ^ _SIGN, (), exponent, KIND.single, 64, 32
        )
        if tl.max(marked.to(tl.int32)) > 0:
            a, a_batch, a_row, a_k, b, b_batch, b_k, b_column = operands
            own, others = (
                a + z * a_batch + i * a_row,
                b + z * b_batch + columns.to(tl.int64) * b_column,
            )
            value = tl.where(
                marked, nonfinite_product(own, others, k, a_k, b_k, inside, 1), value
            )
        tl.store(place, value.to(c.dtype.element_ty), mask=inside)


_launch = Launch(slice_product_kernel)


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
    """out = 2**shift times the diagonals s < S of the product, rounded once, on torch's
    current stream.

    Parameters
    ----------
    left, right : Slices
        S slices of the same bits each.
    out : float32 or float64 tensor (batch, m, n), any strides
    k : int
        Inner dimension.
    shift : int
    operands : tensors (batch or 1, m, k) and (batch or 1, k, n), any strides, or None
        A and B themselves, read where a row or column holds an Inf or NaN; None where
        there are none.
    config : Tile, optional
        Of the INT8 products, otherwise `tile_for` chooses.
    """
    (_, m, count, _), n = left.planes.shape, right.planes.shape[1]
    words = words_of_diagonals(k, count, left.beta)
    if words is None:
        raise ValueError(
            f"two words do not hold {count} diagonals of {left.beta} bits with k = {k}"
        )
    _check(left, right, out)
    if out.numel() == 0:
        return
    sums = diagonals(left.planes, right.planes, k_block=K_BLOCK, config=config)
    _launch(
        (out.shape[0] * m * triton.cdiv(n, _BLOCK),),
        tuple(argument for x in sums for argument in (x, x.stride(0))),
        *(
            (x.exponents, x.exponents.stride(0) if x.exponents.shape[0] > 1 else 0)
            for x in (left, right)
        ),
        *((out, *out.stride()), tuple(operand_arguments(operands))),
        *(shift, m, n, k, sums[0].stride(2), sums[0].stride(1)),
        KIND=_Kind(
            tuple(x.shape[1] for x in sums),
            sum(words[1:]),
            left.beta,
            out.dtype is torch.float32,
        ),
        BLOCK=_BLOCK,
        num_warps=1,
        enable_fp_fusion=False,
    )


def _check(left: Slices, right: Slices, out: torch.Tensor) -> None:
    """Raise ValueError where `slice_product` does not take these arguments."""
    a, b, c = left.planes.shape, right.planes.shape, out.shape
    if (
        a[2:] != b[2:]
        or left.beta != right.beta
        or tuple(c[1:]) != (a[1], b[1])
        or not {a[0], b[0]} <= {1, c[0]}
    ):
        slices = f"slices {tuple(a)} of {left.beta} bits and {tuple(b)} of {right.beta}"
        raise ValueError(
            f"{slices} do not make a {out.dtype} result of shape {tuple(c)}"
        )
