"""The product of operands in slices, scaled and rounded once: schemes.ozaki1 on the
device, bit for bit.

C = 2**shift sum_{s < S} 2**(row_exponent + col_exponent - beta s) D_s,
D_s = sum_{p + q = s} A_p B_q. Diagonal s has s + 1 pairs of slices. They lie one after
the other along k, in order on the left and in reverse order on the right, so D_s is one
product of length (s + 1) k; see `int8_product.diagonals` for INT8 and
`slice_gemm.diagonals` for the other formats. A second launch adds the diagonals to
V = sum_s D_s 2**(beta (S - 1 - s)) in two 64-bit words, V = H 2**T + L. The words become
four integers that float64 holds, and one addition rounds their sum.

One launch does both if one operand has few vectors (`few_vectors.py`), and on a Hopper
for float32 results from two or three slices (`slice_product_hopper.py`).

Tiles with an Inf or NaN, and float64 results that may leave the normal range, are
rounded from the words.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from hifigemm.kernels.endings.rounding import round_integer, rounded_words
from hifigemm.kernels.endings.special import fill_marked, nonfinite_product
from hifigemm.kernels.products import few_vectors, slice_gemm
from hifigemm.kernels.products.int8_product import K_BLOCK, diagonals
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import power_of_two
from hifigemm.kernels.runtime.launch import Launch, operand_arguments
from hifigemm.kernels.runtime.tiles import (
    ProductShape,
    Tile,
    gpu_of,
    hopper_module,
    tile_for,
)
from hifigemm.kernels.vectors.slices import Slices
from hifigemm.kernels.vectors.vector_tiles import NOT_FINITE
from hifigemm.numerics.slicing import words_of_diagonals

_BLOCK = 128
"""Columns of a program; a program is one warp."""
_SIGN = tl.constexpr(-1 << 63)
"""The sign bit of INT64: `round_integer` takes a word with 2**63 added."""


@dataclass(frozen=True)
class _SumsKind:
    """Facts about the sums that are constants of the kernel."""

    # how many diagonals, the longest first, have a first, a second, ... sum
    parts: tuple[int, ...]
    low: int  # diagonals in the second word
    beta: int  # bits of a slice
    single: bool  # results are float32, else float64


@triton.jit
def _word(
    sums,
    z,
    offset,
    part_stride,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    KIND: tl.constexpr,
):
    """sum_l D_l 2**(beta (l - FIRST)) over the parts FIRST <= l < LAST, in INT64.

    Rows of sums are padded to whole tiles, so that loads need no mask.
    """
    total = tl.zeros(offset.shape, tl.int64)
    # Horner's rule, the last part first. numerics.slicing.words_of_diagonals says how
    # many parts INT64 holds.
    for i in tl.static_range(LAST - FIRST):
        total = total << KIND.beta
        # Long diagonals have further sums, in further tensors.
        for piece in tl.static_range(len(KIND.parts)):
            if KIND.parts[piece] > LAST - 1 - i:
                total += tl.load(
                    sums[2 * piece]
                    + z * sums[2 * piece + 1]
                    + (LAST - 1 - i) * part_stride
                    + offset
                ).to(tl.int64)
    return total


@triton.jit
def _wide(high, low, T: tl.constexpr):
    """H 2**T + L as X 2**64 + Y, Y signed; 0 < T < 64."""
    shifted = high << T
    total = shifted + low
    # An unsigned sum that is less than one of its terms carries into X. A negative L
    # sets all bits above it, and a negative Y borrows one from X.
    carried = total.to(tl.uint64, bitcast=True) < shifted.to(tl.uint64, bitcast=True)
    above = (high >> (64 - T)) + (low >> 63) + carried.to(tl.int64)
    return above + (total < 0).to(tl.int64), total


@triton.jit(do_not_specialize=["operands", "shift", "m", "k", "row_sums", "part_sums"])
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
    """Twin: schemes.ozaki1.Ozaki1, its sums of diagonals and their rounding.

    A tile is BLOCK columns of a row, and a program is a warp with one tile. Rows of
    sums are `row_sums` apart, diagonals `part_sums`.
    """
    # Programs count the tiles of a row, then the rows of a matrix, then the matrices z.
    # No two programs write to the same entries.
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
    # V = sum_l D_l 2**(beta l) over the parts l, part 0 being the last diagonal, as one
    # word or two.
    offset = i * row_sums + columns
    part_stride = tl.cast(part_sums, tl.int64)
    low = _word(
        sums,
        z,
        offset,
        part_stride,
        0,
        KIND.low if KIND.low > 0 else KIND.parts[0],
        KIND,
    )
    above = tl.zeros_like(low)
    if KIND.low > 0:
        above, low = _wide(
            _word(sums, z, offset, part_stride, KIND.low, KIND.parts[0], KIND),
            low,
            KIND.beta * KIND.low,
        )
    # The unit of V less the column's part of it. Marked vectors, and float64 results
    # that may leave the normal range, are rare.
    base = e + shift - KIND.beta * (KIND.parts[0] - 1)
    is_rare = (e == NOT_FINITE) | (tl.min(f) == NOT_FINITE)
    if not KIND.single:
        is_rare |= (base + tl.min(f) < -1022) | (base + tl.max(f) > 1023)
    c, out_batch, out_row, out_column = out
    address = c + z * out_batch + i * out_row + columns.to(tl.int64) * out_column
    if not is_rare:
        # Outside of this range results are zeros or Inf in float32.
        exponent = tl.minimum(tl.maximum(base + f, -1022), 1023)
        value = rounded_words(above, low, KIND.low > 0, KIND.single) * power_of_two(
            exponent
        )
        tl.store(address, value.to(c.dtype.element_ty), mask=inside)
    else:
        # Round the whole integer once, for any exponent.
        marked = (e == NOT_FINITE) | (f == NOT_FINITE)
        # `round_integer` takes V 2**(exponent - 64); exponents beyond +-4000 give the
        # same as +-4000.
        exponent = tl.minimum(
            tl.maximum(tl.where(marked, 0, base + f) + 64, -4000), 4000
        )
        value = round_integer(
            above.to(tl.float64), low ^ _SIGN, (), exponent, KIND.single, 64, 32
        )
        if tl.max(marked.to(tl.int32)) > 0:
            # Entries of a marked row or column come from A and B themselves.
            a, a_batch, a_row, a_k, b, b_batch, b_k, b_column = operands
            row_entries = a + z * a_batch + i * a_row
            column_entries = b + z * b_batch + columns.to(tl.int64) * b_column
            value = tl.where(
                marked,
                nonfinite_product(row_entries, column_entries, k, a_k, b_k, inside, 1),
                value,
            )
        tl.store(address, value.to(c.dtype.element_ty), mask=inside)


_launch = Launch(slice_product_kernel)


def slice_product(
    left: Slices,
    right: Slices,
    out: Buffer,
    k: int,
    operands: tuple[Buffer, Buffer],
    *,
    shift: int = 0,
    config: Tile | None = None,
) -> None:
    """out = 2**shift times the diagonals s < S of the product, rounded once.

    Parameters
    ----------
    left, right : Slices
        S slices of the same bits each.
    out : float32 or float64 tensor (batch, m, n), any strides
    k : int
        Inner dimension.
    operands : tensors (batch or 1, m, k) and (batch or 1, k, n), any strides
        A and B, read for rows and columns that hold an Inf or NaN.
    shift : int
    config : Tile, optional
        The tile of the products. By default few vectors have their own kernel, and
        `tile_for` or `slice_gemm` chooses for the others.
    """
    _, m, count, _ = left.planes.shape
    n = right.planes.shape[1]
    words = words_of_diagonals(k, count, left.beta)
    if words is None:
        raise ValueError(
            f"two words do not hold {count} diagonals of {left.beta} bits with k = {k}"
        )
    _check(left, right, out)
    if out.numel() == 0:
        return
    if config is None and few_vectors.serves(left, right, out):
        few_vectors.few_vectors_product(left, right, out, k, operands, shift)
        return
    hopper = hopper_module("slice_product_hopper", out.device)
    if hopper is not None and hopper.supports(left, right, out):
        tile = config or _tile_of_all_diagonals(left, right)
        if tile.kernel == "hopper":
            hopper.launch(left, right, out, shift, tile)
            marked = left.exponents, right.exponents
            fill_marked(operands, marked, out, NOT_FINITE.value)
            return
    sums = sums_of(left, right, k, config=config)
    kind = _SumsKind(
        parts=tuple(x.shape[1] for x in sums),
        low=sum(words[1:]),
        beta=left.beta,
        single=out.dtype is torch.float32,
    )
    _launch(
        (out.shape[0] * m * triton.cdiv(n, _BLOCK),),
        tuple(argument for x in sums for argument in (x, x.stride(0))),
        _with_stride(left.exponents),
        _with_stride(right.exponents),
        (out, *out.stride()),
        tuple(operand_arguments(operands)),
        shift,
        m,
        n,
        k,
        sums[0].stride(2),
        sums[0].stride(1),
        KIND=kind,
        BLOCK=_BLOCK,
        num_warps=1,
        enable_fp_fusion=False,
    )


def sums_of(
    left: Slices,
    right: Slices,
    k: int,
    *,
    config: Tile | None = None,
    ends: Buffer | None = None,
) -> list[Buffer]:
    """The sums over the diagonals, see `int8_product.diagonals` and
    `slice_gemm.diagonals`; INT8 slices beyond the ends are multiplied like the others.
    """
    if left.planes.dtype is torch.int8:
        return diagonals(left.planes, right.planes, k_block=K_BLOCK, config=config)
    return slice_gemm.diagonals(left, right, k, config=config, ends=ends)


def _tile_of_all_diagonals(left: Slices, right: Slices) -> Tile:
    """The tile of a product of all pairs of slices that are kept, one after the other."""
    _, m, count, pitch = left.planes.shape
    _, n, _, _ = right.planes.shape
    batch = max(len(left.planes), len(right.planes))
    length = count * (count + 1) // 2 * pitch
    return tile_for(ProductShape(m, n, length, batch), gpu_of(left.planes.device))


def _with_stride(exponents: Buffer) -> tuple[Buffer, int]:
    """Exponents of vectors and their stride along the stack, 0 for a stack of one."""
    return exponents, exponents.stride(0) if exponents.shape[0] > 1 else 0


def _check(left: Slices, right: Slices, out: Buffer) -> None:
    """Raise ValueError if `slice_product` does not take these arguments."""
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
