"""Triton kernels of `looks.py`: sizes of vectors, magnitudes, and the largest error ratio of a product."""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from hifigemm.engines.kernels.vectors_kernels import INFINITE, NORM_BITS, _exponent_of, _power_of_two, _scale_of

__all__ = ["join_kernel", "magnitudes_kernel", "ratio_kernel", "sizes_kernel"]

MAGNITUDE = tl.constexpr(0x7FFFFFFFFFFFFFFF)
NO_EXPONENT = tl.constexpr(-2096)
MAGNITUDE_BITS = tl.constexpr(7)

_SIZES = ["count_a", "count_b", "k", "sab", "sav", "sak", "sbb", "sbv", "sbk", "tiles_a", "tiles_b", "total_a", "total"]


@triton.jit
def _load(x, sv, sk, vs, ks, count, k, ALONG: tl.constexpr):
    """Entries of vectors as float64, the axis along which they lie side by side last; zeros outside."""
    if ALONG:
        at = vs[:, None].to(tl.int64) * sv + ks[None, :].to(tl.int64) * sk
        z = tl.load(x + at, mask=(vs[:, None] < count) & (ks[None, :] < k), other=0.0).to(tl.float64)
    else:
        at = ks[:, None].to(tl.int64) * sk + vs[None, :].to(tl.int64) * sv
        z = tl.load(x + at, mask=(ks[:, None] < k) & (vs[None, :] < count), other=0.0).to(tl.float64)
    return z


@triton.jit
def _scaled_magnitudes(x, e, BITS: tl.constexpr, ALONG: tl.constexpr):
    """|x| 2**(BITS - e), exact or with an underflow of what is far below 1; e for each vector."""
    power = BITS - tl.maximum(e, -1074)
    up = tl.where(power > 900, 100, 0)
    first, second = _power_of_two(up), _power_of_two(tl.maximum(power - up, -1022))
    if ALONG:
        y = tl.abs(x) * first[:, None] * second[:, None]
    else:
        y = tl.abs(x) * first[None, :] * second[None, :]
    return y


@triton.jit
def _block_sizes(x, sv, sk, vs, ks, count, k, ALONG: tl.constexpr):
    """e_q, n_q and s_q of a block of 256 along k for each vector: see numerics.scaling.vector_sizes."""
    AXIS: tl.constexpr = 1 if ALONG else 0
    z = _load(x, sv, sk, vs, ks, count, k, ALONG)
    e = _exponent_of(tl.max(z.to(tl.int64, bitcast=True) & MAGNITUDE, axis=AXIS))
    scaled = _scaled_magnitudes(z, e, NORM_BITS, ALONG)
    up = tl.where(scaled < 1.0, tl.where(z == 0.0, 0.0, 1.0), tl.ceil(scaled))
    return e, tl.sum(up * up, axis=AXIS), tl.sum(up, axis=AXIS)


