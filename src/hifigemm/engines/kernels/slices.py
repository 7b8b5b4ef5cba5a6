"""INT8 slices of both operands of a product on the device: numerics.slicing as schemes.ozaki1 uses it.

Slices lie with k innermost, those of a vector one after the other: (batch, vectors, count, k_pitch), zeros beyond k, in
order on the left and in reverse order on the right, so that the pairs p + q = s of a diagonal are two contiguous planes
of s + 1 slices. One launch makes the slices of both operands, and reads them once; one more before it clears what the
programs of vectors longer than a tile exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from hifigemm.engines.kernels import slices_kernels
from hifigemm.engines.kernels.launch import Launch, empty
from hifigemm.engines.kernels.slices_kernels import Form
from hifigemm.engines.kernels.vector_tiles import WARPS, Side, forms_of_launches, num_sms, stage_of, tile_of
from hifigemm.engines.kernels.zeros import cleared
from hifigemm.numerics.slicing import digit_limit

__all__ = ["NOT_FINITE", "PITCH", "Slices", "k_pitch", "slice_operands"]

NOT_FINITE: int = slices_kernels.NOT_FINITE.value
"""Exponent of a vector that holds an Inf or NaN; its slices are zeros."""
PITCH = 128
_ENTRIES = {torch.float32: 8192, torch.float64: 4096}
"""Of a tile: 64 or 32 in each thread, so that four programs share the registers of a multiprocessor."""
_SIGNIFICAND = {torch.float32: 24, torch.float64: 53}
_MAGNITUDES = {torch.float32: torch.int32, torch.float64: torch.int64}

_slice = Launch(slices_kernels.slice_kernel)


@dataclass(frozen=True)
class Slices:
    """The slices of an operand.

    Attributes
    ----------
    planes : int8 tensor, shape (batch or 1, vectors, count, k_pitch)
    exponents : int32 tensor, shape (batch or 1, vectors)
        2**exponent is the unit of the first slice of a row or column; `NOT_FINITE` where it holds an Inf or NaN.
    beta : int
        Bits of a slice.
    """

    planes: torch.Tensor
    exponents: torch.Tensor
    beta: int


def k_pitch(k: int) -> int:
    """Length of a stored slice: k rounded up to 128, at least 128."""
    return max(PITCH, -(-k // PITCH) * PITCH)


def slice_operands(operands: Sequence[tuple[torch.Tensor, int]], count: int, beta: int) -> list[Slices]:
    """Slices of one or two operands, with the bits of `numerics.slicing.slice_vectors`.

    Slices of eight bits have digits in two's complement, shorter ones digits to nearest.

    Parameters
    ----------
    operands : pairs (tensor, axis)
        float32 or float64 tensors of three dimensions and any strides on the current device, and the axis of k: 2 for a
        left operand, 1 for a right one.
    count : int
        Number of slices, at most twelve.
    beta : int
        Bits of a slice, at most 8.

    Returns
    -------
    list of Slices, one an operand
    """
    if not 1 <= beta <= 8 or not 1 <= count <= 12:
        raise ValueError(f"{count} slices of {beta} bits: expected 1 .. 12 slices of 1 .. 8 bits")
    sides = [_side(x, axis, count, beta) for x, axis in operands]
    k, like = sides[0].k, operands[0][0]
    if any(side.k != k for side in sides) or len({x.dtype for x, _ in operands}) > 1:
        raise ValueError(
            f"operands of k = {', '.join(str(side.k) for side in sides)}, {[x.dtype for x, _ in operands]}"
        )
    made = []
    for side in sides:
        planes = empty((side.batch, side.vectors, count, k_pitch(k)), torch.int8, like)
        made.append(Slices(planes, empty((side.batch, side.vectors), torch.int32, like), beta))
    counts = [side.scratch for side in sides]
    workspaces = cleared(sum(counts), like, _MAGNITUDES[operands[0][0].dtype]).split(counts)
    arguments: list[Any] = []
    for (x, _), side, slices, own in zip(operands, sides, made, workspaces, strict=True):
        arguments += [x, slices.planes, slices.exponents, own if side.scratch else slices.exponents]
        arguments += [side.vectors, side.batch * side.vectors, *side.strides, side.chunks]
    both = arguments * (3 - len(sides))
    for programs, forms in forms_of_launches(sides):
        _slice(
            (sum(programs),),
            *(*both, programs[0], k, k_pitch(k)),
            LEFT=forms[0],
            RIGHT=forms[-1],
            num_warps=WARPS,
            enable_fp_fusion=False,
        )
    return made


def _side(x: torch.Tensor, axis: int, count: int, beta: int) -> Side:
    return _planned(tuple(x.shape), x.stride(), x.dtype, axis, count, beta, num_sms(x))


@lru_cache(maxsize=1024)
def _planned(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    axis: int,
    count: int,
    beta: int,
    sms: int,
) -> Side:
    """The tiles of an operand on a device of so many multiprocessors."""
    batch, vectors, k = shape[0], shape[3 - axis], shape[axis]
    block_v, block_k = tile_of(batch * vectors, k_pitch(k), _ENTRIES[dtype], along_k=stride[axis] == 1 or vectors == 1)
    chunks, panels = -(-k_pitch(k) // block_k), -(-vectors // block_v)
    bits, two = _SIGNIFICAND[dtype], beta == 8
    limit = digit_limit(beta, bits) if two else 1.0
    form = Form(
        single=dtype is torch.float32,
        count=count,
        beta=beta,
        limit=limit / 2 if two else 1.0,
        top=int(limit * 2.0**bits) - 2 ** (bits - 1),
        reverse=axis == 1,
        block_v=block_v,
        block_k=block_k,
        even=k % block_k == 0 and vectors % block_v == 0 and k > 0,
        stage=stage_of(chunks, sms),
    )
    strides = stride[0] if batch > 1 else 0, stride[3 - axis], stride[axis]
    return Side(batch, vectors, k, strides, chunks, batch * panels * chunks, form)
