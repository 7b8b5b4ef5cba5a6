"""The bits that exact integers of two tensors require, by launches that are written down
once: one wait of the host, for two numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hifigemm.engines.device_array import check_not_capturing
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import Predicate
from hifigemm.kernels.runtime.recording import recorded
from hifigemm.kernels.vectors import inner_scaling
from hifigemm.kernels.vectors import required_bits as kernel
from hifigemm.kernels.vectors.scaled_along_k import scaled_along_k

NO_LIMIT: int = kernel.NO_LIMIT
Bits = tuple[int, int] | None


def required_bits_of(
    left: Tensor, right: Tensor, most: int
) -> Callable[[Tensor, Tensor], Bits]:
    """numerics.scaling.required_bits with a limit, as a function of tensors that are
    laid out as these.
    """
    check_not_capturing()
    launches = recorded(kernel.launch, left, right, most)

    def inspect(a: Tensor, b: Tensor) -> Bits:
        check_not_capturing()
        return kernel.required_bits_from(launches(a, b).tolist(), most)

    return inspect


def required_bits_of_one(x: Tensor, side: str) -> Callable[[Tensor], int | None]:
    """The number of `required_bits_of` for the operand on one side of products, as a
    function of tensors that are laid out as this one.
    """
    check_not_capturing()
    launches = recorded(_bits_beside_a_vector, x, side)
    index = ("left", "right").index(side)

    def inspect(x: Tensor) -> int | None:
        check_not_capturing()
        bits = kernel.required_bits_from(launches(x).tolist(), NO_LIMIT)
        return None if bits is None else bits[index]

    return inspect


def _bits_beside_a_vector(x: Buffer, side: str) -> Buffer:
    """Bits of an operand, and of a vector of it that stands for the other operand."""
    batch, rows, cols = x.shape
    along_batch, along_rows, along_cols = x.strides
    strides = along_batch, along_cols, along_rows
    if side == "right":
        first_column = x.as_strided((batch, 1, rows), strides)
        return kernel.launch(first_column, x, NO_LIMIT)
    first_row = x.as_strided((batch, cols, 1), strides)
    return kernel.launch(x, first_row, NO_LIMIT)


def inner_inspection_of(
    left: Tensor, right: Tensor, most: int
) -> Callable[[Tensor, Tensor], tuple[Bits, tuple[Tensor, Tensor]]]:
    """numerics.inner_scaling.inner_required_bits with a limit, as a function of tensors
    that are laid out as these.

    A D and D**-1 B, which are laid out as `layout_of_copy` says, come with the bits;
    without bits they mean nothing.
    """
    check_not_capturing()
    launches = recorded(_inner_inspection, left, right, most)

    def inspect(a: Tensor, b: Tensor) -> tuple[Bits, tuple[Tensor, Tensor]]:
        check_not_capturing()
        words, copies = launches(a, b)
        low, high, _, _, *bits = words.tolist()
        if (low, high) != (inner_scaling.KEPT, 0):
            return None, copies
        return kernel.required_bits_from(bits, most), copies

    return inspect


def _inner_inspection(
    left: Buffer, right: Buffer, most: int
) -> tuple[Buffer, tuple[Buffer, Buffer]]:
    """Two words of the mark that the operands gain by exponents, two that mean nothing,
    and two of bits; with the operands that the exponents make.
    """
    count = kernel.num_counters(left, right)
    # The mark, an int64, and 16 bytes behind it the counters: whole int64 in all.
    words: Buffer = left.launches.zeros((4 + count + count % 2,), torch.int32)
    mark = words[:4].view(torch.int64)[:1]
    exponents = inner_scaling.gaining_exponents(left, right, mark)
    # Elsewhere the bits, those of memory that is not written, mean nothing.
    is_kept = Predicate(mark, inner_scaling.KEPT, inner_scaling.KEPT)
    x, y = scaled_along_k(((left, 2), (right, 1)), exponents, is_kept)
    kernel.launch(x, y, most, words[4:])
    return words[:6], (x, y)
