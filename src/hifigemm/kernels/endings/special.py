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
"""Complex entries of a tile."""


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
