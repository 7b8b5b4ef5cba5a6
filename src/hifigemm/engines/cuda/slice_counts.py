"""The number of slices by the estimate of [MOOI20], by launches that are written down
once: one wait of the host, for four numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hifigemm.base.store import once
from hifigemm.engines.device_array import check_not_capturing
from hifigemm.kernels.runtime.launch_list import LaunchList, facts_of
from hifigemm.kernels.vectors import slice_counts as kernel

Count = tuple[int, bool] | None


def num_slices_of(
    left: Tensor, right: Tensor, beta: int, u: float
) -> Callable[[Tensor, Tensor], Count]:
    """numerics.estimates.published_num_slices as a function of tensors that are laid
    out as these; it returns None for operands that need a longer look.
    """
    check_not_capturing()
    facts = facts_of(left), facts_of(right)
    device = left.device

    def make() -> Callable[[Tensor, Tensor], Count]:
        launches = LaunchList(device)
        x, y = launches.operand(left), launches.operand(right)
        # Two words of 64 bits, which the launches clears, are the four numbers.
        words = launches.operand(
            torch.empty(2, dtype=torch.int64, device="meta"), is_zero=True
        )
        kernel.launch(x, y, beta, u, words.view(torch.int32))
        launches.finish().compile()

        def inspect(a: Tensor, b: Tensor) -> Count:
            check_not_capturing()
            words = torch.empty(2, dtype=torch.int64, device=device)
            launches(a, b, words)
            numbers = words.view(torch.int32).tolist()
            return kernel.num_slices_from(numbers, beta, u)

        return inspect

    return once(("num_slices", device, beta, u, facts), make, device)
