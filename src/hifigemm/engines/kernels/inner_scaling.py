"""Powers of two between the columns of A and the rows of B on a GPU: the overrides of
numerics.inner_scaling, with the same integers.

Every launch leaves integers that the next one reads, and no program waits for another:

1. gap: how far the largest entries of a row and a column lie above their products, in a
   sample. Where that is little, the next four launches do nothing.
2. exponents of the rows of A and of the columns of B, and how far their entries spread.
3. maxima along k of the exponents beside those of their vectors.
4. d from these maxima.
5. gap with d.
6. zeros in the place of d, unless it closes the gap.

Programs share numbers by integer maxima alone, in memory that is zero before they
start, so that no order of programs shows. Numbers that may be negative are stored above 0 by a bias.
"""

# Kernels are untyped.
# mypy: disable-error-code="assignment, no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from hifigemm.engines.kernels.common import (
    LARGEST,
    NO_PREDICATE,
    Predicate,
    holds,
)
from hifigemm.engines.kernels.launch import Launch, cleared, empty, real_view
from hifigemm.engines.kernels.vector_norms import ABSOLUTE, exponent_of
from hifigemm.numerics import inner_scaling as plain

_NO_EXPONENT = tl.constexpr(plain.NO_EXPONENT)
_BIAS = tl.constexpr(4096)
"""S_h + 4096 > 0: exponents of float64 differ by less than 2100."""
_LEAST_BIAS = tl.constexpr(2048)
"""2048 - e > 0 for every exponent e."""
_MOST = tl.constexpr(plain._MOST)
_LEAST_NORMAL = tl.constexpr(plain._LEAST_NORMAL)
_NEARBY_SLACKS = tl.constexpr(plain._NEARBY_SLACKS)
_WIDE_GAP = tl.constexpr(plain.WIDE_GAP)
_NO_BITS = tl.constexpr(0x7FF << 52)
"""Bits of infinity: no component that counts has as many."""
_BLOCK = 1024
"""Terms that a program looks at together where only k is walked over."""
PADDING = 4096
"""Exponents d are padded with zeros to a multiple: tiles of residues have at most as
many terms, and read them without a mask, 16 bytes at a time.
"""
_CHUNK = 64
"""Tiles of vectors whose maxima a program joins before others see them."""
KEPT = 1
"""What the mark says where d is taken; LARGEST where it is not."""


class Side(NamedTuple):
    """Tile of an operand: vectors, and terms of each. Neighbours in memory are many."""

    vectors: int
    terms: int


_ALONG_K = Side(4, 512)
_ACROSS_K = Side(32, 64)


@triton.jit
def _bits(x, mask, WIDTH: tl.constexpr):
    """Bits of the largest component of entries, and of the smallest other than zero.

    0 and those of infinity for entries that are zero, Inf or NaN, or masked.
    """
    most = (
        tl.load(x, mask=mask, other=0.0).to(tl.float64).to(tl.int64, bitcast=True)
        & ABSOLUTE
    )
    least = tl.where(most == 0, _NO_BITS, most)
    for i in tl.static_range(1, WIDTH):
        bits = tl.load(x + i, mask=mask, other=0.0).to(tl.float64)
        bits = bits.to(tl.int64, bitcast=True) & ABSOLUTE
        least = tl.minimum(least, tl.where(bits == 0, _NO_BITS, bits))
        most = tl.maximum(most, bits)
    counts = most < _NO_BITS
    return tl.where(counts, most, 0), tl.where(counts, least, _NO_BITS)


@triton.jit
def _exponents(bits):
    """Exponents from bits of entries, _NO_EXPONENT from 0."""
    return tl.where(bits == 0, _NO_EXPONENT, exponent_of(bits))


@triton.jit
def _entries(operand, batch, vectors, terms, WIDTH: tl.constexpr):
    """Addresses of entries of a matrix of a stack."""
    x, sb, sv, sk = operand
    return (
        x
        + batch.to(tl.int64) * sb
        + vectors.to(tl.int64) * sv
        + terms.to(tl.int64) * sk
    )


