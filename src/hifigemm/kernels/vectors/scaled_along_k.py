"""A D and D**-1 B as operands of their own on a GPU: numerics.inner_scaling, with the
same bits.

D = diag(2**d) stands between the columns of A and the rows of B. Products of the copies
are those of A and B, and whatever reads them knows of no exponents. Entries are float64,
so that no factor takes them out of range: d is chosen such that none becomes larger than
the largest of its vector, nor subnormal. A copy lies in memory in the order of its
operand, so that it is read as quickly.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import (
    NO_PREDICATE,
    Predicate,
    holds,
    power_of_two,
)
from hifigemm.kernels.runtime.launch import Launch, vectors_of


@dataclass(frozen=True)
class _Side:
    """What the kernel knows of an operand when it is compiled."""

    # `vectors`, `terms`: of a tile, which has many neighbours in memory
    vectors: int
    terms: int
    sign: int  # of d: 1 for a left operand, -1 for a right one


@triton.jit
def _places(operand, batch, vectors, terms):
    """Addresses of the entries of a tile."""
    return (
        operand.entries
        + batch.to(tl.int64) * operand.batch
        + vectors.to(tl.int64)[:, None] * operand.row
        + terms.to(tl.int64)[None, :] * operand.column
    )


@triton.jit
def _copy_tile(
    operand,
    copy,
    task,
    count,
    k,
    exponents,
    NEIGHBOURS: tl.constexpr,
    WIDTH: tl.constexpr,
    SIDE: tl.constexpr,
):
    """Write 2**d x or 2**-d x for one tile of an operand with `count` vectors."""
    # Tiles that follow each other hold the same vectors.
    chunks = tl.cdiv(k, SIDE.terms)
    panels = tl.cdiv(count, SIDE.vectors)
    batch = task // chunks // panels
    vectors = task // chunks % panels * SIDE.vectors + tl.arange(0, SIDE.vectors)
    terms = task % chunks * SIDE.terms + tl.arange(0, SIDE.terms)
    inside = (vectors < count)[:, None] & (terms < k)[None, :]

    # Both components of a complex entry take its factor.
    d = tl.load(exponents + terms // NEIGHBOURS, mask=terms < k, other=0)
    factors = power_of_two(SIDE.sign * d)[None, :]
    source = _places(operand, batch, vectors, terms)
    target = _places(copy, batch, vectors, terms)
    for i in tl.static_range(WIDTH):
        x = tl.load(source + i, mask=inside, other=0.0).to(tl.float64)
        tl.store(target + i, x * factors, mask=inside)


@triton.jit(do_not_specialize=["count_a", "count_b", "k", "tasks_a"])
def scaled_along_k_kernel(
    a,
    b,
    copy_a,
    copy_b,
    count_a,
    count_b,
    k,
    tasks_a,
    exponents,
    predicate,
    lower_limit: tl.int64,
    upper_limit: tl.int64,
    NEIGHBOURS: tl.constexpr,
    WIDTH: tl.constexpr,
    A: tl.constexpr,
    B: tl.constexpr,
):
    """Twin: numerics.inner_scaling.scaled_along_k, of one operand or of both.

    A program copies one tile, of the first operand first. NEIGHBOURS terms share an
    exponent. Nothing where the predicate does not hold.
    """
    if not holds(predicate, lower_limit, upper_limit):
        return
    task = tl.program_id(0)
    if task < tasks_a:
        _copy_tile(a, copy_a, task, count_a, k, exponents, NEIGHBOURS, WIDTH, A)
    else:
        task -= tasks_a
        _copy_tile(b, copy_b, task, count_b, k, exponents, NEIGHBOURS, WIDTH, B)


_scale = Launch(scaled_along_k_kernel)


def scaled_along_k(
    operands: Sequence[tuple[Buffer, int]],
    exponents: Buffer,
    predicate: Predicate | None = None,
    *,
    neighbours: int = 1,
) -> list[Buffer]:
    """A D and D**-1 B, or one of them, in float64 or complex128.

    Parameters
    ----------
    operands : one or two (tensor, axis)
        (batch or 1, m, k) with axis 2 for a left operand, (batch or 1, k, n) with axis 1
        for a right one; float32, float64, complex64 or complex128, any strides.
    exponents : int32 tensor
        d, see `inner_scaling.gaining_exponents`.
    predicate : (int64 tensor of one entry, lower limit, upper limit), optional
        Decides on the device: unless the entry lies within the limits the operands are
        not read, and what is returned means nothing.
    neighbours : int
        Terms that share an exponent: two where complex operands are embedded as real
        ones.
    """
    copies = [_copy_of(x) for x, _ in operands]
    sources = [vectors_of(x, axis) for x, axis in operands]
    targets = [
        vectors_of(copy, axis) for copy, (_, axis) in zip(copies, operands, strict=True)
    ]
    counts = [x.shape[3 - axis] for x, axis in operands]
    sides = [_side(x, axis) for x, axis in operands]
    first, axis = operands[0]
    k = first.shape[axis]
    tasks = [
        len(x) * -(-count // side.vectors) * -(-k // side.terms)
        for (x, _), count, side in zip(operands, counts, sides, strict=True)
    ]
    number, lower_limit, upper_limit = predicate or NO_PREDICATE
    # One operand stands on both sides; no program copies the second one then.
    _scale(
        (sum(tasks),),
        sources[0],
        sources[-1],
        targets[0],
        targets[-1],
        counts[0],
        counts[-1],
        k,
        tasks[0],
        exponents,
        number,
        lower_limit,
        upper_limit,
        NEIGHBOURS=neighbours,
        WIDTH=1 + first.is_complex(),
        A=sides[0],
        B=sides[-1],
        num_warps=8,
    )
    return copies


def layout_of_copy(
    x: torch.Tensor | Buffer,
) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    """Shape, strides and dtype of the copy of an operand, in the order of its entries."""
    batch, rows, cols = x.shape
    is_by_rows = x.stride(2) <= x.stride(1)
    strides = (rows * cols, cols, 1) if is_by_rows else (rows * cols, 1, rows)
    dtype = torch.complex128 if x.is_complex() else torch.float64
    return (batch, rows, cols), strides, dtype


def _copy_of(x: Buffer) -> Buffer:
    """Memory for the copy of an operand."""
    shape, strides, dtype = layout_of_copy(x)
    copy: Buffer = x.launches.empty(shape, dtype)
    return copy.as_strided(shape, strides)


def _side(x: Buffer, axis: int) -> _Side:
    """Tiles of an operand, long in the direction of neighbours in memory."""
    sign = 1 if axis == 2 else -1
    is_along_k = x.stride(axis) <= x.stride(3 - axis)
    return _Side(4, 512, sign) if is_along_k else _Side(64, 32, sign)
