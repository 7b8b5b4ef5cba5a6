"""Where fused kernels put a product T, and alpha T + beta C in its place afterwards."""

from __future__ import annotations

from typing import Any

import torch

from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.engines.device_ops import TORCH_DTYPES
from hifigemm.engines.kernels.epilogue import combine_in_place
from hifigemm.numerics.bits import Array
from hifigemm.numerics.epilogue import Epilogue
from hifigemm.problem import Problem

__all__ = ["combined", "output_for"]


def output_for(p: Problem, left: Any, epilogue: Epilogue, target: Array | None) -> torch.Tensor:
    """Where a product is put: the target itself unless something is done to it afterwards."""
    if target is not None and epilogue.idle:
        return unwrap(target)
    return torch.empty((p.batch, p.m, p.n), dtype=TORCH_DTYPES[p.dtype], device=left.device)


def combined(out: torch.Tensor, p: Problem, epilogue: Epilogue, target: Array | None) -> Array:
    """alpha out + beta C in place, then in the target if there is one."""
    if not epilogue.idle:
        if epilogue.is_moderate and not out.is_complex():
            c: Any = None if epilogue.c is None else unwrap(epilogue.c)
            combine_in_place(out, epilogue.alpha.real, epilogue.beta.real, c)
        else:
            epilogue.apply(wrap(out))
        if target is not None:
            unwrap(target).copy_(out)
    return wrap(out) if target is None else target
