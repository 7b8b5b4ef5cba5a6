"""PyTorch's own product, which stays its own where `hifigemm.install` serves the
products of a program.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

aside: Callable[[], AbstractContextManager[None]] = nullcontext
"""A context in which the products of this thread are the library's; whoever puts
kernels in their place sets it.
"""


def library_matmul(
    x: torch.Tensor, y: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """torch.matmul of the library.

    It calls torch.bmm for two stacks, after twice the time on the host that torch.bmm
    takes by itself.
    """
    with aside():
        if x.ndim == y.ndim == 3 and x.shape[0] == y.shape[0]:
            return torch.bmm(x, y, out=out)
        return torch.matmul(x, y, out=out)
