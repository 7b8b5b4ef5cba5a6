"""Memory that starts as zeros, cleared by a launch."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels.buffers import Buffer
from hifigemm.engines.kernels.launch import Launch, empty

__all__ = ["clear", "cleared"]

_SIZE = 1024


@triton.jit(do_not_specialize=["count", "other_count"])
def _clear_kernel(out, count, other, other_count, SIZE: tl.constexpr):
    """Zeros, in two places."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, 0, mask=at < count)
    tl.store(other + at, 0, mask=at < other_count)


_clear = Launch(_clear_kernel)


def clear(x: Any, y: Any) -> None:
    """Zeros in two contiguous int32 tensors or buffers."""
    count = max(x.numel(), y.numel())
    if count:
        _clear((-(-count // _SIZE),), x, x.numel(), y, y.numel(), SIZE=_SIZE, num_warps=4)


def cleared(count: int, like: Any, dtype: torch.dtype = torch.int32) -> Any:
    """So many zeros, where a tensor or buffer lies; those of a program are cleared together, in its first launch."""
    if isinstance(like, Buffer):
        return like.program.zeros((count,), dtype)
    made = empty((count,), dtype, like)
    if count:
        own = made.view(torch.int32)
        clear(own, own[:0])
    return made
