"""INT8 products in plain Triton, for every GPU: the loop over k gives INT32 sums of a
tile, and an epilogue processes them.

Where INT8 units are slow, FP16 units multiply. |x| <= 128 is an FP16, and sums of 1024
products are at most 2**24 and so exact in FP32, in any order; INT32 adds these sums up.

An epilogue is a function that is compiled into the kernel. It takes the sums of a tile,
the origin of the tile (its plane, matrix z and part l; its first row and column), m, n,
and two records: `target` with addresses and strides, and `numbers`, which the compiler
does not see. There are three: `store_sums` here, the reduction modulo p of
`residue_gemm.py`, and the error ratio of `error_ratio.py`. `int8_product_hopper.py` has
the same kernel for Hopper.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import (
    NO_PREDICATE,
    Predicate,
    holds,
    runs_ptx,
    tile_of_result,
    tiles_of,
)
from hifigemm.kernels.runtime.launch import Launch
from hifigemm.kernels.runtime.tiles import (
    KERNELS,
    RATIOS,
    SMALL_RATIOS,
    ProductShape,
    Tile,
    gpu_of,
    grid_size,
    hopper_module,
    tile_for,
)

K_BLOCK = 1023 * 128
"""Longest product whose accumulator, an earlier residue included, stays below 2**31."""
_FP16_TERMS = tl.constexpr(1024)
"""Terms of which FP32 holds the sum of products of INT8."""
_FP16_PTX = tl.constexpr(
    "{ .reg .b32 u, c; xor.b32 u, $2, 0x80808080; mov.b32 c, 0x64646464; "
    "prmt.b32 $0, u, c, 0x4140; prmt.b32 $1, u, c, 0x4342; mov.b32 c, 0x64806480; "
    "sub.rn.f16x2 $0, $0, c; sub.rn.f16x2 $1, $1, c; }"
)
"""Four INT8 as FP16: behind the high byte of 1024, a byte u makes 1024 + u, which is
x + 1152.
"""
_SMALLEST = tl.constexpr(-(2**31))
"""The smallest INT32, at which sums of two components begin."""


class Planes(NamedTuple):
    """Planes of an operand; a broadcast batch has stride 0."""

    entries: Any
    batch: int
    part: int
    row: int
    k: int


class Results(NamedTuple):
    """Planes of results; the columns of a row are contiguous."""

    entries: Buffer
    batch: int
    part: int
    row: int
    columns: int  # that are stored


class Int8Product(NamedTuple):
    """The shape of a product: in each matrix of a stack, parts with vectors of m and n
    rows.

    Part l has `less_k` terms fewer than part l - 1. With a width of two, vectors have
    two components of k terms each, which begin `component` terms apart. In part 1 the
    components of the right operand change places.
    """

    m: int
    n: int
    k: int  # terms of part 0
    parts: int
    planes: int  # parts of all matrices, and of all spans
    spans: int = 1  # into which k is cut, each of which is a matrix of the result
    span_lines: int = 0  # lines of 128 terms of a span
    less_k: int = 0
    max_k: int = 0  # terms of a part at the most
    width: int = 1
    component: int = 0
    joined: int = 1  # parts that follow each other in each tile, for Hopper
    triangle: bool = False  # True: compute the lower triangle only
    predicate: Predicate = NO_PREDICATE


@triton.jit
def wrapped(index, count):
    """The vectors that a tile loads: after the last one, the first ones again.

    Repeating the last one would also be correct, but then all threads would request the
    same cache line.
    """
    return tl.where(index < count, index, tl.minimum(index - count, count - 1)).to(
        tl.int64
    )


@triton.jit
def _entries(vectors, ks, step, k, EVEN_K: tl.constexpr):
    """Entries `ks` of vectors, `step` apart in memory; zeros from k on."""
    address = vectors[:, None] + ks[None, :].to(tl.int64) * step
    if EVEN_K:
        return tl.load(address)
    else:
        return tl.load(address, mask=ks[None, :] < k, other=0)


@triton.jit
def _as_fp16(x, PTX: tl.constexpr):
    """INT8 as FP16, four by five instructions; conversions run at a quarter of their
    rate.
    """
    if PTX:
        return tl.inline_asm_elementwise(
            _FP16_PTX, "=r,=r,r", [x], dtype=tl.float16, is_pure=True, pack=4
        )
    else:
        return x.to(tl.float16)


@triton.jit
def _add_products(
    sums,
    left_terms,
    right_terms,
    operands,
    first,
    last,
    length,
    EVEN_K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UNIT: tl.constexpr,
    PTX: tl.constexpr,
):
    """`sums` plus the products of the terms from `first` to `last`, block by block of k.

    The terms are counted from those at both addresses, behind which `length` of them lie:
    only their end needs a mask.
    """
    ks = tl.arange(0, BLOCK_K)
    left, right = operands
    for start in range(first, last, BLOCK_K):
        x = _entries(left_terms, start + ks, left.k, length, EVEN_K)
        y = _entries(right_terms, start + ks, right.k, length, EVEN_K)
        if UNIT == "fp16":
            sums = tl.dot(_as_fp16(x, PTX), tl.trans(_as_fp16(y, PTX)), sums)
        else:
            sums = tl.dot(x, tl.trans(y), sums, out_dtype=tl.int32)
    return sums


@triton.jit
def _first_entries(operand, matrix, l, first_term, vectors, count):
    """Addresses of one term of the `vectors` of a plane; vectors beyond the last one
    are `wrapped`.
    """
    return (
        operand.entries
        + matrix * operand.batch
        + l * operand.part
        + first_term.to(tl.int64) * operand.k
        + wrapped(vectors, count) * operand.row
    )


@triton.jit
def entries_in_results(sums, tile_origin, target, numbers):
    """Addresses of the entries of a tile in `Results`, and the mask of the stored ones.

    `numbers` are the stored rows. A plane of the result may be larger than the product;
    entries beyond m and n are undefined.
    """
    _, z, l, row, column = tile_origin
    rows = row + tl.arange(0, sums.shape[0])
    columns = column + tl.arange(0, sums.shape[1])
    address = (
        target.entries
        + z * target.batch
        + l * target.part
        + rows[:, None].to(tl.int64) * target.row
        + columns[None, :]
    )
    num_rows = numbers[0]
    stored = (rows[:, None] < num_rows) & (columns[None, :] < target.columns)
    return address, stored


@triton.jit
def store_sums(sums, tile_origin, m, n, target, numbers):
    """The epilogue that stores the sums unchanged."""
    address, stored = entries_in_results(sums, tile_origin, target, numbers)
    tl.store(address, sums, mask=stored)


def _name(specialization: Any) -> str:
    """The name of a compiled kernel in profiles."""
    return f"int8_product_{specialization.constants['EPILOGUE'].__name__}"


@triton.jit(
    do_not_specialize=[
        "m",
        "n",
        "total_planes",
        "num_planes",
        "spans",
        "span_lines",
        "less_k",
        "max_k",
        "numbers",
        "predicate",
    ],
    repr=_name,
)
def int8_product_kernel(
    left,
    right,
    target,
    numbers,
    m,
    n,
    k,
    total_planes,
    num_planes,
    spans,
    span_lines,
    less_k,
    max_k,
    component,
    predicate,
    EPILOGUE: tl.constexpr,
    WIDTH: tl.constexpr,
    EVEN_K: tl.constexpr,
    TRIANGLE: tl.constexpr,
    TILE: tl.constexpr,
    PTX: tl.constexpr,
):
    """Twin: the exact product left[z, l] right[z, l].T; the EPILOGUE takes its tiles.

    A TILE has block_m x block_n entries of a plane (z, l), and programs walk over the
    tiles of all planes. k of a matrix is cut into `spans` of `span_lines` lines of 128.
    Each span is a matrix z of the result, and the spans of one matrix follow each
    other. For the rest see `Int8Product`. Rows beyond m and n are `wrapped`, so only
    the edge of k needs a mask. If the predicate is false, the kernel does nothing.
    """
    if not holds(predicate):
        return
    BLOCK_M: tl.constexpr = TILE.block_m
    BLOCK_N: tl.constexpr = TILE.block_n
    BLOCK_K: tl.constexpr = TILE.block_k
    UNIT: tl.constexpr = TILE.unit
    tiles_m, tiles_n = tiles_of(m, n, BLOCK_M, BLOCK_N, TRIANGLE)
    # `index` counts the tiles of a plane, then the parts l and the matrices z. A
    # program steps through them by the number of programs. No two programs write to the
    # same entries.
    for index in range(
        tl.program_id(0), tiles_m * tiles_n * total_planes, tl.num_programs(0)
    ):
        plane, tile_m, tile_n = tile_of_result(
            index, tiles_m, tiles_n, m, TRIANGLE, TILE
        )
        row0 = tile_m * BLOCK_M
        column0 = tile_n * BLOCK_N
        stack = plane // num_planes
        z = stack.to(tl.int64)
        l = (plane % num_planes).to(tl.int64)
        # The span of k, in terms, and the matrix of the operands. Spans begin at
        # multiples of 128, so that no block of k crosses into the next one.
        first_term = stack % spans * (span_lines * 128)
        length = tl.minimum(k - first_term, span_lines * 128)
        length = tl.minimum(length - (plane % num_planes) * less_k, max_k)
        matrix = (stack // spans).to(tl.int64)
        # Vectors of both operands, with k innermost, and the addresses of their first
        # entries.
        rows = row0 + tl.arange(0, BLOCK_M)
        columns = column0 + tl.arange(0, BLOCK_N)
        left_rows = _first_entries(left, matrix, l, first_term, rows, m)
        right_rows = _first_entries(right, matrix, l, first_term, columns, n)
        # INT32 sums, exact in any order: see `K_BLOCK`. The sum of two components lies
        # between 0 and 2**32. It starts at -2**31, because most GPUs saturate at 2**31.
        # Flipping its first bit then gives the bits of a UINT32.
        sums = tl.full(
            (BLOCK_M, BLOCK_N), _SMALLEST if WIDTH == 2 else 0, dtype=tl.int32
        )
        for i in tl.static_range(WIDTH):
            left_terms = left_rows
            right_terms = right_rows
            if WIDTH == 2:
                left_terms += i * component
                right_terms += (i ^ l) * component
            terms_left = k - first_term
            if UNIT == "fp16":
                for first in range(0, length, _FP16_TERMS):
                    last = tl.minimum(first + _FP16_TERMS, length)
                    part = _add_products(
                        tl.zeros((BLOCK_M, BLOCK_N), tl.float32),
                        left_terms, right_terms, (left, right), first, last, terms_left,
                        EVEN_K, BLOCK_K, UNIT, PTX,
                    )  # fmt: skip
                    sums += part.to(tl.int32)
            else:
                sums = _add_products(
                    sums, left_terms, right_terms, (left, right), 0, length, terms_left,
                    EVEN_K, BLOCK_K, UNIT, PTX,
                )  # fmt: skip
        if WIDTH == 2:
            sums ^= _SMALLEST
        EPILOGUE(sums, (plane, z, l, row0, column0), m, n, target, numbers)


_product = Launch(int8_product_kernel)


def planes_of(x: Buffer) -> Planes:
    """The kernel's record of an operand with axes (batch, part, row, k)."""
    batch, part, row, k = x.stride()
    return Planes(x, batch if x.shape[0] > 1 else 0, part, row, k)


