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

from typing import Any

import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels.common import (
    NO_PREDICATE,
    Predicate,
    holds,
    sign_of_finite,
)
from hifigemm.engines.kernels.launch import Launch, operand_arguments, real_view

_BLOCK = 512


@triton.jit
def nonfinite_product(
    row, columns, k, row_step, column_step, inside, WIDTH: tl.constexpr
):
    """sum_h S(a_h) S(b_hj), S the sign of a finite entry and the entry itself
    otherwise; float64.

    For complex entries (WIDTH = 2) re and im side by side, with S of each component.
    """
    total = tl.zeros(columns.shape, tl.float64)
    other = tl.zeros(columns.shape, tl.float64)
    for h in range(k):
        at = tl.cast(h, tl.int64) * WIDTH
        a = sign_of_finite(tl.load(row + at * row_step).to(tl.float64))
        b = sign_of_finite(
            tl.load(columns + at * column_step, mask=inside, other=0.0).to(tl.float64)
        )
        total += a * b
        if WIDTH == 2:
            a_im = sign_of_finite(tl.load(row + at * row_step + 1).to(tl.float64))
            b_im = sign_of_finite(
                tl.load(columns + at * column_step + 1, mask=inside, other=0.0).to(
                    tl.float64
                )
            )
            total -= a_im * b_im
            other += a * b_im + a_im * b
    if WIDTH == 2:
        total = tl.join(total, other)
    return total


@triton.jit(do_not_specialize=["least", "most"])
def _restore_kernel(
    c,
    c_batch,
    c_row,
    c_col,
    left,
    left_batch,
    left_row,
    left_k,
    right,
    right_batch,
    right_k,
    right_col,
    entries,
    columns,
    k,
    predicate,
    least,
    most,
    FLAT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`entries` of each matrix of the stack, rows of `columns`; with FLAT they follow
    each other in memory.

    Nothing where the predicate does not hold.
    """
    if predicate is not None:  # noqa: SIM102
        if not holds(predicate, least, most):
            return
    entries = tl.cast(entries, tl.int64)
    blocks = tl.cdiv(entries, BLOCK)
    z = (tl.program_id(0) // blocks).to(tl.int64)
    first = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK
    suspect = True
    if FLAT:
        part = 2 * first + tl.arange(0, 2 * BLOCK)
        x = tl.load(c + 2 * z * entries + part, mask=part < 2 * entries, other=0.0)
        suspect = tl.max((tl.abs(x) < float("inf")).to(tl.int32) ^ 1) > 0
    if suspect:
        at = first + tl.arange(0, BLOCK)
        inside = at < entries
        at = tl.minimum(at, entries - 1)
        i, j = at // columns, at % columns
        place = c + 2 * (z * c_batch + i * c_row + j * c_col)
        re, im = (
            tl.load(place, mask=inside, other=0.0),
            tl.load(place + 1, mask=inside, other=0.0),
        )
        found = (tl.abs(re) < float("inf")) & (tl.abs(im) < float("inf"))
        if tl.max(found.to(tl.int32) ^ 1) > 0:
            row, column = (
                left + 2 * (z * left_batch + i * left_row),
                right + 2 * (z * right_batch + j * right_col),
            )
            pattern, other = tl.split(
                nonfinite_product(row, column, k, left_k, right_k, inside, 2)
            )
            # A component without an infinite term has overflowed, or its neighbour has;
            # it stays as the library has it.
            tl.store(
                place,
                pattern.to(re.dtype),
                mask=inside & ((tl.abs(pattern) < float("inf")) == 0),
            )
            tl.store(
                place + 1,
                other.to(im.dtype),
                mask=inside & ((tl.abs(other) < float("inf")) == 0),
            )


_launch: Any = Launch(_restore_kernel)


def restore_special_values(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    *,
    predicate: Predicate | None = None,
) -> None:
    """The pattern of Inf and NaN of A B in C, a library's product of them, on torch's
    current stream.

    Parameters
    ----------
    a, b : complex tensors (batch or 1, m, k) and (batch or 1, k, n), any strides
    c : complex tensor (batch, m, n), any strides
        Only components that are Inf or NaN in any order of summation are written. What
        overflowed stays.
    predicate : (int64 tensor of one entry, least, most), optional
        Decides on the device: C stays as it is unless least <= predicate <= most.
    """
    if c.numel() == 0:
        return
    batch, m, n = c.shape
    arguments = operand_arguments((a, b))
    arguments[0], arguments[4] = real_view(a), real_view(b)
    flat = c.stride()[1:] == (n, 1) and (batch == 1 or c.stride(0) == m * n)
    _launch(
        (batch * triton.cdiv(m * n, _BLOCK),),
        real_view(c),
        *c.stride(),
        *arguments,
        *(m * n, n, a.shape[2], *(predicate or NO_PREDICATE)),
        FLAT=flat,
        BLOCK=_BLOCK,
        num_warps=4,
        enable_fp_fusion=False,
    )
