"""Triton kernel of `error_ratio.py`: the largest error ratio of a product, of which nothing else is stored.

A division in float64 costs as much as many products. So a tile is first held against the largest ratio that is known,
in FP32: only where an entry may lie above are its ratios found, and the largest of all is made known to the other
programs. For most data that happens in few programs.

With r the largest ratio known, an entry above / low > r has above_32 > r_32 low_32 (1 - 2**-20) in FP32: of the
factors of above_32 = g t + h s, of the sum, of r_32 and of low_32 none errs by more than 2**-24, eight of them in all.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from hifigemm.engines.kernels.predicate import holds
from hifigemm.engines.kernels.residue_gemm import wrapped
from hifigemm.engines.kernels.tile_order import place_of

__all__ = ["MARGIN", "copy_kernel", "error_ratio_kernel"]

MARGIN = tl.constexpr(1.0 - 2.0**-20)
_LEAST = tl.constexpr(-(2**31))


@triton.jit
def _halves(tiles):
    """Left and right halves of tensors."""
    ROWS: tl.constexpr = tiles[0].shape[0]
    COLUMNS: tl.constexpr = tiles[0].shape[1] // 2
    found = ()
    for i in tl.static_range(len(tiles)):
        found += tl.split(tl.permute(tl.reshape(tiles[i], [ROWS, 2, COLUMNS]), (0, 2, 1)))
    return found


@triton.jit
def _largest(low, g, s, at_b, total, left):
    """The largest ratio of a tile in float64; a quarter of the columns at a time, for the sake of the registers."""
    COLUMNS: tl.constexpr = low.shape[1] // 4
    parts = _halves(_halves((low,)))
    best = tl.zeros([low.shape[0]], dtype=tl.float64)
    for i in tl.static_range(4):
        columns = i * COLUMNS + tl.arange(0, COLUMNS)
        h = tl.load(at_b + columns, mask=columns < left, other=0.0)[None, :]
        t = tl.load(at_b + total + columns, mask=columns < left, other=0.0)[None, :]
        above = g[:, None] * t + h * s[:, None]
        below = tl.maximum(parts[i], 1).to(tl.float64)
        ratio = tl.where(parts[i] > 0, above / below, tl.where(above > 0.0, float("inf"), 0.0))
        best = tl.maximum(best, tl.max(ratio, axis=1))
    return tl.max(best, axis=0)


@triton.jit(do_not_specialize=["m", "n", "norms_a", "norms_b", "total_a", "total", "least", "most"])
def error_ratio_kernel(
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
    predicate,
    least,
    most,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Raise the bits at `out` to the largest (g_i t_j + h_j s_i) / (|A||B|)_ij of a tile, |A||B| from magnitudes.

    `out` starts as 0 or as the bits of any ratio. Nothing where the predicate, which is no entry of `out`, does not
    hold. FMA contraction must be off. g, s and h, t are norms and sums of magnitudes of rows and columns. Vectors have
    WIDTH components, `pitch` apart, of which `terms` count, both multiples of BLOCK_K. Planes are pairings of the
    components: for the second of a matrix, those of the right operand swap.
    """
    if predicate is not None:  # noqa: SIM102
        if not holds(predicate, least, most):
            return
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    plane, tile_m, tile_n = place_of(tl.program_id(0), tiles_m, tiles_n, GROUP)
    z = (plane // WIDTH).to(tl.int64)
    swap = plane % WIDTH
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    column0 = tile_n * BLOCK_N
    columns = column0 + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    x = left + z * left_batch + wrapped(rows, m)[:, None] * (WIDTH * pitch) + ks[None, :]
    y = right + z * right_batch + wrapped(columns, n)[:, None] * (WIDTH * pitch) + ks[None, :]
    # The sum of two components may exceed 2**31, where the instructions of most GPUs saturate; it begins at -2**31.
    low = tl.full((BLOCK_M, BLOCK_N), _LEAST if WIDTH == 2 else 0, dtype=tl.int32)
    for i in tl.static_range(WIDTH):
        own, other = x + i * pitch, y + (i ^ swap) * pitch
        for start in range(0, terms, BLOCK_K):
            low = tl.dot(tl.load(own + start), tl.trans(tl.load(other + start)), low, out_dtype=tl.int32)
    if WIDTH == 2:
        low ^= _LEAST
    low = low.to(tl.uint32, bitcast=True)
    at_a, at_b = sizes + z * norms_a + rows, sizes + total_a + z * norms_b + column0
    g, s = tl.load(at_a, mask=rows < m, other=0.0), tl.load(at_a + total, mask=rows < m, other=0.0)
    h = tl.load(at_b + columns - column0, mask=columns < n, other=0.0).to(tl.float32)
    t = tl.load(at_b + total + columns - column0, mask=columns < n, other=0.0).to(tl.float32)
    known = tl.load(out, cache_modifier=".cg").to(tl.float64, bitcast=True)
    finite = known < float("inf")
    known = tl.where(finite, known, 0.0).to(tl.float32) * MARGIN
    g_32, s_32 = tl.where(finite, g, 0.0).to(tl.float32), tl.where(finite, s, 0.0).to(tl.float32)
    above = tl.fma(g_32[:, None], t[None, :], h[None, :] * s_32[:, None])
    if tl.max(tl.fma(low.to(tl.float32), -known, above)) > 0.0:
        tl.atomic_max(out, _largest(low, g, s, at_b, total, n - column0).to(tl.int64, bitcast=True), sem="relaxed")


@triton.jit
def copy_kernel(number, copy):
    """A copy of one number."""
    tl.store(copy, tl.load(number))