def results_of(x: Buffer) -> Results:
    """The epilogue's record of results with axes (batch, part, row, column)."""
    batch, part, row, _ = x.stride()
    return Results(x, batch, part, row, x.shape[3])


def num_programs(product: Int8Product, operand: Buffer, tile: Tile) -> int:
    """Programs that walk over the tiles of a product."""
    shape = ProductShape(product.m, product.n, product.k, product.planes)
    return grid_size(tile, shape, gpu_of(operand.device))


def launch(
    product: Int8Product,
    left: Planes,
    right: Planes,
    tile: Tile,
    epilogue: Any,
    target: tuple[Any, ...],
    numbers: tuple[int, ...],
) -> None:
    """Launch the plain kernel, with an epilogue and its two records."""
    k = product.k
    _product(
        (num_programs(product, left.entries, tile),),
        left,
        right,
        target,
        numbers,
        product.m,
        product.n,
        k,
        product.planes,
        product.parts,
        product.spans,
        product.span_lines or -(-k // 128),
        product.less_k,
        product.max_k or k,
        product.component,
        product.predicate,
        EPILOGUE=epilogue,
        WIDTH=product.width,
        EVEN_K=k % tile.block_k == 0,
        TRIANGLE=product.triangle,
        TILE=tile,
        PTX=tile.unit != "int8" and runs_ptx(left.entries),
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=False,
    )


class MagnitudeProduct(NamedTuple):
    """|A||B| from magnitudes, and the vectors from one matrix to the next of A and of B."""

    product: Int8Product
    rows_a: int
    rows_b: int


def product_of_magnitudes(
    magnitudes: Sequence[Buffer],
    width: int,
    terms: int,
    predicate: Predicate = NO_PREDICATE,
) -> MagnitudeProduct:
    """The product of so many terms of both operands, or of one operand that stands on both
    sides: int8 (batch, vectors, width kp), one component behind the other.
    """
    left, right = magnitudes[0], magnitudes[-1]
    (batch_a, m, length), (batch_b, n, _) = left.shape, right.shape
    batch = max(batch_a, batch_b)
    # Planes are pairings of the components: for the second of a matrix, those of the
    # right operand swap.
    product = Int8Product(
        m,
        n,
        terms,
        width,
        width * batch,
        width=width,
        component=length // width,
        triangle=len(magnitudes) == 1,
        predicate=predicate,
    )
    rows_a, rows_b = (
        x.shape[1] if x.shape[0] == batch > 1 else 0 for x in (left, right)
    )
    return MagnitudeProduct(product, rows_a, rows_b)


def launch_on_magnitudes(
    of_magnitudes: MagnitudeProduct,
    magnitudes: Sequence[Buffer],
    tile: Tile,
    epilogue: Any,
    target: tuple[Any, ...],
    numbers: tuple[int, ...],
) -> None:
    """Launch the plain kernel on magnitudes, by a tile of the size that `tile` has."""
    product, rows_a, rows_b = of_magnitudes
    left, right = magnitudes[0], magnitudes[-1]
    length = left.shape[2]
    of_ratios = RATIOS if tile.area >= RATIOS.area else SMALL_RATIOS
    launch(
        product,
        Planes(left, rows_a * length, 0, length, 1),
        Planes(right, rows_b * length, 0, length, 1),
        replace(of_ratios, unit=tile.unit),
        epilogue,
        target,
        numbers,
    )


def exact_int8_gemm(a: Buffer, b: Buffer, *, config: Tile | None = None) -> Buffer:
    """The exact integer product of int8 stacks of any strides, as int32.

    The stacks are (batch or 1, m, k) and (batch or 1, k, n). The caller ensures k
    max|a| max|b| < 2**31; larger sums wrap.
    """
    (_, m, k), n = a.shape, b.shape[2]
    batch = max(len(a), len(b))
    out: Buffer = a.launches.empty((batch, m, n), torch.int32)
    if out.numel() == 0 or k == 0:
        a.launches.call(torch.Tensor.zero_, out)
        return out
    tile = config or tile_for(
        ProductShape(m, n, k, batch), gpu_of(a.device), ("triton",)
    )
    # One plane each, the vectors of B in front of k.
    a_batch, a_row, a_k = a.stride()
    b_batch, b_k, b_column = b.stride()
    left = a.as_strided((len(a), 1, m, k), (a_batch, 0, a_row, a_k))
    right = b.as_strided((len(b), 1, n, k), (b_batch, 0, b_column, b_k))
    launch(
        Int8Product(m, n, k, parts=1, planes=batch),
        planes_of(left),
        planes_of(right),
        tile,
        store_sums,
        results_of(out.view(batch, 1, m, n)),
        (m,),
    )
    return out


def diagonals(
    left: Buffer,
    right: Buffer,
    *,
    k_block: int = K_BLOCK,
    config: Tile | None = None,
) -> list[Buffer]:
    """INT32 sums of the products A_p B_q of slices over the diagonals p + q = s.

    Parameters
    ----------
    left, right : contiguous int8 tensors (batch or 1, m, S, pitch) and (batch or 1, n, S, pitch)
        Slices; the slices of the right operand are in reverse order. The pitch is a
        multiple of 128.
    k_block : int
        Terms of one sum, a multiple of 128, at most `K_BLOCK`.
    config : Tile, optional
        Otherwise `tile_for` chooses.

    Returns
    -------
    list of int32 tensors (batch, planes, m_pad, n_pad)
        Part l is the diagonal s = S - 1 - l: its first `k_block` terms are in the first
        tensor, further terms in the next ones. Only [:m, :n] is defined.
    """
    (_, m, count, pitch), n = left.shape, right.shape[1]
    batch = max(left.shape[0], right.shape[0])
    pieces = []
    hopper = hopper_module("int8_product_hopper", left.device)
    kernels = KERNELS if hopper is not None else ("triton",)
    # Every pair of slices counts as a plane.
    tile = config or tile_for(
        ProductShape(m, n, pitch, batch * count * (count + 1) // 2),
        gpu_of(left.device),
        kernels,
    )
    is_hopper = tile.kernel == "hopper"
    rows, columns = (tile.block_m, tile.block_n) if is_hopper else (1, 128)
    for start in range(0, count * pitch, k_block):
        parts = count - start // pitch
        length = count * pitch - start
        out = left.launches.empty(
            (batch, parts, -(-m // rows) * rows, -(-n // columns) * columns),
            torch.int32,
        )
        product = Int8Product(
            m,
            n,
            length,
            parts,
            batch * parts,
            less_k=pitch,
            max_k=k_block,
            component=pitch,
        )
        if is_hopper:
            hopper.launch(
                product,
                hopper.rows_of_slices(left, start),
                hopper.rows_of_slices(right, start),
                tile,
                hopper.SUMS,
                (out,),
                tuple(out.shape[2:]),
            )
        else:
            row = count * pitch
            # Views of 128 entries: parts have vectors of different lengths.
            x = left.view(-1)[start:].as_strided(
                (len(left), parts, m, 128), (m * row, 0, row, 1)
            )
            y = right.view(-1)[start:].as_strided(
                (len(right), parts, n, 128), (n * row, pitch, row, 1)
            )
            launch(
                product,
                planes_of(x),
                planes_of(y),
                tile,
                store_sums,
                results_of(out),
                (out.shape[2],),
            )
        pieces.append(out)
    return pieces
