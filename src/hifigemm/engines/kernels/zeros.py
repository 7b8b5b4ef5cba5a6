"""Memory that starts as zeros, cleared by a launch of its own that can be recorded and repeated."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels.launch import Launch, empty

__all__ = ["cleared"]

_SIZE = 1024


@triton.jit(do_not_specialize=["count"])
def _clear_kernel(out, count, SIZE: tl.constexpr):
    """Zeros."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, 0, mask=at < count)


_clear = Launch(_clear_kernel)


def cleared(count: int, device: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """So many zeros."""
    made = empty((count,), dtype, device)
    if count:
        _clear((-(-count // _SIZE),), made, count, SIZE=_SIZE, num_warps=4)
    return made
