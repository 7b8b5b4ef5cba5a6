"""The Triton kernel that cuts vectors into INT8 slices; `slices.py` launches it.

A program holds one tile of vectors in registers, so that operands are read once; vectors longer than a tile are those
of words_kernels.py. Entries are scaled to y = 2**-g x, g the exponent of the first slice's grid, and then each slice is
an integer next to y, and what is left of y times 2**beta goes on. All of it is exact in the format of the operand: what
underflows lies further below the first slice than float32 or float64 reach, and never gets to a slice.
"""

# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from hifigemm.engines.kernels.elementary import power_of_two, power_of_two_single
from hifigemm.engines.kernels.words_kernels import NOT_FINITE, largest_magnitude, load_tile

__all__ = ["NOT_FINITE", "Form", "slice_kernel"]

_ROUND_SINGLE = tl.constexpr(1.5 * 2.0**23)
_ROUND_DOUBLE = tl.constexpr(1.5 * 2.0**52)
_FRACTION_SINGLE = tl.constexpr((1 << 23) - 1)
_FRACTION_DOUBLE = tl.constexpr((1 << 52) - 1)


@dataclass(frozen=True)
class Form:
    """What the kernel knows of the slices and tiles of an operand when it is compiled.

    Attributes
    ----------
    single : bool
        Entries are float32, else float64.
    count : int
        Number of slices.
    beta : int
        Bits of a slice.
    limit : float
        Remainders from here on belong to the next integer; 1 for digits to nearest.
    top : int
        Fraction bits of an entry from which on the grid is one coarser; more than there are for digits to nearest.
    reverse : bool
        The last slice stands first.
    block_v, block_k : int
        Vectors and entries of a tile.
    even : bool
        Tiles cover the operand exactly.
    stage : str
        See words_kernels.Form.
    """

    single: bool
    count: int
    beta: int
    limit: float
    top: int
    reverse: bool
    block_v: int
    block_k: int
    even: bool
    stage: str


@triton.jit
def _grid(size, FORM: tl.constexpr):
    """Exponent of the first slice's grid for a vector with these bits of its largest magnitude."""
    if FORM.single:
        normal = size >= 0x800000
        bits = tl.where(normal, size, size.to(tl.float32).to(tl.int32, bitcast=True))
        e = (bits >> 23) - tl.where(normal, 126, 275)
        fraction = bits & _FRACTION_SINGLE
    else:
        normal = size >= 0x10000000000000
        bits = tl.where(normal, size, size.to(tl.float64).to(tl.int64, bitcast=True))
        e = (bits >> 52).to(tl.int32) - tl.where(normal, 1022, 2096)
        fraction = bits & _FRACTION_DOUBLE
    e += (fraction >= FORM.top).to(tl.int32)
    return tl.where(size == 0, 0, e) - (FORM.beta - 1)


@triton.jit
def _scaled(x, g, FORM: tl.constexpr):
    """2**-g x."""
    if FORM.single:
        first = tl.minimum(-g, 126)
        return x * power_of_two_single(first) * power_of_two_single(-g - first)
    else:
        first = tl.minimum(-g, 1000)
        return x * power_of_two(first) * power_of_two(-g - first)


@triton.jit
def _digit(y, FORM: tl.constexpr):
    """The slice of y as INT8, which wraps from h to -h, and what the integer nearest to y leaves."""
    if FORM.single:
        raised = y + _ROUND_SINGLE
        rest = y - (raised - _ROUND_SINGLE)
        digit = raised.to(tl.int32, bitcast=True)
    else:
        raised = y + _ROUND_DOUBLE
        rest = y - (raised - _ROUND_DOUBLE)
        digit = raised.to(tl.int64, bitcast=True).to(tl.int32)
    if FORM.limit < 1.0:
        digit += (rest >= FORM.limit).to(tl.int32)
    return digit.to(tl.int8), rest


@triton.jit
def _slice_tile(operand, program, k, pitch, FORM: tl.constexpr):
    """One tile of an operand."""
    x, parts, exponents, workspace, vectors, total, batch_stride, vector_stride, k_stride, chunks = operand
    source = x, vectors, batch_stride, vector_stride, k_stride, chunks
    value, panel, chunk, z, v, h = load_tile(source, program, k, FORM)
    exists = v < vectors
    if FORM.single:
        magnitude = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    else:
        magnitude = value.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
    row = z * vectors + v
    size = largest_magnitude(magnitude, workspace + row, workspace + total + panel, exists, chunks, FORM)
    if FORM.stage != "magnitudes":
        finite = size < (0x7F800000 if FORM.single else 0x7FF0000000000000)
        g = tl.where(finite, _grid(size, FORM), 0)
        if chunk == 0:
            tl.store(exponents + row, tl.where(finite, g, NOT_FINITE), mask=exists)
        y = _scaled(tl.where(finite[:, None], value, 0.0), g[:, None], FORM)
        COUNT: tl.constexpr = FORM.count
        to = parts + (row * pitch * COUNT)[:, None] + h[None, :]
        for p in tl.static_range(COUNT):
            digit, rest = _digit(y, FORM)
            place = to + (COUNT - 1 - p if FORM.reverse else p) * pitch
            if FORM.even:
                tl.store(place, digit)
            else:
                tl.store(place, digit, mask=exists[:, None] & (h < pitch)[None, :])
            y = rest * 2.0**FORM.beta


_SIDE = ["vectors", "total", "chunks"]
_FREE = ["programs", *(f"{side}_{name}" for side in ("left", "right") for name in _SIDE)]


@triton.jit(do_not_specialize=_FREE)
def slice_kernel(
    left_x,
    left_parts,
    left_exponents,
    left_workspace,
    left_vectors,
    left_total,
    left_batch_stride,
    left_vector_stride,
    left_k_stride,
    left_chunks,
    right_x,
    right_parts,
    right_exponents,
    right_workspace,
    right_vectors,
    right_total,
    right_batch_stride,
    right_vector_stride,
    right_k_stride,
    right_chunks,
    programs,
    k,
    pitch,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
):
    """Tiles of the left operand, then of the right one."""
    left = (left_x, left_parts, left_exponents, left_workspace, left_vectors, left_total)
    left += (left_batch_stride, left_vector_stride, left_k_stride, left_chunks)
    right = (right_x, right_parts, right_exponents, right_workspace, right_vectors, right_total)
    right += (right_batch_stride, right_vector_stride, right_k_stride, right_chunks)
    program = tl.program_id(0)
    if program < programs:
        _slice_tile(left, program, k, pitch, LEFT)
    else:
        _slice_tile(right, program - programs, k, pitch, RIGHT)
