"""The bits that exact integers of two tensors require, by launches that are written down
once: one wait of the host, for two numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hifigemm.base.store import once
from hifigemm.engines.device_array import check_not_capturing
from hifigemm.kernels.runtime.launch_list import LaunchList, facts_of
from hifigemm.kernels.vectors import inner_scaling
from hifigemm.kernels.vectors import required_bits as kernel

NO_LIMIT: int = kernel.NO_LIMIT
Bits = tuple[int, int] | None


def required_bits_of(
    left: Tensor, right: Tensor, most: int
) -> Callable[[Tensor, Tensor], Bits]:
    """numerics.scaling.required_bits with a limit, as a function of tensors that are
    laid out as these.
    """
    check_not_capturing()
    facts = facts_of(left), facts_of(right)

    def make() -> Callable[[Tensor, Tensor], Bits]:
        launches = LaunchList(left.device)
        count = kernel.num_counters(left, right)
        device = left.device
        x, y = launches.operand(left), launches.operand(right)
        counters = launches.operand(
            torch.empty(count, dtype=torch.int32, device="meta"), is_zero=True
        )
        kernel.launch(x, y, most, counters)
        launches.finish().compile()

        def inspect(a: Tensor, b: Tensor) -> Bits:
            check_not_capturing()
            found = torch.empty(count, dtype=torch.int32, device=device)
            launches(a, b, found)
            return kernel.required_bits_from(found[:2].tolist(), most)

        return inspect

    return once(("required_bits", left.device, most, facts), make, left.device)


def inner_inspection_of(
    left: Tensor, right: Tensor, most: int
) -> Callable[[Tensor, Tensor], tuple[Bits, Tensor]]:
    """numerics.inner_scaling.inner_required_bits with a limit, as a function of tensors
    that are laid out as these.

    The exponents by which the operands are scaled, as kernels take them, come with the
    bits; without bits they mean nothing.
    """
    check_not_capturing()
    facts = facts_of(left), facts_of(right)
    length = inner_scaling.padded_length(left.shape[2])

    def make() -> Callable[[Tensor, Tensor], tuple[Bits, Tensor]]:
        launches = LaunchList(left.device)
        count = kernel.num_counters(left, right)
        device = left.device
        x, y = launches.operand(left), launches.operand(right)
        # The mark, an int64, and 16 bytes behind it the counters: whole int64 in all.
        size = 4 + count + count % 2
        words = launches.operand(
            torch.empty(size, dtype=torch.int32, device="meta"), is_zero=True
        )
        d = launches.operand(torch.empty(length, dtype=torch.int32, device="meta"))
        mark = words[:4].view(torch.int64)[:1]
        inner_scaling.gaining_exponents(x, y, mark, into=d)
        kernel.launch(x, y, most, words[4:], d)
        launches.finish().compile()

        def inspect(a: Tensor, b: Tensor) -> tuple[Bits, Tensor]:
            check_not_capturing()
            found = torch.empty(size, dtype=torch.int32, device=device)
            exponents = torch.empty(length, dtype=torch.int32, device=device)
            launches(a, b, found, exponents)
            low, high, _, _, *bits = found[:6].tolist()
            if (low, high) != (inner_scaling.KEPT, 0):
                return None, exponents
            return kernel.required_bits_from(bits, most), exponents

        return inspect

    key = "inner_required_bits", left.device, most, facts
    return once(key, make, left.device)
