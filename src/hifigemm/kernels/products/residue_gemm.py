"""INT8 products of residues, reduced modulo p before they leave the chip; plain Triton,
for every GPU.

C_l = A_l B_l mod p_l for all moduli and matrices of a batch in one launch. An INT32
accumulator over at most 130944 of k holds |s| <= 130944 * 128**2 + 128 < 2**31; longer
products are made in blocks of k, each of which adds the residues that are already in
`out` (|r| <= 128) before it reduces.

Where the tiles of all planes are too few for the GPU, k is cut into spans that are
multiplied side by side, each as a plane of its own, and a second launch adds their
residues. Values are sums of integers modulo p, so that no cut changes them. The
residues of S spans take S bytes an entry, which are written and read once. INT32 sums
that spans add to by atomic instructions would take eight bytes besides the 4 S that are
added, and overflow where k is longer than a block.

Reduction on NVIDIA (`reduce_ptx`): the bytes u_j of s + 2**31 give s' = sum_j u_j
c_j + d, c_j = 2**(8j) mod p centred, d = -2**31 mod p centred, so s' = s mod p and
|s'| < 2**18. Added to the bits of the float 2**23 with an offset that makes the float M
p + s', the dot product instruction leaves f = M p + s' as a float32. One fused
multiply-add with 1/p and 3 2**22 - M + (M mod 256) rounds s'/p to an integer q in the
low bits of its result g, and bits(f) - p bits(g) has the low byte of s' - q p, because
every other term is a multiple of 256. Elsewhere (`reduce_portable`): s = h 2**16 + l
gives t = h (2**16 mod p) + l with |t| < 2**23, exact in float32, and t - p
round(t / p). Tests try all s' and t.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
import struct
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import (
    NO_PREDICATE,
    ROUND_SINGLE,
    Predicate,
    holds,
    tile_of_result,
    tiles_of,
)
from hifigemm.kernels.runtime.launch import Launch, uploaded
from hifigemm.kernels.runtime.tiles import (
    KERNELS,
    ProductShape,
    Tile,
    gpu_of,
    grid_size,
    hopper_module,
    span_length,
    spans_for,
    tile_for,
)
from hifigemm.numerics.residues import centred

K_BLOCK = 1023 * 128
"""Longest product whose accumulator, an earlier residue included, stays below 2**31."""
CONSTANTS = tl.constexpr(8)
"""Integers for each modulus: c_0 .. c_3 in bytes, what s' is added to, bits of 1/p and
addend, -p, 2**16 mod p, and from `HALVES` on 1/p and -p as pairs of float16.
"""
HALVES = tl.constexpr(6)
_SHARE_OF_SPANS = 8
"""Residues of the spans are no more than this part of those of the operands, so that
they fit wherever the operands' fit.
"""
_SUMMED = 2048
"""Entries whose spans a program adds: 16 bytes a thread."""
_SPANS_AT_A_TIME = 4
"""Spans whose residues are loaded before any is added."""
_REDUCE_PTX = tl.constexpr(
    "{ .reg .u32 x, f, q; .reg .f32 a, b, c; xor.b32 x, $1, 0x80000000; dp4a.u32.s32 f, x, $2, $3; mov.b32 a, f; "
    "mov.b32 b, $4; mov.b32 c, $5; fma.rn.f32 a, a, b, c; mov.b32 q, a; mad.lo.u32 $0, q, $6, f; }"
)


def _float_bits(x: float) -> int:
    return int(struct.unpack("i", struct.pack("f", x))[0])


def constants_of(p: int) -> tuple[int, ...]:
    """The row of `residue_constants` for a modulus 2 <= p <= 256."""
    word = int.from_bytes(
        bytes(centred(1 << (8 * j), p) & 255 for j in range(4)), "little", signed=False
    )
    word -= (word >> 31) << 32
    multiple = (1 << 23) // p + (1 << 18) // p + 1
    added = _float_bits(2.0**23) + (multiple * p - (1 << 23)) + centred(-(1 << 31), p)
    addend = float(3 * 2**22 - multiple + multiple % 256)
    halves = (int(np.float16(x).view(np.uint16)) * 0x10001 for x in (1 / p, -p))
    signed = (x - (x >> 31 << 32) for x in halves)
    return (
        word,
        added,
        _float_bits(1 / p),
        _float_bits(addend),
        -p,
        centred(1 << 16, p),
        *signed,
    )


@cache
def residue_constants(moduli: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """What kernels need to reduce modulo the moduli: int32, shape (len(moduli), 8).

    The tensor is kept for each device.
    """
    rows = torch.tensor([constants_of(p) for p in moduli], dtype=torch.int32)
    return uploaded(rows, device).view(-1, CONSTANTS.value)


@triton.jit
def reduce_portable(s, row):
    """Twin: numerics.residues.reduce_centred, up to the representative.

    |t| < 2**23 in the notation of the module; FMA contraction of t / p + c is harmless.
    """
    # The constants of the modulus, in the order of `CONSTANTS`.
    inverse = tl.load(row + 2).to(tl.float32, bitcast=True)
    p = -tl.load(row + 4)
    # s = h 2**16 + l with -2**15 <= l < 2**15.
    low = (s << 16) >> 16
    t = ((s - low) >> 16) * tl.load(row + 5) + low
    # The sum with 1.5 2**23 rounds the quotient to an integer. What it leaves of t fits
    # INT8; tests try all t.
    q = (t.to(tl.float32) * inverse + ROUND_SINGLE) - ROUND_SINGLE
    return (t - q.to(tl.int32) * p).to(tl.int8)


@triton.jit
def reduce_ptx(s, row):
    """Residues of int32 s in the low bytes of int32, in four instructions.

    They are those of `reduce_portable` modulo p; see the module.
    """
    return tl.inline_asm_elementwise(
        _REDUCE_PTX,
        "=r,r,r,r,r,r,r",
        [
            s,
            tl.load(row),
            tl.load(row + 1),
            tl.load(row + 2),
            tl.load(row + 3),
            tl.load(row + 4),
        ],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def wrapped(index, count):
    """Vectors to load for those of a tile: beyond the last come the first ones again.

    The last one again would do as well, but then all threads ask the cache for one and
    the same line.
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


