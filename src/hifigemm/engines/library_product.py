"""PyTorch's own product, which stays its own where `hifigemm.install` serves the
products of a program.
"""

from __future__ import annotations

import threading

import torch


class _Thread(threading.local):
    """What a thread is at."""

    in_library_product = False


_thread = _Thread()


def in_library_product() -> bool:
    """True while this thread is inside `library_matmul`: no policy holds then."""
    return _thread.in_library_product


def library_matmul(
    x: torch.Tensor, y: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """torch.matmul of the library.

    On the host torch.matmul takes twice the time of torch.mm and torch.bmm, which are
    called where they serve.
    """
    outer = _thread.in_library_product
    _thread.in_library_product = True
    try:
        if x.ndim == y.ndim == 2:
            return torch.mm(x, y, out=out)
        if x.ndim == y.ndim == 3 and x.shape[0] == y.shape[0]:
            return torch.bmm(x, y, out=out)
        return torch.matmul(x, y, out=out)
    finally:
        _thread.in_library_product = outer
