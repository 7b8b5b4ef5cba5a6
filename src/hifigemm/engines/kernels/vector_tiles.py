"""Tiles of operands that are cut vector by vector, with k innermost in what is stored,
in one launch or two.

A program holds one tile of vectors in registers, so that operands are read once.
Vectors that lie in one tile are "whole". Programs of longer ones exchange the largest
magnitudes through memory and wait for each other ("together"): they have consecutive
indices, and there are no more of them than the device runs at a time. Where there are
more, one launch finds the "magnitudes" and a second one has them "given".
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

from hifigemm.engines.kernels.launch import Launch, cleared
from hifigemm.engines.kernels.tiles import gpu_of

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
class _Side:
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


class _Operand(NamedTuple):
    """What a kernel is given of an operand, its strides along the stack, the vectors
    and k behind it.
    """

    x: Any
    planes: Any
    exponents: Any
    workspace: Any
    loss: Any
    batch_stride: int
    vector_stride: int
    k_stride: int


def num_sms(x: torch.Tensor) -> int:
    """Multiprocessors of the device of a tensor, 0 in the interpreter, where programs
    cannot wait for each other.
    """
    return gpu_of(x.device).num_sms if x.is_cuda else 0


def side_of(x: torch.Tensor, axis: int, pitch: int, entries: int) -> _Side:
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
) -> _Side:
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
    return _Side(batch, vectors, k, strides, chunks, batch * panels * chunks, tile)


def _tile_of(
    vectors: int, pitch: int, entries: int, *, along_k: bool
) -> tuple[int, int]:
    """Vectors and entries of a vector in a tile; `pitch` is the length of a stored
    vector.

    Eight float32 vectors side by side fill a sector of memory where k is strided, 32 a
    cache line.
    """
    length = triton.next_power_of_2(pitch)
    if along_k:
        least, block_k = 1, min(entries, length)
    else:
        least, block_k = 8, length if length <= entries // 8 else entries // 32
    block_v = min(entries // block_k, max(least, triton.next_power_of_2(vectors)))
    chunks = -(-pitch // block_k)
    while block_v > least and -(-vectors // block_v) * chunks < _PROGRAMS:
        block_v //= 2
    return block_v, block_k


def launch_both(
    kernel: Launch,
    sides: Sequence[_Side],
    tensors: Sequence[tuple[Any, Any, Any, Any]],
    forms: Sequence[Any],
    magnitudes: torch.dtype,
    *scalars: Any,
    **options: Any,
) -> None:
    """The launches of a kernel that makes tiles of a left operand, then of a right one,
    or of one operand alone.

    `tensors` are the operand, what is made of it, its exponents and where losses go;
    `forms` are what the kernel is compiled for, `tile` among it, and `magnitudes` is
    the dtype of what programs exchange.
    """
    counts = [side.scratch for side in sides]
    workspaces = cleared(sum(counts), tensors[0][0], magnitudes).split(counts)
    arguments: list[Any] = []
    for side, (x, planes, exponents, loss), own in zip(
        sides, tensors, workspaces, strict=True
    ):
        workspace = own if side.scratch else exponents
        operand = _Operand(x, planes, exponents, workspace, loss, *side.strides)
        arguments += [operand, side.vectors, side.batch * side.vectors, side.chunks]
    again = [side.programs if side.tile.stage == "magnitudes" else 0 for side in sides]
    given = [
        replace(x, tile=replace(x.tile, stage="given")) if n else x
        for x, n in zip(forms, again, strict=True)
    ]
    for programs, own in (([side.programs for side in sides], forms), (again, given)):
        if sum(programs):
            both = arguments * (3 - len(sides))
            constants = {
                "LEFT": own[0],
                "RIGHT": own[-1],
                "num_warps": _WARPS,
                **options,
            }
            kernel((sum(programs),), *both, programs[0], *scalars, **constants)


@triton.jit
def load_tile(operand, counts, program, k, FORM: tl.constexpr):
    """A tile of an operand, and where it lies: panel, chunk, matrix of the stack,
    vectors, entries along k.
    """
    vectors, _, chunks = counts
    panel = program // chunks
    chunk = program % chunks
    panels = tl.cdiv(vectors, FORM.tile.block_v)
    z = (panel // panels).to(tl.int64)
    v = (panel % panels) * FORM.tile.block_v + tl.arange(0, FORM.tile.block_v)
    h = chunk * FORM.tile.block_k + tl.arange(0, FORM.tile.block_k)
    rows = operand.x + z * operand.batch_stride + v.to(tl.int64) * operand.vector_stride
    at = rows[:, None] + h[None, :].to(tl.int64) * operand.k_stride
    # Nobody reads an operand again; what is made of it is read soon.
    if FORM.tile.even:
        value = tl.load(at, eviction_policy="evict_first")
    else:
        inside = (v < vectors)[:, None] & (h < k)[None, :]
        value = tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first")
    return value, panel, chunk, z, v, h


@triton.jit
def largest_magnitude(
    magnitude, operand, counts, panel, row, exists, FORM: tl.constexpr
):
    """The largest magnitude of each vector, from all programs that hold a part of
    it.
    """
    _, total, chunks = counts
    magnitudes = operand.workspace + row
    arrivals = operand.workspace + total + panel
    if FORM.tile.stage == "given":
        size = tl.load(magnitudes, mask=exists, other=0)
    else:
        size = tl.max(magnitude, axis=1)
        if FORM.tile.stage != "whole":
            tl.atomic_max(magnitudes, size, mask=exists, sem="relaxed")
        if FORM.tile.stage == "together":
            tl.debug_barrier()
            seen = tl.atomic_add(arrivals, 1, sem="acq_rel") + 1
            while seen < chunks:
                seen = tl.atomic_add(arrivals, 0, sem="acquire")
            size = tl.load(magnitudes, mask=exists, other=0, cache_modifier=".cg")
    return size
