"""Tiles of operands that are cut vector by vector, with k innermost in what is stored,
in one launch or two.

A program holds one tile of vectors in registers, so that operands are read once.
Vectors that lie in one tile are "whole". Programs of longer ones exchange the largest
magnitudes through memory and wait for each other ("together"): they have consecutive
indices, and there are no more of them than the device runs at a time. Programs start in
the order of their indices, so that all programs of the first vectors that are not
finished run at the same time. Where there are more, one launch finds the "magnitudes"
and a second one has them "given".
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.launch import Launch
from hifigemm.kernels.runtime.tiles import gpu_of
from hifigemm.kernels.vectors.statistics import tile_of_vectors

NOT_FINITE = tl.constexpr(-(2**30))
"""Exponent of a vector that holds an Inf or NaN."""
COUNTS = [
    "left_vectors",
    "left_total",
    "left_chunks",
    "right_vectors",
    "right_total",
    "right_chunks",
    "programs",
]
"""Arguments that kernels are not specialised for: vectors of a matrix and of the stack,
tiles of a vector.
"""
_WARPS = 4
_PROGRAMS = 256
"""Programs that occupy the device."""


@dataclass(frozen=True)
class VectorTile:
    """What a kernel knows of the tiles of an operand when it is compiled."""

    # `block_v`, `block_k`: vectors and entries of a tile
    block_v: int
    block_k: int
    even: bool  # tiles cover the operand exactly
    stage: str  # see above


@dataclass(frozen=True)
class _TiledOperand:
    """An operand as launches see it: `chunks` tiles hold a vector, `programs` the
    operand.
    """

    batch: int
    vectors: int
    k: int
    strides: tuple[int, int, int]
    chunks: int
    programs: int
    tile: VectorTile

    @property
    def scratch(self) -> int:
        """Numbers that programs exchange: the magnitudes of vectors, and arrivals; up
        to a multiple of 16 bytes.
        """
        if self.tile.stage == "whole" or not self.programs:
            return 0
        return -(-(self.batch * self.vectors + self.programs // self.chunks) // 4) * 4


class _StridedOperand(NamedTuple):
    """An operand as kernels take it; strides along the stack, the vectors and k, named
    as those of a `Strided`.
    """

    entries: Buffer
    planes: Buffer
    exponents: Buffer
    workspace: Buffer
    loss: Buffer
    batch: int
    row: int
    column: int


class _SideArguments(NamedTuple):
    """What kernels take of one side: the operand, its vectors in a matrix and in the
    stack, and the tiles of a vector.
    """

    operand: _StridedOperand
    vectors: int
    total: int
    chunks: int


def num_sms(x: Buffer) -> int:
    """Multiprocessors of the device of a tensor.

    0 in the interpreter, where programs cannot wait for each other.
    """
    return gpu_of(x.device).num_sms if x.is_cuda else 0


def side_of(x: Buffer, axis: int, pitch: int, entries: int) -> _TiledOperand:
    """The tiles of an operand (batch, m, k) or (batch, k, n), `axis` that of k.

    `pitch` is the length of a stored vector, `entries` those of a tile.
    """
    return _planned(tuple(x.shape), x.stride(), axis, pitch, entries, num_sms(x))


@lru_cache(maxsize=1024)
def _planned(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    axis: int,
    pitch: int,
    entries: int,
    sms: int,
) -> _TiledOperand:
    batch, vectors, k = shape[0], shape[3 - axis], shape[axis]
    block_v, block_k = _tile_of(
        batch * vectors, pitch, entries, along_k=stride[axis] == 1 or vectors == 1
    )
    chunks, panels = -(-pitch // block_k), -(-vectors // block_v)
    stage = "whole" if chunks == 1 else "together" if chunks <= sms else "magnitudes"
    tile = VectorTile(
        block_v, block_k, k % block_k == 0 and vectors % block_v == 0 and k > 0, stage
    )
    strides = stride[0] if batch > 1 else 0, stride[3 - axis], stride[axis]
    return _TiledOperand(
        batch, vectors, k, strides, chunks, batch * panels * chunks, tile
    )


def _tile_of(
    vectors: int, pitch: int, entries: int, *, along_k: bool
) -> tuple[int, int]:
    """Vectors and entries of a vector in a tile; a stored vector has `pitch` entries.

    Eight float32 vectors side by side fill a sector of memory where k is strided, 32 a
    cache line.
    """
    length = triton.next_power_of_2(pitch)
    if along_k:
        min_vectors = 1
        block_k = min(entries, length)
    else:
        min_vectors = 8
        block_k = length if length <= entries // 8 else entries // 32
    block_v = min(entries // block_k, max(min_vectors, triton.next_power_of_2(vectors)))
    chunks = -(-pitch // block_k)
    while block_v > min_vectors and -(-vectors // block_v) * chunks < _PROGRAMS:
        block_v //= 2
    return block_v, block_k


def launch_both(
    kernel: Launch,
    sides: Sequence[_TiledOperand],
    tensors: Sequence[tuple[Any, Any, Any, Any]],
    forms: Sequence[Any],
    magnitudes: torch.dtype,
    *scalars: Any,
    **options: Any,
) -> None:
    """Launch a kernel that makes tiles of a left operand, then of a right one.

    Parameters
    ----------
    kernel : Launch
    sides
        One or two operands as launches see them.
    tensors
        For each operand: its tensor, what is made of it, its exponents, and where
        losses go.
    forms
        For each operand, what the kernel is compiled for, `tile` among it.
    magnitudes : dtype
        Of the numbers that programs exchange.
    *scalars, **options
        Further arguments, and constexpr parameters, of the kernel.
    """
    counts = [side.scratch for side in sides]
    workspaces = tensors[0][0].launches.zeros((sum(counts),), magnitudes).split(counts)
    arguments = []
    for side, (x, planes, exponents, loss), scratch in zip(
        sides, tensors, workspaces, strict=True
    ):
        # Where nothing is exchanged any address will do: nothing is read or written.
        workspace = scratch if side.scratch else exponents
        operand = _StridedOperand(x, planes, exponents, workspace, loss, *side.strides)
        total = side.batch * side.vectors
        arguments.append(_SideArguments(operand, side.vectors, total, side.chunks))
    # One operand stands on both sides; no program makes tiles of the right one then.
    left = arguments[0]
    right = arguments[-1]

    # Operands whose magnitudes the first launch finds are cut by a second one.
    first_programs = [side.programs for side in sides]
    second_programs = [
        side.programs if side.tile.stage == "magnitudes" else 0 for side in sides
    ]
    second_forms = [
        replace(form, tile=replace(form.tile, stage="given")) if programs else form
        for form, programs in zip(forms, second_programs, strict=True)
    ]
    for programs, tile_forms in (
        (first_programs, forms),
        (second_programs, second_forms),
    ):
        if sum(programs):
            constants = {
                "LEFT": tile_forms[0],
                "RIGHT": tile_forms[-1],
                "num_warps": _WARPS,
                **options,
            }
            kernel(
                (sum(programs),),
                left.operand,
                left.vectors,
                left.total,
                left.chunks,
                right.operand,
                right.vectors,
                right.total,
                right.chunks,
                programs[0],
                *scalars,
                **constants,
            )


@triton.jit
def load_tile(operand, counts, program, k, FORM: tl.constexpr):
    """A tile of an operand: its entries, matrix, vectors and indices along k.

    A tile is block_v vectors, a panel, times block_k entries along k, a chunk. The
    programs of one panel have consecutive indices. FP16 and BF16 entries become FP32.
    """
    vectors, _, chunks = counts
    entries, inside, z, v, h = tile_of_vectors(
        operand, program, vectors, k, chunks, FORM.tile.block_v, FORM.tile.block_k
    )
    # An operand is read again only after the stage "magnitudes"; what is made of it is
    # read soon.
    if FORM.tile.even:
        value = tl.load(entries, eviction_policy="evict_first")
    else:
        value = tl.load(entries, mask=inside, other=0.0, eviction_policy="evict_first")
    if value.dtype.primitive_bitwidth == 16:
        value = value.to(tl.float32)
    return value, z, v, h


@triton.jit
def largest_magnitude(
    magnitude, operand, counts, program, row, exists, FORM: tl.constexpr
):
    """Largest magnitude of each vector, over all programs that hold a part of it.

    Magnitudes are bits without a sign, or other integers in the order of |x|. In the
    stage "magnitudes" it is that of this tile alone.
    """
    _, total, chunks = counts
    magnitudes = operand.workspace + row
    arrivals = operand.workspace + total + program // chunks
    # An earlier launch has joined the tiles of each vector.
    if FORM.tile.stage == "given":
        largest = tl.load(magnitudes, mask=exists, other=0)
    else:
        largest = tl.max(magnitude, axis=1)
        if FORM.tile.stage != "whole":
            # A maximum does not depend on the order of programs; the workspace starts
            # as zeros.
            tl.atomic_max(magnitudes, largest, mask=exists, sem="relaxed")
        # All threads of the program have joined their part before it counts as arrived,
        # and the count releases that to others. Once all programs of the panel have
        # arrived the maximum is final, and is read from the cache that all share.
        # None waits for one that cannot start: there are no more of them than
        # multiprocessors, and see the beginning of this file.
        if FORM.tile.stage == "together":
            tl.debug_barrier()
            arrived = tl.atomic_add(arrivals, 1, sem="acq_rel") + 1
            while arrived < chunks:
                arrived = tl.atomic_add(arrivals, 0, sem="acquire")
            largest = tl.load(magnitudes, mask=exists, other=0, cache_modifier=".cg")
    return largest
