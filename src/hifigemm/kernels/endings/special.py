"""Inf and NaN where IEEE arithmetic in any order puts them:
numerics.special.fill_nonfinite.

Kernels fill the entries of vectors that hold an Inf or NaN. Complex products of a
library are put right afterwards: it multiplies the sum by a complex alpha of 1 at last,
and 0 times an infinite imaginary part makes a NaN of the real one. Where a component of
such a product is not finite, its pattern is worked out again from the operands. What a
sum of finite terms that overflows does to both components stays.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import (
    NO_PREDICATE,
    Predicate,
    holds,
    sign_of_finite,
)
from hifigemm.kernels.runtime.launch import Launch, strided

_BLOCK = 512
"""Complex entries of a tile, or columns of real ones."""
_MARKED_ROWS = 64
"""Rows of a tile of real entries."""


@triton.jit
def nonfinite_product(
    row, columns, k, row_step, column_step, inside, WIDTH: tl.constexpr
):
    """Twin: numerics.special.fill_nonfinite. sum_h S(a_h) S(b_hj) in float64, for one
    row.

    S is the sign of a finite entry and the entry itself otherwise. For complex entries
    (WIDTH = 2) re and im come side by side, with S of each component.
    """
    # One entry of the row and one of each column after the other: these products are
    # rare. Only the pattern of Inf and NaN matters, which no order of terms changes.
    re = tl.zeros(columns.shape, tl.float64)
    im = tl.zeros(columns.shape, tl.float64)
    for h in range(k):
        offset = tl.cast(h, tl.int64) * WIDTH
        a = sign_of_finite(tl.load(row + offset * row_step).to(tl.float64))
        b = sign_of_finite(
            tl.load(columns + offset * column_step, mask=inside, other=0.0).to(
                tl.float64
            )
        )
        re += a * b
        if WIDTH == 2:
            a_im = sign_of_finite(tl.load(row + offset * row_step + 1).to(tl.float64))
            b_im = sign_of_finite(
                tl.load(columns + offset * column_step + 1, mask=inside, other=0.0).to(
                    tl.float64
                )
            )
            re -= a_im * b_im
            im += a * b_im + a_im * b
    if WIDTH == 2:
        re = tl.join(re, im)
    return re


@triton.jit(do_not_specialize=["m", "n", "k"])
def _fill_kernel(
    c,
    left,
    right,
    row_exponents,
    column_exponents,
    m,
    n,
    k,
    MARK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Twin: numerics.special.fill_nonfinite, on entries of vectors whose exponent is
    MARK. A program has a tile of ROWS by COLUMNS entries.
    """
    tiles = tl.cdiv(n, COLUMNS)
    panels = tl.cdiv(m, ROWS)
    first_row = tl.program_id(0) // tiles % panels * ROWS
    z = (tl.program_id(0) // (tiles * panels)).to(tl.int64)
    i = first_row + tl.arange(0, ROWS)
    j = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    exponents_of_rows, rows_batch = row_exponents
    exponents_of_rows += z * rows_batch
    exponents_of_columns, columns_batch = column_exponents
    exponents_of_columns += z * columns_batch
    e = tl.load(exponents_of_rows + i, mask=i < m, other=0)
    f = tl.load(exponents_of_columns + j, mask=j < n, other=0)
    # Almost every program ends here.
    if tl.min(e) == MARK or tl.min(f) == MARK:
        columns = j.to(tl.int64)
        entries = right.entries + z * right.batch + columns * right.column
        for row in range(first_row, tl.minimum(first_row + ROWS, m)):
            row = tl.cast(row, tl.int64)
            e_of_row = tl.load(exponents_of_rows + row)
            is_written = (j < n) & ((f == MARK) | (f * 0 + e_of_row == MARK))
            if tl.max(is_written.to(tl.int32)) > 0:
                value = nonfinite_product(
                    left.entries + z * left.batch + row * left.row,
                    entries,
                    k,
                    left.column,
                    right.row,
                    is_written,
                    1,
                )
                address = c.entries + z * c.batch + row * c.row + columns * c.column
                tl.store(address, value.to(c.entries.dtype.element_ty), mask=is_written)


_fill = Launch(_fill_kernel)


def fill_marked(
    operands: tuple[Buffer, Buffer],
    exponents: tuple[Buffer, Buffer],
    out: Buffer,
    mark: int,
) -> None:
    """Write the entries of vectors that hold an Inf or NaN.

    Parameters
    ----------
    operands : real buffers (batch or 1, m, k) and (batch or 1, k, n), any strides
    exponents : int32 buffers (batch or 1, m) and (batch or 1, n)
        `mark` for the vectors whose entries are written.
    out : float32 or float64 buffer (batch, m, n), any strides
    mark : int
        Less than all other exponents.
    """
    batch, m, n = out.shape
    panels = batch * triton.cdiv(m, _MARKED_ROWS)
    _fill(
        (panels * triton.cdiv(n, _BLOCK),),
        strided(out),
        *(strided(x) for x in operands),
        *((x, x.stride(0) if x.shape[0] > 1 else 0) for x in exponents),
        m,
        n,
        operands[0].shape[2],
        MARK=mark,
        ROWS=_MARKED_ROWS,
        COLUMNS=_BLOCK,
        num_warps=4,
        enable_fp_fusion=False,
    )


_FREE = ["c", "left", "right", "entries", "columns", "k", "predicate"]


@triton.jit(do_not_specialize=_FREE)
def _restore_kernel(
    c,
    left,
    right,
    entries,
    columns,
    k,
    predicate,
    FLAT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Twin: numerics.special.fill_nonfinite, on components that are not finite.

    A tile is BLOCK of the `entries` of a matrix of the stack, which has rows of
    `columns` entries; with FLAT they follow each other in memory. Nothing where the
    predicate does not hold.
    """
    if not holds(predicate):
        return
    # Programs count the tiles of a matrix, then the matrices z of the stack. Each entry
    # is read and written by one program alone.
    entries = tl.cast(entries, tl.int64)
    blocks = tl.cdiv(entries, BLOCK)
    z = (tl.program_id(0) // blocks).to(tl.int64)
    first = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK
    # A first look at contiguous entries, real numbers one after the other: almost every
    # tile is finite and ends here.
    is_suspect = True
    if FLAT:
        numbers = 2 * first + tl.arange(0, 2 * BLOCK)
        # Both components of an entry are there, or none, and are loaded together.
        x = tl.load(
            c.entries + 2 * z * entries + numbers,
            mask=numbers // 2 < entries,
            other=0.0,
        )
        is_suspect = tl.max((tl.abs(x) < float("inf")).to(tl.int32) ^ 1) > 0
    if is_suspect:
        # Addresses of re and im of the entries; those beyond the last one are seen as
        # the last one, so that all rows and columns exist.
        index = first + tl.arange(0, BLOCK)
        inside = index < entries
        index = tl.minimum(index, entries - 1)
        i = index // columns
        j = index % columns
        offset = z * c.batch + i * c.row + j * c.column
        address = c.entries + 2 * offset
        re = tl.load(address, mask=inside, other=0.0)
        im = tl.load(address + 1, mask=inside, other=0.0)
        is_finite = (tl.abs(re) < float("inf")) & (tl.abs(im) < float("inf"))
        if tl.max(is_finite.to(tl.int32) ^ 1) > 0:
            # The pattern of the whole tile from rows of A and columns of B.
            row = left.entries + 2 * (z * left.batch + i * left.row)
            column = right.entries + 2 * (z * right.batch + j * right.column)
            re_pattern, im_pattern = tl.split(
                nonfinite_product(row, column, k, left.column, right.row, inside, 2)
            )
            # A component without an infinite term has overflowed, or its neighbour has;
            # it stays as the library has it.
            tl.store(
                address,
                re_pattern.to(re.dtype),
                mask=inside & ((tl.abs(re_pattern) < float("inf")) == 0),
            )
            tl.store(
                address + 1,
                im_pattern.to(im.dtype),
                mask=inside & ((tl.abs(im_pattern) < float("inf")) == 0),
            )


_launch = Launch(_restore_kernel)


def restore_special_values(
    a: Buffer,
    b: Buffer,
    c: Buffer,
    *,
    predicate: Predicate | None = None,
) -> None:
    """Write the pattern of Inf and NaN of A B to C, a library's product of A and B.

    Parameters
    ----------
    a, b : complex tensors (batch or 1, m, k) and (batch or 1, k, n), any strides
    c : complex tensor (batch, m, n), any strides
        Only components that are Inf or NaN in any order of summation are written. What
        overflowed stays.
    predicate : Predicate, optional
        Decides on the device: C stays as it is unless the entry lies within the limits.
    """
    if c.numel() == 0:
        return
    batch, m, n = c.shape
    c_batch, c_row, c_column = c.stride()
    is_flat = (c_row, c_column) == (n, 1) and (batch == 1 or c_batch == m * n)
    _launch(
        (batch * triton.cdiv(m * n, _BLOCK),),
        strided(c),
        strided(a),
        strided(b),
        m * n,
        n,
        a.shape[2],
        predicate or NO_PREDICATE,
        FLAT=is_flat,
        BLOCK=_BLOCK,
        num_warps=4,
        enable_fp_fusion=False,
    )
