"""alpha T + beta C for rounded products T: numerics.epilogue.combine.

FMA contraction must be off (enable_fp_fusion=False): the error-free transformations do
not survive it.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import runs_ptx
from hifigemm.kernels.runtime.launch import Launch, float64_bits

_BLOCK = 1024
"""Entries of a tile."""
_SAFE_LARGEST = tl.constexpr(2.0**990)
"""Factors below it have halves that do not overflow: the limit is 2**996."""
_SAFE_SMALLEST = tl.constexpr(2.0**-900)
"""Products above it have errors that float64 holds: multiples of 2**-900 2**-106."""
_SPLITTER = tl.constexpr(2.0**27 + 1.0)
"""Veltkamp's factor: it cuts 53 bits into 26 and 26 and a sign."""
_DOWN = tl.constexpr(2.0**-40)
"""Scale of the terms of a sum that would overflow.

numerics.epilogue takes a power of two for each entry, and for moderate scalars the bits
are the same: an entry goes this way only if one of its products is 2**966 or more, and
2**-40 then loses only what is 2**1900 times smaller.
"""


@triton.jit
def _halves(a):
    """a = high + low with at most 26 bits each, as in numerics.eft."""
    t = _SPLITTER * a
    high = t - (t - a)
    return high, a - high


@triton.jit
def two_product(a, b):
    """Twin: numerics.eft.two_product, operation by operation."""
    p = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    return p, a_low * b_low - (
        ((p - a_high * b_high) - a_low * b_high) - a_high * b_low
    )


@triton.jit
def _is_safe(a, b, p):
    """True if two_product and a fused multiply-add agree on the error of p = a b."""
    # Halves of larger factors overflow in two_product; errors of smaller products have
    # bits below the smallest float64. With a zero factor the error is 0 either way.
    ordinary = (tl.abs(a) < _SAFE_LARGEST) & (tl.abs(b) < _SAFE_LARGEST)
    return ordinary & ((tl.abs(p) > _SAFE_SMALLEST) | (a == 0.0) | (b == 0.0))


@triton.jit
def _sum_of_products(p, p_error, q, q_error):
    """p + q and both errors, by the error-free sum of p and q (Knuth)."""
    s = p + q
    t = s - p
    error = (p - (s - t)) + (q - t)
    return s + (error + (p_error + q_error))


@triton.jit
def _either_way(x, y, alpha, beta):
    """alpha x + beta y with error-free transformations, for every float64 x and y.

    Where the sum overflows, it is recomputed from scaled-down terms; where x or y is
    infinite or NaN, IEEE arithmetic of that term decides.
    """
    p, p_error = two_product(alpha, x)
    q, q_error = two_product(beta, y)
    direct = _sum_of_products(p, p_error, q, q_error)
    # Beside an infinite or NaN term a finite one counts for nothing, even if its
    # product overflows.
    x_is_finite = tl.abs(x) < float("inf")
    y_is_finite = tl.abs(y) < float("inf")
    infinite = tl.where(x_is_finite, 0.0, p) + tl.where(y_is_finite, 0.0, q)
    # The same sum of terms that cannot overflow, and the inverse power of two at last.
    p, p_error = two_product(alpha, x * _DOWN)
    q, q_error = two_product(beta, y * _DOWN)
    rescaled = _sum_of_products(p, p_error, q, q_error) * (1.0 / _DOWN)
    return tl.where(
        tl.abs(direct) < float("inf"),
        direct,
        tl.where(x_is_finite & y_is_finite, rescaled, infinite),
    )


@triton.jit
def combine(x, y, alpha, beta, HAS_C: tl.constexpr, FUSED: tl.constexpr):
    """Twin: numerics.epilogue.combine, for moderate scalars and float64 x and y.

    With FUSED the errors of products come from fused multiply-adds where those are
    safe.
    """
    if HAS_C:
        p = alpha * x
        q = beta * y
        if FUSED:
            # The way of almost every tile. One unsafe entry sends the whole tile to the
            # other one, so that threads do not diverge.
            safe = _is_safe(alpha, x, p) & _is_safe(beta, y, q)
            result = _sum_of_products(p, tl.fma(alpha, x, -p), q, tl.fma(beta, y, -q))
            plain = tl.min(safe.to(tl.int32)) > 0
        else:
            result = p
            plain = False
        if not plain:
            result = _either_way(x, y, alpha, beta)
    else:
        # A product of -0 becomes +0, as in the twin.
        result = alpha * x + 0.0
    return result


@triton.jit(do_not_specialize=["alpha_bits", "beta_bits"])
def _combine_kernel(
    t,
    c,
    out,
    alpha_bits: tl.int64,
    beta_bits: tl.int64,
    entries,
    columns,
    c_batch,
    c_row,
    c_col,
    HAS_C: tl.constexpr,
    FUSED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Twin: numerics.epilogue.combine.

    A tile is BLOCK of the `entries` of a matrix of the stack, which has rows of
    `columns` entries; t and out are contiguous.
    """
    # The scalars come as integers, as kernels get floats in FP32 only.
    alpha = tl.cast(alpha_bits, tl.int64).to(tl.float64, bitcast=True)
    beta = tl.cast(beta_bits, tl.int64).to(tl.float64, bitcast=True)
    # Programs count the tiles of a matrix, then the matrices z of the stack. Each reads
    # its entries of t and C before it writes to `out`, which may be t or C; no other
    # program touches these entries.
    blocks = tl.cdiv(entries, BLOCK)
    z = (tl.program_id(0) // blocks).to(tl.int64)
    index = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < entries
    place = z * entries + index
    x = tl.load(t + place, mask=inside, other=0.0).to(tl.float64)
    # The entry of C has strides of its own: its row and column come from its number.
    y = x
    if HAS_C:
        addend = (
            c + z * c_batch + (index // columns) * c_row + (index % columns) * c_col
        )
        y = tl.load(addend, mask=inside, other=0.0).to(tl.float64)
    tl.store(
        out + place,
        combine(x, y, alpha, beta, HAS_C, FUSED).to(t.dtype.element_ty),
        mask=inside,
    )


_launch = Launch(_combine_kernel)


def combine_in_place(
    t: Buffer,
    alpha: float,
    beta: float,
    c: Buffer | None,
    out: Buffer | None = None,
) -> None:
    """t or out = alpha t + beta c.

    Parameters
    ----------
    t : float32 or float64 tensor (batch, m, n), contiguous
    alpha, beta : float
        Moderate ones, see `numerics.epilogue.Epilogue`.
    c : tensor of the dtype and shape of t, any strides, or None
    out : tensor like t, or None
        It may be c itself.
    """
    if t.numel() == 0:
        return
    batch, m, n = t.shape
    c_batch, c_row, c_col = (0, 0, 0) if c is None else c.stride()
    _launch(
        (batch * triton.cdiv(m * n, _BLOCK),),
        t,
        c,
        t if out is None else out,
        float64_bits(alpha),
        float64_bits(beta),
        m * n,
        n,
        c_batch,
        c_row,
        c_col,
        HAS_C=c is not None,
        FUSED=runs_ptx(t),
        BLOCK=_BLOCK,
        num_warps=4,
        enable_fp_fusion=False,
    )
