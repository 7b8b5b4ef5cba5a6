"""alpha T + beta C for rounded products T: numerics.epilogue.combine.

FMA contraction must be off (enable_fp_fusion=False): the error-free transformations do
not survive it.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels.launch import Launch, float64_bits

_BLOCK = 1024
_SAFE_LARGEST = tl.constexpr(2.0**990)
_SAFE_SMALLEST = tl.constexpr(2.0**-900)
_SPLITTER = tl.constexpr(2.0**27 + 1.0)
# Entries of the second way are multiplied by 2**-40. numerics.epilogue takes a power of
# two for each entry, and for moderate scalars the bits are the same: an entry goes this
# way only if one of its products is 2**966 or more, and 2**-40 loses nothing of what is
# larger than 2**-1900 of that.
_DOWN = tl.constexpr(2.0**-40)


@triton.jit
def _halves(a):
    t = _SPLITTER * a
    high = t - (t - a)
    return high, a - high


@triton.jit
def _two_product(a, b):
    """numerics.eft.two_product, operation by operation."""
    p = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    return p, a_low * b_low - (
        ((p - a_high * b_high) - a_low * b_high) - a_high * b_low
    )


@triton.jit
def _is_safe(a, b, p):
    """The error of p = fl(a b) is the same number by two_product and by a fused
    multiply-add.
    """
    ordinary = (tl.abs(a) < _SAFE_LARGEST) & (tl.abs(b) < _SAFE_LARGEST)
    return ordinary & ((tl.abs(p) > _SAFE_SMALLEST) | (a == 0.0) | (b == 0.0))


@triton.jit
def _sum_of_products(p, p_error, q, q_error):
    s = p + q
    t = s - p
    error = (p - (s - t)) + (q - t)
    return s + (error + (p_error + q_error))


@triton.jit
def _either_way(x, y, alpha, beta):
    """The sum by the first way, by the second one where that is not finite, of what is
    endless where an entry is.
    """
    p, p_error = _two_product(alpha, x)
    q, q_error = _two_product(beta, y)
    near = _sum_of_products(p, p_error, q, q_error)
    x_known, y_known = tl.abs(x) < float("inf"), tl.abs(y) < float("inf")
    endless = tl.where(x_known, 0.0, p) + tl.where(y_known, 0.0, q)
    p, p_error = _two_product(alpha, x * _DOWN)
    q, q_error = _two_product(beta, y * _DOWN)
    far = _sum_of_products(p, p_error, q, q_error) * (1.0 / _DOWN)
    return tl.where(
        tl.abs(near) < float("inf"), near, tl.where(x_known & y_known, far, endless)
    )


@triton.jit
def combine(x, y, alpha, beta, HAS_C: tl.constexpr, FUSED: tl.constexpr):
    """numerics.epilogue.combine of float64 x and y for moderate scalars, in float64."""
    if HAS_C:
        p = alpha * x
        q = beta * y
        if FUSED:
            safe = _is_safe(alpha, x, p) & _is_safe(beta, y, q)
            result = _sum_of_products(p, tl.fma(alpha, x, -p), q, tl.fma(beta, y, -q))
            plain = tl.min(safe.to(tl.int32)) > 0
        else:
            result = p
            plain = False
        if not plain:
            result = _either_way(x, y, alpha, beta)
    else:
        result = alpha * x + 0.0
    return result


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
    tl.store(
        place,
        combine(x, y, alpha, beta, HAS_C, FUSED).to(t.dtype.element_ty),
        mask=inside,
    )


_launch: Any = Launch(_combine_kernel)


def combine_in_place(
    t: torch.Tensor, alpha: float, beta: float, c: torch.Tensor | None
) -> None:
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
