"""Triton kernel of `looks.py`: the largest error ratio of a product, of which nothing else is stored."""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["ratio_kernel"]


@triton.jit(do_not_specialize=["m", "n", "norms_a", "norms_b", "total_a", "total"])
def ratio_kernel(
    left,
    right,
    sizes,
    out,
    m,
    n,
    pitch,
    terms,
    left_batch,
    right_batch,
    norms_a,
    norms_b,
    total_a,
    total,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The largest (g_i t_j + h_j s_i) / (|A||B|)_ij of a tile, |A||B| from magnitudes, into the bits at `out`.

    FMA contraction must be off. g, s and h, t are norms and sums of magnitudes of rows and columns; `pitch` and
    `terms` are multiples of BLOCK_K.
    """
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    z = (tl.program_id(1)).to(tl.int64)
    tile = tl.program_id(0)
    first = tile // (GROUP * tiles_n) * GROUP
    in_group = tl.minimum(tiles_m - first, GROUP)
    inner = tile % (GROUP * tiles_n)
    rows = (first + inner % in_group) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (inner // in_group) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    x = left + z * left_batch + tl.minimum(rows, m - 1).to(tl.int64)[:, None] * pitch + ks[None, :]
    y = right + z * right_batch + tl.minimum(columns, n - 1).to(tl.int64)[:, None] * pitch + ks[None, :]
    low = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    for start in range(0, terms, BLOCK_K):
        low = tl.dot(tl.load(x + start), tl.trans(tl.load(y + start)), low, out_dtype=tl.int32)
    at_a, at_b = sizes + z * norms_a + rows, sizes + total_a + z * norms_b + columns
    g, s = tl.load(at_a, mask=rows < m, other=0.0), tl.load(at_a + total, mask=rows < m, other=0.0)
    h, t = tl.load(at_b, mask=columns < n, other=0.0), tl.load(at_b + total, mask=columns < n, other=0.0)
    above = g[:, None] * t[None, :] + h[None, :] * s[:, None]
    ratio = tl.where(low > 0, above / tl.maximum(low, 1).to(tl.float64), float("inf"))
    found = tl.where(above == 0.0, 0.0, ratio)
    tl.atomic_max(out, tl.max(found).to(tl.int64, bitcast=True))
