"""Shapes and formats of a product: the problem, the kinds of low-precision products, and
blocks of the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hifigemm.base.formats import FP32, FP64, INT8, Format
from hifigemm.numerics.bits import DType


@dataclass(frozen=True)
class Problem:
    """A stack of `batch` products of m x k by k x n matrices with a common result
    dtype.

    `narrow` is FP16 or BF16 where both operands have that format; their dtype promotes
    to float32. `mirror` is "T" or "C" where B is the transpose or the conjugate
    transpose of A: entries above the diagonal are then those below it.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: DType
    narrow: Format | None = None
    mirror: str = ""

    @cached_property
    def is_complex(self) -> bool:
        """True if the result is complex; re and im are then rounded separately."""
        return self.dtype.kind == "c"

    @cached_property
    def fmt(self) -> Format:
        """Format of the (real components of the) result."""
        return FP32 if self.dtype in (np.float32, np.complex64) else FP64

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the stack of results, (batch, m, n)."""
        return self.batch, self.m, self.n

    @cached_property
    def nbytes(self) -> int:
        """Bytes of operands and result."""
        entries = self.m * self.k + self.k * self.n + self.m * self.n
        return self.batch * entries * self.dtype.itemsize

    @cached_property
    def terms(self) -> int:
        """Real products in the sum behind a real component of the result."""
        return 2 * self.k if self.is_complex else self.k

    @cached_property
    def multiplications(self) -> int:
        """Multiplications of two entries, in all sums; 0 where a dimension is 0."""
        return self.batch * self.m * self.n * self.k

    @property
    def is_of_one_operand(self) -> bool:
        """True if rows of A and columns of B are the same vectors, so that they are
        split alike. Conjugates of complex vectors are others.
        """
        return self.mirror == "T" or (self.mirror == "C" and not self.is_complex)

    def __str__(self) -> str:
        stack = f"{self.batch} x " if self.batch != 1 else ""
        shapes = f"({self.m} x {self.k}) @ ({self.k} x {self.n})"
        operands = f" of {self.narrow.name} operands" if self.narrow is not None else ""
        half = ", its lower triangle mirrored" if self.mirror else ""
        return f"{stack}{shapes} {self.dtype}{operands}{half}"


@dataclass(frozen=True)
class ProductSpec:
    """One kind of low-precision product that an engine offers."""

    operand: Format  # format of the words that are multiplied
    accumulator_max: int  # integers up to this magnitude are added without rounding
    max_integer: int  # largest magnitude of an integer operand
    # inner length of one exact product on which slice sizes are based; sums over longer
    # k are carried on in int64
    k_block: int

    @property
    def name(self) -> str:
        """Name of the operand format, as schemes spell it."""
        return self.operand.name

    @property
    def max_digit(self) -> int:
        """Largest magnitude of a slice: -128 is an INT8 too."""
        return self.max_integer + (self.operand is INT8)


class Block(NamedTuple):
    """A part of the result: entries batch, rows, cols of the stack."""

    batch: slice
    rows: slice
    cols: slice

    @property
    def entries(self) -> tuple[slice, slice, slice]:
        """Where the block lies in the result."""
        return self.batch, self.rows, self.cols

    def places(
        self, left: Any, right: Any
    ) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Indices of the rows of the left and of the columns of the right operand; a
        stack of one is for all blocks.
        """
        everything = slice(None)
        of_left = self.batch if len(left) > 1 else everything
        of_right = self.batch if len(right) > 1 else everything
        return (of_left, self.rows), (of_right, everything, self.cols)

    def operands(self, left: Any, right: Any) -> tuple[Any, Any]:
        """The rows of the left and the columns of the right operand that make the
        block.
        """
        rows, columns = self.places(left, right)
        return left[rows], right[columns]


def counted(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun: "1 slice", "2 slices", or the plural that is given."""
    return f"{count} {one if count == 1 else many or one + 's'}"
