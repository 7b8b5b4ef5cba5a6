"""alpha T + beta C in place, for rounded products T: numerics.epilogue.combine on the device."""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels.crt_rounding import combine
from hifigemm.engines.kernels.launch import Launch, float64_bits

__all__ = ["combine_in_place"]

_BLOCK = 1024


@triton.jit(do_not_specialize=["alpha_bits", "beta_bits"])
def _combine_kernel(
    t,
    c,
    alpha_bits,
    beta_bits,
    entries,
    columns,
    c_batch,
    c_row,
    c_col,
    HAS_C: tl.constexpr,
    FUSED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`entries` of each matrix of the stack, rows of `columns`; t is contiguous."""
    alpha = tl.cast(alpha_bits, tl.int64).to(tl.float64, bitcast=True)
    beta = tl.cast(beta_bits, tl.int64).to(tl.float64, bitcast=True)
    blocks = tl.cdiv(entries, BLOCK)
    z = (tl.program_id(0) // blocks).to(tl.int64)
    at = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < entries
    place = t + z * entries + at
    x = tl.load(place, mask=inside, other=0.0).to(tl.float64)
    y = x
    if HAS_C:
        where = c + z * c_batch + (at // columns) * c_row + (at % columns) * c_col
        y = tl.load(where, mask=inside, other=0.0).to(tl.float64)
    tl.store(place, combine(x, y, alpha, beta, HAS_C, FUSED).to(t.dtype.element_ty), mask=inside)


_launch: Any = Launch(_combine_kernel)


def combine_in_place(t: torch.Tensor, alpha: float, beta: float, c: torch.Tensor | None) -> None:
    """t = alpha t + beta c, on torch's current stream.

    Parameters
    ----------
    t : float32 or float64 tensor (batch, m, n), contiguous
    alpha, beta : float
        Moderate ones, see `numerics.epilogue.Epilogue`.
    c : tensor of the dtype and shape of t, any strides, or None
    """
    if t.numel() == 0:
        return
    batch, m, n = t.shape
    _launch(
        (batch * triton.cdiv(m * n, _BLOCK),),
        *(t, c, float64_bits(alpha), float64_bits(beta), m * n, n),
        *((0, 0, 0) if c is None else c.stride()),
        HAS_C=c is not None,
        FUSED=t.is_cuda and torch.version.hip is None,
        BLOCK=_BLOCK,
        num_warps=4,
        enable_fp_fusion=False,
    )
