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
    """torch.matmul of the library."""
    with aside():
        return torch.matmul(x, y, out=out)
