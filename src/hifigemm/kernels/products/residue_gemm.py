"""INT8 products of residues, reduced modulo p before they leave the chip: an epilogue of
`int8_product.py`, and of `int8_product_hopper.py` in `residue_gemm_hopper.py`.

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
|s'| < 2**18. From 2**23 to 2**24 the bits of a float32 grow by 1 with each integer, so
that a dot product that starts from the bits of M p + d, M p a multiple of p above
2**23, ends at those of f = M p + s'. One fused multiply-add with 1/p and
3 2**22 - M + (M mod 256) rounds s'/p to an integer q in the low bits of its result g,
and bits(f) - p bits(g) has the low byte of s' - q p, because every other term is a
multiple of 256. Elsewhere (`reduce_portable`): s = h 2**16 + l gives
t = h (2**16 mod p) + l with |t| < 2**23, exact in float32, and t - p round(t / p).
Tests try all s' and t.
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

from hifigemm.kernels.products.int8_product import (
    K_BLOCK,
    Int8Product,
    entries_in_results,
    launch,
    planes_of,
    results_of,
)
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import (
    NO_PREDICATE,
    ROUND_SINGLE,
    Predicate,
    holds,
    runs_ptx,
)
from hifigemm.kernels.runtime.launch import Launch, uploaded
from hifigemm.kernels.runtime.tiles import (
    KERNELS,
    ProductShape,
    Tile,
    gpu_of,
    hopper_module,
    span_length,
    spans_for,
    tile_for,
)
from hifigemm.numerics.residues import centred

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
    # c_0 .. c_3 in the bytes of an INT32.
    word = int.from_bytes(
        bytes(centred(1 << (8 * j), p) & 255 for j in range(4)), "little", signed=False
    )
    word -= (word >> 31) << 32
    # M is `multiple`: M p lies so far above 2**23 that M p + s' does too.
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
def _reduce_and_store(sums, tile_origin, target, numbers, REDUCE: tl.constexpr):
    """Store the residues of a tile of sums modulo the modulus of part l.

    The launch before this one has left residues of earlier blocks of k, |r| <= 128, in
    the result; they are added first. In this launch no other program touches the tile.
    """
    address, stored = entries_in_results(sums, tile_origin, target, numbers)
    if target.earlier is not None:
        sums += tl.load(address, mask=stored, other=0).to(tl.int32)
    reduced = REDUCE(sums, target.constants + tile_origin[2] * CONSTANTS)
    tl.store(address, reduced.to(tl.int8), mask=stored)


@triton.jit
def store_residues_ptx(sums, tile_origin, m, n, target, numbers):
    """The epilogue of `residue_gemm` on NVIDIA; `target` are `Residues`.

    Twin: numerics.residue_products.residue_gemm, any representatives.
    """
    _reduce_and_store(sums, tile_origin, target, numbers, reduce_ptx)


@triton.jit
def store_residues_portable(sums, tile_origin, m, n, target, numbers):
    """The epilogue of `residue_gemm` elsewhere.

    Twin: numerics.residue_products.residue_gemm, any representatives.
    """
    _reduce_and_store(sums, tile_origin, target, numbers, reduce_portable)


@triton.jit(do_not_specialize=["num_planes", "spans", "predicate"])
def _add_spans_kernel(
    residues,
    out,
    constants,
    entries,
    num_planes,
    spans,
    predicate,
    REDUCE: tl.constexpr,
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
    reduced = REDUCE(sums, constants + l * CONSTANTS)
    tl.store(target, reduced.to(tl.int8), mask=columns < entries)


_add_spans = Launch(_add_spans_kernel)


class Residues(NamedTuple):
    """Where residues go, like `Results`, and what reduces them."""

    entries: Buffer
    batch: int
    part: int
    row: int
    columns: int
    constants: Any  # of all moduli
    earlier: Any = None  # the result, where residues of earlier blocks of k are added


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
    product = Int8Product(
        m,
        n,
        min(k, spans * k_block),
        planes,
        target.shape[0] * planes,
        spans,
        triangle=triangle,
        predicate=predicate or NO_PREDICATE,
    )
    results = Residues(*results_of(target), constants=constants)
    for start in range(0, k, product.k):
        part = product._replace(k=min(product.k, k - start))
        if tile.kernel == "hopper":
            hopper.launch(part, left, right, target, constants, start, tile)
            continue
        a, b = (
            planes_of(x if part.k == k else x[:, :, :, start : start + part.k])
            for x in (left, right)
        )
        launch(
            part._replace(span_lines=span_length(part.k, spans) // 128),
            a,
            b,
            tile,
            store_residues_ptx if runs_ptx(out) else store_residues_portable,
            results._replace(earlier=target if start else None),
            (target.shape[2],),
        )
    if spans > 1:
        _launch_sums(target, out, constants, product)


def _launch_sums(
    residues: Buffer, out: Buffer, constants: Buffer, product: Int8Product
) -> None:
    """Add the residues of the spans of each matrix to planes of `out`."""
    spans = product.spans
    batch, planes, rows, columns = out.shape
    entries = rows * columns
    _add_spans(
        (batch * planes * -(-entries // _SUMMED),),
        residues,
        out,
        constants,
        entries,
        planes,
        spans,
        product.predicate,
        REDUCE=reduce_ptx if runs_ptx(out) else reduce_portable,
        ROWS=min(1 << (spans - 1).bit_length(), _SPANS_AT_A_TIME),
        BLOCK=_SUMMED,
        num_warps=4,
    )


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
