"""The largest entries of |A||B| in rows and in columns, by one INT8 product of
magnitudes that are rounded up, of which nothing else is stored.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from hifigemm.kernels.products.int8_product import (
    launch_on_magnitudes,
    product_of_magnitudes,
)
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.tiles import ProductShape, gpu_of, tile_for
from hifigemm.kernels.vectors.upper_magnitudes import UpperMagnitudes


class _Sums(NamedTuple):
    """Where the largest sums of all vectors go."""

    largest: Buffer


class _Numbers(NamedTuple):
    """Where the vectors of a matrix begin."""

    rows_a: int  # from one matrix to the next
    rows_b: int
    first_right: int


@triton.jit
def raise_largest(sums, tile_origin, m, n, target, numbers):
    """The epilogue of the largest sums: raise the numbers of rows and columns to the
    largest sums of a tile.

    Twin: schemes.ozaki2.largest_sums.
    """
    _, z, _, row0, column0 = tile_origin
    rows = row0 + tl.arange(0, sums.shape[0])
    columns = column0 + tl.arange(0, sums.shape[1])
    # Vectors beyond the last one are those at the beginning again.
    is_entry = (rows[:, None] < m) & (columns[None, :] < n)
    sums = tl.where(is_entry, sums, 0)
    # A maximum does not depend on the order of programs.
    of_rows = target.largest + z * numbers.rows_a + rows
    of_columns = target.largest + numbers.first_right + z * numbers.rows_b + columns
    tl.atomic_max(of_rows, tl.max(sums, axis=1), mask=rows < m, sem="relaxed")
    tl.atomic_max(of_columns, tl.max(sums, axis=0), mask=columns < n, sem="relaxed")


def largest_sums(magnitudes: UpperMagnitudes) -> Buffer:
    """int32 (total,): the largest sum of each vector, of re and of im.

    A stack of one has the largest sums with all matrices of the other stack. The
    magnitudes have `MAGNITUDE_TERMS` terms at the most.
    """
    width = magnitudes.width
    like = magnitudes.entries[0]
    terms = like.shape[2] // width
    largest: Buffer = like.launches.zeros(magnitudes.largest.shape, torch.int32)
    # Sums of rows are sums of columns, too, if one operand stands on both sides.
    of_magnitudes = product_of_magnitudes(magnitudes.entries, width, terms)
    product = of_magnitudes.product
    shape = ProductShape(product.m, product.n, width * terms, product.planes)
    tile = tile_for(shape, gpu_of(like.device), ("triton",))
    rows = of_magnitudes.rows_a, of_magnitudes.rows_b
    launch_on_magnitudes(
        of_magnitudes,
        magnitudes.entries,
        tile,
        raise_largest,
        _Sums(largest),
        _Numbers(*rows, magnitudes.first_right),
    )
    return largest