@triton.jit(
    do_not_specialize=[
        "m",
        "n",
        "m_stored",
        "total_planes",
        "num_planes",
        "spans",
        "span_lines",
        "less_k",
        "max_k",
        "predicate",
    ]
)
def _product_kernel(
    left,
    right,
    out,
    constants,
    m,
    n,
    k,
    m_stored,
    n_stored,
    total_planes,
    num_planes,
    spans,
    span_lines,
    less_k,
    max_k,
    predicate,
    PTX: tl.constexpr,
    ADD: tl.constexpr,
    EVEN_K: tl.constexpr,
    TRIANGLE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Twin: numerics.residue_products.residue_gemm, any representatives.

    out[z, l] = left[z, l] right[z, l].T, reduced where there are constants. A TILE has
    block_m x block_n entries of a plane (z, l), and programs walk over the tiles of all
    planes. k of a matrix is cut into `spans` of `span_lines` lines of 128, which are
    matrices z of `out` that follow each other. Sums that are not reduced take `less_k`
    entries less for part l than for part l - 1, and at most `max_k`. Rows beyond m and
    n are `wrapped`, so that only the edge of k is masked. Nothing is written where the
    predicate does not hold.
    """
    if not holds(predicate):
        return
    BLOCK_M: tl.constexpr = TILE.block_m
    BLOCK_N: tl.constexpr = TILE.block_n
    BLOCK_K: tl.constexpr = TILE.block_k
    REDUCE: tl.constexpr = constants is not None
    tiles_m, tiles_n = tiles_of(m, n, BLOCK_M, BLOCK_N, TRIANGLE)
    # A program goes on to tiles that lie apart by the number of programs. No two write
    # to the same entries.
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
        first = stack % spans * (span_lines * 128)
        length = tl.minimum(k - first, span_lines * 128)
        matrix = (stack // spans).to(tl.int64)
        # Vectors of both operands, with k innermost, and the addresses of their first
        # entries.
        rows = row0 + tl.arange(0, BLOCK_M)
        columns = column0 + tl.arange(0, BLOCK_N)
        ks = tl.arange(0, BLOCK_K)
        left_rows = (
            left.entries
            + matrix * left.batch
            + l * left.part
            + first.to(tl.int64) * left.k
            + wrapped(rows, m) * left.row
        )
        right_rows = (
            right.entries
            + matrix * right.batch
            + l * right.part
            + first.to(tl.int64) * right.k
            + wrapped(columns, n) * right.row
        )
        # INT32 sums, exact in any order: see `K_BLOCK`.
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
        if not REDUCE:
            # Diagonals of slices grow shorter from part to part. They have no spans.
            length = tl.minimum(k - (plane % num_planes) * less_k, max_k)
        # Only the end of k needs a mask.
        for start in range(0, length, BLOCK_K):
            x = _entries(left_rows, start + ks, left.k, k - first, EVEN_K)
            y = _entries(right_rows, start + ks, right.k, k - first, EVEN_K)
            sums = tl.dot(x, tl.trans(y), sums, out_dtype=tl.int32)
        # `out` may be larger than the product; what lies beyond m and n means nothing.
        target = (
            out.entries
            + z * out.batch
            + l * out.part
            + rows[:, None].to(tl.int64) * out.row
            + columns[None, :]
        )
        stored = (rows[:, None] < m_stored) & (columns[None, :] < n_stored)
        # Residues of earlier blocks of k, |r| <= 128, which the launch before wrote; in
        # this one no other program touches the tile.
        if ADD:
            sums += tl.load(target, mask=stored, other=0).to(tl.int32)
        if REDUCE:
            if PTX:
                tl.store(
                    target,
                    reduce_ptx(sums, constants + l * CONSTANTS).to(tl.int8),
                    mask=stored,
                )
            else:
                tl.store(
                    target,
                    reduce_portable(sums, constants + l * CONSTANTS),
                    mask=stored,
                )
        else:
            tl.store(target, sums, mask=stored)


@triton.jit(do_not_specialize=["num_planes", "spans", "predicate"])
def _add_spans_kernel(
    residues,
    out,
    constants,
    entries,
    num_planes,
    spans,
    predicate,
    PTX: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Twin: the sum of the spans modulo p, any representatives.

    A tile is BLOCK of the `entries` of a plane (z, l) in ROWS spans at a time. The
    spans of a matrix z follow each other, with `num_planes` planes each. Nothing where
    the predicate does not hold.
    """
    if not holds(predicate):
        return
    # Programs count the tiles of a plane, then the planes. No two write to the same
    # entries.
    tiles = tl.cdiv(entries, BLOCK)
    plane = tl.program_id(0) // tiles
    z = (plane // num_planes).to(tl.int64)
    l = plane % num_planes
    columns = tl.program_id(0) % tiles * BLOCK + tl.arange(0, BLOCK)
    inside = columns[None, :] < entries
    # The same plane of the next span lies `step` bytes behind.
    step = num_planes * entries.to(tl.int64)
    first = residues + z * spans * step + l * entries.to(tl.int64)
    sums = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(0, spans, ROWS):
        rows = start + tl.arange(0, ROWS)[:, None]
        parts = tl.load(
            first + rows * step + columns[None, :],
            mask=inside & (rows < spans),
            other=0,
        )
        sums += tl.sum(parts.to(tl.int32), axis=0)
    target = out + plane * entries.to(tl.int64) + columns
    if PTX:
        tl.store(
            target,
            reduce_ptx(sums, constants + l * CONSTANTS).to(tl.int8),
            mask=columns < entries,
        )
    else:
        tl.store(
            target,
            reduce_portable(sums, constants + l * CONSTANTS),
            mask=columns < entries,
        )


_product = Launch(_product_kernel)
_add_spans = Launch(_add_spans_kernel)


class _Planes(NamedTuple):
    """Planes of an operand; the stride is 0 for a batch that is broadcast."""

    entries: Any
    batch: int
    part: int
    row: int
    k: int


class _Results(NamedTuple):
    """Planes of results, whose columns lie side by side."""

    entries: Buffer
    batch: int
    part: int
    row: int


def _operand(x: Buffer) -> _Planes:
    """An operand with axes (batch, part, row, k) as the kernel takes it."""
    batch, part, row, k = x.stride()
    return _Planes(x, batch if x.shape[0] > 1 else 0, part, row, k)


class Reduction(NamedTuple):
    """How planes of a product are made."""

    constants: Any = None  # of all moduli; None where sums stay as they are
    spans: int = 1  # into which k is cut, each of which is a matrix of the result
    predicate: Predicate = NO_PREDICATE
    triangle: bool = False  # whether only the lower triangle is made


def _launch_plain(
    left: Buffer,
    right: Buffer,
    out: Buffer,
    tile: Tile,
    reduction: Reduction,
    *,
    k: int,
    add: bool = False,
    less_k: int = 0,
    max_k: int = 0,
) -> None:
    """Launch the plain kernel on (batch, plane, vector, entry) operands.

    k is that of the first plane, however many entries the operands show.
    """
    planes, m = left.shape[1:3]
    n = right.shape[2]
    total_planes = out.shape[0] * planes
    shape = ProductShape(m, n, k, total_planes)
    programs = grid_size(tile, shape, gpu_of(left.device))
    _product(
        (programs,),
        _operand(left),
        _operand(right),
        _Results(out, *out.stride()[:3]),
        reduction.constants,
        m,
        n,
        k,
        out.shape[2],
        out.shape[3],
        total_planes,
        planes,
        reduction.spans,
        span_length(k, reduction.spans) // 128,
        less_k,
        max_k or k,
        reduction.predicate,
        PTX=left.is_cuda and torch.version.hip is None,
        ADD=add,
        EVEN_K=k % tile.block_k == 0,
        TRIANGLE=reduction.triangle,
        TILE=tile,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def residue_gemm(
    left: Buffer,
    right: Buffer,
    constants: Buffer,
    out: Buffer,
    *,
    k_block: int = K_BLOCK,
    config: Tile | None = None,
    spans: int | None = None,
    predicate: Predicate | None = None,
    triangle: bool = False,
) -> None:
    """out[z, l] = left[z, l] right[z, l].T mod p_l, any representative in [-128, 127].

    Parameters
    ----------
    left, right : int8 tensors (batch or 1, L, m, k_pitch) and (batch or 1, L, n, k_pitch)
        Any residues in [-128, 127]. Views with unit stride along k whose other strides
        are multiples of 16.
    constants : int32 tensor (L, 8)
        `residue_constants` of the moduli.
    out : int8 tensor (batch, L, m_pad, n_pad)
        Unit stride along n, n_pad and the other strides multiples of 16. Only [:m, :n]
        means anything.
    k_block : int
        Length of k that goes into one accumulator, a multiple of 16, at most `K_BLOCK`.
    config : Tile, optional
        Otherwise `spans_for` chooses.
    spans : int, optional
        Into how many spans k is cut that are multiplied side by side; more than one
        where `out` is contiguous. Otherwise `spans_for` chooses, or there is one for a
        tile that is given.
    predicate : Predicate, optional
        Decides on the device: `out` stays as it is unless the entry lies within the
        limits. Not read for k = 0.
    triangle : bool
        Make only the tiles of a square result that have entries on or below the
        diagonal.
    """
    _check(left, right, constants, out, k_block)
    (_, planes, m, k), n = left.shape, right.shape[2]
    if out.shape[0] * planes * m * n == 0:
        return
    if k == 0:
        out.launches.call(torch.Tensor.zero_, out)
        return
    # A triangle has about as many tiles as half of the columns.
    shape = ProductShape(
        m, -(-n // 2) if triangle else n, min(k, k_block), out.shape[0] * planes
    )
    gpu = gpu_of(left.device)
    hopper = hopper_module("residue_gemm_hopper", left.device)
    kernels = (
        ("triton",)
        if hopper is None or not hopper.supports(left, right, out)
        else KERNELS
    )
    if config is None and spans is None and out.is_contiguous():
        most = (m + n) * k // (_SHARE_OF_SPANS * math.prod(out.shape[2:]))
        tile, spans = spans_for(replace(shape, k=k), gpu, kernels, most)
    else:
        tile = config or tile_for(shape, gpu, kernels)
    if tile.kernel not in kernels:
        raise ValueError(
            f"{tile} does not take strides {left.stride()}, {right.stride()}, {out.stride()} here"
        )

    spans = spans or 1
    target = out
    if spans > 1:
        if not out.is_contiguous():
            raise ValueError(f"spans of k need contiguous planes, not {out.stride()}")
        target = out.launches.empty((spans * out.shape[0], *out.shape[1:]), torch.int8)
    reduction = Reduction(constants, spans, predicate or NO_PREDICATE, triangle)
    if tile.kernel == "hopper":
        hopper.launch(left, right, target, tile, reduction, k_block)
    else:
        side_by_side = spans * k_block
        for start in range(0, k, side_by_side):
            a, b = (
                x if k <= side_by_side else x[:, :, :, start : start + side_by_side]
                for x in (left, right)
            )
            _launch_plain(a, b, target, tile, reduction, k=a.shape[3], add=start > 0)
    if spans > 1:
        _launch_sums(target, out, reduction)


def _launch_sums(residues: Buffer, out: Buffer, reduction: Reduction) -> None:
    """Add the residues of the spans of each matrix to planes of `out`."""
    spans = reduction.spans
    batch, planes, rows, columns = out.shape
    entries = rows * columns
    _add_spans(
        (batch * planes * -(-entries // _SUMMED),),
        residues,
        out,
        reduction.constants,
        entries,
        planes,
        spans,
        reduction.predicate,
        PTX=out.is_cuda and torch.version.hip is None,
        ROWS=min(1 << (spans - 1).bit_length(), _SPANS_AT_A_TIME),
        BLOCK=_SUMMED,
        num_warps=4,
    )


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
        Slices, those of the right operand in reverse order; the pitch is a multiple of
        128.
    k_block : int
        Terms that go into one sum, a multiple of 128, at most `K_BLOCK`.
    config : Tile, optional
        Otherwise `tile_for` chooses.

    Returns
    -------
    list of int32 tensors (batch, planes, m_pad, n_pad)
        Part l is the diagonal s = S - 1 - l, its first `k_block` terms in the first
        tensor, further ones in the next; only [:m, :n] means anything.
    """
    (_, m, count, pitch), n = left.shape, right.shape[1]
    batch = max(left.shape[0], right.shape[0])
    gpu = gpu_of(left.device)
    pieces = []
    hopper = hopper_module("residue_gemm_hopper", left.device)
    kernels = KERNELS if hopper is not None else ("triton",)
    # Every pair of slices counts as a plane.
    tile = config or tile_for(
        ProductShape(m, n, pitch, batch * count * (count + 1) // 2), gpu, kernels
    )
    rows, columns = (
        (tile.block_m, tile.block_n) if tile.kernel == "hopper" else (1, 128)
    )
    for start in range(0, count * pitch, k_block):
        parts = count - start // pitch
        out = left.launches.empty(
            (batch, parts, -(-m // rows) * rows, -(-n // columns) * columns),
            torch.int32,
        )
        if tile.kernel == "hopper":
            hopper.launch_diagonals(left, right, out, start, tile, k_block)
        else:
            row = count * pitch
            # Views of 128 entries: the vectors behind them are of several lengths.
            x = left.view(-1)[start:].as_strided(
                (len(left), parts, m, 128), (m * row, 0, row, 1)
            )
            y = right.view(-1)[start:].as_strided(
                (len(right), parts, n, 128), (n * row, pitch, row, 1)
            )
            _launch_plain(
                x,
                y,
                out,
                tile,
                Reduction(),
                k=row - start,
                less_k=pitch,
                max_k=k_block,
            )
        pieces.append(out)
    return pieces


def _check(
    left: Buffer,
    right: Buffer,
    constants: Buffer,
    out: Buffer,
    k_block: int,
) -> None:
    """Raise ValueError where `residue_gemm` does not take these tensors."""
    if not 0 < k_block <= K_BLOCK or k_block % 16:
        raise ValueError(
            f"k_block = {k_block} must be a multiple of 16 in 16 .. {K_BLOCK}"
        )
    batch, planes, m, n = out.shape[0], left.shape[1], left.shape[2], right.shape[2]
    fits = (
        left.shape[0] in (1, batch)
        and right.shape[0] in (1, batch)
        and out.shape[2] >= m
        and out.shape[3] >= n
    )
    if (
        not fits
        or {right.shape[1], out.shape[1], constants.shape[0]} != {planes}
        or left.shape[3] != right.shape[3]
    ):
        shapes = [tuple(x.shape) for x in (left, right, constants, out)]
        raise ValueError(
            "shapes of left, right, constants and out do not match: {}, {}, {}, {}".format(
                *shapes
            )
        )
    for x in (left, right, out):
        if x.dtype != torch.int8 or x.device != left.device:
            raise ValueError(
                f"operands must be int8 on one device, not {x.dtype} on {x.device} beside {left.device}"
            )
        if x.numel() == 0:
            continue
        if (
            x.stride(3) != 1
            or x.shape[3] % 16
            or any(s % 16 for s in x.stride()[:3])
            or x.data_ptr() % 16
        ):
            raise ValueError(
                f"rows of {tuple(x.shape)} with strides {x.stride()} are not multiples of 16 bytes apart"
            )


def exact_int8_gemm(a: Buffer, b: Buffer, *, config: Tile | None = None) -> Buffer:
    """The exact integer product of int8 stacks of any strides, as int32.

    The stacks are (batch or 1, m, k) and (batch or 1, k, n). The caller sees to k
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
    planes = out.view(batch, 1, m, n)
    _launch_plain(left, right, planes, tile, Reduction(), k=k)
    return out