@triton.jit
def _vector_exponents(
    operand,
    tile,
    count,
    k,
    exponents,
    spread,
    VECTORS: tl.constexpr,
    TERMS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """`vector_exponents_kernel` for the vectors of one tile of one operand."""
    tiles = tl.cdiv(count, VECTORS)
    batch = tile // tiles
    vectors = tile % tiles * VECTORS + tl.arange(0, VECTORS)
    inside = vectors < count
    top = tl.full([VECTORS], _NO_EXPONENT, tl.int32)
    total = tl.zeros([VECTORS], tl.int64)
    entries = tl.zeros([VECTORS], tl.int64)
    for start in range(0, k, TERMS):
        ks = start + tl.arange(0, TERMS)
        mask = inside[:, None] & (ks < k)[None, :]
        x = _entries(operand, batch, vectors[:, None], ks[None, :], WIDTH)
        bits, _ = _bits(x, mask, WIDTH)
        e = _exponents(bits)
        top = tl.maximum(top, tl.max(e, axis=1))
        total += tl.sum(tl.where(bits == 0, 0, e), axis=1).to(tl.int64)
        entries += tl.sum((bits != 0).to(tl.int32), axis=1).to(tl.int64)
    tl.store(exponents + batch * count + vectors, top, mask=inside)
    # The mean of R_i - e_ih, which is no less than 0, rounded down.
    below = (entries * top - total) // tl.maximum(entries, 1)
    below = tl.where(entries > 0, below, 0).to(tl.int32)
    tl.atomic_max(spread, tl.max(below), sem="relaxed")


@triton.jit(do_not_specialize=["num_a", "num_b", "k", "tiles_a", "total_a"])
def vector_exponents_kernel(
    a,
    sab,
    sav,
    sak,
    b,
    sbb,
    sbv,
    sbk,
    num_a,
    num_b,
    k,
    tiles_a,
    total_a,
    exponents,
    spread,
    maxima,
    gap,
    LEFT_VECTORS: tl.constexpr,
    LEFT_TERMS: tl.constexpr,
    RIGHT_VECTORS: tl.constexpr,
    RIGHT_TERMS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Twin: numerics.inner_scaling._maxima, R, Q and the spreads.

    A program takes a tile of vectors of A or of B and all of their terms. It alone
    writes their exponents; spreads are maxima over all programs. All of them clear the
    4 k maxima for the next launch. Nothing where the gap is narrow.
    """
    if not holds(gap, _WIDE_GAP, 1 << 40):
        return
    tile = tl.program_id(0)
    for start in range(tile * BLOCK, 4 * k, tl.num_programs(0) * BLOCK):
        cleared_maxima = start + tl.arange(0, BLOCK)
        tl.store(maxima + cleared_maxima, 0, mask=cleared_maxima < 4 * k)
    if tile < tiles_a:
        _vector_exponents(
            (a, sab, sav, sak),
            tile,
            num_a,
            k,
            exponents,
            spread,
            LEFT_VECTORS,
            LEFT_TERMS,
            WIDTH,
        )
    else:
        _vector_exponents(
            (b, sbb, sbv, sbk),
            tile - tiles_a,
            num_b,
            k,
            exponents + total_a,
            spread + 1,
            RIGHT_VECTORS,
            RIGHT_TERMS,
            WIDTH,
        )


@triton.jit
def _inner_maxima(
    operand,
    task,
    count,
    k,
    exponents,
    largest,
    least,
    CHUNK: tl.constexpr,
    VECTORS: tl.constexpr,
    TERMS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """`inner_maxima_kernel` for some terms of a chunk of vectors of one operand."""
    # Programs that follow each other take neighbouring terms of the same vectors.
    steps = tl.cdiv(k, TERMS)
    chunks = tl.cdiv(count, CHUNK * VECTORS)
    ks = task % steps * TERMS + tl.arange(0, TERMS)
    batch = task // steps // chunks
    first = task // steps % chunks * (CHUNK * VECTORS)
    most = tl.zeros([TERMS], tl.int32)
    deepest = tl.zeros([TERMS], tl.int32)
    for start in range(first, tl.minimum(first + CHUNK * VECTORS, count), VECTORS):
        vectors = start + tl.arange(0, VECTORS)
        inside = vectors < count
        top = tl.load(exponents + batch * count + vectors, mask=inside, other=0)
        mask = inside[:, None] & (ks < k)[None, :]
        x = _entries(operand, batch, vectors[:, None], ks[None, :], WIDTH)
        bits, smallest = _bits(x, mask, WIDTH)
        beside = tl.where(bits == 0, 0, exponent_of(bits) - top[:, None] + _BIAS)
        most = tl.maximum(most, tl.max(beside, axis=0))
        depth = tl.where(bits == 0, 0, _LEAST_BIAS - exponent_of(smallest))
        deepest = tl.maximum(deepest, tl.max(depth, axis=0))
    tl.atomic_max(largest + ks, most, mask=(ks < k) & (most > 0), sem="relaxed")
    tl.atomic_max(least + ks, deepest, mask=(ks < k) & (most > 0), sem="relaxed")


@triton.jit(do_not_specialize=["num_a", "num_b", "k", "tasks_a", "total_a"])
def inner_maxima_kernel(
    a,
    sab,
    sav,
    sak,
    b,
    sbb,
    sbv,
    sbk,
    num_a,
    num_b,
    k,
    tasks_a,
    total_a,
    exponents,
    largest,
    least,
    gap,
    CHUNK: tl.constexpr,
    LEFT_VECTORS: tl.constexpr,
    LEFT_TERMS: tl.constexpr,
    RIGHT_VECTORS: tl.constexpr,
    RIGHT_TERMS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Twin: numerics.inner_scaling._maxima, S, T and the smallest components.

    Maxima over all programs, of biased numbers in memory that starts as zeros: those of
    A first, then those of B. Nothing where the gap is narrow.
    """
    if not holds(gap, _WIDE_GAP, 1 << 40):
        return
    task = tl.program_id(0)
    if task < tasks_a:
        _inner_maxima(
            (a, sab, sav, sak),
            task,
            num_a,
            k,
            exponents,
            largest,
            least,
            CHUNK,
            LEFT_VECTORS,
            LEFT_TERMS,
            WIDTH,
        )
    else:
        _inner_maxima(
            (b, sbb, sbv, sbk),
            task - tasks_a,
            num_b,
            k,
            exponents + total_a,
            largest + k,
            least + k,
            CHUNK,
            RIGHT_VECTORS,
            RIGHT_TERMS,
            WIDTH,
        )


@triton.jit
def _chosen(largest, ks, k, slack_left, slack_right):
    """d of some terms, and whether A and B have entries there."""
    s = tl.load(largest + ks, mask=ks < k, other=0)
    t = tl.load(largest + k + ks, mask=ks < k, other=0)
    near = tl.abs(slack_left - slack_right) <= _NEARBY_SLACKS
    flat = tl.where(slack_left < slack_right, _BIAS - s, t - _BIAS)
    d = tl.where(near, (t - s) >> 1, flat)
    d = tl.minimum(tl.maximum(d, -_MOST), _MOST)
    return tl.where((s > 0) & (t > 0), d, 0), s > 0, t > 0


@triton.jit(do_not_specialize=["k"])
def inner_exponents_kernel(
    largest, least, spread, k, exponents, gap, BLOCK: tl.constexpr
):
    """Twin: numerics.inner_scaling.chosen_exponents.

    Every program reads the maxima of all terms, and writes d of BLOCK terms of its own,
    0 beyond k. Nothing where the gap is narrow.
    """
    if not holds(gap, _WIDE_GAP, 1 << 40):
        return
    offsets = tl.arange(0, BLOCK)
    # The means of -S and -T over the terms that have entries, rounded down.
    below_left = tl.zeros([BLOCK], tl.int64)
    below_right = tl.zeros([BLOCK], tl.int64)
    entries_left = tl.zeros([BLOCK], tl.int64)
    entries_right = tl.zeros([BLOCK], tl.int64)
    for start in range(0, k, BLOCK):
        ks = start + offsets
        s = tl.load(largest + ks, mask=ks < k, other=0)
        t = tl.load(largest + k + ks, mask=ks < k, other=0)
        below_left += tl.where(s > 0, _BIAS - s, 0)
        below_right += tl.where(t > 0, _BIAS - t, 0)
        entries_left += (s > 0).to(tl.int64)
        entries_right += (t > 0).to(tl.int64)
    mean_left = tl.sum(below_left) // tl.maximum(tl.sum(entries_left), 1)
    mean_right = tl.sum(below_right) // tl.maximum(tl.sum(entries_right), 1)
    slack_left = tl.load(spread) - mean_left.to(tl.int32)
    slack_right = tl.load(spread + 1) - mean_right.to(tl.int32)
    # Is every entry of A D and of D**-1 B a normal number?
    smallest = tl.zeros([BLOCK], tl.int32)
    for start in range(0, k, BLOCK):
        ks = start + offsets
        d, has_left, has_right = _chosen(largest, ks, k, slack_left, slack_right)
        left = _LEAST_BIAS - tl.load(least + ks, mask=ks < k, other=0) + d
        right = _LEAST_BIAS - tl.load(least + k + ks, mask=ks < k, other=0) - d
        smallest = tl.minimum(smallest, tl.where(has_left, left, 0))
        smallest = tl.minimum(smallest, tl.where(has_right, right, 0))
    is_normal = tl.min(smallest) >= _LEAST_NORMAL
    ks = tl.program_id(0) * BLOCK + offsets
    d, _, _ = _chosen(largest, ks, k, slack_left, slack_right)
    tl.store(exponents + ks, tl.where(is_normal, d, 0))


_FREE_OF_GAPS = [
    "sav", "sak", "sbv", "sbk", "num_a", "num_b", "k", "lower_limit", "upper_limit",
]  # fmt: skip


@triton.jit(do_not_specialize=_FREE_OF_GAPS)
def sampled_gap_kernel(
    a,
    sav,
    sak,
    b,
    sbv,
    sbk,
    num_a,
    num_b,
    k,
    exponents,
    gap,
    predicate,
    lower_limit: tl.int64,
    upper_limit: tl.int64,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Twin: numerics.inner_scaling.sampled_gap.

    A program takes a pair of a row and a column, and raises the gap to that of the
    pair. Nothing where the predicate, which is no gap that is raised, does not hold.
    """
    if not holds(predicate, lower_limit, upper_limit):
        return
    pair = tl.program_id(0)
    row = (pair % num_a).to(tl.int64)
    column = (pair % num_b).to(tl.int64)
    left = tl.full([BLOCK], _NO_EXPONENT, tl.int32)
    right = tl.full([BLOCK], _NO_EXPONENT, tl.int32)
    meeting = tl.full([BLOCK], 2 * _NO_EXPONENT, tl.int32)
    for start in range(0, k, BLOCK):
        ks = start + tl.arange(0, BLOCK)
        x, _ = _bits(a + row * sav + ks.to(tl.int64) * sak, ks < k, WIDTH)
        y, _ = _bits(b + column * sbv + ks.to(tl.int64) * sbk, ks < k, WIDTH)
        e = _exponents(x)
        f = _exponents(y)
        meeting = tl.maximum(meeting, e + f)
        if exponents is not None:
            d = tl.load(exponents + ks, mask=ks < k, other=0)
            e += d
            f -= d
        left = tl.maximum(left, e)
        right = tl.maximum(right, f)
    nearest = tl.max(meeting)
    below = tl.max(left) + tl.max(right) - nearest
    below = tl.where(nearest > _NO_EXPONENT // 2, below, 0)
    tl.atomic_max(gap, tl.maximum(below, 0).to(tl.int64), sem="relaxed")


@triton.jit(do_not_specialize=["lower_limit", "upper_limit"])
def keep_kernel(
    exponents,
    gaps,
    mark,
    predicate,
    lower_limit: tl.int64,
    upper_limit: tl.int64,
    BLOCK: tl.constexpr,
):
    """Zeros in the place of d, unless numerics.inner_scaling.closes.

    The first program leaves a mark: 1 where d is taken, else the largest number.
    Nothing where the predicate does not hold.
    """
    if not holds(predicate, lower_limit, upper_limit):
        return
    before = tl.load(gaps)
    is_kept = (before >= _WIDE_GAP) & (2 * tl.load(gaps + 2) <= before)
    ks = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if is_kept == 0:
        tl.store(exponents + ks, 0)
    if mark is not None:  # noqa: SIM102
        if tl.program_id(0) == 0:
            tl.store(mark, tl.where(is_kept, 1, 0x7FFFFFFFFFFFFFFF))


_vectors = Launch(vector_exponents_kernel)
_maxima = Launch(inner_maxima_kernel)
_exponents_of = Launch(inner_exponents_kernel)
_gap = Launch(sampled_gap_kernel)
_keep = Launch(keep_kernel)


def sampled_gap(
    left: Any,
    right: Any,
    gap: Any,
    exponents: Any = None,
    predicate: Predicate | None = None,
) -> None:
    """Raise `gap`, an int64 tensor of one entry, to numerics.inner_scaling.sampled_gap.

    left (batch or 1, m, k) and right (batch or 1, k, n) are real or complex, `exponents`
    int32 (k,).
    """
    x, y, width = real_view(left), real_view(right), 1 + left.is_complex()
    number, lower_limit, upper_limit = predicate or NO_PREDICATE
    k = left.shape[2]
    _gap(
        (plain.SAMPLES,),
        x,
        width * left.stride(1),
        width * left.stride(2),
        y,
        width * right.stride(2),
        width * right.stride(1),
        left.shape[1],
        right.shape[2],
        k,
        exponents,
        gap,
        number,
        lower_limit,
        upper_limit,
        WIDTH=width,
        BLOCK=_BLOCK,
        num_warps=8,
    )


def inner_exponents(left: Any, right: Any, gap: Any) -> Any:
    """numerics.inner_scaling.inner_exponents, int32 (k,) padded with zeros.

    Undefined where `gap`, an int64 tensor of one entry, is less than a wide one.
    """
    k = left.shape[2]
    sides = []
    arguments = []
    for x, axis in ((left, 2), (right, 1)):
        width = 1 + x.is_complex()
        strides = x.stride(0) if len(x) > 1 else 0, x.stride(3 - axis), x.stride(axis)
        is_along_k = k == 1 or x.stride(axis) == 1
        sides.append(_ALONG_K if is_along_k else _ACROSS_K)
        arguments += [real_view(x), *(width * stride for stride in strides)]
    counts = left.shape[1], right.shape[2]
    batches = len(left), len(right)
    totals = [b * count for b, count in zip(batches, counts, strict=True)]

    # Biased maxima and the smallest components of both operands, and their spreads.
    maxima = empty((4 * k,), torch.int32, left)
    largest = maxima[: 2 * k]
    least = maxima[2 * k :]
    spread = cleared(4, left)
    vector_exponents = empty((sum(totals),), torch.int32, left)
    form: dict[str, Any] = {"WIDTH": 1 + left.is_complex(), "num_warps": 8}
    for name, side in zip(("LEFT", "RIGHT"), sides, strict=True):
        form |= {f"{name}_VECTORS": side.vectors, f"{name}_TERMS": side.terms}

    tiles = [
        batch * -(-count // side.vectors)
        for batch, count, side in zip(batches, counts, sides, strict=True)
    ]
    common = *arguments, *counts, k
    _vectors(
        (sum(tiles),),
        *common,
        tiles[0],
        totals[0],
        vector_exponents,
        spread,
        maxima,
        gap,
        BLOCK=_BLOCK,
        **form,
    )
    tasks = [
        batch * -(-count // (_CHUNK * side.vectors)) * -(-k // side.terms)
        for batch, count, side in zip(batches, counts, sides, strict=True)
    ]
    _maxima(
        (sum(tasks),),
        *common,
        tasks[0],
        totals[0],
        vector_exponents,
        largest,
        least,
        gap,
        CHUNK=_CHUNK,
        **form,
    )
    padded = -(-k // PADDING) * PADDING
    exponents = empty((padded,), torch.int32, left)
    _exponents_of(
        (padded // _BLOCK,),
        largest,
        least,
        spread,
        k,
        exponents,
        gap,
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return exponents


def gaining_exponents(
    left: Any, right: Any, mark: Any = None, predicate: Predicate | None = None
) -> Any:
    """d, int32 (k,) padded with zeros, where the operands gain by it, else zeros.

    Parameters
    ----------
    mark : int64 tensor of one entry, optional
        Is set to KEPT where they gain, else to LARGEST.
    predicate : (int64 tensor of one entry, lower limit, upper limit), optional
        Decides on the device: unless the entry, which is not the mark, lies within the
        limits the operands are not read, and what is returned means nothing.
    """
    # The gap before, and 16 bytes behind it that with d: both are aligned alike.
    gaps = cleared(8, left).view(torch.int64)
    before = gaps[:1]
    after = gaps[2:3]
    sampled_gap(left, right, before, predicate=predicate)
    exponents = inner_exponents(left, right, before)
    wide: Predicate = (before, plain.WIDE_GAP, LARGEST)
    sampled_gap(left, right, after, exponents, wide)
    number, lower_limit, upper_limit = predicate or NO_PREDICATE
    _keep(
        (exponents.shape[0] // _BLOCK,),
        exponents,
        gaps,
        mark,
        number,
        lower_limit,
        upper_limit,
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return exponents