@triton.jit(do_not_specialize=_SIZES)
def sizes_kernel(
    a,
    b,
    exponents,
    squares,
    sums,
    count_a,
    count_b,
    k,
    sab,
    sav,
    sak,
    sbb,
    sbv,
    sbk,
    tiles_a,
    tiles_b,
    total_a,
    total,
    ALONG_A: tl.constexpr,
    ALONG_B: tl.constexpr,
    VECTORS_A: tl.constexpr,
    VECTORS_B: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sizes of one block of k of a few vectors; exponents, squares and sums have shape (blocks, total)."""
    tile = tl.program_id(0)
    q = tl.program_id(1)
    ks = q * BLOCK + tl.arange(0, BLOCK)
    row = q.to(tl.int64) * total
    if tile < tiles_a:
        per_a = tl.cdiv(count_a, VECTORS_A)
        z = tile // per_a
        vs = (tile % per_a) * VECTORS_A + tl.arange(0, VECTORS_A)
        e, n, s = _block_sizes(a + z.to(tl.int64) * sab, sav, sak, vs, ks, count_a, k, ALONG_A)
        at = row + z * count_a + vs
        tl.store(exponents + at, e, mask=vs < count_a)
        tl.store(squares + at, n, mask=vs < count_a)
        tl.store(sums + at, s, mask=vs < count_a)
    else:
        per_b = tl.cdiv(count_b, VECTORS_B)
        y = (tile - tiles_a) // per_b
        ws = ((tile - tiles_a) % per_b) * VECTORS_B + tl.arange(0, VECTORS_B)
        f, m, t = _block_sizes(b + y.to(tl.int64) * sbb, sbv, sbk, ws, ks, count_b, k, ALONG_B)
        there = row + total_a + y * count_b + ws
        tl.store(exponents + there, f, mask=ws < count_b)
        tl.store(squares + there, m, mask=ws < count_b)
        tl.store(sums + there, t, mask=ws < count_b)


@triton.jit(do_not_specialize=["blocks", "total_a", "total", "balance_a", "balance_b"])
def join_kernel(
    exponents,
    squares,
    sums,
    scales,
    own,
    sizes,
    range_ptr,
    blocks,
    total_a,
    total,
    balance_a,
    balance_b,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Of each vector: scale and rounding (2, total), exponent (total), norm and sum of magnitudes (2, total)."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.arange(0, ROWS)
    inside = columns < total
    e = tl.full([COLUMNS], NO_EXPONENT, tl.int32)
    for start in range(0, blocks, ROWS):
        at = (start + rows).to(tl.int64)[:, None] * total + columns[None, :]
        mask = (start + rows < blocks)[:, None] & inside[None, :]
        e = tl.maximum(e, tl.max(tl.load(exponents + at, mask=mask, other=NO_EXPONENT), axis=0))
    n = tl.zeros([COLUMNS], tl.float64)
    s = tl.zeros([COLUMNS], tl.float64)
    for start in range(0, blocks, ROWS):
        at = (start + rows).to(tl.int64)[:, None] * total + columns[None, :]
        mask = (start + rows < blocks)[:, None] & inside[None, :]
        down = tl.load(exponents + at, mask=mask, other=NO_EXPONENT) - e[None, :]
        block_n = tl.load(squares + at, mask=mask, other=0.0)
        block_s = tl.load(sums + at, mask=mask, other=0.0)
        n += tl.sum(tl.ceil(block_n * _power_of_two(tl.maximum(2 * down, -1000))), axis=0)
        s += tl.sum(tl.ceil(block_s * _power_of_two(tl.maximum(down, -1000))), axis=0)
    finite = e < INFINITE
    scale, nearest = _scale_of(n, e, range_ptr, tl.where(columns < total_a, balance_a, balance_b))
    tl.store(scales + columns, scale, mask=inside)
    tl.store(scales + total + columns, nearest, mask=inside)
    tl.store(own + columns, e, mask=inside)
    tl.store(sizes + columns, tl.where(finite, tl.sqrt(n), 0.0), mask=inside)
    tl.store(sizes + total + columns, tl.where(finite, s, 0.0), mask=inside)


@triton.jit
def _store_magnitudes(x, own, out, sv, sk, vs, ks, count, k, pitch, ALONG: tl.constexpr):
    """floor(|x| 2**(7 - e)) of a tile, the inner dimension last."""
    z = _load(x, sv, sk, vs, ks, count, k, ALONG)
    e = tl.load(own + vs, mask=vs < count, other=0)
    # Vectors with an Inf or NaN, whose exponent is INFINITE, have no say.
    z = tl.where(tl.abs(z) < float("inf"), z, 0.0)
    low = tl.floor(_scaled_magnitudes(z, e, MAGNITUDE_BITS, ALONG)).to(tl.int32).to(tl.int8)
    if not ALONG:
        low = tl.trans(low)
    at = vs[:, None].to(tl.int64) * pitch + ks[None, :]
    tl.store(out + at, low, mask=(vs[:, None] < count) & (ks[None, :] < pitch))


@triton.jit(do_not_specialize=_SIZES)
def magnitudes_kernel(
    a,
    b,
    own,
    out_a,
    out_b,
    count_a,
    count_b,
    k,
    sab,
    sav,
    sak,
    sbb,
    sbv,
    sbk,
    tiles_a,
    tiles_b,
    total_a,
    pitch,
    ALONG_A: tl.constexpr,
    ALONG_B: tl.constexpr,
    VECTORS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Magnitudes rounded down to 7 bits, INT8 (batch, vectors, pitch), zero beyond k."""
    tile = tl.program_id(0)
    ks = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if tile < tiles_a:
        per_a = tl.cdiv(count_a, VECTORS)
        z = (tile // per_a).to(tl.int64)
        vs = (tile % per_a) * VECTORS + tl.arange(0, VECTORS)
        _store_magnitudes(
            *(a + z * sab, own + z * count_a, out_a + z * count_a * pitch),
            *(sav, sak, vs, ks, count_a, k, pitch, ALONG_A),
        )
    else:
        per_b = tl.cdiv(count_b, VECTORS)
        y = ((tile - tiles_a) // per_b).to(tl.int64)
        ws = ((tile - tiles_a) % per_b) * VECTORS + tl.arange(0, VECTORS)
        _store_magnitudes(
            *(b + y * sbb, own + total_a + y * count_b, out_b + y * count_b * pitch),
            *(sbv, sbk, ws, ks, count_b, k, pitch, ALONG_B),
        )


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
