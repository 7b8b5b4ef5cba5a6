"""A D and D**-1 B as operands of their own on a GPU: numerics.inner_scaling, with the
same bits.

D = diag(2**d) stands between the columns of A and the rows of B. Products of the copies
are those of A and B, and whatever reads them knows of no exponents. Entries are float64,
so that no factor takes them out of range: d is chosen such that none becomes larger than
the largest of its vector, nor subnormal.

The kernel sees rows of real numbers. Columns are what follows each other in memory: k
where entries of a vector do so, else the vectors. A complex entry is two columns. The
copy has the same rows and columns, without gaps.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
from hifigemm.kernels.runtime.launch import Launch, real_view
from hifigemm.kernels.vectors.vector_norms import VECTOR, K, along, chosen

_ROWS = tl.constexpr(8)
_COLUMNS = tl.constexpr(512)
"""Rows and columns of a tile, in real numbers."""


class _Rows(NamedTuple):
    """An operand and its copy as rows of real numbers.

    Columns follow each other in runs: one number, or two that lie side by side.
    """

    numbers: Any  # tensor
    copy: Any  # float64 tensor, without gaps
    # `matrix`, `row`, `run`: strides of the operand, in units of a run
    matrix: int
    row: int
    run: int
    # `num_rows`, `num_runs`: of a matrix
    num_rows: int
    num_runs: int
    is_along_k: int  # 1 where k goes with the columns, 0 where it goes with the rows
    shared: int  # 2**shared columns, or rows, share an exponent


@triton.jit(do_not_specialize=["a", "b", "programs_a", "predicate"])
def scaled_along_k_kernel(a, b, programs_a, exponents, predicate, RUN: tl.constexpr):
    """Twin: numerics.inner_scaling.scaled_along_k, of one operand or of both.

    A program copies a tile, of A first. Nothing where the predicate does not hold.
    """
    if not holds(predicate):
        return
    program = tl.program_id(0)
    is_left = program < programs_a
    (
        numbers,
        copy,
        matrix_stride,
        row_stride,
        run_stride,
        num_rows,
        num_runs,
        is_along_k,
        shared,
    ) = chosen(is_left, a, b)

    # The tile: its matrix of the stack, rows and columns. Programs count the tiles of a
    # row of tiles, then the rows of tiles, then the matrices. No two write the same
    # entries.
    program -= tl.where(is_left, 0, programs_a)
    row_tiles = tl.cdiv(num_rows, _ROWS)
    column_tiles = tl.cdiv(num_runs, _COLUMNS // RUN)
    batch = (program // column_tiles // row_tiles).to(tl.int64)
    rows = program // column_tiles % row_tiles * _ROWS + tl.arange(0, _ROWS)
    columns = program % column_tiles * _COLUMNS + tl.arange(0, _COLUMNS)

    # Rows take the axis VECTOR and columns the axis K of vector_norms, whichever k is.
    # The compiler sees that a run begins at a multiple of its length, and that its
    # numbers share their mask: they are loaded and stored together.
    tile_rows = along(rows, VECTOR).to(tl.int64)
    tile_runs = along(columns, K) // RUN
    in_run = along(columns, K) % RUN
    inside = (tile_rows < num_rows) & (tile_runs < num_runs)
    source = batch * matrix_stride + tile_rows * row_stride
    source += tile_runs.to(tl.int64) * run_stride
    x = tl.load(numbers + (source * RUN + in_run), mask=inside)

    # Exponents go with the columns or with the rows; the other factor is 2**0.
    has_exponent = columns < is_along_k * num_runs * RUN
    of_columns = tl.load(exponents + (columns >> shared), mask=has_exponent, other=0)
    has_exponent = rows < (1 - is_along_k) * num_rows
    of_rows = tl.load(exponents + (rows >> shared), mask=has_exponent, other=0)
    of_rows = power_of_two(tl.where(is_left, of_rows, -of_rows))
    of_columns = power_of_two(tl.where(is_left, of_columns, -of_columns))
    scaled = x.to(tl.float64) * along(of_rows, VECTOR) * along(of_columns, K)

    target = (batch * num_rows + tile_rows) * num_runs + tile_runs
    tl.store(copy + (target * RUN + in_run), scaled, mask=inside)


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
    predicate : Predicate, optional
        Decides on the device: unless the entry lies within the limits the operands are
        not read, and what is returned means nothing.
    neighbours : int
        Terms that share an exponent: two where complex operands are embedded as real
        ones.
    """
    copies = [_copy_of(x, axis) for x, axis in operands]
    run = min(_longest_run(x, axis) for x, axis in operands)
    sides = [
        _rows_of(x, axis, copy, run, neighbours)
        for (x, axis), copy in zip(operands, copies, strict=True)
    ]
    programs = [
        len(x)
        * -(-side.num_rows // _ROWS.value)
        * -(-side.num_runs * run // _COLUMNS.value)
        for (x, _), side in zip(operands, sides, strict=True)
    ]
    # An operand that comes alone may be a right one.
    programs_a = programs[0] if operands[0][1] == 2 else 0
    _scale(
        (sum(programs),),
        sides[0],
        sides[-1],
        programs_a,
        exponents,
        predicate or NO_PREDICATE,
        RUN=run,
        num_warps=8,
    )
    return copies


def _axis_of_columns(x: torch.Tensor | Buffer, axis: int) -> int:
    """That of k where entries follow each other along k, else that of the vectors."""
    is_along_k = x.shape[axis] == 1 or x.stride(axis) == 1
    return axis if is_along_k else 3 - axis


def _longest_run(x: Buffer, axis: int) -> int:
    """Two where all numbers lie in pairs, as re and im do, else one."""
    if x.is_complex():
        return 2
    columns = _axis_of_columns(x, axis)
    if x.stride(columns) != 1 or x.shape[columns] % 2:
        return 1
    # Rows and matrices begin at a pair, too.
    starts_at_pairs = x.stride(3 - columns) % 2 == 0
    if len(x) > 1:
        starts_at_pairs &= x.stride(0) % 2 == 0
    return 2 if starts_at_pairs else 1


def _rows_of(x: Buffer, axis: int, copy: Buffer, run: int, neighbours: int) -> _Rows:
    """What the kernel is told of an operand and its copy."""
    columns = _axis_of_columns(x, axis)
    rows = 3 - columns
    # Strides of complex operands are in units of a run.
    width = 1 + x.is_complex()
    return _Rows(
        numbers=real_view(x),
        copy=real_view(copy),
        matrix=x.stride(0) * width // run if len(x) > 1 else 0,
        row=x.stride(rows) * width // run,
        run=x.stride(columns),
        num_rows=x.shape[rows],
        num_runs=x.shape[columns] * width // run,
        is_along_k=int(columns == axis),
        shared=(neighbours > 1) + (columns == axis and x.is_complex()),
    )


def layout_of_copy(
    x: torch.Tensor | Buffer, axis: int
) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    """Shape, strides and dtype of the copy of an operand; `axis` is that of k."""
    batch, rows, cols = x.shape
    is_by_rows = _axis_of_columns(x, axis) == 2
    strides = (rows * cols, cols, 1) if is_by_rows else (rows * cols, 1, rows)
    dtype = torch.complex128 if x.is_complex() else torch.float64
    return (batch, rows, cols), strides, dtype


def _copy_of(x: Buffer, axis: int) -> Buffer:
    """Memory for the copy of an operand."""
    shape, strides, dtype = layout_of_copy(x, axis)
    copy: Buffer = x.launches.empty(shape, dtype)
    return copy.as_strided(shape, strides)
