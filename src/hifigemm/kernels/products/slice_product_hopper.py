"""The product of a few INT8 slices for Hopper, in one launch that keeps its sums on the
chip: an epilogue of `int8_product_hopper.py`.

Idea
    The diagonals of a tile follow each other, the last and longest one first. The sums
    T of a part are T = 2**8 floor(T / 2**8) + (T mod 2**8). The low byte is stored, and
    the next part starts with the quotient. So after the last part

        V = sum_s D_s 2**(8 (S - 1 - s)) = T 2**(8 (S - 1)) + low bytes,

    which float64 holds; it is scaled by a power of two and rounded once to float32.
Exact when
    S pitch <= K_BLOCK: the first part has S pitch products of at most 2**14; every
    other part has fewer, plus a quotient of at most 2**23. |V| < 2**53:
    S pitch 2**(14 + 8 (S - 1)) plus the other parts, less than half of it, stays below.
Low bytes
    lie in memory, contiguous for each program. A program reads and writes only its own
    bytes, and each thread reads only bytes that it wrote. They stay in the cache.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from hifigemm.kernels.products import int8_product_hopper as hopper
from hifigemm.kernels.products.int8_product import K_BLOCK, Int8Product, num_programs
from hifigemm.kernels.products.int8_product_hopper import halves
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.tiles import Tile
from hifigemm.kernels.vectors.slices import Slices

_FIRST = gl.constexpr(3)
"""Index of the low bytes in the record of the epilogue."""
_BITS = gl.constexpr(8)
"""Bits of a slice; a part leaves this many in memory."""
MOST_SLICES = 3
"""Each further part adds one byte to read for each entry at the end."""
_ROUND_PTX = gl.constexpr(
    "{ .reg .f64 v, low, s; .reg .s32 e; cvt.rn.f64.s32 v, $1; cvt.rn.f64.s32 low, $2; "
    "mov.b64 s, {0, $5}; fma.rn.f64 v, v, s, low; add.s32 e, $3, $4; "
    "max.s32 e, e, -1022; min.s32 e, e, 1023; add.s32 e, e, 1023; shl.b32 e, e, 20; "
    "mov.b64 s, {0, e}; mul.rn.f64 v, v, s; cvt.rn.f32.f64 $0, v; }"
)
"""float32 of 2**($3 + $4) ($1 s + $2), where $5 has the upper half of the bits of s. The
sum and the product are exact, and exponents are clamped where results are zeros or Inf.
"""


@gluon.jit
def _keep_low_bytes(HALF: gl.constexpr, sums, part: gl.constexpr, target):
    """Store the low byte of each sum; return the start of the next part."""
    address = _low_bytes_of(HALF, target[_FIRST + part], 0, sums.shape[1], sums)
    gl.store(address, sums.to(gl.int8))
    return sums >> _BITS


@gluon.jit
def _low_bytes_of(HALF: gl.constexpr, low, column, pitch, like):
    """Addresses of the low bytes of a part of half of the tile of this program."""
    layout: gl.constexpr = like.type.layout
    ROWS: gl.constexpr = like.shape[0]
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    columns = gl.arange(0, like.shape[1], gl.SliceLayout(0, layout))
    first_row = (gl.program_id(0) * 2 + HALF) * ROWS
    return low + (first_row + rows)[:, None] * pitch + (column + columns)[None, :]


@gluon.jit
def store_rounded(
    HALF: gl.constexpr, sums, tile_origin, m, n, out, target, numbers, memory
):
    """The epilogue: V of each entry, scaled and rounded once."""
    # Process some of the columns at a time: next to the sums, registers hold no more.
    # Masks take registers too, and only tiles at the edges need them.
    _, _, _, row, column = tile_origin
    is_whole = (row + sums.shape[0] <= m) & (column + sums.shape[1] <= n)
    quarters = halves(halves((sums,)))
    if is_whole:
        _store_parts(HALF, quarters, tile_origin, m, n, target, numbers, False)
    else:
        _store_parts(
            HALF, halves(halves(quarters)), tile_origin, m, n, target, numbers, True
        )


@gluon.jit
def _store_parts(
    HALF: gl.constexpr, parts, tile_origin, m, n, target, numbers, MASKED: gl.constexpr
):
    """The epilogue of all parts, one after the other."""
    COUNT: gl.constexpr = len(parts)
    COLUMNS: gl.constexpr = parts[0].shape[1]
    for i in gl.static_range(COUNT):
        _store_part(
            HALF,
            parts[i],
            i * COLUMNS,
            COUNT * COLUMNS,
            tile_origin,
            m,
            n,
            target,
            numbers,
            MASKED,
        )


@gluon.jit
def _store_part(
    HALF: gl.constexpr,
    sums,
    first,
    pitch,
    tile_origin,
    m,
    n,
    target,
    numbers,
    MASKED: gl.constexpr,
):
    """The epilogue of the columns of a tile from the first of a part on."""
    c = target[0]
    row_exponents = target[1]
    column_exponents = target[2]
    out_batch, out_row, row_batch, column_batch, shift = numbers
    _, z, _, row, column = tile_origin
    layout: gl.constexpr = sums.type.layout
    rows = row + gl.arange(0, sums.shape[0], gl.SliceLayout(1, layout))
    columns = column + first + gl.arange(0, sums.shape[1], gl.SliceLayout(0, layout))

    # The low bits of V, those of the first part last.
    COUNT: gl.constexpr = len(target) - _FIRST
    low = gl.zeros(sums.shape, gl.int32, layout)
    for i in gl.static_range(COUNT):
        address = _low_bytes_of(
            HALF, target[_FIRST + COUNT - 1 - i], first, pitch, sums
        )
        low = (low << _BITS) | (gl.load(address).to(gl.int32) & 0xFF)

    e = gl.load(row_exponents + z * row_batch + rows, mask=rows < m, other=0)
    e += shift - _BITS * COUNT
    f = gl.load(
        column_exponents + z * column_batch + columns, mask=columns < n, other=0
    )
    value = gl.inline_asm_elementwise(
        _ROUND_PTX,
        "=f,r,r,r,r,r",
        [sums, low, e[:, None], f[None, :], (1023 + _BITS * COUNT) << 20],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )
    address = (
        c + z * out_batch + rows[:, None].to(gl.int64) * out_row + columns[None, :]
    )
    if MASKED:
        inside = (rows < m)[:, None] & (columns < n)[None, :]
        gl.store(address, value, mask=inside)
    else:
        gl.store(address, value)


ROUNDED = hopper.Epilogue(
    store_rounded, hopper.no_memory, has_narrow_tiles=False, carry=_keep_low_bytes
)


def supports(left: Slices, right: Slices, out: Buffer) -> bool:
    """True for two or three slices of eight bits, and rows of float32 results."""
    _, _, count, pitch = left.planes.shape
    largest = count * pitch << (14 + 8 * (count - 1))
    return (
        left.planes.dtype is torch.int8
        and left.beta == _BITS.value
        and out.dtype is torch.float32
        and out.stride(2) == 1
        and 2 <= count <= MOST_SLICES
        and count * pitch <= K_BLOCK
        and 2 * largest < 2**53
    )


def launch(left: Slices, right: Slices, out: Buffer, shift: int, tile: Tile) -> None:
    """Launch the product of operands that `supports` accepts."""
    batch, m, n = out.shape
    _, _, count, pitch = left.planes.shape
    product = Int8Product(
        m,
        n,
        count * pitch,
        parts=1,
        planes=batch,
        less_k=pitch,
        max_k=count * pitch,
        component=pitch,
        joined=count,
    )
    programs = num_programs(product, left.planes, tile)
    entries = programs * tile.area
    low_bytes = left.planes.launches.empty((count - 1, entries), torch.int8)
    batches = [
        x.exponents.stride(0) if x.exponents.shape[0] > 1 else 0 for x in (left, right)
    ]
    out_batch, out_row, _ = out.stride()
    hopper.launch(
        product,
        hopper.rows_of_slices(left.planes),
        hopper.rows_of_slices(right.planes),
        tile,
        ROUNDED,
        (
            out,
            left.exponents,
            right.exponents,
            *(low_bytes[i] for i in range(count - 1)),
        ),
        (out_batch if batch > 1 else 0, out_row, *batches, shift),
    )
