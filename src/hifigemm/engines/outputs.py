"""Where fused kernels put a product T, and alpha T + beta C in its place afterwards."""

from __future__ import annotations

from typing import Any

import torch

from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.engines.kernels.combination import combine_in_place
from hifigemm.formats import FP32
from hifigemm.numerics.bits import Array
from hifigemm.numerics.epilogue import Epilogue
from hifigemm.plan import Problem

__all__ = ["combined", "output_for"]


def output_for(p: Problem, device: Any, epilogue: Epilogue, target: Array | None) -> torch.Tensor:
    """Where a real product is put: the target itself unless something is done to it afterwards."""
    if target is not None and epilogue.idle:
        return unwrap(target)
    dtype = torch.float32 if p.fmt is FP32 else torch.float64
    return torch.empty((p.batch, p.m, p.n), dtype=dtype, device=device)


def combined(out: torch.Tensor, p: Problem, epilogue: Epilogue, target: Array | None) -> Array:
    """alpha out + beta C for real problems, in place, then in the target if there is one."""
    if not epilogue.idle:
        if epilogue.is_moderate:
            c: Any = None if epilogue.c is None else unwrap(epilogue.c)
            combine_in_place(out, epilogue.alpha.real, epilogue.beta.real, c)
        else:
            epilogue.apply(wrap(out))
        if target is not None:
            unwrap(target).copy_(out)
    return wrap(out) if target is None else target
